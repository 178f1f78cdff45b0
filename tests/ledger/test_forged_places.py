"""The columns beside the chain that the feed, lists and pages read: verification names a change of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.decisions import record_incident
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.saved_heads import saved_heads
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.attack import disarmed
from tests.ledger.test_tampering import lived, problems  # noqa: F401 - a fixture

MakeRequest = Callable[..., RoundRequest]
PLACE = "its place in the feed of events is not behind that of the entry before it"
LISTED = "its row says wrongly whether lists have it from another row"


@pytest.fixture
def told(lived: Store, accountant: Accountant, make_request: MakeRequest) -> Store:  # noqa: F811 - the fixture
    """Return the ledger with an incident as the last entry."""
    described = make_request().round
    record_incident(
        lived, accountant, "phones", round_id="leak", described=described, reason="a bug", actor="eve"
    )
    return lived


@pytest.mark.parametrize("moved", ["swapped", "never given"])
def test_an_incident_that_was_moved_in_the_feed_is_named(
    told: Store, accountant: Accountant, moved: str
) -> None:
    page = events_after(told)
    cursor, last = page.events[-2].cursor, told.view("phones").head_sequence
    change = "UPDATE entries SET position = :to WHERE cohort = 'phones' AND sequence = :sequence"
    with disarmed(told) as connection:
        where = "SELECT position FROM entries WHERE cohort = 'phones' AND sequence = :sequence"
        at = {
            sequence: connection.execute(text(where), {"sequence": sequence}).scalar_one()
            for sequence in (3, last)
        }
        to = {"swapped": at[3], "negative": -5, "nought": 0, "never given": 10**9}[moved]
        if moved == "swapped":
            connection.execute(text(change), {"to": 10**6, "sequence": 3})
        connection.execute(text(change), {"to": to, "sequence": last})
        if moved == "swapped":
            connection.execute(text(change), {"to": at[last], "sequence": 3})
    if moved == "never given" and told.engine.dialect.name == "sqlite":
        return  # there the feed goes up to the last place, so nothing is hidden
    shown = events_after(told, after=cursor).events
    assert "incident" not in [each.kind for each in shown]
    found = problems(told, accountant)
    assert (last, PLACE) in found
    assert {what for _, what in found} == {PLACE}


@pytest.mark.parametrize("state", ["decided", "pending"])
def test_a_round_that_lists_leave_out_is_named(lived: Store, accountant: Accountant, state: str) -> None:  # noqa: F811
    name = {"decided": "d", "pending": "e"}[state]
    with disarmed(lived) as connection:
        connection.execute(text("UPDATE rounds SET shared = true WHERE round_id = :name"), {"name": name})
    assert any(LISTED in what and f"round '{name}'" in what for _, what in problems(lived, accountant))


@pytest.mark.slow
def test_an_entry_that_was_recorded_after_its_head_was_signed_is_named(
    told: Store, accountant: Accountant
) -> None:
    key = SigningKey.generate()
    standing = told.standing()
    last = told.view("phones").recorded_at
    assert last is not None
    for before, wrong in ((timedelta(), False), (timedelta(microseconds=1), True)):
        signed: Any = sign_standing(
            type(standing)(ledger_id=standing.ledger_id, at=last - before, heads=standing.heads), key
        )
        report = verify(told, accountant, against=saved_heads(signed.to_json()))
        named = [each.what for cohort in report.cohorts for each in cohort.problems]
        assert [("after its head was signed" in what) for what in named] == [True] * wrong
        bundle = make_bundle(told, ["phones"], checkpoint=signed)
        found = verify_bundle(bundle.data, accountant, trusted_public_key=key.public_key_bytes)
        assert found.ok is not wrong
        assert [("after its head was signed" in each.what) for each in found.findings] == [True] * wrong
        kept = verify_bundle(
            make_bundle(told, ["phones"]).data, accountant, against=saved_heads(signed.to_json())
        )
        assert kept.ok is not wrong


def test_nothing_is_signed_before_it_was_recorded_though_the_clock_was_set_back_a_little(
    told: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = engine.database_time
    last = told.view("phones").recorded_at
    monkeypatch.setattr(engine, "database_time", lambda it: true_time(it) - timedelta(minutes=5))
    assert told.standing().at == last
    monkeypatch.setattr(engine, "database_time", lambda it: true_time(it) - timedelta(hours=2))
    assert last is not None
    assert told.standing().at < last  # too far: that is a wrong clock, and stays a finding
