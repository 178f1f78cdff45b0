"""Policy `plan`: slots composed before the first round; every entry carries which of them are taken."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting import ShuffledRound, fits
from ledger.budgets import POLICY_PLAN
from ledger.errors import Damaged
from ledger.policy import ASSUMES, Books, Policy, SlotReading, Step, changed, rules_digest, standing_of
from ledger.rows import CohortView


@dataclass(frozen=True, kw_only=True)
class PlanPolicy(Policy):
    """Slots declared and composed before the first round; a round takes a free one that dominates it."""

    slots_declared: tuple[tuple[ShuffledRound, int], ...]
    epsilon_upper: float  # of the whole plan, at the budget's delta
    epsilon_lower: float

    decided_by = f"the composition of the whole plan, made before its first round; {ASSUMES[POLICY_PLAN]}"

    @classmethod
    def composed(cls, books: Books, plan: Mapping[ShuffledRound, int], *, delta: float) -> PlanPolicy:
        """Return the policy of a plan; raises InvalidParameter, LedgerError when it cannot be composed."""
        whole = books.certify(plan, delta=delta)
        bounds = {"epsilon_upper": whole.epsilon_upper, "epsilon_lower": whole.epsilon_lower}
        return cls(slots_declared=tuple(plan.items()), **bounds)

    @classmethod
    def from_rules(cls, rules: Mapping[str, Any]) -> PlanPolicy:
        """Return the policy that the first entry's rules describe."""
        slots = tuple((ShuffledRound.from_mapping(one["round"]), int(one["count"])) for one in rules["slots"])
        return cls(
            slots_declared=slots, epsilon_upper=rules["epsilon_upper"], epsilon_lower=rules["epsilon_lower"]
        )

    @functools.cached_property
    def rules(self) -> dict[str, Any]:
        """What the first entry says of the plan."""
        return {
            "slots": [{"round": one.to_mapping(), "count": count} for one, count in self.slots_declared],
            "epsilon_upper": self.epsilon_upper,
            "epsilon_lower": self.epsilon_lower,
        }

    @functools.cached_property
    def digest(self) -> str:
        """How entries name these rules."""
        return rules_digest(self.rules)

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        nothing = (0,) * len(self.slots_declared)
        return {"rules": self.rules, **self.standing(nothing, self.epsilon_upper)}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return self.standing(self.claimed(view), self.promised(view))

    def slots(self, view: CohortView) -> tuple[SlotReading, ...]:
        """See `Policy`."""
        pairs = zip(self.slots_declared, self.claimed(view), strict=True)
        return tuple(SlotReading(round=one, count=count, claimed=claimed) for (one, count), claimed in pairs)

    def promised(self, view: CohortView) -> float:
        """See `Policy`: the composition of the whole plan, with the truth where a round was settled."""
        standing_of(view.details, self.digest)
        return float(view.details["standing"]["promised_epsilon_upper"])

    def accounted(self, view: CohortView, described: ShuffledRound) -> ShuffledRound | None:
        """See `Policy`: the slot that is the round itself, else the first free one that dominates it."""
        free = [slot.round for slot in self.slots(view) if slot.claimed < slot.count]
        if described in free:
            return described
        return next((slot for slot in free if fits(described, slot)), None)

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        slot = self._position(accounted)
        claimed = self._moved(view, slot, 1)
        step = self._stepped(books, view, {accounted: 1}, (claimed, self.promised(view)))
        return dataclasses.replace(step, details={"slot": slot, **step.details})

    def replacing(
        self, books: Books, view: CohortView, admitted: Mapping[str, Any], after: ShuffledRound | None
    ) -> Step:
        """See `Policy`. What released nothing frees its slot; the truth takes a slot's place in the whole."""
        before, slot = ShuffledRound.from_mapping(admitted["accounted"]), int(admitted["slot"])
        promised = self.promised(view)
        if after is None:
            return self._stepped(books, view, {before: -1}, (self._moved(view, slot, -1), promised))
        if before == after:
            return Step(spent=view.spent, details=self.unchanged(view), promised_epsilon_upper=promised)
        changes = {before: -1, after: 1}
        whole = books.certify(changed(self.whole(view), changes), delta=view.cohort.delta_budget)
        return self._stepped(books, view, changes, (self.claimed(view), whole.epsilon_upper))

    def claimed(self, view: CohortView) -> tuple[int, ...]:
        """Return how many of each slot are taken, by the cohort's last entry; raises Damaged."""
        claimed = standing_of(view.details, self.digest).get("claimed")
        if not isinstance(claimed, list | tuple) or len(claimed) != len(self.slots_declared):
            raise Damaged("the last entry does not say which slots are taken")
        return tuple(int(count) for count in claimed)

    def whole(self, view: CohortView) -> dict[ShuffledRound, int]:
        """Return everything that is promised: what is held, and the slots that are free."""
        free = {slot.round: slot.count - slot.claimed for slot in self.slots(view)}
        return changed(view.held, free)

    def standing(self, claimed: tuple[int, ...], promised: float) -> dict[str, Any]:
        """Return what every entry says of the plan."""
        standing = {"rules": self.digest, "claimed": list(claimed), "promised_epsilon_upper": promised}
        return {"standing": standing}

    def _position(self, slot: ShuffledRound) -> int:
        return next(i for i, (one, _) in enumerate(self.slots_declared) if one == slot)

    def _moved(self, view: CohortView, slot: int, by: int) -> tuple[int, ...]:
        return tuple(count + by * (i == slot) for i, count in enumerate(self.claimed(view)))

    def _stepped(
        self,
        books: Books,
        view: CohortView,
        changes: Mapping[ShuffledRound, int],
        after: tuple[tuple[int, ...], float],
    ) -> Step:
        claimed, promised = after
        spent = books.certify(changed(view.held, changes), delta=view.cohort.delta_budget)
        # What is held is a part of the whole: the whole's bound is one for it too.
        upper = min(spent.epsilon_upper, promised)
        spent = dataclasses.replace(spent, epsilon_upper=upper, epsilon_lower=min(spent.epsilon_lower, upper))
        return Step(
            spent=spent,
            details=self.standing(claimed, promised),
            promised_epsilon_upper=promised,
        )
