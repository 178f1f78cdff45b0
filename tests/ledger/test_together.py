"""Rounds decided in one commit: as one by one, all of them or none, and never beyond a budget."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import (
    admit_together,
    change_budget,
    optimistic_append,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import LostRace, Unavailable
from shuffle_ledger.ledger.storage import appends
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual

COHORTS = ("phones", "tablets", "watches")
THREADS = 3
EACH = 12
WAIT_SECONDS_MAX = 60
OVERTAKING_SECONDS = 0.3  # many times what a batch takes

MakeRequest = Callable[..., RoundRequest]


def opened(store: Store, accountant: Accountant, make_request: MakeRequest, *names: str) -> None:
    """Open cohorts whose filters know two kinds of rounds, of which a dozen fit."""
    for name in names:
        open_as_usual(store, name, epsilon=1.5)
        for reports in (1_000, 200):
            first = make_request(f"{name} of {reports}", cohort=name, reports=reports)
            assert isinstance(register_and_admit(store, accountant, first, actor="tester")[0], Admitted)


@pytest.fixture
def three(store: Store, accountant: Accountant, make_request: MakeRequest) -> Store:
    """Return a ledger of three cohorts that are alike."""
    opened(store, accountant, make_request, *COHORTS)
    return store


def together(store: Store, accountant: Accountant, requests: Sequence[RoundRequest]) -> list[Outcome]:
    return admit_together(store, accountant, requests, actor="tester")


def said(entry: LedgerEntry) -> dict[str, Any]:
    """Returns the content of an entry without its names, numbers and times."""
    mapping = dict(vars(entry.content()))
    mapping["details"] = {
        name: value
        for name, value in mapping["details"].items()
        if name not in ("request", "registration", "registered_at")
    }
    if "message" in mapping["details"]:  # it names the budget
        message = mapping["details"]["message"]
        mapping["details"]["message"] = message.replace(f"the budget of {mapping['cohort']}:", "it:")
    return {
        name: value for name, value in mapping.items() if name not in ("cohort", "round_id", "recorded_at")
    }


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_entries_are_those_of_one_by_one(
    three: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Cohorts in turn and in a row, kinds in turn, until budgets are used up and beyond."""
    order = [*("phones", "tablets") * 10, *["phones"] * 5, *["tablets"] * 5]
    requests = [
        make_request(f"round-{number}", cohort=cohort, reports=1_000 if number % 3 else 200)
        for number, cohort in enumerate(order)
    ]
    outcomes = together(three, accountant, requests)
    assert [outcome.round_id for outcome in outcomes] == [request.round_id for request in requests]
    assert {type(outcome) for outcome in outcomes} == {Admitted, Refused}
    for request in requests:
        if request.cohort == "phones":
            alone = dataclasses.replace(request, round_id=f"{request.round_id} alone", cohort="watches")
            register_and_admit(three, accountant, alone, actor="tester")
    pairs = zip(three.entries_of("phones"), three.entries_of("watches"), strict=True)
    assert all(said(one) == said(other) for one, other in pairs)
    for request, outcome in zip(requests, outcomes, strict=True):
        assert register(three, request, actor="somebody else") == outcome
    numbers = [three.round(request.round_id).registration for request in requests]
    assert numbers == sorted(set(numbers))
    assert three.pending(limit=1) == []
    assert verify(three, accountant, numbers="all").ok


