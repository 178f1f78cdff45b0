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

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.decisions import (
    admit,
    correct,
    open_cohort,
    record_incident,
    register,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.budget_changes import change_budget
from shuffle_ledger.ledger.errors import BehindCheckpoint, Conflict, InvalidValue
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
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest, request_of
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import decided, open_as_usual

MakeRequest = Callable[..., RoundRequest]
TABLES = ("cohorts", "rounds", "registrations", "entries", "heads", "accounted_rounds", "holdings")
OF_NO_ACCOUNT = ("queued_at", "attempts", "last_error")  # about messages, not about decisions


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

    lived: Store
    restored: Store
    checkpoint: Checkpoint
    anchor: Anchor
    key: SigningKey

    def copy(self) -> Copy:
        """Return a copy of all chains as they were at the checkpoint."""
        return Copy(self.lived, *(head.cohort for head in self.checkpoint.heads))

    def recover(self, copy: Any) -> Recovered:
        """Bring back what a copy has."""
        return recover(self.restored, self.checkpoint, copy, reason="the disk broke", actor="operator")

    def guarded(self) -> Store:
        """Return the restored ledger as a process opens it that knows the anchor."""
        return Store.connect(url_of(self.restored), anchor=self.anchor)


def url_of(store: Store) -> str:
    return store.engine.url.render_as_string(hide_password=False)


def contents(store: Store, *, but: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables that say what was decided."""
    found = {}
    with store.engine.connect() as connection:
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
def world(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    backup: Callable[[], str],
    tmp_path: Path,
) -> Iterator[World]:
    """Yield a ledger that lost entries of every kind in two cohorts, and a third cohort whole."""
    for name in ("phones", "tablets"):
        open_as_usual(store, name)
    for name, cohort in (("p1", "phones"), ("t1", "tablets")):
        assert isinstance(decided(store, accountant, make_request(name, cohort=cohort)), Admitted)
    register(store, make_request("p2"), actor="tester")  # registered before the backup, decided after it
    store.engine.dispose()
    restored = backup()
    admit(store, accountant, "p2")
    decided(store, accountant, make_request("p3", epsilon0=8.0, reports=5))  # refused
    settle(store, accountant, "p1", reports=900, actor="tester")
    void(store, accountant, "p2", reason="a bug", actor="tester")
    change_budget(store, "phones", epsilon=1.5, reason="agreed", actor="owner")
    decided(store, accountant, make_request("p4"))
    decided(store, accountant, make_request("t2", cohort="tablets", epsilon0=1.0))
    open_as_usual(store, "watches")
    open_as_usual(store, "watches", population=2_000_000)
    decided(store, accountant, make_request("w1", cohort="watches"))
    settle(store, accountant, "w1", reports=2, actor="tester")
    assert store.cohort("watches").status == "overspent"
    key = SigningKey.generate()
    checkpoint = make_checkpoint(store, key)
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(checkpoint.to_json()))
    with Store.connect(restored) as older:
        anchor = Anchor(path=path, trusted_public_key=key.public_key_bytes)
        yield World(lived=store, restored=older, checkpoint=checkpoint, anchor=anchor, key=key)


def test_everything_comes_back_as_it_was(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    with world.guarded() as guarded, pytest.raises(BehindCheckpoint):
        register(guarded, make_request("new"), actor="tester")
    done = world.recover(world.copy())
    assert done == Recovered(number=1, entries={"phones": 6, "tablets": 1, "watches": 4}, unproven=())
    assert contents(world.restored, but=OF_NO_ACCOUNT) == contents(world.lived, but=OF_NO_ACCOUNT)
    assert verify(world.restored, accountant, numbers="all").ok
    with world.guarded() as guarded:
        names = ("p2", "p3", "p4", "t2", "w1")
        again = [round_record(guarded, name) for name in names]
        assert again == [round_record(world.lived, name) for name in names]
        request = make_request("new", epsilon0=0.5)
        assert decided(guarded, accountant, request) == decided(world.lived, accountant, request)
        assert guarded.round("new").registration > guarded.round("w1").registration
        with pytest.raises(Conflict, match="nothing"):
            world.recover(world.copy())
        assert verify(guarded, accountant).ok


def test_a_bundle_is_such_a_copy(
    store: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    backup: Callable[[], str],
) -> None:
    open_as_usual(store, "phones")
    store.engine.dispose()
    older = backup()
    for name in ("a", "b"):
        decided(store, accountant, make_request(name))
    key = SigningKey.generate()
    made = make_bundle(store, ["phones"], signing_key=key)
    evidence = open_bundle(made.data, key.public_key_bytes)
    assert evidence.heads is not None
    assert evidence.heads.checkpoint is not None
    with Store.connect(older) as restored:
        recover(restored, evidence.heads.checkpoint, evidence, reason="disk", actor="operator")
        assert contents(restored, but=OF_NO_ACCOUNT) == contents(store, but=OF_NO_ACCOUNT)


def without_one(chain: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    for place in range(len(chain)):
        yield [*chain[:place], *chain[place + 1 :]]


def with_one_changed(chain: list[LedgerEntry]) -> Iterator[list[LedgerEntry]]:
    for place, entry in enumerate(chain):
        body = entry.body.replace(b"tester", b"nobody").replace(b"owner", b"thief")
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


@pytest.mark.parametrize("tamper", [without_one, with_one_changed, rewritten])
def test_a_copy_that_is_not_the_chain_brings_nothing_back(
    world: World, tamper: Callable[[list[LedgerEntry]], Iterator[list[LedgerEntry]]]
) -> None:
    before, tried = contents(world.restored), 0
    for cohort, chain in world.copy().chains.items():
        for forged in tamper(chain):
            copy = Copy(world.lived)
            copy.chains = {cohort: forged}
            with pytest.raises(Conflict):
                world.recover(copy)
            tried += 1
    assert tried == 8 + 3 + 4
    assert contents(world.restored) == before


def test_what_is_proven_comes_back_and_the_rest_keeps_the_ledger_shut(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    copy = world.copy()
    del copy.chains["phones"][-1]
    done = world.recover(copy)
    assert (set(done.entries), [each.cohort for each in done.unproven]) == (
        {"tablets", "watches"},
        ["phones"],
    )
    assert "entry 8" in done.unproven[0].why
    with world.guarded() as guarded:
        with pytest.raises(BehindCheckpoint, match="phones"):
            register(guarded, make_request("new", cohort="tablets"), actor="tester")
        given_up = reconcile(guarded, world.checkpoint, reason="gone", actor="operator", nothing_later=True)
        assert given_up.frozen == ("phones",)
        assert isinstance(
            decided(guarded, accountant, make_request("new", cohort="tablets", epsilon0=0.5)), Admitted
        )
        with pytest.raises(Conflict):  # frozen: other entries follow now
            world.recover(world.copy())
        assert verify(guarded, accountant).ok


def test_what_follows_the_checkpoint_is_not_dropped(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    decided(world.lived, accountant, make_request("p5", epsilon0=0.5))
    before = contents(world.restored)
    copy = world.copy()
    assert world.recover(copy).unproven[0].why.startswith("the copy goes on behind entry 8")
    assert [row for row in contents(world.restored)["entries"] if row["cohort"] == "phones"] == [
        row for row in before["entries"] if row["cohort"] == "phones"
    ]
    newer = dataclasses.replace(world, checkpoint=make_checkpoint(world.lived, world.key))
    assert newer.recover(copy).entries == {"phones": 7}


def test_a_copy_that_shows_later_entries_refutes_that_there_were_none(world: World) -> None:
    """Also those of a cohort of which nothing seems to be missing."""
    open_cohort(
        world.lived, name="later", population=1000, epsilon=1.0, delta=1e-9, policy="adaptive", actor="owner"
    )
    before = contents(world.restored)
    with pytest.raises(Conflict, match="later: the copy goes on behind entry 0"):
        world.recover(Copy(world.lived, *world.copy().chains, "later"))
    assert contents(world.restored) == before


def test_who_wrote_on_after_the_restore_gets_nothing_back(
    world: World, accountant: Accountant, make_request: MakeRequest
) -> None:
    decided(world.restored, accountant, make_request("another", epsilon0=0.5))  # without an anchor
    before = contents(world.restored)
    copy = world.copy()
    copy.chains = {"phones": copy.chains["phones"]}
    with pytest.raises(Conflict, match="written since"):
        world.recover(copy)
    assert contents(world.restored) == before


@pytest.mark.parametrize("careless", ["p4", "another"])
def test_a_round_registered_otherwise_since_stops_everything(
    world: World, make_request: MakeRequest, careless: str
) -> None:
    """The same identifier with other content, or another round in the place of a lost one."""
    register(world.restored, make_request(careless, epsilon0=0.25), actor="tester")
    before = contents(world.restored)
    with pytest.raises(Conflict, match=r"registered otherwise|given to another"):
        world.recover(world.copy())
    assert contents(world.restored) == before


def test_another_ledgers_checkpoint_brings_nothing_back(
    world: World, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if url_of(world.lived).startswith("sqlite"):
        url = f"sqlite:///{tmp_path / 'another.db'}"
    else:
        url = request.getfixturevalue("new_postgresql_database")()
    initialise(url)
    with Store.connect(url) as another:
        empty = contents(another)
        with pytest.raises(Conflict, match="another ledger"):
            recover(another, world.checkpoint, world.copy(), reason="why not", actor="operator")
        assert contents(another) == empty


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
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


@pytest.mark.parametrize("reason", ["", "\n", "x" * 2001])
def test_a_recovery_says_why(world: World, reason: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        recover(world.restored, world.checkpoint, world.copy(), reason=reason, actor="operator")
    assert caught.value.field == "reason"


def test_the_truth_of_a_round_is_told_although_one_of_its_cohorts_was_lost(
    store: Store, accountant: Accountant, backup: Callable[[], str]
) -> None:
    """Larger costs of such rounds could not be charged to the cohort that came back."""
    for name in ("b", "o"):
        open_as_usual(store, name)
    store.engine.dispose()  # PostgreSQL copies a database only without connections
    older = backup()
    open_as_usual(store, "a")
    described = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=1)"), reports=1_500_000)
    for name in ("one", "two", "void"):
        decided(store, accountant, request_of(("a", "b"), described, round_id=name))
    void(store, accountant, "void", reason="cancelled", actor="ada")
    checkpoint = make_checkpoint(store, SigningKey.generate())
    by: dict[str, Any] = {"reason": "a log", "actor": "ada"}
    with Store.connect(older) as restored:
        done = recover(restored, checkpoint, Copy(store, "b"), reason="disk", actor="operator")
        assert [each.cohort for each in done.unproven] == ["a"]
        assert reconcile(restored, checkpoint, nothing_later=True, **by).lost == ("a",)
        before = restored.view("b").spent.epsilon_upper
        told = correct(restored, accountant, "one", {"reports": 1_200_000}, **by)
        assert (told.cohort, told.audience, told.changed) == ("b", (), True)
        record_incident(
            restored,
            accountant,
            "o",
            round_id="two in o",
            described=dataclasses.replace(described, reports=10**6),
            **by,
        )
        record_incident(restored, accountant, "b", round_id="void", described=described, **by)
        assert restored.view("b").spent.epsilon_upper > before
        assert restored.view("o").spent.rounds == 1
        with pytest.raises(Conflict, match="cohort 'a' was lost"):
            settle(restored, accountant, "two", reports=10, actor="ada")
        with pytest.raises(Conflict, match="cohort 'a' was lost"):
            void(restored, accountant, "two", **by)
        report = verify(restored, accountant, numbers="all")
        assert report.ok, report


def test_an_opening_is_not_put_back_beneath_a_part_that_is_older(
    store: Store, accountant: Accountant, make_request: MakeRequest, backup: Callable[[], str]
) -> None:
    """A period that was opened since has the rules of the opening that the lost one replaced."""

    def opened(epsilon: float) -> None:
        week = Window(unit="week", epsilon=epsilon, delta=1e-10)
        open_as_usual(store, "phones", windows=[week])

    opened(0.9)
    store.engine.dispose()
    older = backup()
    opened(0.1)
    key = SigningKey.generate()
    evidence = open_bundle(make_bundle(store, ["phones"], signing_key=key).data, key.public_key_bytes)
    assert evidence.heads is not None
    assert evidence.heads.checkpoint is not None
    with Store.connect(older) as restored:
        register(restored, make_request("r"), actor="ada")
        with pytest.raises(Conflict, match=r"phones@.* was opened since, by rules that entry 2 replaced"):
            recover(restored, evidence.heads.checkpoint, evidence, reason="disk", actor="operator")
        assert isinstance(admit(restored, accountant, "r"), Admitted)
        assert verify(restored, accountant).ok
