"""What settling, voiding, correcting and an incident would record, without recording it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shuffle_ledger.ledger.decisions import correct, record_incident, settle, void
from shuffle_ledger.ledger.errors import Conflict, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Incident, ReleaseTimes
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr, today

database_url = sqlite_url  # nothing is written
ROUND = krr(40_000, 1.0, k=4)
SAID: dict[str, Any] = {"reason": "a shard was lost", "actor": "ada"}
COMMANDS: dict[str, Callable[..., Any]] = {
    "settle": partial(settle, round_id="one", reports=300, actor="ada"),
    "void": partial(void, round_id="one", **SAID),
    "correct": partial(correct, round_id="one", changes={"reports": 200}, **SAID),
    "incident": partial(record_incident, cohort="a", round_id="new", described=ROUND, **SAID),
    "unknown incident": partial(record_incident, cohort="a", round_id="new", described=None, **SAID),
}


def rows_in(store: Store) -> dict[str, Any]:
    """Returns where all chains end, and which rounds and periods there are."""
    heads = [dataclasses.replace(head) for head in store.standing().heads]
    return {"heads": heads, "pending": store.pending(limit=10), "cohorts": store.cohort_names()}


@pytest.mark.parametrize("command", COMMANDS)
def test_it_answers_what_is_recorded_then_and_writes_nothing(command: str, clerk: Clerk) -> None:
    clerk.open("a", "b")
    assert clerk.admits(ROUND, "a", "b", name="one")
    restate, parts, before = COMMANDS[command], (clerk.store, clerk.accountant), rows_in(clerk.store)
    foreseen = restate(*parts, dry_run=True)
    assert rows_in(clerk.store) == before
    with pytest.raises(NotFound):
        clerk.store.round("new")
    recorded = restate(*parts)
    assert (foreseen.dry_run, recorded.dry_run, recorded.sequence) == (True, False, 3)
    assert dataclasses.replace(foreseen, dry_run=False) == recorded
    assert len(recorded.audience) == (0 if isinstance(recorded, Incident) else 2)
    assert dataclasses.replace(restate(*parts, dry_run=True), dry_run=False) == recorded


def test_an_incident_of_a_new_period_opens_none(clerk: Clerk) -> None:
    clerk.open("a", windows=(Window(unit="week", epsilon=1.0, delta=1e-8),))
    for cohort in ("a", next(clerk.store.cohort("a").windows[0].periods("a", today(), today())).name):
        said: dict[str, Any] = {"round_id": "new", "described": ROUND, "collected_on": today(), **SAID}
        before = rows_in(clerk.store)
        found = record_incident(clerk.store, clerk.accountant, cohort, dry_run=True, **said)
        assert rows_in(clerk.store) == before
        assert (found.sequence, found.overspent) == (2, True)  # no time is attested


def test_it_refuses_what_would_be_refused(clerk: Clerk) -> None:
    clerk.open("a")
    clerk.ask(ROUND, "a", name="one")
    clerk.void("one")
    parts = (clerk.store, clerk.accountant)
    for command in ("settle", "correct"):
        with pytest.raises(Conflict):
            COMMANDS[command](*parts, dry_run=True)
    later = ReleaseTimes(after=clerk.store.now())
    found = COMMANDS["incident"](*parts, round_id="one", released=later, dry_run=True)
    assert (found.sequence, found.overspent) == (4, False)
