"""Memory that an accountant has used stays for its next arrays."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

_FAULTS = """
import resource
import sys
import numpy as np
from shuffle_ledger.accounting import Accountant

if sys.argv[1] == "kept":
    Accountant()

def used():
    kept = [np.ones(1 << 17) for _ in range(16)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del kept
    kept = [np.ones(1 << 17) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

used()
print(used())
"""


def _faults(kind: str) -> int:
    run = [sys.executable, "-c", _FAULTS, kind]
    usual = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return int(subprocess.run(run, check=True, capture_output=True, text=True, env=usual).stdout)


def test_freed_arrays_are_not_mapped_again() -> None:
    """Sixteen arrays of a megabyte, made again: 4,096 pages, none of them new."""
    kept, usual = _faults("kept"), _faults("not kept")
    assert kept <= usual
    if platform.libc_ver()[0] == "glibc":
        assert kept < 400 < usual
