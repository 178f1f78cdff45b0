"""The sum of rounds that are declared by Renyi divergences, before the conversion to epsilon and delta."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.randomizers import Declared
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

# Orders of a curve; an empty tuple means all orders, with divergences in proportion to the order.
_Orders = tuple[float, ...]


def with_summed_curves(rounds: Mapping[ShuffledRound, int]) -> dict[ShuffledRound, int] | None:
    """Returns fewer rounds that bound the given ones together; None if there is nothing to add up.

    Unsampled rounds of `declared(rho=...)` become one, and so do those of `declared(renyi=...)` of the same
    orders.

    Guarantee: the given rounds together have the guarantees of the returned rounds together: Renyi
    divergences of
        adaptive compositions add up, order by order, and deltas at most add up.
    Source: Mironov, "Renyi Differential Privacy", Proposition 1; Bun and Steinke, "Concentrated Differential
        Privacy", Lemma 2.3 and section 8; docs/theory/pld.md, P10.
    """
    groups: dict[_Orders, dict[ShuffledRound, int]] = {}
    for one, count in rounds.items():
        orders = _orders(one)
        if orders is not None:
            groups.setdefault(orders, {})[one] = count
    found = dict(rounds)
    for orders, members in groups.items():
        whole = _together(orders, members) if sum(members.values()) > 1 else None
        if whole is not None:
            found = {one: count for one, count in found.items() if one not in members}
            found[whole] = found.get(whole, 0) + 1
    return found if found != dict(rounds) else None


def _orders(shuffled: ShuffledRound) -> _Orders | None:
    """Returns the orders of a round's declared curve; None if it has no curve that can be added up."""
    randomizer = shuffled.randomizer
    if not isinstance(randomizer, Declared) or shuffled.sampled_from is not None:
        return None
    if randomizer.rho is not None:
        return ()
    return tuple(order for order, _ in randomizer.curve) or None


def _together(orders: _Orders, members: Mapping[ShuffledRound, int]) -> ShuffledRound | None:
    """Returns one round with the sum of all members' divergences; None if that is too large to be
    declared."""
    declared = [(one.randomizer, count) for one, count in members.items()]
    curves = [(one, count) for one, count in declared if isinstance(one, Declared)]
    try:
        delta = _total([(one.delta, count) for one, count in curves])
        if not orders:
            total = _total([(one.substitution_rho, count) for one, count in curves])
            return ShuffledRound(randomizer=Declared(rho=total, delta=delta), reports=1)
        listed = [dict(one.curve) for one, _ in curves]
        renyi = tuple(
            (order, _total([(known[order], count) for known, (_, count) in zip(listed, curves, strict=True)]))
            for order in orders
        )
        return ShuffledRound(randomizer=Declared(renyi=renyi, delta=delta), reports=1)
    except InvalidParameter:
        return None


def _total(values: list[tuple[float, int]]) -> float:
    """Returns the sum of `count * value`, rounded up."""
    total = sum((Fraction(value) * count for value, count in values), Fraction(0))
    return 0.0 if total == 0 else math.nextafter(float(total), math.inf)
