"""The package as others import it: what it needs, what it leaves alone, and its page of public names."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger import accounting
from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"

_IMPORT = """
import builtins, json, os, sys, threading
import numpy, scipy.optimize, scipy.special, scipy.fft
before, opened, environment = set(sys.modules), [], dict(os.environ)
sys.addaudithook(lambda event, arguments: opened.append(str(arguments)) if event in (
    "socket.connect", "subprocess.Popen", "os.system", "os.mkdir", "os.remove", "os.putenv", "os.fork") or (
    event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")) else None)
import shuffle_ledger.accounting
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "foreign": sorted(n for n in added if n not in sys.stdlib_module_names and n not in ("numpy", "scipy")),
    "opened": opened, "threads": threading.active_count(), "environment": dict(os.environ) == environment}))
"""


@pytest.mark.slow
def test_importing_needs_numpy_and_scipy_alone_and_does_nothing() -> None:
    """In a separate process that records written files, processes, sockets and threads."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", _IMPORT], capture_output=True, text=True, check=True, timeout=60
    )
    seen = json.loads(done.stdout)
    assert seen == {"foreign": ["shuffle_ledger"], "opened": [], "threads": 1, "environment": True}
    assert done.stderr == ""


def test_every_public_name_is_on_the_page() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(accounting.__all__)
    assert len(PAGE.read_text().splitlines()) <= 90  # one page


@pytest.mark.slow
def test_the_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(code) == 1
    names: dict[str, Any] = {}
    exec(compile(code[0], str(PAGE), "exec"), names)  # noqa: S102 - our own page
    assert "half as large for `weekly`" in PAGE.read_text()
    charges = names["accountant"].charge(names["weekly"], names["filters"]).gaussian
    assert charges == tuple(sorted(charges, reverse=True))
    assert 0.49 < charges[-1] / charges[0] < 0.52


@pytest.mark.slow
@pytest.mark.parametrize(
    "written", ["blh(epsilon0=1)", "laplace(epsilon0=1)", "uniformity_tester(noise=0.1)"]
)
@pytest.mark.usefixtures("computed_anew")
def test_what_a_round_was_computed_from_is_given_back_at_once(written: str) -> None:
    """A server that computes one round after the other needs no more memory than for one of them."""
    shuffled = ShuffledRound(
        randomizer=parse_randomizer(written), reports=10, sampled_from=100, honest_fraction=0.4
    )
    Accountant(precision=0.05).certify({shuffled: 1}, delta=1e-6)  # what is remembered for good
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        Accountant(precision=0.05).certify({shuffled: 1}, delta=1e-6)
        assert gc.collect() == 0
        assert len(gc.get_objects()) <= before + 100
    finally:
        gc.enable()
