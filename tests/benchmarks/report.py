"""The tables: on the terminal as they are measured, and in docs/benchmarks.md."""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.case import Case, Measured

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
_COLUMNS = ("seconds", "times", "MiB", "width", "answer")


def heading(subject: str) -> str:
    """The head of a subject's table on a terminal."""
    return f"{subject:56} {'seconds':>10} {'times':>8} {'MiB':>6} {'width':>8}  answer"


def line(case: Case, taken: Measured, first: Measured | None) -> str:
    """One case on a terminal."""
    seconds, times, mib, width, answer = _cells(taken, first)
    return f"{case.name:56} {seconds:>10} {times:>8} {mib:>6} {width:>8}  {answer}"


def write(subject: str, about: str, measured: Sequence[tuple[Case, Measured]]) -> None:
    """Puts a subject's table into the page, in the place of the one that was there."""
    marks = (
        f"<!-- {subject}: begin, written by `python -m tests.benchmarks --write` -->",
        f"<!-- {subject}: end -->",
    )
    begin, end = marks
    rows = []
    groups: dict[str, Measured] = {}
    for case, taken in measured:
        cells = _cells(taken, groups.get(case.group) if case.group else None)
        groups.setdefault(case.group, taken)
        rows.append(
            "| "
            + " | ".join([case.name.replace("|", "\\|"), *cells[:-1], cells[-1].replace("|", "\\|")])
            + " |"
        )
    table = [
        "| " + " | ".join(("", *_COLUMNS)) + " |",
        "|---|" + "---:|" * (len(_COLUMNS) - 1) + "---|",
        *rows,
    ]
    title = f"## {subject.replace('_', ' ').capitalize()}"
    block = "\n".join([begin, title, "", about.strip(), "", f"*{_machine()}*", "", *table, end])
    text = PAGE.read_text("utf-8") if PAGE.exists() else _INTRODUCTION
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    text = pattern.sub(lambda _: block, text) if pattern.search(text) else f"{text.rstrip()}\n\n{block}\n"
    PAGE.write_text(text, "utf-8")


def _cells(taken: Measured, first: Measured | None) -> tuple[str, str, str, str, str]:
    times = "" if first is None else f"{taken.seconds / first.seconds:.3g}"
    width = "" if math.isnan(taken.width) else f"{taken.width:.1e}"
    return f"{taken.seconds:.4g}", times, f"{taken.peak_mib:.0f}", width, taken.answer


def _machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    today = dt.datetime.now(tz=dt.UTC).date()
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"Measured {today:%Y-%m-%d}: {cores} cores, {system}."


_INTRODUCTION = """# Benchmarks

`make bench` measures, and `make bench ARGUMENTS=--write` writes this page. Every case runs alone in a fresh
process, on one thread. *seconds* is the median of up to five runs of the work alone: processor time where it
only computes, time on the wall elsewhere. *times* is the same in units of the first case of its group, *MiB*
the peak of the process during the work with everything it imports, *width* the relative width of the interval
that was answered. Figures compare with each other on one machine only.
"""
