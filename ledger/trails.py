"""What a chain says about its cohort's policy, entry by entry: do the standings follow from one another?"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from accounting import (
    Charge,
    Choice,
    FilterReading,
    FilterSet,
    RepetitionFilter,
    ShuffledRound,
    fits,
    slot_for,
)
from accounting.coverage import Coverage
from ledger.budgets import POLICY_FIXED
from ledger.entries import EntryBody, EntryKind, Spending
from ledger.policies import (
    AdaptivePolicy,
    FixedPolicy,
    PlanPolicy,
    Policy,
    choice_made,
    policy_from,
    spending_of,
    standing_of,
    total_charged,
)

# Charges are bounds from above. A ledger may be set to a precision of 0.1 at worst, and its charges are then
# dearer than needed by about as much: that costs nobody his privacy, but more than this is worth a note.
DEARER_MAX = 0.1
# Another precision may choose other filters: they admit up to this share fewer of the first kind, or one.
CHOICE_BELOW_MAX = 0.15


class ChargeSource(Protocol):
    """Computes what rounds cost filters: from stored privacy losses, or from nothing but parameters."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        """Return what a round costs each filter."""

    def certify(self, held: Mapping[ShuffledRound, int], *, delta: float) -> Spending:
        """Return the certified composition of rounds."""


@dataclass
class Trail:
    """The policy's state while a chain is read from its beginning."""

    policy: Policy = field(default_factory=FixedPolicy)
    frozen: bool = False  # what is spent is unknown from here on
    total: Charge | None = None  # None: nothing is charged under this policy
    choice: Choice | None = None  # which filters are in force, once the first admitted round chose them
    stated: list[tuple[ShuffledRound, Charge]] = field(default_factory=list)  # by the last entry followed
    # By the last entry, where it states them: the choice it made, for which round and budget, and what is
    # certified of repetitions.
    _offered: tuple[Choice, ShuffledRound, float] | None = None
    _certified: RepetitionFilter | None = None
    _taken: Charge | None = None  # by the round of the last entry followed
    _charges: dict[str, Charge] = field(default_factory=dict)  # of rounds admitted and not closed
    _same: dict[Charge, Charge] = field(default_factory=dict)  # rounds of one kind share their charge
    # Of a plan: which slots are taken, by whom, what all of it has become, and what that is said to cost.
    _claimed: list[int] = field(default_factory=list)
    _slots: dict[str, int] = field(default_factory=dict)
    _whole: Counter[ShuffledRound] = field(default_factory=Counter)
    _stated_promise: float | None = None
    _promise: tuple[float, float] | None = None  # to be computed again, and at which delta

    def follow(self, body: EntryBody) -> Iterator[str]:
        """Apply the next entry, and yield what is wrong with it."""
        self.stated = []
        self.frozen = self.frozen or body.kind is EntryKind.FROZEN
        if body.kind is EntryKind.OPENED:
            self.policy = policy_from(str(body.details.get("policy", POLICY_FIXED)), body.to_bytes())
            yield from self._follow_opening(body)
            return
        if isinstance(self.policy, PlanPolicy):
            yield from self._follow_plan(body)
            return
        if not isinstance(self.policy, AdaptivePolicy) or self.total is None:
            if "standing" in body.details:
                yield "it carries a standing, which its cohort's policy does not have"
            return
        yield from self._follow_choice(body, self.policy)
        filters = self._deciding(self.policy)
        before = filters.nothing() if self._offered else self.total
        after = self._after(body, filters, before)
        self.total = expected = self.total if body.kind is EntryKind.REFUSED else after
        if self._taken is not None and self._taken != Charge.from_mapping(body.details["charge"]):
            yield "what it says its round takes does not follow from its costs and from what is left"
        if total_charged(body.details, self.policy.digest) != expected:
            yield "what it says was charged altogether does not follow from the charges before it"
        spent = (self.policy.menu.filters(self.choice), expected)
        yield from self._compare("what is spent", body.spent, spent, body.spent.rounds)
        if body.kind is EntryKind.REFUSED and body.details["requested"] is not None:
            requested = Spending(**body.details["requested"])
            wanted = (filters, before + Charge.from_mapping(body.details["charge"]))
            yield from self._compare("what was requested", requested, wanted, body.spent.rounds + 1)

    def accounts(
        self, body: EntryBody, described: ShuffledRound, accounted: ShuffledRound, *, numerical_policy: str
    ) -> bool:
        """Return whether the policy accounts a decided round as this one, by a numerical policy's slots."""
        if not isinstance(self.policy, PlanPolicy) or body.kind is not EntryKind.ADMITTED:
            return slot_for(described, numerical_policy=numerical_policy) == accounted
        declared = [slot for slot, _ in self.policy.slots_declared]
        slot = body.details["slot"]
        return 0 <= slot < len(declared) and declared[slot] == accounted and fits(described, accounted)

    def promised(self, body: EntryBody) -> float:
        """Return the epsilon that the entry must keep within the budget."""
        if isinstance(self.policy, PlanPolicy):
            return float(body.details["standing"]["promised_epsilon_upper"])
        return body.spent.epsilon_upper

    @property
    def filtered(self) -> bool:
        """Whether filters decide, so that the numbers are theirs and not the composition's."""
        return self.total is not None

    def readings(self) -> tuple[FilterReading, ...]:
        """Return what each filter says after the last entry, if filters decide."""
        if not isinstance(self.policy, AdaptivePolicy) or self.total is None:
            return ()
        return self.policy.menu.filters(self.choice).readings(self.total)

    def shares(self) -> dict[str, float]:
        """Return the shares of delta of the filters that the last entry was decided by, by their names."""
        if not isinstance(self.policy, AdaptivePolicy) or self.total is None:
            return {}
        filters = self._deciding(self.policy)
        return {one.name: one.delta for one in filters.readings(filters.nothing())}

    def restates(self, body: EntryBody) -> bool:
        """Return whether the next entry may read what is spent anew, although it admits nothing.

        Another budget certifies another number of repetitions, and between two such numbers the smaller
        epsilon may be known; and a larger one raises the limit at which the sliding reserve is read.
        """
        return self.choice is not None and body.kind is EntryKind.BUDGET_CHANGED

    def recompute(self, books: ChargeSource, coverage: Coverage) -> Iterator[str]:
        """Prove anew what the last entry states of charges and of the plan; yield what cannot be proven."""
        if isinstance(self.policy, PlanPolicy) and self._promise is not None:
            promised, delta = self._promise
            again = books.certify(+self._whole, delta=delta)
            if promised < again.epsilon_lower:
                yield (
                    f"it says the whole plan costs up to {promised:.6g}; computed again it is at least"
                    f" {again.epsilon_lower:.6g}"
                )
        if not isinstance(self.policy, AdaptivePolicy):
            return
        yield from self._recompute_choice(books, self.policy)
        for accounted, charge in self.stated:
            filters = self._deciding(self.policy)
            books.charge(accounted, filters)  # from the stored privacy loss, if there is one
            if not coverage.covers(accounted, filters, charge):
                yield (
                    "the charge it states is too small: nothing proves that it covers a round of its"
                    f" parameters, at precisions down to {coverage.precisions[-1]:.2g}"
                )

    def dearer(self, books: ChargeSource) -> Iterator[str]:
        """Yield which charges of the last entry are more than its rounds need: sound, and a waste."""
        if isinstance(self.policy, AdaptivePolicy):
            for accounted, charge in self.stated:
                share = _dearer(charge, books.charge(accounted, self._deciding(self.policy)))
                if share > DEARER_MAX:
                    yield f"the charge it states is {share:.0%} more than its round needs: sound, and a waste"

    def _compare(
        self, subject: str, stated: Spending, charged: tuple[FilterSet, Charge], rounds: int
    ) -> Iterator[str]:
        if self.frozen:
            return
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
                f"it says epsilon of {subject} is up to {stated.epsilon_upper:.6g}; for its charges the"
                f" filters say {again.epsilon_upper:.6g}"
            )

    def _follow_choice(self, body: EntryBody, policy: AdaptivePolicy) -> Iterator[str]:
        """Keep which filters the first admitted round chose; only another budget certifies other numbers."""
        self._offered = self._certified = None
        details, standing = body.details, choice_made(body.details, policy.digest)
        if self.choice is None and policy.menu.needs_choice and "charge" in details:
            offered = Choice.from_mapping(details["choice"])
            self._offered = (offered, _round(details), body.epsilon_budget)
            self._certified = offered.repetition
            if offered.repetition is not None and offered.repetition.kind != _round(details):
                yield "it counts repetitions of another kind than the round it is about"
            if body.kind is EntryKind.ADMITTED:
                self.choice, self.total = offered, policy.menu.filters(offered).nothing()
        elif "choice" in details:
            yield "it chooses filters, which is for the first admitted round alone"
        if self.restates(body) and self.choice is not None and standing is not None:
            self._certified = standing.repetition
            self.choice = _restated(policy, self.choice, standing)
        if standing != self.choice:
            yield "what it says of the chosen filters does not follow from the entries before it"

    def _deciding(self, policy: AdaptivePolicy) -> FilterSet:
        """Return the filters by which the last entry charged: those it offered, if it did."""
        return policy.menu.filters(self._offered[0] if self._offered else self.choice)

    def _recompute_choice(self, books: ChargeSource, policy: AdaptivePolicy) -> Iterator[str]:
        if self._certified is not None:
            kind, delta = self._certified.kind, self._certified.delta
            for count, epsilon in self._certified.certified:
                again = books.certify({kind: count}, delta=delta)
                if epsilon < again.epsilon_lower:
                    yield (
                        f"it says {count} rounds of one kind cost up to {epsilon:.6g}; computed again it is"
                        f" at least {again.epsilon_lower:.6g}"
                    )
        if self._offered is None:
            return
        offered, kind, epsilon = self._offered
        admitted = []
        for choice in (offered, policy.menu.choose(books, kind, epsilon=epsilon)):
            filters = policy.menu.filters(choice)
            admitted.append(filters.most_alike(books.charge(kind, filters), epsilon=epsilon))
        if admitted[0] < admitted[1] * (1 - CHOICE_BELOW_MAX) - 1:
            yield "the filters it chooses are not those that its round's parameters choose"

    def _follow_plan(self, body: EntryBody) -> Iterator[str]:
        """Count which slots are taken, and keep what the whole plan has become."""
        if not isinstance(self.policy, PlanPolicy):
            return
        details, round_id = body.details, str(body.round_id)
        before, self._promise = self._stated_promise, None
        if body.kind is EntryKind.ADMITTED:
            slot = self._slots[round_id] = int(details["slot"])
            self._claimed[slot] += 1
            if self._claimed[slot] > self.policy.slots_declared[slot][1]:
                yield "it takes a slot of the plan that was not free"
        elif body.kind is EntryKind.VOIDED:
            self._claimed[self._slots.pop(round_id)] -= 1
        elif body.kind is EntryKind.SETTLED and details["accounted"] != details["accounted_before"]:
            self._whole[ShuffledRound.from_mapping(details["accounted_before"])] -= 1
            self._whole[_round(details)] += 1
            before = None
        standing = standing_of(details, self.policy.digest)
        if tuple(standing["claimed"]) != tuple(self._claimed):
            yield "what it says of the plan's slots does not follow from the entries before it"
        promised = self._stated_promise = float(standing["promised_epsilon_upper"])
        if before is None:
            self._promise = (promised, body.delta_budget)
        elif promised != before:
            yield "it changes what the whole plan costs, although no round turned out otherwise"
        if body.spent.epsilon_upper > promised and not self.frozen:
            yield "it says more is spent than the whole plan costs"

    def _follow_opening(self, body: EntryBody) -> Iterator[str]:
        if isinstance(self.policy, PlanPolicy):
            self._whole = Counter(dict(self.policy.slots_declared))
            self._claimed = [0] * len(self.policy.slots_declared)
            yield from self._follow_plan(body)
            if self.promised(body) != self.policy.epsilon_upper:
                yield "it says that the whole plan costs something else than its rules say"
            if not self.policy.epsilon_upper <= body.epsilon_budget:
                yield "it opens a cohort with a plan beyond its budget"
        if not isinstance(self.policy, AdaptivePolicy):
            return
        self.total = self.policy.menu.filters(None).nothing()
        if total_charged(body.details, self.policy.digest) != self.total:
            yield "it opens a cohort that has already spent something"
        for one in self.policy.menu.alternatives:
            if not sum((*one.filters.shares(), one.repetition_delta)) <= body.delta_budget:
                yield "the filters' shares are more than the budget's delta"

    def _after(self, body: EntryBody, filters: FilterSet, total: Charge) -> Charge:
        """Return what is taken after an entry, and keep what its round takes for the costs that it states."""
        details, round_id = body.details, str(body.round_id)
        self._taken = None
        if body.kind is EntryKind.VOIDED:
            return filters.given_back(total, self._charges.pop(round_id))
        if "charge" not in details:
            return total
        cost = Charge.from_mapping(details["charge"]).cost
        if body.kind is EntryKind.SETTLED:
            self._taken = before = self._charges.pop(round_id)
            if details["accounted"] != details["accounted_before"]:
                self.stated = [(_round(details), cost)]
                self._taken = filters.taken_instead(total, before, cost)
            return total - before + self._taken
        self.stated = [(_round(details), cost)]
        self._taken = filters.taken(total, cost)
        if body.kind is EntryKind.REFUSED:
            return total
        self._charges[round_id] = self._same.setdefault(self._taken, self._taken)
        return total + self._taken


def _round(details: Mapping[str, Any]) -> ShuffledRound:
    return ShuffledRound.from_mapping(details["accounted"])


def _restated(policy: AdaptivePolicy, before: Choice, stated: Choice) -> Choice:
    """Return a choice with what another budget may change of it: what is certified, and a limit it raises."""
    repetition = before.repetition
    if repetition is not None and stated.repetition is not None:
        repetition = dataclasses.replace(repetition, certified=stated.repetition.certified)
    after = dataclasses.replace(before, repetition=repetition, sliding_limit=stated.sliding_limit)
    limits = [policy.menu.filters(one).sliding_limit or 0.0 for one in (before, after)]
    return after if limits[0] <= limits[1] else dataclasses.replace(after, sliding_limit=before.sliding_limit)


def _dearer(stated: Charge, again: Charge) -> float:
    """By what share of it a charge is larger than another, where it is most."""
    pairs = zip((*stated.gaussian, *stated.renyi), (*again.gaussian, *again.renyi), strict=True)
    return max(float(ours / theirs) - 1 for ours, theirs in pairs)
