"""A benchmark: a name, a preparation that is not measured, and the measured work."""

from __future__ import annotations

import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

REPEATS = 5
_ENOUGH_SECONDS = 3.0
_CLEAR_PEAK = "5"  # what Linux calls the peak of resident memory in clear_refs


class Interval(NamedTuple):
    """An answer with both sides; `upper` alone when the method knows no lower bound."""

    upper: float
    lower: float | None = None

    def __str__(self) -> str:
        """`[lower, upper]` to six digits."""
        return f"[{'?' if self.lower is None else f'{self.lower:.6g}'}, {self.upper:.6g}]"

    @property
    def width(self) -> float:
        """Width relative to the upper end; nan where there is no lower one."""
        if self.lower is None:
            return math.nan
        return (self.upper - self.lower) / self.upper if self.upper else 0.0


Answer = str | Interval
Work = Callable[[], Answer]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a table.

    Attributes:
        name: what is done, unique within its module.
        prepare: makes what the work needs, and returns the work; only the work is measured.
        group: cases of one group do the same work; the first is what the others are compared with.
        needs: module that the case cannot do without, such as a peer's package.
        repeats: how often the work is done; the median counts.
        computes: whether the work only computes. Then its processor time counts, which other work on the
            machine changes little; otherwise the time on the wall.
    """

    name: str
    prepare: Callable[[], Work]
    group: str = ""
    needs: str | None = None
    repeats: int = REPEATS
    computes: bool = False


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Time and memory of one case, in a separate process."""

    seconds: float
    peak_mib: float
    answer: str
    width: float


def measure(case: Case) -> Measured:
    """The median seconds of the work, the peak memory of this process during it, and the last answer.

    The work is repeated less often when it takes long.
    """
    work = case.prepare()
    gc.collect()
    _forget_peak()
    clock = time.process_time if case.computes else time.perf_counter
    seconds: list[float] = []
    answer: Answer = ""
    while len(seconds) < case.repeats and sum(seconds) < _ENOUGH_SECONDS:
        began = clock()
        try:
            answer = work()
        except (ArithmeticError, AssertionError, RuntimeError, ValueError) as error:
            # That a peer gives up is a result, too.
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
        seconds.append(clock() - began)
    width = answer.width if isinstance(answer, Interval) else math.nan
    return Measured(seconds=statistics.median(seconds), peak_mib=_peak_mib(), answer=str(answer), width=width)


def _forget_peak() -> None:
    """Count the peak from here, where the system can: what preparing took is not the work's."""
    counter = Path("/proc/self/clear_refs")
    if counter.exists():
        counter.write_text(_CLEAR_PEAK)


def _peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
