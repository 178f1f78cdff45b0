"""Limits and filters: what a round is charged in each coordinate, and whether a total holds.

`docs/adaptivity.md` has the proofs. A budget holds while its local limit holds, and its slots hold or
(certain loss, slack, and one Gaussian or Renyi filter hold).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shuffle_ledger.ledger.machine.values import (
    UNBOUNDED,
    Charge,
    Cost,
    InvalidStep,
    Level,
    Limits,
    Rules,
    State,
    Total,
)

# A 32nd of the sliding limit may be added by restatements, before rounds lack the noise with which they were
# admitted.
_HEADROOM_PARTS = 32
# Above every total.
_ENDLESS = UNBOUNDED**2
# Of charges within a 512th of the least, the one with the smallest reserve is taken: it stays returnable
# longer.
_TOLERANCE_PARTS = 512


def nothing(rules: Rules) -> Total:
    """Returns the total of an empty budget."""
    return Total(
        gaussian=(0,) * len(rules.reserves),
        divergences=(0,) * len(rules.orders),
        claims=(0,) * len(rules.slots),
    )


def no_charge(rules: Rules, *, claimed: int | None) -> Charge:
    """Returns the charge of a release that was not recorded before; its round claimed this kind, or none."""
    return Charge(
        gaussian=(0,) * len(rules.reserves),
        divergences=(0,) * len(rules.orders),
        claimed=claimed,
        is_incident=True,
    )


def unrandomized(rules: Rules) -> Cost:
    """Returns the cost of a round that nothing bounds."""
    return Cost(
        local=UNBOUNDED,
        gaussian=(UNBOUNDED,) * len(rules.reserves),
        divergences=(UNBOUNDED,) * len(rules.orders),
    )


def check_cost(rules: Rules, cost: Cost) -> None:
    """Raises InvalidStep if a cost is not one for a budget with these rules."""
    if (len(cost.gaussian), len(cost.divergences)) != (len(rules.reserves), len(rules.orders)):
        raise InvalidStep(
            f"a cost with {len(cost.gaussian)} variances and {len(cost.divergences)} divergences",
            f"{len(rules.reserves)} and {len(rules.orders)} for {rules.name}",
        )
    if cost.fits and max(cost.fits) >= len(rules.slots):
        raise InvalidStep(f"fits {cost.fits}", f"kinds below {len(rules.slots)} for {rules.name}")


def claim(rules: Rules, total: Total, cost: Cost) -> int | None:
    """Returns the kind that a round claims: the first that it fits with enough free slots, else the first
    that it fits, else None.

    Source: docs/adaptivity.md, Lemma 7.
    """
    free = (kind for kind in cost.fits if total.claims[kind] + cost.parts <= rules.slots[kind])
    return next(free, cost.fits[0] if cost.fits else None)


def place(claimed: int | None, fits: Sequence[int]) -> int | None:
    """Returns the kind in which a restated round stands: the one that it claimed if the truth fits it, else
    the first that the truth fits, else None.

    It depends on nothing that happened after the round's release (docs/adaptivity.md, Lemma 8).
    """
    if claimed in fits:
        return claimed
    return fits[0] if fits else None


def headroom(limit: int) -> int:
    """Returns the variance that late increases may add in all."""
    return limit // _HEADROOM_PARTS


def kept_free(limit: int, reserve: int) -> int:
    """Returns the variance that must remain beside a charge that was taken at a reserve."""
    return reserve + headroom(limit) if reserve else 0


def sliding_charge(rules: Rules, limit: int, held: int, costs: Sequence[int]) -> tuple[int, int]:
    """Returns the charge of a round and the position of its reserve.

    It is about the least cost whose reserve remains beside it and all that is held; if none remains, the cost
    without a reserve.

    Source: docs/adaptivity.md, Lemma 4.
    """
    within = [
        (cost, place)
        for place, (reserve, cost) in enumerate(zip(rules.reserves, costs, strict=True))
        if kept_free(limit, reserve) + cost + held <= limit
    ]
    if not within:
        return costs[0], 0
    least = min(cost for cost, _ in within) * (_TOLERANCE_PARTS + 1)
    return next(one for one in within if one[0] * _TOLERANCE_PARTS <= least)


def is_intact(state: State, charge: Charge) -> bool:
    """Returns whether the reserve at which a round was charged has remained ever since.

    Only then may the Gaussian filter give its charge back: otherwise the decision to release nothing may have
    been made when too little noise remained to hide the round. All that was ever charged counts, returned
    charges included. A corrected round stands where it was corrected, and gives nothing back.

    Source: docs/adaptivity.md, Lemma 4.
    """
    if charge.is_corrected:
        return False
    limit = state.limits.sliding
    if limit is None:
        return True  # fixed reserves alone need no order of rounds
    needed = kept_free(limit, state.rules.reserves[charge.reserve])
    return not needed or state.total.sliding + needed <= limit


def added(rules: Rules, total: Total, charge: Charge) -> Total:
    """Returns the total with one more round."""
    if rules.rounds_per_user is not None:
        return _with_largest(total, charge, counted=0)
    return moved(total, charge, 1)


def replaced(rules: Rules, total: Total, before: Charge, after: Charge) -> Total:
    """Returns the total in which a round's charge is another than before."""
    if rules.rounds_per_user is not None:
        rest = replace(total, local=total.local - before.local)
        return _with_largest(rest, after, counted=int(before.is_counted))
    # Sliding charges that are returned stay in `sliding`, which counts all that was ever charged.
    change = after.sliding - before.sliding
    return replace(
        moved(moved(total, before, -1), after, 1),
        sliding=total.sliding + max(change, 0),
        returned=total.returned + max(-change, 0),
    )


