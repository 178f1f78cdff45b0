"""Budgets that were read a moment ago: while a cohort's head stays, only what waits can change."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.reports.budgets import BudgetStatement, budget
from shuffle_ledger.ledger.storage.store import Store

REMEMBERED_MAX = 4096


class RecentBudgets:
    """The last statement about each cohort. Used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        """Begin with none."""
        self._store = store
        self._known: OrderedDict[str, BudgetStatement] = OrderedDict()

    def budget(self, accountant: Accountant, cohort: str) -> BudgetStatement:
        """Returns the budget of a cohort, and raises the same errors, as `reports.budgets.budget` does.

        The head and the rows that decisions use are read every time, and checked against each other.
        """
        view = self._store.view(cohort)
        known = self._known.get(cohort)
        if known is not None and known.head.digest == view.head_digest.hex():
            return dataclasses.replace(known, rounds_pending=self._store.count_pending(cohort))
        found = budget(self._store, accountant, cohort)
        self._known[cohort] = found
        self._known.move_to_end(cohort)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return found
