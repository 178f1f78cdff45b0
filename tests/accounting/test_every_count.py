"""Every number of honest reports at once: each against exact sums, chords against convex functions, and
mixtures over samples against the sum over every number."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shuffle_ledger.accounting import Accountant, attack_epsilon, parse_randomizer
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.random_size import contour as every_count_module
from shuffle_ledger.accounting.amplification.random_size.contour import Counts, Run, _Nodes, every_count
from shuffle_ledger.accounting.amplification.random_size.mixture import EveryNumber, Numbers
from shuffle_ledger.accounting.amplification.random_size.tables import CountTable
from shuffle_ledger.accounting.comparison.attacks import WitnessProfile
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.rounds.shuffled_round import RoundProfile
from tests.accounting import exact_sums
from tests.accounting.alike import alike
from tests.tiers import thorough


def _bounds(pair: Decomposition, counts: Counts, excess: Any, smoothing: float) -> ProfileBounds:
    return every_count(ListedPairs([pair]), 0, counts, excess, smoothing=np.full(excess.size, smoothing))


@pytest.mark.parametrize("seed", range(8))
def test_a_few_reports_are_enclosed_by_every_outcome(seed: int, oracle: Any) -> None:
    """Random masses, some of them unhidden; numbers from one on, in runs of different strides."""
    draw = np.random.default_rng(seed)
    size = int(draw.integers(2, 5))
    a, b = draw.dirichlet(np.ones(size), size=2)
    c = np.minimum(a, b) * draw.uniform(0.3, 1.0, size)
    if seed % 3 == 0:
        c[0] = 0.0
    pair = Decomposition(a, b, c)
    counts = Counts((Run(1, 1, 3), Run(4, 2, 2), Run(9, 1, 1)), typical=3)
    assert counts.values.tolist() == [1, 2, 3, 4, 6, 9]
    excess = np.expm1(np.array([0.0, 0.05, 0.4, 1.5]))
    found = _bounds(pair, counts, excess, 0.01)
    for row, reports in enumerate(counts.values.tolist()):
        outcomes = oracle.blanket_outcomes(pair, reports)
        for column, epsilon in enumerate((0.0, 0.05, 0.4, 1.5)):
            exact = oracle.delta(outcomes, epsilon)
            assert found.lower[row, column] <= exact * (1 + mp.mpf(1e-12)) + mp.mpf(1e-15)
            assert exact <= found.upper[row, column] * (1 + mp.mpf(1e-12)) + mp.mpf(1e-15)


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_hundreds_of_reports_are_enclosed_and_close(epsilon0: float) -> None:
    """Binary response by its binomials, two deviations of numbers around the typical one and far beyond."""
    e = math.exp(epsilon0)
    pair = parse_randomizer(f"generic(epsilon0={epsilon0})").analysis("tight").decomposition
    counts = Counts((Run(150, 50, 2), Run(280, 1, 40), Run(320, 60, 2)), typical=300)
    epsilons = np.linspace(0.0, min(epsilon0, 8 / math.sqrt(300)), 7)[:-1]
    found = _bounds(pair, counts, np.expm1(epsilons), 0.012)
    for row in (0, 1, 2, 22, 41, 42, 43):
        law = exact_sums.clones(int(counts.values[row]), 2 / (1 + e), e / (1 + e))
        exact = np.array([law.delta(one) for one in epsilons])
        assert np.all(found.lower[row] <= exact * (1 + 1e-9) + 1e-14)
        assert np.all(exact <= found.upper[row] * (1 + 1e-9) + 1e-14)
    seen = found.upper[22] > 1e-12
    assert np.all((found.upper - found.lower)[22, seen] <= 0.01 * found.upper[22, seen])


@pytest.mark.parametrize("typical", [8, 50, 2500])
def test_numbers_that_no_contour_was_made_for_are_enclosed(typical: int) -> None:
    """Sums that reach over many periods, and such that are over before the first nodes."""
    epsilon0, e = 1.0, math.e
    pair = parse_randomizer("generic(epsilon0=1)").analysis("tight").decomposition
    counts = Counts((Run(2, 6, 2), Run(60, 340, 2), Run(1500, 1000, 2)), typical)
    epsilons = np.array([0.0, 0.02, 0.1, 0.6])
    found = _bounds(pair, counts, np.expm1(epsilons), 0.012)
    for row, number in enumerate(counts.values.tolist()):
        law = exact_sums.clones(number, 2 / (1 + e), e / (1 + e))
        exact = np.array([law.delta(one) for one in epsilons * epsilon0])
        assert np.all(found.lower[row] <= exact * (1 + 1e-9) + 1e-14)
        assert np.all(exact <= found.upper[row] * (1 + 1e-9) + 1e-14)


@pytest.mark.parametrize("written", ["krr(k=10, epsilon0=2)", "hadamard(epsilon0=4)", "laplace(epsilon0=1)"])
def test_every_number_is_as_it_is_alone(written: str) -> None:
    """The same divergences one by one, deep ones among them: neither bound excludes the other's."""
    brackets = parse_randomizer(written).analysis("blanket").brackets
    counts = Counts((Run(400, 7, 30),), typical=500)
    excess = np.expm1(np.linspace(0.0, 0.9, 40))
    for pair in (brackets[0].above, brackets[0].above.swapped()):
        found = _bounds(pair, counts, excess, 0.012)
        for row in (0, 13, 29):
            alone = blanket_profile(pair, int(counts.values[row]), excess, smoothing=0.012)
            assert np.all(found.lower[row] <= alone.upper * (1 + 1e-12))
            assert np.all(alone.lower <= found.upper[row] * (1 + 1e-12))


