"""Answers: one strict JSON value on standard output for scripts, tables for people."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from shuffle_ledger.accounting import bounds_text, exact_text, lower_text, upper_text
from shuffle_ledger.cli.rendering.messages import say
from shuffle_ledger.cli.surroundings import abandon
from shuffle_ledger.ledger.values import Json, document_of

__all__ = ["Json", "document_of"]  # offered here too: a command presents what it got

Shown = TypeVar("Shown")
upper, lower, bounds = upper_text, lower_text, bounds_text  # as commands call them

NAMED_MAX = 3  # overspent chains that one sentence names
LAID_OUT_MAX = 300  # rows of a listing that Rich lays out, which takes a millisecond for each
PIPED_WIDTH = 120  # columns, where there is no terminal to ask and COLUMNS is not set
# The colours of outcomes and states at a terminal.
_COLOURS = {"green": ("admitted", "open", "ok"), "red": ("refused", "overspent", "frozen", "broken")}
_OVERSPENT_ONE = (
    "{} is OVERSPENT: its budget did not cover what was released or promised. It admits nothing any more, and"
    " rounds that it admitted must not be collected any more."
)
_OVERSPENT_SEVERAL = (
    "{} are OVERSPENT: their budgets did not cover what was released or promised. They admit nothing any"
    " more, and rounds that they admitted must not be collected any more."
)
_WIDTH_MIN = 20  # columns, however small COLUMNS is: a table needs some


def present(answer: object, people: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Writes one answer to standard output: its document under `--json`, else what `people()` makes."""
    if as_json:
        sys.stdout.write(json.dumps(document_of(answer), allow_nan=False) + "\n")
    else:
        console = console_on(sys.stdout)
        with console.capture() as rendered:
            console.print(people(), crop=False)  # all but a long listing is within the width
        sys.stdout.writelines(line.rstrip() + "\n" for line in rendered.get().splitlines())
    sys.stdout.flush()


def watched(show: Callable[[], Shown], seconds: float | None) -> Shown:
    """Shows something once, or again after each pause until Ctrl-C; returns what `show` returned last."""
    shown_last = show()
    with suppress(KeyboardInterrupt):
        while seconds is not None:
            time.sleep(seconds)
            console_on(sys.stdout).clear()  # nothing where there is no terminal
            shown_last = show()
    return shown_last


def present_decision(answer: object, people: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Writes a decision like `present`; where that fails, to standard error.

    It raises nothing: the ledger has recorded the decision, and the command's exit code tells it.
    """
    try:
        present(answer, people, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - whatever went wrong with the output, the decision stands
        abandon("stdout")
        document = document_of(answer)
        is_dry = isinstance(document, Mapping) and document.get("dry_run")
        what = "nothing was recorded" if is_dry else "it is recorded"
        say(f"the answer could not be written ({error}); {what}: {json.dumps(document)}")


def tell_overspent(names: Sequence[str], *, dry_run: bool = False) -> None:
    """Writes to standard error, once, that a command left the budgets of some chains overspent, or would."""
    shown_names, more = ", ".join(map(repr, names[:NAMED_MAX])), len(names) - NAMED_MAX
    what = f"cohort{'s' if len(names) > 1 else ''} {shown_names}{f' and {more:,} more' if more > 0 else ''}"
    if dry_run:
        say(f"{what} would be OVERSPENT and would admit nothing any more. Nothing was recorded.")
        return
    said = _OVERSPENT_ONE if len(names) == 1 else _OVERSPENT_SEVERAL
    say(said.format(what))


def console_on(stream: object) -> Console:
    """Returns a console that writes texts as they are, as wide as COLUMNS says, else as the terminal, else
    `PIPED_WIDTH`. It writes no styles if NO_COLOR is not empty, or where there is no terminal."""
    terminal = bool(getattr(stream, "isatty", lambda: False)())
    asked = os.environ.get("COLUMNS", "")
    width = max(_WIDTH_MIN, int(asked)) if asked.isascii() and asked.isdigit() and int(asked) else None
    return Console(
        file=stream,  # type: ignore[arg-type]  # any text stream
        highlight=False,
        markup=False,  # a name may have brackets and colons
        emoji=False,
        width=width or (None if terminal else PIPED_WIDTH),
        color_system=None if os.environ.get("NO_COLOR") else "auto",  # None: no bold and no underline either
    )


def coloured(text: str, *, style: str = "") -> Text:
    """Returns a text whose outcomes and states are green or red."""
    found = Text(text, style=style)
    for colour, words in _COLOURS.items():
        found.highlight_regex(rf"(?i)\b({'|'.join(words)})\b", colour)
    return found


class Listing(Table):
    """A table without lines. More than `LAID_OUT_MAX` rows are not wrapped, however narrow the place is."""

    def __init__(self, *, show_footer: bool = False) -> None:
        """Begin with neither columns nor rows."""
        super().__init__(box=None, pad_edge=False, show_footer=show_footer)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what Rich prints."""
        if self.row_count <= LAID_OUT_MAX:
            yield from super().__rich_console__(console, options)
            return
        columns = [list(self._texts(column)) for column in self.columns]
        widths = [max(each.cell_len for text in column for each in text) for column in columns]
        for row in zip(*columns, strict=True):
            for line in itertools.zip_longest(*row, fillvalue=Text()):
                for place, (text, width) in enumerate(zip(line, widths, strict=True)):
                    blank = " " * (width - text.cell_len)
                    is_right = self.columns[place].justify == "right"
                    yield Segment("  " * bool(place) + blank * is_right)
                    yield from text.render(console)
                    yield Segment(blank * (not is_right))
                yield Segment.line()
        if self.caption is not None:
            yield self.caption

    def _texts(self, column: Column) -> Iterator[list[Text]]:
        """Yield the lines of each cell of a column."""
        yield [Text(str(column.header), style="table.header")]
        for cell in column.cells:
            yield list(cell.split() if isinstance(cell, Text) else Text(str(cell)).split())
        if self.show_footer:
            yield [Text(str(column.footer), style="table.footer")]


def facts(title: str, rows: Mapping[str, object]) -> Table:
    """Returns a two-column table: what, and how much."""
    heading = coloured(title, style="italic")
    table = Table(title=heading, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value if isinstance(value, Bar) else shown(value))
    return table


def shown(value: object) -> str:
    """Returns `value` as people read it: a number that was given exactly, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return exact_text(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar, filled as `fraction` says: rounded up, but full only from 1 on. A narrow place makes it shorter.

    Attributes:
        width: its cells, where there is room.
        text: what stands behind it.
    """

    fraction: float
    width: int = 24
    text: str = ""

    def cells(self, room: int) -> str:
        """Returns the bar, of at most `room` cells."""
        width = max(1, min(self.width, room))
        filled = width if self.fraction >= 1 else min(width - 1, math.ceil(self.fraction * width))
        return "█" * filled + "░" * (width - filled)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what Rich prints: the bar and the text, wrapped."""
        yield Text(f"{self.cells(options.max_width)} {self.text}".rstrip())

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least and the most columns that the bar can use."""
        words = max(map(len, self.text.split()), default=1)
        most = self.width + len(self.text) + bool(self.text)
        return Measurement(words, most).with_maximum(options.max_width)
