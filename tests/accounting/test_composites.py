"""Joint and parallel randomizers, tables and Laplace noise: against the randomizers themselves, listed."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter, defaultdict
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from shuffle_ledger.accounting import Accountant, attack_delta, parse_randomizer, slot_for
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, mixture
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import LocalRandomizer
from shuffle_ledger.accounting.randomizers.base import Bracket
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting.alike import alike
from tests.accounting.datasets import worst

Rows = list[list[float]]  # probabilities of every output (columns) under every input (rows)


def _krr(k: int, epsilon0: float) -> Rows:
    e = math.exp(epsilon0)
    return [[(e if x == y else 1) / (e + k - 1) for y in range(k)] for x in range(k)]


def _blh(domain: int, epsilon0: float) -> Rows:
    e = math.exp(epsilon0)
    hashes = list(itertools.product((0, 1), repeat=domain))
    return [
        [(e if h[x] == bit else 1) / (e + 1) / len(hashes) for h in hashes for bit in (0, 1)]
        for x in range(domain)
    ]


def _oue(domain: int, epsilon0: float) -> Rows:
    flip = 1 / (math.exp(epsilon0) + 1)
    return [
        [
            math.prod(
                (0.5 if i == x else flip) if bit else (0.5 if i == x else 1 - flip)
                for i, bit in enumerate(bits)
            )
            for bits in itertools.product((0, 1), repeat=domain)
        ]
        for x in range(domain)
    ]


def _both(*tables: Rows) -> Rows:
    """One report of each randomizer, each on a separate value."""
    return [[math.prod(masses) for masses in itertools.product(*rows)] for rows in itertools.product(*tables)]


def _either(weights: tuple[float, ...], *tables: Rows) -> Rows:
    """One of the randomizers, visibly, each on a separate value."""
    return [
        [weight * mass for weight, row in zip(weights, rows, strict=True) for mass in row]
        for rows in itertools.product(*tables)
    ]


def _table(rows: Rows) -> LocalRandomizer:
    return parse_randomizer({"kind": "table", "rows": [[m / math.fsum(row) for m in row] for row in rows]})


def _bounds(randomizer: Any, reports: int, excess: Any, **rest: Any) -> Any:
    shuffled = alike(randomizer=randomizer, reports=reports, **rest)
    return RoundProfile(shuffled, smoothing=2e-3)(np.asarray(excess, dtype=np.float64))


KRR3, KRR2, BLH3, OUE3 = _krr(3, 1.2), _krr(2, 0.7), _blh(3, 0.9), _oue(3, 0.8)
SKEWED = [[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.3, 0.4, 0.3]]
SUBSET = [
    [m / (1 + 2 * math.exp(0.3)) for m in row]
    for row in (
        (math.exp(0.3), 1, math.exp(0.3)),
        (1, math.exp(0.3), math.exp(0.3)),
        (math.exp(0.3), math.exp(0.3), 1),
    )
]
CASES = [
    ("joint(krr(k=3, epsilon0=1.2), krr(k=2, epsilon0=0.7))", _both(KRR3, KRR2)),
    ("joint(krr(k=3, epsilon0=1.2), krr(k=3, epsilon0=1.2))", _both(KRR3, KRR3)),
    ("joint(blh(epsilon0=0.9, domain=3), krr(k=2, epsilon0=0.7))", _both(BLH3, KRR2)),
    (
        "joint(krr(k=2, epsilon0=0.7), krr(k=2, epsilon0=0.7), krr(k=2, epsilon0=0.7))",
        _both(KRR2, KRR2, KRR2),
    ),
    (f"joint(table({SKEWED}), krr(k=2, epsilon0=0.7))", _both(SKEWED, KRR2)),
    (f"joint(table({SKEWED}), table({SKEWED}))", _both(SKEWED, SKEWED)),
    (
        "parallel((0.3, krr(k=3, epsilon0=1.2)), (0.7, krr(k=2, epsilon0=0.7)))",
        _either((0.3, 0.7), KRR3, KRR2),
    ),
    (
        "parallel((0.5, oue(epsilon0=0.8, domain=3)), (0.5, blh(epsilon0=0.9, domain=3)))",
        _either((0.5, 0.5), OUE3, BLH3),
    ),
    (
        f"parallel((0.25, table({SKEWED})), (0.75, krr(k=2, epsilon0=0.7)))",
        _either((0.25, 0.75), SKEWED, KRR2),
    ),
    (
        f"joint(parallel((0.5, table({SKEWED})), (0.5, krr(k=2, epsilon0=0.7))), krr(k=2, epsilon0=0.7))",
        _both(_either((0.5, 0.5), SKEWED, KRR2), KRR2),
    ),
]


@pytest.mark.parametrize(("written", "rows"), CASES)
@pytest.mark.parametrize("reports", [1, 3, 40])
def test_parts_make_the_optimal_bound_of_the_whole(written: str, rows: Rows, reports: int) -> None:
    """The whole, as a table over all pairs of its inputs, has no larger bound, and no smaller one."""
    randomizer, whole = parse_randomizer(written), _table(rows)
    assert whole.epsilon0 <= randomizer.epsilon0 * (1 + 1e-12) + 1e-12
    excess = np.expm1([0.0, 0.05, 0.3, 1.0])
    ours, listed = _bounds(randomizer, reports, excess), _bounds(whole, reports, excess)
    assert np.all(listed.lower <= ours.upper)
    assert np.all(ours.lower <= listed.upper)
    assert np.all(ours.upper - ours.lower <= 2e-2 * ours.upper + 1e-9)


@pytest.mark.parametrize(("written", "rows"), [CASES[i] for i in (0, 4, 6, 8)])
@pytest.mark.parametrize("users", [2, 3])
def test_no_neighbouring_datasets_tell_more(written: str, rows: Rows, users: int) -> None:
    """Every dataset of the others and both directions: the true shuffled output stays below the bound."""
    orders = np.exp([0.0, 0.2, 0.8])
    upper = _bounds(parse_randomizer(written), users, orders - 1).upper
    assert np.all(worst(rows, users, orders.tolist()) <= upper * (1 + 1e-12))


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    inputs, outputs = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    entry = st.one_of(st.just(0), st.integers(1, 40), st.integers(1, 1000))
    rows = [[draw(entry) for _ in range(outputs)] for _ in range(inputs)]
    assume(all(sum(row) > 0 for row in rows))
    return [[value / sum(row) for value in row] for row in rows]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 3), st.floats(0.0, 3.0))
def test_random_tables_are_never_under_reported(rows: Rows, users: int, epsilon: float) -> None:
    bound = _bounds(_table(rows), users, [math.expm1(epsilon)])
    (most,) = worst(rows, users, [math.exp(epsilon)])
    assert most <= bound.upper[0] * (1 + 1e-12) + 1e-15
    if users == 1:  # one report alone: the bound is the randomizer itself
        assert bound.lower[0] <= most * (1 + 1e-12) + 1e-15
        assert bound.upper[0] - bound.lower[0] <= 1e-5


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tables(), st.floats(0.0, 3.0))
def test_an_impossible_output_is_infinite_loss(rows: Rows, epsilon: float) -> None:
    randomizer = _table(rows)
    hidden = np.array(rows).min(axis=0)
    revealing = any(c == 0 < mass for row in rows for c, mass in zip(hidden, row, strict=True))
    assert math.isinf(randomizer.epsilon0) == revealing
    profile = RoundProfile(alike(randomizer=randomizer, reports=4), smoothing=2e-3)
    assert profile.infinity <= profile(np.array([math.expm1(epsilon)])).upper[0] * (1 + 1e-12)
    assert (profile.infinity > 0) <= revealing


@pytest.mark.slow
def test_the_worst_distance_is_looked_for() -> None:
    """For a table of unequal rows, datasets that differ in one of two reports may be the worse ones."""
    rows = [[0.98, 0.01, 0.01], [0.97, 0.02, 0.01], [0.6, 0.2, 0.2]]
    one = _table(rows)
    pair = parse_randomizer({"kind": "joint", "parts": [one.to_mapping(), one.to_mapping()]})
    brackets = pair.analysis("blanket").brackets
    # Two coordinates of three values, in every pair but the equal ones, and each divergence once.
    assert len(brackets) > len(one.analysis("blanket").brackets) ** 2
    whole = _table(_both(rows, rows))
    excess = np.expm1(np.linspace(0, 2, 12))
    ours, listed = _bounds(pair, 6, excess), _bounds(whole, 6, excess)
    assert np.all(listed.lower <= ours.upper)


def test_both_directions_of_a_skewed_pair_count() -> None:
    """A decomposition that is not its own mirror image, given one way only."""
    masses = Decomposition(np.array([0.9, 0.1]), np.array([0.5, 0.5]), np.array([0.5, 0.1]))
    excess = np.expm1([0.0, 0.3, 0.6, 1.2])

    def bounds(one: Decomposition, outcomes: int) -> Any:
        known: Any = {"below": None, "weight": 1.0, "largest_loss": 2.0, "room": 0.0, "blur": 0.0}
        return BlanketProfile(above=[one], **known, smoothing=2e-3, outcomes=outcomes).bounds(3, excess)

    found = bounds(masses, 10**6)
    ways = [bounds(one, 0) for one in (masses, masses.swapped())]
    alone = [_blanket(one, 3, excess[2:3]) for one in (masses, masses.swapped())]
    assert abs(alone[0] - alone[1]) > 0.1 * max(alone)
    for way in ways:
        assert np.all(way.lower <= found.upper)
    assert found.upper[2] >= max(alone) * (1 - 1e-2)


@pytest.mark.slow
def test_pruned_pairs_change_nothing() -> None:
    """Pairs of inputs that certainly are not the worst are left out, order by order: all of them, one by one,
    have no larger bound."""
    generator = np.random.default_rng(7)
    for reports in (40, 3000):
        rows = generator.dirichlet(np.ones(5) * 3, size=6) * 0.9 + 0.02
        randomizer = _table(rows.tolist())
        brackets = randomizer.analysis("blanket").brackets
        excess = np.expm1(np.linspace(0, 3 / math.sqrt(reports), 15))
        bounds = _bounds(randomizer, reports, excess)
        every = [blanket_profile(one.above, reports, excess, smoothing=2e-3) for one in brackets]
        assert len(every) >= 30
        assert np.all(np.max([one.lower for one in every], axis=0) <= bounds.upper)
        assert np.all(bounds.lower <= np.max([one.upper for one in every], axis=0))
        assert np.all(bounds.upper <= np.max([one.upper for one in every], axis=0) * (1 + 1e-5))


def test_tight_pairs_side_by_side_are_no_bound() -> None:
    """The trap: tight pairs of different epsilon0, concatenated, fall below the bound of real randomizers."""
    parts = [f"table({SUBSET})", "krr(k=2, epsilon0=1.5)"]
    real = parse_randomizer(f"parallel((0.95, {parts[0]}), (0.05, {parts[1]}))")
    assert parse_randomizer(parts[0]).epsilon0 == pytest.approx(0.3)
    tight = [parse_randomizer(f"generic(epsilon0={e})").analysis("tight").decomposition for e in (0.3, 1.5)]
    excess = np.array([math.expm1(1.28)])
    naive = _blanket(mixture([0.95, 0.05], tight), 5, excess)
    truth = _bounds(real, 5, excess).lower
    assert naive < 0.6 * truth[0]
    for analysis in ("tight", "clone-identical"):
        generic = "parallel((0.95, generic(epsilon0=0.3)), (0.05, generic(epsilon0=1.5)))"
        assert _bounds(generic, 5, excess, analysis=analysis).lower[0] >= truth[0]


def _blanket(masses: Decomposition, reports: int, excess: Any) -> float:
    return float(blanket_profile(masses, reports, excess, smoothing=2e-3).upper[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["joint", "parallel"])
@pytest.mark.parametrize("reports", [2, 4, 30])
def test_generic_parts_are_bounded_whatever_they_are(kind: str, reports: int) -> None:
    """Real randomizers of the same local privacy, in the place of the generic parts, stay below."""

    def written(first: str, second: str) -> str:
        if kind == "joint":
            return f"joint({first}, {second})"
        return f"parallel((0.8, {first}), (0.2, {second}))"

    generic = written("generic(epsilon0=0.3)", "generic(epsilon0=1.2)")
    mixed = written("generic(epsilon0=0.3)", "krr(k=3, epsilon0=1.2)")
    excess = np.expm1([0.0, 0.1, 0.4, 0.9])
    for first in (f"table({SUBSET})", "krr(k=2, epsilon0=0.3)", "krr(k=5, epsilon0=0.3)"):
        for second in ("krr(k=3, epsilon0=1.2)", "oue(epsilon0=1.2, domain=4)"):
            real = _bounds(written(first, second), reports, excess).lower
            for analysis in ("tight", "clone-identical"):
                assert np.all(real <= _bounds(generic, reports, excess, analysis=analysis).upper)
            if second.startswith("krr"):
                for analysis in ("blanket", "tight"):
                    assert np.all(real <= _bounds(mixed, reports, excess, analysis=analysis).upper)


def test_the_clone_of_a_joint_is_below_the_pairs_that_differ_in_part() -> None:
    """All coordinates different is the worst of the generic pairs: compared with one coordinate shared."""
    from shuffle_ledger.accounting.amplification.decomposition import product

    first, second = (
        parse_randomizer(f"generic(epsilon0={e})").analysis("clone").decomposition for e in (0.5, 1.5)
    )
    shared = Decomposition(np.ones(1), np.ones(1), np.array([math.exp(-0.5)]))
    for reports in (2, 10, 200):
        for epsilon in (0.0, 0.1, 0.5):
            excess = np.array([math.expm1(epsilon)])
            assert _blanket(product(shared, second), reports, excess) <= _blanket(
                product(first, second), reports, excess
            )


@pytest.mark.parametrize("epsilon0", [1e-3, 0.5, 1.0, 4.0, 12.0])
def test_laplace_masses_are_integrals_of_the_densities(epsilon0: float) -> None:
    mp.mp.dps = 30
    bracket: Bracket = parse_randomizer(f"laplace(epsilon0={epsilon0})").analysis("blanket").brackets[0]
    e0 = mp.mpf(epsilon0)

    def tail(ratio: mp.mpf, power: int) -> mp.mpf:
        """Mass of c (power 0) or of a (power 1) where `a/c - ratio` is positive, times that gain."""
        edge = (1 - mp.log(ratio) / e0) / 2  # a/c falls from e at y = 0 to 1 at y = 1/2
        a, c = 1 - mp.exp(-e0 * edge) / 2, mp.exp(e0 * (edge - 1)) / 2
        return a - ratio * c

    for masses, sign in ((bracket.above, 1), (bracket.below, -1)):
        assert math.fsum(masses.a) == pytest.approx(1, rel=1e-13)
        assert math.fsum(masses.c) == pytest.approx(math.exp(-epsilon0 / 2), rel=1e-13)
        for share in (0.01, 0.2, 0.5, 0.8, 0.99):
            ratio = mp.exp(e0 * share)
            exact = tail(ratio, 0)
            # Stop-loss transforms of a/c under c order the laws: above and below the continuum's own.
            ours = mp.fsum(
                max(mp.mpf(a) - ratio * mp.mpf(c), mp.mpf(0)) for a, c in zip(masses.a, masses.c, strict=True)
            )
            assert sign * (ours - exact) >= -1e-13 * exact
            assert abs(ours - exact) <= 4e-3 * exact


@pytest.mark.parametrize("epsilon0", [0.3, 1.0, 3.0])
def test_laplace_alone_is_the_mechanism_itself(epsilon0: float) -> None:
    """One report is not hidden: `1 - exp((epsilon - epsilon0)/2)`, from above and below."""
    for share in (0.0, 0.1, 0.5, 0.9):
        epsilon = share * epsilon0
        bounds = _bounds(f"laplace(epsilon0={epsilon0})", 1, [math.expm1(epsilon)])
        exact = -math.expm1((epsilon - epsilon0) / 2)
        assert bounds.lower[0] <= exact <= bounds.upper[0]


@pytest.mark.parametrize(("reports", "epsilon"), [(2, 0.1), (2, 0.6), (5, 0.2), (200, 0.1), (10**5, 0.004)])
def test_laplace_of_many_is_enclosed_by_a_finer_grid(reports: int, epsilon: float) -> None:
    """A third way: reports in 4,000 even cells, which only lowers the divergence, by little."""
    epsilon0, cells = 1.0, 4000
    y = np.concatenate([[-np.inf], np.linspace(0, 1, cells + 1), [np.inf]])

    def mass(centre: float) -> Any:
        return np.diff(
            np.where(y < centre, np.exp(epsilon0 * (y - centre)) / 2, 1 - np.exp(epsilon0 * (centre - y)) / 2)
        )

    a, b = mass(0.0), mass(1.0)
    fine = _blanket_lower(Decomposition(a, b, np.minimum(a, b)), reports, epsilon)
    bounds = _bounds(f"laplace(epsilon0={epsilon0})", reports, [math.expm1(epsilon)], analysis="blanket")
    assert fine <= bounds.upper[0]
    assert bounds.lower[0] <= fine * 1.02
    assert bounds.upper[0] <= bounds.lower[0] * 1.02


@pytest.mark.slow
@pytest.mark.parametrize("epsilons", [(0.3, 1.0), (1.0, 1.0), (2.0, 2.5)])
def test_two_laplace_reports_alone_are_the_mechanisms_themselves(epsilons: tuple[float, float]) -> None:
    """Their losses add up: one's profile, on average over the other's losses."""
    first, second = epsilons

    def alone(epsilon: float) -> float:
        if epsilon <= -first:
            return -math.expm1(epsilon)
        return max(0.0, -math.expm1((epsilon - first) / 2))

    written = f"joint(laplace(epsilon0={first}), laplace(epsilon0={second}))"
    asked = [share * (first + second) for share in (0.0, 0.1, 0.5, 0.9)]
    bounds = _bounds(written, 1, np.expm1(asked))
    for epsilon, upper, lower in zip(asked, bounds.upper, bounds.lower, strict=True):
        kinks = sorted({min(max(epsilon - side * first, -second), second) for side in (-1, 1)})
        middle, _ = quad(
            lambda loss, epsilon=epsilon: alone(epsilon - loss) * math.exp((loss - second) / 2) / 4,
            -second,
            second,
            points=kinks,
            epsabs=1e-13,
        )
        exact = middle + (alone(epsilon - second) + math.exp(-second) * alone(epsilon + second)) / 2
        assert lower <= exact * (1 + 1e-10)
        assert upper >= exact * (1 - 1e-10)
        # The product of two grids is coarse: losses next to the largest are a percent apart.
        assert upper - lower < 1.5e-2 * exact


@pytest.mark.parametrize(("reports", "epsilon"), [(2, 0.3), (50, 0.2), (10**4, 0.01)])
def test_two_laplace_reports_of_many_are_enclosed_by_an_even_grid(reports: int, epsilon: float) -> None:
    """Reports in 60 even cells each, which only lowers the divergence, by little."""
    y = np.concatenate([[-np.inf], np.linspace(0, 1, 61), [np.inf]])
    tails = [np.where(y < at, np.exp(y - at) / 2, 1 - np.exp(at - y) / 2) for at in (0.0, 1.0)]
    a, b = (np.diff(one) for one in tails)
    a, b, c = (np.outer(one, one).ravel() for one in (a, b, np.minimum(a, b)))
    coarse = _blanket_lower(Decomposition(a, b, c), reports, epsilon)
    bounds = _bounds("joint(laplace(epsilon0=1), laplace(epsilon0=1))", reports, [math.expm1(epsilon)])
    assert coarse <= bounds.upper[0]
    assert bounds.lower[0] <= coarse * 1.02
    assert bounds.upper[0] <= bounds.lower[0] * 1.02


@pytest.mark.slow
def test_two_laplace_reports_are_as_precise_as_asked_and_three_say_that_they_are_not() -> None:
    for parts, precise in ((2, True), (3, False)):
        written = f"joint({', '.join(['laplace(epsilon0=1)'] * parts)})"
        shuffled = alike(randomizer=parse_randomizer(written), reports=1000)
        found = Accountant().certify({shuffled: 1}, delta=1e-6)
        assert found.precise == precise
        assert found.epsilon_upper < 1.1 * found.epsilon_lower


def _blanket_lower(masses: Decomposition, reports: int, epsilon: float) -> float:
    excess = np.array([math.expm1(epsilon)])
    return float(blanket_profile(masses, reports, excess, smoothing=5e-3).lower[0])


@pytest.mark.slow
@pytest.mark.parametrize("written", [case[0] for case in CASES[:1] + CASES[6:7]] + [f"table({SKEWED})"])
def test_sampling_coins_and_dishonest_users_act_on_parts_too(written: str) -> None:
    """Each is the same as for the whole given as a table."""
    rows = dict(CASES).get(written, SKEWED)
    excess = np.expm1([0.0, 0.1, 0.4])
    for rest in (
        {"sampled_from": 90},
        {"participation": 0.4},
        {"honest_fraction": 0.75},
        {"sampled_from": 60, "honest_fraction": 0.8},
        {"participation": 0.3, "honest_fraction": 0.8},
    ):
        ours, listed = _bounds(written, 30, excess, **rest), _bounds(_table(rows), 30, excess, **rest)
        assert np.all(listed.lower <= ours.upper)
        assert np.all(ours.lower <= listed.upper)
        plain = _bounds(written, 30, excess)
        assert np.all(ours.lower <= plain.upper) or "honest_fraction" in rest


def test_a_silent_user_is_an_output_of_the_table() -> None:
    """Participation by a secret coin is a table with one more output, alike under every input."""
    silent = [[0.4 * mass for mass in row] + [0.6] for row in SKEWED]
    excess = np.expm1([0.0, 0.1, 0.4])
    coin = _bounds(_table(SKEWED), 12, excess, participation=0.4)
    column = _bounds(_table(silent), 12, excess)
    assert np.allclose(coin.upper, column.upper, rtol=1e-5)


@pytest.mark.parametrize(
    "written", [CASES[0][0], CASES[6][0], f"table({SKEWED})", "laplace(epsilon0=1)", CASES[4][0]]
)
@pytest.mark.parametrize(
    "rest", [{}, {"sampled_from": 9000}, {"participation": 0.213}, {"honest_fraction": 0.9}]
)
def test_slots_of_composites_dominate(written: str, rest: dict[str, Any]) -> None:
    shuffled = alike(randomizer=parse_randomizer(written), reports=1234, **rest)
    slot = slot_for(shuffled)
    assert slot != shuffled
    assert slot.randomizer == shuffled.randomizer
    excess = np.expm1([0.0, 0.02, 0.1])
    inside, outside = (RoundProfile(one, smoothing=2e-3)(excess) for one in (shuffled, slot))
    assert np.all(inside.lower <= outside.upper)


@pytest.mark.parametrize(
    "written",
    [
        "joint(krr(k=4, epsilon0=1), krr(k=4, epsilon0=1))",
        f"table({SKEWED})",
        "joint(generic(epsilon0=1), generic(epsilon0=0.5))",
    ],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-30])
def test_composites_are_certified_at_every_delta(written: str, delta: float) -> None:
    shuffled = alike(randomizer=parse_randomizer(written), reports=5000)
    certificate = Accountant().certify({shuffled: 30}, delta=delta)
    assert certificate.precise
    assert 0 < certificate.epsilon_lower <= certificate.epsilon_upper


def test_local_privacy_of_composites() -> None:
    assert parse_randomizer("joint(krr(k=4, epsilon0=0.1), generic(epsilon0=0.2))").epsilon0 >= 0.1 + 0.2
    assert parse_randomizer("parallel((0.5, krr(k=4, epsilon0=1)), (0.5, generic(epsilon0=2)))").epsilon0 == 2
    assert parse_randomizer("table([[0.9, 0.1], [0.3, 0.7]])").epsilon0 == pytest.approx(math.log(7))
    assert math.isinf(parse_randomizer("table([[1, 0], [0.5, 0.5]])").epsilon0)
    assert math.isinf(parse_randomizer("joint(table([[1, 0], [0.5, 0.5]]), krr(k=2, epsilon0=1))").epsilon0)


@pytest.mark.parametrize(
    ("rest", "field"),
    [
        ({"analysis": "clone"}, "analysis"),
        ({"analysis": "tight"}, "analysis"),
        ({"delta0": 1e-9}, "delta0"),
    ],
)
def test_analyses_that_do_not_fit_are_refused(rest: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        alike(randomizer=parse_randomizer(CASES[0][0]), reports=10, **rest)
    assert caught.value.field == field


def test_tight_pairs_take_no_silent_component() -> None:
    written = parse_randomizer("joint(generic(epsilon0=1), generic(epsilon0=0.5))")
    assert alike(randomizer=written, reports=10).analysis == "tight"
    assert alike(randomizer=written, reports=10, participation=0.5).analysis == "clone-identical"
    with pytest.raises(InvalidParameter, match="analysis"):
        alike(randomizer=written, reports=10, participation=0.5, analysis="tight")


def test_laws_of_two_scales_are_bounded_closely() -> None:
    """Seven reports in ten hide much and three hide little: bounds that suit one kind alone would be far
    apart."""
    written = "parallel((0.3, generic(epsilon0=10)), (0.7, krr(k=1000, epsilon0=0.1)))"
    shuffled = alike(randomizer=parse_randomizer(written), reports=1000)
    bounds = RoundProfile(shuffled, smoothing=0.014)(np.expm1([0.1, 0.5, 1.0, 3.0, 4.15, 5.0]))
    assert np.all(bounds.lower <= bounds.upper)
    assert np.all(bounds.upper - bounds.lower <= 5e-3 * bounds.upper)


@pytest.mark.parametrize("apart", [1e-9, 3e-11, 2e-12, 1e-13, 7e-15])
@pytest.mark.parametrize("beside", [None, "table([[0.5, 0.5], [0.5, 0.5]])"])
def test_rows_that_are_nearly_equal_differ_in_their_own_digits(apart: float, beside: str | None) -> None:
    """One report; probabilities differ in digits of which a float has few or none once a row is divided by
    its sum."""
    rows = [[0.1 + apart / 3, 0.3, 0.6 - apart / 3], [0.1, 0.3 - apart / 7, 0.6 + apart / 7]]
    shares = [[Fraction(value) / sum(map(Fraction, row)) for value in row] for row in rows]
    exact = sum(max(here - there, Fraction(0)) for here, there in zip(*shares, strict=True))
    written = f"table({rows})" if beside is None else f"joint(table({rows}), {beside})"
    shuffled = alike(randomizer=parse_randomizer(written), reports=1)
    certificate = Accountant().certify_delta({shuffled: 1}, epsilon=0)
    assert certificate.delta_lower <= exact <= certificate.delta_upper
    assert certificate.delta_upper <= exact * (1 + Fraction(1, 1000))
    attacked = attack_delta(shuffled, epsilon=0)
    assert attacked is not None
    assert exact * (1 - Fraction(1, 1000)) <= attacked <= exact


@pytest.mark.usefixtures("computed_anew")
def test_tiny_probabilities_overflow_nothing() -> None:
    """An output that is frequent under one value, and almost impossible under all others."""
    rows = [
        [0.540243111710173, 1.8851666791081063e-17, 0.45975688828982686],
        [0.32698359499484936, 0.6730164050051506, 3.917367126241095e-20],
        [0.4629732691717565, 1.6597003554639535e-28, 0.5370267308282435],
        [0.3678089497350239, 4.0636225314482026e-05, 0.6321504140396615],
    ]
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certificate = Accountant().certify_delta({shuffled: 1}, epsilon=1)
    assert certificate.delta_lower <= certificate.delta_upper <= 1
    assert certificate.delta_upper >= rows[1][1] - math.e * rows[2][1]


@pytest.mark.parametrize("apart", [1e-7, 1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("rare", [None, 1e-40])
def test_what_nearly_equal_rows_leave_unhidden_is_known(apart: float, rare: float | None) -> None:
    """Three reports: others stand out from what all hide so rarely that 1 less the rest says little of it.
    A very rare output may be twice as likely under one value: it reveals as little."""
    rows = [[0.3 + apart, 0.7 - apart], [0.3, 0.7]]
    if rare is not None:
        rows = [[*rows[0], rare], [*rows[1], 2 * rare]]
    first, second = ([Fraction(value) / sum(map(Fraction, row)) for value in row] for row in rows)
    hidden = [min(both) for both in zip(first, second, strict=True)]
    law = [*hidden, 1 - sum(hidden)]
    gaps: Counter[tuple[int, ...]] = Counter()
    for others in itertools.product(range(len(law)), repeat=2):
        for own, gap in enumerate(here - there for here, there in zip(first, second, strict=True)):
            gaps[tuple(sorted((*others, own)))] += law[others[0]] * law[others[1]] * gap  # type: ignore[assignment]
    exact = sum(max(Fraction(gap), Fraction(0)) for gap in gaps.values())
    masses = parse_randomizer(f"table({rows})").analysis("blanket").decomposition.merged()
    assert enumerate_outcomes(masses, 3, limit=1000) is not None
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=3)
    certificate = Accountant().certify_delta({shuffled: 1}, epsilon=0)
    assert certificate.delta_lower <= exact <= certificate.delta_upper <= exact * (1 + Fraction(1, 1000))


def _of_two_reports(rows: list[list[float]], order: Fraction) -> Fraction:
    """The largest divergence of two users' reports, exactly, over all pairs of values."""
    shares = [[Fraction(value) / sum(map(Fraction, row)) for value in row] for row in rows]
    hidden = [min(column) for column in zip(*shares, strict=True)]
    law, largest = [*hidden, 1 - sum(hidden)], Fraction(0)
    for first, second in itertools.permutations(shares, 2):
        outcomes: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for other, own in itertools.product(range(len(law)), range(len(hidden))):
            gained = law[other] * (first[own] - order * second[own])
            outcomes[tuple(sorted((other, own)))] += gained
        largest = max(largest, sum((max(one, Fraction(0)) for one in outcomes.values()), Fraction(0)))
    return largest


