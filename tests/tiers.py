"""Three tiers of tests, and a limit on the processor time of a test that belongs to the fast one."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Generator

import numpy as np
import pytest

LIMIT_SECONDS = 2.0  # of processor time, where `_calibrate` takes REFERENCE_SECONDS of it
REFERENCE_SECONDS = 0.05
IMPORTS_MAX = 20  # a test that imports more modules is not judged: it pays for all that come after it
MARKS = ("slow", "system")
FAST = "not slow and not system"  # as the Makefile chooses it
OVER_LIMIT = "processor_seconds_over_the_limit"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Judge the processor time of a test without a mark: above the limit it fails in the fast tier.

    Other tiers list it at the end of the run.
    """
    modules, before = len(sys.modules), processor_seconds()
    yield
    taken = processor_seconds() - before
    if taken <= LIMIT_SECONDS or any(item.get_closest_marker(mark) for mark in MARKS):
        return
    if len(sys.modules) - modules > IMPORTS_MAX:
        return
    limit = LIMIT_SECONDS * slowness()
    if taken <= limit:
        return
    item.user_properties.append((OVER_LIMIT, taken))
    if item.config.option.markexpr == FAST:
        pytest.fail(
            f"took {taken:.1f} s of processor time, and this machine's limit is {limit:.1f} s:"
            " make the test smaller, or mark it @pytest.mark.slow",
            pytrace=False,
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly which tests this run left out, and which need a mark."""
    reports = [each for found in terminalreporter.stats.values() for each in found]
    over = {
        report.nodeid: taken
        for report in reports
        for name, taken in getattr(report, "user_properties", ())
        if name == OVER_LIMIT
    }
    for nodeid, taken in sorted(over.items(), key=lambda one: -one[1]):
        terminalreporter.write_line(f"NEEDS @pytest.mark.slow, took {taken:.1f} s: {nodeid}", red=True)
    chosen = terminalreporter.config.option.markexpr
    if chosen:
        terminalreporter.write_line(f"This run took only tests that are: {chosen}. `make test-all` runs all.")


def processor_seconds() -> float:
    """Return the processor time of this process, its threads, and the children it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def slowness() -> float:
    """Return how many times slower than the reference this machine is now; at least 1."""
    return max(1.0, max(_calibrate() for _ in range(3)) / REFERENCE_SECONDS)


def _calibrate() -> float:
    """Return the processor time of a fixed computation, half of it in the interpreter."""
    before = time.process_time()
    total = 0.0
    for number in range(1, 250_000):
        total += math.sqrt(number)
    values = np.linspace(0.0, 1.0, 1 << 16)
    for _ in range(10):
        values = np.fft.irfft(np.fft.rfft(values))
    return time.process_time() - before