@pytest.mark.parametrize("seed", range(10))
def test_round_off_of_powers_of_powers_is_bounded(seed: int) -> None:
    """Sums over random nodes with numbers up to 100,000, in 50 digits."""
    draw = np.random.default_rng(seed)
    shape = (2, 9)
    run = Run(int(10 ** draw.uniform(0, 5)), int(draw.choice([1, 2, 7])), int(10 ** draw.uniform(0, 3.5)))
    fall = -np.abs(draw.normal(size=shape)) * 10 ** draw.uniform(-8, -1)
    angle = draw.normal(size=shape) * 10 ** draw.uniform(-6, 0.3)
    upper, lower = draw.normal(size=(2, *shape)) + 1j * draw.normal(size=(2, *shape))
    modulus, nothing = np.maximum(np.abs(upper), np.abs(lower)), np.zeros(shape)
    nodes = _Nodes(fall, angle, np.abs(angle), nothing, upper, lower, modulus, nothing)
    found = nodes.sums(run)
    bound = nodes.round_off(Counts((run,), run.first), sum(run.factors), shape[1])
    with mp.workdps(50):
        for place in (0, run.size - 1, *draw.integers(0, run.size, 2)):
            number = run.first + run.stride * int(place)
            for kernel, sums in zip((upper, lower), found, strict=True):
                for row in range(shape[0]):
                    terms = zip(kernel[row], fall[row], angle[row], strict=True)
                    exact = mp.fsum(
                        mp.re(mp.mpc(value) * mp.exp(number * mp.mpc(log, turn)))
                        for value, log, turn in terms
                    )
                    assert abs(exact - sums[place, row]) <= bound[row]


