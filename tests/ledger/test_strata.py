"""Samples of each cohort: the accounted rate covers the truth, enumerated, and the average rate does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.values.audiences import Stratum, stratified_population

EPSILON0 = 1.0
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
