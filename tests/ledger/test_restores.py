"""An old backup gives nothing back: it is noticed, refuses to be written, and is never decided upon again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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
    price,
    register,
)
from shuffle_ledger.ledger.decisions.quoting import quote_batch
from shuffle_ledger.ledger.errors import BadSignature, BehindCheckpoint, Conflict, NotFound
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.recovery.reconciliation import reconcile
from shuffle_ledger.ledger.reports.budgets import history
from shuffle_ledger.ledger.reports.forecasts import joint_forecast
from shuffle_ledger.ledger.reports.profile import profile_of
from shuffle_ledger.ledger.storage import anchor as anchor_module
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.requests import RefusalReason
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import Clerk, krr, today

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """A ledger that was put back: what it is now, and what had been seen of it before."""

    url: str
    anchor: Anchor
    checkpoint: Checkpoint
    accountant: Accountant

    @contextmanager
    def opened(self, *, anchored: bool = True) -> Iterator[Clerk]:
        """Yield the ledger as a process opens it that knows the anchor, or is careless."""
        with Store.connect(self.url, anchor=self.anchor if anchored else None) as store:
            yield Clerk(store, self.accountant, prefix="since")


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
def world(clerk: Clerk, tmp_path: Path) -> World:
    """Return a ledger with "phones" put back from three rounds to one, and "tablets" as it was."""
    clerk.open("phones", "tablets")
    assert clerk.admits(krr(1_000), "tablets")
    for name in ("a", "b", "c"):
        assert clerk.admits(krr(1_000), name=name)
    key = SigningKey.generate()
    checkpoint = make_checkpoint(clerk.store, key)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(checkpoint.to_json()))
    cut_back(clerk.store, "phones", 2)
    clerk.check()  # by itself, the old state is a sound one
    url = clerk.store.engine.url.render_as_string(hide_password=False)
    anchor = Anchor(path=path, trusted_public_key=key.public_key_bytes)
    return World(url=url, anchor=anchor, checkpoint=checkpoint, accountant=clerk.accountant)


def test_a_ledger_that_was_put_back_is_read_and_never_written(world: World) -> None:
    with world.opened() as clerk:
        assert clerk.store.view("phones").spent.rounds == 1
        before, request = clerk.store.standing().heads, clerk.request(krr(1_000))
        attempts: list[Callable[[], object]] = [
            lambda: register(clerk.store, request, actor="tester"),
            lambda: clerk.decide(request),
            lambda: admit_at_once(clerk.store, clerk.accountant, request, actor="tester"),
            lambda: clerk.open("watches"),
            lambda: clerk.settle("a", 900),
            lambda: clerk.void("a"),
            lambda: make_checkpoint(clerk.store, SigningKey.generate()),  # it would hide what was lost
        ]
        for attempt in attempts:
            with pytest.raises(BehindCheckpoint, match="phones"):
                attempt()
        assert clerk.store.standing().heads == before
        clerk.check()


@ON_SQLITE
def test_a_ledger_that_was_put_back_states_nothing_and_is_not_well(world: World, tmp_path: Path) -> None:
    """Its entries say less than was spent, and the anchor proves it."""
    with world.opened() as clerk:
        with pytest.raises(BehindCheckpoint, match="phones"):
            clerk.statement()
        (alarm,) = [each for each in health(clerk.store).alarms if each.startswith("CHECKPOINT")]
        assert "behind its checkpoint" in alarm
        scheduled = ScheduledCheckpoints(directory=tmp_path / "none", every_seconds=60)
        assert {"CHECKPOINT there is none yet", alarm} <= set(health(clerk.store, scheduled).alarms)


@ON_SQLITE
def test_nobody_is_told_what_a_ledger_that_was_put_back_has_left(world: World) -> None:
    wanted = ForecastWanted(round=krr(1_000))
    questions: list[Callable[[Clerk], object]] = [
        lambda clerk: clerk.budget("tablets"),  # as it was: the ledger is one
        lambda clerk: clerk.quote(clerk.request(krr(1_000))),
        lambda clerk: price(clerk.store, clerk.accountant, clerk.request(krr(1_000))),
        lambda clerk: quote_batch(clerk.store, clerk.accountant, [clerk.request(krr(1_000))]),
        lambda clerk: clerk.forecast(),
        lambda clerk: joint_forecast(
            clerk.store, clerk.accountant, ["phones", "tablets"], wanted, today=today()
        ),
        lambda clerk: clerk.calibrate(krr(1_000)),
    ]
    for question in questions:
        with world.opened() as clerk, pytest.raises(BehindCheckpoint, match="phones"):
            question(clerk)


@ON_SQLITE
def test_what_is_left_is_not_told_once_a_database_was_put_back_under_a_process(
    clerk: Clerk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchor_module, "CHECKED_SECONDS", 0.0)
    clerk.open()
    clerk.fill(krr(1_000), most=2)
    with anchored(clerk.store, tmp_path / "checkpoint.json") as running:
        assert Clerk(running, clerk.accountant).budget().rounds_admitted == 2
        running.engine.dispose()  # as a restore cuts all connections
        cut_back(clerk.store, "phones", 2)
        for _ in range(2):
            with pytest.raises(BehindCheckpoint):
                Clerk(running, clerk.accountant).budget()


@ON_SQLITE
def test_a_pending_round_is_not_decided_and_not_blamed(world: World) -> None:
    with world.opened(anchored=False) as careless:
        register(careless.store, careless.request(krr(1_000), name="waits"), actor="tester")
    with world.opened() as clerk:
        for _ in range(6):
            with pytest.raises(BehindCheckpoint):
                admit(clerk.store, clerk.accountant, "waits")
        assert clerk.store.round("waits").attempts == 0


@pytest.mark.parametrize("at_once", [True, False])
def test_a_database_put_back_under_a_running_process_is_noticed(
    clerk: Clerk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """At the first thing it writes, whatever that is: rounds and cohorts, too, do not slip in."""
    clerk.open()
    clerk.fill(krr(1_000), most=2)
    with anchored(clerk.store, tmp_path / "checkpoint.json") as store:
        running = Clerk(store, clerk.accountant)
        running.ask(krr(1_000), name="c")
        store.engine.dispose()  # as a restore cuts all connections
        cut_back(clerk.store, "phones", 2)
        if not at_once:
            monkeypatch.setattr(anchor_module, "CHECKED_SECONDS", 0.0)
        with pytest.raises(BehindCheckpoint):
            register(store, running.request(krr(1_000), name="d"), actor="tester")
        with pytest.raises(BehindCheckpoint):
            running.open("watches")
        with pytest.raises(NotFound):
            store.round("d")


@pytest.mark.parametrize("nothing_later", [False, True])
def test_what_may_have_lost_entries_admits_nothing_any_more(world: World, nothing_later: bool) -> None:
    with world.opened() as clerk:
        said: dict[str, Any] = {"reason": "disk", "actor": "operator", "nothing_later": nothing_later}
        done = reconcile(clerk.store, world.checkpoint, **said)
        assert done.frozen == (("phones",) if nothing_later else ("phones", "tablets"))
        assert done.lost == ()
        assert clerk.refusal(krr(epsilon0=0.01)).reason is RefusalReason.COHORT_FROZEN
        assert clerk.quote(clerk.request()).would_be == "refused"
        with pytest.raises(Conflict, match="frozen"):
            clerk.void("a")
        with pytest.raises(Conflict, match="frozen"):
            clerk.settle("a", 900)
        assert clerk.admits(krr(epsilon0=0.1), "tablets") == nothing_later
        stated = clerk.budget()
        assert (stated.status, stated.epsilon_remaining) == ("frozen", 0.0)
        endless = [stated.epsilon_spent_upper, stated.composition_epsilon_upper, stated.local_epsilon_upper]
        endless += [each.epsilon_upper for each in stated.filters]
        (made,) = clerk.statement().cohorts
        endless += [made.composition.epsilon_upper, made.local_epsilon_upper]
        endless += [each.epsilon_upper for each in made.profile]
        endless += [each.epsilon_upper for each in made.filters]
        assert set(endless) == {float("inf")}
        assert profile_of(clerk.store, clerk.accountant, clerk.store.view("phones")) == ()
        then = made.lost[0].recorded_at - timedelta(microseconds=1)  # what was lost had been written by then
        (made,) = clerk.statement(as_of=then).cohorts
        assert (made.verdict, made.spent.epsilon_upper) == ("unknown", float("inf"))
        entry = next(point for point in history(clerk.store, "phones") if point.kind == "frozen")
        assert (entry.actor, entry.reason) == ("operator", "disk")
        report = verify(clerk.store, clerk.accountant, numbers="all")
        assert report.ok, report


@ON_SQLITE
@pytest.mark.parametrize("nothing_later", [False, True])
def test_a_period_that_a_frozen_cohort_opens_later_knows_nothing_of_what_was_lost(
    clerk: Clerk, nothing_later: bool
) -> None:
    """Rounds that were lost may have been collected in any period, seen by a checkpoint or not."""
    week = Window(unit="week", epsilon=1.0, delta=1e-9)
    clerk.open("watches", epsilon=2.0, delta=1e-9, windows=(week,))
    clerk.open("phones")
    assert clerk.admits()
    checkpoint = make_checkpoint(clerk.store, SigningKey.generate())
    cut_back(clerk.store, "phones", 1)
    reconcile(clerk.store, checkpoint, reason="disk", actor="operator", nothing_later=nothing_later)
    (window,) = clerk.budget("watches").windows
    clerk.incident("b", krr(), "watches", on=window.period.first, after=clerk.later("watches"))
    statement = clerk.statement(window.period.name)
    (stated,), shown = statement.cohorts, str(document_from(statement, rows_max=50).blocks)
    assert ("The larger end decides." in shown) == nothing_later
    assert ("nothing bounds it" in shown) != nothing_later
    known = (stated.verdict, stated.status, stated.spent.epsilon_upper < 1)
    assert known == (("kept", "open", True) if nothing_later else ("unknown", "frozen", False))
    assert (window.status, window.epsilon_remaining) == (("open", 1.0) if nothing_later else ("frozen", 0.0))
    assert clerk.admits(None, "watches") == nothing_later
    report = verify(clerk.store, clerk.accountant, numbers="all")
    assert report.ok, report


def test_a_cohort_that_was_lost_whole_is_never_opened_again(clerk: Clerk, new_ledger: str) -> None:
    clerk.open()
    checkpoint = make_checkpoint(clerk.store, SigningKey.generate())
    with Store.connect(new_ledger) as store:
        fresh = Clerk(store, clerk.accountant)
        done = reconcile(store, checkpoint, reason="the disk is gone", actor="operator")
        assert (done.frozen, done.lost) == ((), ("phones",))
        with pytest.raises(Conflict, match="lost"):
            fresh.open()
        insert = text(
            "INSERT INTO cohorts (name, population, delta_budget, policy, opened_at)"
            " VALUES ('phones', 1, 0.5, 'adaptive', CURRENT_TIMESTAMP)"
        )
        with store.engine.connect() as connection, pytest.raises(DBAPIError, match="lost"):
            connection.execute(insert)
        fresh.open("watches")
        with pytest.raises(Conflict):
            reconcile(store, checkpoint, reason="again", actor="operator")
        fresh.check()


@pytest.fixture
def new_ledger(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return another ledger of the same kind."""
    if database_url.startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'another.db'}"
    else:
        url = request.getfixturevalue("new_postgresql_database")()
    initialise(url)
    return url


