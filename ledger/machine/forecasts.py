"""How many more rounds limits and filters take, and the total afterwards, without deciding round by round.

The rounds come in turns: one of each of some costs, in a fixed order, again and again. Totals never shrink
from one turn to the next, so each limit and filter takes the first turns up to a number, and none beyond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shuffle_ledger.ledger.machine import filters
from shuffle_ledger.ledger.machine.filters import Coordinates
from shuffle_ledger.ledger.machine.values import ROUNDS_MAX, Charge, Cost, State, Total


def room(state: State, *costs: Cost) -> Coordinates:
    """Returns how many turns of rounds of some costs each limit and filter takes at `refuse_at`, up to
    `ROUNDS_MAX`; whether the budget is overspent or frozen, and takes none, is not asked.

    Args:
        state: the budget.
        costs: of the rounds of one turn, one at least, in their order.
    """
    rules, limits, total, level = state.rules, state.limits, state.total, state.limits.refuse
    wholes = [filters.whole_charge(cost) for cost in costs]
    one_turn = zip(*map(filters.numbers, wholes), strict=True)
    allowed = filters.most_allowed(rules, limits, level)
    local, *others = zip(filters.numbers(total), one_turn, allowed, strict=True)
    certain, slack, *fixed = (_takes(state, *each) for each in others)
    sliding = _within(_sliding(state, wholes)) if filters.sliding_counts(limits, level) else 0
    is_late = total.late > filters.headroom(limits.sliding or 0)
    placed = ROUNDS_MAX if rules.is_record else 0
    if rules.slots and filters.standing(rules, limits, total, level).slots:
        placed = _within(_placed(state, costs))
    return Coordinates(
        local=_takes_summed(*local),
        certain=certain,
        slack=slack,
        filters=(*fixed, 0 if is_late else sliding),
        slots=placed,
    )


def after(state: State, costs: Sequence[Cost], turns: int) -> State:
    """Returns the state after a number of turns of rounds that are all admitted.

    Guarantee: it is the state that `decide` and `fold` would make of them, one by one, but for its place in
    the chain.
    """
    if not turns:
        return state
    rules, total = state.rules, state.total
    if rules.rounds_per_user is not None:
        for cost in costs:
            total = filters.added(rules, total, filters.taken(state, cost))
        local = state.total.local + turns * sum(cost.local for cost in costs)
        total = replace(total, local=local, rounds=state.total.rounds + turns * len(costs))
        return replace(state, total=total)
    wholes = [filters.whole_charge(cost) for cost in costs]
    for whole in wholes:
        total = filters.moved(total, whole, turns)
    if state.limits.sliding is not None:
        total = replace(total, sliding=total.sliding + sum(_sums(_sliding(state, wholes), turns)))
    if rules.slots:
        *claims, unplaced = _sums(_placed(state, costs), turns)
        total = replace(
            total,
            claims=tuple(a + b for a, b in zip(total.claims, claims, strict=True)),
            unplaced=total.unplaced + unplaced,
        )
    return replace(state, total=total)


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """Turns in a row that all add the same."""

    turns: int
    adds: tuple[int, ...]  # in one turn
    is_within: bool  # all of them; else none is


def _sliding(state: State, wholes: Sequence[Charge]) -> Iterator[_Stretch]:
    """Yields stretches of turns that find the same reserves, without end, and the variance that each adds to
    the sliding total.

    A round finds a reserve as long as it remains beside the round and all that is held, so the reserves that
    it finds only become fewer.
    """
    rules, limit = state.rules, state.limits.sliding or 0
    held = state.total.sliding - state.total.returned
    while True:
        now, spare = held, list[int]()
        for whole in wholes:
            needed = (
                now + filters.kept_free(limit, reserve) + cost
                for reserve, cost in zip(rules.reserves, whole.gaussian, strict=True)
            )
            spare += (limit - one for one in needed if one <= limit)
            now += filters.sliding_charge(rules, limit, now, whole.gaussian)[0]
        turn = now - held
        turns = min(spare) // turn + 1 if spare and turn else ROUNDS_MAX
        yield _Stretch(turns=turns, adds=(turn,), is_within=now <= limit)
        held += turns * turn


def _placed(state: State, costs: Sequence[Cost]) -> Iterator[_Stretch]:
    """Yields stretches of turns that claim the same kinds of slots, without end: what each claims of every
    kind, and how many units stand in no slot.

    A round claims the first kind with enough free slots, and slots only become fewer.
    """
    slots, total = state.rules.slots, state.total
    while True:
        now, unplaced, spare = total, 0, list[tuple[int, int]]()
        for cost in costs:
            kind = filters.claim(state.rules, now, cost)
            if kind is None:
                unplaced += cost.parts
                continue
            now = _claimed(now, [cost.parts * (kind == each) for each in range(len(slots))])
            spare += [(kind, slots[kind] - now.claims[kind])] if now.claims[kind] <= slots[kind] else []
        adds = [b - a for a, b in zip(total.claims, now.claims, strict=True)]
        turns = min((left // adds[kind] + 1 for kind, left in spare), default=ROUNDS_MAX)
        is_within = not unplaced and all(
            claimed <= most for claimed, most in zip(now.claims, slots, strict=True)
        )
        yield _Stretch(turns=turns, adds=(*adds, unplaced), is_within=is_within)
        total = _claimed(total, [turns * one for one in adds])


def _claimed(total: Total, more: Sequence[int]) -> Total:
    return replace(total, claims=tuple(a + b for a, b in zip(total.claims, more, strict=True)))


def _within(stretches: Iterator[_Stretch]) -> int:
    """Returns how many turns come before the first that is not within its limit, up to `ROUNDS_MAX`."""
    count = 0
    for stretch in stretches:
        if not stretch.is_within or count >= ROUNDS_MAX:
            break
        count += stretch.turns
    return min(count, ROUNDS_MAX)


def _sums(stretches: Iterator[_Stretch], turns: int) -> list[int]:
    """Returns what a number of turns, one at least, add."""
    first = next(stretches)
    taken = min(first.turns, turns)
    sums, left = [taken * one for one in first.adds], turns - taken
    while left:
        stretch = next(stretches)
        taken = min(stretch.turns, left)
        sums = [before + taken * one for before, one in zip(sums, stretch.adds, strict=True)]
        left -= taken
    return sums


def _takes(state: State, used: int, more: Sequence[int], allowed: int) -> int:
    """Returns how many more turns fit in a limit."""
    most = state.rules.rounds_per_user
    if most is None:
        return _takes_summed(used, more, allowed)
    largest = max(used, *more)
    if largest * (most + state.total.incidents) <= allowed:
        return ROUNDS_MAX
    return max((allowed // largest - state.total.rounds) // len(more), 0)


def _takes_summed(used: int, more: Sequence[int], allowed: int) -> int:
    if used > allowed:
        return 0
    turn = sum(more)
    return min((allowed - used) // turn, ROUNDS_MAX) if turn else ROUNDS_MAX
