"""The example shuffler as a process beside a real ledger: nothing leaves without a permit, or twice."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shuffle_ledger.gate import RECEIPT, read_token
from shuffle_ledger.ledger.client import LedgerClient
from shuffle_ledger.ledger.values import Settled
from tests.commands import command
from tests.ports import free_port

pytestmark = pytest.mark.system

SHUFFLER = Path(__file__).parents[2] / "examples" / "shuffler.py"
RANDOMIZER, REPORTS = "krr(k=2, epsilon0=0.5)", 60
# Ends the process at one point of a release, as a crash does: what it says is what `runpy` runs before.
CRASH = """
import os, runpy, signal, sys
from pathlib import Path
from shuffle_ledger.gate import Gate

def die(*_given, **_named):
    os.kill(os.getpid(), signal.SIGKILL)

def behind(called):
    return lambda *given, **named: (called(*given, **named), die())

if {point!r} == "before the gate's line":
    Gate.release = die
elif {point!r} == "behind the gate's line":
    Gate.release = behind(Gate.release)
elif {point!r} == "behind the rename":
    Path.replace = behind(Path.replace)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class World:
    """A ledger as a process, the files around it, and a client with a registrar's token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "SHUFFLE_LEDGER_DATABASE_URL": f"sqlite:///{folder}/ledger.db",
            "SHUFFLE_LEDGER_PERMIT_KEY": str(folder / "permit.pem"),
            "SHUFFLE_LEDGER_RELEASER_KEYS": str(folder / "acme.json"),
        }
        self.run("permit", "keygen", "permit.pem")
        self.run("permit", "keygen", "acme.pem", "--name", "acme", "-o", "acme.json")
        self.run("cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6")
        self.run("permit", "keys", "-o", "permit-keys.json")
        self.token = self.run("token", "create", "job", "--role", "registrar")["token"]
        self.url = f"http://127.0.0.1:{free_port()}"

    def run(self, *words: str) -> Any:
        """Run a command of the ledger; return what it printed."""
        done = command(*words, folder=self.folder, settings=self.settings)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def permit(self, round_id: str, reports: int = REPORTS) -> str:
        """Register a round, and return its permit."""
        described = ("--randomizer", RANDOMIZER, "--reports", str(reports))
        words = (
            "round",
            "register",
            "phones",
            "--id",
            round_id,
            *described,
            "--permit",
            f"{round_id}.permit",
        )
        return str(self.run(*words)["permit"])

    @contextmanager
    def server(self) -> Iterator[None]:
        """Run the ledger's server as a process."""
        words = [sys.executable, "-m", "shuffle_ledger", "serve", "--port", self.url.rpartition(":")[2]]
        with ended(words, self.folder, os.environ | self.settings):
            awaited(lambda: httpx.get(f"{self.url}/v1/healthz", timeout=5).status_code == 200)
            yield

    @contextmanager
    def shuffler(self, point: str = "") -> Iterator[httpx.Client]:
        """Run the shuffler as a process that dies at a point of its release; yield a client of it."""
        port = free_port()
        words = [
            *(sys.executable, "-c", CRASH.format(point=point), str(SHUFFLER)),
            *("--folder", "shuffler", "--keys", "permit-keys.json", "--name", "acme"),
            *("--signing-key", "acme.pem", "--ledger-url", self.url, "--randomizer", RANDOMIZER),
            *("--port", str(port)),
        ]
        with ended(words, self.folder, dict(os.environ)) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(port).encode()
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield client

    def released(self) -> dict[str, bytes]:
        """Return what left the shuffler, by round."""
        return {file.stem: file.read_bytes() for file in (self.folder / "shuffler" / "released").iterdir()}


