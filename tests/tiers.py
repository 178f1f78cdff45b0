"""Three tiers of tests: the order in which processes run them, and a limit on the time of the fast ones."""

from __future__ import annotations

import gc
import itertools
import math
import os
import resource
import sys
import time
from collections.abc import Generator, Sequence

import numpy as np
import pytest

LIMIT_SECONDS = 2.0  # of processor time, where `_calibrate` takes REFERENCE_SECONDS of it
REFERENCE_SECONDS = 0.05
IMPORTS_MAX = 20  # a test that imports more modules is not judged: it pays for all that come after it
MARKS = ("system", "slow")
FAST = "not slow and not system"  # as the Makefile chooses it
DATABASES = (  # fixtures of PostgreSQL, and parameters of those that choose a database
    *("postgresql", "postgresql_store", "postgresql_server", "postgresql_url"),
    *("new_postgresql_database", "new_postgresql_ledger"),
)
GARBAGE_MIN = 50_000  # objects before garbage is looked for: seldomer than usual, a tenth of the tests' time
OVER_LIMIT = "processor_seconds_over_the_limit"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected: nothing of it is garbage, and all of it is looked through
    again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(GARBAGE_MIN)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests of PostgreSQL: the fast tier starts no server, and runs the same tests on SQLite."""
    if _uses_postgresql(item):
        item.add_marker(pytest.mark.slow)


def _uses_postgresql(item: pytest.Item) -> bool:
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = (*getattr(item, "fixturenames", ()), *(value for value in chosen if isinstance(value, str)))
    return any(name in DATABASES for name in names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests for the processes of `--dist worksteal`; one process keeps the order of the files.

    Tests of policies, whose rules know no database, stay on SQLite alone.
    """
    gc.freeze()  # what the tests are made of stays: else each collection looks through all of it
    items[:] = [
        item for item in items if not (item.get_closest_marker("policies") and _uses_postgresql(item))
    ]
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = in_shares(items, processes)


def in_shares(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests in an order whose equal parts, one for each process, begin with the longest tests.

    Up to half of the parts begin with system tests, which mostly wait, and the others with slow ones. An idle
    process takes tests from the end of another's part: the fast ones.
    """
    tiers: dict[str, list[pytest.Item]] = {"slow": [], "system": [], "fast": []}
    for item in items:
        tiers[next((mark for mark in MARKS if item.get_closest_marker(mark)), "fast")].append(item)
    first: list[list[pytest.Item]] = [[] for _ in range(processes)]
    waiting = processes // 2
    for mark, parts in (("system", first[:waiting]), ("slow", first[waiting:])):
        for _, of_one_file in itertools.groupby(tiers[mark], key=lambda item: item.path):
            min(parts, key=len).extend(of_one_file)
    fast = iter(tiers["fast"])
    ordered: list[pytest.Item] = []
    for number, longest in enumerate(first):
        size = (len(items) - len(ordered)) // (processes - number)
        ordered += longest
        ordered += itertools.islice(fast, max(size - len(longest), 0))
    return [*ordered, *fast]


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
