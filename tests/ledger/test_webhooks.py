"""Webhooks: every event once it happened, signed, at least once, in order, with stable identifiers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.answers.entries import EventPage
from shuffle_ledger.ledger.decisions import (
    change_budget,
    close_cohort,
    freezing,
    open_cohort,
    record_incident,
    register_and_admit,
)
from shuffle_ledger.ledger.errors import InvalidValue, NotFound, TryAgain
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import positions, tables
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import ATTEMPTS_MAX
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.webhooks import (
    NewSubscription,
    deliver,
    delivery,
    list_subscriptions,
    resume,
    sending,
    subscribe,
    unsubscribe,
)
from tests.ledger.desk import decided
from tests.receiver import Receiver, receiving

MakeRequest = Callable[..., RoundRequest]
KEY = "a key of at least thirty-two characters"
TOO_MUCH = {"epsilon0": 8.0, "reports": 10}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a service on this machine."""
    with receiving() as found:
        yield found


def added(store: Store, receiver: Receiver, **more: Any) -> NewSubscription:
    return subscribe(store, KEY, url=receiver.url, actor="tester", **more)


def due(store: Store) -> None:
    """Have what was to be tried again later be due now."""
    with store.engine.begin() as connection:
        connection.execute(update(tables.webhooks).values(next_attempt_at=None))


def budget(store: Store, accountant: Accountant, epsilon: float) -> None:
    change_budget(store, name="phones", epsilon=epsilon, reason="a test", actor="tester")


def kinds(messages: list[Any]) -> list[str]:
    return [each["type"].removeprefix("shuffle-ledger.") for each in messages]


def test_a_closed_cohort_is_told_with_the_reason(phones: Store, receiver: Receiver) -> None:
    new = added(phones, receiver)
    close_cohort(phones, "phones", reason="the study is over", actor="desk")
    assert deliver(phones, KEY).sent == 1
    (found,) = receiver.read(new.secret)
    assert found["type"] == "shuffle-ledger.closed"
    assert (found["data"]["reason"], found["data"]["actor"]) == ("the study is over", "desk")


