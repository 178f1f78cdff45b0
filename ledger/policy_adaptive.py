"""Policy `adaptive`: filters decide, and every entry carries what they have been charged."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting import Charge, FilterReading, FilterSet, InvalidParameter, ShuffledRound
from ledger.budgets import POLICY_ADAPTIVE
from ledger.entries import Spending
from ledger.errors import Damaged, LedgerError
from ledger.policy import ASSUMES, Books, Policy, Step, rules_digest, standing_of
from ledger.rows import CohortView


@dataclass(frozen=True, kw_only=True)
class AdaptivePolicy(Policy):
    """Filters decide: rounds go on while one of them holds. Sound however rounds are chosen."""

    filters: FilterSet

    decided_by = f"the filter that holds at the smallest epsilon; {ASSUMES[POLICY_ADAPTIVE]}"

    @functools.cached_property
    def digest(self) -> str:
        """How entries name these rules."""
        return rules_digest(self.filters.to_mapping())

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        return {"rules": self.filters.to_mapping(), **self._standing(self.filters.nothing())}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return self._standing(self.total(view))

    def is_quick(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """See `Policy`."""
        return books.accountant.remembers_charge(accounted, self.filters)

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        charge = books.charge(accounted, self.filters)
        return self._stepped(view, self.total(view) + charge, 1, charge)

    def replacing(
        self, books: Books, view: CohortView, admitted: Mapping[str, Any], after: ShuffledRound | None
    ) -> Step:
        """See `Policy`. What was charged never shrinks, unless nothing was released."""
        before = Charge.from_mapping(admitted["charge"])
        if after is None:
            return self._stepped(view, self.total(view) - before, -1, None)
        charge = before
        if after != ShuffledRound.from_mapping(admitted["accounted"]):
            charge = before.at_least(books.charge(after, self.filters))
        return self._stepped(view, self.total(view) - before + charge, 0, charge)

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """See `Policy`."""
        return self.filters.readings(self.total(view))

    def composition(self, books: Books, view: CohortView) -> Spending:
        """See `Policy`."""
        return books.certify(view.held, delta=view.cohort.delta_budget)

    def total(self, view: CohortView) -> Charge:
        """Return what the cohort's rounds were charged so far, by its last entry; raises Damaged."""
        return total_charged(view.details, self.digest)

    def spending(self, total: Charge, *, rounds: int, delta: float) -> Spending:
        """Return the smallest epsilon at which a filter holds."""
        return spending_of(self.filters.readings(total), rounds=rounds, delta=delta)

    def _stepped(self, view: CohortView, total: Charge, rounds: int, charge: Charge | None) -> Step:
        spent = self.spending(total, rounds=view.spent.rounds + rounds, delta=view.cohort.delta_budget)
        details = {"charge": charge.to_mapping()} if charge else {}
        return Step(spent=spent, details={**details, **self._standing(total)})

    def _standing(self, total: Charge) -> dict[str, Any]:
        return {"standing": {"rules": self.digest, "charged": total.to_mapping()}}


def total_charged(details: Mapping[str, Any], rules: str) -> Charge:
    """Return the total that an entry's details carry, if they name these rules; raises Damaged."""
    try:
        return Charge.from_mapping(standing_of(details, rules)["charged"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the last entry does not say what was charged: {error}") from error


def spending_of(readings: tuple[FilterReading, ...], *, rounds: int, delta: float) -> Spending:
    """Return the smallest epsilon at which one of the filters holds, as spending.

    Raises:
        LedgerError: a reading cannot be a bound. Unknown is an error, never an admission.
    """
    if rounds == 0:
        return Spending.nothing(delta)
    best = min(readings, key=lambda reading: reading.epsilon_upper)
    upper = best.epsilon_upper
    lower = min(reading.epsilon_lower for reading in readings)
    if not 0.0 <= lower <= upper:
        raise LedgerError(f"the filters read epsilon in [{lower}, {upper}], which bounds nothing")
    return Spending(
        epsilon_upper=upper,
        epsilon_lower=lower,
        delta=delta,
        rounds=rounds,
        discretization=0.0,
        truncation=0.0,
        round_off=upper - lower if upper < float("inf") else 0.0,
        method=f"{best.name} filter at delta {best.delta:.6g}",
    )
