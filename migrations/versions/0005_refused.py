"""An index of what was refused in place of one of every kind.

The old one was kept up by every decision, listed nothing else that is asked for, and tempted the planner to
read a whole chain where one entry was looked for.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_REFUSED = sa.text("kind = 'refused'")


def upgrade() -> None:
    """Replace the index."""
    op.create_index(
        "ix_entries_refused",
        "entries",
        ["cohort", "sequence"],
        sqlite_where=_REFUSED,
        postgresql_where=_REFUSED,
    )
    op.drop_index("ix_entries_cohort_kind", "entries")