@pytest.mark.slow
def test_a_subscription_gets_each_event_of_the_feed_once_and_no_other(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    decided(phones, accountant, make_request("before", **TOO_MUCH))
    new = added(phones, receiver, thresholds={"phones": 0.9}, threshold=0.5)
    whole = added(phones, receiver, from_start=True, kinds=["refused"])
    only = added(phones, receiver, kinds=["overspent"])
    decided(phones, accountant, make_request("a"))
    spent = phones.view("phones").spent.epsilon_upper
    decided(phones, accountant, make_request("b", **TOO_MUCH))
    budget(phones, accountant, spent / 0.85)  # between the two thresholds
    budget(phones, accountant, spent / 0.95)
    budget(phones, accountant, spent / 0.97)  # the threshold was passed before
    record_incident(
        phones, accountant, "phones", round_id="leak", described=None, reason="a leak", actor="tester"
    )
    view = phones.view("phones")
    head = CheckpointHead(cohort="phones", sequence=view.head_sequence, digest_hex=view.head_digest.hex())
    phones.append(
        view,
        freezing.freezing(phones, view, head, {"reason": "lost", "checkpoint": "0" * 64}, actor="tester"),
    )
    assert deliver(phones, KEY).sent == 8
    got = list(receiver.got)

    def read(one: NewSubscription) -> list[Any]:
        receiver.got[:] = [each for each in got if one.subscription.subscription_id in each[0]["webhook-id"]]
        return receiver.read(one.secret)

    assert [each["data"]["round_id"] for each in read(whole)] == ["before", "b"]
    assert kinds(read(only)) == ["overspent"]
    found = read(new)
    assert kinds(found) == ["refused", "nearly_exhausted", "exhausted", "overspent", "frozen"]
    entries = {event.sequence: event for event in events_after(phones).events}
    for each in found:
        assert each["specversion"] == "1.0"
        assert each["source"] == f"urn:shuffle-ledger:{phones.standing().ledger_id}"
        assert each["subject"] == each["data"]["cohort"] == "phones"
        entry = entries[each["data"]["sequence"]]
        assert each["data"]["digest"] == entry.digest
        assert datetime.fromisoformat(each["time"]).tzinfo
    assert found[0]["data"]["reason"] == "budget_exceeded"
    assert found[1]["data"]["threshold"] == 0.9
    assert deliver(phones, KEY).sent == 0


def test_the_same_message_comes_again_until_it_was_taken_and_the_order_stays(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    new = added(phones, receiver)
    for name in "abc":
        decided(phones, accountant, make_request(name, **TOO_MUCH))
    receiver.answers = [500, 307]  # a redirection is not followed
    for attempt in (1, 2):
        assert deliver(phones, KEY).failed == 1
        assert deliver(phones, KEY).failed == 0  # it is not due yet
        [shown] = list_subscriptions(phones)
        assert (shown.attempts, bool(shown.last_error and shown.failing_since)) == (attempt, True)
        due(phones)

    def dying(*given: Any, **more: Any) -> str | None:  # between the answer and the commit
        assert sending.send(*given, **more) is None
        raise SystemExit

    with pytest.raises(SystemExit):
        deliver(phones, KEY, send=dying)
    assert deliver(phones, KEY).sent == 3
    found = receiver.read(new.secret)
    assert [each["data"]["round_id"] for each in found] == ["a", "a", "a", "a", "b", "c"]
    assert len({each["id"] for each in found}) == 3
    [shown] = list_subscriptions(phones)
    assert (shown.attempts, shown.last_error, shown.failing_since) == (0, None, None)


@pytest.mark.slow
def test_a_message_that_fails_too_often_pauses_its_webhook_until_it_is_resumed(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    new = added(phones, receiver)
    for name in "ab":
        decided(phones, accountant, make_request(name, **TOO_MUCH))
    receiver.answers = [500] * ATTEMPTS_MAX
    done = [0, 0, 0]
    for _ in range(ATTEMPTS_MAX + 1):
        once = deliver(phones, KEY)
        done = [one + more for one, more in zip(done, (once.sent, once.failed, once.paused), strict=True)]
        due(phones)
    assert done == [0, ATTEMPTS_MAX - 1, 1]
    [shown] = list_subscriptions(phones)
    assert shown.paused
    assert "500" in str(shown.last_error)
    found = health(phones)
    assert (found.webhooks_paused, found.webhooks_failing) == (1, 1)
    assert [alarm.split()[0] for alarm in found.alarms] == ["WEBHOOK"]
    assert "1 of them are paused" in found.alarms[0]
    failed = {headers["webhook-id"] for headers, _ in receiver.got}
    receiver.got.clear()
    with pytest.raises(NotFound):
        resume(phones, "another")
    resume(phones, shown.subscription_id)
    assert deliver(phones, KEY).sent == 2
    again, later = receiver.read(new.secret)
    assert ({again["id"]}, again["data"]["round_id"]) == (failed, "a")
    assert later["data"]["round_id"] == "b"
    assert health(phones).alarms == ()
    unsubscribe(phones, shown.subscription_id)
    assert list_subscriptions(phones) == []


def test_the_messages_of_one_entry_come_again_together(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    decided(phones, accountant, make_request("a"))
    new = added(phones, receiver)
    record_incident(
        phones, accountant, "phones", round_id="leak", described=None, reason="a leak", actor="tester"
    )
    receiver.answers = [204, 500]
    assert (deliver(phones, KEY).failed, len(receiver.got)) == (1, 2)
    due(phones)
    assert deliver(phones, KEY).sent == 3
    found = receiver.read(new.secret)
    of_entry = ["nearly_exhausted", "exhausted", "overspent"]
    assert kinds(found) == [*of_entry[:2], *of_entry]
    assert len({each["id"] for each in found}) == 3


def test_two_processes_do_not_send_the_same_message(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    for _ in range(2):
        added(phones, receiver)
    for name in "abcd":
        decided(phones, accountant, make_request(name, **TOO_MUCH))
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: deliver(phones, KEY).sent, range(4)))
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert sum(done) == len(ids) == len(set(ids)) == 8


def test_nothing_is_sent_with_another_key_and_the_subscription_says_so(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = added(phones, receiver)
    decided(phones, accountant, make_request("a", **TOO_MUCH))
    for key in (None, KEY + "!"):
        deliver(phones, key)
        [shown] = list_subscriptions(phones)
        assert "SHUFFLE_LEDGER_WEBHOOK_KEY" in str(shown.last_error)
        due(phones)
    assert receiver.got == []
    with phones.engine.connect() as connection:
        [row] = connection.execute(tables.webhooks.select()).mappings()
    assert new.secret.removeprefix("whsec_") not in json.dumps(dict(row), default=str)
    monkeypatch.setattr("shuffle_ledger.ledger.health.WEBHOOK_ALARM_SECONDS", -1.0)
    assert [alarm.split()[0] for alarm in health(phones).alarms] == ["WEBHOOK"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("key", [None, KEY + "!"])
def test_a_webhook_that_failed_by_its_key_is_well_with_the_right_one(
    phones: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """Also where nothing is due, whose sending would show it."""
    monkeypatch.setattr("shuffle_ledger.ledger.health.WEBHOOK_ALARM_SECONDS", -1.0)
    added(phones, receiver)
    done = deliver(phones, key)
    assert (done.sent, done.failed, done.paused) == (0, 1, 0)
    assert [alarm.split()[0] for alarm in health(phones).alarms] == ["WEBHOOK"]
    due(phones)
    done = deliver(phones, KEY)
    assert (done.sent, done.failed, done.paused) == (0, 0, 0)
    [shown] = list_subscriptions(phones)
    assert (shown.failing_since, shown.last_error, shown.next_attempt_at) == (None, None, None)
    assert health(phones).alarms == ()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_slow_receiver_with_a_backlog_keeps_no_other_waiting(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (added(phones, receiver).subscription.subscription_id for _ in range(2))
    for name in "abc":
        decided(phones, accountant, make_request(name, **TOO_MUCH))
    sent: list[str] = []

    def slow(_url: str, _secret: bytes, *, webhook_id: str, body: bytes) -> str | None:
        assert body
        sent.append(webhook_id.split(".", maxsplit=1)[0])
        time.sleep(0.01)  # SQLite's clock, by which turns are ordered, has milliseconds
        return None

    monkeypatch.setattr(delivery, "TURN_SECONDS", 0.005)
    assert deliver(phones, KEY, enough=lambda: len(sent) == 3, send=slow).sent == 3
    assert sent == [first, second, first]
    assert deliver(phones, KEY, send=slow).sent == 3  # the next pass goes on with the one that waits longest
    assert sent == [first, second] * 3


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_subscription_does_not_take_an_unknown_end_of_the_feed_for_its_beginning(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(positions, "WAIT_SECONDS", 0.02)
    decided(phones, accountant, make_request("before", **TOO_MUCH))
    with Store.connect(phones.engine.url.render_as_string(hide_password=False)) as fresh:
        with phones.engine.begin() as connection:  # as a transaction that has added entries and goes on
            connection.execute(text("LOCK TABLE entries IN ROW EXCLUSIVE MODE"))
            with pytest.raises(TryAgain, match="last entry is not known"):
                added(fresh, receiver)
        assert list_subscriptions(fresh) == []
        new = added(fresh, receiver)
    decided(phones, accountant, make_request("after", **TOO_MUCH))
    assert deliver(phones, KEY).sent == 1
    assert [each["data"]["round_id"] for each in receiver.read(new.secret)] == ["after"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_lock_that_was_lost_changes_nothing(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added(phones, receiver)
    decided(phones, accountant, make_request("a", **TOO_MUCH))
    sent = []

    def slow(_url: str, _secret: bytes, *, webhook_id: str, body: bytes) -> str | None:
        sent.append(webhook_id)
        if len(sent) == 1:  # the lock runs out meanwhile, and another process takes it
            with phones.engine.begin() as connection:
                past = datetime.fromisoformat("2020-01-01T00:00:00+00:00")
                connection.execute(update(tables.webhooks).values(locked_until=past))
            assert deliver(phones, KEY, send=slow).sent == 1
            return "too late"
        return None

    deliver(phones, KEY, send=slow)
    assert sent[0] == sent[1]
    [shown] = list_subscriptions(phones)
    assert (shown.attempts, shown.last_error) == (0, None)
    assert deliver(phones, KEY, send=slow).sent == 0
    decided(phones, accountant, make_request("b", **TOO_MUCH))

    def stolen(*given: Any, **more: Any) -> EventPage:
        with phones.engine.begin() as connection:
            later = datetime.fromisoformat("2100-01-01T00:00:00+00:00")
            connection.execute(update(tables.webhooks).values(locked_until=later))
        return events_after(*given, **more)

    monkeypatch.setattr(delivery, "events_after", stolen)
    assert deliver(phones, KEY, send=slow).sent == 0
    assert len(sent) == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE entries SET body = x'00' WHERE sequence = 2 AND cohort = 'phones'", "canonical"),
        (
            """UPDATE entries SET body =
               CAST(replace(CAST(body AS TEXT), '"reason":', '"reasoo":') AS BLOB)
               WHERE sequence = 2 AND cohort = 'phones'""",
            "KeyError: 'reason'",
        ),
    ],
)
def test_a_damaged_entry_holds_up_no_other_webhook(
    phones: Store,
    accountant: Accountant,
    make_request: MakeRequest,
    receiver: Receiver,
    damage: str,
    said: str,
) -> None:
    added(phones, receiver)
    other = added(phones, receiver, cohorts=["tv"])
    decided(phones, accountant, make_request("a", **TOO_MUCH))
    open_cohort(
        phones, name="tv", population=10**6, epsilon=1.0, delta=1e-9, policy="adaptive", actor="tester"
    )
    decided(phones, accountant, make_request("b", cohort="tv", **TOO_MUCH))
    with phones.engine.begin() as connection:
        found = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'entries'"
        for trigger in connection.exec_driver_sql(found).scalars().all():
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.exec_driver_sql(damage)
    done = deliver(phones, KEY)
    assert (done.sent, done.failed) == (1, 1)
    [found] = receiver.read(other.secret)
    assert found["data"]["round_id"] == "b"
    failing, fine = list_subscriptions(phones)
    assert said in str(failing.last_error)
    assert fine.last_error is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_only_safe_addresses_and_shares_are_taken(phones: Store) -> None:
    wrong = [
        *(
            "http://receiver.example/",
            "ftp://receiver.example/",
            "https://",
            "https:///x",
            "receiver.example",
        ),
        *("https://user@receiver.example/", "https://receiver.example/#x", "https://receiver.example:0/"),
        *(
            "https://receiver.example:x/",
            "http://127.0.0.1.example/",
            "https://re ceiver.example",
            "https://[1",
        ),
        "https://receiver.example/" + "x" * 2000,
    ]
    for url in wrong:
        with pytest.raises(InvalidValue, match="url"):
            subscribe(phones, KEY, url=url, actor="tester")
    for url in ("https://10.0.0.1:8443/hook?x=1", "http://localhost:1/", "http://[::1]/"):
        assert subscribe(phones, KEY, url=url, actor="tester").secret.startswith("whsec_")
    bad: list[dict[str, Any]] = [{"threshold": 0.0}, {"thresholds": {"a": 1.0}}, {"kinds": ["admitted"]}]
    for more in (*bad, {"cohorts": []}):
        with pytest.raises(InvalidValue):
            subscribe(phones, KEY, url="https://receiver.example/", actor="tester", **more)


def test_pauses_double_up_to_an_hour_and_a_webhook_is_paused_within_a_day() -> None:
    longest = [delivery.backoff_seconds(number, chance=0.0) for number in range(1, ATTEMPTS_MAX)]
    assert longest[:3] == [5.0, 10.0, 20.0]
    assert max(longest) <= 3600.0
    assert timedelta(hours=1) < timedelta(seconds=sum(longest)) < timedelta(days=1)
    assert delivery.backoff_seconds(3, chance=1.0) == 10.0
    assert sending.TIMEOUT_SECONDS < delivery.LOCK_SECONDS / 4  # an entry has three notices at most


def test_what_only_its_windows_limit_is_not_said_to_be_exhausted(
    phones: Store, accountant: Accountant, make_request: MakeRequest, receiver: Receiver
) -> None:
    new = added(phones, receiver)
    window = Window(unit="week", epsilon=9.0, delta=1e-6)
    told: dict[str, Any] = {"population": 10**6, "policy": "adaptive"}
    open_cohort(phones, name="study", windows=[window], actor="tester", **told)
    request = make_request("a", cohort="study")
    outcome, _ = register_and_admit(phones, accountant, request, actor="tester")
    assert isinstance(outcome, Admitted)
    deliver(phones, KEY)
    assert kinds(receiver.read(new.secret)) == []
