"""The whole service, from HTTP and the command line to evidence on another computer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.values.requests import Admitted, Pending, RoundRequest
from shuffle_ledger.workers.celery_app import SWEEP, create_app
from tests.acceptance.conftest import SCRIPT, UNREACHABLE, Service
from tests.workers.conftest import REPOSITORY, awaited, kill_group

pytestmark = pytest.mark.system

HOUR = 3600
CUT_OFF = {"SHUFFLE_LEDGER_BROKER_URL": UNREACHABLE}
# The database's clock will be an hour fast, a server's an hour slow.
FAR_CLOCKS = {"SHUFFLE_LEDGER_CLOCK_DIFFERENCE_MAX_SECONDS": "10800"}
MINUTE = timedelta(minutes=1)
QUEUED = "queued 1 overdue rounds"
BUNDLE_READER = REPOSITORY / "examples" / "verify_bundle.py"


def request(name: str, *, reports: int = 2_000) -> RoundRequest:
    randomizer = parse_randomizer("krr(k=10, epsilon0=2)")
    return RoundRequest(
        round_id=name, cohort="phones", round=ShuffledRound(randomizer=randomizer, reports=reports)
    )


def put_the_databases_clock_forward(url: str) -> None:
    """Make it an hour later for every new connection, and leave no old one."""
    address = make_url(url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS"
            " $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$"
        )
        connection.execute(f"ALTER DATABASE {address.database} SET search_path = public, pg_catalog".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def forget_that_no_broker_took_it(url: str) -> None:
    """Leave rounds as a server leaves them that dies between registering and queueing."""
    address = make_url(url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("UPDATE rounds SET queued_at = NULL")


def test_a_round_is_decided_whatever_was_down_and_whosever_clock_is_wrong(service: Service) -> None:
    token = service.command("token", "create", "device", "--role", "registrar")["token"]
    app = create_app(service.settings)
    off: dict[str, Any] = {"more": FAR_CLOCKS, "off_seconds": HOUR}
    # Registered by a server an hour behind, that cannot reach the broker, and dies.
    with service.server(token, off_seconds=-HOUR, more=CUT_OFF | FAR_CLOCKS) as (client, process):
        assert isinstance(client.register(request("one"), wait_seconds=0), Pending)
        kill_group(process)
    forget_that_no_broker_took_it(service.settings.database_url)
    with (
        service.process("worker", "--no-sweep", **off),
        service.process("scheduler", **off),
        service.server(token, off_seconds=-HOUR, more=FAR_CLOCKS) as (client, _),
    ):
        # To a scheduler an hour ahead the round seems overdue. The database knows better.
        app.send_task(SWEEP)
        awaited(lambda: "queued 0 overdue rounds" in service.log.read_text(), service.log)
        assert client.round("one").state == "pending"
        assert abs(client.round("one").registered_at - datetime.now(UTC)) < MINUTE
        put_the_databases_clock_forward(service.settings.database_url)

        def swept() -> bool:
            app.send_task(SWEEP)  # its connection was cut: the first one may fail
            return QUEUED in service.log.read_text()

        awaited(swept, service.log)
        decided = client.register(request("one"), wait_seconds=60)
        assert isinstance(decided, Admitted)
        # Another one, now that everything is up; the same answer to who asks again, and no other content.
        assert isinstance(client.register(request("two"), wait_seconds=60), Admitted)
        assert client.register(request("one"), wait_seconds=0) == decided
        with pytest.raises(Conflict):
            client.register(request("one", reports=3_000))
    # Its worker is killed with the message, and another one is started. Known kinds are decided at once.
    with service.server(token, more=FAR_CLOCKS) as (client, _):
        assert isinstance(client.register(request("three", reports=3_000), wait_seconds=0), Pending)
        with service.process("worker", "--no-sweep", more=FAR_CLOCKS):
            assert isinstance(client.register(request("three", reports=3_000), wait_seconds=60), Admitted)
    budget = service.command("budget", "phones")
    assert (budget["rounds_admitted"], budget["rounds_refused"]) == (3, 0)
    assert budget["epsilon_spent_upper"] <= budget["epsilon_budget"]
    assert service.command("audit", "verify", "--numbers", "all")["ok"]


def test_what_was_decided_is_evidence_where_no_ledger_is(service: Service, tmp_path: Path) -> None:
    key = service.command("audit", "keygen", "signing.pem")["public_key"]
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    signing = {
        "SHUFFLE_LEDGER_SIGNING_KEY": str(tmp_path / "signing.pem"),
        "SHUFFLE_LEDGER_CHECKPOINT_DIRECTORY": str(checkpoints),
        "SHUFFLE_LEDGER_CHECKPOINT_EVERY_SECONDS": "1",
    }
    words = ("--randomizer", "krr(k=10, epsilon0=2)", "--reports", "2000")
    with service.process("worker", "--no-sweep"), service.process("scheduler", more=signing):
        for name in ("one", "two"):
            answer = service.command("round", "register", "phones", "--id", name, *words)
            assert answer["outcome"] == "admitted"
        service.command("round", "settle", "one", "--reports", "1900")
        latest = checkpoints / "checkpoint.json"
        awaited(lambda: latest.exists() and '"sequence": 4' in latest.read_text(), service.log)
        health = service.command("health", more=signing)
        assert health["healthy"]
        assert health["checkpointed_at"] is not None
    # It extends the checkpoint that the scheduler wrote, and says the same on another computer.
    service.command("audit", "verify", "--against", str(latest), "--public-key", key)
    statement = ("audit", "statement", "phones", "--format", "html", "-o", "statement.html")
    made = service.command(*statement, "--bundle", "evidence.zip", more=signing)
    assert "phones" in (tmp_path / "statement.html").read_text("utf-8")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "evidence.zip").write_bytes((tmp_path / "evidence.zip").read_bytes())
    bare = {"PATH": os.environ["PATH"], "HOME": str(elsewhere)}
    programs: list[list[str | Path]] = [
        [SCRIPT, "audit", "verify", "evidence.zip", "--public-key", key, "--numbers", "all"],
        [sys.executable, "-I", BUNDLE_READER, "evidence.zip"],
    ]
    for program in programs:
        done = subprocess.run(program, cwd=elsewhere, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert made["bundle"]["sha256"] == hashlib.sha256((elsewhere / "evidence.zip").read_bytes()).hexdigest()
    assert sorted(file.name for file in elsewhere.iterdir()) == ["evidence.zip"]  # no ledger was made
