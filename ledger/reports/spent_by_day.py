"""A budget's spent part by the end of each day of collection, also where rounds came in another order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.reports.budgets import history_point
from shuffle_ledger.ledger.reports.collection_days import days_of, last_of_days
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind

_DECIDED = (EntryKind.ADMITTED, EntryKind.REFUSED)


def spent_by_day(store: Store, view: CohortView, chain: Sequence[EntryBody]) -> dict[date, float]:
    """Return of each day, in order, the epsilon at which filters hold for the rounds collected until its end.

    The charges of these rounds as they are now are added up, and the filters read the sum. It is the bound of
    `last_of_days`, which may count later rounds too, where rounds came in the order of their days, where
    charges do not add up (slots alone decide, or the rounds of one user are counted), and where the chain is
    not whole or was opened again.

    Args:
        store: the ledger.
        view: the budget.
        chain: its last entries, in order; at least one.
    """
    points = [history_point(body) for body in chain]
    days = days_of(points)
    spent = {day: chain[number].spent.epsilon_upper for day, number in last_of_days(points).items()}
    policy = registry.policy_of(store, view)
    adds_up = policy.filters is not None and view.cohort.rounds_per_user is None
    is_whole = [body.sequence for body in chain if body.kind is EntryKind.OPENED] == [chain[0].sequence]
    if not adds_up or not is_whole or days == sorted(days) or view.cohort.status == "frozen":
        return spent
    of_rounds = {body.round_id: day for body, day in zip(chain, days, strict=True) if body.kind in _DECIDED}
    totals = [vars(policy.stated_in(body.details)[0]) for body in chain]
    changes: dict[date, list[dict[str, Any]]] = defaultdict(list)
    for number, body in enumerate(chain[1:], 1):
        before = totals[number - 1]
        change = {name: _sum(one, before[name], sign=-1) for name, one in totals[number].items()}
        changes[of_rounds.get(body.round_id, days[number])].append(change)
    state, total = policy.state(view), dict(totals[0])
    for day in spent:
        for change in changes[day]:
            total = {name: _sum(one, change[name]) for name, one in total.items()}
        until = replace(state, total=replace(state.total, **total))
        spent[day] = policy.spending(until, rounds=1).epsilon_upper
    return spent


def _sum(one: Any, other: Any, *, sign: int = 1) -> Any:
    """Return the sum of two coordinates of a total, or their difference: numbers, or tuples of them."""
    if isinstance(one, tuple):
        return tuple(each + sign * more for each, more in zip(one, other, strict=True))
    return one + sign * other
