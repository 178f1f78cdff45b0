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

from shuffle_ledger.accounting import Accountant, parse_randomizer
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition, mixture
from shuffle_ledger.accounting.amplification.profiles import BlanketProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import LocalRandomizer
from shuffle_ledger.accounting.randomizers.base import Bracket
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting.alike import alike
from tests.accounting.datasets import worst
from tests.accounting.tables import hashes, oue, response

Rows = list[list[float]]  # probabilities of every output (columns) under every input (rows)


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


KRR3, KRR2 = response(3, 1.2).tolist(), response(2, 0.7).tolist()
BLH3, OUE3 = hashes(3, 2, 0.9).tolist(), oue(3, 0.8).tolist()
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
@pytest.mark.parametrize("reports", [1, 40])
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
@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(1, 3), st.floats(0.0, 3.0))
def test_random_tables_are_never_under_reported(rows: Rows, users: int, epsilon: float) -> None:
    bound = _bounds(_table(rows), users, [math.expm1(epsilon)])
    (most,) = worst(rows, users, [math.exp(epsilon)])
    assert most <= bound.upper[0] * (1 + 1e-12) + 1e-15
    if users == 1:  # one report alone: the bound is the randomizer itself
        assert bound.lower[0] <= most * (1 + 1e-12) + 1e-15
        assert bound.upper[0] - bound.lower[0] <= 1e-5


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
@pytest.mark.parametrize("reports", [4, 30])
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


@pytest.mark.parametrize("epsilon0", [1e-3, 1.0, 12.0])
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


@pytest.mark.parametrize(("reports", "epsilon"), [(2, 0.3), (10**4, 0.01)])
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


def test_local_privacy_of_composites() -> None:
    assert parse_randomizer("joint(krr(k=4, epsilon0=0.1), generic(epsilon0=0.2))").epsilon0 >= 0.1 + 0.2
    assert parse_randomizer("parallel((0.5, krr(k=4, epsilon0=1)), (0.5, generic(epsilon0=2)))").epsilon0 == 2
    assert parse_randomizer("table([[0.9, 0.1], [0.3, 0.7]])").epsilon0 == pytest.approx(math.log(7))
    assert math.isinf(parse_randomizer("table([[1, 0], [0.5, 0.5]])").epsilon0)
    assert math.isinf(parse_randomizer("joint(table([[1, 0], [0.5, 0.5]]), krr(k=2, epsilon0=1))").epsilon0)


def test_tight_pairs_take_no_silent_component() -> None:
    written = parse_randomizer("joint(generic(epsilon0=1), generic(epsilon0=0.5))")
    assert alike(randomizer=written, reports=10).analysis == "tight"
    assert alike(randomizer=written, reports=10, participation=0.5).analysis == "clone-identical"
    with pytest.raises(InvalidParameter, match="analysis"):
        alike(randomizer=written, reports=10, participation=0.5, analysis="tight")


@pytest.mark.slow
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


def _shares(rows: Rows) -> list[list[Fraction]]:
    exact = [[Fraction(mass) for mass in row] for row in rows]
    return [[mass / sum(row) for mass in row] for row in exact]


def _divergence(rows: list[list[Fraction]], order: Fraction) -> Fraction:
    """The larger one of both directions."""
    both = (zip(*rows, strict=True), zip(*rows[::-1], strict=True))
    return max(sum((max(p - order * q, Fraction(0)) for p, q in way), Fraction(0)) for way in both)


@pytest.mark.parametrize("reports", [1, 3])
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
