"""Cells of files: texts as CSV has them, and the numbers and dates of Parquet files and workbooks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.files.fields import AUDIENCE, DATE, TEXT, Kind

CHARACTERS_MAX = 131_072  # of one cell, as the csv module allows
# Without these a round is taken for honest, pure or single, which costs less: NaN in them is refused.
_NAN_REFUSED = frozenset({"honest_fraction", "delta0", "count", "reports_per_user"})
_STORED_AS_TEXT = "stored as text: a number or a date may have lost zeros of a name"


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A cell that a program could not compute, or that holds no value although it is not empty.

    Attributes:
        shown: what people see in the cell.
        expected: what would have been accepted, as a phrase.
    """

    shown: str
    expected: str


def is_absent(field: str, cell: object) -> bool:
    """Returns whether a cell holds nothing: it is empty, or NaN, which programs write for what is missing."""
    is_nan = field not in _NAN_REFUSED and str(cell).lower() == "nan"
    return cell is None or cell == "" or is_nan


def typed_cell(field: str, kind: Kind, cell: object) -> object:
    """Returns the typed value of a cell: a text is read as in CSV, a number as in JSON, a date as a date.

    Raises:
        BadValue: the cell is not what its field takes; a name that is stored as a number or a date is
            refused, because spreadsheets take zeros away and make dates of texts.
    """
    if isinstance(cell, Unreadable):
        raise BadValue(field, cell.shown, cell.expected)
    if isinstance(cell, str):
        if len(cell) > CHARACTERS_MAX:
            raise BadValue(field, cell, f"at most {CHARACTERS_MAX:,} characters")
        return kind.read(field, cell, text=True)
    if type(cell) is date and kind is DATE:  # a moment is a date in Python, and none here
        return cell
    if kind in (TEXT, AUDIENCE):
        raise BadValue(field, str(cell), f"{kind.expected}, {_STORED_AS_TEXT}")
    if isinstance(cell, int | float):
        return kind.read(field, cell, text=False)
    raise BadValue(field, str(cell), kind.expected)


def day_or_moment(value: datetime) -> date:
    """Returns the date of a moment at midnight without a zone or in UTC; every other moment as it is."""
    is_utc = value.utcoffset() in (None, timedelta())
    return value.date() if is_utc and value.time() == time() else value
