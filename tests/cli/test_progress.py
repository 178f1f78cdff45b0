"""Progress where there is no terminal: a line a minute, and none of short work."""

from __future__ import annotations

import io

from shuffle_ledger.cli.rendering.progress import progress_on


def test_without_a_terminal_long_work_writes_a_line_a_minute() -> None:
    now, stream = 0.0, io.StringIO()
    with progress_on(stream, clock=lambda: now) as tell:
        for done in range(300):
            now = float(done)
            tell("rounds", done, 300)
    lines = [f"rounds: {seconds} of 300 after {seconds} seconds" for seconds in (60, 120, 180, 240)]
    assert stream.getvalue().splitlines() == lines


def test_work_goes_on_where_nothing_can_be_written() -> None:
    now, closed = 0.0, io.StringIO()
    with progress_on(closed, clock=lambda: now) as tell:
        closed.close()
        now = 61.0
        tell("rounds", 1, 2)
