"""An old backup gives nothing back: it is noticed, refuses to be written, and is never decided upon again."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.rendering.statements.document import document_from
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    open_cohort,
    price,
    quote,
    record_incident,
    register,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.quoting import quote_batch
from shuffle_ledger.ledger.errors import BadSignature, BehindCheckpoint, Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.recovery.reconciliation import reconcile
from shuffle_ledger.ledger.reports.budgets import budget, history
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast, joint_forecast
from shuffle_ledger.ledger.reports.profile import profile_of
from shuffle_ledger.ledger.storage import anchor as anchor_module
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.requests import Admitted, RefusalReason, Refused, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import decided, open_as_usual
from tests.ledger.releases import after_opening

MakeRequest = Callable[..., RoundRequest]


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """A ledger that was put back: what it is now, and what had been seen of it before."""

    url: str
    anchor: Anchor
    checkpoint: Checkpoint

    def store(self) -> Store:
        """Return the ledger as a process opens it that knows the anchor."""
        return Store.connect(self.url, anchor=self.anchor)


def anchored(store: Store, path: Path) -> Store:
    """Write a checkpoint of a ledger, and return the ledger as a process opens it that knows the file."""
    path.write_text(json.dumps(make_checkpoint(store, SigningKey.generate()).to_json()))
    url = store.engine.url.render_as_string(hide_password=False)
    return Store.connect(url, anchor=Anchor(path=path))


def cut_back(store: Store, cohort: str, sequence: int) -> None:
    """Undo a cohort's chain behind an entry, as a restored backup of that moment would have it."""
    later = "IN (SELECT round_id FROM entries WHERE cohort = :cohort AND sequence > :sequence)"
    statements = [
        f"DELETE FROM registrations WHERE cohort = :cohort AND round_id {later}",  # noqa: S608
        f"DELETE FROM rounds WHERE cohort = :cohort AND round_id {later}",  # noqa: S608
        "DELETE FROM entries WHERE cohort = :cohort AND sequence > :sequence",
        (
            "UPDATE heads SET sequence = :sequence, admitted = :sequence - 1, used_share = :used_share,"
            " digest = (SELECT digest FROM"
            " entries WHERE cohort = :cohort AND sequence = :sequence) WHERE cohort = :cohort"
        ),
        "UPDATE holdings SET count = :sequence - 1, local_count = :sequence - 1 WHERE cohort = :cohort",
    ]
    used_share = store.entry(cohort, sequence).content().used_share
    values = {"cohort": cohort, "sequence": sequence, "used_share": used_share}
    triggers: list[tuple[str, str]] = []
    engine = create_engine(store.engine.url)  # without foreign keys
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        else:
            listed = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
            triggers = [(name, sql) for name, sql in listed]
        for name, _ in triggers:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(text(statement), values)
        for _, sql in triggers:
            connection.exec_driver_sql(sql)
    engine.dispose()


@pytest.fixture
def world(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    tmp_path: Path,
) -> World:
    """Return a ledger with "phones" put back from three rounds to one, and "tablets" as it was."""
    for name in ("phones", "tablets"):
        open_as_usual(store, name)
    assert isinstance(decided(store, accountant, make_request("t", cohort="tablets")), Admitted)
    for name in ("a", "b", "c"):
        assert isinstance(decided(store, accountant, make_request(name)), Admitted)
    key = SigningKey.generate()
    checkpoint = make_checkpoint(store, key)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(checkpoint.to_json()))
    cut_back(store, "phones", 2)
    assert verify(store, accountant).ok  # by itself, the old state is a sound one
    url = store.engine.url.render_as_string(hide_password=False)
    return World(
        url=url, anchor=Anchor(path=path, trusted_public_key=key.public_key_bytes), checkpoint=checkpoint
    )


