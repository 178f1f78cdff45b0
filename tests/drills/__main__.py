"""The drill of `docs/operations.md`: a database is put back under a server, and nothing is spent twice.

`make drill` runs it. It needs no server: it starts a PostgreSQL, a server of ours, and ends both.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.http_storm import free_port
from tests.commands import command
from tests.drills.cluster import DATABASE, SECONDS_MAX, Cluster, cluster

SCRIPT = Path(sys.executable).with_name("shuffle-ledger")
ROUND = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 300}
EPSILON = 1.0
NOT_VERIFIED, REFUSED, ALARM = 6, 3, 1
EARLIER, LATER = "earlier.json", "later.json"  # checkpoints


class Deployment:
    """A ledger, what was promised of it, and the commands that operators run."""

    def __init__(self, database: Cluster, folder: Path) -> None:
        self.database = database
        self._folder = folder
        self.promised: set[str] = set()  # rounds that were answered "admitted"
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
    def serving(self, checkpoint: str) -> Iterator[httpx.Client]:
        """Run a server with a checkpoint as its anchor until the end of the block."""
        url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "SHUFFLE_LEDGER_DATABASE_URL": self.database.url,
            "SHUFFLE_LEDGER_CHECKPOINT": checkpoint,
            "SHUFFLE_LEDGER_DRAIN_SECONDS": "0",
        }
        with (
            (self._folder / "log").open("ab") as log,
            subprocess.Popen(
                [SCRIPT, "serve", "--port", url.rpartition(":")[2]],
                cwd=self._folder,
                env=os.environ | settings,
                stdout=log,
                stderr=log,
            ) as process,
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {self._token}"}) as client,
        ):
            try:
                _await_answer(client)
                yield client
            finally:
                process.terminate()

    def register(self, client: httpx.Client, round_id: str, cohort: str = "phones") -> httpx.Response:
        """Register a round, and remember it if the answer permits its release."""
        body = {"round_id": round_id, "cohort": cohort, **ROUND}
        answer = client.post("/v1/rounds", json=body, timeout=SECONDS_MAX)
        if answer.status_code == 201:
            self.promised.add(round_id)
        self.say(f"    round {round_id}: {answer.status_code} {answer.json().get('title', 'admitted')}")
        return answer

    def spend_the_rest(self, client: httpx.Client) -> None:
        """Register rounds until the budget refuses one."""
        for number in range(100):
            if self.register(client, f"rest {number}").status_code != 201:
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
    ledger.say("A deployment: PostgreSQL with an archive of its log, a server, a checkpoint as its anchor.")
    ledger.set_up()
    ledger.database.back_up("base")
    with ledger.serving(EARLIER) as client:
        for round_id in ("a", "b"):
            ledger.register(client, round_id)
        ledger.say(
            "A dump is made, and a point of the log gets a name. Then a round is admitted and signed for."
        )
        ledger.database.run(
            "pg_dump", "-h", ledger.database.home, "-U", "postgres", "-Fc", "-f", "dump", DATABASE
        )
        ledger.database.execute("SELECT pg_create_restore_point('too_early')")
        ledger.register(client, "c")
    ledger.checkpoint(LATER)
    ledger.command("audit", "statement", "phones", "--bundle", "evidence.zip", "--signing-key", "key.pem")
    ledger.database.archive_all()
    point_in_time(ledger)
    dump_and_recover(ledger)
    dump_and_reconcile(ledger)


def point_in_time(ledger: Deployment) -> None:
    """Put the database back to a moment that is too early, under a server; then replay the whole log."""
    database = ledger.database
    ledger.say("\nThe database is put back to the named point, while the server runs.")
    with ledger.serving(LATER) as client:
        database.stop()
        database.replay("base", "too-early", until="too_early")
        refused(ledger, client)
    ledger.say(
        "The log is replayed to its end (step 1). Everything is there, and the rest of the budget is spent."
    )
    database.stop()
    database.replay("base", "complete", until=None)
    ledger.command("audit", "verify", "--against", LATER)
    with ledger.serving(LATER) as client:
        ledger.spend_the_rest(client)
    ledger.check_promises()
    ledger.checkpoint(LATER)
    ledger.command("audit", "statement", "phones", "--bundle", "evidence.zip", "--signing-key", "key.pem")


def dump_and_recover(ledger: Deployment) -> None:
    """Load the dump under a running server; then bring the lost entries back from a bundle."""
    ledger.say("\nThe dump is loaded, while the server runs.")
    with ledger.serving(LATER) as client:
        load_dump(ledger)
        refused(ledger, client)
    ledger.say("The lost entries come back from a bundle that holds them all (step 2).")
    attested = ("--against", LATER, "--reason", "the drill", "--nothing-later")
    ledger.command("audit", "recover", "evidence.zip", *attested)
    ledger.command("audit", "verify", "--against", LATER)
    with ledger.serving(LATER) as client:
        assert ledger.register(client, "one more").status_code == 409
        assert client.get("/v1/rounds/c").json()["decision"]["outcome"] == "admitted"
    ledger.check_promises()


def dump_and_reconcile(ledger: Deployment) -> None:
    """Load the dump again, and accept the loss: the cohort admits nothing, another one does."""
    ledger.say("\nThe dump is loaded once more, while the server runs, and the loss is accepted (step 3).")
    with ledger.serving(LATER) as client:
        load_dump(ledger)
        refused(ledger, client)
    ledger.command("audit", "reconcile", "--against", LATER, "--reason", "the drill")
    with ledger.serving(LATER) as client:
        assert ledger.register(client, "c").status_code == 409, "a lost round was admitted again"
        assert ledger.register(client, "a round after the loss").status_code == 409
        budget = ("--population", "100000", "--epsilon", str(EPSILON), "--delta", "1e-6")
        ledger.command("cohort", "open", "tablets", *budget)
        assert ledger.register(client, "of other users", cohort="tablets").status_code == 201
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


def refused(ledger: Deployment, client: httpx.Client) -> None:
    """Check that the running server writes nothing, and that the checkpoint shows what is missing."""
    for _ in range(3):  # the first ones may meet connections that were cut
        answer = ledger.register(client, "spent twice")
        assert answer.status_code == 503, answer.text
    assert answer.json()["type"].endswith("behind_checkpoint"), answer.text
    ledger.command("audit", "verify", "--against", LATER, code=NOT_VERIFIED)


def main() -> None:
    """Run the drill; exit with 1 where it fails."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the drill was ended"))  # with all that it started
    with cluster() as database, tempfile.TemporaryDirectory(prefix="drill-") as folder:
        drill(Deployment(database, Path(folder)))
    seconds = time.monotonic() - began
    print(f"\nThe drill took {seconds:.0f} seconds. Nothing was spent twice, and no loss went unnoticed.")


if __name__ == "__main__":
    main()
