"""What a chain says about its cohort's policy, entry by entry: do the standings follow from one another?

A plan is followed by `plan_trail`, filters by `adaptive_trail`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from shuffle_ledger.accounting import (
    AccountsReading,
    Charge,
    FilterReading,
    FilterSet,
    ShuffledRound,
    fits,
    slot_for,
)
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.policies.registry import (
    AdaptivePolicy,
    PlanPolicy,
    policy_from,
)
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, Spending
from shuffle_ledger.ledger.verification.adaptive_trail import AdaptiveTrail
from shuffle_ledger.ledger.verification.plan_trail import PlanTrail, promised_in


class ChargeSource(Protocol):
    """Computes what rounds cost filters: from stored privacy losses, or from nothing but parameters."""

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        """Return what a round costs each filter."""

    def certify(self, held: Mapping[ShuffledRound, int], *, delta: float) -> Spending:
        """Return the certified composition of rounds."""


@dataclass
class Trail:
    """The policy's state while a chain is read from its beginning."""

    plan: PlanTrail | None = None  # for policy plan
    filters: AdaptiveTrail | None = None  # for policy adaptive
    frozen: bool = False  # the spending is unknown from here on

    @classmethod
    def resumed(cls, opened: EntryBody, last: EntryBody) -> Self:
        """Return the state after `last`, of a chain that was verified up to it.

        What single rounds were charged is not part of it: `recall` each round before an entry about it.
        """
        policy, trail = policy_from(str(opened.details.get("policy")), opened.to_bytes()), cls()
        if isinstance(policy, PlanPolicy):
            trail.plan = PlanTrail.resumed(policy, last)
        elif isinstance(policy, AdaptivePolicy):
            trail.filters = AdaptiveTrail.resumed(policy, last)
        return trail

    def recall(self, body: EntryBody) -> None:
        """Take notice of what an entry, verified before, says of its round; entries of a round in order."""
        if self.plan is not None:
            self.plan.recall(body)
        elif self.filters is not None:
            self.filters.recall(body)

    @property
    def decided_by(self) -> str:
        """Return the sentence of statements about the number that decides; empty before the opening."""
        trail = self.plan or self.filters
        return "" if trail is None else trail.policy.decided_by

    @property
    def is_resumable(self) -> bool:
        """Whether the last entry and the opening say all that `resumed` needs."""
        return not self.frozen

    def follow(self, body: EntryBody) -> Iterator[str]:
        """Applies the next entry, and yields its errors."""
        self.frozen = self.frozen or body.kind is EntryKind.FROZEN
        if body.kind is EntryKind.OPENED:
            yield from self._follow_opening(body)
        elif self.plan is not None:
            yield from self._follow_plan(body, self.plan)
        elif self.filters is not None:
            yield from self.filters.follow(body, frozen=self.frozen)

    def accounts(self, body: EntryBody, described: ShuffledRound, accounted: ShuffledRound) -> bool:
        """Return whether the policy accounts a decided round as this one."""
        if self.plan is None or "slot" not in body.details:
            return slot_for(described) == accounted
        return self.plan.accounts(body, described, accounted)

    def settles(self, truth: ShuffledRound, accounted: ShuffledRound) -> bool:
        """Return whether the next entry, a settlement, accounts what its reports say; plans place it."""
        return truth == accounted or self.plan is not None

    def corrects(self, before: ShuffledRound, truth: ShuffledRound, accounted: ShuffledRound) -> bool:
        """Return whether the next entry, a correction, accounts the truth it states; plans place it."""
        kept = before if fits(truth, before) else slot_for(truth)
        return kept == accounted or self.plan is not None

    def tells(self, truth: ShuffledRound, accounted: ShuffledRound) -> bool:
        """Return whether the next entry, an incident, accounts the release it states; plans place it."""
        return slot_for(truth) == accounted or self.plan is not None

    def promised(self, body: EntryBody) -> float:
        """Return the epsilon that the entry must keep within the budget."""
        return body.spent.epsilon_upper if self.plan is None else promised_in(body.details)

    @property
    def filtered(self) -> bool:
        """Whether filters decide, so that the numbers are theirs and not the composition's."""
        return self.filters is not None

    def readings(self) -> tuple[FilterReading, ...]:
        """Return what each filter says after the last entry, if filters decide."""
        return () if self.filters is None else self.filters.readings()

    def delta_accounts(self) -> AccountsReading | None:
        """Return what approximate rounds used of delta by the last entry, if there are accounts of it."""
        return None if self.filters is None else self.filters.delta_accounts()

    def rounds_of_one_user(self) -> int | None:
        """Return in how many of the rounds so far one user takes part at most; None without a limit."""
        return None if self.filters is None else self.filters.rounds_of_one_user()

    def shares(self) -> dict[str, float]:
        """Return the shares of delta of the filters that the last entry was decided by, by their names."""
        return {} if self.filters is None else self.filters.shares()

    def restates(self, body: EntryBody) -> bool:
        """Returns whether the next entry may state a new reading of the spending, although it admits nothing;
        see `AdaptiveTrail.restates`."""
        return self.filters is not None and self.filters.restates(body)

    def recompute(self, books: ChargeSource, coverage: Coverage) -> Iterator[str]:
        """Prove anew what the last entry states of charges and of the plan; yield what cannot be proven."""
        if self.plan is not None:
            yield from self.plan.recompute(books)
        elif self.filters is not None:
            yield from self.filters.recompute(books, coverage)

    def dearer(self, books: ChargeSource) -> Iterator[str]:
        """Yield which charges of the last entry are more than its rounds need: sound, and a waste."""
        if self.filters is not None:
            yield from self.filters.dearer(books)

    def _follow_opening(self, body: EntryBody) -> Iterator[str]:
        policy = policy_from(str(body.details.get("policy")), body.to_bytes())
        self.plan = self.filters = None
        if isinstance(policy, PlanPolicy):
            self.plan = PlanTrail(policy=policy)
            yield from self._follow_plan(body, self.plan)
            if self.promised(body) != policy.epsilon_upper:
                yield "it says that the whole plan costs something else than its rules say"
            if not policy.epsilon_upper <= body.epsilon_budget:
                yield "it opens a cohort with a plan beyond its budget"
        elif isinstance(policy, AdaptivePolicy):
            self.filters = AdaptiveTrail.opened(policy)
            yield from self.filters.follow_opening(body)

    def _follow_plan(self, body: EntryBody, plan: PlanTrail) -> Iterator[str]:
        yield from plan.follow(body, frozen=self.frozen)
        if not self.frozen:
            yield from plan.compare_spent(body)