@ON_SQLITE
def test_a_ledger_that_lacks_nothing_is_not_reconciled(clerk: Clerk) -> None:
    clerk.open()
    checkpoint = make_checkpoint(clerk.store, SigningKey.generate())
    clerk.ask(krr(1_000))
    with pytest.raises(Conflict, match="nothing"):
        reconcile(clerk.store, checkpoint, reason="why not", actor="operator")
    assert clerk.admits(krr(epsilon0=0.1))


def test_a_frozen_cohort_stays_frozen(world: World) -> None:
    with world.opened(anchored=False) as clerk:
        reconcile(clerk.store, world.checkpoint, reason="disk", actor="operator")
        for change in (
            "UPDATE heads SET status = 'open', sequence = sequence + 1, freezes = freezes + 1",
            "DELETE FROM reconciliations",
            "UPDATE reconciliations SET reason = 'another'",
        ):
            with (
                pytest.raises(DBAPIError, match=r"stays as it ended|reconciliations"),
                clerk.store.engine.begin() as connection,
            ):
                connection.execute(text(change))


@ON_SQLITE
@pytest.mark.parametrize("content", [None, '{"format": "shuffle-ledger-heads-1", "heads": []}'])
def test_without_a_usable_anchor_nothing_is_written(
    clerk: Clerk, tmp_path: Path, content: str | None
) -> None:
    clerk.open()
    path = tmp_path / "anchor.json"
    if content is not None:
        path.write_text(content)
    url = clerk.store.engine.url.render_as_string(hide_password=False)
    with Store.connect(url, anchor=Anchor(path=path)) as store:
        with pytest.raises(BehindCheckpoint, match="nobody can tell"):
            register(store, clerk.request(), actor="tester")
        assert store.count_pending("phones") == 0


@ON_SQLITE
def test_an_anchor_that_another_key_signed_is_not_believed(world: World) -> None:
    with world.opened(anchored=False) as careless:
        forged = make_checkpoint(careless.store, SigningKey.generate())  # of the state that was put back
    world.anchor.path.write_text(json.dumps(forged.to_json()))
    with pytest.raises(BadSignature):
        world.anchor.read()
    with world.opened() as clerk, pytest.raises(BehindCheckpoint):
        register(clerk.store, clerk.request(), actor="tester")


@ON_SQLITE
def test_a_rewritten_chain_is_behind_too(world: World) -> None:
    """The old state, and other rounds since: as many entries as before, and not the same."""
    with world.opened(anchored=False) as careless:
        careless.fill(krr(epsilon0=0.1), most=3)
        assert careless.store.view("phones").head_sequence > 4
    with world.opened() as clerk, pytest.raises(BehindCheckpoint, match="phones"):
        register(clerk.store, clerk.request(name="new"), actor="tester")
