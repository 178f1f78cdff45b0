"""The filter for repetitions: no analyst beats it, and what it admits is nearly what composition would."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    Charge,
    Choice,
    FilterMenu,
    FilterSet,
    InvalidParameter,
    RepetitionFilter,
    ShuffledRound,
    parse_randomizer,
)
from shuffle_ledger.accounting.filters.charges import charge_of
from shuffle_ledger.accounting.filters.repetition import (
    REPETITIONS_MAX,
    largest_count,
    rebudgeted,
    repetition_of,
)
from tests.accounting.test_adaptive_adversary import (
    REACH,
    Counts,
    Masses,
    coin,
    expected,
    gains,
    pair_of,
    worst_delta,
)
from tests.tiers import thorough

BUDGETS = st.tuples(st.floats(0.01, 20), st.floats(-40, -2).map(lambda x: 10.0**x))


def made(randomizer: str, reports: int, **fields: Any) -> ShuffledRound:
    return ShuffledRound(
        interaction="identical", randomizer=parse_randomizer(randomizer), reports=reports, **fields
    )


class Lattice:
    """Costs of rounds that are coins, composed exactly: an accountant of epsilons in hundredths."""

    def __init__(self, masses: Mapping[ShuffledRound, Masses]) -> None:
        self.masses = masses

    @functools.cache  # noqa: B019 - lives as long as its test
    def _profile(self, kind: ShuffledRound, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Returns the delta of `count` rounds, by hundredths of epsilon."""
        outcomes = np.zeros(2 * REACH + 1)
        outcomes[REACH] = 1.0
        backwards = {-position: mass for position, mass in self.masses[kind].items()}
        for _ in range(count):
            outcomes = expected(outcomes, backwards)
        return np.array([float(outcomes @ gains(hundredths / 100)) for hundredths in range(800)])

    def certify(self, rounds: Mapping[ShuffledRound, int], *, delta: float) -> Any:
        ((kind, count),) = rounds.items()
        if count * max(self.masses[kind]) >= REACH:
            return SimpleNamespace(epsilon_upper=math.inf)
        enough = np.flatnonzero(self._profile(kind, count) * (1 + 1e-9) <= delta)
        return SimpleNamespace(epsilon_upper=enough[0] / 100 if enough.size else math.inf)

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        charge = charge_of(pair_of(self.masses[accounted]), filters, slack=0.0)
        repetition = filters.repetition
        return dataclasses.replace(charge, repetition=(repetition.charge(accounted),) if repetition else ())


# The second fits the first, or does not.
SMALL, LARGE = made("declared(epsilon=0.1)", 1), made("declared(epsilon=0.4)", 1)
RARE = made("declared(epsilon=1.0)", 1, sampled_from=100)
KINDS = {SMALL: coin(1), LARGE: coin(4), RARE: coin(10, rate=0.01)}
CASES = [((LARGE, SMALL), 2.0, 1e-2), ((RARE, SMALL), 2.0, 1e-4), ((SMALL, RARE), 1.0, 1e-3)]


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "epsilon", "delta"), CASES)
@pytest.mark.parametrize("alternative", [1, 2, 3, 4])
def test_no_adaptive_analyst_beats_any_alternative(
    kinds: tuple[ShuffledRound, ShuffledRound], epsilon: float, delta: float, alternative: int
) -> None:
    """Which set is in force, and that the first kind is repeated, is known before the first output."""
    lattice = Lattice(KINDS)
    menu = FilterMenu.for_budget(epsilon=epsilon, delta=delta)
    share = menu.alternatives[alternative].repetition_delta

    def fit(count: int) -> bool:
        return bool(lattice.certify({kinds[0]: count}, delta=share).epsilon_upper <= epsilon)

    repetition = repetition_of(lattice, kinds[0], delta=share, most=largest_count(fit, 1))
    filters = menu.filters(Choice(alternative=alternative, repetition=repetition))
    charges = [lattice.charge(kind, filters) for kind in kinds]
    used: Counter[str] = Counter()

    @functools.cache
    def allows(counts: Counts) -> bool:
        readings = filters.readings(charges[0] * counts[0] + charges[1] * counts[1])
        holding = [one.name for one in readings if one.epsilon_upper <= epsilon]
        used.update(holding if len(holding) == 1 else [])
        return bool(holding)

    reached = worst_delta((KINDS[kinds[0]], KINDS[kinds[1]]), allows, epsilon)
    assert 0 < reached <= delta
    assert used["repetition"], "it never decided: nothing was attacked"


