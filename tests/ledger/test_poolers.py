"""A real PgBouncer before PostgreSQL: in session mode all is as without it, else it is refused."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.decisions import register_and_admit
from shuffle_ledger.ledger.errors import LedgerError, UnsafeSession
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import prepared, sessions
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual

MakeRequest = Callable[..., RoundRequest]

START_SECONDS_MAX = 20.0
READ_AGAIN = "got SIGHUP, re-reading config"  # says PgBouncer
NOBODY = "nobody"  # PgBouncer refuses to run as root
SETTINGS = {
    "lock_timeout": "10s",
    "statement_timeout": "1min",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
OTHERWISE = (
    "synchronous_commit = off",
    "lock_timeout = 0",
    "statement_timeout = 0",
    "default_transaction_isolation = 'serializable'",
)


class Pooler:
    """A running PgBouncer in front of a PostgreSQL server, and its configuration."""

    def __init__(self, home: Path, server_url: str) -> None:
        self._url = make_url(server_url)
        self._home = home
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self._port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database_url: str) -> str:
        """Return a database's address, through this pooler."""
        through = make_url(database_url).set(host="127.0.0.1", port=self._port, query={})
        return through.render_as_string(hide_password=False)

    def configure(self, mode: str, **more: object) -> None:
        """Write the configuration, and wait until a running pooler has read it."""
        server = {
            "host": self._url.query.get("host") or self._url.host or "127.0.0.1",
            "port": self._url.port or 5432,
            "user": self._url.username or "postgres",
            "password": self._url.password,
        }
        target = " ".join(f"{name}={value}" for name, value in server.items() if value is not None)
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self._port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": 40,
            **more,
        }
        lines = ["[databases]", f"* = {target}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        (self._home / "pgbouncer.ini").write_text("\n".join(lines) + "\n", "utf-8")
        if self._process is not None:
            times = self._log().count(READ_AGAIN)
            self._process.send_signal(signal.SIGHUP)
            gives_up = time.monotonic() + START_SECONDS_MAX
            while self._log().count(READ_AGAIN) == times:
                assert time.monotonic() < gives_up, "PgBouncer did not read its configuration again"
                time.sleep(0.02)  # only its log tells that it has

    def start(self) -> None:
        """Start it, and wait until it listens."""
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_program(), str(self._home / "pgbouncer.ini")],
                user=NOBODY if os.geteuid() == 0 else None,
                stdout=log,
                stderr=log,
            )
        gives_up = time.monotonic() + START_SECONDS_MAX
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            assert self._process.poll() is None, self._log()
            assert time.monotonic() < gives_up, "PgBouncer did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        """End it with all its connections."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS_MAX)
            self._process = None

    def _log(self) -> str:
        return (self._home / "log").read_text("utf-8")


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip("there is no pgbouncer (a Debian package): nothing was tried through a pooler")
    return found


