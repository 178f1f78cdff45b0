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
from sqlalchemy import CheckConstraint, create_engine, inspect

from shuffle_ledger.ledger.errors import InvalidValue, SchemaError, Unavailable
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage import schema, tables
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store

PROCESSES = 4
WAIT_SECONDS_MAX = 60
INITIALISE = (
    "import sys; from shuffle_ledger.ledger.storage.schema import initialise;"
    " sys.stdin.readline(); initialise(sys.argv[1])"
)
REPOSITORY = Path(__file__).parents[2]


def test_migrations_make_exactly_the_tables_of_the_code(empty_database_url: str) -> None:
    assert initialise(empty_database_url) == tables.SCHEMA_REVISION
    engine = create_engine(empty_database_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, tables.metadata) == []
        found = inspect(connection)
        for name, table in tables.metadata.tables.items():
            # The comparison above leaves out check constraints.
            expected = {str(each.name) for each in table.constraints if isinstance(each, CheckConstraint)}
            assert {each["name"] for each in found.get_check_constraints(name)} == expected, name
    engine.dispose()


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


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM alembic_version",
        "INSERT INTO alembic_version VALUES ('0001')",
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
    for target in ("-1", "0001", "base"):
        with engines.writing(engine) as connection:
            config.attributes["connection"] = connection
            with pytest.raises(AttributeError, match="downgrade"):
                command.downgrade(config, target)
    engine.dispose()
    Store.connect(empty_database_url).close()


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
