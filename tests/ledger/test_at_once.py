"""Registered and decided in one commit: the same entries, nothing half done, no identifier bound twice."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    change_budget,
    open_cohort,
    register,
    register_and_admit,
    settle,
)
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.errors import Conflict, Damaged, InvalidValue, NotFound, TryAgain
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    Pending,
    RefusalReason,
    Refused,
    RoundRequest,
)
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.attack import disarmed
from tests.ledger.clerk import open_as_usual

THREADS = 8
ROUNDS = 6
WAIT_SECONDS_MAX = 60

MakeRequest = Callable[..., RoundRequest]


@pytest.fixture
def watches(store: Store, accountant: Accountant, make_request: MakeRequest) -> Store:
    """Return a ledger with two cohorts whose filters know the kind of round that is asked for."""
    for name in ("watches", "clocks"):
        open_as_usual(store, name, epsilon=1.5)
        first = make_request(f"first of {name}", cohort=name)
        assert isinstance(register_and_admit(store, accountant, first, actor="tester")[0], Admitted)
    return store


def at_once(store: Store, accountant: Accountant, request: RoundRequest) -> Outcome | None:
    return admit_at_once(store, accountant, request, actor="tester")


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_entries_are_those_of_two_steps(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Both ways, round after round, until the budget is used up and beyond."""
    kinds: Counter[str] = Counter()
    for number in range(40):
        one = make_request(f"one-{number}", cohort="watches", reports=1_000 if number % 2 else 200)
        two = make_request(f"two-{number}", cohort="clocks", reports=1_000 if number % 2 else 200)
        outcome, known = register_and_admit(watches, accountant, one, actor="tester")
        assert not known
        admit(watches, accountant, register_pending(watches, two))
        assert register(watches, one, actor="somebody else") == outcome
        kinds[type(outcome).__name__] += 1
    assert set(kinds) == {"Admitted", "Refused"}
    pairs = zip(watches.entries_of("watches"), watches.entries_of("clocks"), strict=True)
    for number, pair in enumerate(pairs):
        if number >= 2:
            one_said, two_said = (said_of_any_round(watches, entry) for entry in pair)
            assert one_said == two_said
    report = verify(watches, accountant, numbers="all")
    assert report.ok, report


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_refusal_rounds_what_a_budget_would_be_and_is_up(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Six refusals: of one alone, the digits might round up by chance."""
    refused: list[Refused] = []
    for number in range(60):
        asked = make_request(f"one-{number}", cohort="watches", reports=200 + 7 * number)
        outcome, _ = register_and_admit(watches, accountant, asked, actor="tester")
        refused += [outcome] if isinstance(outcome, Refused) else []
        if len(refused) == 6:
            break
    assert len(refused) == 6
    for each in refused:
        found = re.search(r"it would be (\S+) of 1\.5 \((\S+) used\)\.", each.message)
        assert found is not None, each.message
        would_be, used = map(Fraction, found.groups())
        assert each.epsilon_requested_upper is not None
        assert Fraction(each.epsilon_requested_upper) <= would_be
        assert would_be < Fraction(each.epsilon_requested_upper) * Fraction(1_000_011, 1_000_000)
        assert Fraction(each.epsilon_spent_upper) <= used


def said_of_any_round(store: Store, entry: LedgerEntry) -> dict[str, object]:
    """Return what an entry says, without what is of its round alone, which must be as the row says."""
    said = dict(vars(entry.content()))
    details = said["details"] = dict(said["details"])
    request = details.pop("request")
    stored = store.round(request["round_id"])
    assert details.pop("registration") == stored.registration
    assert details.pop("registered_at") == stored.registered_at.isoformat(timespec="microseconds")
    assert stored.registered_at <= said.pop("recorded_at")
    for name in ("cohort", "round_id"):
        assert said.pop(name) == request[name]
    if "message" in details:  # it names the budget
        details["message"] = details["message"].replace(f"the budget of {request['cohort']}:", "it:")
    return said


def register_pending(store: Store, request: RoundRequest) -> str:
    assert isinstance(register(store, request, actor="tester"), Pending)
    return request.round_id


def test_numbers_of_registrations_grow_whichever_way_they_came(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    names = [f"round-{number}" for number in range(9)]
    for number, name in enumerate(names):
        request = make_request(name, cohort=("watches", "clocks")[number % 2])
        if number % 3:
            assert at_once(watches, accountant, request) is not None
        else:
            admit(watches, accountant, register_pending(watches, request))
    numbers = [watches.round(name).registration for name in names]
    assert numbers == sorted(set(numbers))
    moments = [watches.round(name).registered_at for name in names]
    assert moments == sorted(moments)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_not_quick_leaves_no_trace(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    planned = make_request("a policy that composes", cohort="planned")
    terms: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "plan"}
    plan = {planned.round: 1}
    open_cohort(watches, name="planned", plan=plan, accountant=accountant, actor="tester", **terms)
    unknown = [
        make_request("a kind nobody has seen", cohort="watches", epsilon0=1.03125),
        planned,
        make_request("first of clocks", cohort="clocks"),
    ]
    before = watches.standing().heads
    for request in unknown:
        assert at_once(watches, accountant, request) is None
    assert watches.standing().heads == before
    for request in unknown[:2]:
        with pytest.raises(NotFound):
            watches.round(request.round_id)
        assert isinstance(register_and_admit(watches, accountant, request, actor="tester")[0], Admitted)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_failing_decision_leaves_its_round_registered_and_counted(
    watches: Store, accountant: Accountant, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("broken")

    monkeypatch.setattr(accountant, "charge", broken)
    assert at_once(watches, accountant, make_request("poison", cohort="watches")) is None
    with pytest.raises(ArithmeticError):
        register_and_admit(watches, accountant, make_request("poison", cohort="watches"), actor="tester")
    record = round_record(watches, "poison")
    assert (record.state, record.attempts) == ("pending", 1)
    assert record.last_error == "ArithmeticError: broken"


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_one_identifier_from_many_at_once_is_bound_once(
    watches: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Same and different content, same and different cohorts: one wins, and the others learn which."""
    start = threading.Barrier(THREADS)
    contents = [{"cohort": "watches"}, {"cohort": "clocks"}, {"cohort": "watches", "use_case": "emoji"}]

    def contend(number: int) -> list[Outcome | None]:
        said: list[Outcome | None] = []
        own_accountant = Accountant()
        with Store.connect(database_url) as own:
            insisting(own, own_accountant, make_request(f"learns the kind-{number}", cohort="clocks"))
            for each in range(ROUNDS):
                request = make_request(f"wanted-{each}", **contents[number % len(contents)])
                start.wait(WAIT_SECONDS_MAX)
                said.append(insisting(own, own_accountant, request))
        return said

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(contend, range(THREADS)))
    for each in range(ROUNDS):
        bound = watches.round(f"wanted-{each}")
        outcome = round_record(watches, f"wanted-{each}").outcome
        for number in range(THREADS):
            request = make_request(f"wanted-{each}", **contents[number % len(contents)])
            assert answers[number][each] == (outcome if request.to_bytes() == bound.content else None)
    decided = [entry.round_id for name in ("watches", "clocks") for entry in watches.entries_of(name)]
    assert {name: decided.count(name) for name in decided if name and name.startswith("wanted")} == {
        f"wanted-{each}": 1 for each in range(ROUNDS)
    }
    assert watches.pending(limit=10) == []
    report = verify(watches, accountant, numbers="all")
    assert report.ok, report


