"""Mixed fleets and dummies: against every dataset of small rounds, listed outcome by outcome."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.accounting.amplification.crowds import Hiding, Others
from shuffle_ledger.accounting.randomizers import mixed
from shuffle_ledger.accounting.randomizers.mixed import MixedFleet, common_law
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting.datasets import Array, largest, shuffled, with_report

Rows = list[list[Fraction]]  # probabilities of every report (columns) under every input (rows)


def _krr(k: int, e: Fraction) -> Rows:
    return [[(e if x == y else 1) / (e + k - 1) for y in range(k)] for x in range(k)]


def _hashed(domain: int, g: int, e: Fraction) -> Rows:
    """A random function of the domain, and g-ary randomized response on the value's hash."""
    hashes = list(itertools.product(range(g), repeat=domain))
    return [
        [(e if h[x] == bit else 1) / (e + g - 1) / len(hashes) for h in hashes for bit in range(g)]
        for x in range(domain)
    ]


def _columns(order: int, e: Fraction) -> Rows:
    """Hadamard response: a column of the matrix, the likelier ones where the input's row has 1; the first row
    belongs to no input."""
    rows = np.array([[1]])
    while len(rows) < order:
        rows = np.block([[rows, rows], [rows, -rows]])
    return [[2 * (e if one > 0 else Fraction(1)) / order / (e + 1) for one in row] for row in rows[1:]]


def _worst(groups: list[tuple[int, Array]], dummies: int, orders: list[float]) -> Array:
    """The largest divergence at each order, over all pairs of neighbouring datasets, in both directions."""
    size, found = groups[0][1].shape[1], np.zeros(len(orders))
    for victim, (_, rows) in enumerate(groups):
        rest = [(n - (place == victim), table) for place, (n, table) in enumerate(groups)]
        choices = [list(itertools.combinations_with_replacement(range(len(table)), n)) for n, table in rest]
        for inputs in itertools.product(*choices):
            others = [rest[g][1][x] for g, one in enumerate(inputs) for x in one]
            others += [np.full(size, 1 / size)] * dummies
            law = shuffled(others)
            found = np.maximum(found, largest([with_report(law, len(others), row) for row in rows], orders))
    return found


def _round(text: str, reports: int, **fields: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(text), reports=reports, **fields)


_TWO, _THREE, _FIVE, _EIGHT = Fraction(2), Fraction(3), Fraction(5), Fraction(8)


CASES: list[Any] = [
    # the written form of a randomizer, its probabilities, and for each group its number and exp(epsilon0)
    ("krr(k=2, epsilon0={})", lambda e: _krr(2, e), [(2, _TWO), (3, _FIVE)], 0),
    ("krr(k=2, epsilon0={})", lambda e: _krr(2, e), [(3, _FIVE)], 2),
    ("krr(k=3, epsilon0={})", lambda e: _krr(3, e), [(2, _TWO), (2, _FIVE)], 1),
    ("krr(k=3, epsilon0={})", lambda e: _krr(3, e), [(1, _TWO), (1, _THREE), (1, _FIVE)], 0),
    ("krr(k=2, epsilon0={})", lambda e: _krr(2, e), [(1, _TWO), (1, _THREE), (2, _FIVE), (1, _EIGHT)], 1),
    ("krr(k=3, epsilon0={})", lambda e: _krr(3, e), [(1, _TWO), (1, _THREE), (1, _FIVE), (1, _EIGHT)], 0),
    ("duchi(epsilon0={})", lambda e: _krr(2, e), [(2, _THREE), (2, _FIVE)], 1),
    ("blh(domain=3, epsilon0={})", lambda e: _hashed(3, 2, e), [(1, _TWO), (1, _FIVE)], 0),
    ("olh(g=2, domain=3, epsilon0={})", lambda e: _hashed(3, 2, e), [(1, _FIVE)], 1),
    ("hadamard(domain=4, epsilon0={})", lambda e: _columns(4, e), [(1, _TWO), (2, _FIVE)], 1),
]


def _fleet(text: str, groups: list[tuple[int, Fraction]], dummies: int) -> ShuffledRound:
    parts = [f"({n}, {text.format(math.log(e))})" for n, e in groups]
    written = f"mixed({', '.join(parts)}, dummies={dummies})"
    return ShuffledRound(randomizer=parse_randomizer(written), reports=sum(n for n, _ in groups))