def test_it_ends_before_what_is_not_decided_at_once(
    three: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    names = itertools.count()

    def new(**changes: Any) -> RoundRequest:
        return make_request(f"new-{next(names)}", **changes)

    twice = new()
    register(three, make_request("waits", cohort="tablets"), actor="tester")
    for stops in (
        new(epsilon0=1.03125),  # a new kind
        make_request("phones of 200"),  # an identifier that is taken
        new(reports=10**7),  # more than its cohort has
        make_request(".."),  # no name for a new round
        twice,
    ):
        before = [twice, new()] if stops is twice else [new(), new()]
        answers = together(three, accountant, [*before, stops, new()])
        assert [answer.round_id for answer in answers] == [request.round_id for request in before]
    first, missing = new(), new(cohort="nobody opened it")
    answers = together(three, accountant, [first, missing, new()])
    assert [answer.round_id for answer in answers] == [first.round_id]
    assert together(three, accountant, [stops, new()]) == []
    with pytest.raises(ValueError, match="actor"):
        admit_together(three, accountant, [new()], actor="")
    assert three.pending(limit=9) == ["waits"]
    assert verify(three, accountant, numbers="all").ok


def test_it_decides_all_again_where_somebody_was_faster(
    three: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three heads moved: nothing of the first attempt is left, and memory is as the database."""
    write = appends.write

    def beaten(connection: Any, steps: Sequence[Any]) -> None:
        patch.undo()
        if connection.dialect.name == "postgresql":
            with Store.connect(database_url) as faster:
                change_budget(faster, "watches", epsilon=1.25, reason="a test", actor="tester")
            write(connection, steps)
        else:  # there is one writer at a time
            write(connection, steps)
            raise LostRace("as if a head had moved")

    requests = [make_request(f"round-{number}", cohort=COHORTS[number % 3]) for number in range(6)]
    before = [three.view(name).head_sequence for name in COHORTS]
    with monkeypatch.context() as patch:
        patch.setattr(appends, "write", beaten)
        assert len(together(three, accountant, requests)) == len(requests)
    changed = three.engine.dialect.name == "postgresql"
    added = [three.view(name).head_sequence - last for name, last in zip(COHORTS, before, strict=True)]
    assert added == [2, 2, 2 + changed]
    assert verify(three, accountant, numbers="all").ok


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_it_leaves_nothing_where_others_are_always_faster(
    three: Store, accountant: Accountant, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beaten(*_: Any) -> None:
        raise LostRace("as if a head had moved")

    requests = [make_request(f"round-{number}", cohort=COHORTS[number % 3]) for number in range(6)]
    before = [list(three.entries_of(name)) for name in COHORTS]
    with monkeypatch.context() as patch:
        patch.setattr(optimistic_append, "RACES_MAX", 2)
        patch.setattr(appends, "write", beaten)
        assert together(three, accountant, requests) == []
    assert [list(three.entries_of(name)) for name in COHORTS] == before
    assert three.taken([request.round_id for request in requests]) == set()
    assert len(together(three, accountant, requests)) == len(requests)
    assert verify(three, accountant, numbers="all").ok


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_many_at_once_admit_exactly_what_fits(
    three: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Some decide together, in different orders of the cohorts, some one by one, on the same budgets."""
    fits = 0
    while isinstance(
        register_and_admit(three, accountant, make_request(f"fits-{fits}", cohort="watches"), actor="tester")[
            0
        ],
        Admitted,
    ):
        fits += 1
    contended = COHORTS[:2]
    start = threading.Barrier(2 * THREADS)

    def contend(number: int) -> None:
        order = contended if number % 2 else contended[::-1]
        requests = [
            make_request(f"{number}-{each}-{name}", cohort=name) for each in range(EACH) for name in order
        ]
        with Store.connect(database_url) as own:
            start.wait(WAIT_SECONDS_MAX)
            while requests:
                size = 8 if number < THREADS else 1
                done = together(own, accountant, requests[:size]) if size > 1 else []
                if not done:
                    done = [register_and_admit(own, accountant, requests[0], actor="tester")[0]]
                requests = requests[len(done) :]

    with ThreadPoolExecutor(2 * THREADS) as pool:
        list(pool.map(contend, range(2 * THREADS)))
    assert 0 < fits < 2 * THREADS * EACH
    for name in contended:
        counts = three.count_entries(name)
        assert counts["admitted"] == 2 + fits
        assert counts["refused"] == 2 * THREADS * EACH - fits
    assert verify(three, accountant, numbers="all").ok


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_waits_in_a_circle_binds_each_identifier_once(
    three: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two files name the same rounds, for other cohorts and in the opposite order."""
    write, met = appends.write, threading.Barrier(2)

    def at_one_time(connection: Any, steps: Sequence[Any]) -> None:
        met.wait(WAIT_SECONDS_MAX)
        write(connection, steps)

    monkeypatch.setattr(appends, "write", at_one_time)

    def decide(cohort: str) -> int:
        requests = [make_request(name, cohort=cohort) for name in ("one", "two")]
        with Store.connect(database_url) as own:
            return len(together(own, accountant, requests if cohort == "phones" else requests[::-1]))

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(decide, ("phones", "tablets"))) == [0, 2]
    assert len({three.round(name).cohort for name in ("one", "two")}) == 1
    assert verify(three, accountant, numbers="all").ok


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_it_waits_for_who_has_the_turn(
    three: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """A writer that computes for a cohort, with a turn, is not overtaken by batch after batch of a file."""
    requests = [make_request(f"round-{number}", cohort=COHORTS[number % 2]) for number in range(4)]
    with Store.connect(database_url) as own, ThreadPoolExecutor(1) as pool:
        with three.turns.take(["phones"]):
            waiting = pool.submit(together, own, accountant, requests)
            with pytest.raises(TimeoutError):
                waiting.result(OVERTAKING_SECONDS)
            change_budget(three, "phones", epsilon=1.25, reason="a test", actor="tester")
            assert len(together(three, accountant, [make_request("elsewhere", cohort="watches")])) == 1
        assert len(waiting.result(WAIT_SECONDS_MAX)) == len(requests)
    kinds = [entry.kind for entry in three.entries_of("phones")]
    assert kinds[-3:] == ["budget_changed", "admitted", "admitted"]


@pytest.fixture
def in_turn(three: Store) -> Store:
    """Return a ledger that has just lost races for all its cohorts."""
    for name in COHORTS:
        three.turns.note_contention(name)
    return three


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_turn_begins_with_what_the_last_one_committed(
    in_turn: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The statement that waits for the turn does not read the heads, for it would read them as before."""
    write, written = appends.write, list[int]()

    def counted(connection: Any, steps: Sequence[Any]) -> None:
        written.append(len(steps))
        write(connection, steps)

    with Store.connect(database_url) as other, ThreadPoolExecutor(1) as pool:
        with other.turns.take(["phones"]):
            waiting = pool.submit(together, in_turn, accountant, [make_request("next", cohort="phones")])
            with pytest.raises(TimeoutError):
                waiting.result(OVERTAKING_SECONDS)
            change_budget(other, "phones", epsilon=1.25, reason="a test", actor="tester")
            monkeypatch.setattr(appends, "write", counted)
        assert len(waiting.result(WAIT_SECONDS_MAX)) == 1
    assert written == [1]
    assert verify(in_turn, accountant, numbers="all").ok


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_turn_is_over_when_its_round_is_committed_or_fails(
    in_turn: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """What another session sees, and that no lock is left."""

    def locks() -> int:
        mine = "(SELECT oid FROM pg_database WHERE datname = current_database())"
        query = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = {mine}"  # noqa: S608
        with in_turn.engine.connect() as connection:
            return int(connection.exec_driver_sql(query).scalar_one())

    with Store.connect(database_url) as other:
        assert len(together(in_turn, accountant, [make_request("kept", cohort="phones")])) == 1
        assert other.round("kept").outcome_sequence == other.view("phones").head_sequence
        assert locks() == 0
        unfinished = list[
            bool
        ]()  # transactions, which the pool rolls back: the driver forgets statements then
        event.listen(
            in_turn.engine, "reset", lambda driver, *_: unfinished.append(driver.info.transaction_status != 0)
        )
        in_turn.turns.note_contention("phones")
        assert together(in_turn, accountant, [make_request("kept", cohort="phones")]) == []  # it is taken
        assert unfinished
        assert not any(unfinished)
        assert locks() == 0
        with in_turn.engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION 'no commit' USING ERRCODE = '25006'; END $$"
            )
            connection.exec_driver_sql(
                "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON entries DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION refuse()"
            )
        before = other.view("phones").head_digest
        with pytest.raises(Unavailable, match="no commit"):
            together(in_turn, accountant, [make_request("lost", cohort="phones")])
        assert other.view("phones").head_digest == before
        assert other.taken(["lost"]) == set()
        assert locks() == 0


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_gets_no_turn_goes_on_without(
    three: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others decide although a session, its process stopped perhaps, keeps its turn."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 1)
    with Store.connect(database_url) as other, three.turns.take(["phones"]):
        assert len(together(other, accountant, [make_request("first", cohort="phones")])) == 1
        other.turns.note_contention("phones")
        assert len(together(other, accountant, [make_request("second", cohort="phones")])) == 1
    assert verify(three, accountant, numbers="all").ok
