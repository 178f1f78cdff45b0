"""Analysts who decide by outputs which slot a round claims, and what they settle.

The tests compute the worst of them, as `tests/accounting/test_adaptive_adversary.py` does. The ledger's own
rules decide which moves are allowed; rules that were tried before, or that look as good, are beaten.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from shuffle_ledger.accounting import ShuffledRound, fits, parse_randomizer
from shuffle_ledger.ledger.policies.registry import PlanPolicy
from tests.accounting.test_adaptive_adversary import (
    REACH,
    STEP,
    Array,
    Masses,
    coin,
    composed_delta,
    expected,
    gains,
    worst_delta,
)

CATEGORIES = 200
# One report alone: of 2-RR(0.1), of 200-RR(1), and the most revealing pair that both of them dominate.
SMALL = coin(1)
RARE = coin(10, rate=(math.e + 1) / (math.e + CATEGORIES - 1))
DISTANCE_RARE, DISTANCE_SMALL = (math.e - 1) / (math.e + CATEGORIES - 1), math.tanh(STEP / 2)
BELOW_BOTH = coin(1, rate=DISTANCE_RARE / DISTANCE_SMALL)


def krr(k: int, epsilon0: float, reports: int) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": k, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports)


# What each reveals, and a slot of a million reports that a round claims which turns out to be it.
TRUTHS: Mapping[ShuffledRound, tuple[Masses, int]] = {
    krr(2, 0.1, 1): (SMALL, 0),
    krr(CATEGORIES, 1.0, 1): (RARE, 1),
    krr(CATEGORIES, 0.1, 1): (BELOW_BOTH, 0),
}
CHEAP = ((krr(2, 0.1, 10**6), 60), (krr(CATEGORIES, 1.0, 10**6), 120))
Claimed = tuple[int, ...]
# Given which slots the other rounds take, the slot claimed and the truth: the slots to settle it in.
Rule = Callable[[PlanPolicy, Claimed, int, ShuffledRound], list[int]]


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rule remember which rounds fit which slots: it is asked hundreds of thousands of times."""
    monkeypatch.setattr("shuffle_ledger.accounting.planning.plans.fits", functools.cache(fits))


def shipped(plan: PlanPolicy, others: Claimed, slot: int, truth: ShuffledRound) -> list[int]:
    stands = plan.standing_in(others, slot, truth)
    return [] if stands is None else [stands]


def any_free(plan: PlanPolicy, others: Claimed, slot: int, truth: ShuffledRound) -> list[int]:
    listed = enumerate(zip(plan.slots_declared, others, strict=True))
    return [place for place, ((one, count), taken) in listed if taken < count and fits(truth, one)]


def worst_of_plan(slots: tuple[tuple[ShuffledRound, int], ...], epsilon: float, rule: Rule) -> float:
    """The largest delta of analysts who release rounds that turn out to be anything in `TRUTHS`.

    They settle at any time those that several kinds of slots would cover, the others at once. Paths that end
    overspent do not count.
    """
    plan = PlanPolicy(slots_declared=slots, epsilon_upper=epsilon, epsilon_lower=epsilon)
    *sure, doubtful = TRUTHS

    def settled(claimed: Claimed, slot: int, truth: ShuffledRound) -> list[Claimed]:
        places = rule(plan, claimed, slot, truth)
        return [tuple(n + (i == place) for i, n in enumerate(claimed)) for place in places]

    @functools.cache
    def value(claimed: Claimed, waiting: int) -> Array:
        best = np.zeros(2 * REACH + 1) if waiting else gains(epsilon)
        for truth in sure:
            masses, slot = TRUTHS[truth]
            for after in settled(claimed, slot, truth):
                best = np.maximum(best, expected(value(after, waiting), masses))
        masses, slot = TRUTHS[doubtful]
        for after in settled(claimed, slot, doubtful) if waiting else []:
            best = np.maximum(best, value(after, waiting - 1))
        if waiting + sum(claimed) < sum(count for one, count in slots if one.reports == 1):
            best = np.maximum(best, expected(value(claimed, waiting + 1), masses))
        return best

    return float(value((0,) * len(slots), 0)[REACH])


def test_a_truth_in_place_of_its_slot_made_the_plan_a_naive_filter() -> None:
    epsilon, delta = 2.0, 1e-4
    composed = composed_delta((SMALL, RARE), epsilon)
    before = worst_delta((SMALL, RARE), lambda counts: composed(counts) <= delta, epsilon)
    assert before > 1.97 * delta
    assert worst_of_plan(CHEAP, epsilon, shipped) <= delta


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "epsilon", "beaten"), [((6, 25), 2.0, 1.0147), ((12, 12), 1.0, 1.011)])
def test_no_analyst_beats_a_plan_whose_rounds_turn_out_otherwise(
    counts: tuple[int, int], epsilon: float, beaten: float
) -> None:
    delta = composed_delta((SMALL, RARE), epsilon)(counts)
    slots = (*CHEAP, *zip(list(TRUTHS)[:2], counts, strict=True))
    assert worst_of_plan(slots, epsilon, shipped) == pytest.approx(delta, rel=1e-9)
    # With its slots in the other order the truth that both kinds dominate takes another kind.
    assert worst_of_plan((*slots[:2], *reversed(slots[2:])), epsilon, shipped) <= delta * (1 + 1e-9)
    assert worst_of_plan(slots, epsilon, any_free) / delta == pytest.approx(beaten, abs=1e-3)