@pytest.mark.parametrize(
    ("rows", "delta"),
    [
        ([[2e-18, 1.0], [2e-19, 1.0]], 1e-36),
        ([[5e-17, 1.0], [5e-18, 1.0]], 1e-33),
        ([[2.4e-18, 1.0], [1.8e-19, 1.0], [1.763e-18, 1.0]], 1e-36),
    ],
)
def test_what_an_output_hides_almost_always_is_not_hidden_always(
    rows: list[list[float]], delta: float
) -> None:
    """Another report stands out so rarely that the hidden mass is 1, to all digits of a float."""
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=2)
    certificate = Accountant().certify({shuffled: 1}, delta=delta)
    order = Fraction(math.exp(certificate.epsilon_upper)) * (1 + Fraction(1, 10**13))
    assert _of_two_reports(rows, order) <= Fraction(delta)


@pytest.mark.parametrize("reports", [1, 2])
def test_next_to_a_ratio_differences_are_known_no_better_than_their_terms(reports: int) -> None:
    """Orders next to the largest ratio of probabilities, and to others."""
    rows = [
        [0.09290124772759163, 0.24504447743283214, 0.6620542748395762],
        [0.09312668359334515, 0.24525588150413274, 0.6616174349025222],
    ]
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=reports)
    accountant = Accountant()
    ratios = [abs(math.log(one / other)) for one, other in zip(*rows, strict=True)]
    for ratio, apart in itertools.product(ratios, (1e-7, 1e-10, 1e-13, 1e-15, 0.0)):
        epsilon = ratio * (1 - apart)
        certificate = accountant.certify_delta({shuffled: 1}, epsilon=epsilon)
        # The exponential of this float, to more digits than the differences need.
        with mp.workdps(60):
            order = Fraction(int(mp.floor(mp.exp(epsilon) * mp.mpf(10) ** 50)), 10**50)
        exact = _of_two_reports(rows, order) if reports == 2 else _of_one_report(rows, order)
        assert certificate.delta_lower <= exact * (1 + Fraction(1, 10**30))
        assert exact <= certificate.delta_upper