def test_a_ledger_that_was_put_back_is_read_and_never_written(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    with world.store() as store:
        assert store.view("phones").spent.rounds == 1
        before = store.standing().heads
        attempts: list[Callable[[], object]] = [
            lambda: register(store, make_request("new"), actor="tester"),
            lambda: register_and_admit(store, accountant, make_request("new"), actor="tester"),
            lambda: admit_at_once(store, accountant, make_request("new"), actor="tester"),
            lambda: open_as_usual(store, "watches"),
            lambda: settle(store, accountant, "a", reports=900, actor="tester"),
            lambda: void(store, accountant, "a", reason="a bug", actor="tester"),
            lambda: make_checkpoint(store, SigningKey.generate()),  # it would hide what was lost
        ]
        for attempt in attempts:
            with pytest.raises(BehindCheckpoint, match="phones"):
                attempt()
        assert store.standing().heads == before
        assert verify(store, accountant).ok


def test_a_ledger_that_was_put_back_states_nothing_and_is_not_well(
    world: World, accountant: Accountant, tmp_path: Path
) -> None:
    """Its entries say less than was spent, and the anchor proves it."""
    with world.store() as store:
        with pytest.raises(BehindCheckpoint, match="phones"):
            make_statement(store, accountant, ["phones"], made_at=datetime.now(UTC))
        (alarm,) = [each for each in health(store).alarms if each.startswith("CHECKPOINT")]
        assert "behind its checkpoint" in alarm
        scheduled = ScheduledCheckpoints(directory=tmp_path / "none", every_seconds=60)
        assert {"CHECKPOINT there is none yet", alarm} <= set(health(store, scheduled).alarms)


def test_nobody_is_told_what_a_ledger_that_was_put_back_has_left(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    request, today = make_request("new"), datetime.now(UTC).date()
    wanted = ForecastWanted(round=request.round)
    described = request.round.to_mapping() | {"randomizer": {"kind": "krr", "k": 10}}
    questions: list[Callable[[Store], object]] = [
        lambda store: budget(store, accountant, "tablets"),  # as it was: the ledger is one
        lambda store: quote(store, accountant, request),
        lambda store: price(store, accountant, request),
        lambda store: quote_batch(store, accountant, [request]),
        lambda store: forecast(store, accountant, "phones", ForecastWanted(), today=today),
        lambda store: joint_forecast(store, accountant, ["phones", "tablets"], wanted, today=today),
        lambda store: calibrate_for(store, accountant, "phones", described),
    ]
    for question in questions:
        with world.store() as store, pytest.raises(BehindCheckpoint, match="phones"):
            question(store)


def test_what_is_left_is_not_told_once_a_database_was_put_back_under_a_process(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anchor_module, "CHECKED_SECONDS", 0.0)
    open_as_usual(store, "phones")
    for name in ("a", "b"):
        decided(store, accountant, make_request(name))
    with anchored(store, tmp_path / "checkpoint.json") as running:
        assert budget(running, accountant, "phones").rounds_admitted == 2
        running.engine.dispose()  # as a restore cuts all connections
        cut_back(store, "phones", 2)
        for _ in range(2):
            with pytest.raises(BehindCheckpoint):
                budget(running, accountant, "phones")


def test_a_pending_round_is_not_decided_and_not_blamed(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    with Store.connect(world.url) as careless:
        register(careless, make_request("waits"), actor="tester")
    with world.store() as store:
        for _ in range(6):
            with pytest.raises(BehindCheckpoint):
                admit(store, accountant, "waits")
        assert store.round("waits").attempts == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_a_database_put_back_under_a_running_process_is_noticed(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_once: bool,
) -> None:
    """At the first thing it writes, whatever that is: rounds and cohorts, too, do not slip in."""
    open_as_usual(store, "phones")
    for name in ("a", "b"):
        decided(store, accountant, make_request(name))
    with anchored(store, tmp_path / "checkpoint.json") as running:
        decided(running, accountant, make_request("c"))
        running.engine.dispose()  # as a restore cuts all connections
        cut_back(store, "phones", 2)
        if not at_once:
            monkeypatch.setattr(anchor_module, "CHECKED_SECONDS", 0.0)
        with pytest.raises(BehindCheckpoint):
            register(running, make_request("d"), actor="tester")
        with pytest.raises(BehindCheckpoint):
            open_as_usual(running, "watches")
        with pytest.raises(NotFound):
            running.round("d")


@pytest.mark.parametrize("nothing_later", [False, True])
def test_what_may_have_lost_entries_admits_nothing_any_more(
    world: World, accountant: Accountant, make_request: MakeRequest, nothing_later: bool
) -> None:
    with world.store() as store:
        done = reconcile(
            store, world.checkpoint, reason="disk", actor="operator", nothing_later=nothing_later
        )
        assert done.frozen == (("phones",) if nothing_later else ("phones", "tablets"))
        assert done.lost == ()
        refused = decided(store, accountant, make_request("new", epsilon0=0.01))
        assert isinstance(refused, Refused)
        assert refused.reason is RefusalReason.COHORT_FROZEN
        assert quote(store, accountant, make_request("other")).would_be == "refused"
        with pytest.raises(Conflict, match="frozen"):
            void(store, accountant, "a", reason="a bug", actor="tester")
        with pytest.raises(Conflict, match="frozen"):
            settle(store, accountant, "a", reports=900, actor="tester")
        tablets = decided(store, accountant, make_request("more", cohort="tablets", epsilon0=0.1))
        assert isinstance(tablets, Admitted if nothing_later else Refused)
        stated = budget(store, accountant, "phones")
        assert (stated.status, stated.epsilon_remaining) == ("frozen", 0.0)
        assert stated.epsilon_spent_upper == float("inf")
        assert (stated.composition_epsilon_upper, stated.local_epsilon_upper) == (float("inf"),) * 2
        assert all(each.epsilon_upper == float("inf") for each in stated.filters)
        (made,) = make_statement(store, accountant, ["phones"], made_at=datetime.now(UTC)).cohorts
        bounds: list[float] = [made.composition.epsilon_upper, made.local_epsilon_upper]
        bounds += [each.epsilon_upper for each in made.profile]
        bounds += [each.epsilon_upper for each in made.filters]
        assert set(bounds) == {float("inf")}
        assert profile_of(store, accountant, store.view("phones")) == ()
        then = made.lost[0].recorded_at - timedelta(microseconds=1)  # what was lost had been written by then
        (made,) = make_statement(store, accountant, ["phones"], made_at=datetime.now(UTC), as_of=then).cohorts
        assert (made.verdict, made.spent.epsilon_upper) == ("unknown", float("inf"))
        entry = next(point for point in history(store, "phones") if point.kind == "frozen")
        assert (entry.actor, entry.reason) == ("operator", "disk")
        report = verify(store, accountant, numbers="all")
        assert report.ok, report


@pytest.mark.parametrize("nothing_later", [False, True])
def test_a_period_that_a_frozen_cohort_opens_later_knows_nothing_of_what_was_lost(
    store: Store, accountant: Accountant, make_request: MakeRequest, nothing_later: bool
) -> None:
    """Rounds that were lost may have been collected in any period, seen by a checkpoint or not."""
    week = Window(unit="week", epsilon=1.0, delta=1e-9)
    common: dict[str, Any] = {"population": 10**6, "delta": 1e-9, "policy": "adaptive", "actor": "tester"}
    open_cohort(store, name="watches", epsilon=2.0, windows=(week,), **common)
    open_as_usual(store, "phones")
    assert isinstance(decided(store, accountant, make_request("a")), Admitted)
    checkpoint = make_checkpoint(store, SigningKey.generate())
    cut_back(store, "phones", 1)
    reconcile(store, checkpoint, reason="disk", actor="operator", nothing_later=nothing_later)
    (window,) = budget(store, accountant, "watches").windows
    described = make_request("b", cohort="watches").round
    record_incident(
        store,
        accountant,
        "watches",
        round_id="b",
        described=described,
        reason="released",
        actor="tester",
        collected_on=window.period.first,
        released=after_opening(store.cohort("watches")),
    )
    statement = make_statement(store, accountant, [window.period.name], made_at=datetime.now(UTC))
    (stated,), shown = statement.cohorts, str(document_from(statement, rows_max=50).blocks)
    assert ("The larger end decides." in shown) == nothing_later
    assert ("nothing bounds it" in shown) != nothing_later
    known = (stated.verdict, stated.status, stated.spent.epsilon_upper < 1)
    assert known == (("kept", "open", True) if nothing_later else ("unknown", "frozen", False))
    assert (window.status, window.epsilon_remaining) == (("open", 1.0) if nothing_later else ("frozen", 0.0))
    again = decided(store, accountant, make_request("c", cohort="watches"))
    assert isinstance(again, Admitted if nothing_later else Refused)
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


def test_a_cohort_that_was_lost_whole_is_never_opened_again(
    store: Store, accountant: Accountant, new_ledger: str
) -> None:
    open_as_usual(store, "phones")
    checkpoint = make_checkpoint(store, SigningKey.generate())
    with Store.connect(new_ledger) as fresh:
        done = reconcile(fresh, checkpoint, reason="the disk is gone", actor="operator")
        assert (done.frozen, done.lost) == ((), ("phones",))
        with pytest.raises(Conflict, match="lost"):
            open_as_usual(fresh, "phones")
        insert = text(
            "INSERT INTO cohorts (name, population, delta_budget, policy, opened_at)"
            " VALUES ('phones', 1, 0.5, 'adaptive', CURRENT_TIMESTAMP)"
        )
        with fresh.engine.connect() as connection, pytest.raises(DBAPIError, match="lost"):
            connection.execute(insert)
        open_as_usual(fresh, "watches")
        with pytest.raises(Conflict):
            reconcile(fresh, checkpoint, reason="again", actor="operator")
        assert verify(fresh, accountant).ok


@pytest.fixture
def new_ledger(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return another ledger of the same kind."""
    if database_url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'another.db'}"
    else:
        url = request.getfixturevalue("new_postgresql_database")()
    initialise(url)
    return url


def test_a_ledger_that_lacks_nothing_is_not_reconciled(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    open_as_usual(store, "phones")
    checkpoint = make_checkpoint(store, SigningKey.generate())
    decided(store, accountant, make_request("later"))
    with pytest.raises(Conflict, match="nothing"):
        reconcile(store, checkpoint, reason="why not", actor="operator")
    assert isinstance(decided(store, accountant, make_request("more", epsilon0=0.1)), Admitted)


@pytest.mark.parametrize("reason", ["", " ", "\n", "x" * 2001])
def test_a_reconciliation_says_why(world: World, reason: str) -> None:
    with Store.connect(world.url) as store:
        with pytest.raises(InvalidValue) as caught:
            reconcile(store, world.checkpoint, reason=reason, actor="operator")
        assert caught.value.field == "reason"
        assert store.cohort("phones").status == "open"


def test_a_frozen_cohort_stays_frozen(world: World) -> None:
    with Store.connect(world.url) as store:
        reconcile(store, world.checkpoint, reason="disk", actor="operator")
        for change in (
            "UPDATE heads SET status = 'open', sequence = sequence + 1, freezes = freezes + 1",
            "DELETE FROM reconciliations",
            "UPDATE reconciliations SET reason = 'another'",
        ):
            with (
                pytest.raises(DBAPIError, match=r"stays as it ended|reconciliations"),
                store.engine.begin() as connection,
            ):
                connection.execute(text(change))


@pytest.mark.parametrize("content", [None, "", "{}", '{"format": "shuffle-ledger-heads-1", "heads": []}'])
def test_without_a_usable_anchor_nothing_is_written(
    phones: Store, make_request: MakeRequest, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "anchor.json"
    if content is not None:
        path.write_text(content)
    url = phones.engine.url.render_as_string(hide_password=False)
    with Store.connect(url, anchor=Anchor(path=path)) as store:
        with pytest.raises(BehindCheckpoint, match="nobody can tell"):
            register(store, make_request("a"), actor="tester")
        assert store.count_pending("phones") == 0


def test_an_anchor_that_another_key_signed_is_not_believed(world: World, make_request: MakeRequest) -> None:
    with Store.connect(world.url) as store:
        forged = make_checkpoint(store, SigningKey.generate())  # of the state that was put back
    world.anchor.path.write_text(json.dumps(forged.to_json()))
    with pytest.raises(BadSignature):
        world.anchor.read()
    with world.store() as store, pytest.raises(BehindCheckpoint):
        register(store, make_request("new"), actor="tester")


def test_a_rewritten_chain_is_behind_too(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    """The old state, and other rounds since: as many entries as before, and not the same."""
    with Store.connect(world.url) as careless:
        for name in ("x", "y", "z"):
            decided(careless, accountant, make_request(name, epsilon0=0.1))
        assert careless.view("phones").head_sequence > 4
    with world.store() as store, pytest.raises(BehindCheckpoint, match="phones"):
        register(store, make_request("new"), actor="tester")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_copied_file_is_noticed(
    phones: Store, accountant: Accountant, make_request: MakeRequest, tmp_path: Path
) -> None:
    """What people really do: copy the file, go on, copy it back."""
    file = Path(str(phones.engine.url.database))
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(tmp_path / "backup.db")) as copy:
        source.backup(copy)
    decided(phones, accountant, make_request("a"))
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(make_checkpoint(phones, SigningKey.generate()).to_json()))
    phones.close()
    for suffix in ("-wal", "-shm"):
        Path(f"{file}{suffix}").unlink(missing_ok=True)
    shutil.copy(tmp_path / "backup.db", file)
    restored = Store.connect(f"sqlite:///{file}", anchor=Anchor(path=path))
    with restored, pytest.raises(BehindCheckpoint, match="reconcile"):
        register(restored, make_request("b"), actor="tester")
