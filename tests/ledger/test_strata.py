"""Samples of several cohorts: the largest rate covers the truth, enumerated; the average rate does not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import correct, restatements, settle
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import request_of
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import Clerk

EPSILON0 = 1.0
KRR = parse_randomizer({"kind": "krr", "k": 2, "epsilon0": EPSILON0})
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
    stated = min(sum(sampled) * n // m for m, n in zip(sampled, sizes, strict=True))
    accountant = Accountant()

    def accounted(population: int, epsilon: float) -> float:
        described = ShuffledRound(
            randomizer=parse_randomizer({"kind": "krr", "k": 2, "epsilon0": EPSILON0}),
            reports=sum(sampled),
            sampled_from=population,
        )
        return accountant.certify_delta({described: 1}, epsilon=epsilon).delta_upper

    for epsilon in (0.0, 0.2, 0.5):
        assert worst(sizes, sampled, epsilon) <= accounted(stated, epsilon) * (1 + 1e-9)
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


@pytest.mark.slow
def test_more_reports_of_several_sampled_cohorts_want_their_rate_told_anew(
    store: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may all be of one cohort, whose rate rises by more than the average."""
    desk = Clerk(store, accountant)
    for name, population in (("a", 200), ("b", 100)):
        desk.open(name, population=population, epsilon=9.0, policy="adaptive")
    sampled = ShuffledRound(randomizer=KRR, reports=10, sampled_from=11)
    for name in ("settled", "forged"):
        desk.decide(request_of(("a", "b"), sampled, round_id=name))
    several = dataclasses.replace(sampled, sampled_from=60, reports_per_user=2)
    desk.decide(request_of(("a", "b"), several, round_id="several"))  # the rate has no effect on its charge
    desk.decide(request_of(("a",), sampled, round_id="alone"))
    before = {name: store.view(name).head_sequence for name in "ab"}
    with pytest.raises(InvalidValue, match="at most 10, as recorded last"):
        settle(store, accountant, "settled", reports=11, actor="ada")
    with pytest.raises(InvalidValue, match="at most 10, as recorded last"):
        correct(store, accountant, "settled", {"reports": 11}, **BY_ACTOR)
    assert {name: store.view(name).head_sequence for name in "ab"} == before
    settle(store, accountant, "settled", reports=5, actor="ada")
    with pytest.raises(InvalidValue, match="at most 5, as recorded last"):
        correct(store, accountant, "settled", {"reports": 10}, **BY_ACTOR)
    correct(store, accountant, "settled", {"reports": 10, "sampled_from": 11}, **BY_ACTOR)
    settle(store, accountant, "several", reports=12, actor="ada")
    settle(store, accountant, "alone", reports=11, actor="ada")
    desk.check()
    monkeypatch.setattr(restatements, "refuse_larger_sample", lambda *_: None)
    settle(store, accountant, "forged", reports=11, actor="ada")
    report = verify(store, accountant)
    for found in report.cohorts:
        (blamed,) = [each.what for each in found.problems]
        assert "more reports than its cohorts' samples have" in blamed
