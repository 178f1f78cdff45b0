"""Proves what the last entry of a fold states of costs, limits and slots, which the accountant computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from shuffle_ledger.accounting import FilterCharge, FilterSet, ShuffledRound, exact_text, lower_text
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.machine import DELTA_UNIT, EPSILON_UNIT, LOSS_UNIT, Cost, Level, Limits
from shuffle_ledger.ledger.policies.numbers import filter_charge
from shuffle_ledger.ledger.policies.policy import BudgetPolicy
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.verification.fold import Fold
from shuffle_ledger.ledger.verification.stated import ROUND_OFF

# Charges are upper bounds. A ledger's precision is at worst 0.1, and its charges are then too large by about
# as much. That is sound; a larger excess is worth a note.
DEARER_MAX = 0.1


class ChargeSource(Protocol):
    """Computes what rounds cost filters: from stored privacy losses, or from nothing but parameters."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Return what a round costs each filter."""

    def certify(
        self, held: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Spending:
        """Return the certified composition of rounds, as narrow as tells whether it is within a budget."""


@dataclass
class Proofs:
    """Proves what entries of one chain state."""

    fold: Fold
    losses: ChargeSource
    coverage: Coverage
    # Whether a stated cost was proven to cover its round: thousands of entries state the same few.
    _proven: dict[tuple[ShuffledRound, Cost], bool] = field(default_factory=dict)

    def unproven(self, *, opens: bool) -> Iterator[str]:
        """Yield what the last entry states of costs, limits and slots that cannot be proven.

        Args:
            opens: whether it is an opening.
        """
        policy, stated = self.fold.policy, self.fold.stated_cost
        if policy is None:
            return
        if opens and policy.slots_declared:
            yield from _misstated_slots(policy, self.losses)
        filters = policy.filters
        if filters is None:
            return
        if self.fold.stated_limits is not None:
            yield from _unproven_limits(filters, self.fold.stated_limits)
        if stated is None:
            return
        if stated not in self._proven:
            accounted, cost = stated
            self.losses.charge(accounted, filters)  # from the stored privacy loss, if there is one
            self._proven[stated] = self.coverage.covers(accounted, filters, filter_charge(cost))
        if not self._proven[stated]:
            tried = self.coverage.precisions
            yield (
                "the charge it states is too small: nothing proves that it covers a round of its"
                f" parameters, at the precisions {', '.join(map(exact_text, sorted(tried)))} (a ledger that"
                " computes at another one: give its `precision`)"
            )

    def dearer(self) -> Iterator[str]:
        """Yield whether the cost of the last entry is more than its round needs: sound, and a waste."""
        policy, stated = self.fold.policy, self.fold.stated_cost
        if policy is None or policy.filters is None or stated is None:
            return
        share = _dearer(filter_charge(stated[1]), self.losses.charge(stated[0], policy.filters))
        if share > DEARER_MAX:
            more = lower_text(100 * share, digits=3)
            yield f"the charge it states is {more} % more than its round needs: sound, and a waste"


def _misstated_slots(policy: BudgetPolicy, losses: ChargeSource) -> Iterator[str]:
    upper, lower = policy.slots_epsilon
    again = losses.certify(dict(policy.slots_declared), delta=policy.share_of_slots)
    if lower > again.epsilon_upper:
        yield (
            f"it says the whole plan costs at least {exact_text(lower)}; computed again it is up to"
            f" {exact_text(again.epsilon_upper)}"
        )
    if upper < again.epsilon_lower:
        yield (
            f"it says the whole plan costs up to {exact_text(upper)}; computed again it is at least"
            f" {exact_text(again.epsilon_lower)}"
        )


def _unproven_limits(filters: FilterSet, limits: Limits) -> Iterator[str]:
    """Yield which stated limits are larger than what the filters' shares of delta allow."""
    for one in (limits.refuse, limits.promise):
        if not _is_within(filters, one):
            at = exact_text(float(one.epsilon * EPSILON_UNIT))
            yield f"a limit it states is too large for epsilon {at}"
    certain, slack = filters.accounts.limits(float(limits.promise.epsilon * EPSILON_UNIT))
    if limits.certain * DELTA_UNIT > certain or limits.slack * DELTA_UNIT > slack * (1 + ROUND_OFF):
        yield "its limits of certain loss or slack are larger than their shares of delta"


def _is_within(filters: FilterSet, level: Level) -> bool:
    """Return whether each filter's reading at its limit is within the level's epsilon."""
    readings = filters.readings(level.gaussian * LOSS_UNIT, [one * LOSS_UNIT for one in level.divergences])
    epsilon = level.epsilon * EPSILON_UNIT
    return all(
        math.isfinite(one.epsilon_upper) and Fraction(one.epsilon_upper) <= epsilon * (1 + ROUND_OFF)
        for one in readings
    )


def _dearer(stated: FilterCharge, again: FilterCharge) -> float:
    """By what share of it a charge is larger than another, where it is most."""
    pairs = zip((*stated.gaussian, *stated.renyi), (*again.gaussian, *again.renyi), strict=True)
    return max(float(ours / theirs) - 1 for ours, theirs in pairs)
