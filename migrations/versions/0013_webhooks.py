"""Webhooks: subscriptions, messages that wait or were given up, and lasting states that were reported."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NAME = sa.String(200)
_MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables; nothing refers to them that was there before."""
    op.create_table(
        "webhooks",
        sa.Column("subscription_id", sa.String(16), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("filters", sa.LargeBinary, nullable=False),
        sa.Column("secret_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("created_by", _NAME, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("cursor", sa.String(40)),
        sa.Column("done_of_next", sa.Integer, nullable=False),
        sa.Column("trying", sa.String(100)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", _MOMENT),
        sa.Column("failing_since", _MOMENT),
        sa.Column("last_error", sa.Text),
        sa.Column("claim", sa.String(32)),
        sa.Column("claimed_until", _MOMENT),
        sa.PrimaryKeyConstraint("subscription_id", name="pk_webhooks"),
        sa.CheckConstraint("length(secret_digest) = 32", name=op.f("ck_webhooks_secret_digest")),
        sa.CheckConstraint("attempts >= 0 AND done_of_next >= 0", name=op.f("ck_webhooks_counts")),
    )
    op.create_table(
        "webhook_letters",
        sa.Column("webhook_id", sa.String(100), nullable=False),
        sa.Column("subscription_id", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject", _NAME, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("written_at", _MOMENT, nullable=False),
        sa.Column("last_error", sa.Text),
        sa.PrimaryKeyConstraint("webhook_id", name="pk_webhook_letters"),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["webhooks.subscription_id"],
            name="fk_webhook_letters_subscription_id_webhooks",
        ),
        sa.CheckConstraint("status IN ('waiting', 'dead')", name=op.f("ck_webhook_letters_status")),
    )
    op.create_index(
        "ix_webhook_letters_subscription", "webhook_letters", ["subscription_id", "status", "written_at"]
    )
    op.create_table(
        "webhook_states",
        sa.Column("subscription_id", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("subject", _NAME, nullable=False),
        sa.PrimaryKeyConstraint("subscription_id", "kind", "subject", name="pk_webhook_states"),
        sa.ForeignKeyConstraint(
            ["subscription_id"],
            ["webhooks.subscription_id"],
            name="fk_webhook_states_subscription_id_webhooks",
        ),
    )
