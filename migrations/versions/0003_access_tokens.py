"""Tokens for the HTTP API: their role, their lifetime, and the digest of their secret, which is not
stored."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NAME = sa.String(200)
_CHANGED = (
    "NEW.token_id <> OLD.token_id OR NEW.name <> OLD.name OR NEW.secret_digest <> OLD.secret_digest"
    " OR NEW.role <> OLD.role OR NEW.created_by <> OLD.created_by OR NEW.created_at <> OLD.created_at"
    " OR NEW.expires_at > OLD.expires_at"
    " OR (NEW.cohorts IS NULL) <> (OLD.cohorts IS NULL) OR NEW.cohorts <> OLD.cohorts"
    " OR (OLD.revoked_at IS NOT NULL AND (NEW.revoked_at IS NULL OR NEW.revoked_at <> OLD.revoked_at))"
)
# (moment, condition under which it is refused, what the database then says)
_REFUSED = (
    ("UPDATE", _CHANGED, "a token keeps what it was issued with, and stays revoked"),
    ("DELETE", None, "tokens are never removed"),
)


def upgrade() -> None:
    """Create the table, then the triggers that guard it."""
    op.create_table(
        "access_tokens",
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("secret_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("cohorts", sa.LargeBinary),
        sa.Column("created_by", _NAME, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("token_id", name="pk_access_tokens"),
        sa.CheckConstraint(
            "role IN ('admin', 'registrar', 'reader', 'auditor')", name=op.f("ck_access_tokens_role")
        ),
        sa.CheckConstraint("length(secret_digest) = 32", name=op.f("ck_access_tokens_secret_digest")),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_access_tokens_expires_after_creation")),
    )
    op.create_index("ix_access_tokens_created_at", "access_tokens", ["created_at"])
    sqlite = op.get_bind().dialect.name == "sqlite"
    for moment, condition, message in _REFUSED:
        name = f"guard_access_tokens_{moment.lower()}"
        if sqlite:
            when = f"WHEN {condition}" if condition else ""
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {moment} ON access_tokens"
                f" FOR EACH ROW {when} BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
            continue
        result = "OLD" if moment == "DELETE" else "NEW"
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {condition or 'TRUE'}"
            f" THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation'; END IF;"
            f" RETURN {result}; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {moment} ON access_tokens FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