def test_sums_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few nodes are made at once, the orders' sums differ by roundings."""
    pair = parse_randomizer("hadamard(epsilon0=4)").analysis("blanket").brackets[0].above
    counts = Counts((Run(400, 7, 30), Run(640, 1, 5)), typical=500)
    excess = np.expm1(np.linspace(0.0, 0.9, 9))
    whole = _bounds(pair, counts, excess, 0.012)
    monkeypatch.setattr(every_count_module, "BLOCK_ELEMENTS", 1000)
    pieces = _bounds(pair, counts, excess, 0.012)
    for one, other in zip(whole, pieces, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-18)
    assert np.any(whole.upper != pieces.upper)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(1e-3, 3.0), min_size=4, max_size=30),
    st.lists(st.floats(0.0, 5.0), min_size=30, max_size=30),
    st.floats(0.0, 0.05),
    st.booleans(),
)
def test_chords_enclose_convex_profiles(
    steps: list[float], falls: list[float], noise: float, begins_far: bool
) -> None:
    """A convex function, no steeper than its argument, known at some points to some digits."""
    points = np.concatenate([[0.0], np.cumsum(steps) + 4.0 * begins_far])
    kinks, weights = points[-1] * np.linspace(0.02, 1.1, 30), np.array(falls)
    weights = weights / max(weights.sum(), 1.0)

    def profile(x: Any) -> Any:
        return np.maximum(kinks - np.asarray(x)[..., None], 0.0) @ weights

    values, draw = profile(points)[None, :], np.random.default_rng(0)
    off = noise * draw.uniform(size=(2, 1, points.size))
    table = CountTable.of(
        points, ProfileBounds(values * (1 + off[0]), values * (1 - off[1])), blur=0.0, reach=2.0
    )
    asked = np.sort(np.concatenate([points, draw.uniform(0.0, 1.3 * points[-1], 200)]))
    exact = profile(asked)
    assert np.all(table.above(0, asked) >= exact * (1 - 1e-14))
    assert np.all(table.below(0, asked) <= exact * (1 + 1e-14))


def test_orders_that_are_off_stay_enclosed() -> None:
    """A table of a function that falls steeply: orders are looked up as far away as they may be off."""
    points = np.linspace(0.0, 1.0, 400)
    values = (np.maximum(1 - points, 0.0) ** 3 / 3)[None, :]
    blur = 1e-3
    table = CountTable.of(points, ProfileBounds(values, values), blur=blur, reach=0.5)
    asked = np.linspace(0.0, 0.99, 57)
    for moved in (-blur, blur):
        exact = np.maximum(1 - np.maximum(asked + moved * (asked + 0.5), 0.0), 0.0) ** 3 / 3
        assert np.all(table.above(0, asked) >= exact)
        assert np.all(table.below(0, asked) <= exact)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 1500), st.floats(1e-7, 1e-2), st.integers(0, 2**32))
def test_numbers_are_each_in_one_group(first: int, size: int, finest: float, seed: int) -> None:
    masses = np.random.default_rng(seed).dirichlet(np.ones(size))
    numbers = first + np.arange(size, dtype=np.float64)
    found = Numbers.of(numbers, masses, finest=finest)
    groups = list(found.groups)
    assert math.isclose(math.fsum(weight for _, weight, _, _ in groups), 1.0, rel_tol=1e-12)
    assert groups[0][0] == first
    assert groups[-1][2] == numbers[-1]
    for (fewest, _, most, mean), (later, *_) in itertools.pairwise([*groups, (numbers[-1] + 1, 0, 0, 0)]):
        assert fewest <= mean <= most == later - 1
    assert found.counts.size == len(groups) + 1
    assert found.counts.last > numbers[-1]


