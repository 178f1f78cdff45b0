"""Indexes for questions whose time grew with the ledger, and a list of cohorts that were never verified."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_NO_PART = sa.text("period IS NULL AND quota IS NULL")
_CLOSED = sa.text("status <> 'open'")
_BROKEN = sa.text("problem IS NOT NULL")
_NOT_REPLAYED = sa.text("replayed_at IS NULL")
_ALL = (
    "INSERT INTO unverified (cohort, opened_at) SELECT name, opened_at FROM cohorts"
    " WHERE NOT EXISTS (SELECT 1 FROM verifications WHERE verifications.cohort = cohorts.name)"
)
# When, on which table, what is done: also by processes of the version before.
_KEPT = {
    "note_unverified": (
        "INSERT",
        "cohorts",
        "INSERT INTO unverified (cohort, opened_at) VALUES (NEW.name, NEW.opened_at);",
    ),
    "note_verified": ("INSERT", "verifications", "DELETE FROM unverified WHERE cohort = NEW.cohort;"),
    "note_forgotten": (
        "DELETE",
        "verifications",
        "INSERT INTO unverified (cohort, opened_at) SELECT name, opened_at FROM cohorts"
        " WHERE name = OLD.cohort;",
    ),
}


def upgrade() -> None:
    """Create the indexes and the list. On large tables an index takes a minute for ten million rows."""
    op.create_index("ix_rounds_in_order", "rounds", ["cohort", "registration"])
    op.create_index("ix_verifications_verified", "verifications", ["verified_at", "cohort"])
    op.create_index("ix_verifications_replayed", "verifications", ["replayed_at"])
    for name, table, where in (
        ("ix_heads_closed", "heads", _CLOSED),
        ("ix_verifications_broken", "verifications", _BROKEN),
        ("ix_verifications_not_replayed", "verifications", _NOT_REPLAYED),
    ):
        op.create_index(name, table, ["cohort"], sqlite_where=where, postgresql_where=where)
    op.create_table(
        "unverified",
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("cohort", name="pk_unverified"),
    )
    op.create_index("ix_unverified_opened", "unverified", ["opened_at", "cohort"])
    if op.get_bind().dialect.name == "sqlite":
        order = ""  # names are compared by their bytes
        _keep_on_sqlite()
    else:
        order = ' COLLATE "C"'
        _keep_on_postgresql()
    op.create_index("ix_cohorts_in_order", "cohorts", [sa.text(f"name{order}")])
    op.create_index(
        "ix_cohorts_no_parts",
        "cohorts",
        [sa.text(f"name{order}")],
        sqlite_where=_NO_PART,
        postgresql_where=_NO_PART,
    )
    op.create_index("ix_heads_in_order", "heads", [sa.text(f"cohort{order}")])
    op.execute(_ALL)


def _keep_on_sqlite() -> None:
    for name, (moment, table, what) in _KEPT.items():
        op.execute(f"CREATE TRIGGER {name} AFTER {moment} ON {table} FOR EACH ROW BEGIN {what} END")


def _keep_on_postgresql() -> None:
    for name, (moment, table, what) in _KEPT.items():
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {what} RETURN NULL; END $$"
        )
        op.execute(f"CREATE TRIGGER {name} AFTER {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
    op.execute(
        "CREATE FUNCTION note_all_forgotten() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {_ALL} ON CONFLICT DO NOTHING; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER note_all_forgotten AFTER TRUNCATE ON verifications FOR EACH STATEMENT"
        " EXECUTE FUNCTION note_all_forgotten()"
    )
