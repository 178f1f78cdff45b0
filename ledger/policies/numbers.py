"""The machine's numbers in units, and how entries spell the machine's values.

Amounts are whole numbers of the machine's units. JSON numbers are not exact beyond 2^53, so amounts are
spelled as texts of decimal digits. A part that has its default is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from shuffle_ledger.accounting import FilterCharge, ShuffledRound
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.machine import (
    DELTA_UNIT,
    EPSILON_UNIT,
    LOSS_UNIT,
    UNBOUNDED,
    Charge,
    Cost,
    InvalidStep,
    Level,
    Limits,
    Total,
)
from shuffle_ledger.ledger.values import canonical

# Costs and charges are those of a few kinds of rounds, and several checks in a row read the same total.
_READ_MAX = 4096
_LOSS_UNITS = int(1 / LOSS_UNIT)  # in 1
_UNREADABLE = (TypeError, ValueError, InvalidStep)
_AMOUNT = re.compile(r"0|[1-9][0-9]{0,199}")
_AMOUNTS = {
    "local", "certain", "slack", "gaussian", "divergences", "sliding", "returned", "late", "epsilon",
}  # fmt: skip
_LEVELS = {"refuse", "promise"}
_DEFAULTS: dict[type[Any], tuple[tuple[str, object], ...]] = {
    kind: tuple(sorted((one.name, one.default) for one in dataclasses.fields(kind)))
    for kind in (Charge, Cost, Level, Limits, Total)
}
_KINDS = {kind.__name__: kind for kind in _DEFAULTS}
Value = TypeVar("Value", Charge, Cost, Level, Limits, Total)


def units_above(value: float | Fraction, unit: Fraction) -> int:
    """Returns the least number of units that is at least a value, at most UNBOUNDED."""
    if math.isinf(value):
        return UNBOUNDED
    return min(math.ceil(Fraction(value) / unit), UNBOUNDED)


def units_below(value: float | Fraction, unit: Fraction) -> int:
    """Returns the largest number of units that is at most a value, below UNBOUNDED."""
    if math.isinf(value):
        return UNBOUNDED - 1
    return min(math.floor(Fraction(value) / unit), UNBOUNDED - 1)


def loss_above(units: int) -> float:
    """Returns the float behind the one that is nearest to a number of `LOSS_UNIT`; 0 stays 0."""
    return math.nextafter(units / _LOSS_UNITS, math.inf) if units else 0.0


def epsilon_units(value: float) -> int:
    """Returns an epsilon that a person wrote, as the decimal number that it is: the shortest that is read
    as this float."""
    return units_below(Fraction(repr(value)) if math.isfinite(value) else value, EPSILON_UNIT)


def epsilon_above(units: int) -> float:
    """Returns the smallest float that is at least an epsilon in units; infinite if it is unbounded."""
    if units >= UNBOUNDED:
        return math.inf
    exact = units * EPSILON_UNIT
    found = float(exact)
    return found if Fraction(repr(found)) >= exact else math.nextafter(found, math.inf)


def local_units(described: ShuffledRound) -> int:
    """Returns the local epsilon of all reports of a user in a round, in `EPSILON_UNIT`: the epsilon0 of one
    report, as the decimal number that people write, times their number."""
    epsilon0 = described.randomizer.epsilon0
    if math.isinf(epsilon0):
        return UNBOUNDED
    return min(described.reports_per_user * units_above(Fraction(repr(epsilon0)), EPSILON_UNIT), UNBOUNDED)


@functools.lru_cache(maxsize=_READ_MAX)
def cost_of(charge: FilterCharge, *, fits: tuple[int, ...] = (), local: int = 0) -> Cost:
    """Returns a round's cost to a budget with filters, each number rounded up."""
    certain, slack = charge.account
    return Cost(
        local=local,
        certain=units_above(certain, DELTA_UNIT),
        slack=units_above(slack, DELTA_UNIT),
        gaussian=tuple(units_above(one, LOSS_UNIT) for one in charge.gaussian),
        divergences=tuple(units_above(one, LOSS_UNIT) for one in charge.renyi),
        fits=fits,
    )


def filter_charge(charge: Charge | Cost) -> FilterCharge:
    """Returns what of a charge filters prove: how much they allow a round to reveal."""
    return FilterCharge(
        gaussian=tuple(one * LOSS_UNIT for one in charge.gaussian),
        renyi=tuple(one * LOSS_UNIT for one in charge.divergences),
        account=(charge.certain * DELTA_UNIT, charge.slack * DELTA_UNIT),
    )


def spelled(value: Charge | Cost | Level | Limits | Total) -> dict[str, Any]:
    """Returns a value of the machine as entries spell it."""
    parts = {}
    for name, default in _DEFAULTS[type(value)]:
        part = getattr(value, name)
        if name in _LEVELS:
            parts[name] = spelled(part)
        elif part != default:
            parts[name] = _spelled_part(name, part)
    return parts


def read(kind: type[Value], content: object) -> Value:
    """Returns the value of the machine that a part of an entry spells; raises Damaged."""
    if not isinstance(content, Mapping):
        raise Damaged(f"an entry has no {kind.__name__.lower()} where it needs one")
    try:
        found: Value = _read(kind.__name__, canonical.memo_key(content))
    except _UNREADABLE as error:
        raise Damaged(f"an entry's {kind.__name__.lower()} cannot be read: {error}") from error
    return found


@functools.lru_cache(maxsize=_READ_MAX)
def _read(name: str, content: bytes) -> Any:
    kind = _KINDS[name]
    known, parts = dict(_DEFAULTS[kind]), canonical.of_memo_key(content)
    if not set(parts) <= set(known):
        raise ValueError(f"unknown parts {sorted(set(parts) - set(known))}")
    return kind(**{name: _read_part(name, part) for name, part in parts.items()})


def _spelled_part(name: str, part: Any) -> Any:
    if isinstance(part, tuple):
        return [str(one) if name in _AMOUNTS else one for one in part]
    return str(part) if name in _AMOUNTS and part is not None else part


def _read_part(name: str, part: Any) -> Any:
    if name in _LEVELS:
        return read(Level, part)
    if isinstance(part, list | tuple):
        return tuple(_read_number(name, one) for one in part)
    return part if part is None or type(part) is bool else _read_number(name, part)


def _read_number(name: str, part: object) -> int:
    if name in _AMOUNTS:
        if not isinstance(part, str) or not _AMOUNT.fullmatch(part):
            raise ValueError(f"{name} {part!r}, expected a whole number of units as a text")
        return int(part)
    if type(part) is not int or part < 0:
        raise ValueError(f"{name} {part!r}, expected a whole number from 0")
    return part
