"""Privacy losses, computed once for all tests of all processes of a run.

A loss is a function of the round, the precision and the effort alone. Tests make thousands of accountants
that are asked about the same rounds: at several deltas, beside other rounds, on several databases. The
processes of a run share losses as files in its folder, which the run removes. Every loss is computed for
tests of the accountant that change its thresholds, or look at its work, memory or warnings.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from shuffle_ledger.accounting import RoundLoss, ShuffledRound, accountant

LOSSES_MAX = 500  # tens of kilobytes each
LOSSES_OF_ACCOUNTING_MAX = 50  # up to megabytes each, and asked for again by the next tests
ACCOUNTING = Path(__file__).parent / "accounting"
COMPUTING = {"monkeypatch", "computed_anew"}  # fixtures of tests that compute every loss

RUN_PREFIX = "shuffle-ledger-tests-"  # of the folder of a run; see `conftest.py`

compute = accountant.computed_loss


def shared(shuffled: ShuffledRound, precision: float, most: float) -> RoundLoss:
    """Return the loss that another process of this run computed, or compute it for all of them."""
    run = Path(tempfile.gettempdir())
    if not run.name.startswith(RUN_PREFIX):
        return compute(shuffled, precision, most)
    # All of the round: rounds of which one attribute differs are written alike.
    asked = pickle.dumps((shuffled, precision, most))
    file = run / f"loss-{hashlib.sha256(asked).hexdigest()}"
    if file.exists():
        return RoundLoss.from_bytes(file.read_bytes())
    loss = compute(shuffled, precision, most)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(loss.to_bytes())
    unfinished.replace(file)
    return loss


compute_once = functools.lru_cache(maxsize=LOSSES_MAX)(shared)
compute_once_for_accounting = functools.lru_cache(maxsize=LOSSES_OF_ACCOUNTING_MAX)(compute)
patch = pytest.MonkeyPatch()


@pytest.fixture
def computed_anew() -> None:
    """Have every privacy loss of a test computed."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose for each test, before its fixtures are made."""
    chosen: Callable[[ShuffledRound, float, float], RoundLoss] = compute_once
    if item.path.is_relative_to(ACCOUNTING):
        chosen = compute_once_for_accounting
        if not COMPUTING.isdisjoint(getattr(item, "fixturenames", ())):
            chosen = compute
    patch.setattr(accountant, "computed_loss", chosen)


def pytest_unconfigure() -> None:
    patch.undo()