@pytest.fixture
def database_url(new_postgresql_database: Callable[[], str]) -> str:
    """Return a ledger on PostgreSQL whose database sets for its sessions what the ledger must not have."""
    url = new_postgresql_database()
    initialise(url)
    address = make_url(url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        for setting in OTHERWISE:
            connection.execute(f"ALTER DATABASE {address.database} SET {setting}".encode())
    return url


@pytest.fixture
def pooler(tmp_path_factory: pytest.TempPathFactory, postgresql_server: str) -> Iterator[Pooler]:
    """Yield a pooler in front of the server, which is to be configured and started."""
    _program()
    home = tmp_path_factory.mktemp("pooler")
    if os.geteuid() == 0:
        for each in (home, *home.parents[:3]):  # the unprivileged user reads the configuration
            each.chmod(each.stat().st_mode | 0o011)
        os.chown(home, pwd.getpwnam(NOBODY).pw_uid, -1)
    made = Pooler(home, postgresql_server)
    yield made
    made.stop()


def test_in_session_mode_all_settings_hold(
    pooler: Pooler, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    pooler.configure("session")
    pooler.start()
    with Store.connect(pooler.url(database_url)) as store:
        for used in (engines.writing, engines.deciding, engines.reading_once):
            with used(store.engine) as connection:
                found = {name: connection.execute(text(f"SHOW {name}")).scalar_one() for name in SETTINGS}
            assert found == SETTINGS
        open_as_usual(store, "phones", epsilon=5.0)

        def decided(number: int) -> object:
            return register_and_admit(store, accountant, make_request(f"round-{number}"), actor="x")[0]

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(decided, range(24)))
        assert all(isinstance(outcome, Admitted) for outcome in outcomes)
        assert verify(store, accountant, numbers="sampled").ok


@pytest.mark.parametrize(
    ("mode", "more"), [("transaction", {"default_pool_size": 1}), ("statement", {"server_round_robin": 1})]
)
def test_shared_sessions_are_refused_at_the_start(
    pooler: Pooler, postgresql_server: str, mode: str, more: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler.configure(mode, **more)
    pooler.start()
    url = pooler.url(postgresql_server)
    with pytest.raises(UnsafeSession, match="session mode"):
        Store.connect(url)
    with pytest.raises(UnsafeSession, match="session mode"):
        initialise(url)
    monkeypatch.setenv("SHUFFLE_LEDGER_DATABASE_URL", url)
    told = CliRunner().invoke(main, ["budget", "phones"])
    assert told.exit_code == 1
    assert "set the pooler to session mode" in told.output


def test_shared_sessions_are_refused_whoever_else_uses_them(pooler: Pooler, postgresql_server: str) -> None:
    """Others keep sessions busy, so that chance decides which one a connection gets."""
    pooler.configure("transaction", server_round_robin=1)
    pooler.start()
    url = pooler.url(postgresql_server)
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    done = threading.Event()

    def disturb(seconds: float) -> None:
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as connection:
            while not done.is_set():
                connection.execute("SELECT pg_sleep(%s)", (seconds,))

    with ThreadPoolExecutor(4) as pool:
        disturbing = [pool.submit(disturb, seconds) for seconds in (0.001, 0.002, 0.003, 0.005)]
        try:
            for _ in range(10):
                with pytest.raises(UnsafeSession):
                    Store.connect(url)
        finally:
            done.set()
    assert [each.exception() for each in disturbing] == [None] * 4


@pytest.mark.slow
def test_a_pooler_that_changes_its_mode_never_makes_an_answer_wrong(
    pooler: Pooler, database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """All connections are opened again while others are in use: refused, or right; never another's answer."""
    pooler.configure("session")
    pooler.start()
    with Store.connect(pooler.url(database_url)) as store:
        open_as_usual(store, "phones", epsilon=5.0)
        rounds = [make_request(f"round-{number}") for number in range(8)]
        for request in rounds:
            register_and_admit(store, accountant, request, actor="x")
        pooler.stop()
        pooler.configure("transaction")
        pooler.start()

        def ask(number: int) -> type[LedgerError] | None:
            request = rounds[number % len(rounds)]
            try:
                assert store.round(request.round_id).round_id == request.round_id
                assert store.cohort("phones").name == "phones"
            except LedgerError as error:
                return type(error)
            return None

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(ask, range(200)))
        assert answers[-1] is UnsafeSession
        assert None not in answers


def test_a_statement_never_finds_one_that_another_session_prepared(
    pooler: Pooler, postgresql_server: str
) -> None:
    """The pooler changes its mode under open connections. A statement then runs in the session that was used
    last, in which another connection prepared its own."""
    pooler.configure("session")
    pooler.start()
    engine, other = (engines.connect(pooler.url(postgresql_server)) for _ in range(2))
    with engine.connect() as one, engine.connect() as two, other.connect() as three:
        for connection in (one, two, three):
            connection.execution_options(**{engines._ALONE_OPTION: True})
        for connection, name in ((one, "one"), (two, "two")):
            assert prepared.run(connection, f"SELECT '{name}' AS said", {}).said == name
        pooler.configure("transaction")
        for connection in (one, three, two):  # each gives its session away
            connection.exec_driver_sql("SELECT 1")
        with pytest.raises(UnsafeSession), engines.translated_errors():
            prepared.run(one, "SELECT 'one' AS said", {})
        assert one.invalidated
    with pytest.raises(UnsafeSession), engines.writing(other):  # on the third connection
        raise AssertionError("a transaction has the session of another connection")
    engine.dispose()
    other.dispose()


def test_a_setting_that_does_not_hold_is_refused(postgresql_server: str) -> None:
    """PostgreSQL takes units and answers without: what it did not keep as it was given does not hold."""
    engine = create_engine(make_url(postgresql_server), connect_args={"autocommit": True})
    event.listen(engine, "do_connect", sessions.SessionOpening({"lock_timeout": "10s"}))
    with pytest.raises(UnsafeSession, match="lock_timeout = '10000', although '10s' was set"):
        engine.connect()
    engine.dispose()
