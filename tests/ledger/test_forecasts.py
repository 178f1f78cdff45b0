"""The ledger admits every round that a forecast says fits, and no other one where it says so."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.answers.forecasts import Forecast
from shuffle_ledger.ledger.decisions import open_cohort, price, register, register_and_admit, settle
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.reports import forecast
from shuffle_ledger.ledger.reports.forecasts import PROMISE, fitting, schedule_spending
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.values.schedules import FIT_MAX, Every, ForecastWanted, ScheduleDays
from shuffle_ledger.ledger.values.windows import Window

pytestmark = pytest.mark.policies

TODAY = date(2025, 1, 31)
COUNT_MAX = 60  # rounds that a test registers
PRECISION = 1e-2  # of privacy losses, where numbers need not be closer
NAMES = (f"round-{number}" for number in itertools.count())
TURNS_MAX = 25  # of a schedule, that a test registers
SAMPLE = ShuffledRound(randomizer="krr(k=4, epsilon0=4)", reports=100, sampled_from=10_000)  # type: ignore[arg-type]
SMALL, LARGE = (ShuffledRound(randomizer="krr(k=4, epsilon0=1)", reports=n) for n in (9_000, 20_000))  # type: ignore[arg-type]
RANDOMIZERS = st.sampled_from(
    ["krr(k=10, epsilon0={})", "generic(epsilon0={})", "blh(epsilon0={}, domain=64)", "laplace(epsilon0={})"]
)
KINDS = st.builds(
    lambda randomizer, epsilon0, reports, sampled: ShuffledRound.from_mapping(
        {"randomizer": randomizer.format(epsilon0), "reports": reports}
        | ({"sampled_from": 3 * reports} if sampled else {})
    ),
    RANDOMIZERS,
    st.sampled_from([1.0, 2.0, 3.0]),
    st.sampled_from([611, 3_011, 9_000]),
    st.booleans(),
)


@contextmanager
def copied(folder: Path) -> Iterator[Store]:
    """Yield a copy of the ledger as it is now."""
    with (
        closing(sqlite3.connect(folder / "ledger.db")) as now,
        closing(sqlite3.connect(folder / "copy.db")) as copy,
    ):
        now.backup(copy)
    with Store.connect(f"sqlite:///{folder / 'copy.db'}") as store:
        yield store


def admits(store: Store, accountant: Accountant, described: ShuffledRound, **more: Any) -> bool:
    request = RoundRequest(round_id=next(NAMES), cohort="watches", round=described, **more)
    return isinstance(register_and_admit(store, accountant, request, actor="tester")[0], Admitted)


def opened(store: Store, policy: str, epsilon: float, **more: Any) -> None:
    wanted = {"name": "watches", "population": 10**6, "delta": 1e-7, "actor": "tester"}
    open_cohort(store, epsilon=epsilon, policy=policy, **{**wanted, **more})


def asked(store: Store, accountant: Accountant, **wanted: Any) -> Forecast:
    return forecast(store, accountant, "watches", ForecastWanted(**wanted), today=TODAY)


@pytest.fixture
def folder(tmp_path: Path, sqlite_template: Path) -> Path:
    shutil.copy(sqlite_template, tmp_path / "ledger.db")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["adaptive"])
def test_a_schedule_of_late_goes_on_as_long_and_costs_as_was_said(folder: Path, policy: str) -> None:
    accountant = Accountant(precision=PRECISION)
    with Store.connect(f"sqlite:///{folder / 'ledger.db'}") as store:
        more = {"plan": {LARGE: 9, SMALL: 9}, "accountant": accountant} if policy == "plan" else {}
        opened(store, policy, 30.0 if policy == "plan" else 0.3, **more)
        for number in range(3):
            for kind, use_case in ((SMALL, "words"), (LARGE, "emoji")):
                day = TODAY - timedelta(days=7 * (3 - number))
                assert admits(store, accountant, kind, use_case=use_case, collected_on=day)
        late = asked(store, accountant).of_late
        assert late is not None
        assert (late.every, [kind.randomizer for kind in late.kinds]) == ("week", [SMALL.randomizer] * 2)
        last = TODAY + timedelta(days=7 * (late.periods_at_least - 1))
        assert late.ends_on == last
        losses = LossSource(store=store, accountant=accountant, keep=False)
        view, until = store.view("watches"), TODAY + timedelta(days=7 * 40)
        course = dict(schedule_spending(losses, view, late, today=TODAY, until=until))
        assert max(course) == min(last, until)
        assert late.periods_at_least > 3
        for number in range(min(late.periods_at_least, 41)):
            assert all(admits(store, accountant, kind) for kind in late.kinds)
            said = course.get(TODAY + timedelta(days=7 * number))
            if said is not None:
                spent = store.view("watches").spent.epsilon_upper
                assert policy == "plan" or spent == pytest.approx(said, rel=1e-9)  # plan: dearer slots
                assert spent <= said * (1 + 1e-9) <= view.cohort.epsilon_budget * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["adaptive", "plan"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=st.lists(KINDS, max_size=2), kind=KINDS, epsilon=st.sampled_from([0.1, 0.2, 0.3]))
def test_what_a_forecast_says_is_then_admitted(
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    policy: str,
    before: list[ShuffledRound],
    kind: ShuffledRound,
    epsilon: float,
) -> None:
    folder, accountant = tmp_path_factory.mktemp("forecast"), Accountant(precision=PRECISION)
    shutil.copy(sqlite_template, folder / "ledger.db")
    with Store.connect(f"sqlite:///{folder / 'ledger.db'}") as store:
        more = {"plan": {SMALL: 3, kind: 2, LARGE: 2}, "accountant": accountant} if policy == "plan" else {}
        opened(store, policy, 30.0 if policy == "plan" else epsilon, **more)
        for each in before:
            admits(store, accountant, each)
        head = store.view("watches").head_digest
        (found,) = asked(store, accountant, round=kind).kinds
        assert store.view("watches").head_digest == head
        count = min(found.rounds_at_least, COUNT_MAX)
        with copied(folder) as copy:
            assert [admits(copy, accountant, kind) for _ in range(count)] == [True] * count
            if found.next_is_refused and count == found.rounds_at_least:
                assert not admits(copy, accountant, kind)
    assert found.next_is_refused or found.rounds_at_least > COUNT_MAX


WINDOWS = st.lists(
    st.sampled_from(
        [
            Window(unit="day", epsilon=0.05, delta=1e-7),
            Window(unit="week", epsilon=0.08, delta=1e-7),
            Window(unit="month", epsilon=0.1, delta=1e-7),
            Window(unit="day", sliding=3, epsilon=0.07, delta=1e-7),
            Window(unit="week", epsilon=9.0, delta=1e-7, local_budget=5.0),
        ]
    ),
    max_size=2,
    unique_by=lambda window: window.kind,
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    windows=WINDOWS,
    kinds=st.lists(st.sampled_from([SMALL, LARGE]), min_size=1, max_size=3),
    before=st.lists(st.tuples(st.sampled_from([SMALL, LARGE]), st.integers(0, 20)), max_size=3),
    every=st.sampled_from(["day", "week"]),
    epsilon=st.sampled_from([0.1, 0.2]),
)
def test_a_schedule_ends_where_deciding_it_day_by_day_ends(
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    accountant: Accountant,
    windows: list[Window],
    kinds: list[ShuffledRound],
    before: list[tuple[ShuffledRound, int]],
    every: Every,
    epsilon: float,
) -> None:
    """Periods begin anew meanwhile, and some have rounds already."""
    folder = tmp_path_factory.mktemp("schedule")
    shutil.copy(sqlite_template, folder / "ledger.db")
    with Store.connect(f"sqlite:///{folder / 'ledger.db'}") as store:
        opened(store, "adaptive", epsilon, windows=windows)
        today = store.view("watches").now.date()
        for kind, days in before:
            admits(store, accountant, kind, collected_on=today + timedelta(days=days))
        dates = ScheduleDays(every=every, first=today, until=None)
        losses = LossSource(store=store, accountant=accountant, keep=False)
        found = fitting(losses, store.view("watches"), kinds, dates, most=TURNS_MAX)
        turns = 0
        while turns < TURNS_MAX and all(
            admits(store, accountant, kind, collected_on=dates.last_of(turns + 1)) for kind in kinds
        ):
            turns += 1
    assert found.turns == turns
    assert found.is_largest == (turns < TURNS_MAX)


@pytest.mark.slow
def test_declared_slots_admit_as_many_as_was_said(store: Store, accountant: Accountant) -> None:
    opened(store, "adaptive", 1.0, delta=1e-6)
    found = asked(store, accountant, round=SAMPLE).kinds[0]
    said = found.slots_would_help
    assert said is not None
    assert said.rounds_without == found.rounds_at_least
    assert said.rounds_with > 1.25 * said.rounds_without
    quoted = price(store, accountant, RoundRequest(round_id="r", cohort="watches", round=SAMPLE))
    assert quoted.slots_would_help == said
    plan = {SAMPLE: said.rounds_with}
    opened(store, "adaptive", 1.0, delta=1e-6, name="planned", plan=plan, accountant=accountant)
    wanted = ForecastWanted(round=SAMPLE)
    (planned,) = forecast(store, accountant, "planned", wanted, today=TODAY).kinds
    assert planned.rounds_at_least == said.rounds_with
    assert planned.slots_would_help is None
    assert asked(store, accountant, round=SMALL).kinds[0].slots_would_help is None
    assert admits(store, accountant, SMALL)
    assert asked(store, accountant, round=SAMPLE).kinds[0].slots_would_help is None, "nothing can be declared"


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["adaptive"])
def test_rounds_fit_with_the_epsilon0_that_a_forecast_finds(folder: Path, policy: str) -> None:
    accountant = Accountant(precision=PRECISION)
    with Store.connect(f"sqlite:///{folder / 'ledger.db'}") as store:
        more = {"plan": {SMALL: 5, LARGE: 7}, "accountant": accountant} if policy == "plan" else {}
        opened(store, policy, 0.5, **more)
        assert admits(store, accountant, LARGE)
        (found,) = asked(store, accountant, round=LARGE, fit=11).kinds
        assert found.largest is not None
        assert found.largest.rounds == 11
        epsilon0 = found.largest.epsilon0
        assert epsilon0 is not None
        largest = ShuffledRound(randomizer=f"krr(k=4, epsilon0={epsilon0!r})", reports=20_000)  # type: ignore[arg-type]
        with copied(folder) as copy:
            assert all(admits(copy, accountant, largest) for _ in range(11))
        (too_many,) = asked(store, accountant, round=LARGE, fit=FIT_MAX).kinds
        assert too_many.largest is not None
        assert too_many.largest.epsilon0 is None or policy != "plan"


@pytest.mark.parametrize(
    ("every", "first_on", "ends_on", "until", "needed"),
    [
        ("day", None, date(2025, 2, 4), date(2025, 2, 4), 5),
        ("week", None, date(2025, 2, 28), date(2025, 3, 7), 6),
        ("month", None, date(2025, 5, 31), date(2025, 5, 30), 4),
        ("month", date(2024, 2, 29), date(2024, 6, 29), date(2025, 2, 28), 13),
        ("month", date(9999, 12, 1), None, date(9999, 12, 31), 1),
        ("day", date(2025, 6, 1), date(2025, 6, 5), date(2025, 5, 1), 0),
    ],
)
def test_a_schedule_ends_on_the_day_of_its_last_round(
    store: Store,
    accountant: Accountant,
    every: str,
    first_on: date | None,
    ends_on: date | None,
    until: date,
    needed: int,
) -> None:
    opened(store, "plan", 2.0, plan={LARGE: 5}, accountant=accountant)
    found = asked(store, accountant, every=every, first_on=first_on, until=until)
    (kind,) = found.kinds
    assert (kind.rounds_at_least, kind.ends_on, kind.rounds_until) == (5, ends_on, needed)
    assert kind.reaches_until == (needed <= 5)
    assert (found.first_on, found.promise) == (first_on or TODAY, PROMISE)


def test_nothing_is_forecast_of_an_overspent_cohort(store: Store, accountant: Accountant) -> None:
    opened(store, "adaptive", 0.1)
    assert admits(store, accountant, LARGE)
    waiting = RoundRequest(round_id="waiting", cohort="watches", round=SMALL)
    register(store, waiting, actor="tester")
    assert asked(store, accountant).rounds_pending == 1
    first = next(name for name in (f"round-{number}" for number in range(10_000)) if _is_of(store, name))
    settle(store, accountant, first, reports=20, actor="tester")
    found = asked(store, accountant, round=LARGE, fit=3, every="day")
    (kind,) = found.kinds
    assert (found.status, kind.rounds_at_least, kind.limited_by) == ("overspent", 0, "cohort_overspent")
    assert (kind.next_is_refused, kind.ends_on) == (True, None)
    assert kind.largest is not None
    assert kind.largest.epsilon0 is None


def _is_of(store: Store, name: str) -> bool:
    try:
        return store.round(name).cohort == "watches"
    except NotFound:
        return False


def test_questions_that_contradict_themselves_say_what_is_missing(
    store: Store, accountant: Accountant
) -> None:
    opened(store, "adaptive", 0.1)
    for wanted, field in (
        ({"fit": 3}, "fit"),
        ({"fit": 0, "round": LARGE}, "fit"),
        ({"fit": True, "round": LARGE}, "fit"),
        ({"fit": FIT_MAX + 1, "round": LARGE}, "fit"),
        ({"every": "year"}, "every"),
        ({"until": TODAY}, "until"),
        ({"first_on": TODAY}, "first_on"),
    ):
        with pytest.raises(InvalidValue, match=f"^{field}: got .*, expected "):
            ForecastWanted(**wanted)
    with pytest.raises(InvalidValue, match="reports"):
        asked(store, accountant, round=ShuffledRound(randomizer="krr(k=4, epsilon0=1)", reports=10**7))  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        forecast(store, accountant, "phones", ForecastWanted(), today=TODAY)
