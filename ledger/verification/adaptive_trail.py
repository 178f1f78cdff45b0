"""Follows filters through their cohort's chain: which were chosen, and what rounds were charged in them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from shuffle_ledger.accounting import (
    AccountsReading,
    Charge,
    Choice,
    FilterReading,
    FilterSet,
    RepetitionFilter,
    ShuffledRound,
    charged_as,
    exact_text,
    lower_text,
)
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.policies.registry import AdaptivePolicy, choice_made, spending_of, total_charged
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind, Spending

if TYPE_CHECKING:
    from shuffle_ledger.ledger.verification.policy_trail import ChargeSource

# Charges are upper bounds. A ledger's precision is at worst 0.1, and its charges are then too large by about
# as much. That is sound; a larger excess is worth a note.
DEARER_MAX = 0.1
# Another precision may choose other filters: they admit up to this share fewer of the first kind, or one.
CHOICE_BELOW_MAX = 0.15


@dataclass
class AdaptiveTrail:
    """The state of a cohort's filters while a chain is read from its beginning."""

    policy: AdaptivePolicy
    total: Charge
    choice: Choice | None = None  # which filters are in force, once the first admitted round chose them
    _stated: list[tuple[ShuffledRound, Charge]] = field(default_factory=list)  # by the last entry followed
    # By the last entry, where it states them: the choice it made, for which round and budget, and what is
    # certified of repetitions.
    _offered: tuple[Choice, ShuffledRound, float] | None = None
    _certified: RepetitionFilter | None = None
    _taken: Charge | None = None  # by the round of the last entry followed
    _charges: dict[str, Charge] = field(default_factory=dict)  # of rounds admitted and not closed
    _same: dict[Charge, Charge] = field(default_factory=dict)  # rounds of one kind share their charge
    _is_unbounded: bool = False  # the last entry charges as everything what it accounts as a round

    @classmethod
    def opened(cls, policy: AdaptivePolicy) -> Self:
        """Return the state of a chain that has no entries."""
        return cls(policy=policy, total=policy.menu.filters(None).nothing())

    @classmethod
    def resumed(cls, policy: AdaptivePolicy, last: EntryBody) -> Self:
        """Return the state after `last`, of a chain that was verified up to it; rounds must be recalled."""
        total = total_charged(last.details, policy.digest)
        return cls(policy=policy, total=total, choice=choice_made(last.details, policy.digest))

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
        for one in self.policy.menu.alternatives:
            if not sum((*one.filters.shares(), one.repetition_delta)) <= body.delta_budget:
                yield "the filters' shares are more than the budget's delta"
            if one.filters.rounds_per_user != body.details.get("rounds_per_user"):
                yield "its filters count another number of rounds for each user than it says"
            judged_at = body.details.get("ceiling", body.epsilon_budget)
            if one.filters.accounts and one.filters.accounts.epsilon < judged_at:
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
        yield from self._follow_choice(body)
        filters = self._deciding()
        before = filters.nothing() if self._offered else self.total
        after = self._after(body, filters, before)
        self.total = self.total if body.kind is EntryKind.REFUSED else after
        if self._taken is not None and self._taken != Charge.from_mapping(body.details["charge"]):
            yield "what it says its round takes does not follow from its costs and from what is left"
        if total_charged(body.details, self.policy.digest) != self.total:
            yield "what it says was charged altogether does not follow from the charges before it"
        if frozen:
            return
        spent = (self.policy.menu.filters(self.choice), self.total)
        yield from self._compare("what is spent", body.spent, spent, body.spent.rounds)
        if body.kind is EntryKind.REFUSED and body.details["requested"] is not None:
            requested = Spending(**body.details["requested"])
            wanted = (filters, filters.after(before, Charge.from_mapping(body.details["charge"])))
            yield from self._compare("what was requested", requested, wanted, body.spent.rounds + 1)

    def readings(self) -> tuple[FilterReading, ...]:
        """Return what each filter says after the last entry."""
        return self.policy.menu.filters(self.choice).readings(self.total)

    def delta_accounts(self) -> AccountsReading | None:
        """Return what approximate rounds used of delta by the last entry, if there are accounts of it."""
        return self.policy.menu.filters(self.choice).accounts_reading(self.total)

    def rounds_of_one_user(self) -> int | None:
        """Return in how many of the rounds so far one user takes part at most; None without a limit."""
        return self.policy.menu.filters(self.choice).rounds_of_one_user(self.total)

    def shares(self) -> dict[str, float]:
        """Return the shares of delta of the filters that the last entry was decided by, by their names."""
        filters = self._deciding()
        return {one.name: one.delta for one in filters.readings(filters.nothing())}

    def restates(self, body: EntryBody) -> bool:
        """Returns whether the next entry may state a new reading of the spending, although it admits nothing.

        Another budget certifies another number of repetitions, and between two such numbers the smaller
        epsilon may be known; and a larger one raises the limit at which the sliding reserve is read.
        """
        return self.choice is not None and body.kind is EntryKind.BUDGET_CHANGED

    def recompute(self, books: ChargeSource, coverage: Coverage) -> Iterator[str]:
        """Prove anew what the last entry states of the filters' choice and of charges; yield what cannot be
        proven."""
        yield from self._recompute_choice(books)
        for accounted, charge in self._stated:
            filters = self._deciding()
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
            share = _dearer(charge, books.charge(accounted, self._deciding()))
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

    def _follow_choice(self, body: EntryBody) -> Iterator[str]:
        """Keep which filters the first admitted round chose; only another budget certifies other numbers."""
        policy = self.policy
        self._offered = self._certified = None
        details, standing = body.details, choice_made(body.details, policy.digest)
        if self.choice is None and policy.menu.needs_choice and "charge" in details:
            offered = Choice.from_mapping(details["choice"])
            self._offered = (offered, _round(details), body.epsilon_budget)
            self._certified = offered.repetition
            if offered.repetition is not None and offered.repetition.kind != charged_as(_round(details))[0]:
                yield "it counts repetitions of another kind than the round it is about"
            if policy.menu.accounts_epsilon(offered, body.epsilon_budget) != offered.accounts_epsilon:
                yield "it judges the slack of rounds at a smaller epsilon than the budget's"
            if body.kind is not EntryKind.REFUSED:
                self.choice, self.total = offered, policy.menu.filters(offered).nothing()
        elif "choice" in details:
            yield "it chooses filters, which is for the first round alone"
        if self.restates(body) and self.choice is not None and standing is not None:
            self._certified = standing.repetition
            self.choice = _restated(policy, self.choice, standing, body.epsilon_budget)
        if standing != self.choice:
            yield "what it says of the chosen filters does not follow from the entries before it"

    def _deciding(self) -> FilterSet:
        """Return the filters by which the last entry charged: those it offered, if it did."""
        return self.policy.menu.filters(self._offered[0] if self._offered else self.choice)

    def _recompute_choice(self, books: ChargeSource) -> Iterator[str]:
        policy = self.policy
        if self._certified is not None:
            kind, delta = self._certified.kind, self._certified.delta
            for count, epsilon in self._certified.certified:
                again = books.certify({kind: count}, delta=delta)
                if epsilon < again.epsilon_lower:
                    yield (
                        f"it says {count} rounds of one kind cost up to {exact_text(epsilon)}; computed again"
                        f" it is at least {exact_text(again.epsilon_lower)}"
                    )
        if self._offered is None:
            return
        offered, kind, epsilon = self._offered
        admitted = []
        for choice in (offered, policy.menu.choose(books, kind, epsilon=epsilon)):
            filters = policy.menu.filters(choice)
            admitted.append(filters.most_alike(books.charge(kind, filters), epsilon=epsilon))
        keeps_rule = policy.menu.may_choose(
            books, kind, offered.alternative, epsilon=epsilon, tolerance=CHOICE_BELOW_MAX
        )
        if not keeps_rule or admitted[0] < admitted[1] * (1 - CHOICE_BELOW_MAX) - 1:
            yield "the filters it chooses are not those that its round's parameters choose"

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


def _restated(policy: AdaptivePolicy, before: Choice, stated: Choice, epsilon: float) -> Choice:
    """Return a choice with what another budget may change of it.

    That is what is certified, a limit that it raises, and the epsilon at which slack is judged, which follows
    from the budget.
    """
    repetition = before.repetition
    if repetition is not None and stated.repetition is not None:
        repetition = dataclasses.replace(repetition, certified=stated.repetition.certified)
    after = dataclasses.replace(
        before,
        repetition=repetition,
        sliding_limit=stated.sliding_limit,
        accounts_epsilon=policy.menu.accounts_epsilon(before, epsilon),
    )
    limits = [policy.menu.filters(one).sliding_limit or 0.0 for one in (before, after)]
    return after if limits[0] <= limits[1] else dataclasses.replace(after, sliding_limit=before.sliding_limit)


def _dearer(stated: Charge, again: Charge) -> float:
    """By what share of it a charge is larger than another, where it is most."""
    pairs = zip((*stated.gaussian, *stated.renyi), (*again.gaussian, *again.renyi), strict=True)
    return max(float(ours / theirs) - 1 for ours, theirs in pairs)
