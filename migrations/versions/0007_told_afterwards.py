"""Entries that tell what a release truly was: corrections of rounds, and incidents that nothing admitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_KINDS_BEFORE = "'opened', 'admitted', 'refused', 'settled', 'voided', 'budget_changed', 'frozen'"
_KINDS = f"{_KINDS_BEFORE}, 'corrected', 'incident'"
_COUNTS_BEFORE = "admitted + refused + settled + voided + budget_changes + freezes"
_COUNTS = f"{_COUNTS_BEFORE} + corrections + incidents"
_INCIDENT = sa.text("kind = 'incident'")
_TOLD = sa.text("kind IN ('corrected', 'incident')")


def upgrade() -> None:
    """Count both kinds in the heads, let entries have them, and index them by their rounds."""
    for column in ("corrections", "incidents"):
        op.add_column("heads", sa.Column(column, sa.BigInteger, nullable=False, server_default=sa.text("0")))
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_sqlite("entries", f"kind IN ({_KINDS_BEFORE})", f"kind IN ({_KINDS})")
        _rebuild_sqlite("heads", f"sequence = 1 + {_COUNTS_BEFORE}", f"sequence = 1 + {_COUNTS}")
    else:
        # The foreign key to the head's entry is deferred; a table with waiting checks cannot be altered.
        op.execute("SET CONSTRAINTS ALL IMMEDIATE")
        _replace_check("entries", "kind", f"kind IN ({_KINDS})")
        _replace_check("heads", "counted", f"sequence = 1 + {_COUNTS}")
    op.create_index(
        "uq_entries_one_incident",
        "entries",
        ["round_id"],
        unique=True,
        sqlite_where=_INCIDENT,
        postgresql_where=_INCIDENT,
    )
    op.create_index(
        "ix_entries_told",
        "entries",
        ["round_id", "sequence"],
        sqlite_where=_TOLD,
        postgresql_where=_TOLD,
    )


def _replace_check(table: str, name: str, condition: str) -> None:
    op.execute(f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{name}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({condition})")


def _rebuild_sqlite(table: str, before: str, after: str) -> None:
    """Make a table anew with another check, and all its indexes and triggers as they were.

    Foreign keys are off while migrations run, and checked as a whole afterwards.
    """
    connection = op.get_bind()
    query = sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :table AND sql IS NOT NULL")
    made = connection.execute(query, {"table": table}).all()
    definition = next(row.sql for row in made if row.type == "table")
    if definition.count(before) != 1:
        raise RuntimeError(f"table {table!r} is not as earlier migrations made it")
    _, columns = definition.split("(", 1)
    # Triggers of other tables name this one: they are not to be looked at while it is away.
    connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
    connection.exec_driver_sql(f"CREATE TABLE {table}_anew ({columns.replace(before, after)}")
    connection.exec_driver_sql(f"INSERT INTO {table}_anew SELECT * FROM {table} ORDER BY rowid")  # noqa: S608 - our own names
    connection.exec_driver_sql(f"DROP TABLE {table}")
    connection.exec_driver_sql(f"ALTER TABLE {table}_anew RENAME TO {table}")
    for row in made:
        if row.type != "table":
            connection.exec_driver_sql(row.sql)
    connection.exec_driver_sql("PRAGMA legacy_alter_table = OFF")
