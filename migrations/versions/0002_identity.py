"""Which ledger this is: a random name, made once, that checkpoints carry."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table with its one row, and guard it."""
    identity = op.create_table(
        "ledger_identity",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("ledger_id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_ledger_identity"),
        sa.CheckConstraint("number = 1", name=op.f("ck_ledger_identity_one_row")),
        sa.CheckConstraint("length(ledger_id) = 32", name=op.f("ck_ledger_identity_ledger_id")),
    )
    op.bulk_insert(identity, [{"number": 1, "ledger_id": uuid.uuid4().hex}])
    message = "a ledger keeps its identity"
    for moment in ("UPDATE", "DELETE"):
        name = f"guard_ledger_identity_{moment.lower()}"
        if op.get_bind().dialect.name == "sqlite":
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {moment} ON ledger_identity"
                f" FOR EACH ROW BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
        else:
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {moment} ON ledger_identity FOR EACH ROW"
                f" EXECUTE FUNCTION shuffle_ledger_refuse('{message}')"
            )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER guard_ledger_identity_truncate BEFORE TRUNCATE ON ledger_identity"
            f" FOR EACH STATEMENT EXECUTE FUNCTION shuffle_ledger_refuse('{message}')"
        )
