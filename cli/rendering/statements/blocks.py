"""The parts that a statement is set from, in HTML and as PDF alike: what is in none of them is on no page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

RAISED = "¹²³⁴⁵⁶⁷⁸⁹"  # footnotes: the number of a term


class Column(NamedTuple):
    """A column's heading; numbers stand right, below each other."""

    name: str
    width: int  # share of the table's width, relative to the others
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The heading of what follows."""

    text: str
    level: int
    new_page: bool = False  # on paper
    kind: Literal["heading"] = "heading"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Whether the promise is kept, before everything else, and how much of the budget is used."""

    word: str
    sentence: str
    good: bool
    used: float | None  # share of the budget, rounded up, at most 1; None: no budget of the whole life
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A few sentences."""

    text: str
    kind: Literal["paragraph"] = "paragraph"


@dataclass(frozen=True, kw_only=True)
class Points:
    """Short sentences, each by itself."""

    items: tuple[str, ...]
    kind: Literal["points"] = "points"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with values, which may have several lines."""

    rows: tuple[tuple[str, str], ...]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table with a title and a sentence above it; a line break within a cell is meant."""

    title: str
    level: int  # of the title, as a heading
    intro: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: str = ""  # what stands in the middle, in place of the rows that are not shown
    alarming: bool = False
    new_page: bool = False
    kind: Literal["grid"] = "grid"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A drawing, with what it shows in words for readers without pictures."""

    svg: str
    caption: str
    words: str
    kind: Literal["drawing"] = "drawing"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The footnotes, from 1 on: a name and its meaning."""

    listed: tuple[tuple[str, str], ...]
    kind: Literal["terms"] = "terms"


Block: TypeAlias = Heading | Answer | Paragraph | Points | Facts | Grid | Drawing | Terms


@dataclass(frozen=True, kw_only=True)
class Document:
    """The whole: an answer for each cohort, the conditions and the terms, and then annexes."""

    title: str
    subtitle: str
    alarms: tuple[str, ...]  # before everything else: cohorts that are overspent or frozen
    blocks: tuple[Block, ...]


def shortened(rows: Sequence[tuple[str, ...]], rows_max: int) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Returns the first and the last ones of rows, `rows_max` in all, and a note for their middle."""
    left_out = len(rows) - rows_max
    if left_out <= 0:
        return tuple(rows), ""
    shown = (*rows[: rows_max // 2], *rows[len(rows) - (rows_max - rows_max // 2) :])
    rows_are = "1 row is" if left_out == 1 else f"{left_out:,} rows are"
    return shown, f"{rows_are} left out here; the JSON form of this statement has all of them."
