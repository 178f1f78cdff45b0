"""Webhooks: every event once it happened, signed, at least once, in order, with stable identifiers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from shuffle_ledger.ledger.answers.entries import EventPage
from shuffle_ledger.ledger.errors import InvalidValue, NotFound, TryAgain
from shuffle_ledger.ledger.health import health
from shuffle_ledger.ledger.reports.events import events_after
from shuffle_ledger.ledger.storage import positions, tables
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.webhooks import ATTEMPTS_MAX
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
from tests.ledger.attack import disarmed
from tests.ledger.clerk import Clerk, krr
from tests.receiver import Receiver, receiving

KEY = "a key of at least thirty-two characters"
TOO_MUCH = krr(10, 8.0)
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a service on this machine."""
    with receiving() as found:
        yield found


@pytest.fixture
def phones(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones"."""
    clerk.open()
    return clerk


def added(clerk: Clerk, receiver: Receiver, **more: Any) -> NewSubscription:
    return subscribe(clerk.store, KEY, url=receiver.url, actor="tester", **more)


def refuse(clerk: Clerk, names: str, *cohorts: str) -> None:
    """Ask for rounds that are refused, named by single letters."""
    for name in names:
        clerk.refusal(TOO_MUCH, *cohorts, name=name)


def due(clerk: Clerk) -> None:
    """Have what was to be tried again later be due now."""
    with clerk.store.engine.begin() as connection:
        connection.execute(update(tables.webhooks).values(next_attempt_at=None))


def kinds(messages: list[Any]) -> list[str]:
    return [each["type"].removeprefix("shuffle-ledger.") for each in messages]


@pytest.mark.slow
@ON_SQLITE
def test_a_subscription_gets_each_event_of_the_feed_once_and_no_other(
    phones: Clerk, receiver: Receiver
) -> None:
    phones.refusal(TOO_MUCH, name="before")
    new = added(phones, receiver, thresholds={"phones": 0.9}, threshold=0.5)
    whole = added(phones, receiver, from_start=True, kinds=["refused"])
    only = added(phones, receiver, kinds=["overspent"])
    phones.ask(krr(1_000), name="a")
    spent = phones.spent()
    refuse(phones, "b")
    # Between the two thresholds; beyond both; and where the threshold was passed before.
    phones.change(*(spent / used for used in (0.85, 0.95, 0.97)))
    phones.incident("leak", None)
    phones.freeze()
    assert deliver(phones.store, KEY).sent == 8
    got = list(receiver.got)

    def read(one: NewSubscription) -> list[Any]:
        receiver.got[:] = [each for each in got if one.subscription.subscription_id in each[0]["webhook-id"]]
        return receiver.read(one.secret)

    assert [each["data"]["round_id"] for each in read(whole)] == ["before", "b"]
    assert kinds(read(only)) == ["overspent"]
    found = read(new)
    assert kinds(found) == ["refused", "nearly_exhausted", "exhausted", "overspent", "frozen"]
    entries = {event.sequence: event for event in events_after(phones.store).events}
    for each in found:
        assert each["specversion"] == "1.0"
        assert each["source"] == f"urn:shuffle-ledger:{phones.store.standing().ledger_id}"
        assert each["subject"] == each["data"]["cohort"] == "phones"
        assert each["data"]["digest"] == entries[each["data"]["sequence"]].digest
        assert datetime.fromisoformat(each["time"]).tzinfo
    assert found[0]["data"]["reason"] == "budget_exceeded"
    assert found[1]["data"]["threshold"] == 0.9
    assert deliver(phones.store, KEY).sent == 0


@ON_SQLITE
def test_the_same_message_comes_again_until_it_was_taken_and_the_order_stays(
    phones: Clerk, receiver: Receiver
) -> None:
    new = added(phones, receiver)
    refuse(phones, "abc")
    receiver.answers = [500, 307]  # a redirection is not followed
    for attempt in (1, 2):
        assert deliver(phones.store, KEY).failed == 1
        assert deliver(phones.store, KEY).failed == 0  # it is not due yet
        [shown] = list_subscriptions(phones.store)
        assert (shown.attempts, bool(shown.last_error and shown.failing_since)) == (attempt, True)
        due(phones)

    def dying(*given: Any, **more: Any) -> str | None:  # between the answer and the commit
        assert sending.send(*given, **more) is None
        raise SystemExit

    with pytest.raises(SystemExit):
        deliver(phones.store, KEY, send=dying)
    assert deliver(phones.store, KEY).sent == 3
    found = receiver.read(new.secret)
    assert [each["data"]["round_id"] for each in found] == ["a", "a", "a", "a", "b", "c"]
    assert len({each["id"] for each in found}) == 3
    [shown] = list_subscriptions(phones.store)
    assert (shown.attempts, shown.last_error, shown.failing_since) == (0, None, None)


@pytest.mark.slow
@ON_SQLITE
def test_a_message_that_fails_too_often_pauses_its_webhook_until_it_is_resumed(
    phones: Clerk, receiver: Receiver
) -> None:
    new = added(phones, receiver)
    refuse(phones, "ab")
    receiver.answers = [500] * ATTEMPTS_MAX
    done = [0, 0, 0]
    for _ in range(ATTEMPTS_MAX + 1):
        once = deliver(phones.store, KEY)
        done = [one + more for one, more in zip(done, (once.sent, once.failed, once.paused), strict=True)]
        due(phones)
    assert done == [0, ATTEMPTS_MAX - 1, 1]
    [shown] = list_subscriptions(phones.store)
    assert shown.paused
    assert "500" in str(shown.last_error)
    found = health(phones.store)
    assert (found.webhooks_paused, found.webhooks_failing) == (1, 1)
    assert [alarm.split()[0] for alarm in found.alarms] == ["WEBHOOK"]
    assert "1 of them are paused" in found.alarms[0]
    failed = {headers["webhook-id"] for headers, _ in receiver.got}
    receiver.got.clear()
    with pytest.raises(NotFound):
        resume(phones.store, "another")
    resume(phones.store, shown.subscription_id)
    assert deliver(phones.store, KEY).sent == 2
    again, later = receiver.read(new.secret)
    assert ({again["id"]}, again["data"]["round_id"], later["data"]["round_id"]) == (failed, "a", "b")
    assert health(phones.store).alarms == ()
    unsubscribe(phones.store, shown.subscription_id)
    assert list_subscriptions(phones.store) == []


@ON_SQLITE
def test_the_messages_of_one_entry_come_again_together(phones: Clerk, receiver: Receiver) -> None:
    phones.ask(krr(1_000))
    new = added(phones, receiver)
    phones.incident("leak", None)
    receiver.answers = [204, 500]
    assert (deliver(phones.store, KEY).failed, len(receiver.got)) == (1, 2)
    due(phones)
    assert deliver(phones.store, KEY).sent == 3
    found = receiver.read(new.secret)
    of_entry = ["nearly_exhausted", "exhausted", "overspent"]
    assert kinds(found) == [*of_entry[:2], *of_entry]
    assert len({each["id"] for each in found}) == 3


def test_two_processes_do_not_send_the_same_message(phones: Clerk, receiver: Receiver) -> None:
    for _ in range(2):
        added(phones, receiver)
    refuse(phones, "abcd")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: deliver(phones.store, KEY).sent, range(4)))
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert sum(done) == len(ids) == len(set(ids)) == 8


