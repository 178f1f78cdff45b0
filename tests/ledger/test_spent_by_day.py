"""The spending over days of collection adds up the charges of rounds, in whatever order they came."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import open_cohort, register_and_admit, settle, void
from shuffle_ledger.ledger.reports.spent_by_day import spent_by_day
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest

KIND = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=20_000)
TODAY = datetime.now(UTC).date()


def drawn(store: Store, name: str) -> dict[date, float]:
    return spent_by_day(store, store.view(name), [entry.content() for entry in store.entries_of(name)])


def test_the_order_of_an_import_changes_no_day(store: Store, accountant: Accountant) -> None:
    days = [TODAY - timedelta(days=number) for number in (4, 3, 2, 1)]
    for name, order in (("sorted", days), ("turned", days[::-1])):
        open_cohort(store, name=name, population=10**6, epsilon=1.0, delta=1e-6, policy="adaptive", actor="x")
        for day in order:
            asked = RoundRequest(round_id=f"{name} {day}", cohort=name, round=KIND, collected_on=day)
            register_and_admit(store, accountant, asked, actor="x")
    spent = drawn(store, "turned")
    assert list(spent.values()) == sorted(set(spent.values()))
    assert [spent[day] for day in days] == [drawn(store, "sorted")[day] for day in days]
    settle(store, accountant, f"turned {days[1]}", reports=500, actor="x")  # fewer: it costs more
    dearer = drawn(store, "turned")
    assert dearer[days[0]] == spent[days[0]]
    assert all(dearer[day] > spent[day] for day in days[1:])
    void(store, accountant, f"turned {days[0]}", reason="not collected", actor="x")
    voided = drawn(store, "turned")
    assert voided[days[0]] < spent[days[0]]
    assert voided[TODAY] == store.view("turned").spent.epsilon_upper
