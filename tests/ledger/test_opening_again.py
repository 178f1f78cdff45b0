"""Opening a cohort again: it replaces what was opened, and only while nothing can have chosen it."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    freezing,
    open_cohort,
    record_incident,
    register,
    register_and_admit,
    set_quota,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, LedgerError, OtherContent, TryAgain
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, ReleaseTimes, RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.test_bundles import EXAMPLE, forged, members_of, repacked

KEY = SigningKey.generate()
WEEK = Window(unit="week", epsilon=0.5, delta=1e-7)
DAY = Window(unit="day", epsilon=0.5, delta=1e-7)
CHANGES: list[dict[str, Any]] = [
    {"population": 2000},
    {"epsilon": 2.0, "delta": 1e-8},
    {"labels": {"device": "phone"}, "ceiling": 3.0},
    {"windows": [WEEK]},
    {"windows": [DAY], "epsilon": None, "delta": None},
    {"local_budget": 4.0, "rounds_per_user": 3},
    {"approximate_share": 0.25},
]


def opened(store: Store, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "name": "phones",
        "population": 1000,
        "epsilon": 1.0,
        "delta": 1e-6,
        "policy": "adaptive",
    }
    return open_cohort(store, actor="ada", **(values | changes))


def krr(reports: int = 900) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=0.5)"), reports=reports)


def asked(name: str, reports: int = 900, **more: Any) -> RoundRequest:
    return RoundRequest(round_id=name, cohort="phones", round=krr(reports), **more)


def insisting(store: Store, accountant: Accountant, request: RoundRequest) -> object:
    """Return the outcome of a round; a process that remembers a replaced opening says so once."""
    try:
        return register_and_admit(store, accountant, request, actor="ada")[0]
    except TryAgain:
        return register_and_admit(store, accountant, request, actor="ada")[0]


def kinds(store: Store, cohort: str = "phones") -> list[str]:
    return [entry.kind for entry in store.entries_of(cohort)]


@pytest.fixture
def other(database_url: str) -> Iterator[Store]:
    """Yield the same ledger as another process has it."""
    with Store.connect(database_url) as found:
        yield found


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_last_opening_is_in_force_for_every_process(
    store: Store, other: Store, accountant: Accountant, changes: dict[str, Any]
) -> None:
    first = opened(store)
    for process in (store, other):  # each remembers what it read
        process.opening(process.cohort("phones"))
        process.has_windows(["phones"])
    change_budget(store, "phones", epsilon=1.5, reason="so", actor="bob")
    again = opened(other, **changes)
    assert again == opened(other, **changes) == store.cohort("phones")
    assert again.opened_at > first.opened_at
    assert kinds(store) == ["opened", "budget_changed", "opened"]
    assert verify(store, accountant).ok
    for name, process in (("a", store), ("b", other)):
        assert isinstance(insisting(process, accountant, asked(name)), Admitted)
    assert verify(store, accountant, numbers="all").ok
    report = verify_bundle(make_bundle(store, ["phones"], signing_key=KEY).data, accountant, numbers="all")
    assert report.ok, report.findings


def test_a_round_that_only_the_replaced_opening_allowed_is_turned_away(
    store: Store, other: Store, accountant: Accountant
) -> None:
    opened(store, population=1000)
    register_and_admit_fails(other, accountant, asked("large", 2000))
    opened(store, population=100)
    register_and_admit_fails(other, accountant, asked("now too large", 900))
    with pytest.raises(InvalidValue):
        register(other, asked("pending", 900), actor="ada")
    assert kinds(store) == ["opened", "opened"]


def register_and_admit_fails(store: Store, accountant: Accountant, request: RoundRequest) -> None:
    with pytest.raises(InvalidValue):
        register_and_admit(store, accountant, request, actor="ada")


def freeze(store: Store) -> None:
    said = {"reason": "a disk", "checkpoint": "0" * 64, "nothing_later": False}
    view = store.view("phones")
    store.append(view, freezing.freezing(store, view, None, said, actor="ada"))


USES: dict[str, Callable[[Store, Accountant], object]] = {
    "admitted": lambda store, accountant: register_and_admit(store, accountant, asked("a"), actor="ada"),
    "refused": lambda store, accountant: register_and_admit(store, accountant, asked("a", 1), actor="ada"),
    "waiting": lambda store, accountant: register(store, asked("a"), actor="ada"),
    "incident": lambda store, accountant: record_incident(
        store, accountant, "phones", round_id="a", described=None, reason="a script", actor="eve"
    ),
    "quota": lambda store, accountant: set_quota(
        store, "phones", team="t", epsilon=0.5, reason="so", actor="ada"
    ),
    "frozen": lambda store, accountant: freeze(store),
}


@pytest.mark.parametrize("use", USES)
def test_what_was_used_is_not_opened_again(store: Store, accountant: Accountant, use: str) -> None:
    before = opened(store, population=5000)
    USES[use](store, accountant)
    found = kinds(store)
    with pytest.raises(Conflict, match="not opened again"):
        opened(store, population=4000)
    with pytest.raises(Conflict, match=r"approximate_share: stored 0\.015625|not opened again"):
        opened(store, population=5000, approximate_share=0.5)
    now = store.cohort("phones")
    assert (now.population, now.opened_at, kinds(store)) == (5000, before.opened_at, found)
    if use != "frozen":
        assert opened(store, population=5000) == now


def test_a_part_is_opened_with_its_cohort_alone(store: Store, accountant: Accountant) -> None:
    opened(store, windows=[WEEK])
    register_and_admit_fails(store, accountant, asked("too large", 2000))  # opens no period
    opened(store, windows=[WEEK], population=5000)
    register_and_admit(store, accountant, asked("r"), actor="ada")
    (period,) = [each.name for each in store.cohorts() if each.period is not None]
    with pytest.raises(LedgerError):
        opened(store, name=period, population=6000)
    with pytest.raises(OtherContent, match="not opened again"):
        opened(store, windows=[DAY])


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5))], ids=str)
def test_a_release_between_two_openings_may_have_chosen_the_second(
    store: Store, accountant: Accountant, tmp_path: Path, zone: timezone
) -> None:
    """Nor is one that is attested from the very moment of the second on known to be later."""
    opened(store, windows=[WEEK])
    again = opened(store, epsilon=3.0, windows=[WEEK])
    assert again.opened_at is not None
    moment, tick = again.opened_at.astimezone(zone), timedelta(microseconds=1)
    given = {"later": moment + tick, "at once": moment, "between": moment - tick}
    found = [
        record_incident(
            store,
            accountant,
            "phones",
            round_id=name,
            described=krr(),
            reason="a script",
            actor="eve",
            released=ReleaseTimes(after=after),
            collected_on=moment.astimezone(UTC).date(),
        )
        for name, after in given.items()
    ]
    assert [(one.chosen_after, one.overspent) for one in found] == [(False, False), *(2 * [(True, True)])]
    assert verify(store, accountant, numbers="all").ok
    names = [each.name for each in store.cohorts()]
    assert len(names) == 2, "the cohort and its week"
    made = make_bundle(store, names, signing_key=KEY)
    assert verify_bundle(made.data, accountant).ok
    assert not by_the_example(made.data, tmp_path / "made.zip")


def by_the_example(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    command = [sys.executable, str(EXAMPLE), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == ran.stdout.startswith("Digests, chains and heads hold"), ran
    return "" if ran.returncode == 0 else ran.stdout


def test_an_opening_after_a_decision_is_found_whoever_signs_it(
    store: Store, accountant: Accountant, tmp_path: Path
) -> None:
    opened(store)
    opened(store, population=2000)
    register_and_admit(store, accountant, asked("r"), actor="ada")
    made = make_bundle(store, ["phones"], signing_key=KEY)
    assert verify_bundle(made.data, accountant).ok
    assert not by_the_example(made.data, tmp_path / "made.zip")
    bodies = [canonical.decode(entry.body) for entry in store.entries_of("phones")]

    def swap(sequence: int, body: dict[str, Any]) -> None:
        if sequence > 1:  # each with the other's content
            own = {"sequence": sequence, "recorded_at": bodies[2]["recorded_at"]}
            body |= copy.deepcopy(bodies[4 - sequence]) | own

    data = forged(made.data, swap, signer=KEY)
    report = verify_bundle(data, accountant, numbers="none")
    first = report.findings[0]
    assert (first.sequence, "although something was decided" in first.what) == (3, True)
    assert "entry 3: a chain begins with an opening, and has none once it was used" in by_the_example(
        data, tmp_path / "forged.zip"
    )

    def earlier(sequence: int, body: dict[str, Any]) -> None:
        body["recorded_at"] = bodies[0]["recorded_at"]

    data = forged(made.data, earlier, signer=KEY)
    assert any("not later than before" in each.what for each in verify_bundle(data, accountant).findings)
    assert "it opens a part, or not later" in by_the_example(data, tmp_path / "forged.zip")


def test_a_used_period_of_a_replaced_opening_is_found(
    store: Store, accountant: Accountant, tmp_path: Path
) -> None:
    opened(store, windows=[WEEK])
    register_and_admit(store, accountant, asked("r"), actor="ada")
    names = [each.name for each in store.cohorts()]
    made = make_bundle(store, names, signing_key=KEY)
    assert not by_the_example(made.data, tmp_path / "made.zip")
    member = "chains/000001.txt"

    now = canonical.spelled_moment(datetime.now(UTC))
    data = forged(made.data, lambda _, body: body.update(recorded_at=now), signer=KEY, member=member)
    data = repacked(members_of(data), tuple(names))
    found = verify_bundle(data, accountant).findings
    assert any("its cohort was opened again after it" in each.what for each in found)
    assert "it is of a replaced opening" in by_the_example(data, tmp_path / "forged.zip")


@pytest.mark.parametrize("windows", [[], [WEEK]], ids=["life", "week"])
@pytest.mark.parametrize("pending", [False, True], ids=["decided", "pending"])
def test_a_round_is_never_of_a_replaced_opening(
    store: Store,
    other: Store,
    accountant: Accountant,
    windows: list[Window],
    pending: bool,
) -> None:
    """One writer opens a cohort again and again, for fewer users each time; another registers a round."""
    opened(store, population=1000, windows=windows)
    begins = threading.Barrier(2)
    sizes = range(999, 979, -1)

    def open_again() -> int:
        begins.wait()
        last = 1000
        for size in sizes:
            try:
                opened(store, population=size, windows=windows if size % 2 else [DAY])
            except Conflict:
                return last
            last = size
        return last

    def ask() -> bool:
        begins.wait()
        for _ in range(400):
            try:
                if pending:
                    register(other, asked("r", 990), actor="ada")
                else:
                    register_and_admit(other, accountant, asked("r", 990), actor="ada")
                return True
            except (InvalidValue, TryAgain):
                if other.cohort("phones").population < 990:
                    return False
        raise AssertionError("neither was first")

    with ThreadPoolExecutor(2) as pool:
        opening, asking = pool.submit(open_again), pool.submit(ask)
        last, is_registered = opening.result(), asking.result()
    assert store.cohort("phones").population == last
    assert is_registered == (last >= 990)
    if pending and is_registered:
        assert isinstance(admit(store, accountant, "r"), Admitted)
    assert verify(store, accountant).ok
    assert [kind for kind in kinds(store) if kind != EntryKind.OPENED] == ["admitted"] * is_registered


class Meanwhile(Accountant):
    """Does something once, as soon as it is asked for anything."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens: Callable[[], object] | None = happens

    def __getattribute__(self, name: str) -> Any:
        """Return the attribute, after what happens."""
        known = object.__getattribute__(self, "__dict__")
        happens, known["happens"] = known.get("happens"), None
        if happens is not None and name != "happens":
            happens()
        return object.__getattribute__(self, name)


@pytest.mark.parametrize(
    "changes", [{"windows": [WEEK], "epsilon": None, "delta": None}, {"population": 100}], ids=str
)
def test_an_incident_is_not_placed_by_a_replaced_opening(
    store: Store, other: Store, accountant: Accountant, changes: dict[str, Any]
) -> None:
    opened(store)
    told: dict[str, Any] = {"round_id": "i", "described": krr(), "reason": "a script", "actor": "eve"}
    with pytest.raises(TryAgain, match="opened again meanwhile"):
        record_incident(store, Meanwhile(lambda: opened(other, **changes)), "phones", **told)
    assert kinds(store) == ["opened", "opened"]
    with pytest.raises(InvalidValue, match=r"collected_on|reports"):
        record_incident(store, accountant, "phones", **told)
    assert verify(store, accountant).ok
