"""How a cohort's rounds may be chosen, and what that makes of the numbers that decide.

A policy has *rules*, fixed when the cohort is opened and written into its first entry, and a *standing* after
every entry: what a decision needs to know of the past beside the rounds held. Every entry names the digest of
the rules and carries the standing, so the head alone tells both, and no decision reads history.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shuffle_ledger.accounting import (
    Accountant,
    AccountsReading,
    Charge,
    FilterReading,
    FilterSet,
    ShuffledRound,
    fits,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.values.requests import (
    POLICY_ADAPTIVE,
    POLICY_PLAN,
    promised_epsilon,
)

_SLOTS_REMEMBERED_MAX = 8192
_RULES_DOMAIN = "shuffle-ledger/policy-rules/1"

# The report is the user's value: no round reveals more.
IN_CLEAR = ShuffledRound(randomizer=parse_randomizer("table([[1, 0], [0, 1]])"), reports=1)

ASSUMES = {
    POLICY_PLAN: (
        "Rounds may be chosen after seeing the outputs of earlier ones, as long as each takes a free slot of"
        " the plan that was fixed before the first one. How many reports a round has was fixed before its"
        " release; a round that turned out worse than its slot took one of the kind that the plan names."
    ),
    POLICY_ADAPTIVE: (
        "Rounds may be chosen after seeing the outputs of earlier ones, as long as each was admitted before"
        " its release. How many reports a round has was fixed before its release and, where it was settled"
        " later, did not depend on outputs in between. The largest epsilon that the budget may be raised to"
        " does not depend on the data."
    ),
}


slot_of = functools.lru_cache(maxsize=_SLOTS_REMEMBERED_MAX)(slot_for)
Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What an entry would change: the numbers after it, and what the policy writes into it."""

    spent: Spending
    details: Mapping[str, Any]  # the standing, and the round's charge where there is one
    promised_epsilon_upper: float | None = None  # what must stay within the budget; None: what is spent
    changes: Mapping[ShuffledRound, int] = field(default_factory=dict)  # added to what is held
    accounted: ShuffledRound | None = None  # of what was released: what is held; None: what was asked about
    lacks_delta: AccountsReading | None = None  # an account of delta is exhausted, and nothing else

    def is_within(self, epsilon_budget: float) -> bool:
        """Return whether the budget still holds: anything but a number within it says no."""
        promised = (
            self.spent.epsilon_upper if self.promised_epsilon_upper is None else self.promised_epsilon_upper
        )
        return promised <= epsilon_budget


def overspends(view: CohortView, step: Step) -> bool:
    """Return whether a step breaks the promise of a budget."""
    return not step.is_within(promised_epsilon(view.cohort, view.cohort.epsilon_budget))


