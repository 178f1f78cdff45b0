"""How a cohort's rounds may be chosen, and what that makes of the numbers that decide.

A policy has *rules*, fixed when the cohort is opened and written into its first entry, and a *standing* after
every entry: what a decision needs to know of the past beside the rounds held. Every entry names the digest of
the rules and carries the standing, so the head alone tells both, and no decision reads history.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accounting import (
    Accountant,
    Charge,
    FilterReading,
    FilterSet,
    InvalidParameter,
    ShuffledRound,
    fits,
    slot_for,
)
from ledger import canonical, losses
from ledger.budgets import POLICY_ADAPTIVE, POLICY_FIXED, POLICY_PLAN, Cohort
from ledger.entries import Spending
from ledger.errors import Damaged, LedgerError
from ledger.rows import CohortView
from ledger.store import Store

_RULES_DOMAIN = "shuffle-ledger/policy-rules/1"
_RULES_REMEMBERED_MAX = 4096

ASSUMES = {
    POLICY_FIXED: (
        "The parameters of all rounds are fixed in advance: they do not depend on what earlier rounds"
        " revealed."
    ),
    POLICY_PLAN: (
        "Rounds may be chosen after seeing the outputs of earlier ones, as long as each takes a free slot of"
        " the plan that was fixed before the first one."
    ),
    POLICY_ADAPTIVE: (
        "Rounds may be chosen after seeing the outputs of earlier ones, as long as each was admitted before"
        " its release."
    ),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What an entry would change: the numbers after it, and what the policy writes into it."""

    spent: Spending
    details: Mapping[str, Any]  # the standing, and the round's charge where there is one
    promised_epsilon_upper: float | None = None  # what must stay within the budget; None: what is spent

    def is_within(self, epsilon_budget: float) -> bool:
        """Return whether the budget still holds: anything but a number within it says no."""
        promised = (
            self.spent.epsilon_upper if self.promised_epsilon_upper is None else self.promised_epsilon_upper
        )
        return promised <= epsilon_budget


@dataclass(frozen=True, kw_only=True)
class SlotReading:
    """One kind of rounds in a plan."""

    round: ShuffledRound
    count: int
    claimed: int  # by rounds admitted and not voided


class Policy(ABC):
    """A cohort's policy with its rules. All methods are pure but for privacy losses read and stored."""

    decided_by: str  # what a statement says: which number decides, and what it assumes

    @abstractmethod
    def opening(self) -> dict[str, Any]:
        """Return what the policy writes into the first entry."""

    @abstractmethod
    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """Return what the policy writes into an entry that changes nothing it knows of."""

    def slots(self, view: CohortView) -> tuple[SlotReading, ...]:
        """Return the plan's slots, if the policy has a plan."""
        return ()

    def promised(self, view: CohortView) -> float:
        """Return the epsilon that must stay within the budget."""
        return view.spent.epsilon_upper

    def accounted(self, view: CohortView, described: ShuffledRound) -> ShuffledRound | None:
        """Return what a round is accounted as; None if the policy has no place for it."""
        return slot_for(described)

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """Return what each filter says, if the policy has filters."""
        return ()

    def composition(self, books: Books, view: CohortView) -> Spending:
        """Return the certified composition of what is held."""
        return view.spent

    @abstractmethod
    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """Return what admitting a round would change."""

    @abstractmethod
    def replacing(
        self, books: Books, view: CohortView, admitted: Mapping[str, Any], after: ShuffledRound | None
    ) -> Step:
        """Return what charging `after` in place of the round admitted with these details would change.

        With None the round released nothing, and gives back what it was charged.
        """


@dataclass(frozen=True, kw_only=True)
class Books:
    """Where privacy losses come from; `keep` stores new ones."""

    store: Store
    accountant: Accountant
    keep: bool = True

    def certify(self, held: Mapping[ShuffledRound, int], *, delta: float) -> Spending:
        """Return the certified composition of rounds."""
        return losses.certify(self.store, self.accountant, held, delta=delta, keep=self.keep)

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        """Return what a round costs each filter, from its stored privacy loss if there is one."""
        if not self.accountant.knows_charge(accounted, filters):
            losses.recall(self.store, self.accountant, [accounted])
        return self.accountant.charge(accounted, filters)


