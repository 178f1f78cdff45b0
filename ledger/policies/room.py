"""How many more rounds one budget takes, one after the other, and which limit ends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shuffle_ledger.accounting import ShuffledRound, fits
from shuffle_ledger.ledger.machine import ROUNDS_MAX, Standing
from shuffle_ledger.ledger.policies.base import Books, slot_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy
from shuffle_ledger.ledger.policies.registry import policy_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds

SEARCH: Final = "search"  # the word of a limit where nothing else ended the search
_LIMITS: Final = {
    "collection_over": "The days of the period have passed.",
    SEARCH: f"The search stops at {ROUNDS_MAX:,}.",
    "local_budget": "The sum of epsilon0 over a user's rounds would be above the local budget.",
    "promise": "What the plan promises is above the budget: no round is admitted.",
    "no_free_slot": "The plan has no more free slots whose cost is known to cover such a round.",
    "slots": "The declared slots that such a round fits, which hold longest, would be taken.",
    "delta_account": "The part of delta set aside for approximate rounds would be exceeded.",
    "filter sliding": "The sliding reserve, which holds longest, would be used up.",
    "filters": "No filter would hold within the budget.",
}


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many more turns of some rounds fit: one of each kind, in a fixed order, again and again."""

    turns: int  # all of these rounds are admitted
    is_largest: bool  # one of the next turn is refused; False: they may fit too
    word: str  # for the limit that ends them
    limit: str  # the same as a sentence


def room_of(books: Books, view: CohortView, kinds: Sequence[ShuffledRound]) -> Room:
    """Returns how many more turns of some rounds a budget admits by itself, up to `ROUNDS_MAX`.

    Args:
        books: where privacy losses come from.
        view: the budget now.
        kinds: the rounds of one turn in their order, as declared or as they are accounted.

    Guarantee: if this number of turns is registered with nothing else in between, this budget refuses none
    of their rounds. Where `is_largest`, it refuses one round of the next turn. A budget that is not open
    admits nothing, and neither does a period of a window that is over.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    if is_over(view):
        return Room(turns=0, is_largest=True, word="collection_over", limit=_LIMITS["collection_over"])
    if view.cohort.status != "open":
        status = view.cohort.status
        sentence = f"The cohort is {status}: it admits nothing any more."
        return Room(turns=0, is_largest=True, word=f"cohort_{status}", limit=sentence)
    policy = policy_of(books.store, view)
    found = policy.room(books, view, *kinds)
    turns, is_exact = min(found.promised, found.local), True
    if turns >= ROUNDS_MAX:
        word, is_exact = SEARCH, False
    else:
        word = "local_budget" if found.local <= turns else _word(policy, view, kinds, found)
    name = word.removeprefix("filter ")
    sentence = f"The {name} filter, which holds longest, would be above the budget."
    return Room(turns=turns, is_largest=is_exact, word=word, limit=_LIMITS.get(word, sentence))


def is_over(view: CohortView) -> bool:
    """Returns whether this is a period of a window whose days have passed: no round of these is admitted."""
    period = view.cohort.period
    return period is not None and period.last < view.now.date()


def dearest(view: CohortView, policy: BudgetPolicy, kind: ShuffledRound) -> ShuffledRound:
    """Returns what a round may be accounted as, with the largest epsilon0 of the slots of a plan."""
    if policy.filters is not None:
        return slot_of(kind)
    slots = [slot.round for slot in policy.slots(view) if slot.round == kind or fits(kind, slot.round)]
    return max(slots, key=lambda slot: local_bounds([(slot, 1)]), default=slot_of(kind))


def _word(policy: BudgetPolicy, view: CohortView, kinds: Sequence[ShuffledRound], found: Standing) -> str:
    """Returns the word for what ends these rounds in slots and filters."""
    if policy.filters is None:
        is_refused = policy.refuses_all(view) and all(policy.accounted(view, kind) for kind in kinds)
        return "promise" if is_refused else "no_free_slot"
    if found.slots > found.filtered:
        return "slots"
    if min(found.certain, found.slack) < max(found.filters):
        return "delta_account"
    reserves = len(policy.machine_rules.reserves)
    *fixed, sliding = found.filters
    names = ("gaussian", *policy.machine_rules.orders)
    by_name = dict(zip(names, (max(fixed[:reserves]), *fixed[reserves:]), strict=True))
    longest = max(by_name, key=lambda name: by_name[name])
    if not found.filtered:
        return "filters"
    return f"filter {longest}" if by_name[longest] >= sliding else "filter sliding"