@pytest.mark.parametrize(("text", "rows", "groups", "dummies"), CASES)
def test_no_dataset_is_above_the_bound(
    text: str, rows: Callable[[Fraction], Rows], groups: list[tuple[int, Fraction]], dummies: int
) -> None:
    one = _fleet(text, groups, dummies)
    profile = RoundProfile(one, smoothing=2e-3)
    tables = [(n, np.array(rows(e), dtype=np.float64)) for n, e in groups]
    orders = [1.0, 1.25, 2.0, 4.0]
    upper, lower = profile(np.array(orders) - 1)
    assert np.all(_worst(tables, dummies, orders) <= upper * (1 + 1e-12))
    assert np.all(lower <= upper)


@pytest.mark.parametrize("text", ["krr(k=3, epsilon0={})", "laplace(epsilon0={})"])
def test_many_groups_are_bounded_as_the_worst_of_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bound for all is not below that of any group, and next to the largest of them."""
    one = _fleet(text, [(900, _TWO), (800, _THREE), (100, _FIVE), (700, _EIGHT)], 0)
    excess = np.array([0.0, 0.05, 0.1, 0.2, 0.3])
    together = RoundProfile(one, smoothing=2e-3)(excess).upper
    monkeypatch.setattr(mixed, "ONE_BY_ONE", 16)
    each = RoundProfile(one, smoothing=2e-3)(excess)
    assert np.all(together >= each.lower)
    assert np.all(together <= each.upper * 1.05)


def _exact_sum(k: int, e: float, victims: int, others: list[tuple[int, float]], order: float) -> float:
    """The theorem's sum for `krr`, from all numbers of hidden reports and all counts of three components."""
    p = 1 / (e + k - 1)
    a, b, c = ([e * p, p, (k - 2) * p], [p, e * p, (k - 2) * p], [1 / k, 1 / k, (k - 2) / k])
    law = {0: 1.0}
    for count, share in others:
        for _ in range(count):
            after: dict[int, float] = defaultdict(float)
            for m, mass in law.items():
                after[m] += mass * (1 - share)
                after[m + 1] += mass * share
            law = dict(after)
    assert victims > 0
    total = 0.0
    for m, mass in law.items():
        n, terms = m + 1, []
        for first in range(n + 1):
            for second in range(n + 1 - first):
                counts = (first, second, n - first - second)
                ways = math.factorial(n)
                probability = 1.0
                for one, mass_of in zip(counts, c, strict=True):
                    ways //= math.factorial(one)
                    probability *= mass_of**one
                gain = sum(
                    one * (x - order * y) / z for one, x, y, z in zip(counts, a, b, c, strict=True) if one
                )
                terms.append(ways * probability * max(gain, 0.0) / n)
        total += mass * math.fsum(terms)
    return total


@pytest.mark.parametrize("dummies", [0, 4])
def test_bounds_enclose_the_theorems_sum(dummies: int) -> None:
    one = _fleet("krr(k=4, epsilon0={})", [(8, _TWO), (6, _FIVE)], dummies)
    profile = RoundProfile(one, smoothing=2e-3)
    for order in (1.0, 1.5, 2.5):
        sums = []
        for victim, e in ((0, 2.0), (1, 5.0)):
            others = [(8 - (victim == 0), 4 / 5), (6 - (victim == 1), 4 / 8), (dummies, 1.0)]
            sums.append(_exact_sum(4, e, 1, others, order))
        upper, lower = (float(side[0]) for side in profile(np.array([order - 1])))
        assert lower <= max(sums) * (1 + 1e-9)
        assert max(sums) * (1 - 1e-9) <= upper
        assert upper - lower <= 1e-3 * upper + 1e-12


@pytest.mark.parametrize(
    "others",
    [
        [Others(7, 0.3)],
        [Others(5, 0.9), Others(4, 0.2), Others(3, 1.0)],
        [Others(3000, 0.9), Others(20_000, 0.2)],
        [Others(40_000, 0.01), Others(100, 1.0)],
    ],
)
def test_cells_of_the_number_that_hides_keep_its_law(others: list[Others]) -> None:
    """The probability of at most any number is between those of the cells' largest and least numbers."""
    exact, first = np.ones(1), 1
    for count, share in others:
        if share == 1:
            first += count
            continue
        numbers = np.arange(count + 1)
        logs = [
            math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1) for j in numbers.tolist()
        ]
        masses = np.exp(np.array(logs) + numbers * math.log(share) + (count - numbers) * math.log1p(-share))
        exact = np.convolve(exact, masses)
    for found in (Hiding.of(others), Hiding.of(others).coarser(5)):
        below = np.cumsum(exact)
        values = found.counts
        assert float(found.weight.sum()) == pytest.approx(1, abs=1e-12)
        for number in np.unique(np.clip(values, first, first + exact.size - 1)).tolist():
            at_most = float(below[number - first])
            assert at_most <= float(found.weight[values[:-1] <= number].sum()) + 1e-10
            assert float(found.weight[values[found.most] <= number].sum()) <= at_most + 1e-10