def _of_one_report(rows: list[list[float]], order: Fraction) -> Fraction:
    shares = [[Fraction(value) / sum(map(Fraction, row)) for value in row] for row in rows]
    return max(
        sum((max(here - order * there, Fraction(0)) for here, there in zip(*pair, strict=True)), Fraction(0))
        for pair in itertools.permutations(shares, 2)
    )


@pytest.mark.usefixtures("computed_anew")
def test_one_report_of_rows_that_are_alike_warns_of_nothing() -> None:
    rows = [[0.3, 0.3, 0.4], [0.3 + 1e-16, 0.3 - 1e-16, 0.4], [0.3, 0.3 + 2e-16, 0.4 - 2e-16]]
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Accountant().certify({shuffled: 1}, delta=1e-3).epsilon_upper == 0.0


# Largest ratios just above a power of two, where 46 binary digits tell least: (p, p, q), p rather than q of
# the first output in the first and in the second part.
NEARLY_EQUAL = [
    (0.4535877684286123, 0.4535877684286153, 0.05665493077620374),
    (0.2838966971934532, 0.28389669719345484, 0.03548545527313882),
    (0.21171115196236026, 0.21171115196236182, 0.10575719615331104),
]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second", "q"), NEARLY_EQUAL)
def test_nearly_equal_ratios_are_joined_at_a_price(first: float, second: float, q: float) -> None:
    """Joined, both end at their mean: between it and the larger one nothing would be left of the profile."""
    tables = [[[p, 1 - p], [q, 1 - q]] for p in (first, second)]
    parts = [{"weight": 0.5, "randomizer": {"kind": "table", "rows": rows}} for rows in tables]
    randomizer = parse_randomizer({"kind": "parallel", "parts": parts})
    ratios = [_shares(rows)[0][0] / _shares(rows)[1][0] for rows in tables]
    for share in (-1.0, 0.0, 0.3, 0.49, 0.51, 0.7, 0.9, 1.0, 1.1):
        excess = float(ratios[0] + Fraction(share) * (ratios[1] - ratios[0]) - 1)
        # One report, which says which part made it: each part's own two inputs.
        truth = sum(_divergence(_shares(rows), 1 + Fraction(excess)) / 2 for rows in tables)
        found = _bounds(randomizer, 1, [excess])
        assert Fraction(float(found.lower[0])) <= truth <= Fraction(float(found.upper[0]))
        assert found.upper[0] <= truth + 1e-11


