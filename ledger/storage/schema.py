"""Bringing a database to the schema this code knows, and refusing every other."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, column, inspect, select, table, text

from shuffle_ledger.ledger.errors import Ruined, SchemaError
from shuffle_ledger.ledger.storage import engine as engines
from shuffle_ledger.ledger.storage.tables import SCHEMA_REVISION, cohorts, metadata

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

_REVISION_TABLE = "alembic_version"
# What versions made before the first release: nothing leads from there to the schema of today.
_UNRELEASED = frozenset(f"{number:04}" for number in range(1, 17)) | {"v1_0001", "v1_0002", "v1_0003"}
_LOCK_NUMBER = 0x5368_4C64  # any constant: every migration of this ledger takes this advisory lock


def initialise(database_url: str) -> str:
    """Create or upgrade the schema; return its revision. Safe to repeat and to run twice at once.

    Raises:
        InvalidValue: the URL is of no supported database.
        SchemaError: the database is newer than this code, was made before the first release, or does not tell
            its revision.
        Ruined: tables are missing; nothing was changed.
        Damaged: a row refers to one that is missing; nothing was changed.
        TryAgain: another process held the database for too long; nothing was changed.
        Unavailable: the database cannot be reached or created, or its answer was lost.
    """
    from alembic import command  # noqa: PLC0415 - only a schema that is not today's needs Alembic

    engine = engines.connect(database_url, migrating=True)
    try:
        # One transaction around reading the revision and changing the schema: who comes second waits, then
        # finds everything done. Both databases roll schema changes back.
        with engines.writing(engine, fact="the schema was changed") as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
            config = _configuration()
            _refuse_unknown(_stored_revision(connection), _scripts(config))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            check_revision(connection)
            _check_tables(connection)
    finally:
        engine.dispose()
    return SCHEMA_REVISION


def check_revision(connection: Connection) -> None:
    """Raise SchemaError unless the database has exactly the schema this code was written for."""
    stored = _stored_revision(connection)
    if stored is None:
        raise SchemaError(f"the database is not initialised: {engines.INITIALISE}")
    if stored == SCHEMA_REVISION:
        return
    _refuse_unknown(stored, _scripts(_configuration()))
    raise SchemaError(
        f"the database has schema {stored}, this code needs {SCHEMA_REVISION}: {engines.INITIALISE}"
    )


def _check_tables(connection: Connection) -> None:
    tables = inspect(connection)
    missing = [name for name in sorted(metadata.tables) if not tables.has_table(name)]
    if missing:
        raise Ruined(
            f"tables of the ledger are missing: {', '.join(missing)}. Restore the ledger from a backup"
        )


def _configuration() -> Config:
    from alembic.config import Config  # noqa: PLC0415 - as above

    config = Config()
    config.set_main_option("script_location", str(files("shuffle_ledger.migrations")).replace("%", "%%"))
    return config


def _scripts(config: Config) -> ScriptDirectory:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - as above

    return ScriptDirectory.from_config(config)


def _stored_revision(connection: Connection) -> str | None:
    """Return the revision of the schema; None if there is no ledger. Raises SchemaError if it is not told."""
    tables, stored = inspect(connection), []
    if tables.has_table(_REVISION_TABLE):
        revision = select(column("version_num", String())).select_from(table(_REVISION_TABLE))
        stored = list(connection.execute(revision).scalars())
    if len(stored) == 1:
        return str(stored[0])
    if stored or tables.has_table(cohorts.name):
        found = f"has {len(stored)} rows" if tables.has_table(_REVISION_TABLE) else "is missing"
        raise SchemaError(
            f"the database does not say which schema its tables have: the table {_REVISION_TABLE} {found},"
            " expected one row. Restore the ledger from a backup or, if the tables are not a ledger's, give"
            " it a database of its own"
        )
    return None


def _refuse_unknown(stored: str | None, scripts: ScriptDirectory) -> None:
    if stored in _UNRELEASED:
        raise SchemaError(
            f"the database has schema {stored}, which a version before the first release made and no version"
            " brings up to date: run `shuffle-ledger init` on a new, empty database"
        )
    known = {script.revision for script in scripts.walk_revisions()}
    if stored is not None and stored not in known:
        raise SchemaError(
            f"the database has schema {stored}, which is newer than this code: upgrade shuffle-ledger"
        )
