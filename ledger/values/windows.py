"""Windows: budgets of a cohort that begin anew with every day, week, month, quarter or year, or that slide.

A cohort may declare windows when it is opened. Each *period* of a window, such as the week from 2026-11-23,
has its own budget and its own chain of entries, under the name `COHORT@PERIOD`. Days are those of UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.texts import NAME_LENGTH_MAX

UNITS: Final = machine.CALENDAR_UNITS
UNITS_EXPECTED: Final = "day, week, month, quarter or year"
BUCKETS: Final = machine.RUN_UNITS  # of windows that slide
SLIDING_MAX: Final = machine.RUN_MAX  # buckets of a window that slides
WINDOWS_MAX = 4  # of one cohort
SUFFIX_LENGTH_MAX = 20  # of a period's name behind the cohort's
_EXPECTED: Final = (
    f"per ({UNITS_EXPECTED}; also calendar) or rolling (a number of buckets from 2 to 31)"
    " with bucket (day, week or month), with epsilon above 0 and delta between 0 and 1, and a local_budget"
    " above 0 if any"
)
_EXAMPLES: Final = "for example per=month,epsilon=0.5,delta=1e-9 or rolling=30d,epsilon=0.5,delta=1e-9"
ROLLING_EXPECTED: Final = "a number of days, weeks or months from 2 to 31: 7d, 13w, 12m"
_ROLLING: Final = re.compile(r"([0-9]{1,2})([dwm])", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A budget that a cohort has again and again: in each calendar unit, or in each run of buckets."""

    unit: str  # the calendar unit, or the bucket by which the window slides
    epsilon: float
    delta: float
    sliding: int | None = None  # how many buckets in a row share the budget; None: the calendar's units
    local_budget: float | None = None  # of each period, for the sum of epsilon0 over a user's rounds

    def __post_init__(self) -> None:
        """Raise InvalidValue for anything that is not a possible window."""
        units = UNITS if self.sliding is None else BUCKETS
        valid = (
            self.unit in units
            and _is_positive(self.epsilon)
            and _is_positive(self.delta)
            and self.delta < 1
            and (self.sliding is None or (type(self.sliding) is int and 2 <= self.sliding <= SLIDING_MAX))
            and (self.local_budget is None or _is_positive(self.local_budget))
        )
        if not valid:
            raise InvalidValue(field="window", value=self.to_mapping(), expected=_EXPECTED)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        if self.local_budget is not None:
            object.__setattr__(self, "local_budget", float(self.local_budget))

    @property
    def kind(self) -> str:
        """The name of the window: `week`, or `7 days`. A cohort has one of each kind at most."""
        return self.unit if self.sliding is None else f"{self.sliding} {self.unit}s"

    @property
    def described(self) -> str:
        """The window in words, for promises: `UTC calendar week`, or `run of 7 consecutive UTC days`."""
        if self.sliding is None:
            return f"UTC calendar {self.unit}"
        return f"run of {self.sliding} consecutive UTC {self.unit}s"

    def to_mapping(self) -> dict[str, Any]:
        """Return the window as entries and answers spell it."""
        which: dict[str, Any] = {"calendar": self.unit}
        if self.sliding is not None:
            which = {"rolling": self.sliding, "bucket": self.unit}
        local = {} if self.local_budget is None else {"local_budget": self.local_budget}
        return {**which, "epsilon": self.epsilon, "delta": self.delta, **local}

    @classmethod
    def from_mapping(cls, mapping: object) -> Window:
        """Return the window that a mapping spells, with `per` or `calendar`; raises InvalidValue."""
        if isinstance(mapping, Mapping) and "per" in mapping and "calendar" not in mapping:
            mapping = {("calendar" if name == "per" else name): value for name, value in mapping.items()}
        names = set(mapping) - {"epsilon", "delta", "local_budget"} if isinstance(mapping, Mapping) else set()
        if not isinstance(mapping, Mapping) or names not in ({"calendar"}, {"rolling", "bucket"}):
            raise InvalidValue(field="window", value=mapping, expected=_EXPECTED)
        budget: dict[str, Any] = {name: mapping.get(name) for name in ("epsilon", "delta", "local_budget")}
        if "calendar" in names:
            return cls(unit=mapping["calendar"], **budget)
        return cls(unit=mapping["bucket"], sliding=mapping["rolling"], **budget)

    @classmethod
    def from_text(cls, text: str) -> Window:
        """Return the window that `per=week,epsilon=E,delta=D` or `rolling=7d,...` means; `calendar=week` is
        the same as `per=week`, and `rolling=7,bucket=day` as `rolling=7d`.

        Raises:
            InvalidValue: a part has no value, occurs twice, or is none of these.
        """
        parts = [part.strip().partition("=") for part in text.split(",")]
        fields: dict[str, Any] = {name: value for name, _, value in parts}
        try:
            if len(fields) != len(parts):
                raise ValueError("a part occurs twice")
            kinds = dict.fromkeys(("epsilon", "delta", "local_budget"), float) | {"rolling": int}
            if "bucket" not in fields and (run := rolling_of(fields.get("rolling", ""))) is not None:
                fields["rolling"], fields["bucket"] = run
            fields |= {name: kinds[name](value) for name, value in fields.items() if name in kinds}
            return cls.from_mapping(fields)
        except (InvalidValue, ValueError) as error:
            raise InvalidValue(field="window", value=text, expected=f"{_EXPECTED}; {_EXAMPLES}") from error

    def periods(self, cohort: str, first: date, last: date) -> Iterator[Period]:
        """Yield the periods that a round collected from one day to another is in, in order.

        Raises:
            InvalidValue: these days are in more units than a round may be in, or too far away to have any.
        """
        run = self.sliding or 1
        try:
            found = machine.periods(self.unit, run, first, last)
        except machine.InvalidStep as error:
            most = f"{machine.units_met_max(run)} UTC {self.unit}s"
            expected = f"days from {machine.YEARS[0]} on, in at most {most}"
            is_far = first.year not in machine.YEARS or last.year not in machine.YEARS
            field, day = ("collected_on", first) if is_far else ("collected_until", last)
            raise InvalidValue(field=field, value=day.isoformat(), expected=expected) from error
        for days in found:
            yield Period(cohort=cohort, kind=self.kind, label=days.label, first=days.first, last=days.last)