@contextmanager
def ended(words: list[str], folder: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the end of the block."""
    with subprocess.Popen(words, cwd=folder, env=settings, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def awaited(holds: Any) -> None:
    """Wait until something holds."""
    gives_up = time.monotonic() + 60
    while True:
        try:
            if holds():
                return
        except httpx.TransportError:
            assert time.monotonic() < gives_up
        time.sleep(0.05)


def send(client: httpx.Client, round_id: str, count: int = REPORTS) -> list[bytes]:
    """Send reports, several at a time."""
    reports = [f"{round_id} {number}".encode() for number in range(count)]
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda one: client.post(f"/rounds/{round_id}/reports", content=one), reports)
        assert {answer.status_code for answer in answers} == {202}
    return reports


@pytest.fixture
def world(tmp_path: Path, sqlite_url: str) -> Iterator[World]:
    """Yield a ledger that is served."""
    assert sqlite_url == f"sqlite:///{tmp_path}/ledger.db"
    found = World(tmp_path)
    with found.server():
        yield found


def test_nothing_leaves_without_a_permit_and_a_receipt_settles(world: World) -> None:
    permit, other = world.permit("w48"), world.permit("w49")
    with world.shuffler() as client, LedgerClient(world.url, world.token) as ledger:
        sent = send(client, "w48", REPORTS - 1)

        def ask(token: str, round_id: str = "w48") -> httpx.Response:
            return client.post(f"/rounds/{round_id}/release", content=token)

        assert ask(permit).json()["kind"] == "too_few_reports"
        sent += [b"the last one"]
        assert client.post("/rounds/w48/reports", content=sent[-1]).status_code == 202
        assert ask("nonsense").json()["kind"] == "altered"
        assert ask(permit[:-4] + "AAAA").json()["kind"] == "altered"
        assert ask(other).status_code == 409  # of another round
        assert client.post("/rounds/w48/reports", content=b"x" * 5000).status_code == 413
        assert client.post("/rounds/../../etc/reports", content=b"x").status_code == 404
        assert world.released() == {}
        # A client that goes away in the middle of its report, and lengths that are none.
        for length in ("20", "\u00b2", "-1", "9" * 5000):
            with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as line:
                line.sendall(
                    f"POST /rounds/w48/reports HTTP/1.0\r\nContent-Length: {length}\r\n\r\nhalf".encode(
                        "latin-1"
                    )
                )
                line.shutdown(socket.SHUT_WR)
                assert b" 202 " not in line.recv(1000)
        done = ask(permit).json()
        mixed = [bytes.fromhex(line) for line in world.released()["w48"].decode().split()]
        assert sorted(mixed) == sorted(sent)
        assert mixed != sent
        assert client.post("/rounds/w48/reports", content=b"late").status_code == 409
        assert ask(permit).json() == done  # the same release, not a second one
        settled = ledger.settle_by_receipt(done["receipt"])
        assert isinstance(settled, Settled)
        assert settled.reports == REPORTS
        # Voided after its permit.
        send(client, "w49")
        ledger.void("w49", reason="cancelled")
        time.sleep(10.5)  # as long as the server may answer with the list of before
        assert ask(other, "w49").json()["kind"] == "revoked"
    assert set(world.released()) == {"w48"}


def test_a_killed_shuffler_releases_one_batch_once(world: World) -> None:
    keys = json.loads((world.folder / "acme.json").read_text())
    for point in ("before the gate's line", "behind the gate's line", "behind the rename"):
        name = point.rpartition(" ")[2].replace("line", point.split()[0])
        permit = world.permit(name)
        with world.shuffler(point) as client:
            sent = send(client, name)
            with pytest.raises(httpx.TransportError):
                client.post(f"/rounds/{name}/release", content=permit)
        left = world.released()
        assert (name in left) == (point == "behind the rename")
        with world.shuffler() as client:
            done = client.post(f"/rounds/{name}/release", content=permit)
            assert done.status_code == 200, done.text
            assert client.post(f"/rounds/{name}/release", content=permit).json() == done.json()
        now = world.released()[name]
        assert left.get(name, now) == now
        assert sorted(bytes.fromhex(line) for line in now.decode().split()) == sorted(sent)
        claims, _ = read_token(done.json()["receipt"], keys, kind=RECEIPT)
        assert (claims["batch_sha256"], claims["count"]) == (hashlib.sha256(now).hexdigest(), REPORTS)


def test_a_killed_shuffler_keeps_what_it_answered(world: World) -> None:
    with world.shuffler() as client:
        sent = send(client, "w48")
    held = world.folder / "shuffler" / "held" / "w48.reports"
    held.write_bytes(held.read_bytes() + b"0a0b")  # a line that the end of the process tore
    with world.shuffler() as client:
        assert client.post("/rounds/w48/reports", content=b"after").status_code == 202
    found = [bytes.fromhex(line) for line in held.read_text().split()]
    assert sorted(found) == sorted([*sent, b"after"])


def test_without_the_ledger_nothing_leaves(tmp_path: Path, sqlite_url: str) -> None:
    world = World(tmp_path)
    permit = world.permit("w48")
    with world.shuffler() as client:
        send(client, "w48")
        answer = client.post("/rounds/w48/release", content=permit)
        assert answer.status_code == 503
        assert "nothing was released" in answer.json()["error"]
    assert world.released() == {}


def test_a_killed_gate_command_is_used_up_or_not_but_never_twice(tmp_path: Path, sqlite_url: str) -> None:
    """Kills the command at moments that it does not choose."""
    world = World(tmp_path)
    program = [sys.executable, "-m", "shuffle_ledger", "gate", "--count", str(REPORTS), "--permit"]
    for place, delay in enumerate((0.05, 0.2, 0.3, 0.4)):
        world.permit(f"w{place}")
        words = [*program, f"w{place}.permit"]
        with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            said = process.communicate()[0]
        codes = [
            subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode for _ in range(2)
        ]
        assert codes in ([0, 21], [21, 21])
        assert not said or codes == [21, 21]
