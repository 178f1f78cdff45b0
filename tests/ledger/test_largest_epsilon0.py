"""The search for an epsilon0: what it returns was tried and fits, and little more does not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.policies.largest_epsilon0 import (
    EPSILON0_MAX,
    EPSILON0_MIN,
    epsilon0_of,
    largest_epsilon0,
    with_epsilon0,
)

TRIES_MAX = 20  # each is a matter of up to a second


def krr(epsilon0: float) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(f"krr(k=10, epsilon0={epsilon0!r})"), reports=1_000)


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(least), math.log(most)).map(math.exp)


@given(asked=numbers(1e-4, 29.9), border=numbers(1.1e-3, 29.9), digits=st.sampled_from([3, 4]))
def test_the_answer_fits_and_little_more_does_not(asked: float, border: float, digits: int) -> None:
    tried: dict[float, bool] = {}

    def fits(described: ShuffledRound) -> bool:
        epsilon0 = epsilon0_of(described)
        assert epsilon0 is not None
        tried[epsilon0] = epsilon0 <= border
        return tried[epsilon0]

    found = largest_epsilon0(fits, krr(asked), digits=digits)
    if border < asked <= EPSILON0_MIN:
        assert found is None
        return
    assert found is not None
    assert tried[found]
    refused = min(each for each, fitted in tried.items() if not fitted)
    assert found < refused <= found * (1 + 2 * 10.0 ** (1 - digits))
    assert len(tried) <= TRIES_MAX


@given(asked=numbers(1e-4, 29.9), holes=st.sets(st.integers(0, 300), min_size=1))
def test_an_answer_was_tried_even_where_larger_ones_fit_and_smaller_do_not(
    asked: float, holes: set[int]
) -> None:
    def fits(described: ShuffledRound) -> bool:
        return int(10 * (epsilon0_of(described) or 0)) not in holes

    found = largest_epsilon0(fits, krr(asked), digits=3)
    assert found is None or fits(with_epsilon0(krr(asked), found))


@pytest.mark.parametrize("asked", [1.0, EPSILON0_MAX])
def test_where_all_fit_it_is_the_largest_that_there_is(asked: float) -> None:
    assert largest_epsilon0(lambda _: True, krr(asked), digits=3) == EPSILON0_MAX


def test_nothing_is_found_where_nothing_fits_or_there_is_no_epsilon0() -> None:
    assert largest_epsilon0(lambda _: False, krr(1.0), digits=3) is None
    two = ShuffledRound(
        randomizer=parse_randomizer("joint(krr(k=10, epsilon0=1), krr(k=10, epsilon0=1))"), reports=1_000
    )
    assert largest_epsilon0(lambda _: True, two, digits=3) is None
