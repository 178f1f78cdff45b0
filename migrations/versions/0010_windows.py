"""Windows of cohorts, which have a budget for every period, and chains of their periods."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_MESSAGE = "a cohort keeps what it was opened with"
_COLUMNS = ("windows", "period")


def upgrade() -> None:
    """Add both columns, which never change."""
    for column in _COLUMNS:
        op.add_column("cohorts", sa.Column(column, sa.LargeBinary))
        _guard(column)


def _guard(column: str) -> None:
    name = f"guard_0010_cohorts_{column}_update"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON cohorts FOR EACH ROW"
            f" WHEN NEW.{column} IS NOT OLD.{column} BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.{column} IS DISTINCT FROM OLD.{column} THEN RAISE EXCEPTION '{_MESSAGE}'"
        " USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE UPDATE ON cohorts FOR EACH ROW EXECUTE FUNCTION {name}()")
