"""The overview: what it shows of each cohort is what the API says, at a bounded cost for a page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.answers.summaries import day_in_words
from shuffle_ledger.ledger.api.overview import COMPUTED_AT_ONCE, Overview
from shuffle_ledger.ledger.api.pages import routes
from shuffle_ledger.ledger.api.pages.charts import lower, plain, upper
from shuffle_ledger.ledger.decisions import open_cohort
from shuffle_ledger.ledger.decisions.admission import admit_at_once, register
from shuffle_ledger.ledger.reports.budgets import history
from shuffle_ledger.ledger.reports.chain_outlines import (
    CURVE_POINTS,
    TAIL_ENTRIES,
    chain_outlines,
    refused_since,
)
from shuffle_ledger.ledger.reports.collection_days import last_of_days
from shuffle_ledger.ledger.reports.listing import EntryFilter, cohort_heads, matching_entries
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import privacy_losses
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.workers.dispatch import decide
from tests.api.conftest import ROUND, Server
from tests.api.test_pages import _login
from tests.api.test_rounds import TOO_MUCH

FIRST = date(2025, 1, 6)
KIND = ShuffledRound.from_mapping(ROUND)
ROLLING = "rolling=7,bucket=day,epsilon=0.3"


@dataclass(frozen=True, kw_only=True)
class Point:
    """An entry of a chain."""

    kind: EntryKind
    collected_on: date
    recorded_at: datetime


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Yield a list of the statements that the database gets meanwhile."""
    found: list[str] = []

    def heard(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", heard)
    yield found
    event.remove(engine, "before_cursor_execute", heard)


def admit(
    store: Store, accountant: Accountant, name: str, cohort: str, kind: ShuffledRound = KIND, **more: Any
) -> None:
    """Register a round and have it decided."""
    request = RoundRequest(round_id=name, cohort=cohort, round=kind, **more)
    if admit_at_once(store, accountant, request, actor="tester") is None:
        register(store, request, actor="tester")
        decide(store, accountant, Settings(broker_url=None), name)


@pytest.mark.slow
def test_a_card_says_what_the_api_says(server: Server) -> None:
    for number in range(4):
        day = (FIRST + timedelta(days=7 * number)).isoformat()
        assert server.register(f"a {number}", collected_on=day, use_case="emoji").status_code == 201
    assert server.register("too much", **TOO_MUCH).status_code == 409
    said = server.ask("POST", "/v1/cohorts/phones/forecast", json={}).json()
    late, (kind,) = said["of_late"], said["kinds"]
    assert (late["every"], late["kinds"]) == ("week", [kind["round"]])
    weeks = timedelta(days=7 * (late["periods_at_least"] - 1))
    assert date.fromisoformat(late["ends_on"]) == datetime.now(UTC).date() + weeks
    assert late["periods_at_least"] <= kind["rounds_at_least"]
    browser = _login(server)
    for _ in range(50):  # a busy machine's first page does not wait for every card
        page = browser.get("/").text
        if "being computed" not in page:
            break
        time.sleep(0.1)
    assert "if nothing else is registered and no other cohort or quota refuses" in page
    phones, secret = page.split('<a class="card cohort"')[1:]
    texts = [re.sub(r"<[^>]+>|\s+", " ", card) for card in (phones, secret)]
    texts = [re.sub(r"\s+", " ", text) for text in texts]
    ends = day_in_words(date.fromisoformat(late["ends_on"]))
    assert f"Still fits {kind['rounds_at_least']:,} or more of krr(k=2)" in texts[0]
    assert f"At the present pace enough until {ends} every week one of krr(k=2)" in texts[0]
    assert "4 rounds held · 1 refused in 30 days" in texts[0]
    assert "Still fits no kind was admitted yet" in texts[1]
    assert "At the present pace" not in texts[1]
    line = re.search(r'class="line" points="([^"]+)"', phones)
    assert line
    heights = [float(point.split(",")[1]) for point in line.group(1).split()]
    assert all(lower <= higher for higher, lower in pairwise(heights))  # the picture's y goes down
    assert 'class="spark"' not in secret


def _left(promise: dict[str, Any]) -> str:
    is_whole = promise["epsilon_remaining"] == promise["epsilon_budget"]
    return plain(promise["epsilon_budget"]) if is_whole else lower(promise["epsilon_remaining"])


@pytest.mark.slow
def test_a_card_shows_each_promise_as_the_api_says(server: Server) -> None:
    windows = [Window.from_text(f"{each},delta=1e-9") for each in ("calendar=year,epsilon=1", ROLLING)]
    opening: dict[str, Any] = {"epsilon": None, "delta": None, "policy": "adaptive", "windows": windows}
    open_cohort(server.store, name="windowed", population=10**6, actor="tester", **opening)
    for number in range(2):  # before and after its periods are opened
        said = server.ask("GET", "/v1/cohorts/windowed/budget").json()
        card = _login(server).get("/").text.split("<h2>windowed")[1].split("</a>")[0]
        lines = re.findall(r'<p class="period"><b>[^<]+</b> <small>([^<]+)<', card)
        year = next(one for one in said["promises"] if one["kind"] == "year")
        sliding = [one for one in said["promises"] if one["kind"] != "year"]
        shown = [min(sliding, key=lambda one: one["epsilon_remaining"]), year]
        assert sorted(lines) == sorted(
            f"ε {upper(one['epsilon_spent_upper'])} of {plain(one['epsilon_budget'])} used,"
            f" {_left(one)} left, at δ 1e-9; {_renewal(one)}"
            for one in shown
        )
        assert f"ε {upper(said['epsilon_spent_upper'])} of {plain(said['epsilon_budget'])}, at" in card
        assert server.register(f"w {number}", cohort="windowed").status_code == 201


def _renewal(one: dict[str, Any]) -> str:
    if one["kind"] == "year":
        return f"renews on {one['renews']}"
    return (
        f"part of it is free again on {one['renews']}" if one["epsilon_spent_upper"] else "all of it is free"
    )


def test_the_overview_is_searched_and_sorted(server: Server) -> None:
    assert server.register("a").status_code == 201
    person = _login(server)

    def names(query: str) -> list[str]:
        return re.findall(r"<h2>(\w+)", person.get(f"/?{query}").text)

    assert names("") == names("sort=urgency") == names("sort=name") == ["phones", "secret"]
    assert (names("search=SEC"), names("search=e&sort=name")) == (["secret"], ["phones", "secret"])
    assert names("sort=name&after=phones") == ["secret"]
    assert "No cohort has this in its name." in person.get("/?search=gone").text
    assert person.get("/?sort=size").status_code == 422


@pytest.mark.slow
def test_a_page_of_cohorts_takes_as_many_statements_as_one(any_store: Store) -> None:
    accountant, names = Accountant(), [f"cohort {number}" for number in range(COMPUTED_AT_ONCE)]
    for name in names:
        open_cohort(any_store, name=name, population=10**5, epsilon=1.0, delta=1e-6, policy="adaptive",
                    actor="tester")  # fmt: skip
        for number in range(3):
            day = FIRST + timedelta(days=7 * number)
            admit(any_store, accountant, f"{name}/{number}", name, collected_on=day)
    counts = []
    for some in (names[:1], names):
        fresh = Store(any_store.engine)
        overview = Overview(fresh)
        with statements(any_store.engine) as heard:
            seen = overview.outlines(cohort_heads(fresh, only=some))
            refused_since(fresh, some, datetime.now(UTC))
            found = overview.outlooks(Accountant(), list(seen.items()), today=FIRST, seconds=1e9)
        assert {name for name, one in found.items() if one is not None} == set(some)
        counts.append(len(heard))
        with statements(any_store.engine) as heard:
            assert overview.known_outlooks(list(seen.items()), today=FIRST) == found
        assert heard == []
    assert counts[0] == counts[1]
    for number, name in enumerate(names[:3]):
        admit(any_store, accountant, f"other {number}", name, replace(KIND, reports=2000 + 500 * number))
    for some in (names[:1], names[:3]):
        with statements(any_store.engine) as heard:
            Store(any_store.engine).views(some)
        counts.append(len(heard))
    assert counts[2] == counts[3]


@pytest.mark.slow
def test_a_cohorts_picture_is_over_days_of_collection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PROFILE_SECONDS", 60.0)
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=7 * number) for number in (4, 2, 3, 1)]  # not in their order
    for number, day in enumerate(days):
        assert server.register(f"a {number}", collected_on=f"{day}", use_case="emoji").status_code == 201
    assert server.register("too much", collected_on=f"{days[0]}", use_case="w", **TOO_MUCH).status_code == 409
    late = server.ask("POST", "/v1/cohorts/phones/forecast", json={}).json()["of_late"]
    text = _login(server).get("/cohorts/phones").text
    assert f"enough until {day_in_words(date.fromisoformat(late['ends_on']))}" in text
    assert re.findall(r"<b>(\w+)</b> <small>([^<]+)<", text) == [
        ("emoji", "4 admitted"),
        ("w", "0 admitted, 1 refused"),
    ]
    assert text.count('<circle cx="') == 4
    chart = text.split('<svg class="chart"')[1].split("</svg>")[0]
    line, ahead = (
        [
            tuple(map(float, point.split(",")))
            for point in re.findall(rf'class="{name}" points="([^"]+)"', chart)[0].split()
        ]
        for name in ("line", "ahead")
    )
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert line[-1] == ahead[0]  # it goes on from here
    assert ahead == sorted(ahead)
    assert ahead[-1][0] == max(x for x, _ in ahead) > line[-1][0]
    rows = re.findall(r"<tr><td>(\d{4}-\d\d-\d\d)</td>" + 3 * r"<td class=\"number\">([^<]+)</td>", text)
    spent = {point.round_id: point.epsilon_spent_upper for point in history(server.store, "phones")}
    at = [spent[name] for name in ("a 3", "a 2", "a 1", "a 0")]  # all are of one kind
    assert [row[0] for row in rows] == [f"{day}" for day in sorted(days, reverse=True)]
    assert [row[2:] for row in rows] == [("1", "0"), ("1", "0"), ("1", "0"), ("1", "1")]
    assert [row[1] for row in rows] == [upper(value) for value in at]


