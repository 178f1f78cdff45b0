"""Quotas, ceilings and local budgets of cohorts, and teams of tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# (table, column, its type, what the database says to a change)
_COLUMNS = (
    ("cohorts", "quota", sa.LargeBinary, "a cohort keeps what it was opened with"),
    ("cohorts", "ceiling", sa.LargeBinary, "a cohort keeps what it was opened with"),
    ("cohorts", "local_budget", sa.LargeBinary, "a cohort keeps what it was opened with"),
    ("cohorts", "rounds_per_user", sa.LargeBinary, "a cohort keeps what it was opened with"),
    ("access_tokens", "team", sa.String(60), "a token keeps what it was issued with"),
)


def upgrade() -> None:
    """Add the columns, which never change."""
    for table, column, kind, message in _COLUMNS:
        op.add_column(table, sa.Column(column, kind))
        _guard(table, column, message)
    op.create_index(
        "ix_cohorts_quota",
        "cohorts",
        ["name"],
        sqlite_where=sa.text("quota IS NOT NULL"),
        postgresql_where=sa.text("quota IS NOT NULL"),
    )


def _guard(table: str, column: str, message: str) -> None:
    name = f"guard_0011_{table}_{column}_update"
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