def test_a_choice_made_after_outputs_would_be_beaten() -> None:
    """An analyst who may choose a set of filters after outputs, each with all of delta, gets more than
    delta."""
    epsilon, delta = 1.0, 1e-3
    lattice, menu = Lattice(KINDS), (KINDS[RARE], KINDS[SMALL])
    most = largest_count(lambda n: bool(lattice.certify({RARE: n}, delta=delta).epsilon_upper <= epsilon), 1)
    others = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    charges = [lattice.charge(kind, others) for kind in (RARE, SMALL)]

    def repeats(counts: Counts) -> bool:
        return counts[1] == 0 and counts[0] <= most

    @functools.cache
    def holds(counts: Counts) -> bool:
        return others.epsilon_upper(charges[0] * counts[0] + charges[1] * counts[1]) <= epsilon

    assert worst_delta(menu, repeats, epsilon) <= delta
    assert worst_delta(menu, holds, epsilon) <= delta
    assert worst_delta(menu, lambda counts: repeats(counts) or holds(counts), epsilon) > delta


KINDS_AND_SHARES = [
    # All users report, and clones are many: almost nothing is lost, however few rounds fit.
    ("generic(epsilon0=1)", {"reports": 10_000}, 0.97),
    ("generic(epsilon0=2)", {"reports": 100_000}, 0.97),
    ("generic(epsilon0=4)", {"reports": 200_000}, 0.97),
    ("krr(k=10, epsilon0=2)", {"reports": 20_000}, 0.97),
    ("rappor(epsilon0=2)", {"reports": 50_000}, 0.97),
    # The rest.
    ("generic(epsilon0=4)", {"reports": 10_000}, 0.8),
    ("generic(epsilon0=4)", {"reports": 1_000}, 0.8),
    ("generic(epsilon0=1)", {"reports": 1_000, "sampled_from": 100_000}, 0.8),
    ("generic(epsilon0=1)", {"reports": 10_000, "sampled_from": 100_000}, 0.8),
    ("generic(epsilon0=2)", {"reports": 1_000, "sampled_from": 10_000}, 0.8),
    ("generic(epsilon0=4)", {"reports": 10_000, "sampled_from": 1_000_000}, 0.8),
    # Heavy tails: single losses are a large part of the budget.
    thorough("generic(epsilon0=4)", {"reports": 1_000, "sampled_from": 100_000}, 0.8),
    ("generic(epsilon0=4)", {"reports": 1_000, "sampled_from": 10_000}, 0.8),
    ("declared(epsilon=0.1, delta=1e-11)", {"reports": 1}, 0.8),
]


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "fields", "share"), KINDS_AND_SHARES)
def test_hardly_any_round_is_lost_however_few_fit(
    randomizer: str, fields: dict[str, Any], share: float
) -> None:
    accountant, kind = Accountant(precision=4e-3), made(randomizer, **fields)
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-9), (4.0, 1e-6)):
        filters = chosen(accountant, kind, epsilon, delta)

        def fixed(count: int, epsilon: float = epsilon, delta: float = delta) -> bool:
            return accountant.certify({kind: count}, delta=delta).epsilon_upper <= epsilon

        exact = largest_count(fixed, 1)
        admitted = filters.most_alike(accountant.charge(kind, filters), epsilon=epsilon)
        assert admitted <= exact, "the exact composition would refuse this"
        # Of a few dozen rounds, two are more than the share: whole numbers, rounded down twice.
        assert admitted >= min(share * exact, exact - 2), (epsilon, delta, admitted, exact)


def test_one_irregular_round_leaves_room_for_regular_ones() -> None:
    """A budget of six heavy rounds gives one of them up, not nine tenths of what would follow the first."""
    accountant, epsilon, delta = Accountant(precision=2e-3), 4.0, 1e-6
    first, regular = made("generic(epsilon0=4)", 1_000), made("generic(epsilon0=1)", 10_000)

    def after_it(filters: FilterSet) -> int:
        begun, each = accountant.charge(first, filters), accountant.charge(regular, filters)
        return filters.most_more(filters.taken(filters.nothing(), begun), each, epsilon=epsilon)

    filters = chosen(accountant, first, epsilon, delta)
    assert filters.repetition is not None
    untouched = FilterMenu.for_budget(epsilon=epsilon, delta=delta).alternatives[0].filters
    assert after_it(filters) >= 0.85 * after_it(untouched)


def chosen(accountant: Accountant, kind: ShuffledRound, epsilon: float, delta: float) -> FilterSet:
    menu = FilterMenu.for_budget(epsilon=epsilon, delta=delta)
    return menu.filters(menu.choose(accountant, kind, epsilon=epsilon))


HEAVY = made("generic(epsilon0=4)", 1_000, sampled_from=10_000)


@pytest.fixture(scope="module")
def heavy() -> RepetitionFilter:
    """Return the filter that a cohort of few irregular rounds chooses."""
    repetition = chosen(Accountant(), HEAVY, 4.0, 1e-6).repetition
    assert repetition is not None
    return repetition


