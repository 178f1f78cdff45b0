"""Progress of long work, on standard error: a line that rewrites itself on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shuffle_ledger.cli.rendering.present import console_on

Tell = Callable[[str, int, int], None]


@contextmanager
def progress_on(stream: TextIO) -> Iterator[Tell]:
    """Yields a function to tell what is being done, how much of it is done, and how much there is."""
    console = console_on(stream)
    if not console.is_terminal:
        yield lambda _what, _done, _of: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bars.update(bar, description=what, completed=done, total=of)

        yield tell
