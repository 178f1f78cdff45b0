"""Follows filters through their cohort's chain: what rounds were charged in them, and which limits a budget
raised."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self

from shuffle_ledger.accounting import (
    AccountsReading,
    Charge,
    FilterReading,
    FilterSet,
    RaisedLimits,
    ShuffledRound,
    exact_text,
    lower_text,
)
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, limits_raised, spending_of, total_charged
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, Spending

if TYPE_CHECKING:
    from shuffle_ledger.ledger.verification.policy_trail import ChargeSource

_ROUND_OFF = Fraction(1, 2**30)  # of a share of delta, on another computer
# Charges are upper bounds. A ledger's precision is at worst 0.1, and its charges are then too large by about
# as much. That is sound; a larger excess is worth a note.
DEARER_MAX = 0.1


@dataclass
class AdaptiveTrail:
    """The state of a cohort's filters while a chain is read from its beginning."""

    policy: AdaptivePolicy
    total: Charge
    raised: RaisedLimits | None = None  # the limits in force, once the budget was raised
    _stated: list[tuple[ShuffledRound, Charge]] = field(default_factory=list)  # by the last entry followed
    _taken: Charge | None = None  # by the round of the last entry followed
    _charges: dict[str, Charge] = field(default_factory=dict)  # of rounds admitted and not closed
    _same: dict[Charge, Charge] = field(default_factory=dict)  # rounds of one kind share their charge
    _is_unbounded: bool = False  # the last entry charges as everything what it accounts as a round

    @classmethod
    def opened(cls, policy: AdaptivePolicy) -> Self:
        """Return the state of a chain that has no entries."""
        return cls(policy=policy, total=policy.rules.nothing())

    @classmethod
    def resumed(cls, policy: AdaptivePolicy, last: EntryBody) -> Self:
        """Return the state after `last`, of a chain that was verified up to it; rounds must be recalled."""
        total = total_charged(last.details, policy.digest)
        return cls(policy=policy, total=total, raised=limits_raised(last.details, policy.digest))

    def recall(self, body: EntryBody) -> None:
        """Take notice of what an entry, verified before, says of its round; entries of a round in order."""
        if body.kind is EntryKind.VOIDED:
            self._charges.pop(str(body.round_id), None)
        elif body.kind is not EntryKind.REFUSED and "charge" in body.details:
            self._charges[str(body.round_id)] = Charge.from_mapping(body.details["charge"])

    def follow_opening(self, body: EntryBody) -> Iterator[str]:
        """Yield the errors of the chain's first entry."""
        if total_charged(body.details, self.policy.digest) != self.total:
            yield "it opens a cohort that has already spent something"
        rules = self.policy.rules
        if not sum(map(Fraction, rules.shares())) <= Fraction(body.delta_budget):
            yield "the filters' shares are more than the budget's delta"
        part = Fraction(self.policy.approximate_share) * Fraction(body.delta_budget) / 2
        if not all(abs(Fraction(each) - part) <= part * _ROUND_OFF for each in rules.shares()[-2:]):
            yield "its accounts have another share of delta than it says"
        if rules.rounds_per_user != body.details.get("rounds_per_user"):
            yield "its filters count another number of rounds for each user than it says"
        if rules.accounts.epsilon < body.details.get("ceiling", body.epsilon_budget):
            yield "it judges the slack of rounds at a smaller epsilon than the budget's"

    def follow(self, body: EntryBody, *, frozen: bool) -> Iterator[str]:
        """Apply the next entry, and yield its errors.

        Args:
            body: the entry.
            frozen: whether the cohort is frozen: its spending is then unknown, and a release charges nothing.
        """
        self._stated = []
        self._is_unbounded = body.kind is EntryKind.INCIDENT and bool(body.details["chosen_after"])
        if body.kind in CORRECTED_OR_INCIDENT and ("charge" in body.details) == frozen:
            yield "it charges a release although the cohort is frozen, or charges nothing although it is not"
        yield from self._follow_raise(body)
        filters, before = self.filters, self.total
        after = self._after(body, filters, before)
        self.total = self.total if body.kind is EntryKind.REFUSED else after
        if self._taken is not None and self._taken != Charge.from_mapping(body.details["charge"]):
            yield "what it says its round takes does not follow from its costs and from what is left"
        if total_charged(body.details, self.policy.digest) != self.total:
            yield "what it says was charged altogether does not follow from the charges before it"
        if frozen:
            return
        yield from self._compare("what is spent", body.spent, (filters, self.total), body.spent.rounds)
        if body.kind is EntryKind.REFUSED and body.details["requested"] is not None:
            requested = Spending(**body.details["requested"])
            wanted = (filters, filters.after(before, Charge.from_mapping(body.details["charge"])))
            yield from self._compare("what was requested", requested, wanted, body.spent.rounds + 1)

    def readings(self) -> tuple[FilterReading, ...]:
        """Return what each filter says after the last entry."""
        return self.filters.readings(self.total)

    def delta_accounts(self) -> AccountsReading:
        """Return what approximate rounds used of delta by the last entry."""
        return self.filters.accounts_reading(self.total)

    def rounds_of_one_user(self) -> int | None:
        """Return in how many of the rounds so far one user takes part at most; None without a limit."""
        return self.filters.rounds_of_one_user(self.total)

    def shares(self) -> dict[str, float]:
        """Return the shares of delta of the filters that the last entry was decided by, by their names."""
        rules = self.policy.rules
        return {one.name: one.delta for one in rules.readings(rules.nothing())}

    def restates(self, body: EntryBody) -> bool:
        """Returns whether the next entry may state a new reading of the spending, although it admits nothing.

        A larger budget raises the limit at which the sliding reserve is read.
        """
        return body.kind is EntryKind.BUDGET_CHANGED

    def recompute(self, books: ChargeSource, coverage: Coverage) -> Iterator[str]:
        """Prove anew what the last entry states of charges; yield what cannot be proven."""
        filters = self.filters
        for accounted, charge in self._stated:
            books.charge(accounted, filters)  # from the stored privacy loss, if there is one
            if not coverage.covers(accounted, filters, charge):
                yield (
                    "the charge it states is too small: nothing proves that it covers a round of its"
                    f" parameters, at precisions down to {exact_text(min(coverage.precisions))}"
                )

    def dearer(self, books: ChargeSource) -> Iterator[str]:
        """Yield which charges of the last entry are more than its rounds need: sound, and a waste."""
        if self._is_unbounded:
            return
        for accounted, charge in self._stated:
            share = _dearer(charge, books.charge(accounted, self.filters))
            if share > DEARER_MAX:
                more = lower_text(100 * share, digits=3)
                yield f"the charge it states is {more} % more than its round needs: sound, and a waste"

    def _compare(
        self, subject: str, stated: Spending, charged: tuple[FilterSet, Charge], rounds: int
    ) -> Iterator[str]:
        filters, total = charged
        readings = filters.readings(total)
        again = spending_of(readings, rounds=rounds, delta=stated.delta)
        # What decides is the filter that reads least; how little another one might is no excuse.
        least = min(readings, key=lambda reading: reading.epsilon_upper)
        enough = rounds == 0 or least.epsilon_lower <= stated.epsilon_upper
        if rounds and math.isinf(least.epsilon_upper):
            enough = math.isinf(stated.epsilon_upper)
        if not enough or again.epsilon_upper < stated.epsilon_lower:
            yield (
                f"it says epsilon of {subject} is up to {exact_text(stated.epsilon_upper)}; for its charges"
                f" the filters say {exact_text(again.epsilon_upper)}"
            )

    @property
    def filters(self) -> FilterSet:
        """The filters in force after the last entry."""
        return self.policy.rules.under(self.raised)

    def _follow_raise(self, body: EntryBody) -> Iterator[str]:
        """Keep which limits are in force; only another budget changes them."""
        stated = limits_raised(body.details, self.policy.digest)
        if body.kind is EntryKind.BUDGET_CHANGED:
            self.raised = _restated(self.policy.rules, self.raised, stated, body.epsilon_budget)
        if stated != self.raised:
            yield "what it says of limits that were raised does not follow from the entries before it"

    def _after(self, body: EntryBody, filters: FilterSet, total: Charge) -> Charge:
        """Returns the total charge after an entry, and keeps the charge of its round for the stated costs."""
        details, round_id = body.details, str(body.round_id)
        self._taken = None
        if body.kind is EntryKind.VOIDED:
            return filters.given_back(total, self._charges.pop(round_id))
        if "charge" not in details:
            return total
        cost = Charge.from_mapping(details["charge"]).cost
        if body.kind in (EntryKind.SETTLED, EntryKind.CORRECTED):
            self._taken = before = self._charges[round_id]
            if details["accounted"] != details["accounted_before"]:
                self._stated = [(_round(details), cost)]
                self._taken = filters.taken_instead(total, before, cost)
            self._charges[round_id] = self._same.setdefault(self._taken, self._taken)
            return filters.after_instead(total, before, self._taken)
        self._stated = [(_round(details), cost)]
        if body.kind is EntryKind.INCIDENT:
            self._taken = filters.taken_instead(total, filters.nothing(), cost)
        else:
            self._taken = filters.taken(total, cost)
        if body.kind is EntryKind.REFUSED:
            return total
        self._charges[round_id] = self._same.setdefault(self._taken, self._taken)
        return filters.after(total, self._taken)


def _round(details: Mapping[str, Any]) -> ShuffledRound:
    return ShuffledRound.from_mapping(details["accounted"])


def _restated(
    rules: FilterSet, before: RaisedLimits | None, stated: RaisedLimits | None, epsilon: float
) -> RaisedLimits | None:
    """Return the limits after another budget: the price of slack follows from it, and the sliding limit may
    be stated, if it is no less than before. A limit that is too large shows where it is read."""
    now = rules.under(before)
    limit, offered = now.sliding_limit, rules.under(stated).sliding_limit
    if limit is not None and offered is not None:
        limit = max(limit, offered)
    priced = now.accounts.at(epsilon).epsilon
    if (limit, priced) == (rules.sliding_limit, rules.accounts.epsilon):
        return None
    return RaisedLimits(sliding_limit=limit, slack_epsilon=priced)


def _dearer(stated: Charge, again: Charge) -> float:
    """By what share of it a charge is larger than another, where it is most."""
    pairs = zip((*stated.gaussian, *stated.renyi), (*again.gaussian, *again.renyi), strict=True)
    return max(float(ours / theirs) - 1 for ours, theirs in pairs)
