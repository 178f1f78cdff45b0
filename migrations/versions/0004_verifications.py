"""The last result of the scheduled verification, cohort by cohort."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; nothing was verified on a schedule before."""
    op.create_table(
        "verifications",
        sa.Column("cohort", sa.String(200), nullable=False),
        sa.Column("verified_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("head_sequence", sa.BigInteger(), nullable=False),
        sa.Column("head_digest", sa.String(64), nullable=False),
        sa.Column("numbers_checked", sa.Integer(), nullable=False),
        sa.Column("problem", sa.Text()),
        sa.PrimaryKeyConstraint("cohort", name="pk_verifications"),
        sa.CheckConstraint("head_sequence >= 0", name=op.f("ck_verifications_head_sequence")),
    )