def moved(total: Total, charge: Charge, sign: int) -> Total:
    """Returns a total with a charge added `sign` times; -1 takes it away."""
    placed = charge.units * sign
    claims = tuple([n + placed * (kind == charge.kind) for kind, n in enumerate(total.claims)])
    return Total(
        local=total.local + sign * charge.local,
        certain=total.certain + sign * charge.certain,
        slack=total.slack + sign * charge.slack,
        gaussian=tuple([a + sign * b for a, b in zip(total.gaussian, charge.gaussian, strict=True)]),
        divergences=tuple([a + sign * b for a, b in zip(total.divergences, charge.divergences, strict=True)]),
        sliding=total.sliding + sign * charge.sliding,
        returned=total.returned,
        late=total.late + sign * charge.late,
        claims=claims,
        unplaced=total.unplaced + (placed if charge.kind is None else 0),
        rounds=total.rounds,
        incidents=total.incidents,
    )


def _with_largest(total: Total, charge: Charge, *, counted: int) -> Total:
    """Returns the total of a budget with `rounds_per_user`: the largest charge, and how many there are."""
    return replace(
        total,
        local=total.local + charge.local,
        certain=max(total.certain, charge.certain),
        slack=max(total.slack, charge.slack),
        gaussian=tuple(map(max, total.gaussian, charge.gaussian)),
        divergences=tuple(map(max, total.divergences, charge.divergences)),
        rounds=total.rounds + 1 - counted,
        incidents=total.incidents + (0 if counted else int(charge.is_incident)),
    )


def rounds_of_one_user(rules: Rules, total: Total) -> int:
    """Returns by how many rounds a total's largest charge counts, or 1 if the total is a sum.

    Source: docs/adaptivity.md, Theorem 14.
    """
    if rules.rounds_per_user is None:
        return 1
    return min(total.rounds, rules.rounds_per_user + total.incidents)


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """One number for each limit and filter: whether it holds (1 or 0), or how many more rounds it takes."""

    local: int
    certain: int
    slack: int
    filters: tuple[int, ...]  # fixed reserves, orders, and the sliding total
    slots: int

    @property
    def filtered(self) -> int:
        """Returns the number of the Gaussian and Renyi filters with the limits that bind them."""
        return min(self.certain, self.slack, max(self.filters, default=0))

    @property
    def promised(self) -> int:
        """Returns the number of all but the local limit, whose promise is another."""
        return max(self.slots, self.filtered)

    @property
    def budget(self) -> int:
        """Returns the number of the budget: all limits and filters, as they combine."""
        return min(self.local, self.promised)


def standing(rules: Rules, limits: Limits, total: Total, level: Level) -> Coordinates:
    """Returns which limits and filters hold at a level."""
    times = rounds_of_one_user(rules, total)
    used, most = numbers(total), most_allowed(rules, limits, level)
    _, certain, slack, *fixed = [int(one * times <= allowed) for one, allowed in zip(used, most, strict=True)]
    limit = limits.sliding or 0
    sliding = (
        sliding_counts(limits, level)
        and total.sliding - total.returned <= limit
        and total.late <= headroom(limit)
    )
    free = all(claimed <= slots for claimed, slots in zip(total.claims, rules.slots, strict=True))
    return Coordinates(
        local=int(total.local <= most[0]),
        certain=certain,
        slack=slack,
        filters=(*fixed, int(sliding)),
        slots=int(rules.is_record or (slots_count(rules, level) and free and not total.unplaced)),
    )


def sliding_counts(limits: Limits, level: Level) -> bool:
    """Returns whether the sliding total may be read at a level: its charges rest on noise up to its limit, so
    it tells nothing of a level that allows less."""
    return limits.sliding is not None and limits.sliding <= level.gaussian


