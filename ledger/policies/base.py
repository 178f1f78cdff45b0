"""What decisions about budgets need beside the machine: privacy losses, the steps that entries record, and
how entries name their rules.

A budget's *rules* are fixed when it is opened, and stated by its first entry. Every entry names their digest
and carries the *standing* after it, so the head alone tells both, and no decision reads history.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shuffle_ledger.accounting import (
    Accountant,
    FilterCharge,
    FilterSet,
    ShuffledRound,
    fits,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.machine import Posting
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import Spending

_SLOTS_REMEMBERED_MAX = 8192
_RULES_DOMAIN = "shuffle-ledger/policy-rules/1"

slot_of = functools.lru_cache(maxsize=_SLOTS_REMEMBERED_MAX)(slot_for)
Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What an entry would change: the machine's posting, the numbers after it, and what the entry states."""

    spent: Spending  # after it; of a refusal, what it would be
    details: Mapping[str, Any]  # the standing, and the round's cost and charge where there is one
    posting: Posting
    changes: Mapping[ShuffledRound, int] = field(default_factory=dict)  # added to what is held
    accounted: ShuffledRound | None = None  # of what was released: what is held; None: what was asked about


@dataclass(frozen=True, kw_only=True)
class LossSource:
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

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Return what a round costs each filter, from its stored privacy loss if there is one."""
        if not self.accountant.knows_charge(accounted, filters):
            loss_cache.recall(self.store, self.accountant, [accounted])
        return self.accountant.charge(accounted, filters)


@functools.cache
def in_clear() -> ShuffledRound:
    """Return the round whose report is the user's value: no round reveals more."""
    return ShuffledRound(randomizer=parse_randomizer("table([[1, 0], [0, 1]])"), reports=1)


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


def accounted_again(accounted: ShuffledRound, actual: ShuffledRound) -> ShuffledRound:
    """Return what is charged for a round that is charged as `accounted` and truly was `actual`.

    What dominates it may stay. That another pair has a smaller epsilon now would be no reason: with
    the rounds to come it may have a larger one.
    """
    return accounted if fits(actual, accounted) else slot_of(actual)


def changed(
    held: Mapping[ShuffledRound, int], changes: Mapping[ShuffledRound, int]
) -> dict[ShuffledRound, int]:
    """Return what is held after changes, without kinds of which nothing is left."""
    counts = dict(held)
    for accounted, count in changes.items():
        counts[accounted] = counts.get(accounted, 0) + count
    return {accounted: count for accounted, count in counts.items() if count}