@ON_SQLITE
def test_nothing_is_sent_with_another_key_and_the_subscription_says_so(
    phones: Clerk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.health.WEBHOOK_ALARM_SECONDS", -1.0)
    new = added(phones, receiver)
    refuse(phones, "a")
    for key in (None, KEY + "!"):
        deliver(phones.store, key)
        [shown] = list_subscriptions(phones.store)
        assert "SHUFFLE_LEDGER_WEBHOOK_KEY" in str(shown.last_error)
        due(phones)
    assert receiver.got == []
    with phones.store.engine.connect() as connection:
        [row] = connection.execute(tables.webhooks.select()).mappings()
    assert new.secret.removeprefix("whsec_") not in json.dumps(dict(row), default=str)
    assert [alarm.split()[0] for alarm in health(phones.store).alarms] == ["WEBHOOK"]
    assert deliver(phones.store, KEY).sent == 1
    assert health(phones.store).alarms == ()


@ON_SQLITE
def test_a_slow_receiver_with_a_backlog_keeps_no_other_waiting(
    phones: Clerk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (added(phones, receiver).subscription.subscription_id for _ in range(2))
    refuse(phones, "abc")
    sent: list[str] = []

    def slow(_url: str, _secret: bytes, *, webhook_id: str, body: bytes) -> str | None:
        assert body
        sent.append(webhook_id.split(".", maxsplit=1)[0])
        time.sleep(0.01)  # SQLite's clock, by which turns are ordered, has milliseconds
        return None

    monkeypatch.setattr(delivery, "TURN_SECONDS", 0.005)
    assert deliver(phones.store, KEY, enough=lambda: len(sent) == 3, send=slow).sent == 3
    assert sent == [first, second, first]
    assert deliver(phones.store, KEY, send=slow).sent == 3  # the next pass goes on with the longest waiting
    assert sent == [first, second] * 3


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_subscription_does_not_take_an_unknown_end_of_the_feed_for_its_beginning(
    phones: Clerk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "WAIT_SECONDS", 0.02)
    refuse(phones, "b")
    with Store.connect(phones.store.engine.url.render_as_string(hide_password=False)) as store:
        fresh = Clerk(store, phones.accountant)
        with phones.store.engine.begin() as connection:  # a transaction that has added entries and goes on
            connection.execute(text("LOCK TABLE entries IN ROW EXCLUSIVE MODE"))
            with pytest.raises(TryAgain, match="last entry is not known"):
                added(fresh, receiver)
        assert list_subscriptions(store) == []
        new = added(fresh, receiver)
    refuse(phones, "a")
    assert deliver(phones.store, KEY).sent == 1
    assert [each["data"]["round_id"] for each in receiver.read(new.secret)] == ["a"]


@ON_SQLITE
def test_a_lock_that_was_lost_changes_nothing(
    phones: Clerk, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(phones, receiver)
    refuse(phones, "a")
    sent = []

    def locked_until(year: int) -> None:
        with phones.store.engine.begin() as connection:
            moment = datetime.fromisoformat(f"{year}-01-01T00:00:00+00:00")
            connection.execute(update(tables.webhooks).values(locked_until=moment))

    def slow(_url: str, _secret: bytes, *, webhook_id: str, body: bytes) -> str | None:
        sent.append(webhook_id)
        if len(sent) == 1:  # the lock runs out meanwhile, and another process takes it
            locked_until(2020)
            assert deliver(phones.store, KEY, send=slow).sent == 1
            return "too late"
        return None

    deliver(phones.store, KEY, send=slow)
    assert sent[0] == sent[1]
    [shown] = list_subscriptions(phones.store)
    assert (shown.attempts, shown.last_error) == (0, None)
    assert deliver(phones.store, KEY, send=slow).sent == 0
    refuse(phones, "b")

    def stolen(*given: Any, **more: Any) -> EventPage:
        locked_until(2100)
        return events_after(*given, **more)

    monkeypatch.setattr(delivery, "events_after", stolen)
    assert deliver(phones.store, KEY, send=slow).sent == 0
    assert len(sent) == 2


@ON_SQLITE
def test_a_damaged_entry_holds_up_no_other_webhook(phones: Clerk, receiver: Receiver) -> None:
    added(phones, receiver)
    other = added(phones, receiver, cohorts=["tv"])
    phones.open("tv")
    refuse(phones, "a")
    refuse(phones, "b", "tv")
    with disarmed(phones.store) as connection:
        connection.execute(text("UPDATE entries SET body = x'00' WHERE sequence = 2 AND cohort = 'phones'"))
    done = deliver(phones.store, KEY)
    assert (done.sent, done.failed) == (1, 1)
    [found] = receiver.read(other.secret)
    assert found["data"]["round_id"] == "b"
    failing, fine = list_subscriptions(phones.store)
    assert "canonical" in str(failing.last_error)
    assert fine.last_error is None


@ON_SQLITE
def test_only_safe_addresses_and_shares_are_taken(phones: Clerk) -> None:
    wrong = [
        "http://receiver.example/",
        "ftp://receiver.example/",
        "https://",
        "https:///x",
        "receiver.example",
    ]
    wrong += ["https://user@receiver.example/", "https://receiver.example/#x"]
    wrong += ["https://receiver.example:0/", "https://receiver.example:x/"]
    wrong += ["http://127.0.0.1.example/", "https://[1"]
    for url in (*wrong, "https://re ceiver.example", "https://receiver.example/" + "x" * 2000):
        with pytest.raises(InvalidValue, match="url"):
            subscribe(phones.store, KEY, url=url, actor="tester")
    for url in ("https://10.0.0.1:8443/hook?x=1", "http://localhost:1/", "http://[::1]/"):
        assert subscribe(phones.store, KEY, url=url, actor="tester").secret.startswith("whsec_")
    bad: list[dict[str, Any]] = [{"threshold": 0.0}, {"thresholds": {"a": 1.0}}, {"kinds": ["admitted"]}]
    for more in (*bad, {"cohorts": []}):
        with pytest.raises(InvalidValue):
            subscribe(phones.store, KEY, url="https://receiver.example/", actor="tester", **more)


def test_pauses_double_up_to_an_hour_and_a_webhook_is_paused_within_a_day() -> None:
    longest = [delivery.backoff_seconds(number, chance=0.0) for number in range(1, ATTEMPTS_MAX)]
    assert longest[:3] == [5.0, 10.0, 20.0]
    assert max(longest) <= 3600.0
    assert timedelta(hours=1) < timedelta(seconds=sum(longest)) < timedelta(days=1)
    assert delivery.backoff_seconds(3, chance=1.0) == 10.0
    assert sending.TIMEOUT_SECONDS < delivery.LOCK_SECONDS / 4  # an entry has three notices at most


@ON_SQLITE
def test_what_only_its_windows_limit_is_not_said_to_be_exhausted(phones: Clerk, receiver: Receiver) -> None:
    new = added(phones, receiver)
    window = Window(unit="week", epsilon=9.0, delta=1e-6)
    phones.open("study", windows=[window], epsilon=None, delta=None)
    assert phones.admits(krr(1_000), "study")
    deliver(phones.store, KEY)
    assert kinds(receiver.read(new.secret)) == []
