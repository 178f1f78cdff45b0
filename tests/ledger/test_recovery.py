"""Lost entries come back as they were, all that the checkpoint proves, or not at all."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.decisions import admit, register, round_record
from shuffle_ledger.ledger.errors import BehindCheckpoint, Conflict
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_reader import open_bundle
from shuffle_ledger.ledger.recovery.reconciliation import reconcile
from shuffle_ledger.ledger.recovery.restore_entries import Recovered, recover
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import metadata
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.entries import EntryBody, LedgerEntry
from shuffle_ledger.ledger.values.requests import Admitted, Outcome
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import Clerk, decided, krr

TABLES = ("cohorts", "rounds", "registrations", "entries", "heads", "accounted_rounds", "holdings")
OF_NO_ACCOUNT = ("queued_at", "attempts", "last_error")  # about messages, not about decisions
DISK: dict[str, Any] = {"reason": "the disk broke", "actor": "operator"}
ONE, LESS = krr(1_000), krr(1_000, 0.5)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


class Copy:
    """Chains kept elsewhere, to be tampered with."""

    def __init__(self, store: Store, *cohorts: str) -> None:
        self.chains = {name: list(store.entries_of(name)) for name in cohorts}

    def cohorts(self) -> list[str]:
        """Name the cohorts."""
        return list(self.chains)

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        """Yield a cohort's entries, as they are now."""
        yield from self.chains.get(cohort, [])


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """A ledger that lived on, and the older state that was put in its place."""

    lived: Clerk
    restored: Clerk
    checkpoint: Checkpoint
    anchor: Anchor
    key: SigningKey

    def copy(self) -> Copy:
        """Return a copy of all chains as they were at the checkpoint."""
        return Copy(self.lived.store, *(head.cohort for head in self.checkpoint.heads))

    def recover(self, copy: Any) -> Recovered:
        """Bring back what a copy has."""
        return recover(self.restored.store, self.checkpoint, copy, **DISK)

    def guarded(self) -> Store:
        """Return the restored ledger as a process opens it that knows the anchor."""
        return Store.connect(url_of(self.restored.store), anchor=self.anchor)


def url_of(store: Store) -> str:
    return store.engine.url.render_as_string(hide_password=False)


def ask(clerk: Clerk, described: ShuffledRound, cohort: str, *, name: str) -> Outcome:
    """Register a round, which lists it, and decide about it."""
    return decided(clerk.store, clerk.accountant, clerk.request(described, cohort, name=name))


def contents(clerk: Clerk, *, but: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables that say what was decided."""
    found = {}
    with clerk.store.engine.connect() as connection:
        for name in TABLES:
            listed = [dict(row._mapping) for row in connection.execute(select(metadata.tables[name]))]
            kept = [{key: value for key, value in row.items() if key not in but} for row in listed]
            found[name] = sorted(kept, key=repr)
    return found


@pytest.fixture
def backup(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Yield a function that copies the database as it is, and returns the copy's URL."""
    url = make_url(database_url)
    made: list[str] = []

    def copy() -> str:
        if url.get_backend_name() == "sqlite":
            file = tmp_path / f"backup-{uuid.uuid4().hex}.db"
            with closing(sqlite3.connect(str(url.database))) as source, closing(sqlite3.connect(file)) as to:
                source.backup(to)
            return f"sqlite:///{file}"
        made.append(request.getfixturevalue("postgresql_databases").create(url.database))
        return url.set(database=made[-1]).render_as_string(hide_password=False)

    yield copy
    for name in made:
        request.getfixturevalue("postgresql_databases").drop(name)


@pytest.fixture
def world(clerk: Clerk, backup: Callable[[], str], tmp_path: Path) -> Iterator[World]:
    """Yield a ledger that lost entries of every kind in two cohorts, and a third cohort whole."""
    clerk.open("phones", "tablets")
    for name, cohort in (("p1", "phones"), ("t1", "tablets")):
        assert isinstance(ask(clerk, ONE, cohort, name=name), Admitted)
    # Registered before the backup, decided after it.
    register(clerk.store, clerk.request(ONE, name="p2"), actor="tester")
    clerk.store.engine.dispose()  # PostgreSQL copies a database only without connections
    restored = backup()
    admit(clerk.store, clerk.accountant, "p2")
    ask(clerk, krr(5, 8.0), "phones", name="p3")
    clerk.settle("p1", 900)
    clerk.void("p2")
    clerk.change(1.5)
    ask(clerk, ONE, "phones", name="p4")
    ask(clerk, krr(1_000, 1.0), "tablets", name="t2")
    clerk.open("watches")
    clerk.open("watches", population=200_000)
    ask(clerk, ONE, "watches", name="w1")
    clerk.settle("w1", 2)
    assert clerk.status("watches") == "overspent"
    key = SigningKey.generate()
    checkpoint = make_checkpoint(clerk.store, key)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(checkpoint.to_json()))
    with Store.connect(restored) as older:
        anchor = Anchor(path=path, trusted_public_key=key.public_key_bytes)
        put_back = Clerk(older, clerk.accountant)
        yield World(lived=clerk, restored=put_back, checkpoint=checkpoint, anchor=anchor, key=key)