def test_a_group_without_a_common_law_hides_within_itself() -> None:
    accountant = Accountant()
    fleet = "mixed((500, krr(k=10, epsilon0=1)), (300, laplace(epsilon0=1)), (400, krr(k=4, epsilon0=1)))"
    found = accountant.certify({_round(fleet, 1200): 1}, delta=1e-6)
    alone = [
        accountant.certify({_round(text, n): 1}, delta=1e-6)
        for n, text in (
            (500, "krr(k=10, epsilon0=1)"),
            (300, "laplace(epsilon0=1)"),
            (400, "krr(k=4, epsilon0=1)"),
        )
    ]
    worst = max(one.epsilon_upper for one in alone)
    assert found.epsilon_lower <= worst <= found.epsilon_upper * (1 + 1e-3)


def test_a_share_is_never_certain_and_never_above_the_blanket() -> None:
    for text in ("krr(k=1000000000000, epsilon0=1e-06)", "krr(k=2, epsilon0=1e-06)", "blh(epsilon0=1e-06)"):
        law = common_law(parse_randomizer(text))
        assert law is not None
        assert law.share < 1
    for text in ("krr(k=5, epsilon0=3)", "blh(epsilon0=3)", "hadamard(epsilon0=3)", "olh(epsilon0=3, g=4)"):
        randomizer = parse_randomizer(text)
        law = common_law(randomizer)
        assert law is not None
        blanket = math.fsum(randomizer.analysis("blanket").decomposition.c)
        assert law.share <= blanket * (1 + 1e-12)


def test_no_bound_is_zero_where_the_largest_loss_is_not_reached() -> None:
    """Divergences that are too small for a float are still positive, so an upper bound of 0 is wrong."""
    fleet = parse_randomizer("mixed((1000000, krr(k=3, epsilon0=1)), (1000000, krr(k=9, epsilon0=1)))")
    profile = fleet.profile("blanket", participation=1.0, smoothing=0.05, outcomes=0)
    excess = np.expm1(np.array([0.0, 0.01, 0.1, 0.5, 0.99, 1.0 + 1e-9, 1.1]))
    upper = profile.bounds(2_000_000, excess).upper
    assert np.all(upper[:5] > 0)
    assert np.all(upper[5:] == 0)


def test_the_written_forms_read_back_equal() -> None:
    text = "mixed((20, krr(epsilon0=2.0, k=10)), (30, blh(epsilon0=1.0)))"
    one = parse_randomizer(text)
    assert isinstance(one, MixedFleet)
    assert parse_randomizer(one.to_mapping()) == parse_randomizer(one.describe()) == one
    shuffled = ShuffledRound(randomizer=one, reports=50)
    assert ShuffledRound.from_mapping(shuffled.to_mapping()) == slot_for(shuffled) == shuffled


REFUSED: list[Any] = [
    ("mixed((5, krr(k=10, epsilon0=2)), (5, krr(k=3, epsilon0=2)), dummies=5)", {"reports": 10}, "dummies"),
    ("mixed((5, laplace(epsilon0=2)), dummies=5)", {"reports": 5}, "dummies"),
    ("mixed((5, krr(k=10, epsilon0=2)), dummies=-1)", {"reports": 5}, "dummies"),
    ("mixed((5, generic(epsilon0=2)))", {"reports": 5}, "named randomizer"),
    ("mixed((5, local_gaussian(sigma=4)))", {"reports": 5}, "named randomizer"),
    ("mixed((0, krr(k=10, epsilon0=2)))", {"reports": 5}, "groups"),
    ("mixed((5, krr(k=10, epsilon0=2)), (6))", {"reports": 5}, "groups"),
    ("mixed(dummies=5)", {"reports": 5}, "groups"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 6}, "reports"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 5, "sampled_from": 10}, "sampled_from"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 5, "participation": 0.5}, "participation"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 5, "honest_fraction": 0.8}, "honest_fraction"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 5, "delta0": 1e-9}, "delta0"),
    ("mixed((5, krr(k=10, epsilon0=2)))", {"reports": 5, "reports_per_user": 2}, "reports_per_user"),
    ("joint(krr(k=10, epsilon0=2), mixed((5, krr(k=10, epsilon0=2))))", {"reports": 5}, "parts"),
]


@pytest.mark.parametrize(("text", "fields", "named"), REFUSED)
def test_what_is_not_proven_is_refused(text: str, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        _round(text, **fields)
