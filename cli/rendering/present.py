"""Answers: one strict JSON value on standard output for scripts, tables for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping

from rich.console import Console, RenderableType
from rich.table import Table

from shuffle_ledger.accounting import exact_text, lower_text, upper_text
from shuffle_ledger.cli.rendering.messages import say
from shuffle_ledger.cli.surroundings import abandon
from shuffle_ledger.ledger.values import Json, document_of

__all__ = ["Json", "document_of"]  # offered here too: a command presents what it got

upper, lower = upper_text, lower_text  # as commands call them

PIPED_WIDTH = 120  # columns, where there is no terminal to ask


def present(document: Json, people: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Writes one answer to standard output: `document` under `--json`, else what `people()` makes."""
    if as_json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        console = console_on(sys.stdout)
        with console.capture() as rendered:
            console.print(people())
        sys.stdout.writelines(line.rstrip() + "\n" for line in rendered.get().splitlines())
    sys.stdout.flush()


def present_decision(document: Json, people: Callable[[], RenderableType], *, as_json: bool) -> None:
    """Writes a decision like `present`; where that fails, to standard error.

    It raises nothing: the ledger has recorded the decision, and the command's exit code tells it.
    """
    try:
        present(document, people, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - whatever went wrong with the output, the decision stands
        abandon("stdout")
        say(f"the answer could not be written ({error}); it is recorded: {json.dumps(document)}")


def tell_overspent(cohort: str) -> None:
    """Writes to standard error that a command left a cohort overspent."""
    say(
        f"cohort {cohort!r} is OVERSPENT: its budget was exceeded. It admits nothing any more, and rounds"
        " that it admitted must not be collected any more."
    )


def console_on(stream: object) -> Console:
    """Returns a console without highlighting; without a terminal, plain and `PIPED_WIDTH` wide."""
    terminal = bool(getattr(stream, "isatty", lambda: False)())
    return Console(file=stream, highlight=False, width=None if terminal else PIPED_WIDTH)  # type: ignore[arg-type]  # any text stream


def facts(title: str, rows: Mapping[str, object]) -> Table:
    """Returns a two-column table: what, and how much."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, shown(value))
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


def bar(fraction: float, width: int = 24) -> str:
    """Returns a bar of `width` cells, filled as `fraction` says: rounded up, but full only from 1 on."""
    filled = width if fraction >= 1 else min(width - 1, math.ceil(fraction * width))
    return "█" * filled + "░" * (width - filled)
