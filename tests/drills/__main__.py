"""The drill of `docs/operations.md`: a database is put back under a deployment, and nothing is spent twice.

`make drill` runs it. It starts a PostgreSQL, two servers of ours and, if SHUFFLE_LEDGER_TEST_BROKER_URL says
where a broker is, a worker; and it ends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.dispatch import publish
from tests.benchmarks.http_storm import forget_queues
from tests.commands import command
from tests.drills.cluster import DATABASE, SECONDS_MAX, Cluster, cluster
from tests.ports import free_port

BROKER = "SHUFFLE_LEDGER_TEST_BROKER_URL"
SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
ROUND = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 300}
OTHER_REPORTS = 250  # of a new kind
EPSILON = 2.0
SERVERS = 2
WORKER_SECONDS = 3.0  # in which a worker would have decided what it got
NOT_VERIFIED, REFUSED, ALARM = 6, 3, 1
EARLIER, LATER = "earlier.json", "later.json"  # checkpoints
SAID = {201: "admitted", 202: "undecided"}
Servers = Sequence[httpx.Client]


class Deployment:
    """A ledger, what was promised of it, and the commands that operators run."""

    def __init__(self, database: Cluster, folder: Path, broker: str | None) -> None:
        self.database = database
        self._folder = folder
        self.broker = broker
        self._queue = f"shuffle-ledger-drill-{uuid.uuid4().hex}"
        self.promised: set[str] = set()  # rounds that were answered "admitted"
        self._asked = 0  # how often servers were asked: they take turns
        self._token = ""

    def say(self, sentence: str) -> None:
        """Print what happens now."""
        print(sentence, flush=True)

    def command(self, *words: str, code: int = 0) -> Any:
        """Run a command; return the JSON value it printed. It must end with this exit code."""
        settings = {"SHUFFLE_LEDGER_DATABASE_URL": self.database.url}
        done = command(*words, folder=self._folder, settings=settings)
        if done.exit_code != code:
            raise AssertionError(f"{words} ended with {done.exit_code}, not {code}: {done.output}")
        self.say(f"    $ shuffle-ledger {' '.join(words)}     -> exit code {code}")
        return json.loads(done.stdout)

    def set_up(self) -> None:
        """Make a ledger with one cohort, a key and a first checkpoint."""
        self.database.execute(f"CREATE DATABASE {DATABASE}")
        self.command("init")
        budget = ("--population", "100000", "--epsilon", str(EPSILON), "--delta", "1e-6")
        self.command("cohort", "open", "phones", *budget)
        self.command("audit", "keygen", "key.pem")
        self._token = self.command("token", "create", "drill", "--role", "registrar")["token"]
        self.checkpoint(EARLIER)

    def checkpoint(self, name: str) -> None:
        """Sign the heads."""
        self.command("audit", "checkpoint", "--signing-key", "key.pem", "-o", name)

    @contextmanager
    def serving(self, checkpoint: str, *, servers: int = 1, works: bool = True) -> Iterator[Servers]:
        """Run servers, and a worker if it `works`, with a checkpoint as their anchor, in the block."""
        with ExitStack() as stack:
            if works:
                stack.enter_context(self.working(checkpoint))
            ports = [str(free_port()) for _ in range(servers)]
            for port in ports:
                stack.enter_context(self._running("serve", checkpoint, "--port", port))
            token = {"Authorization": f"Bearer {self._token}"}
            clients = [
                stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=token))
                for port in ports
            ]
            for client in clients:
                _await_answer(client)
            yield clients

    @contextmanager
    def working(self, checkpoint: str) -> Iterator[None]:
        """Run a worker in the block, if there is a broker."""
        if not self.broker:
            yield
            return
        with self._running("worker", checkpoint) as worker:
            yield
            assert worker.poll() is None, "the worker has ended"

    @contextmanager
    def _running(self, program: str, checkpoint: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        with (
            (self._folder / "log").open("ab") as log,
            subprocess.Popen(
                [SCRIPT, program, *options],
                cwd=self._folder,
                env=os.environ | self._settings(checkpoint),
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                yield process
            finally:
                process.terminate()

    def _settings(self, checkpoint: str) -> dict[str, str]:
        found = {
            "SHUFFLE_LEDGER_DATABASE_URL": self.database.url,
            "SHUFFLE_LEDGER_CHECKPOINT": checkpoint,
            "SHUFFLE_LEDGER_DRAIN_SECONDS": "0",
            "SHUFFLE_LEDGER_QUEUE": self._queue,
        }
        return found | ({"SHUFFLE_LEDGER_BROKER_URL": self.broker} if self.broker else {})

    def send_again(self, round_id: str) -> None:
        """Give the worker a message about a round once more, as brokers may."""
        with create_app(Settings(broker_url=self.broker, queue=self._queue)) as app:
            assert publish(app, round_id)

    def forget_queues(self) -> None:
        """Remove from the broker what is left."""
        if self.broker:
            forget_queues(self._settings(EARLIER))

    def entries(self) -> int:
        """Return how many entries the database has."""
        ((found,),) = self.database.execute("SELECT count(*) FROM entries", DATABASE)
        return int(str(found))

    def register(
        self, servers: Servers, round_id: str, *, cohort: str = "phones", reports: int = 300, wait: int = 55
    ) -> httpx.Response:
        """Register a round at one of the servers, and remember it if the answer permits its release."""
        body = {"round_id": round_id, "cohort": cohort, **ROUND, "reports": reports}
        server, self._asked = servers[self._asked % len(servers)], self._asked + 1
        answer = server.post("/v1/rounds", json=body, headers={"Prefer": f"wait={wait}"}, timeout=SECONDS_MAX)
        if answer.status_code == 201:
            self.promised.add(round_id)
        said = answer.json().get("title", SAID.get(answer.status_code))
        self.say(f"    round {round_id}: {answer.status_code} {said}")
        return answer

    def spend_the_rest(self, servers: Servers) -> None:
        """Register rounds until the budget refuses one."""
        for number in range(100):
            if self.register(servers, f"rest {number}").status_code != 201:
                return
        raise AssertionError("the budget refused nothing")

    def check_promises(self) -> None:
        """Check that every promised round is on the record, and that the budget holds with all of them."""
        listed = self.command("round", "list", "phones", "--outcome", "admitted")
        assert {each["round_id"] for each in listed} == self.promised, listed
        found = self.command("budget", "phones")
        assert found["rounds_admitted"] == len(self.promised), found
        assert found["epsilon_spent_upper"] <= EPSILON, found
        self.command("audit", "verify", "--numbers", "all")


def _await_answer(client: httpx.Client) -> None:
    ends = time.monotonic() + SECONDS_MAX
    while True:
        try:
            if client.get("/healthz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < ends, "the server did not start"
        time.sleep(0.05)


def drill(ledger: Deployment) -> None:
    """Walk through the recovery of `docs/operations.md`; raises AssertionError where a promise is broken."""
    worker = "a worker" if ledger.broker else f"no worker (NOT RUN: {BROKER} is not set)"
    ledger.say(
        f"A deployment: PostgreSQL with an archive of its log, {SERVERS} servers, {worker},"
        " a checkpoint as their anchor."
    )
    ledger.set_up()
    ledger.database.back_up("base")
    with ledger.serving(EARLIER, works=False) as servers:
        with ledger.working(EARLIER):
            for round_id in ("a", "b"):
                ledger.register(servers, round_id)
        wait, code = (0, 202) if ledger.broker else (30, 201)
        answer = ledger.register(servers, "waiting", reports=OTHER_REPORTS, wait=wait)
        assert answer.status_code == code, answer.text
        ledger.say(
            "A dump is made, and a point of the log gets a name. Then rounds are admitted and signed for."
        )
        ledger.database.run(
            "pg_dump", "-h", ledger.database.home, "-U", "postgres", "-Fc", "-f", "dump", DATABASE
        )
        ledger.database.execute("SELECT pg_create_restore_point('too_early')")
        with ledger.working(EARLIER):
            assert ledger.register(servers, "waiting", reports=OTHER_REPORTS).status_code == 201
            ledger.register(servers, "c")
    ledger.checkpoint(LATER)
    ledger.command("audit", "statement", "phones", "--bundle", "evidence.zip", "--signing-key", "key.pem")
    ledger.database.archive_all()
    point_in_time(ledger)
    dump_and_recover(ledger)
    dump_and_reconcile(ledger)


def point_in_time(ledger: Deployment) -> None:
    """Put the database back to too early a moment, under the deployment; then replay the whole log."""
    database = ledger.database
    ledger.say("\nThe database is put back to the named point, under the running deployment.")
    with ledger.serving(LATER, servers=SERVERS) as servers:
        database.stop()
        database.replay("base", "too-early", until="too_early")
        refused(ledger, servers)
    ledger.say(
        "The log is replayed to its end (step 1). Everything is there, and the rest of the budget is spent."
    )
    database.stop()
    database.replay("base", "complete", until=None)
    ledger.command("audit", "verify", "--against", LATER)
    with ledger.serving(LATER, works=False) as servers:  # the kind of its rounds is known
        ledger.spend_the_rest(servers)
    ledger.check_promises()
    ledger.checkpoint(LATER)
    ledger.command("audit", "statement", "phones", "--bundle", "evidence.zip", "--signing-key", "key.pem")


def dump_and_recover(ledger: Deployment) -> None:
    """Load the dump under a running deployment; then bring the lost entries back from a bundle."""
    ledger.say("\nThe dump is loaded under the running deployment.")
    with ledger.serving(LATER, servers=SERVERS) as servers:
        load_dump(ledger)
        refused(ledger, servers)
    ledger.say("The lost entries come back from a bundle that holds them all (step 2).")
    attested = ("--against", LATER, "--reason", "the drill", "--nothing-later")
    ledger.command("audit", "recover", "evidence.zip", *attested)
    ledger.command("audit", "verify", "--against", LATER)
    with ledger.serving(LATER, works=False) as servers:
        assert ledger.register(servers, "one more").status_code == 409
        for round_id in ("c", "waiting"):
            assert outcome(servers[0], round_id) == "admitted"
    ledger.check_promises()


def dump_and_reconcile(ledger: Deployment) -> None:
    """Load the dump again, and accept the loss: the cohort admits nothing, another one does."""
    ledger.say("\nThe dump is loaded once more, as before, and the loss is accepted (step 3).")
    with ledger.serving(LATER) as servers:
        load_dump(ledger)
        refused(ledger, servers)
    ledger.command("audit", "reconcile", "--against", LATER, "--reason", "the drill")
    with ledger.serving(LATER) as servers:
        assert ledger.register(servers, "c").status_code == 409, "a lost round was admitted again"
        assert ledger.register(servers, "a round after the loss").status_code == 409
        if ledger.broker:
            again = ledger.register(servers, "waiting", reports=OTHER_REPORTS)
            assert again.status_code == 409, "a round whose decision was lost was admitted again"
        budget = ("--population", "100000", "--epsilon", str(EPSILON), "--delta", "1e-6")
        ledger.command("cohort", "open", "tablets", *budget)
        assert ledger.register(servers, "of other users", cohort="tablets").status_code == 201
    found = ledger.command("health", code=ALARM)
    assert any(alarm.startswith("FROZEN phones") for alarm in found["alarms"]), found
    ledger.command("audit", "verify", "--numbers", "all")


def load_dump(ledger: Deployment) -> None:
    """Drop the database, although connections use it, and load the dump in its place."""
    database = ledger.database
    database.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")
    database.execute(f"CREATE DATABASE {DATABASE}")
    database.run(
        "pg_restore", "-h", database.home, "-U", "postgres", "-d", DATABASE, "--exit-on-error", "dump"
    )


def refused(ledger: Deployment, servers: Servers) -> None:
    """Check that neither servers nor worker write, and that the checkpoint shows what is missing."""
    before = ledger.entries()
    for server in servers:
        for _ in range(3):  # the first ones may meet connections that were cut
            answer = ledger.register([server], "spent twice")
            assert answer.status_code == 503, answer.text
        assert answer.json()["type"].endswith("behind_checkpoint"), answer.text
    if ledger.broker:
        assert outcome(servers[0], "waiting") is None  # its decision is among what is missing
        ledger.send_again("waiting")
        time.sleep(WORKER_SECONDS)  # nothing tells that a worker decides nothing
        assert outcome(servers[0], "waiting") is None, "the worker decided a round once more"
    assert ledger.entries() == before
    ledger.command("audit", "verify", "--against", LATER, code=NOT_VERIFIED)


def outcome(server: httpx.Client, round_id: str) -> str | None:
    """Return the outcome of a round's decision; None while it is undecided."""
    decision = server.get(f"/v1/rounds/{round_id}").json()["decision"]
    return None if decision is None else decision["outcome"]


def main() -> None:
    """Run the drill; exit with 1 where it fails."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the drill was ended"))  # with all that it started
    with cluster() as database, tempfile.TemporaryDirectory(prefix="drill-") as folder:
        ledger = Deployment(database, Path(folder), os.environ.get(BROKER))
        try:
            drill(ledger)
        finally:
            ledger.forget_queues()
    seconds = time.monotonic() - began
    print(f"\nThe drill took {seconds:.0f} seconds. Nothing was spent twice, and no loss went unnoticed.")


if __name__ == "__main__":
    main()
