"""The memory that a computation takes, measured without slowing it down where the system can."""

from __future__ import annotations

import ctypes
import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROCESS = Path("/proc/self")


class Peak:
    """The largest number of bytes in use at once, beside those that were in use before."""

    used = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Yields a `Peak` that is known after the block.

    Linux counts pages, and can begin to count anew. Elsewhere Python counts every allocation, which takes
    several times as long.
    """
    peak, before = Peak(), _pages_counted_anew()
    if before is None:
        tracemalloc.start()
    try:
        yield peak
        peak.used = tracemalloc.get_traced_memory()[1] if before is None else _bytes("VmHWM") - before
    finally:
        if before is None:
            tracemalloc.stop()


def _pages_counted_anew() -> int | None:
    """Returns the bytes in use, from which the largest number is counted; None where it cannot be."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else arrays may lie where others were, and take no page
        (PROCESS / "clear_refs").write_text("5")
        return _bytes("VmRSS")
    except (OSError, AttributeError):
        return None


def _bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB$", (PROCESS / "status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10
