"""Verified positions: up to which entry a chain was verified, signed, and when it was last replayed whole."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Every verification until now replayed its whole chain."""
    op.add_column("verifications", sa.Column("replayed_at", sa.DateTime(timezone=True)))
    op.add_column("verifications", sa.Column("position", sa.LargeBinary))
    op.execute("UPDATE verifications SET replayed_at = verified_at")
