"""Policy `adaptive`: filters decide, and every entry carries what they have been charged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import (
    APPROXIMATE_SHARE,
    AccountsReading,
    Charge,
    FilterReading,
    FilterSet,
    InvalidParameter,
    RaisedLimits,
    ShuffledRound,
    upper_text,
)
from shuffle_ledger.ledger.errors import Conflict, Damaged, LedgerError
from shuffle_ledger.ledger.policies.base import (
    ASSUMES,
    IN_CLEAR,
    Books,
    Course,
    Policy,
    Step,
    read_once,
    replaced,
    rules_digest,
    slot_of,
    spell_once,
    standing_of,
)
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE


@dataclass(frozen=True, kw_only=True)
class AdaptivePolicy(Policy):
    """Filters decide: rounds go on while one of them holds. Sound however rounds are chosen.

    The opening fixes the filters. Later only the limits of a raised budget change, and every standing says
    them.
    """

    rules: FilterSet  # as the cohort was opened
    approximate_share: float = APPROXIMATE_SHARE  # of delta, as the opening said

    decided_by = f"the filter that holds at the smallest epsilon; {ASSUMES[POLICY_ADAPTIVE]}"

    @functools.cached_property
    def digest(self) -> str:
        """How entries name these rules."""
        return rules_digest(self.rules.to_mapping())

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        charged = self.rules.nothing().to_mapping()
        rules = {"rules": self.rules.to_mapping(), "standing": {"rules": self.digest, "charged": charged}}
        is_usual = self.approximate_share == APPROXIMATE_SHARE
        return rules if is_usual else {**rules, "approximate_share": self.approximate_share}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return self._standing(view, self.total(view), self.raised(view))

    def is_quick(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """See `Policy`."""
        return books.accountant.remembers_charge(accounted, self.filters(view))

    def prepare(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """See `Policy`: the round's charge."""
        books.charge(accounted, self.filters(view))
        return True

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        filters, total = self.filters(view), self.total(view)
        charge = filters.taken(total, books.charge(accounted, filters))
        after = filters.after(total, charge)
        step = self._stepped(view, after, self.raised(view), rounds=1)
        lacks = filters.lacks_delta(after, epsilon=view.cohort.epsilon_budget)
        return dataclasses.replace(
            step,
            details={"charge": charge.to_mapping(), **step.details},
            lacks_delta=filters.accounts_reading(after) if lacks else None,
        )

    def telling(
        self, books: Books, view: CohortView, truth: ShuffledRound, *, chosen_after: bool = False
    ) -> Step:
        """See `Policy`: the whole charge is late.

        No filter bounds what may have had a part in the opening: it is charged as if reports had been
        released in the clear.
        """
        accounted, filters, total = slot_of(truth), self.filters(view), self.total(view)
        cost = books.charge(IN_CLEAR if chosen_after else accounted, filters)
        charge = filters.taken_instead(total, filters.nothing(), cost)
        step = self._stepped(view, filters.after(total, charge), self.raised(view), rounds=1)
        details = {"charge": charge.to_mapping(), **step.details}
        return dataclasses.replace(step, details=details, changes={accounted: 1}, accounted=accounted)

    def replacing(self, books: Books, view: CohortView, course: Course, after: ShuffledRound | None) -> Step:
        """See `Policy`. A charge never shrinks, unless nothing was released."""
        raised, before = self.raised(view), Charge.from_mapping(course.last["charge"])
        filters, total = self.filters(view), self.total(view)
        changes = replaced(course.accounted, after)
        if after is None:
            step = self._stepped(view, filters.given_back(total, before), raised, rounds=-1)
            return dataclasses.replace(step, changes=changes)
        charge = before
        if changes:
            charge = filters.taken_instead(total, before, books.charge(after, filters))
        step = self._stepped(view, filters.after_instead(total, before, charge), raised)
        details = {"charge": charge.to_mapping(), **step.details}
        return dataclasses.replace(step, details=details, changes=changes)

    def rebudgeted(self, books: Books, view: CohortView, epsilon: float) -> Step:
        """See `Policy`: a larger budget raises the sliding limit and the price of slack.

        Raises:
            Conflict: slack costs more of delta at a larger epsilon than its account has, and no other filter
                would hold: raising the budget would make the cohort overspent.
        """
        before = self.raised(view)
        after = self.rules.raised(before, epsilon)
        if after == before:
            return super().rebudgeted(books, view, epsilon)
        total = self.total(view)
        step = self._stepped(view, total, after)
        held, holds = (self.rules.under(one).accounts.hold(total.account) for one in (before, after))
        if held and not holds and not step.is_within(epsilon):
            raise Conflict(
                f"at epsilon {epsilon!r} the local deltas of rounds would cost more than the account of delta"
                " that is set aside for them: the budget cannot be raised so far"
            )
        return step

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """See `Policy`."""
        return self.filters(view).readings(self.total(view))

    def delta_accounts(self, view: CohortView) -> AccountsReading:
        """See `Policy`."""
        return self.filters(view).accounts_reading(self.total(view))

    def composition(self, books: Books, view: CohortView) -> Spending:
        """See `Policy`."""
        return books.certify(view.held, delta=view.cohort.delta_budget)

    def filters(self, view: CohortView) -> FilterSet:
        """Return the filters in force."""
        return self.rules.under(self.raised(view))

    def raised(self, view: CohortView) -> RaisedLimits | None:
        """Return the limits of a raised budget, by the last entry, if it was raised; raises Damaged."""
        stated = standing_of(view.details, self.digest).get("raised")
        return read_once(view, "raised", stated, lambda: limits_raised(view.details, self.digest))

    def total(self, view: CohortView) -> Charge:
        """Return what the cohort's rounds were charged so far, by its last entry; raises Damaged."""
        stated = standing_of(view.details, self.digest).get("charged")
        return read_once(view, "charged", stated, lambda: total_charged(view.details, self.digest))

    def _stepped(
        self, view: CohortView, total: Charge, raised: RaisedLimits | None, *, rounds: int = 0
    ) -> Step:
        readings = self.rules.under(raised).readings(total)
        delta = view.cohort.delta_budget
        spent = spending_of(readings, rounds=view.spent.rounds + rounds, delta=delta)
        return Step(spent=spent, details=self._standing(view, total, raised))

    def _standing(self, view: CohortView, total: Charge, raised: RaisedLimits | None) -> dict[str, Any]:
        limits = {"raised": spell_once(view, "raised", raised, raised.to_mapping)} if raised else {}
        charged = spell_once(view, "charged", total, total.to_mapping)
        return {"standing": {"rules": self.digest, "charged": charged, **limits}}


def total_charged(details: Mapping[str, Any], rules: str) -> Charge:
    """Return the total that an entry's details carry, if they name these rules; raises Damaged."""
    try:
        return Charge.from_mapping(standing_of(details, rules)["charged"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the last entry does not say what was charged: {error}") from error


def limits_raised(details: Mapping[str, Any], rules: str) -> RaisedLimits | None:
    """Return the limits of a raised budget that an entry's standing carries, if any; raises Damaged."""
    raised = standing_of(details, rules).get("raised")
    try:
        return None if raised is None else RaisedLimits.from_mapping(raised)
    except InvalidParameter as error:
        raise Damaged(f"the last entry does not say which limits were raised: {error}") from error


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
        method=f"{best.name} filter at delta {upper_text(best.delta)}",
    )