@pytest.mark.slow
def test_readings_are_compositions_and_rise(heavy: RepetitionFilter) -> None:
    counts = [count for count, _ in heavy.certified]
    assert counts[0] == 1
    before = 0.0
    for units in range(counts[-1] + 1):
        reading = heavy.reading(Fraction(units))
        assert reading.epsilon_upper >= before
        before = reading.epsilon_upper
        if units in counts or units in (counts[-2] + 1, 10):
            exact = Accountant(precision=1e-2).certify({HEAVY: units}, delta=heavy.delta)
            assert reading.epsilon_upper >= exact.epsilon_lower
    assert before <= 4.0
    assert heavy.reading(Fraction(counts[-1] + 1)).epsilon_upper == math.inf


def test_what_the_kind_does_not_dominate_closes_the_filter_until_it_is_voided(
    heavy: RepetitionFilter,
) -> None:
    assert heavy.charge(dataclasses.replace(HEAVY, reports=2_000, sampled_from=20_000)) == 1
    for changes in ({"reports": 999}, {"sampled_from": 9_000}, {"sampled_from": None}):
        beyond = heavy.charge(dataclasses.replace(HEAVY, **changes))
        assert heavy.reading(beyond).epsilon_upper == math.inf
        assert heavy.reading(1 + beyond - beyond) == heavy.reading(Fraction(1))


@pytest.mark.slow
def test_another_budget_certifies_another_number(heavy: RepetitionFilter) -> None:
    accountant, most = Accountant(), heavy.certified[-1][0]
    raised = rebudgeted(accountant, heavy, 5.0)
    assert set(heavy.certified) < set(raised.certified)
    assert heavy.certified[-1][1] < 4.0 < raised.certified[-1][1] <= 5.0
    lowered = rebudgeted(accountant, heavy, 2.0)
    within = [count for count, epsilon in lowered.certified if epsilon <= 2.0]
    assert within[-1] < most
    assert accountant.certify({HEAVY: within[-1] + 1}, delta=heavy.delta).epsilon_upper > 2.0
    assert rebudgeted(accountant, heavy, 1e-6).certified == heavy.certified
    # However often, an entry stays short.
    for number in range(80):
        raised = rebudgeted(accountant, raised, 2.0 + number / 40)
    assert len(raised.certified) <= 64


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(budget=BUDGETS)
def test_shares_of_every_alternative_fit_into_the_budget(budget: tuple[float, float]) -> None:
    menu = FilterMenu.for_budget(epsilon=budget[0], delta=budget[1])
    for one in menu.alternatives:
        assert sum(map(Fraction, (*one.filters.shares(), one.repetition_delta))) <= Fraction(budget[1])
    assert FilterMenu.from_mapping(menu.to_mapping()) == menu
    # Cohorts of before have one set, and rules that say just that.
    old = menu.alternatives[0].filters
    assert FilterMenu.from_mapping(old.to_mapping()).to_mapping() == old.to_mapping()


def test_the_choice_is_of_the_menu(heavy: RepetitionFilter) -> None:
    menu = FilterMenu.for_budget(epsilon=4.0, delta=1e-6)
    choice = Choice(alternative=1, repetition=heavy)
    assert Choice.from_mapping(choice.to_mapping()) == choice
    assert menu.filters(choice).repetition == heavy
    more = dataclasses.replace(heavy, delta=heavy.delta * 1.5)
    for forged in (
        Choice(alternative=5, repetition=heavy),
        Choice(alternative=-1, repetition=heavy),
        Choice(alternative=0, repetition=heavy),
        Choice(alternative=1, repetition=None),
        Choice(alternative=1, repetition=more),
    ):
        with pytest.raises(InvalidParameter):
            menu.filters(forged)


@pytest.mark.parametrize(
    "changes",
    [
        {"certified": [[2, 0.5], [1, 0.25]]},
        {"certified": [[0, 0.5]]},
        {"certified": [[1, -0.5]]},
        {"certified": [1, 2]},
        {"delta": 1.5},
        {"kind": "generic"},
    ],
)
def test_what_is_no_repetition_filter_is_refused(heavy: RepetitionFilter, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        RepetitionFilter.from_mapping({**heavy.to_mapping(), **changes})


@given(st.integers(0, REPETITIONS_MAX), st.integers(0, 2 * REPETITIONS_MAX))
def test_a_search_finds_the_largest_wherever_it_begins(largest: int, about: int) -> None:
    assert largest_count(lambda count: count <= largest, about) == largest


def test_contours_that_lead_to_each_other_end_the_search_and_not_the_precision() -> None:
    """Between two tilts the search went back and forth, and kept the worse one: no lower bound was left."""
    kind = made("generic(epsilon0=4)", 1_000, sampled_from=100_000)
    found = Accountant(precision=4e-3).certify({kind: 1_005}, delta=5e-10)
    assert 0.99 * found.epsilon_upper < found.epsilon_lower <= found.epsilon_upper
