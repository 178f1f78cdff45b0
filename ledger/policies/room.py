"""How many more rounds budgets take, one after the other, and which limit ends them: the one place that asks
the machine what still fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shuffle_ledger.accounting import ShuffledRound, fits
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.machine import ROUNDS_MAX, Coordinates
from shuffle_ledger.ledger.policies.base import LossSource, slot_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, slots_share
from shuffle_ledger.ledger.policies.registry import policy_of
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.values.local_budget import local_bounds
from shuffle_ledger.ledger.values.requests import POLICY_ADAPTIVE, SlotsHelp

SEARCH: Final = "search"  # the word of a limit where nothing else ended the search
SLOTS_HELP_FROM: Final = 1.25  # times as many rounds as without slots, from which they are worth declaring
SLOTS_COUNTED_MAX: Final = 20_000  # slots; more are not counted
SLOTS_COUNTED_PARTS: Final = 20  # the count may be smaller than the largest by this part of it
_LIMITS: Final = {
    "collection_over": "The days of the period have passed.",
    SEARCH: f"The search stops at {ROUNDS_MAX:,}.",
    "local_budget": "The sum of epsilon0 over a user's rounds would be above the local budget.",
    "promise": "What the plan promises is above the budget: no round is admitted.",
    "no_free_slot": "The plan has no more free slots whose cost is known to cover such a round.",
    "slots": "All declared slots that such a round fits would be taken; no accounting method allows more.",
    "delta_account": "The part of delta set aside for approximate rounds would be exceeded.",
    "filter sliding": "The sliding reserve, the accounting method that allows most, would be used up.",
    "filters": "The budget would be exceeded, whatever the accounting method.",
}


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many more turns of some rounds fit: one of each kind, in a fixed order, again and again."""

    turns: int  # all of these rounds are admitted
    is_largest: bool  # one of the next turn is refused; False: they may fit too
    word: str  # for the limit that ends them
    limit: str  # the same as a sentence


def room_of(losses: LossSource, views: Iterable[CohortView], kinds: Sequence[ShuffledRound]) -> Room:
    """Returns how many more turns of some rounds all of some budgets admit, up to `ROUNDS_MAX`.

    Args:
        losses: where privacy losses come from.
        views: the budgets now, one at least.
        kinds: the rounds of one turn in their order, as declared or as they are accounted.

    Guarantee: if this number of turns is registered with nothing else in between, none of these budgets
    refuses one of their rounds. Where `is_largest`, one of them refuses one round of the next turn. A budget
    that is not open admits nothing, and neither does a period of a window that is over.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    return least(_room_in(losses, view, kinds) for view in views)


def least(rooms: Iterable[Room]) -> Room:
    """Returns which of some budgets' rooms ends rounds of them all: the least, as each decides by itself."""
    return min(rooms, key=lambda each: each.turns)


def _room_in(losses: LossSource, view: CohortView, kinds: Sequence[ShuffledRound]) -> Room:
    if is_over(view):
        return Room(turns=0, is_largest=True, word="collection_over", limit=_LIMITS["collection_over"])
    if view.cohort.status != "open":
        status = view.cohort.status
        sentence = f"The cohort is {status}: it admits nothing any more."
        return Room(turns=0, is_largest=True, word=f"cohort_{status}", limit=sentence)
    policy = policy_of(losses.store, view)
    found = machine.room(policy.state(view), *(policy.cost(losses, kind) for kind in kinds))
    turns, is_exact = found.budget, True
    if turns >= ROUNDS_MAX:
        word, is_exact = SEARCH, False
    else:
        word = "local_budget" if found.local <= turns else _word(policy, view, kinds, found)
    name = word.removeprefix("filter ")
    sentence = f"The budget would be exceeded, also by the accounting method that allows most ({name})."
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


def help_of_slots(losses: LossSource, view: CohortView, kind: ShuffledRound) -> SlotsHelp | None:
    """Returns by how much slots would help rounds of one kind, if they were declared when a cohort is opened.

    Args:
        losses: where privacy losses come from.
        view: the cohort now.
        kind: the round, as declared or as it is accounted.

    Returns:
        None unless slots admit more than 1.25 times as many; of a cohort in which something was decided, or
        that slots cannot be declared for or are declared for already, or of which windows refuse rounds too.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    cohort = view.cohort
    is_new = not view.is_used and cohort.parent is None and cohort.status == "open"
    is_plain = cohort.policy == POLICY_ADAPTIVE and not cohort.windows and cohort.rounds_per_user is None
    policy = policy_of(losses.store, view)
    if not (is_new and is_plain) or policy.slots_declared:
        return None
    found = machine.room(policy.state(view), policy.cost(losses, kind))
    without = found.budget
    with_slots, limit = int(SLOTS_HELP_FROM * without) + 1, min(found.local, SLOTS_COUNTED_MAX)
    delta, epsilon = cohort.delta_budget * slots_share(cohort.policy), cohort.epsilon_budget

    def hold(count: int) -> bool:
        if count > limit:
            return False
        return losses.certify({slot_of(kind): count}, delta=delta, budget=epsilon).epsilon_upper <= epsilon

    if not hold(with_slots):
        return None
    beyond = 2 * with_slots
    while hold(beyond):
        with_slots, beyond = beyond, 2 * beyond
    while beyond - with_slots > max(1, with_slots // SLOTS_COUNTED_PARTS):
        middle = (with_slots + beyond) // 2
        with_slots, beyond = (middle, beyond) if hold(middle) else (with_slots, middle)
    return SlotsHelp(rounds_without=without, rounds_with=with_slots)


def _word(policy: BudgetPolicy, view: CohortView, kinds: Sequence[ShuffledRound], found: Coordinates) -> str:
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
