"""Follows a plan through its cohort's chain: which slots are taken, and how much the whole plan costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from shuffle_ledger.accounting import ShuffledRound, exact_text, fits, slot_for
from shuffle_ledger.ledger.decisions.truths import truth_of
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.policies.base import IN_CLEAR
from shuffle_ledger.ledger.policies.registry import PlanPolicy, standing_of
from shuffle_ledger.ledger.values.entries import CORRECTED_OR_INCIDENT, EntryBody, EntryKind

if TYPE_CHECKING:
    from shuffle_ledger.ledger.verification.policy_trail import ChargeSource


@dataclass
class PlanTrail:
    """The plan's state while a chain is read from its beginning."""

    policy: PlanPolicy
    _claimed: list[int] = field(default_factory=list)  # of each slot
    _unplaced: int = 0  # released rounds that no slot covers
    _claims: dict[str, int | None] = field(default_factory=dict)  # of each round; None: nothing admitted it
    _stands: dict[str, int | None] = field(default_factory=dict)  # the slot that covers it now, if one does
    _declared: dict[str, ShuffledRound] = field(default_factory=dict)  # open rounds, as last recorded
    _stated_promise: float | None = None
    _promise: tuple[float, float] | None = None  # to be computed again, and at which delta

    def __post_init__(self) -> None:
        """Begin with the plan as it was declared."""
        self._claimed = [0] * len(self.policy.slots_declared)

    @classmethod
    def resumed(cls, policy: PlanPolicy, last: EntryBody) -> Self:
        """Return the state after `last`, of a chain that was verified up to it; rounds must be recalled."""
        trail, standing = cls(policy=policy), standing_of(last.details, policy.digest)
        trail._claimed = list(standing["claimed"])
        trail._unplaced = standing.get("unplaced", 0)
        trail._stated_promise = float(standing["promised_epsilon_upper"])
        return trail

    def recall(self, body: EntryBody) -> None:
        """Take notice of what an entry, verified before, says of its round; entries of a round in order."""
        round_id, details = str(body.round_id), body.details
        if body.kind is EntryKind.ADMITTED:
            self._declared[round_id] = ShuffledRound.from_mapping(details["request"]["round"])
        elif body.kind is EntryKind.VOIDED:
            self._stands.pop(round_id, None)
            return
        elif body.kind is EntryKind.SETTLED:
            self._declared.pop(round_id, None)
        elif body.kind is not EntryKind.REFUSED and round_id in self._declared:
            said = details["round"]
            self._declared[round_id] = IN_CLEAR if said is None else ShuffledRound.from_mapping(said)
        if body.kind is not EntryKind.REFUSED and "slot" in details:
            self._stands[round_id] = details["slot"]
            first = details["slot"] if body.kind is EntryKind.ADMITTED else None
            self._claims.setdefault(round_id, first)

    def follow(self, body: EntryBody, *, frozen: bool) -> Iterator[str]:
        """Applies the next entry, and yields its errors.

        Args:
            body: the entry.
            frozen: whether the cohort is frozen: corrections and incidents then change nothing.
        """
        round_id, before, self._promise = str(body.round_id), self._stated_promise, None
        if body.kind is EntryKind.ADMITTED:
            yield from self._admit(body)
        elif body.kind is EntryKind.VOIDED:
            self._leave(round_id)
        elif body.kind is EntryKind.SETTLED:
            truth = truth_of(self._declared.pop(round_id), body.details["reports"])
            yield from self._place(body, truth)
        elif body.kind in CORRECTED_OR_INCIDENT and not frozen:
            yield from self._tell(body)
        standing = standing_of(body.details, self.policy.digest)
        if (tuple(standing["claimed"]), standing.get("unplaced", 0)) != (
            tuple(self._claimed),
            self._unplaced,
        ):
            yield "what it says of the plan's slots does not follow from the entries before it"
        promised = self._stated_promise = float(standing["promised_epsilon_upper"])
        if before is None:
            self._promise = (promised, body.delta_budget)
        elif promised != before:
            yield "it changes what the whole plan costs, although no round turned out otherwise"

    def compare_spent(self, body: EntryBody) -> Iterator[str]:
        """Yields the errors of the spending that the last followed entry states."""
        if not self._unplaced and body.spent.epsilon_upper > float(self._stated_promise or 0.0):
            yield "it says more is spent than the whole plan costs"

    def accounts(self, body: EntryBody, described: ShuffledRound, accounted: ShuffledRound) -> bool:
        """Return whether a decided round is accounted as the slot that its entry names."""
        declared = [slot for slot, _ in self.policy.slots_declared]
        slot = body.details["slot"]
        return 0 <= slot < len(declared) and declared[slot] == accounted and fits(described, accounted)

    def recompute(self, books: ChargeSource) -> Iterator[str]:
        """Prove anew what the last entry states of the whole plan; yield what cannot be proven."""
        if self._promise is None:
            return
        promised, delta = self._promise
        again = books.certify(dict(self.policy.slots_declared), delta=delta)
        if promised < again.epsilon_lower:
            yield (
                f"it says the whole plan costs up to {exact_text(promised)}; computed again it is at least"
                f" {exact_text(again.epsilon_lower)}"
            )

    def _admit(self, body: EntryBody) -> Iterator[str]:
        slot, round_id = int(body.details["slot"]), str(body.round_id)
        if slot >= len(self._claimed):
            raise Damaged("it takes a slot that the plan does not have")
        self._claims[round_id] = self._stands[round_id] = slot
        self._declared[round_id] = ShuffledRound.from_mapping(body.details["request"]["round"])
        self._claimed[slot] += 1
        if self._claimed[slot] > self.policy.slots_declared[slot][1]:
            yield "it takes a slot of the plan that was not free"

    def _leave(self, round_id: str) -> None:
        """Free the slot that a round stands in; one that no slot covers leaves those."""
        slot = self._stands.pop(round_id)
        if slot is None:
            self._unplaced -= 1
        else:
            self._claimed[slot] -= 1

    def _place(self, body: EntryBody, truth: ShuffledRound) -> Iterator[str]:
        """Follows the slot of a released round, from the slot it claimed first and its stated parameters."""
        round_id = str(body.round_id)
        if round_id in self._stands:
            self._leave(round_id)
        slot = self._claims.setdefault(round_id, None)
        stands = None
        if not body.details.get("chosen_after"):  # else it may have had a part in the plan
            stands = self.policy.standing_in(tuple(self._claimed), slot, truth)
        self._stands[round_id] = stands
        if stands is None:
            self._unplaced += 1
            accounted = slot_for(truth)
        else:
            self._claimed[stands] += 1
            accounted = self.policy.slots_declared[stands][0]
        if (body.details.get("slot", ...), _accounted(body.details)) != (stands, accounted):
            yield "what it accounts is not the slot of the plan that its reports name"

    def _tell(self, body: EntryBody) -> Iterator[str]:
        """Follow what a correction or an incident says was released."""
        round_id, said = str(body.round_id), body.details["round"]
        truth = IN_CLEAR if said is None else ShuffledRound.from_mapping(said)
        if round_id in self._declared:
            self._declared[round_id] = truth
        yield from self._place(body, truth)


def promised_in(details: Mapping[str, Any]) -> float:
    """Return the epsilon that an entry promises of its plan: none that is finite once a round left it."""
    standing = details["standing"]
    return math.inf if standing.get("unplaced") else float(standing["promised_epsilon_upper"])


def _accounted(details: Mapping[str, Any]) -> ShuffledRound:
    return ShuffledRound.from_mapping(details["accounted"])
