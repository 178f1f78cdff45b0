"""Cohorts whose own budget refuses and promises nothing: only their windows do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_NAME = "guard_0012_cohorts_windows_only_update"
_MESSAGE = "a cohort keeps what it was opened with"


def upgrade() -> None:
    """Add the column, which never changes."""
    op.add_column("cohorts", sa.Column("windows_only", sa.LargeBinary))
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            f"CREATE TRIGGER {_NAME} BEFORE UPDATE ON cohorts FOR EACH ROW"
            f" WHEN NEW.windows_only IS NOT OLD.windows_only BEGIN SELECT RAISE(ABORT, '{_MESSAGE}'); END"
        )
        return
    op.execute(
        f"CREATE FUNCTION {_NAME}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF NEW.windows_only IS DISTINCT FROM OLD.windows_only THEN RAISE EXCEPTION '{_MESSAGE}'"
        " USING ERRCODE = 'restrict_violation'; END IF; RETURN NEW; END $$"
    )
    op.execute(f"CREATE TRIGGER {_NAME} BEFORE UPDATE ON cohorts FOR EACH ROW EXECUTE FUNCTION {_NAME}()")
