"""Policy `adaptive`: filters decide, and every entry carries what they have been charged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import (
    AccountsReading,
    Charge,
    Choice,
    FilterMenu,
    FilterReading,
    FilterSet,
    InvalidParameter,
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

    The first admitted round chooses which set of filters of the menu that is. It was registered before any
    output of the cohort, so the choice does not depend on data. It stays, whatever becomes of the round.
    """

    menu: FilterMenu

    decided_by = f"the filter that holds at the smallest epsilon; {ASSUMES[POLICY_ADAPTIVE]}"

    @functools.cached_property
    def digest(self) -> str:
        """How entries name these rules."""
        return rules_digest(self.menu.to_mapping())

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        charged = self.menu.filters(None).nothing().to_mapping()
        return {"rules": self.menu.to_mapping(), "standing": {"rules": self.digest, "charged": charged}}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return self._standing(view, self.total(view), self.choice(view))

    def is_quick(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """See `Policy`: not the decision that chooses, for it composes."""
        return self._is_chosen(view) and books.accountant.remembers_charge(accounted, self.filters(view))

    def prepare(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """See `Policy`: the round's charge."""
        if not self._is_chosen(view):
            return False
        books.charge(accounted, self.filters(view))
        return True

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`. The entry says what it chose, also where the round is refused."""
        choice, total, chosen = self._chosen(books, view, accounted)
        filters = self._filters(view, choice)
        charge = filters.taken(total, books.charge(accounted, filters))
        after = filters.after(total, charge)
        step = self._stepped(view, after, choice, rounds=1)
        lacks = filters.lacks_delta(after, epsilon=view.cohort.epsilon_budget)
        return dataclasses.replace(
            step,
            details={"charge": charge.to_mapping(), **chosen, **step.details},
            lacks_delta=filters.accounts_reading(after) if lacks else None,
        )

    def telling(
        self, books: Books, view: CohortView, truth: ShuffledRound, *, chosen_after: bool = False
    ) -> Step:
        """See `Policy`: the whole charge is late. The first of a cohort's rounds chooses the filters.

        No filter bounds what may have had a part in the choice of filters: it is charged as if reports had
        been released in the clear.
        """
        accounted = slot_of(truth)
        choice, total, chosen = self._chosen(books, view, accounted)
        filters = self._filters(view, choice)
        cost = books.charge(IN_CLEAR if chosen_after else accounted, filters)
        charge = filters.taken_instead(total, filters.nothing(), cost)
        step = self._stepped(view, filters.after(total, charge), choice, rounds=1)
        details = {"charge": charge.to_mapping(), **chosen, **step.details}
        return dataclasses.replace(step, details=details, changes={accounted: 1}, accounted=accounted)

    def has_chosen(self, view: CohortView) -> bool:
        """See `Policy`: the first admitted round chose the filters, where there is a choice."""
        return self.menu.needs_choice and self.choice(view) is not None

    def replacing(self, books: Books, view: CohortView, course: Course, after: ShuffledRound | None) -> Step:
        """See `Policy`. A charge never shrinks, unless nothing was released."""
        choice, before = self.choice(view), Charge.from_mapping(course.last["charge"])
        filters, total = self.filters(view), self.total(view)
        changes = replaced(course.accounted, after)
        if after is None:
            step = self._stepped(view, filters.given_back(total, before), choice, rounds=-1)
            return dataclasses.replace(step, changes=changes)
        charge = before
        if changes:
            charge = filters.taken_instead(total, before, books.charge(after, filters))
        step = self._stepped(view, filters.after_instead(total, before, charge), choice)
        details = {"charge": charge.to_mapping(), **step.details}
        return dataclasses.replace(step, details=details, changes=changes)

    def rebudgeted(self, books: Books, view: CohortView, epsilon: float) -> Step:
        """See `Policy`: what the chosen filters allow is computed now.

        Raises:
            Conflict: slack costs more of delta at a larger epsilon than its account has, and no other filter
                would hold: raising the budget would make the cohort overspent.
        """
        choice = self.choice(view)
        after = choice and self.menu.rebudgeted(books, choice, epsilon)
        if after is None or after == choice:
            return super().rebudgeted(books, view, epsilon)
        total = self.total(view)
        step = self._stepped(view, total, after)
        before, now = self.menu.filters(choice).accounts, self.menu.filters(after).accounts
        breaks = before and now and before.hold(total.account) and not now.hold(total.account)
        if breaks and not step.is_within(epsilon):
            raise Conflict(
                f"at epsilon {epsilon!r} the local deltas of rounds would cost more than the account of delta"
                " that is set aside for them: the budget cannot be raised so far"
            )
        return step

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """See `Policy`."""
        return self.filters(view).readings(self.total(view))

    def delta_accounts(self, view: CohortView) -> AccountsReading | None:
        """See `Policy`."""
        return self.filters(view).accounts_reading(self.total(view))

    def composition(self, books: Books, view: CohortView) -> Spending:
        """See `Policy`."""
        return books.certify(view.held, delta=view.cohort.delta_budget)

    def filters(self, view: CohortView) -> FilterSet:
        """Return the filters in force."""
        return self._filters(view, self.choice(view))

    def filters_for(
        self, books: Books, view: CohortView, accounted: ShuffledRound
    ) -> tuple[FilterSet, Charge]:
        """Return the filters that decide on a round, and what they were charged before it.

        The first round of a cohort chooses the filters, as its admission does.
        """
        choice, total, _ = self._chosen(books, view, accounted)
        return self._filters(view, choice), total

    def choice(self, view: CohortView) -> Choice | None:
        """Return what the first admitted round chose, by the last entry; raises Damaged."""
        stated = standing_of(view.details, self.digest).get("choice")
        return read_once(view, "choice", stated, lambda: choice_made(view.details, self.digest))

    def total(self, view: CohortView) -> Charge:
        """Return what the cohort's rounds were charged so far, by its last entry; raises Damaged."""
        stated = standing_of(view.details, self.digest).get("charged")
        return read_once(view, "charged", stated, lambda: total_charged(view.details, self.digest))

    def _chosen(
        self, books: Books, view: CohortView, accounted: ShuffledRound
    ) -> tuple[Choice | None, Charge, dict[str, Any]]:
        """Return the choice in force and the total under it, and what the entry says where it chooses."""
        choice = self.choice(view)
        if choice is not None or not self.menu.needs_choice:
            return choice, self.total(view), {}
        key = (self.digest, accounted, view.cohort.epsilon_budget)
        choice = books.choices.get(key)
        if choice is None:
            choice = self.menu.choose(books, accounted, epsilon=view.cohort.epsilon_budget)
            books.choices[key] = choice
        return choice, self._filters(view, choice).nothing(), {"choice": choice.to_mapping()}

    def _filters(self, view: CohortView, choice: Choice | None) -> FilterSet:
        return read_once(view, "filters", choice, lambda: self.menu.filters(choice))

    def _is_chosen(self, view: CohortView) -> bool:
        return self.choice(view) is not None or not self.menu.needs_choice

    def _stepped(self, view: CohortView, total: Charge, choice: Choice | None, *, rounds: int = 0) -> Step:
        readings = self._filters(view, choice).readings(total)
        delta = view.cohort.delta_budget
        spent = spending_of(readings, rounds=view.spent.rounds + rounds, delta=delta)
        return Step(spent=spent, details=self._standing(view, total, choice))

    def _standing(self, view: CohortView, total: Charge, choice: Choice | None) -> dict[str, Any]:
        chosen = {"choice": spell_once(view, "choice", choice, choice.to_mapping)} if choice else {}
        charged = spell_once(view, "charged", total, total.to_mapping)
        return {"standing": {"rules": self.digest, "charged": charged, **chosen}}


def total_charged(details: Mapping[str, Any], rules: str) -> Charge:
    """Return the total that an entry's details carry, if they name these rules; raises Damaged."""
    try:
        return Charge.from_mapping(standing_of(details, rules)["charged"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the last entry does not say what was charged: {error}") from error


def choice_made(details: Mapping[str, Any], rules: str) -> Choice | None:
    """Return the choice that an entry's standing carries, if one was made; raises Damaged."""
    chosen = standing_of(details, rules).get("choice")
    try:
        return None if chosen is None else Choice.from_mapping(chosen)
    except (AttributeError, InvalidParameter) as error:
        raise Damaged(f"the last entry does not say which filters were chosen: {error}") from error


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