class FixedPolicy(Policy):
    """The exact composition of all rounds decides. Sound when their parameters were fixed in advance."""

    decided_by = f"composition of the privacy losses; {ASSUMES[POLICY_FIXED]}"

    def opening(self) -> dict[str, Any]:
        """See `Policy`."""
        return {}

    def unchanged(self, view: CohortView) -> dict[str, Any]:
        """See `Policy`."""
        return {}

    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """See `Policy`."""
        return self._composed(books, view, {accounted: 1})

    def replacing(
        self, books: Books, view: CohortView, admitted: Mapping[str, Any], after: ShuffledRound | None
    ) -> Step:
        """See `Policy`."""
        before = ShuffledRound.from_mapping(admitted["accounted"])
        if before == after:
            return Step(spent=view.spent, details={})
        return self._composed(books, view, {before: -1} | ({after: 1} if after else {}))

    def _composed(self, books: Books, view: CohortView, changes: Mapping[ShuffledRound, int]) -> Step:
        held = changed(view.held, changes)
        return Step(spent=books.certify(held, delta=view.cohort.delta_budget), details={})


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


def policy_for(cohort: Cohort) -> Policy:
    """Return the policy that a new cohort without a plan is opened with; raises InvalidParameter."""
    if cohort.policy == POLICY_ADAPTIVE:
        filters = FilterSet.for_budget(epsilon=cohort.epsilon_budget, delta=cohort.delta_budget)
        return AdaptivePolicy(filters=filters)
    return FixedPolicy()


def policy_of(store: Store, view: CohortView) -> Policy:
    """Return a cohort's policy with the rules it was opened with; raises Damaged."""
    if view.cohort.policy == POLICY_FIXED:
        if "standing" in view.details:
            raise Damaged(f"cohort {view.cohort.name!r}: its row has another policy than its last entry")
        return FixedPolicy()
    return policy_from(view.cohort.policy, store.first_body(view.cohort.name))


@functools.lru_cache(maxsize=_RULES_REMEMBERED_MAX)
def policy_from(name: str, opening: bytes) -> Policy:
    """Return the policy that a chain's first body, as canonical bytes, lays down; raises Damaged."""
    details = canonical.decode(opening)["details"]
    try:
        if name == POLICY_ADAPTIVE:
            return AdaptivePolicy(filters=FilterSet.from_mapping(details["rules"]))
        if name == POLICY_PLAN:
            return PlanPolicy.from_rules(details["rules"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the rules of policy {name} cannot be read: {error}") from error
    return FixedPolicy()


def total_charged(details: Mapping[str, Any], rules: str) -> Charge:
    """Return the total that an entry's details carry, if they name these rules; raises Damaged."""
    try:
        return Charge.from_mapping(standing_of(details, rules)["charged"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise Damaged(f"the last entry does not say what was charged: {error}") from error


def standing_of(details: Mapping[str, Any], rules: str) -> Mapping[str, Any]:
    """Return the standing that an entry's details carry, if it names these rules; raises Damaged."""
    standing = details.get("standing")
    if not isinstance(standing, Mapping):
        raise Damaged("the last entry has no standing, which its cohort's policy needs")
    if standing.get("rules") != rules:
        raise Damaged("the last entry was decided by other rules than the cohort was opened with")
    return standing


def rules_digest(rules: Mapping[str, Any]) -> str:
    """Return the digest by which entries name their cohort's rules."""
    return canonical.framed_digest(_RULES_DOMAIN, canonical.encode(rules)).hex()


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


def changed(
    held: Mapping[ShuffledRound, int], changes: Mapping[ShuffledRound, int]
) -> dict[ShuffledRound, int]:
    """Return what is held after changes, without kinds of which nothing is left."""
    counts = dict(held)
    for accounted, count in changes.items():
        counts[accounted] = counts.get(accounted, 0) + count
    return {accounted: count for accounted, count in counts.items() if count}