@pytest.mark.parametrize(
    ("first", "second"), [(0.6931471815599491, 0.6931471815599559), (2.197224578336222, 2.1972245783362463)]
)
def test_orders_beyond_the_end_of_what_was_joined(first: float, second: float) -> None:
    """Of one symmetric pair, too large to be listed, nothing is left beyond the mean of two largest ratios:
    not at an order, nor at one just before it."""

    def either(weights: list[float], parts: list[object]) -> object:
        both = [{"weight": one, "randomizer": part} for one, part in zip(weights, parts, strict=True)]
        return {"kind": "parallel", "parts": both}

    def several(start: float) -> object:
        return either([1 / 16] * 16, [krr(start + i / 100) for i in range(16)])

    def krr(epsilon0: float) -> object:
        return {"kind": "krr", "k": 2, "epsilon0": epsilon0}

    top = either([0.875, 0.125], [krr(first), krr(second)])
    randomizer = parse_randomizer(either([0.5, 0.25, 0.25], [top, several(0.05), several(0.055)]))
    users, others = 6, [start + i / 100 for start in (0.05, 0.055) for i in range(16)]
    with mp.workdps(50):
        ratio = [mp.exp(mp.mpf(one)) for one in (first, second)]
        c = [w / (one + 1) for w, one in zip((mp.mpf(7) / 16, mp.mpf(1) / 16), ratio, strict=True)]
        hidden = 2 * (c[0] + c[1] + sum(1 / (mp.exp(mp.mpf(one)) + 1) for one in others) / 64)
        mean = (c[0] * ratio[0] + c[1] * ratio[1]) / (c[0] + c[1])
        orders = [float(mean + share * (ratio[1] - mean) - 1) for share in (0.5, 0.5, 0.6, 0.9)]
        found = _bounds(randomizer, users, orders)
        for excess, upper in zip(orders, found.upper, strict=True):
            gain = ratio[1] - 1 - mp.mpf(excess)  # of reports of the second one alone: all else outweighs it
            truth = sum(
                k * gain * mp.binomial(users, k) * c[1] ** k * (1 - hidden) ** (users - k)
                for k in range(users + 1)
            )
            assert 0 < truth / users <= upper < 1e-11