def test_what_is_not_stored_is_not_computed(sqlite_store: Store) -> None:
    accountant = Accountant()
    admit(sqlite_store, accountant, "one", "phones")
    for stored in (True, False):
        if not stored:
            with sqlite_store.engine.begin() as connection:
                connection.execute(delete(privacy_losses))
        overview, unknowing = Overview(sqlite_store), Accountant()
        seen = overview.outlines(cohort_heads(sqlite_store, only=["phones"]))
        found = overview.outlooks(unknowing, list(seen.items()), today=FIRST)
        assert (found["phones"] is not None) is stored
        assert unknowing.knows(seen["phones"].latest or KIND) is stored


@pytest.mark.slow
def test_a_glimpse_and_the_refusals_of_late(sqlite_store: Store) -> None:
    accountant = Accountant()
    for number in range(CURVE_POINTS + TAIL_ENTRIES):
        use_case = ("emoji", "health")[number % 2]
        day = FIRST + timedelta(days=number // 2 * 30)
        admit(sqlite_store, accountant, f"{number}", "phones", use_case=use_case, collected_on=day)
    before = sqlite_store.view("phones")
    admit(sqlite_store, accountant, "no", "phones", ShuffledRound.from_mapping(TOO_MUCH))
    found = chain_outlines(sqlite_store, ["phones", "secret"])
    phones, secret = found["phones"], found["secret"]
    assert (secret.latest, secret.schedule, len(secret.curve)) == (None, None, 1)
    assert phones.sequence == before.head_sequence + 1
    assert phones.curve[0] == (FIRST, phones.curve[0][1])
    assert phones.curve[-1][1] == before.spent.epsilon_upper
    assert [day for day, _ in phones.curve] == sorted({day for day, _ in phones.curve})
    assert phones.latest is not None
    assert phones.schedule is not None
    assert (phones.schedule.every, phones.schedule.kinds) == ("month", (phones.latest, phones.latest))
    now = sqlite_store.view("phones").at
    names = ["phones", "secret"]
    assert refused_since(sqlite_store, names, now - timedelta(days=1)) == {"phones": 1}
    assert refused_since(sqlite_store, names, now + timedelta(days=1)) == {}


def test_each_day_is_told_by_an_entry_that_counts_all_rounds_until_then() -> None:
    days = [FIRST + timedelta(days=number) for number in (0, 2, 0, 1, 5, 3, 3, 1)]
    kinds = [EntryKind.OPENED, *[EntryKind.ADMITTED] * 6, EntryKind.REFUSED]
    both = zip(kinds, days, strict=True)
    chain = [Point(kind=kind, collected_on=day, recorded_at=datetime.now(UTC)) for kind, day in both]
    found = last_of_days(chain)
    assert list(found) == sorted(set(days))
    for day, number in found.items():
        admitted = [place for place, each in enumerate(chain[:-1]) if each.collected_on <= day]
        assert number == max(admitted)  # the refusal counts nothing


@pytest.mark.slow
def test_pages_of_a_history_have_every_entry_once(sqlite_store: Store) -> None:
    accountant = Accountant()
    for number in range(7):
        admit(sqlite_store, accountant, f"{number}", "phones", use_case=("emoji", "words")[number % 2])
    for wanted, expected in (
        (EntryFilter(use_case="emoji"), ["6", "4", "2", "0"]),
        (EntryFilter(), [*"6543210", None]),
    ):
        for searched_max in (1, 3, 1000):
            seen, before = list[str | None](), None
            while True:
                found, before = matching_entries(
                    sqlite_store, "phones", wanted, limit=2, searched_max=searched_max, before=before
                )
                assert len(found) <= 2
                seen += [body.round_id for body in found]
                if before is None:
                    break
            assert seen == expected