def test_everything_comes_back_as_it_was(world: World) -> None:
    with world.guarded() as guarded, pytest.raises(BehindCheckpoint):
        register(guarded, world.lived.request(), actor="tester")
    done = world.recover(world.copy())
    assert done == Recovered(number=1, entries={"phones": 6, "tablets": 1, "watches": 4}, unproven=())
    assert contents(world.restored, but=OF_NO_ACCOUNT) == contents(world.lived, but=OF_NO_ACCOUNT)
    assert verify(world.restored.store, world.restored.accountant, numbers="all").ok
    with world.guarded() as guarded:
        names = ("p2", "p3", "p4", "t2", "w1")
        again = [round_record(guarded, name) for name in names]
        assert again == [round_record(world.lived.store, name) for name in names]
        other = Clerk(guarded, Accountant())
        assert other.ask(LESS, name="new") == world.lived.ask(LESS, name="new")
        assert guarded.round("new").registration > guarded.round("w1").registration
        with pytest.raises(Conflict, match="nothing"):
            world.recover(world.copy())
        other.check()


@ON_SQLITE
def test_a_bundle_is_such_a_copy(clerk: Clerk, backup: Callable[[], str]) -> None:
    clerk.open()
    older = backup()
    for name in ("a", "b"):
        ask(clerk, ONE, "phones", name=name)
    key = SigningKey.generate()
    evidence = open_bundle(make_bundle(clerk.store, ["phones"], signing_key=key).data, key.public_key_bytes)
    assert evidence.heads is not None
    assert evidence.heads.checkpoint is not None
    with Store.connect(older) as restored:
        recover(restored, evidence.heads.checkpoint, evidence, **DISK)
        found = contents(Clerk(restored, clerk.accountant), but=OF_NO_ACCOUNT)
        assert found == contents(clerk, but=OF_NO_ACCOUNT)


