"""Budgets that were read a moment ago: while no chain that they tell of moves, only what waits can change.

These are a cohort's own and those of its windows' present and booked periods: a period may be charged alone,
and another one begins at midnight.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TypeAlias

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.answers.budgets import BudgetStatement
from shuffle_ledger.ledger.decisions.windows import views_booked, views_on
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store

REMEMBERED_MAX = 4096
_Heads: TypeAlias = list[tuple[str, bytes]]  # each chain with the digest of its last entry; none: not open


class RecentBudgets:
    """The last statement about each cohort. Used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        """Begin with none."""
        self._store = store
        self._known: OrderedDict[str, tuple[_Heads, BudgetStatement]] = OrderedDict()

    def budget(self, accountant: Accountant, cohort: str) -> BudgetStatement:
        """Returns the budget of a cohort, and raises the same errors, as `reports.budgets.budget` does.

        The head and the rows that decisions use are read every time, and checked against each other.
        """
        view = self._store.view(cohort)
        day = view.now.date()
        views = (view, *views_on(self._store, view, day), *views_booked(self._store, view, day))
        heads = [(each.cohort.name, each.head_digest) for each in views]
        seen, known = self._known.get(cohort, (None, None))
        if known is not None and seen == heads:
            return dataclasses.replace(known, rounds_pending=self._store.count_pending(cohort))
        found = budget(self._store, accountant, cohort)
        self._known[cohort] = heads, found
        self._known.move_to_end(cohort)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return found
