"""Opening a cohort again: it replaces what was opened, and only while nothing can have chosen it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import admit, register
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, LedgerError, OtherContent, TryAgain
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.clerk import Clerk, krr
from tests.ledger.test_bundles import by_the_example, forged, members_of, repacked

KEY = SigningKey.generate()
ONE = krr(900, 0.5, k=4)
WEEK = Window(unit="week", epsilon=0.5, delta=1e-7)
DAY = Window(unit="day", epsilon=0.5, delta=1e-7)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
CHANGES: list[dict[str, Any]] = [
    {"epsilon": 2.0, "delta": 1e-8, "population": 2000},
    {"labels": {"device": "phone"}, "ceiling": 3.0},
    {"windows": [DAY], "epsilon": None, "delta": None},
    {"local_budget": 4.0, "rounds_per_user": 3},
    {"approximate_share": 0.25},
]


@pytest.fixture(autouse=True)
def small(clerk: Clerk) -> None:
    """Have cohorts of a thousand users."""
    clerk.usual["population"] = 1000


@pytest.fixture
def other(database_url: str, clerk: Clerk) -> Iterator[Clerk]:
    """Yield the same ledger as another process has it."""
    with Store.connect(database_url) as found:
        yield Clerk(found, clerk.accountant, **clerk.usual)


def insisting(clerk: Clerk, name: str) -> object:
    """Return the outcome of a round; a process that remembers a replaced opening says so once."""
    try:
        return clerk.ask(ONE, name=name)
    except TryAgain:
        return clerk.ask(ONE, name=name)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_last_opening_is_in_force_for_every_process(
    clerk: Clerk, other: Clerk, changes: dict[str, Any]
) -> None:
    clerk.open()
    first = clerk.store.cohort("phones")
    for process in (clerk, other):  # each remembers what it read
        process.store.opening(process.store.cohort("phones"))
        process.store.has_windows(["phones"])
    clerk.change(1.5)
    for _ in range(2):
        other.open(**changes)
    again = clerk.store.cohort("phones")
    assert again == other.store.cohort("phones")
    assert first.opened_at is not None
    assert again.opened_at is not None
    assert again.opened_at > first.opened_at
    assert clerk.kinds() == ["opened", "budget_changed", "opened"]
    clerk.check()
    for name, process in (("a", clerk), ("b", other)):
        assert isinstance(insisting(process, name), Admitted)
    clerk.audit()


@ON_SQLITE
def test_a_round_that_only_the_replaced_opening_allowed_is_turned_away(clerk: Clerk, other: Clerk) -> None:
    clerk.open()
    with pytest.raises(InvalidValue):
        other.ask(krr(2000))
    clerk.open(population=100)
    with pytest.raises(InvalidValue):
        other.ask(ONE)
    with pytest.raises(InvalidValue):
        register(other.store, other.request(ONE), actor="ada")
    assert clerk.kinds() == ["opened", "opened"]


USES: dict[str, Callable[[Clerk], object]] = {
    "admitted": lambda clerk: clerk.ask(ONE),
    "refused": lambda clerk: clerk.ask(krr(1)),
    "waiting": lambda clerk: register(clerk.store, clerk.request(ONE), actor="ada"),
    "incident": lambda clerk: clerk.incident("a", None),
    "quota": lambda clerk: clerk.quota("t", 0.5),
    "frozen": lambda clerk: clerk.freeze(),
}


@ON_SQLITE
@pytest.mark.parametrize("use", USES)
def test_what_was_used_is_not_opened_again(clerk: Clerk, use: str) -> None:
    clerk.open(population=5000)
    before = clerk.store.cohort("phones")
    USES[use](clerk)
    found = clerk.kinds()
    with pytest.raises(Conflict, match="not opened again"):
        clerk.open(population=4000)
    with pytest.raises(Conflict, match=r"approximate_share: stored 0\.015625|not opened again"):
        clerk.open(population=5000, approximate_share=0.5)
    now = clerk.store.cohort("phones")
    assert (now.population, now.opened_at, clerk.kinds()) == (5000, before.opened_at, found)
    if use != "frozen":
        clerk.open(population=5000)


@ON_SQLITE
def test_a_part_is_opened_with_its_cohort_alone(clerk: Clerk) -> None:
    clerk.open(windows=[WEEK])
    with pytest.raises(InvalidValue):
        clerk.ask(krr(2000))  # opens no period
    clerk.open(windows=[WEEK], population=5000)
    clerk.ask(ONE)
    (period,) = [each.name for each in clerk.store.cohorts() if each.period is not None]
    with pytest.raises(LedgerError):
        clerk.open(period, population=6000)
    with pytest.raises(OtherContent, match="not opened again"):
        clerk.open(windows=[DAY])


@ON_SQLITE
@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5))], ids=str)
def test_a_release_between_two_openings_may_have_chosen_the_second(
    clerk: Clerk, tmp_path: Path, zone: timezone
) -> None:
    """Nor is one that is attested from the very moment of the second on known to be later."""
    clerk.open(windows=[WEEK])
    clerk.open(windows=[WEEK], epsilon=3.0)
    opened_at = clerk.store.cohort("phones").opened_at
    assert opened_at is not None
    moment, tick = opened_at.astimezone(zone), timedelta(microseconds=1)
    given = {"later": moment + tick, "at once": moment, "between": moment - tick}
    day = moment.astimezone(UTC).date()
    found = [clerk.incident(name, ONE, on=day, after=after) for name, after in given.items()]
    assert [(one.chosen_after, one.overspent) for one in found] == [(False, False), *(2 * [(True, True)])]
    assert len(clerk.names()) == 2, "the cohort and its week"
    clerk.audit()
    made = make_bundle(clerk.store, clerk.names(), signing_key=KEY)
    assert not by_the_example(made.data, tmp_path / "made.zip")


@ON_SQLITE
def test_an_opening_after_a_decision_is_found_whoever_signs_it(clerk: Clerk, tmp_path: Path) -> None:
    clerk.open()
    clerk.open(population=2000)
    clerk.ask(ONE)
    made = make_bundle(clerk.store, ["phones"], signing_key=KEY)
    assert verify_bundle(made.data, clerk.accountant).ok
    assert not by_the_example(made.data, tmp_path / "made.zip")
    bodies = [canonical.decode(entry.body) for entry in clerk.store.entries_of("phones")]

    def swap(sequence: int, body: dict[str, Any]) -> None:
        if sequence > 1:  # each with the other's content
            own = {"sequence": sequence, "recorded_at": bodies[2]["recorded_at"]}
            body |= copy.deepcopy(bodies[4 - sequence]) | own

    data = forged(made.data, swap, signer=KEY)
    first = verify_bundle(data, clerk.accountant, numbers="none").findings[0]
    assert (first.sequence, "although something was decided" in first.what) == (3, True)
    said = "entry 3: a chain begins with an opening, and has none once it was used"
    assert said in by_the_example(data, tmp_path / "forged.zip")

    def earlier(sequence: int, body: dict[str, Any]) -> None:
        body["recorded_at"] = bodies[0]["recorded_at"]

    data = forged(made.data, earlier, signer=KEY)
    findings = verify_bundle(data, clerk.accountant).findings
    assert any("not later than before" in each.what for each in findings)
    assert "it opens a part, or not later" in by_the_example(data, tmp_path / "forged.zip")


@ON_SQLITE
def test_a_used_period_of_a_replaced_opening_is_found(clerk: Clerk, tmp_path: Path) -> None:
    clerk.open(windows=[WEEK])
    clerk.ask(ONE)
    names = clerk.names()
    made = make_bundle(clerk.store, names, signing_key=KEY)
    now = canonical.spelled_moment(datetime.now(UTC))
    data = forged(
        made.data, lambda _, body: body.update(recorded_at=now), signer=KEY, member="chains/000001.txt"
    )
    data = repacked(members_of(data), tuple(names))
    found = verify_bundle(data, clerk.accountant).findings
    assert any("its cohort was opened again after it" in each.what for each in found)
    assert "it is of a replaced opening" in by_the_example(data, tmp_path / "forged.zip")


@pytest.mark.parametrize("windows", [[], [WEEK]], ids=["life", "week"])
@pytest.mark.parametrize("pending", [False, True], ids=["decided", "pending"])
def test_a_round_is_never_of_a_replaced_opening(
    clerk: Clerk, other: Clerk, windows: list[Window], pending: bool
) -> None:
    """One writer opens a cohort again and again, for fewer users each time; another registers a round."""
    clerk.open(windows=windows)
    begins, request = threading.Barrier(2), other.request(krr(990, 0.5, k=4), name="r")

    def open_again() -> int:
        begins.wait()
        last = 1000
        for size in range(999, 979, -1):
            try:
                clerk.open(population=size, windows=windows if size % 2 else [DAY])
            except Conflict:
                return last
            last = size
        return last

    def ask() -> bool:
        begins.wait()
        for _ in range(400):
            try:
                if pending:
                    register(other.store, request, actor="ada")
                else:
                    other.decide(request)
                return True
            except (InvalidValue, TryAgain):
                if other.store.cohort("phones").population < 990:
                    return False
        raise AssertionError("neither was first")

    with ThreadPoolExecutor(2) as pool:
        opening, asking = pool.submit(open_again), pool.submit(ask)
        last, is_registered = opening.result(), asking.result()
    assert clerk.store.cohort("phones").population == last
    assert is_registered == (last >= 990)
    if pending and is_registered:
        assert isinstance(admit(clerk.store, clerk.accountant, "r"), Admitted)
    clerk.check()
    assert [kind for kind in clerk.kinds() if kind != EntryKind.OPENED] == ["admitted"] * is_registered


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
    clerk: Clerk, other: Clerk, changes: dict[str, Any]
) -> None:
    clerk.open()
    with pytest.raises(TryAgain, match="opened again meanwhile"):
        Clerk(clerk.store, Meanwhile(lambda: other.open(**changes))).incident("i", ONE)
    assert clerk.kinds() == ["opened", "opened"]
    with pytest.raises(InvalidValue, match=r"collected_on|reports"):
        clerk.incident("i", ONE)
    clerk.check()
