"""A ledger that lived under the first schema: every chain holds after the upgrade, and goes on."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, MetaData, Table, insert, text
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical, entries
from shuffle_ledger.ledger.values.entries import GENESIS_DIGEST, EntryBody, EntryKind, LedgerEntry, Spending
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest, request_digest
from shuffle_ledger.ledger.verification.verifier import verify

OLD_POLICY = "shuffle-ledger-numerics-20"  # entries of today's policy must say when they were registered
MOMENT = datetime(2025, 1, 6, 12, 30, tzinfo=UTC)
EPSILON, DELTA = 1.0, 1e-9
NAMES = ("phones", "tablets")


def described() -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000)


def request(cohort: str, number: int) -> RoundRequest:
    return RoundRequest(round_id=f"{cohort}-{number}", cohort=cohort, round=described())


def recorded_at(cohort: str, sequence: int) -> datetime:
    """Return when an entry was recorded: both cohorts at first, then one half an hour after the other."""
    later = timedelta(minutes=30) if cohort == "tablets" and sequence > 1 else timedelta()
    return MOMENT + timedelta(hours=sequence - 1) + later


def chain(accountant: Accountant, cohort: str) -> list[LedgerEntry]:
    """Return entries as the first version wrote them: opened, admitted, refused by nothing but its number."""
    accounted = slot_for(described())
    loss = entries.loss_digest(accountant.privacy_loss(accounted).to_bytes()).hex()
    made: list[LedgerEntry] = []
    for sequence in (1, 2, 3):
        held = sequence - 1
        spent = (
            Spending.from_certificate(accountant.certify({accounted: held}, delta=DELTA), delta=DELTA)
            if held
            else Spending.nothing(DELTA)
        )
        spent = dataclasses.replace(spent, method=OLD_POLICY if held else spent.method)
        details: dict[str, Any] = {"population": 10**6, "policy": "fixed"}
        if held:
            details = {
                "request": canonical.decode(request(cohort, held).to_bytes()),
                "accounted": accounted.to_mapping(),
                "requested": spent.to_mapping(),
                "privacy_loss": loss,
            }
        body = EntryBody(
            cohort=cohort,
            sequence=sequence,
            kind=EntryKind.ADMITTED if held else EntryKind.OPENED,
            round_id=f"{cohort}-{held}" if held else None,
            actor="tester",
            recorded_at=recorded_at(cohort, sequence),
            numerical_policy=OLD_POLICY,
            epsilon_budget=EPSILON,
            delta_budget=DELTA,
            spent=spent,
            details=details,
        )
        made.append(LedgerEntry.following(made[-1].digest if made else GENESIS_DIGEST, body))
    return made


def live(connection: Connection, accountant: Accountant) -> None:
    """Fill a database of the first schema: two cohorts, two admitted rounds each, one pending."""
    found = MetaData()
    found.reflect(connection)
    tables: dict[str, Table] = dict(found.tables)
    parameters = entries.round_bytes(slot_for(described()))
    kind = entries.round_digest(parameters)
    connection.execute(insert(tables["accounted_rounds"]).values(digest=kind, parameters=parameters))
    for cohort in NAMES:
        values = {"population": 10**6, "epsilon_budget": EPSILON, "delta_budget": DELTA, "policy": "fixed"}
        connection.execute(insert(tables["cohorts"]).values(name=cohort, opened_at=MOMENT, **values))
        for number in (1, 2, 3):
            content = request(cohort, number).to_bytes()
            row = {
                "round_id": f"{cohort}-{number}",
                "cohort": cohort,
                "content": content,
                "content_digest": request_digest(content),
                "registered_by": "tester",
                "registered_at": MOMENT,
                "outcome_sequence": number + 1 if number < 3 else None,
            }
            connection.execute(insert(tables["rounds"]).values(**row))
        made = chain(accountant, cohort)
        for entry in made:
            connection.execute(insert(tables["entries"]).values(**vars(entry)))
        head = {"cohort": cohort, "sequence": 3, "digest": made[-1].digest, "status": "open"}
        connection.execute(insert(tables["heads"]).values(**head))
        held = {"cohort": cohort, "accounted_digest": kind, "count": 2, "local_count": 2}
        connection.execute(insert(tables["holdings"]).values(**held))


WRITER = Accountant()  # of the entries of before; it computes the same rounds once


@pytest.fixture
def old_database_url(empty_database_url: str) -> str:
    """Return a populated database of schema 0001."""
    engine = engines.connect(empty_database_url, migrating=True)
    with engines.writing(engine) as connection:
        config = schema._configuration()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        live(connection, WRITER)
    engine.dispose()
    return empty_database_url


@pytest.mark.slow
def test_a_populated_ledger_is_upgraded_verified_and_continued(old_database_url: str) -> None:
    schema.initialise(old_database_url)
    accountant = Accountant()
    with Store.connect(old_database_url) as store:
        report = verify(store, accountant, numbers="all")
        assert report.ok, report
        assert [found.entries for found in report.cohorts] == [3, 3]
        assert store.count_entries("phones") == {"opened": 1, "admitted": 2}
        assert store.pending(limit=10) == ["phones-3", "tablets-3"]
        assert isinstance(admit(store, accountant, "phones-3"), Admitted)
        settle(store, accountant, "phones-1", reports=900, actor="tester")
        register(store, request("tablets", 4), actor="tester")
        open_cohort(
            store, name="watches", population=9, epsilon=1.0, delta=1e-6, policy="fixed", actor="tester"
        )
        assert len(store.standing().ledger_id) == 32
        report = verify(store, accountant, numbers="all")
        assert report.ok, report


def test_entries_of_before_stand_in_the_feed_in_the_order_of_time(old_database_url: str) -> None:
    schema.initialise(old_database_url)
    with Store.connect(old_database_url) as store:
        open_cohort(store, name="aged", population=9, epsilon=1.0, delta=1e-6, policy="fixed", actor="tester")
        page = events_after(store)
        assert [(each.cohort, each.sequence) for each in page.events] == [
            *((name, sequence) for sequence in (1, 2, 3) for name in NAMES),
            ("aged", 1),
        ]


@pytest.mark.parametrize("body", [b"", b"\xff\\", b'{"recorded_at":5}', b'{"recorded_at":"'])
def test_an_entry_that_was_tampered_with_does_not_stop_the_upgrade(
    old_database_url: str, body: bytes
) -> None:
    engine = engines.connect(old_database_url, migrating=True)
    with engines.writing(engine) as connection:
        disable = "DROP TRIGGER guard_00_entries_update"
        if connection.dialect.name == "postgresql":
            disable = "ALTER TABLE entries DISABLE TRIGGER USER"
        connection.execute(text(disable))
        change = text("UPDATE entries SET body = :body WHERE cohort = 'tablets' AND sequence = 2")
        connection.execute(change, {"body": body})
    engine.dispose()
    schema.initialise(old_database_url)
    with Store.connect(old_database_url) as store, store.engine.connect() as connection:
        found = connection.execute(text("SELECT cohort, sequence FROM entries ORDER BY position")).all()
        assert len(found) == 6
        for name in NAMES:
            assert [row.sequence for row in found if row.cohort == name] == [1, 2, 3]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET kind = kind",
        "DELETE FROM entries",
        "DELETE FROM heads",
        "UPDATE heads SET sequence = sequence + 2",
        "UPDATE heads SET admitted = admitted + 1",
        "UPDATE cohorts SET epsilon_budget = 100",
        "UPDATE cohorts SET delta_budget = 0.5",
        "UPDATE registrations SET cohort = 'tablets'",
        "DELETE FROM registrations",
        "DELETE FROM rounds",
        "INSERT INTO heads (cohort, sequence, digest, status) VALUES ('nobody', 1, 'x', 'open')",
    ],
)
def test_an_upgraded_database_guards_what_a_new_one_does(old_database_url: str, statement: str) -> None:
    schema.initialise(old_database_url)
    with (
        Store.connect(old_database_url) as store,
        pytest.raises(DBAPIError),
        store.engine.begin() as connection,
    ):
        connection.execute(text(statement))


@pytest.mark.parametrize("empty_database_url", ["sqlite"], indirect=True)  # elsewhere no row dangles
def test_an_upgrade_of_a_damaged_file_changes_nothing(old_database_url: str) -> None:
    engine = engines.connect(old_database_url, migrating=True)
    with engines.writing(engine) as connection:
        connection.execute(text("DROP TRIGGER guard_05_rounds_delete"))
        connection.execute(text("DELETE FROM rounds WHERE round_id = 'phones-1'"))
    with pytest.raises(Damaged, match="missing"):
        schema.initialise(old_database_url)
    with engine.connect() as connection:
        revision = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        assert revision == "0001"
    engine.dispose()
