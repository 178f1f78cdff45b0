"""The limit on the processor time of a test without a mark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import tiers

MAKEFILE = Path(__file__).parents[2] / "Makefile"

MODULES = 30  # more than a judged test may import
WORK = """
import importlib, resource, subprocess, sys, time
import pytest

def work():
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass

@pytest.fixture
def slow_fixture():
    work()

def test_light():
    time.sleep(0.2)

def test_with_a_slow_fixture(slow_fixture):
    pass

def test_heavy():
    work()

def test_heavy_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.1: pass"], check=True)

@pytest.mark.slow
def test_marked_slow():
    work()

@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_database(database):
    pass

@pytest.mark.system
def test_marked_system():
    work()

def test_heavy_for_the_first_imports():
    for number in range({modules}):
        importlib.import_module(f"small_{{number}}")
    work()

def test_heavy_and_wrong():
    work()
    raise ValueError("wrong anyhow")
"""


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False], ids=["fast tier", "everything"])
def test_a_heavy_test_without_a_mark_is_found_and_no_other(
    fast: bool,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(pytester.path)
    for number in range(MODULES):
        pytester.makepyfile(**{f"small_{number}": ""})
    pytester.makepyfile(test_work=WORK.format(modules=MODULES))
    with monkeypatch.context() as patched:  # before this test is judged itself
        patched.setattr(tiers, "LIMIT_SECONDS", 0.05)
        patched.setattr(tiers, "slowness", lambda: 1.0)
        ran = pytester.runpytest_inprocess("-m", tiers.FAST if fast else "", plugins=[tiers])
    heavy = {"test_heavy", "test_heavy_child"}
    lines = [line for line in ran.outlines if line.startswith("NEEDS @pytest.mark.slow")]
    assert {line.rpartition("::")[2] for line in lines} == heavy
    failed = {line.partition("::")[2].split()[0] for line in ran.outlines if line.startswith("FAILED")}
    assert failed == {"test_heavy_and_wrong"} | (heavy if fast else set())
    ran.assert_outcomes(passed=4 if fast else 9, failed=3 if fast else 1, deselected=3 if fast else 0)
    ran.stdout.fnmatch_lines("*wrong anyhow*")


CASES = """
import pytest

def test_sum(): pass

@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_storage(database): pass

@pytest.mark.policies
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_rules(database): pass

@pytest.mark.system
def test_system(): pass
"""
IN_TIERS = {
    "test-fast": {"test_sum", "test_storage[sqlite]", "test_rules[sqlite]"},
    "test": {"test_sum", "test_storage[sqlite]", "test_storage[postgresql]", "test_rules[sqlite]"},
}


@pytest.mark.slow
@pytest.mark.parametrize("tier", IN_TIERS)
def test_each_tier_takes_the_cases_that_are_meant_for_it(pytester: pytest.Pytester, tier: str) -> None:
    chosen = re.search(rf'^{tier}: .*\n\t.* -m "(.+)" ', MAKEFILE.read_text("utf-8"), flags=re.MULTILINE)
    assert chosen is not None
    assert tier != "test-fast" or chosen[1] == tiers.FAST
    pytester.makepyfile(test_cases=CASES)
    collected = pytester.inline_run("--collect-only", "-m", chosen[1], plugins=[tiers])
    items = collected.getcalls("pytest_collection_finish")[0].session.items
    assert {item.name for item in items} == IN_TIERS[tier]
