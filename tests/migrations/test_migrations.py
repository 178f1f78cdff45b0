"""Migrations make the expected schema, once, also if several processes run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, create_engine, inspect, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.decisions import admit, open_cohort, register
from shuffle_ledger.ledger.errors import InvalidValue, SchemaError, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import schema, tables
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import own_server

PROCESSES = 4
WAIT_SECONDS_MAX = 60
INITIALISE = (
    "import sys; from shuffle_ledger.ledger.storage.schema import initialise;"
    " sys.stdin.readline(); initialise(sys.argv[1])"
)
REPOSITORY = Path(__file__).parents[2]
ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.5)"), reports=1000)
# The database's message, and the changes that it refuses with it: each kept column by itself.
REFUSED = {
    "entries are never changed": ["UPDATE entries SET kind = kind"],
    "entries are never removed": ["DELETE FROM entries"],
    "uq_rounds_round": [  # whichever cohort the second first row names
        (
            "INSERT INTO rounds (registration, round_id, cohort, content, content_digest, registered_by,"
            " registered_at) SELECT registration + 9, round_id, 'x', content, content_digest, registered_by,"
            " registered_at FROM rounds"
        )
    ],
    "heads are never removed": ["DELETE FROM heads"],
    "a head moves forward": [
        *("UPDATE heads SET sequence = sequence", "UPDATE heads SET sequence = sequence - 1"),
        "UPDATE heads SET sequence = sequence + 1, refused = refused + 1, epsilon_budget = 100",
    ],
    "ck_heads_counted": ["UPDATE heads SET sequence = sequence + 1"],
    "cohorts are never removed": ["DELETE FROM cohorts"],
    "a cohort keeps what it was opened with": [
        *("UPDATE cohorts SET name = 'x'", "UPDATE cohorts SET population = 9"),
        "UPDATE cohorts SET delta_budget = 0.5",
        *("UPDATE cohorts SET policy = 'plan'", "UPDATE cohorts SET opened_at = '2001-01-01'"),
        *("UPDATE cohorts SET labels = 'x'", "UPDATE cohorts SET windows = 'x'"),
        *("UPDATE cohorts SET period = 'x'", "UPDATE cohorts SET quota = 'x'"),
        *("UPDATE cohorts SET ceiling = 'x'", "UPDATE cohorts SET local_budget = 'x'"),
        "UPDATE cohorts SET rounds_per_user = 'x'",
    ],
    "rounds are never removed": ["DELETE FROM rounds WHERE round_id = 'waiting'"],
    "a registered round keeps its content": [
        *("UPDATE rounds SET registration = registration + 9", "UPDATE rounds SET round_id = 'x'"),
        *("UPDATE rounds SET cohort = 'x'", "UPDATE rounds SET content = 'x'"),
        *("UPDATE rounds SET content_digest = content", "UPDATE rounds SET registered_by = 'x'"),
        *("UPDATE rounds SET registered_at = '2001-01-01'", "UPDATE rounds SET shared = true"),
        "UPDATE rounds SET outcome_sequence = NULL",
        "UPDATE rounds SET outcome_sequence = 9 WHERE outcome_sequence IS NOT NULL",
    ],
    "registrations are never changed": ["UPDATE registrations SET cohort = 'tablets'"],
    "registrations are never removed": ["DELETE FROM registrations"],
    "accounted rounds are never changed": ["UPDATE accounted_rounds SET parameters = digest"],
    "accounted rounds are never removed": ["DELETE FROM accounted_rounds"],
    "stored privacy losses are never changed": ["UPDATE privacy_losses SET blob = digest"],
    "a ledger keeps its identity": [
        *("UPDATE ledger_identity SET ledger_id = ledger_id", "DELETE FROM ledger_identity"),
    ],
    "tokens are never removed": ["DELETE FROM access_tokens"],
    "a token keeps what it was issued with": [
        *("UPDATE access_tokens SET token_id = 'x'", "UPDATE access_tokens SET name = 'x'"),
        *("UPDATE access_tokens SET secret_digest = 'x'", "UPDATE access_tokens SET role = 'admin'"),
        *("UPDATE access_tokens SET cohorts = 'x'", "UPDATE access_tokens SET team = 'x'"),
        *("UPDATE access_tokens SET created_by = 'x'", "UPDATE access_tokens SET created_at = '2001-01-01'"),
        "UPDATE access_tokens SET expires_at = '2999-01-01'",
    ],
}
EMPTIED = (
    *("cohorts", "rounds", "entries", "heads", "holdings", "accounted_rounds", "ledger_identity"),
    *("registrations", "reconciliations", "lost_cohorts"),
)


def _conditions(indexes: list[ReflectedIndex]) -> dict[str, str]:
    """Returns the conditions of partial indexes of SQLite by their names."""
    options = {str(each["name"]): each.get("dialect_options", {}) for each in indexes}
    return {name: str(each["sqlite_where"]) for name, each in options.items() if "sqlite_where" in each}


def test_migrations_make_exactly_the_tables_of_the_code(empty_database_url: str) -> None:
    assert initialise(empty_database_url) == tables.SCHEMA_REVISION
    engine = create_engine(empty_database_url)
    with engine.connect() as connection:
        # No index of an expression can be compared: `REFUSED` shows what that one refuses.
        options = {
            "compare_server_default": True,
            "include_object": lambda _, name, *__: name != "uq_rounds_round",
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []
        found = inspect(connection)
        for name, table in tables.metadata.tables.items():
            # The comparison above leaves out check constraints.
            expected = {str(each.name) for each in table.constraints if isinstance(each, CheckConstraint)}
            assert {each["name"] for each in found.get_check_constraints(name)} == expected, name
            if engine.dialect.name == "sqlite":  # PostgreSQL rewrites conditions
                rows = {str(each.name): each.info["rows"] for each in table.indexes if "rows" in each.info}
                assert _conditions(found.get_indexes(name)) == rows, name
    engine.dispose()


@pytest.mark.system
def test_the_postgresql_that_the_tests_bring_takes_the_schema() -> None:
    """Also where the environment names another one: only this test starts it there."""
    with own_server() as url:
        assert initialise(url) == tables.SCHEMA_REVISION


def test_initialising_again_changes_nothing(empty_database_url: str) -> None:
    for _ in range(3):
        assert initialise(empty_database_url) == tables.SCHEMA_REVISION
    Store.connect(empty_database_url).close()


@pytest.mark.slow
def test_processes_may_initialise_at_once(empty_database_url: str) -> None:
    command = [sys.executable, "-c", INITIALISE, empty_database_url]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    processes = [
        subprocess.Popen(command, stdin=-1, stderr=-1, text=True, env=environment) for _ in range(PROCESSES)
    ]
    try:
        errors = [process.communicate("go\n", timeout=WAIT_SECONDS_MAX)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * PROCESSES, errors
    Store.connect(empty_database_url).close()


def test_a_database_nobody_initialised_is_refused(empty_database_url: str) -> None:
    with pytest.raises(SchemaError, match="init"):
        Store.connect(empty_database_url)


def test_a_schema_of_the_future_is_refused(empty_database_url: str) -> None:
    initialise(empty_database_url)
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(SchemaError, match="newer"):
        Store.connect(empty_database_url)
    with pytest.raises(SchemaError, match="newer"):
        initialise(empty_database_url)


@pytest.mark.parametrize("revision", ["0001", "0009", "0016", "v1_0001"])
def test_a_schema_from_before_the_first_release_is_refused(empty_database_url: str, revision: str) -> None:
    """Nothing leads from there to the schema of today, and an upgrade must not be tried."""
    initialise(empty_database_url)
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        change = text("UPDATE alembic_version SET version_num = :revision")
        connection.execute(change, {"revision": revision})
    said = f"schema {revision}, .* before the first release .* new, empty"
    for asked in (initialise, Store.connect):
        with pytest.raises(SchemaError, match=said):
            asked(empty_database_url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == revision
    engine.dispose()


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM alembic_version",
        "INSERT INTO alembic_version VALUES ('9999')",
        "DROP TABLE alembic_version",
    ],
)
def test_a_ledger_that_does_not_tell_its_schema_is_left_alone(empty_database_url: str, lost: str) -> None:
    """Errors advised to initialise it, which failed on the first table."""
    initialise(empty_database_url)
    engine = create_engine(empty_database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(lost)
    engine.dispose()
    for asked in (initialise, Store.connect):
        with pytest.raises(SchemaError, match=r"does not say which schema its tables have: .* (has \d|is)"):
            asked(empty_database_url)


def test_a_ledger_is_never_downgraded(empty_database_url: str) -> None:
    """An older schema would lose evidence: no revision knows the way back, and trying changes nothing."""
    initialise(empty_database_url)
    engine = engines.connect(empty_database_url, migrating=True)
    config = schema._configuration()
    for target in ("-1", "base"):
        with engines.writing(engine) as connection:
            config.attributes["connection"] = connection
            with pytest.raises(AttributeError, match="downgrade"):
                command.downgrade(config, target)
    engine.dispose()
    Store.connect(empty_database_url).close()


@pytest.fixture
def lived_in_url(empty_database_url: str) -> str:
    """Return a ledger with a cohort, a round that was admitted, one that is not decided, and a token."""
    initialise(empty_database_url)
    with Store.connect(empty_database_url) as store:
        open_cohort(
            store, name="phones", population=10**5, epsilon=1.0, delta=1e-6, policy="adaptive", actor="tester"
        )
        for name in ("decided", "waiting"):
            register(store, RoundRequest(round_id=name, cohort="phones", round=ROUND), actor="tester")
        assert isinstance(admit(store, Accountant(), "decided"), Admitted)
        issue(store, name="tester", role="reader", actor="tester")
    return empty_database_url


@pytest.mark.slow
def test_a_ledger_guards_its_rows(lived_in_url: str) -> None:
    with Store.connect(lived_in_url) as store:
        emptied = {
            f"{table} are never emptied": [f"TRUNCATE {table} CASCADE"]
            for table in EMPTIED
            if store.engine.dialect.name == "postgresql"
        }
        for said, statements in (REFUSED | emptied).items():
            for statement in statements:
                # A table that refers to it may refuse first.
                expected = "are never emptied" if "TRUNCATE" in statement else said
                with pytest.raises(DBAPIError, match=expected), store.engine.begin() as connection:
                    connection.execute(text(statement))
        assert verify(store, Accountant(), numbers="all").ok


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://localhost/ledger"]
)
def test_databases_that_cannot_hold_a_ledger_are_refused(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        initialise(url)
    assert caught.value.field == "database_url"


def test_an_unreachable_database_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="does not exist"):
        initialise(f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'ledger.db'}")
    with pytest.raises(Unavailable):
        Store.connect("postgresql+psycopg://nobody:secret@127.0.0.1:1/nothing")
