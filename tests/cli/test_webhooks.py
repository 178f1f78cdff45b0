"""`webhook`: the secret is shown once, and a paused webhook is listed and resumed."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, update

from shuffle_ledger.ledger.storage import tables
from shuffle_ledger.ledger.storage.webhooks import ATTEMPTS_MAX
from tests.cli.conftest import Run
from tests.receiver import receiving

TOO_MUCH = ("--randomizer", "krr(k=10, epsilon0=8)", "--reports", "10")
KEY = "a key of at least thirty-two characters"


def test_webhooks_from_the_command_line(phones: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = phones("webhook", "add", "https://receiver.example/", "--json")
    assert (missing.code, missing.json["error"]["field"]) == (2, "SHUFFLE_LEDGER_WEBHOOK_KEY")
    monkeypatch.setenv("SHUFFLE_LEDGER_WEBHOOK_KEY", "too short")
    assert "too short" not in phones("webhook", "list").stderr
    monkeypatch.setenv("SHUFFLE_LEDGER_WEBHOOK_KEY", KEY)
    assert phones("webhook", "add", "http://receiver.example/").code == 2
    assert phones("webhook", "add", "https://receiver.example/", "--threshold-of", "phones").code == 2
    with receiving() as receiver:
        added = phones(
            "webhook", "add", receiver.url, "--kind", "refused", "--cohort", "phones", "--json"
        ).json
        assert added["kinds"] == ["refused"]
        assert phones("round", "register", "phones", "--id", "a", *TOO_MUCH).code == 3
        receiver.answers = [500]
        failed = phones("webhook", "deliver", "--json")
        assert (failed.code, failed.json) == (1, {"sent": 0, "failed": 1, "paused": 0})
        receiver.answers = [500]
        engine = create_engine("sqlite:///shuffle-ledger.db")
        with engine.begin() as connection:
            almost = {"attempts": ATTEMPTS_MAX - 1, "next_attempt_at": None}
            connection.execute(update(tables.webhooks).values(**almost))
        engine.dispose()
        assert phones("webhook", "deliver", "--json").json["paused"] == 1
        assert phones("webhook", "deliver", "--json").json == {"sent": 0, "failed": 0, "paused": 0}
        assert phones("health").code == 1
        listed = phones("webhook", "list", "--json")
        [shown] = listed.json
        assert added["secret"].startswith("whsec_")
        assert added["secret"] not in listed.stdout + phones("webhook", "list").stdout
        assert shown["paused"] is True
        receiver.got.clear()
        assert phones("webhook", "resend", added["subscription_id"], "--json").json == {
            "resumed": added["subscription_id"]
        }
        assert phones("webhook", "resend", "another").code == 4
        assert phones("webhook", "deliver", "--json").json["sent"] == 1
        [message] = receiver.read(added["secret"])
        assert (message["type"], message["data"]["round_id"]) == ("shuffle-ledger.refused", "a")
    monkeypatch.setenv("SHUFFLE_LEDGER_WEBHOOK_KEY", KEY[::-1])
    failed = phones("webhook", "deliver", "--json")
    assert (failed.code, failed.json) == (1, {"sent": 0, "failed": 1, "paused": 0})
    assert phones("webhook", "remove", added["subscription_id"], "--json").code == 0
    assert phones("webhook", "remove", added["subscription_id"]).code == 4
    assert phones("webhook", "list", "--json").json == []