def _shares(rows: Rows) -> list[list[Fraction]]:
    exact = [[Fraction(mass) for mass in row] for row in rows]
    return [[mass / sum(row) for mass in row] for row in exact]


def _divergence(rows: list[list[Fraction]], order: Fraction) -> Fraction:
    """The larger one of both directions."""
    both = (zip(*rows, strict=True), zip(*rows[::-1], strict=True))
    return max(sum((max(p - order * q, Fraction(0)) for p, q in way), Fraction(0)) for way in both)


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_that_differ_by_rounding_are_counted_once_at_a_price(seed: int, reports: int) -> None:
    """Randomized response whose probabilities were rounded, by a unit or ten, with another output or not."""
    draw, shape = np.random.default_rng(seed), (4, 4 + seed % 2)
    # Ratios just above a power of two, where 46 binary digits tell least; the last input has the largest.
    spikes = 1.0 + 1e-5 + 8e-15 * (seed // 2) * np.arange(4)[:, None]
    rows = (1 + spikes * np.eye(*shape)) * (1 + 1e-15 * draw.uniform(-1, 1, shape))
    rows /= rows.sum(axis=1, keepdims=True)
    randomizer = parse_randomizer({"kind": "table", "rows": rows.tolist()})
    profile = randomizer.profile("blanket", participation=1.0, smoothing=2e-3, outcomes=10**6)
    assert isinstance(profile, BlanketProfile)
    exact = _shares(rows.tolist())
    hidden = [min(column) for column in zip(*exact, strict=True)]
    pairs = [list(zip(*two, hidden, strict=True)) for two in itertools.permutations(exact, 2)]
    ratio = max(a / b for pair in pairs for a, b, _ in pair)
    beside = [Fraction(float(ratio - 1)) * (1 + Fraction(k, 2**51)) for k in (-40, -20, -10, -3, -1, 0, 1)]
    orders = np.array([0.0, 1e-14, 0.1, 1.0, *map(float, beside)])
    for asked in (orders, orders[3:], orders[5:6]):
        inside = asked < math.expm1(randomizer.epsilon0)
        found = profile.bounds(reports, asked)
        for excess, upper, lower in zip(asked[inside], found.upper[inside], found.lower[inside], strict=True):
            truth = max(_listed(pair, 1 + Fraction(float(excess)), reports) for pair in pairs)
            assert Fraction(float(lower)) <= truth <= Fraction(float(upper))
            assert upper - lower <= 1e-3 * truth + 1e-10
    assert len(profile._above) <= (4, 4, 12, 8)[seed]


def _listed(pair: list[tuple[Fraction, Fraction, Fraction]], order: Fraction, reports: int) -> Fraction:
    """The blanket pair's divergence, over all outcomes."""
    gains = [((a - order * b) / c, c) for a, b, c in pair]
    gains.append((Fraction(0), 1 - sum((c for _, c in gains), Fraction(0))))
    total = Fraction(0)
    for some in itertools.combinations_with_replacement(range(len(gains)), reports):
        ways = math.factorial(reports) // math.prod(math.factorial(count) for count in Counter(some).values())
        sums = sum((gains[place][0] for place in some), Fraction(0))
        total += ways * math.prod(gains[place][1] for place in some) * max(sums, Fraction(0))
    return total / reports