def insisting(store: Store, accountant: Accountant, request: RoundRequest) -> Outcome | None:
    """Return the outcome, None for a conflict."""
    for _ in range(THREADS):
        try:
            return register_and_admit(store, accountant, request, actor="tester")[0]
        except Conflict:
            return None
        except TryAgain:
            continue
    raise AssertionError("there was never a turn")


def locks(database_url: str) -> Callable[[], Counter[bool]]:
    """Returns a function that counts the writers with a turn (True), and those that wait for one (False)."""
    address = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    held = "SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND database ="
    held += " (SELECT oid FROM pg_database WHERE datname = current_database())"

    def count() -> Counter[bool]:
        with psycopg.connect(address, autocommit=True) as other:
            return Counter(granted for (granted,) in other.execute(held.encode()))

    return count


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("contended", [True, False])
def test_nobody_keeps_a_turn(
    watches: Store,
    database_url: str,
    accountant: Accountant,
    make_request: MakeRequest,
    contended: bool,
) -> None:
    count = locks(database_url)

    def again() -> None:
        assert not count()
        if contended:
            watches.turns.note_contention("watches")

    again()
    with pytest.raises(InvalidValue):
        at_once(watches, accountant, make_request("r", cohort="watches", reports=10**7))
    again()
    assert isinstance(at_once(watches, accountant, make_request("r", cohort="watches")), Admitted)
    again()
    assert at_once(watches, accountant, make_request("r", cohort="watches")) is None
    again()
    assert at_once(watches, accountant, make_request("new", cohort="watches", epsilon0=1.03125)) is None
    again()
    with disarmed(watches) as connection:
        connection.execute(text("UPDATE heads SET epsilon_budget = 100 WHERE cohort = 'watches'"))
    assert at_once(watches, accountant, make_request("late", cohort="watches")) is None
    assert not count()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_knows_nothing_of_the_others_lines_up_behind_them(
    watches: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """While a writer has the turn, others wait before they decide; afterwards each is served."""
    count = locks(database_url)
    names = [f"waits-{number}" for number in range(THREADS)]

    def come(name: str) -> None:
        with Store.connect(database_url) as own:
            assert at_once(own, accountant, make_request(name, cohort="watches")) is not None

    with ThreadPoolExecutor(THREADS) as pool:
        with watches.turns.take(["watches"]):
            coming = []
            for waiting, name in enumerate(names):
                coming.append(pool.submit(come, name))
                ends = time.monotonic() + WAIT_SECONDS_MAX
                while count()[False] <= waiting and time.monotonic() < ends:
                    time.sleep(0.01)  # until PostgreSQL lists one more who waits
            assert [entry.round_id for entry in watches.entries_of("watches")][2:] == []
        for one in coming:
            one.result(WAIT_SECONDS_MAX)
    decided = [entry.round_id for entry in watches.entries_of("watches")]
    assert sorted(decided[2:], key=str) == names
    assert not count()


def test_a_charge_that_is_not_in_memory_is_computed_in_nobodys_way(
    watches: Store,
    database_url: str,
    make_request: MakeRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer that only had to read the privacy loss leaves no undecided round."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("registered before it was decided")

    with Store.connect(database_url) as own:
        monkeypatch.setattr(own, "insert_round", never)
        request = make_request("r", cohort="watches")
        assert isinstance(register_and_admit(own, Accountant(), request, actor="tester")[0], Admitted)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_remembered_is_what_is_stored(
    watches: Store, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Two processes write, one of them in every way there is; what each remembers has the head's digest."""
    agreed = 0
    with Store.connect(database_url) as other, Store.connect(database_url) as reader:
        writers = (watches, watches, other)
        for number in range(30):
            writer = writers[number % 3]
            request = make_request(f"one-{number}", cohort="watches", reports=(1_000, 200)[number % 2])
            outcome = register_and_admit(writer, accountant, request, actor="tester")[0]
            if number % 5 == 4 and isinstance(outcome, Admitted):
                settle(writer, accountant, request.round_id, reports=100, actor="tester")
            if number % 7 == 6 and isinstance(outcome, Admitted):
                change_budget(other, "watches", epsilon=2.0, reason="more", actor="tester")
            stored = reader.view("watches")
            for store in (watches, other):
                remembered = store._memory.last_view("watches")
                if remembered is not None and remembered.head_digest == stored.head_digest:
                    assert spelled(remembered) == spelled(stored)
                    agreed += 1
    assert agreed >= 15
    report = verify(watches, accountant, numbers="all")
    assert report.ok, report


def spelled(view: CohortView) -> dict[str, object]:
    """Return all that decides, without the moment; details as bytes, for lists may be tuples."""
    return {**vars(view), "details": canonical.encode(view.details), "at": None, "read": None}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE heads SET epsilon_budget = 100 WHERE cohort = 'watches'",
        "UPDATE heads SET digest = (SELECT digest FROM entries WHERE sequence = 2 AND cohort = 'watches')",
        "DELETE FROM heads WHERE cohort = 'watches'",
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_nothing_is_decided_from_memory_on_edited_rows(
    watches: Store, accountant: Accountant, make_request: MakeRequest, statement: str
) -> None:
    for number in range(2):
        assert at_once(watches, accountant, make_request(f"r-{number}", cohort="watches")) is not None
    with disarmed(watches) as connection:
        connection.execute(text(statement))
    with pytest.raises((Damaged, NotFound)):
        register_and_admit(watches, accountant, make_request("late", cohort="watches"), actor="tester")
    assert "late" not in [entry.round_id for entry in watches.entries_of("watches")]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_cohort_that_was_stopped_is_not_remembered_as_open(
    watches: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    assert isinstance(at_once(watches, accountant, make_request("r", cohort="watches")), Admitted)
    with disarmed(watches) as connection:
        connection.execute(text("UPDATE heads SET status = 'overspent' WHERE cohort = 'watches'"))
    late = at_once(watches, accountant, make_request("late", cohort="watches"))
    assert isinstance(late, Refused)
    assert late.reason is RefusalReason.COHORT_OVERSPENT