@dataclass(frozen=True, kw_only=True)
class Period:
    """One period of a cohort's window."""

    cohort: str  # whose
    kind: str  # of the window
    label: str
    first: date  # its days, in UTC
    last: date

    @property
    def is_sliding(self) -> bool:
        """Whether the period is a run of buckets, not a calendar unit."""
        return self.kind not in UNITS

    @property
    def name(self) -> str:
        """The name of the period's chain."""
        return f"{self.cohort}@{self.label}"

    def to_mapping(self) -> dict[str, str]:
        """Return the period as entries and answers spell it."""
        return {
            "of": self.cohort,
            "window": self.kind,
            "label": self.label,
            "first": self.first.isoformat(),
            "last": self.last.isoformat(),
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, str]) -> Period:
        """Return the period that a mapping spells; raises KeyError, TypeError, ValueError."""
        return cls(
            cohort=mapping["of"],
            kind=mapping["window"],
            label=mapping["label"],
            first=date.fromisoformat(mapping["first"]),
            last=date.fromisoformat(mapping["last"]),
        )


def checked_windows(windows: Iterable[Window], *, cohort: str) -> tuple[Window, ...]:
    """Return a cohort's windows in the order of their kinds.

    Raises:
        InvalidValue: too many, two of one kind, or a name that leaves no room for those of periods.
    """
    found = tuple(sorted(windows, key=lambda window: window.kind))
    if len({window.kind for window in found}) != len(found) or len(found) > WINDOWS_MAX:
        expected = f"at most {WINDOWS_MAX} windows, each of another kind"
        raise InvalidValue(field="windows", value=[window.kind for window in found], expected=expected)
    longest = NAME_LENGTH_MAX - SUFFIX_LENGTH_MAX
    if found and len(cohort) > longest:
        expected = f"at most {longest} characters for a cohort with windows: periods have longer names"
        raise InvalidValue(field="name", value=cohort, expected=expected)
    return found


def rolling_of(text: str) -> tuple[str, str] | None:
    """Return the number and the unit of the buckets that `7d`, `4w` or `12m` means, as texts; None if it is
    written otherwise, or of other numbers than a window may have."""
    found = _ROLLING.fullmatch(text)
    if found is None or not 2 <= int(found[1]) <= SLIDING_MAX:
        return None
    return found[1], next(unit for unit in BUCKETS if unit[0] == found[2])


def periods_of(windows: Iterable[Window], cohort: str, first: date, last: date) -> list[Period]:
    """Return all periods of a cohort's windows that a round collected on these days is in.

    Raises:
        InvalidValue: as `Window.periods`.
    """
    return [period for window in windows for period in window.periods(cohort, first, last)]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
