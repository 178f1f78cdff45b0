"""Samples of each cohort: the accounted rate covers the truth, enumerated, and the average rate does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    Collected,
    correct,
    correct_everywhere,
    corrections,
    incidents,
    record_incident,
    request_of,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.audiences import Stratum, stratified_population
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import AnyDesk

EPSILON0 = 1.0
KRR = parse_randomizer({"kind": "krr", "k": 2, "epsilon0": EPSILON0})
STRATA = {"a": [1, 20], "b": [9, 10]}
BY_ACTOR: dict[str, Any] = {"reason": "the log says so", "actor": "ada"}
Law = dict[tuple[int, ...], float]


def shuffled(inputs: Sequence[int], weight: float, into: Law) -> None:
    """Add the law of the sorted reports of binary randomized response on some inputs, times a weight."""
    keep = 1 / (1 + math.exp(-EPSILON0))
    for reports in itertools.product((0, 1), repeat=len(inputs)):
        mass = math.prod(
            keep if report == value else 1 - keep for report, value in zip(reports, inputs, strict=True)
        )
        seen = tuple(sorted(reports))
        into[seen] = into.get(seen, 0.0) + weight * mass


def law(strata: Sequence[Sequence[int]], sampled: Sequence[int]) -> Law:
    """Return the law of the shuffled reports of a uniform sample of each stratum."""
    samples = [list(itertools.combinations(users, size)) for users, size in zip(strata, sampled, strict=True)]
    found: Law = {}
    weight = 1 / math.prod(map(len, samples))
    for chosen in itertools.product(*samples):
        shuffled([value for users in chosen for value in users], weight, found)
    return found


def worst(sizes: Sequence[int], sampled: Sequence[int], epsilon: float) -> float:
    """Return the largest divergence between inputs that differ in one user, of any stratum."""
    return max(
        sum(max(0.0, mass - math.exp(epsilon) * second[report]) for report, mass in first.items())
        for stratum in range(len(sizes))
        for others in _inputs(sizes, stratum)
        for first, second in [[law(_with(others, stratum, value), sampled) for value in (0, 1)]]
    )


def _inputs(sizes: Sequence[int], stratum: int) -> Iterator[list[list[int]]]:
    """Yield what all users but one hold, as far as it matters: how many of each stratum hold 1."""
    rest = [size - (place == stratum) for place, size in enumerate(sizes)]
    for ones in itertools.product(*(range(size + 1) for size in rest)):
        yield [[1] * one + [0] * (size - one) for one, size in zip(ones, rest, strict=True)]


def _with(others: Sequence[Sequence[int]], stratum: int, value: int) -> list[list[int]]:
    return [[*users, value] if place == stratum else [*users] for place, users in enumerate(others)]


CASES = [((2, 6), (1, 1)), ((2, 4), (1, 2)), ((3, 3), (2, 1))]


@pytest.mark.parametrize(("sizes", "sampled"), CASES)
def test_the_largest_rate_covers_every_stratum(sizes: tuple[int, ...], sampled: tuple[int, ...]) -> None:
    strata = [
        Stratum(cohort=str(place), sampled=m, users=n)
        for place, (m, n) in enumerate(zip(sampled, sizes, strict=True))
    ]
    accountant = Accountant()

    def accounted(population: int, epsilon: float) -> float:
        described = ShuffledRound(
            randomizer=parse_randomizer({"kind": "krr", "k": 2, "epsilon0": EPSILON0}),
            reports=sum(sampled),
            sampled_from=population,
        )
        return accountant.certify_delta({described: 1}, epsilon=epsilon).delta_upper

    for epsilon in (0.0, 0.2, 0.5):
        assert worst(sizes, sampled, epsilon) <= accounted(stratified_population(strata), epsilon) * (
            1 + 1e-9
        )
    if sizes == (2, 6):  # as if two of eight users had been drawn
        assert worst(sizes, sampled, 0.0) > 1.5 * accounted(sum(sizes), 0.0)


def test_a_partly_honest_sample_of_strata_is_dearer_than_a_uniform_one(accountant: Accountant) -> None:
    """The honest half of 30 users may be one of `b`, who is nearly always sampled, and 14 of `a`."""

    def of_one(value: int) -> Law:
        found: Law = {}
        for is_in, of_a in itertools.product((0, 1), repeat=2):  # who of the honest is in the sample
            weight = (0.9 if is_in else 0.1) * (14 / 20 if of_a else 6 / 20)
            shuffled([value] * is_in + [0] * of_a, weight, found)
        return found

    first, second = of_one(1), of_one(0)
    uniform = ShuffledRound(randomizer=KRR, reports=10, sampled_from=11, honest_fraction=0.5)
    for epsilon in (0.0, 0.5):
        truth = sum(max(0.0, mass - math.exp(epsilon) * second[seen]) for seen, mass in first.items())
        assert truth > 1.3 * accountant.certify_delta({uniform: 1}, epsilon=epsilon).delta_upper


def test_nothing_unproven_is_told_of_a_round_of_strata_in_any_way(
    store: Store, accountant: Accountant
) -> None:
    desk = AnyDesk(store, accountant)
    for name, population in (("a", 20), ("b", 10), ("c", 50), ("d", 50)):
        desk.open(name, population=population, epsilon=9.0, policy="fixed")
    described = ShuffledRound(randomizer=KRR, reports=10)
    for name in ("void", "settled", "wider"):
        desk.decide(request_of(("a", "b"), described, round_id=name, stratified=STRATA))
    void(store, accountant, "void", **BY_ACTOR)
    wider = Collected(cohorts=("c",))
    correct_everywhere(store, accountant, "wider", {"sampled_from": 11}, collected=wider, **BY_ACTOR)
    with pytest.raises(InvalidValue, match=r"sampled_from: .* with a further cohort"):
        correct_everywhere(store, accountant, "wider+c", {}, collected=Collected(cohorts=("d",)), **BY_ACTOR)
    even_wider = Collected(cohorts=("d",))
    correct_everywhere(store, accountant, "wider+c", {"sampled_from": 11}, collected=even_wider, **BY_ACTOR)
    before = {name: store.view(name).head_sequence for name in "abcd"}
    half = ShuffledRound(randomizer=KRR, reports=10, sampled_from=11, honest_fraction=0.5)
    for cohort, name in (("a", "void"), ("c", "void+c")):
        with pytest.raises(InvalidValue, match="nothing is proven about a share of honest devices"):
            record_incident(store, accountant, cohort, round_id=name, described=half, **BY_ACTOR)
    for name in ("settled", "wider", "wider+c", "wider+c+d"):
        with pytest.raises(InvalidValue, match="nothing is proven about a share of honest devices"):
            correct(store, accountant, name, {"honest_fraction": 0.5}, **BY_ACTOR)
        with pytest.raises(InvalidValue, match="at most 10, as was told last"):
            correct(store, accountant, name, {"reports": 11}, **BY_ACTOR)
    assert {name: store.view(name).head_sequence for name in "abcd"} == before
    settle(store, accountant, "settled", reports=5, actor="ada")
    with pytest.raises(InvalidValue, match="at most 5, as was told last"):
        correct(store, accountant, "settled", {"reports": 10}, **BY_ACTOR)
    correct(store, accountant, "settled", {"reports": 10, "sampled_from": 11}, **BY_ACTOR)
    whole = ShuffledRound(randomizer=KRR, reports=10, honest_fraction=0.5)
    record_incident(store, accountant, "a", round_id="void", described=whole, **BY_ACTOR)
    desk.check()


def test_entries_that_charge_what_is_unproven_of_strata_are_blamed(
    store: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version wrote them, or a forger."""
    desk = AnyDesk(store, accountant)
    for name, population in (("a", 20), ("b", 10)):
        desk.open(name, population=population, epsilon=9.0, policy="fixed")
    described = ShuffledRound(randomizer=KRR, reports=10)
    for name in ("void", "wrong"):
        desk.decide(request_of(("a", "b"), described, round_id=name, stratified=STRATA))
    void(store, accountant, "void", **BY_ACTOR)
    desk.check()
    monkeypatch.setattr(incidents, "refuse_unproven", lambda *_: None)
    monkeypatch.setattr(corrections, "refuse_unproven_of_strata", lambda *_: None)
    half = ShuffledRound(randomizer=KRR, reports=10, sampled_from=11, honest_fraction=0.5)
    record_incident(store, accountant, "a", round_id="void", described=half, **BY_ACTOR)
    correct(store, accountant, "wrong", {"honest_fraction": 0.5}, **BY_ACTOR)
    report = verify(store, accountant)
    assert not report.ok
    for found in report.cohorts:
        blamed = [each.sequence for each in found.problems if "its charge is unproven" in each.what]
        assert blamed == [5, 6]
