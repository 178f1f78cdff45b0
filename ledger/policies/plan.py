"""Policy `plan`: slots composed before the first round; every entry carries which of them are taken."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shuffle_ledger.accounting import ShuffledRound, fits, place
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.policies.base import (
    ASSUMES,
    Books,
    Course,
    Policy,
    SlotReading,
    Step,
    changed,
    replaced,
    rules_digest,
    slot_of,
    standing_of,
)
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.requests import POLICY_PLAN, refused_beyond


@dataclass(frozen=True, kw_only=True)
class PlanPolicy(Policy):
    """Slots declared and composed before the first round; a round takes a free one that dominates it."""

    slots_declared: tuple[tuple[ShuffledRound, int], ...]
    epsilon_upper: float  # of the whole plan, at the budget's delta
    epsilon_lower: float

    decided_by = f"the composition of the whole plan, made before its first round; {ASSUMES[POLICY_PLAN]}"

    @classmethod
    def composed(
        cls, books: Books, plan: Mapping[ShuffledRound, int], *, delta: float, budget: float
    ) -> PlanPolicy:
        """Return the policy of a plan, as narrow as tells whether it is within the budget.

        Raises:
            InvalidParameter, LedgerError: it cannot be composed.
        """
        whole = books.certify(plan, delta=delta, budget=budget)
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
        """Returns the plan as the first entry records it."""
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
        return self.standing(self.claimed(view), self.promised(view), self.unplaced(view))

    def slots(self, view: CohortView) -> tuple[SlotReading, ...]:
        """See `Policy`."""
        pairs = zip(self.slots_declared, self.claimed(view), strict=True)
        return tuple(SlotReading(round=one, count=count, claimed=claimed) for (one, count), claimed in pairs)

    def promised(self, view: CohortView) -> float:
        """See `Policy`: the composition of the whole plan, which no round changes."""
        standing_of(view.details, self.digest)
        return float(view.details["standing"]["promised_epsilon_upper"])

    def refuses_all(self, view: CohortView) -> bool:
        """Return whether the plan promises more than the budget, which was lowered: then no round is
        admitted, whatever it costs."""
        return self.promised(view) > refused_beyond(view.cohort, view.cohort.epsilon_budget)

    def accounted(self, view: CohortView, described: ShuffledRound) -> ShuffledRound | None:
        """See `Policy`: the slot that is the round itself, else the first free one that dominates it."""
        free = [slot.round for slot in self.slots(view) if slot.claimed < slot.count]
        if described in free:
            return described
        return next((slot for slot in free if fits(described, slot)), None)

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        slot = self._position(accounted)
        claimed = self._moved(self.claimed(view), slot, 1)
        step = self._stepped(books, view, {accounted: 1}, claimed, self.unplaced(view))
        return dataclasses.replace(step, details={"slot": slot, **step.details})

    def replacing(self, books: Books, view: CohortView, course: Course, after: ShuffledRound | None) -> Step:
        """See `Policy`: what released nothing frees its slot, the truth stands where `place` says.

        A later truth is placed again from the slot claimed at admission, not from where the last one stood.
        """
        before, others, unplaced = course.accounted, self.claimed(view), self.unplaced(view)
        slot, claims = course.last["slot"], None if course.is_incident else course.first["slot"]
        if slot is None:
            unplaced -= 1
        else:
            others = self._moved(others, slot, -1)
        if after is None:
            return self._stepped(books, view, replaced(before, None), others, unplaced)
        return self._placed(books, view, (before, claims, after), others, unplaced)

    def telling(
        self, books: Books, view: CohortView, truth: ShuffledRound, *, chosen_after: bool = False
    ) -> Step:
        """See `Policy`: it stands in the first kind of slot that dominates it, if one is free.

        No slot covers what may have had a part in the plan.
        """
        others, unplaced = self.claimed(view), self.unplaced(view)
        return self._placed(books, view, (None, None, truth), others, unplaced, covered=not chosen_after)

    def standing_in(self, others: tuple[int, ...], slot: int | None, truth: ShuffledRound) -> int | None:
        """Return the slot of a released round that claimed `slot` when it was admitted.

        Args:
            others: how many of each slot the other rounds take.
            slot: position of the slot that was claimed; None if nothing admitted the round.
            truth: the round as it was really released.

        None means that the plan does not cover the round: it fits no slot, or no slot of its kind is left.
        """
        kind = place([one for one, _ in self.slots_declared], slot, truth)
        return None if kind is None or others[kind] >= self.slots_declared[kind][1] else kind

    def _placed(
        self,
        books: Books,
        view: CohortView,
        turned_out: tuple[ShuffledRound | None, int | None, ShuffledRound],
        others: tuple[int, ...],
        unplaced: int,
        *,
        covered: bool = True,
    ) -> Step:
        """Return the step after which a released round, held before as something or nothing, stands."""
        before, claims, truth = turned_out
        stands = self.standing_in(others, claims, truth) if covered else None
        if stands is None:
            accounted, claimed, unplaced = slot_of(truth), others, unplaced + 1
        else:
            accounted, claimed = self.slots_declared[stands][0], self._moved(others, stands, 1)
        changes = {accounted: 1} if before is None else replaced(before, accounted)
        step = self._stepped(books, view, changes, claimed, unplaced)
        return dataclasses.replace(step, details={"slot": stands, **step.details}, accounted=accounted)

    def claimed(self, view: CohortView) -> tuple[int, ...]:
        """Return how many of each slot are taken, by the cohort's last entry; raises Damaged."""
        claimed = standing_of(view.details, self.digest).get("claimed")
        if not isinstance(claimed, list | tuple) or len(claimed) != len(self.slots_declared):
            raise Damaged("the last entry does not say which slots are taken")
        return tuple(int(count) for count in claimed)

    def unplaced(self, view: CohortView) -> int:
        """Return how many released rounds no slot covers; raises Damaged."""
        return int(standing_of(view.details, self.digest).get("unplaced", 0))

    def standing(self, claimed: tuple[int, ...], promised: float, unplaced: int = 0) -> dict[str, Any]:
        """Return what every entry says of the plan."""
        standing = {"rules": self.digest, "claimed": list(claimed), "promised_epsilon_upper": promised}
        return {"standing": standing | ({"unplaced": unplaced} if unplaced else {})}

    def _position(self, slot: ShuffledRound) -> int:
        return next(i for i, (one, _) in enumerate(self.slots_declared) if one == slot)

    def _moved(self, claimed: tuple[int, ...], slot: int, by: int) -> tuple[int, ...]:
        return tuple(count + by * (i == slot) for i, count in enumerate(claimed))

    def _stepped(
        self,
        books: Books,
        view: CohortView,
        changes: Mapping[ShuffledRound, int],
        claimed: tuple[int, ...],
        unplaced: int,
    ) -> Step:
        promised, spent = self.promised(view), view.spent
        if changes:
            spent = books.certify(changed(view.held, changes), delta=view.cohort.delta_budget)
            # Where slots cover all that is held, the whole plan's bound is one for it too.
            upper = spent.epsilon_upper if unplaced else min(spent.epsilon_upper, promised)
            lower = min(spent.epsilon_lower, upper)
            spent = dataclasses.replace(spent, epsilon_upper=upper, epsilon_lower=lower)
        return Step(
            spent=spent,
            details=self.standing(claimed, promised, unplaced),
            promised_epsilon_upper=math.inf if unplaced else promised,
            changes=changes,
        )