@pytest.mark.parametrize("finest", [1e-3, 0.02, 0.2])
def test_groups_of_numbers_count_by_their_ends(finest: float) -> None:
    """Profiles that fall as fast with the number as they may: `max(1 - r, 0) / j`."""
    honest, numbers = 400, np.arange(20, 260, dtype=np.float64)
    masses = stats.binom.pmf(numbers, 400, 0.3)
    grid = np.linspace(0.0, 1.0, 11)

    def table(counts: Counts, first: float, last: float) -> CountTable:
        values = np.maximum(1 - grid, 0.0) / counts.values[:, None]
        return CountTable.of(grid, ProfileBounds(values, values), blur=0.0, reach=0.0)

    found = Numbers.of(numbers, masses / masses.sum(), finest=finest)
    asked = np.linspace(0.0, 0.5, 40)
    bounds = EveryNumber(found, honest, 1.0, 1.0, table).bounds(asked)
    assert bounds is not None
    rates = numbers / honest
    left = np.maximum(1 - asked[:, None] / rates, 0.0)
    exact = (masses / masses.sum() * rates / numbers * left).sum(axis=1)
    assert np.all(bounds.lower <= exact * (1 + 1e-12))
    assert np.all(exact <= bounds.upper * (1 + 1e-12))
    assert np.all((bounds.upper - bounds.lower)[:10] <= (0.07 + 2 * finest) * exact[:10])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "population", "fraction", "epsilon0"),
    [(600, 1500, 0.95, 0.25), thorough(1500, 10**6, 0.6, 2.0)],
)
def test_a_sample_is_enclosed_by_the_sum_over_every_number(
    sample: int, population: int, fraction: float, epsilon0: float
) -> None:
    """Every number of honest users in the sample by its own binomials."""
    shuffled = alike(
        randomizer=parse_randomizer(f"generic(epsilon0={epsilon0!r})"),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
    )
    profile = RoundProfile(shuffled, smoothing=0.012)
    assert profile.is_quick
    honest, e = round(fraction * population), math.exp(epsilon0)
    law = stats.hypergeom(population, honest, sample)
    usual = sample / population * 4 / math.sqrt(fraction * sample)
    losses = np.log1p(np.expm1(min(usual, 0.9 * epsilon0)) * np.array([0.0, 0.02, 0.3, 0.7, 1.0]))
    exact = np.zeros(losses.size)
    for j in range(1, sample + 1):
        if law.pmf(j) < 1e-15:
            continue
        pair, rate = exact_sums.clones(j, 2 / (1 + e), e / (1 + e)), j / honest
        exact += law.pmf(j) * rate * np.array([pair.delta(math.log1p(math.expm1(x) / rate)) for x in losses])
    many = np.union1d(losses, np.linspace(0.0, float(losses[-1]), 200))
    for asked in (losses, many):
        bounds = profile.at(asked)
        at = np.searchsorted(asked, losses)
        assert np.all(bounds.lower[at] <= exact * (1 + 1e-9) + 1e-13)
        assert np.all(exact <= bounds.upper[at] * (1 + 1e-9) + 1e-13)
        assert np.all((bounds.upper - bounds.lower)[at] <= 2e-2 * exact + 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "sample", "population", "fraction"),
    [
        ("krr(k=10, epsilon0=2)", 1000, 100_000, 0.8),
        thorough("hadamard(epsilon0=4)", 1000, 10_000, 0.5),
        ("blh(epsilon0=6, domain=4)", 100, 50_000, 0.7),
    ],
)
def test_partly_honest_samples_are_as_narrow_as_asked(
    written: str, sample: int, population: int, fraction: float
) -> None:
    """So they were by numbers one by one, at up to forty times the price; what these say is no different."""
    shuffled = alike(
        randomizer=parse_randomizer(written),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
    )
    accountant = Accountant()
    for rounds, delta in ((1, 1e-8), (100, 1e-8), (100, 1e-30), (10_000, 1e-8)):
        assert accountant.certify({shuffled: rounds}, delta=delta).precise, (rounds, delta)
    profile = RoundProfile(shuffled, smoothing=0.03)
    orders = np.expm1(np.linspace(0.0, 0.5 * profile.end, 120))
    cells, tables = profile._mixture(orders), profile(orders)
    assert profile.is_quick
    assert np.all(cells.lower <= tables.upper * (1 + 1e-12))
    assert np.all(tables.lower <= cells.upper * (1 + 1e-12))


@pytest.mark.slow
@pytest.mark.parametrize("written", ["krr(k=4, epsilon0=2)", thorough("laplace(epsilon0=1)")])
def test_attacks_on_samples_look_where_the_usual_number_says(written: str) -> None:
    shuffled = alike(
        randomizer=parse_randomizer(written),
        reports=60,
        sampled_from=2_000,
        honest_fraction=0.6,
    )
    found = attack_epsilon(shuffled, delta=1e-7)
    assert found is not None
    profile = WitnessProfile(shuffled, shuffled.randomizer.witnesses())
    reach = profile.loss_within_reach(1e-7)
    grid = np.union1d(np.linspace(0.0, reach, 30), found * np.linspace(0.99, 1.02, 16))
    certain = grid[np.flatnonzero(profile(np.expm1(grid)) >= 1e-7)[-1]]
    assert found >= certain * (1 - 2e-3)
    assert profile(np.expm1(np.array([found])))[0] >= 1e-7 * (1 - 1e-9)
    assert found <= Accountant().certify({shuffled: 1}, delta=1e-7).epsilon_lower
