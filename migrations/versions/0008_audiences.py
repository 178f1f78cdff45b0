"""Rounds of several cohorts, which have a row and entries in each of them, and labels of cohorts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_FIRST = sa.text("NOT shared")
# Every index that let one entry of a kind name a round, for each chain from now on.
_ONE_OF_A_KIND = {
    "uq_entries_one_outcome": sa.text("kind IN ('admitted', 'refused')"),
    "uq_entries_one_closing": sa.text("kind IN ('settled', 'voided')"),
    "uq_entries_one_incident": sa.text("kind = 'incident'"),
}
# (table, column that never changes, what the database then says)
_KEPT = (
    ("rounds", "shared", "a registered round keeps its cohorts"),
    ("cohorts", "labels", "a cohort keeps what it was opened with"),
)


def upgrade() -> None:
    """Add both columns, and let an identifier have a row, and entries, for each cohort of its round."""
    op.add_column("cohorts", sa.Column("labels", sa.LargeBinary))
    op.add_column("rounds", sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.text("false")))
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_rounds()
    else:
        op.execute("ALTER TABLE rounds DROP CONSTRAINT uq_rounds_round_id")
    op.create_index(
        "uq_rounds_first", "rounds", ["round_id"], unique=True, sqlite_where=_FIRST, postgresql_where=_FIRST
    )
    for name, condition in _ONE_OF_A_KIND.items():
        op.drop_index(name, "entries")
        op.create_index(
            name,
            "entries",
            ["round_id", "cohort"],
            unique=True,
            sqlite_where=condition,
            postgresql_where=condition,
        )
    for guard in _KEPT:
        _guard(*guard)


def _rebuild_rounds() -> None:
    """Make the table anew without its constraint, and all its indexes and triggers as they were.

    Foreign keys are off while migrations run, and checked as a whole afterwards.
    """
    connection = op.get_bind()
    query = sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'rounds' AND sql IS NOT NULL")
    made = connection.execute(query).all()
    definition = next(row.sql for row in made if row.type == "table")
    constraint = "CONSTRAINT uq_rounds_round_id UNIQUE (round_id),"
    if definition.count(constraint) != 1:
        raise RuntimeError("table 'rounds' is not as earlier migrations made it")
    _, columns = definition.split("(", 1)
    last = connection.exec_driver_sql("SELECT max(seq) FROM sqlite_sequence WHERE name = 'rounds'").scalar()
    # Triggers of other tables name this one: they are not to be looked at while it is away.
    connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
    connection.exec_driver_sql(f"CREATE TABLE rounds_anew ({columns.replace(constraint, '')}")
    connection.exec_driver_sql("INSERT INTO rounds_anew SELECT * FROM rounds ORDER BY registration")
    connection.exec_driver_sql("DROP TABLE rounds")
    connection.exec_driver_sql("ALTER TABLE rounds_anew RENAME TO rounds")
    connection.exec_driver_sql("PRAGMA legacy_alter_table = OFF")
    for row in made:
        if row.type != "table":
            connection.exec_driver_sql(row.sql)
    if last is not None:
        # Numbers go on behind the last one that was ever given, as they would have.
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = 'rounds'")
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES ('rounds', ?)", (last,))


def _guard(table: str, column: str, message: str) -> None:
    name = f"guard_0008_{table}_update"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW"
            f" WHEN NEW.{column} IS NOT OLD.{column} BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.{column} IS DISTINCT FROM OLD.{column} THEN RAISE EXCEPTION '{message}'"
        " USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
