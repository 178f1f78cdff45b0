"""The settings of PostgreSQL sessions: those that the ledger sets, and those that it leaves to the
database."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import admit_together, open_cohort, register, register_and_admit, void
from shuffle_ledger.ledger.errors import Unavailable
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual

MakeRequest = Callable[..., RoundRequest]

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def sets(database_url: str, *settings: str) -> None:
    """Let a database set something for all sessions that begin from now on."""
    url = make_url(database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        for setting in settings:
            connection.execute(f"ALTER DATABASE {url.database} SET {setting}".encode())


def filled(store: Store, accountant: Accountant, make_request: MakeRequest) -> None:
    """Open a cohort whose next round is decided from memory."""
    open_as_usual(store, "phones", epsilon=5.0)
    register_and_admit(store, accountant, make_request("first"), actor="x")


def test_isolation_and_durability_are_ours(database_url: str) -> None:
    """A stricter isolation makes errors of lost races; a commit that does not wait is lost by a crash."""
    sets(database_url, "default_transaction_isolation = 'serializable'", "synchronous_commit = off")
    with Store.connect(database_url) as store:
        for used in (engine.writing, engine.deciding):
            with used(store.engine) as connection:
                said = [
                    connection.execute(text(f"SHOW {name}")).scalar_one()
                    for name in ("transaction_isolation", "synchronous_commit")
                ]
            assert said == ["read committed", "on"]


def test_numbers_moments_and_names_come_as_they_were_stored(
    database_url: str, accountant: Accountant, make_request: MakeRequest
) -> None:
    """Rounded budgets contradicted their entries, and dates in another order could not be read."""
    sets(database_url, "extra_float_digits = -15", "datestyle = 'SQL, DMY'", "client_encoding = 'LATIN1'")
    name, epsilon, delta = "téléphones 电话", math.pi, 1 / (3 * 10**6)
    with Store.connect(database_url) as store:
        open_as_usual(store, name, epsilon=epsilon, delta=delta)
        (answer, _) = register_and_admit(store, accountant, make_request("a", cohort=name), actor="x")
        cohort = store.cohort(name)
        assert (cohort.epsilon_budget, cohort.delta_budget, answer.cohort) == (epsilon, delta, name)
        assert verify(store, accountant, numbers="all").ok


def test_a_host_that_falls_silent_is_noticed_in_a_minute_unless_the_address_says_otherwise(
    database_url: str,
) -> None:
    def parameters(url: str) -> dict[str, str]:
        with Store.connect(url) as store, store.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection  # SQLAlchemy does not say which driver's
            return dict(driver.info.get_parameters())

    wanted = {
        "connect_timeout": "10",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }
    assert wanted.items() <= parameters(database_url).items()
    other = make_url(database_url).update_query_dict({"keepalives_idle": "5", "connect_timeout": "3"})
    wanted |= {"keepalives_idle": "5", "connect_timeout": "3"}
    assert wanted.items() <= parameters(other.render_as_string(hide_password=False)).items()


def writes_of(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> tuple[Callable[[], object], ...]:
    """Return the ways to write into a ledger that was `filled`."""
    new = [make_request(f"new-{number}") for number in range(3)]
    opening: dict[str, Any] = {"name": "watches", "population": 9, "epsilon": 1.0, "delta": 1e-9}
    return (
        lambda: admit_together(store, accountant, new, actor="x"),
        lambda: register_and_admit(store, accountant, new[0], actor="x"),
        lambda: register(store, new[0], actor="x"),
        lambda: void(store, accountant, "first", reason="a test", actor="x"),
        lambda: open_cohort(store, **opening, policy="adaptive", actor="x"),
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("default_transaction_read_only = on", "read-only"),
        ("role = pg_read_all_data", r"the database cannot be used: .*: permission denied for"),
    ],
)
def test_who_stopped_writing_means_everybody(
    database_url: str, accountant: Accountant, make_request: MakeRequest, setting: str, said: str
) -> None:
    """Whichever way it is written, the answer is that it cannot be now, and nothing is there."""
    with Store.connect(database_url) as store:
        filled(store, accountant, make_request)
    sets(database_url, setting)
    with Store.connect(database_url) as store:
        for writes in writes_of(store, accountant, make_request):
            with pytest.raises(Unavailable, match=said):
                writes()
        assert store.count_entries("phones") == {"opened": 1, "admitted": 1}
        assert [cohort.name for cohort in store.cohorts()] == ["phones"]
        assert store.pending(limit=1) == []
        assert verify(store, accountant, numbers="all").ok


def test_a_session_that_the_server_ended_is_told(database_url: str) -> None:
    with Store.connect(database_url) as store:

        def dawdle() -> None:
            with engine.writing(store.engine) as connection:
                connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
                time.sleep(0.2)  # idle for longer than the server lets it, like a process that is stopped
                engine.database_time(connection)

        with pytest.raises(Unavailable):
            dawdle()