def without_one(chain: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    for place in range(len(chain)):
        yield [*chain[:place], *chain[place + 1 :]]


def with_one_changed(chain: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    for place, entry in enumerate(chain):
        body = entry.body.replace(b'"ada"', b'"eve"').replace(b'"tester"', b'"nobody"')
        body = body.replace(b'"bob"', b'"eve"')
        yield [*chain[:place], dataclasses.replace(entry, body=body), *chain[place + 1 :]]


def rewritten(chain: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    """A forger's copies: an entry says otherwise, and every digest behind it fits."""
    for place in range(len(chain)):
        forged = chain[:place]
        for number, entry in enumerate(chain[place:]):
            body = EntryBody.from_bytes(entry.body)
            body = dataclasses.replace(body, actor="thief") if number == 0 else body
            forged.append(LedgerEntry.following(forged[-1].digest if forged else bytes(32), body))
        yield forged


@ON_SQLITE
@pytest.mark.parametrize("tamper", [without_one, with_one_changed, rewritten])
def test_a_copy_that_is_not_the_chain_brings_nothing_back(
    world: World, tamper: Callable[[list[LedgerEntry]], Iterator[list[LedgerEntry]]]
) -> None:
    before, tried = contents(world.restored), 0
    for cohort, chain in world.copy().chains.items():
        for forged in tamper(chain):
            copy = Copy(world.lived.store)
            copy.chains = {cohort: forged}
            with pytest.raises(Conflict):
                world.recover(copy)
            tried += 1
    assert tried == 8 + 3 + 4
    assert contents(world.restored) == before


def test_what_is_proven_comes_back_and_the_rest_keeps_the_ledger_shut(world: World) -> None:
    copy = world.copy()
    del copy.chains["phones"][-1]
    done = world.recover(copy)
    assert set(done.entries) == {"tablets", "watches"}
    assert [each.cohort for each in done.unproven] == ["phones"]
    assert "entry 8" in done.unproven[0].why
    with world.guarded() as guarded:
        clerk = Clerk(guarded, world.lived.accountant)
        with pytest.raises(BehindCheckpoint, match="phones"):
            register(guarded, clerk.request(LESS, "tablets"), actor="tester")
        given_up = reconcile(guarded, world.checkpoint, nothing_later=True, **DISK)
        assert given_up.frozen == ("phones",)
        assert clerk.admits(LESS, "tablets")
        with pytest.raises(Conflict):  # frozen: other entries follow now
            world.recover(world.copy())
        clerk.check()


@ON_SQLITE
def test_what_follows_the_checkpoint_is_not_dropped(world: World) -> None:
    world.lived.ask(LESS)
    before = contents(world.restored)["entries"]
    copy = world.copy()
    assert world.recover(copy).unproven[0].why.startswith("the copy goes on behind entry 8")
    after = contents(world.restored)["entries"]
    of_phones = [[row for row in rows if row["cohort"] == "phones"] for rows in (before, after)]
    assert of_phones[0] == of_phones[1]
    newer = dataclasses.replace(world, checkpoint=make_checkpoint(world.lived.store, world.key))
    assert newer.recover(copy).entries == {"phones": 7}


@ON_SQLITE
def test_a_copy_that_shows_later_entries_refutes_that_there_were_none(world: World) -> None:
    """Also those of a cohort of which nothing seems to be missing."""
    world.lived.open("later")
    before = contents(world.restored)
    with pytest.raises(Conflict, match="later: the copy goes on behind entry 0"):
        world.recover(Copy(world.lived.store, *world.copy().chains, "later"))
    assert contents(world.restored) == before


@ON_SQLITE
def test_who_wrote_on_after_the_restore_gets_nothing_back(world: World) -> None:
    world.restored.ask(LESS)  # without an anchor
    before = contents(world.restored)
    copy = world.copy()
    copy.chains = {"phones": copy.chains["phones"]}
    with pytest.raises(Conflict, match="written since"):
        world.recover(copy)
    assert contents(world.restored) == before


@pytest.mark.parametrize("careless", ["p4", "another"])
def test_a_round_registered_otherwise_since_stops_everything(world: World, careless: str) -> None:
    """The same identifier with other content, or another round in the place of a lost one."""
    register(world.restored.store, world.lived.request(LESS, name=careless), actor="tester")
    before = contents(world.restored)
    with pytest.raises(Conflict, match=r"registered otherwise|given to another"):
        world.recover(world.copy())
    assert contents(world.restored) == before


@ON_SQLITE
def test_another_ledgers_checkpoint_brings_nothing_back(world: World, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'another.db'}"
    initialise(url)
    with Store.connect(url) as another:
        with pytest.raises(Conflict, match="another ledger"):
            recover(another, world.checkpoint, world.copy(), **DISK)
        assert another.cohort_names() == []


@pytest.mark.slow
@ON_SQLITE
def test_an_interrupted_recovery_leaves_nothing(world: World) -> None:
    before, steps, countdown = contents(world.restored), 0, 0

    class Interrupted(Exception):
        pass

    def interrupt(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal countdown
        countdown -= statement.startswith(("INSERT", "UPDATE"))
        if countdown == 0:
            raise Interrupted

    while True:
        steps += 1
        countdown = steps
        event.listen(Engine, "before_cursor_execute", interrupt)
        try:
            world.recover(world.copy())
            break
        except Interrupted:
            pass
        finally:
            event.remove(Engine, "before_cursor_execute", interrupt)
        assert contents(world.restored) == before
    assert steps > 30
    assert contents(world.restored, but=OF_NO_ACCOUNT) == contents(world.lived, but=OF_NO_ACCOUNT)


def test_what_a_round_was_is_recorded_although_one_of_its_cohorts_was_lost(
    clerk: Clerk, backup: Callable[[], str]
) -> None:
    """Larger costs of such rounds could not be charged to the cohort that came back."""
    clerk.open("b", "o")
    clerk.store.engine.dispose()
    older = backup()
    clerk.open("a")
    described = krr(150_000, 1.0)
    for name in ("one", "two", "void"):
        clerk.ask(described, "a", "b", name=name)
    clerk.void("void")
    checkpoint = make_checkpoint(clerk.store, SigningKey.generate())
    with Store.connect(older) as store:
        restored = Clerk(store, clerk.accountant)
        done = recover(store, checkpoint, Copy(clerk.store, "b"), **DISK)
        assert [each.cohort for each in done.unproven] == ["a"]
        assert reconcile(store, checkpoint, nothing_later=True, **DISK).lost == ("a",)
        before = restored.spent("b")
        corrected = restored.correct("one", reports=120_000)
        assert (corrected.cohort, corrected.audience, corrected.changed) == ("b", (), True)
        restored.incident("two in o", krr(100_000, 1.0), "o")
        restored.incident("void", described, "b")
        assert restored.spent("b") > before
        assert store.view("o").spent.rounds == 1
        with pytest.raises(Conflict, match="cohort 'a' was lost"):
            restored.settle("two", 10)
        with pytest.raises(Conflict, match="cohort 'a' was lost"):
            restored.void("two")
        report = verify(store, clerk.accountant, numbers="all")
        assert report.ok, report


@ON_SQLITE
def test_an_opening_is_not_put_back_beneath_a_part_that_is_older(
    clerk: Clerk, backup: Callable[[], str]
) -> None:
    """A period that was opened since has the rules of the opening that the lost one replaced."""
    clerk.open(windows=[Window(unit="week", epsilon=0.9, delta=1e-10)])
    older = backup()
    clerk.open(windows=[Window(unit="week", epsilon=0.1, delta=1e-10)])
    key = SigningKey.generate()
    evidence = open_bundle(make_bundle(clerk.store, ["phones"], signing_key=key).data, key.public_key_bytes)
    assert evidence.heads is not None
    assert evidence.heads.checkpoint is not None
    with Store.connect(older) as store:
        restored = Clerk(store, clerk.accountant)
        register(store, restored.request(ONE, name="r"), actor="ada")
        with pytest.raises(Conflict, match=r"phones@.* was opened since, by rules that entry 2 replaced"):
            recover(store, evidence.heads.checkpoint, evidence, **DISK)
        assert isinstance(admit(store, clerk.accountant, "r"), Admitted)
        restored.check()