@dataclass(frozen=True, kw_only=True)
class Course:
    """The state of one round in the chain: details of two of its entries."""

    first: Mapping[str, Any]  # the entry that admitted it, or told its release as an incident
    last: Mapping[str, Any]  # the last one that says what it is charged
    is_incident: bool = False  # nothing admitted it

    @property
    def accounted(self) -> ShuffledRound:
        """Returns the round that is charged now."""
        return ShuffledRound.from_mapping(self.last["accounted"])


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
        return slot_of(described)

    def readings(self, view: CohortView) -> tuple[FilterReading, ...]:
        """Return what each filter says, if the policy has filters."""
        return ()

    def delta_accounts(self, view: CohortView) -> AccountsReading | None:
        """Return what approximate rounds have used of delta, if the policy keeps accounts of it."""
        return None

    def composition(self, books: Books, view: CohortView) -> Spending:
        """Return the certified composition of what is held."""
        return view.spent

    def is_quick(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """Return whether `admitting` answers from memory, so that a decision may be awaited."""
        return False

    def prepare(self, books: Books, view: CohortView, accounted: ShuffledRound) -> bool:
        """Compute what `is_quick` misses, where the privacy loss is stored; return whether that is enough."""
        return False

    @abstractmethod
    def admitting(self, books: Books, view: CohortView, accounted: ShuffledRound) -> Step:
        """Return what admitting a round would change."""

    @abstractmethod
    def replacing(self, books: Books, view: CohortView, course: Course, after: ShuffledRound | None) -> Step:
        """Return what it changes that a round turned out otherwise, or released nothing.

        Args:
            books: where privacy losses come from.
            view: the cohort now.
            course: the round so far.
            after: what the round turned out to be; None if it released nothing.
        """

    @abstractmethod
    def telling(
        self, books: Books, view: CohortView, truth: ShuffledRound, *, chosen_after: bool = False
    ) -> Step:
        """Return what a release that nothing admitted changes: the settlement of nothing.

        Args:
            books: where privacy losses come from.
            view: the cohort now.
            truth: what was released.
            chosen_after: it may have had a part in the opening, which chose the rules, so that nothing bounds
                it.
        """

    def rebudgeted(self, books: Books, view: CohortView, epsilon: float) -> Step:
        """Return what another budget changes of what is spent and promised."""
        promised = self.promised(view)
        return Step(spent=view.spent, details=self.unchanged(view), promised_epsilon_upper=promised)


@dataclass(frozen=True, kw_only=True)
class Books:
    """Where privacy losses come from; `keep` stores new ones. Made anew for each decision."""

    store: Store
    accountant: Accountant
    keep: bool = True

    def certify(
        self, held: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Spending:
        """Return the certified composition of rounds, as narrow as tells whether it is within a budget."""
        return loss_cache.certify(
            self.store, self.accountant, held, delta=delta, budget=budget, keep=self.keep
        )

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> Charge:
        """Return what a round costs each filter, from its stored privacy loss if there is one."""
        if not self.accountant.knows_charge(accounted, filters):
            loss_cache.recall(self.store, self.accountant, [accounted])
        return self.accountant.charge(accounted, filters)


def standing_of(details: Mapping[str, Any], rules: str) -> Mapping[str, Any]:
    """Return the standing that an entry's details carry, if it names these rules; raises Damaged."""
    standing = details.get("standing")
    if not isinstance(standing, Mapping):
        raise Damaged("the last entry has no standing, which its cohort's policy needs")
    if standing.get("rules") != rules:
        raise Damaged("the last entry was decided by other rules than the cohort was opened with")
    return standing


def read_once(view: CohortView, name: str, source: object, read: Callable[[], Part]) -> Part:
    """Return what `read` reads out of a part of an entry's details; of the same part only the first time."""
    known = view.read.get(name)
    if known is None or known[0] is not source:
        known = view.read[name] = (source, read())
    part: Part = known[1]
    return part


def spell_once(view: CohortView, name: str, part: object, spell: Callable[[], Any]) -> Any:
    """Return how the next entry's details spell a part: as those spelled it that it was read out of."""
    known = view.read.get(name)
    if known is None or known[1] is not part:
        known = view.read[name] = (spell(), part)
    return known[0]


def rules_digest(rules: Mapping[str, Any]) -> str:
    """Return the digest by which entries name their cohort's rules."""
    return canonical.framed_digest(_RULES_DOMAIN, canonical.encode(rules)).hex()


def told(accounted: ShuffledRound, truth: ShuffledRound) -> ShuffledRound:
    """Return what is charged for a round that is charged as `accounted` and truly was `truth`.

    What dominates the truth may stay. That another pair has a smaller epsilon now would be no reason: with
    the rounds to come it may have a larger one.
    """
    return accounted if fits(truth, accounted) else slot_of(truth)


def replaced(before: ShuffledRound, after: ShuffledRound | None) -> dict[ShuffledRound, int]:
    """Return how what is held changes when a round turned out to be another, or with None to be none."""
    if after == before:
        return {}
    return {before: -1} | ({after: 1} if after else {})


def changed(
    held: Mapping[ShuffledRound, int], changes: Mapping[ShuffledRound, int]
) -> dict[ShuffledRound, int]:
    """Return what is held after changes, without kinds of which nothing is left."""
    counts = dict(held)
    for accounted, count in changes.items():
        counts[accounted] = counts.get(accounted, 0) + count
    return {accounted: count for accounted, count in counts.items() if count}
