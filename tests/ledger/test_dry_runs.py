"""Dry runs of restatements: they answer what would be recorded, word for word, and record nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import correct, record_incident, settle, void
from shuffle_ledger.ledger.errors import Conflict, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Incident, ReleaseTimes, request_of
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.desk import AnyDesk

pytestmark = pytest.mark.policies

ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=40_000)
SAID: dict[str, Any] = {"reason": "a shard was lost", "actor": "ada"}
Restating = Callable[..., Any]
COMMANDS: dict[str, Restating] = {
    "settle": lambda store, accountant, **more: settle(
        store, accountant, "one", reports=300, actor="ada", **more
    ),
    "void": lambda store, accountant, **more: void(store, accountant, "one", **SAID, **more),
    "correct": lambda store, accountant, **more: correct(
        store, accountant, "one", {"reports": 200}, **SAID, **more
    ),
    "incident": lambda store, accountant, **more: record_incident(
        store, accountant, "a", round_id="new", described=ROUND, **SAID, **more
    ),
    "unknown incident": lambda store, accountant, **more: record_incident(
        store, accountant, "a", round_id="new", described=None, **SAID, **more
    ),
}


def rows_in(store: Store) -> dict[str, Any]:
    """Returns where all chains end, and which rounds and periods there are."""
    return {
        "heads": [dataclasses.replace(head) for head in store.standing().heads],
        "pending": store.pending(limit=10),
        "cohorts": store.cohort_names(),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_it_answers_what_is_recorded_then_and_writes_nothing(
    command: str, store: Store, accountant: Accountant
) -> None:
    desk = AnyDesk(store, accountant)
    for name in ("a", "b"):
        desk.open(name)
    assert isinstance(desk.decide(request_of(["a", "b"], ROUND, round_id="one")), Admitted)
    restate = COMMANDS[command]
    before = rows_in(store)
    foreseen = restate(store, accountant, dry_run=True)
    assert rows_in(store) == before
    with pytest.raises(NotFound):
        store.round("new")
    recorded = restate(store, accountant)
    assert foreseen.dry_run
    assert not recorded.dry_run
    assert dataclasses.replace(foreseen, dry_run=False) == recorded
    assert len(recorded.audience) == (0 if isinstance(recorded, Incident) else 2)
    assert recorded.sequence == 3
    again = restate(store, accountant, dry_run=True)
    assert dataclasses.replace(again, dry_run=False) == recorded


def test_an_incident_of_a_new_period_opens_none(store: Store, accountant: Accountant) -> None:
    desk = AnyDesk(store, accountant)
    desk.open("a", windows=(Window(unit="week", epsilon=1.0, delta=1e-8),))
    today = store.now().date()
    for cohort in ("a", next(store.cohort("a").windows[0].periods("a", today, today)).name):
        said: dict[str, Any] = {"round_id": "new", "described": ROUND, "collected_on": today, **SAID}
        before = rows_in(store)
        found = record_incident(store, accountant, cohort, dry_run=True, **said)
        assert rows_in(store) == before
        assert (found.sequence, found.overspent) == (2, True)  # no time is attested


def test_it_refuses_what_would_be_refused(store: Store, accountant: Accountant) -> None:
    desk = AnyDesk(store, accountant)
    desk.open("a")
    desk.decide(request_of(["a"], ROUND, round_id="one"))
    void(store, accountant, "one", **SAID)
    for command in ("settle", "correct"):
        with pytest.raises(Conflict):
            COMMANDS[command](store, accountant, dry_run=True)
    later = ReleaseTimes(after=store.now())
    told: dict[str, Any] = {"described": ROUND, "released": later, "dry_run": True, **SAID}
    found = record_incident(store, accountant, "a", round_id="one", **told)
    assert (found.sequence, found.overspent) == (4, False)
