"""Privacy losses, computed once in a process for all tests outside of `tests/accounting`.

A loss is a function of the round, the precision and the effort alone. Tests make thousands of accountants
that are asked about the same rounds. Tests of the accountant itself compute everything: they change
thresholds.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from shuffle_ledger.accounting import accountant

LOSSES_MAX = 500  # tens of kilobytes each
ACCOUNTING = Path(__file__).parent / "accounting"

compute = accountant.computed_loss
compute_once = functools.lru_cache(maxsize=LOSSES_MAX)(compute)
patch = pytest.MonkeyPatch()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Choose for each test, before its fixtures are made."""
    of_accounting = item.path.is_relative_to(ACCOUNTING)
    patch.setattr(accountant, "computed_loss", compute if of_accounting else compute_once)


def pytest_unconfigure() -> None:
    patch.undo()
