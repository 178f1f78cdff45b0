"""Progress of long work, on standard error: a line that rewrites itself on a terminal, or a line a minute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from shuffle_ledger.cli.rendering.present import console_on

LINE_EVERY_SECONDS = 60.0  # where there is no terminal: logs of schedulers and of containers

Tell = Callable[[str, int, int], None]


@contextmanager
def progress_on(stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """Yields a function to tell what is being done, how much of it is done, and how much there is.

    Without a terminal it writes a line a minute, the first after a minute: short work writes nothing.
    """
    console = console_on(stream)
    if not console.is_terminal:
        yield _lines_on(stream, clock)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bars.update(bar, description=what, completed=done, total=of)

        yield tell


def _lines_on(stream: TextIO, clock: Callable[[], float]) -> Tell:
    began = written_at = clock()

    def tell(what: str, done: int, of: int) -> None:
        nonlocal written_at
        now = clock()
        if now - written_at < LINE_EVERY_SECONDS:
            return
        written_at = now
        with contextlib.suppress(OSError, ValueError):  # work goes on where nothing can be written
            stream.write(f"{what}: {done} of {of} after {int(now - began)} seconds\n")
            stream.flush()

    return tell
