"""Runs every process of the composition from the image's file system, confined as docker-compose.yml says.

Read-only but for /tmp, as the image's user, without capabilities or new privileges; PostgreSQL and RabbitMQ
are those of the tests. What is not as in a container: processes share our network (so servers listen on
127.0.0.1) and our process numbers, and nothing limits processors and memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import yaml
from sqlalchemy.engine import make_url

from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.celery_app import create_app
from shuffle_ledger.workers.queues import queue_names
from tests.ports import free_port

WAIT_SECONDS_MAX = 120.0
IN_THE_IMAGE = {
    "PATH": "/opt/shuffle-ledger/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/var/lib/shuffle-ledger",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "PYTHONUNBUFFERED": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
CONFINED = """
set -e
root=$1
shift
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -o remount,ro,bind "$root"
exec chroot "$root" setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all \
  --inh-caps=-all env --ignore-environment --chdir=/var/lib/shuffle-ledger "$@"
"""
CONFINEMENT_HOLDS = """
touch /tmp/x
for place in / /opt/ $HOME/; do
  if touch "${place}x" 2>/dev/null; then echo "$place can be written"; exit 1; fi
done
grep -Eq '^CapBnd:\\s0+$' /proc/self/status
test "$(id -u):$(id -g)" = 10001:10001
"""
COMPOSE: dict[str, Any] = yaml.safe_load(Path("docker-compose.yml").read_text("utf-8"))["services"]


class Image:
    """The image's file system, and how the composition runs processes from it."""

    def __init__(self, root: str, database_url: str, queue: str) -> None:
        self._root = root
        self._resolved = {
            "SHUFFLE_LEDGER_DATABASE_URL": database_url,
            "SHUFFLE_LEDGER_BROKER_URL": os.environ["SHUFFLE_LEDGER_TEST_BROKER_URL"],
            "SHUFFLE_LEDGER_SESSION_KEY": uuid.uuid4().hex,
        }
        self._ours = IN_THE_IMAGE | {"SHUFFLE_LEDGER_QUEUE": queue}

    def start(self, service: str, *words: str) -> subprocess.Popen[str]:
        """Start a program with a service's settings."""
        settings = COMPOSE[service]["environment"]
        settings |= {name: value for name, value in self._resolved.items() if name in settings}
        # A variable without a value is passed on only if it is set.
        said = [f"{name}={value}" for name, value in (self._ours | settings).items() if value is not None]
        command = ["unshare", "--mount", "/bin/sh", "-c", CONFINED, "confined", self._root, *said, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, service: str, *words: str) -> str:
        """Run a program with a service's settings to its end; return what it said."""
        with self.start(service, *words) as process:
            said, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
        assert process.returncode == 0, (service, words, said)
        return said

    @contextmanager
    def running(self, service: str, port: int | None = None) -> Iterator[subprocess.Popen[str]]:
        """Run a service's own command, a server on this port; end it gently, and insist that it does."""
        words = [
            {"0.0.0.0": "127.0.0.1", "8000": str(port)}.get(word, word)
            for word in COMPOSE[service]["command"]
        ]
        with self.start(service, "shuffle-ledger", *words) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    said, _ = process.communicate(timeout=WAIT_SECONDS_MAX / 2)
                finally:
                    process.kill()
            print(f"{service}: ended with {process.returncode} on SIGTERM")
            assert process.returncode in {0, -signal.SIGTERM}, (service, process.returncode, said)

    def is_healthy(self, service: str, process: subprocess.Popen[str], port: int | None = None) -> bool:
        """Ask a running service's own health check, inside the image."""
        kind, *words = COMPOSE[service]["healthcheck"]["test"]
        words = ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words
        words = [word.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for word in words]
        inside = ["nsenter", "--target", str(process.pid), "--mount", "--root", "--wd"]
        path = f"PATH={IN_THE_IMAGE['PATH']}"
        return (
            subprocess.run([*inside, "env", path, *words], capture_output=True, check=False).returncode == 0
        )


def main(root: str) -> None:
    """Start everything, let a round be decided, ask every health check, and end everything gently."""
    with database() as url, ExitStack() as stack:
        queue = f"shuffle-ledger-image-{uuid.uuid4().hex}"
        image = Image(root, url, queue)
        stack.callback(remove_queues, queue)
        print(image.run("migrate", "shuffle-ledger", "--version").strip())
        image.run("migrate", "/bin/sh", "-c", CONFINEMENT_HOLDS)
        for _ in range(2):  # the composition does it at every start
            image.run("migrate", "shuffle-ledger", *COMPOSE["migrate"]["command"])
        open_cohort = [
            "cohort",
            "open",
            "phones",
            "--population",
            "1000000",
            "--epsilon",
            "1",
            "--delta",
            "1e-9",
        ]
        image.run("migrate", "shuffle-ledger", *open_cohort)
        token = json.loads(
            image.run("migrate", "shuffle-ledger", "token", "create", "tester", "--role", "admin", "--json")
        )
        ports = {"server-1": free_port(), "server-2": free_port(), "worker": None, "scheduler": None}
        running = {name: stack.enter_context(image.running(name, port)) for name, port in ports.items()}
        for name, process in running.items():
            awaited(
                lambda name=name, process=process: image.is_healthy(name, process, ports[name]), name, process
            )
            print(f"{name}: healthy")
        answer = registered(f"http://127.0.0.1:{ports['server-1']}", token["token"])
        print(f"a round through server-1, RabbitMQ and a worker: {answer}")
        health = json.loads(image.run("migrate", "shuffle-ledger", "health", "--json"))
        assert health["healthy"], health
        image.run("migrate", "shuffle-ledger", "audit", "verify")


def registered(server: str, token: str) -> str:
    """Register a round, wait for its outcome, and return it."""
    body = {"round_id": "first", "cohort": "phones", "randomizer": "krr(k=10, epsilon0=1)", "reports": 10_000}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/v1/rounds", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert answer.status in {201, 202}, answer.status

    def outcome() -> str | None:
        asked = urllib.request.Request(f"{server}/v1/rounds/first", headers=headers)
        with urllib.request.urlopen(asked) as said:
            found: dict[str, Any] = json.load(said)
        return found["decision"]["outcome"] if found["decision"] else None

    return awaited(outcome, "the round")


def awaited(condition: Callable[[], Any], what: str, process: subprocess.Popen[str] | None = None) -> Any:
    """Return what the condition returns as soon as it is true."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: waited in vain"
        assert process is None or process.poll() is None, f"{what} ended: {process.stdout.read()}"
        time.sleep(0.5)  # between two looks at other processes; the deadline above ends it
    return found


@contextmanager
def database() -> Iterator[str]:
    """Yield the URL of an empty database."""
    server = make_url(os.environ["SHUFFLE_LEDGER_TEST_POSTGRES_URL"])
    address = server.set(drivername="postgresql").render_as_string(hide_password=False)
    name = f"shuffle_ledger_image_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield server.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def remove_queues(queue: str) -> None:
    """Remove what the processes left at the broker."""
    settings = Settings(broker_url=os.environ["SHUFFLE_LEDGER_TEST_BROKER_URL"], queue=queue)
    names = queue_names(queue)
    with create_app(settings).connection_for_write() as connection:
        for name in vars(names).values():
            connection.default_channel.queue_delete(name)
        for name in (queue, names.dead):
            connection.default_channel.exchange_delete(name)


if __name__ == "__main__":
    main(sys.argv[1])
