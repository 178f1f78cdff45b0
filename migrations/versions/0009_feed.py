"""A position of every entry in the feed of all chains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# In the order of time, and of each chain: an entry counts as no older than those before it. The bytes are
# searched, not parsed: an entry that was tampered with must not stop the upgrade.
_RECORDED_AT = {
    "sqlite": 'substr(body, nullif(instr(body, CAST(\'"recorded_at":"\' AS BLOB)), 0) + 15, 32)',
    "postgresql": 'substring(encode(body, \'escape\') FROM \'"recorded_at":"([^"]*)"\') COLLATE "C"',
}
_POSITIONS = (
    "SELECT cohort, sequence, row_number() OVER (ORDER BY reached, cohort, sequence) AS position FROM"
    " (SELECT cohort, sequence, max(coalesce({recorded_at}, {nothing}))"
    " OVER (PARTITION BY cohort ORDER BY sequence) AS reached FROM entries) AS timed"
)


def upgrade() -> None:
    """Add the column, number the entries that there are, and let later ones follow."""
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_entries(_POSITIONS.format(recorded_at=_RECORDED_AT["sqlite"], nothing="x''"))
        return
    positions = _POSITIONS.format(recorded_at=_RECORDED_AT["postgresql"], nothing="''")
    # The foreign key to the head's entry is deferred; a table with waiting checks cannot be altered.
    op.execute("SET CONSTRAINTS ALL IMMEDIATE")
    op.add_column("entries", sa.Column("position", sa.BigInteger))
    op.execute("ALTER TABLE entries DISABLE TRIGGER USER")
    op.execute(
        f"UPDATE entries SET position = numbered.position FROM ({positions}) AS numbered"  # noqa: S608 - our own names
        " WHERE entries.cohort = numbered.cohort AND entries.sequence = numbered.sequence"
    )
    op.execute("ALTER TABLE entries ENABLE TRIGGER USER")
    op.execute("CREATE SEQUENCE entries_position_seq OWNED BY entries.position")
    op.execute("SELECT setval('entries_position_seq', coalesce(max(position), 0) + 1, false) FROM entries")
    op.execute(
        "ALTER TABLE entries ALTER COLUMN position SET DEFAULT nextval('entries_position_seq'),"
        " ALTER COLUMN position SET NOT NULL, ADD CONSTRAINT uq_entries_position UNIQUE (position)"
    )


def _rebuild_entries(positions: str) -> None:
    """Make the table anew with the column, and all its indexes and triggers as they were.

    Foreign keys are off while migrations run, and checked as a whole afterwards.
    """
    connection = op.get_bind()
    query = sa.text(
        "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'entries' AND sql IS NOT NULL"
    )
    made = connection.execute(query).all()
    definition = next(row.sql for row in made if row.type == "table")
    before = "digest BLOB NOT NULL, \n\tCONSTRAINT pk_entries"
    if definition.count(before) != 1:
        raise RuntimeError("table 'entries' is not as earlier migrations made it")
    after = (
        "digest BLOB NOT NULL, \n\tposition BIGINT NOT NULL, \n\tCONSTRAINT uq_entries_position"
        " UNIQUE (position), \n\tCONSTRAINT pk_entries"
    )
    _, columns = definition.split("(", 1)
    # Triggers of other tables name this one: they are not to be looked at while it is away.
    connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
    connection.exec_driver_sql(f"CREATE TABLE entries_anew ({columns.replace(before, after)}")
    connection.exec_driver_sql(
        "INSERT INTO entries_anew SELECT entries.*, numbered.position FROM entries"  # noqa: S608 - our own names
        f" JOIN ({positions}) AS numbered USING (cohort, sequence) ORDER BY numbered.position"
    )
    connection.exec_driver_sql("DROP TABLE entries")
    connection.exec_driver_sql("ALTER TABLE entries_anew RENAME TO entries")
    connection.exec_driver_sql("PRAGMA legacy_alter_table = OFF")
    for row in made:
        if row.type != "table":
            connection.exec_driver_sql(row.sql)