def slots_count(rules: Rules, level: Level) -> bool:
    """Returns whether the slots' certificate is within a level."""
    return bool(rules.slots) and rules.slots_epsilon <= level.epsilon


def taken(state: State, cost: Cost) -> Charge:
    """Returns the charge of a round that is admitted now."""
    rules, limits, total = state.rules, state.limits, state.total
    whole, sliding, reserve = whole_charge(cost), 0, 0
    if limits.sliding is not None:
        held = total.sliding - total.returned
        sliding, reserve = sliding_charge(rules, limits.sliding, held, whole.gaussian)
    kind = claim(rules, total, cost)
    return replace(
        whole,
        sliding=sliding,
        reserve=reserve,
        kind=kind,
        claimed=kind,
        units=cost.parts if rules.slots else 0,
        is_counted=rules.rounds_per_user is not None,
    )


def taken_instead(state: State, before: Charge, cost: Cost) -> Charge:
    """Returns the charge of a round that turned out to cost this, in place of what it was charged.

    Each coordinate is the larger of the two. If a Gaussian one rises, the sliding charge is taken anew at a
    reserve that remains now, no less than before; its increase is late. If none rises, what was charged at
    admission covers the truth at every reserve, and stays.
    """
    rules, limits, total = state.rules, state.limits, state.total
    whole = whole_charge(cost)
    most = larger(before, whole)
    is_worse = most.gaussian != before.gaussian
    sliding, reserve = before.sliding, before.reserve
    if is_worse and limits.sliding is not None:
        held = total.sliding - total.returned - before.sliding
        costs = [no_less(one, before.sliding) for one in most.gaussian]
        sliding, reserve = sliding_charge(rules, limits.sliding, held, costs)
    return replace(
        most,
        sliding=sliding,
        reserve=reserve,
        late=added_by_restatements(before, sliding),
        kind=place(before.claimed, cost.fits),
        units=cost.parts if rules.slots else 0,
        is_corrected=before.is_corrected or is_worse,
        is_counted=rules.rounds_per_user is not None,
    )


def larger(before: Charge, whole: Charge) -> Charge:
    """Returns a charge with the larger of two in each coordinate that depends on the round alone."""
    return replace(
        before,
        local=max(before.local, whole.local),
        certain=max(before.certain, whole.certain),
        slack=max(before.slack, whole.slack),
        gaussian=tuple(map(max, before.gaussian, whole.gaussian)),
        divergences=tuple(map(max, before.divergences, whole.divergences)),
    )


def no_less(cost: int, sliding: int) -> int:
    """Returns what a restated round costs the sliding total at a reserve: no less than it is charged already.

    A reserve that was not left when the round was admitted, and is left since another round was voided, would
    give variance back, and make room for what others add late.
    """
    return max(cost, sliding)


def added_by_restatements(before: Charge, sliding: int) -> int:
    """Returns the late part of a restated sliding charge: all that it is above the charge at admission.
    Rounds that were admitted since had less noise left than the totals said."""
    return before.late + sliding - before.sliding


def left_of(state: State, charge: Charge) -> Charge:
    """Returns what a budget keeps of a round that released nothing.

    It gives back certain loss, slack, divergences and slots; all Gaussian coordinates together if the round's
    reserve is intact, else none; and never local epsilon, for reports were sent. With `rounds_per_user` the
    total keeps the largest charge all the same: it says nothing of the second largest.
    """
    rest = replace(charge, certain=0, slack=0, divergences=(0,) * len(charge.divergences), kind=None, units=0)
    if not is_intact(state, charge):
        return rest
    return replace(rest, gaussian=(0,) * len(charge.gaussian), sliding=0, reserve=0, late=0)


def whole_charge(cost: Cost) -> Charge:
    """Returns the coordinates of all parts of a round that depend on the round alone."""
    return Charge(
        local=cost.local,
        certain=cost.certain * cost.parts,
        slack=cost.slack * cost.parts,
        gaussian=tuple([one * cost.parts for one in cost.gaussian]),
        divergences=tuple([one * cost.parts for one in cost.divergences]),
    )


def numbers(vector: Charge | Total) -> tuple[int, ...]:
    """Returns local epsilon, certain loss, slack, the variances and the divergences, in this order."""
    return (vector.local, vector.certain, vector.slack, *vector.gaussian, *vector.divergences)


def most_allowed(rules: Rules, limits: Limits, level: Level) -> tuple[int, ...]:
    """Returns the largest values of `_numbers`; a fixed reserve leaves the limit less its variance."""
    local = _ENDLESS if limits.local is None else limits.local
    fixed = [level.gaussian - reserve for reserve in rules.reserves]
    return (local, limits.certain, limits.slack, *fixed, *level.divergences)
