"""The ledger's first schema: cohorts, rounds, the chain, what is held, and stored privacy losses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(200)
_DIGEST = sa.LargeBinary(32)
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PENDING = sa.text("outcome_sequence IS NULL")
_OUTCOME = sa.text("kind IN ('admitted', 'refused')")
_CLOSING = sa.text("kind IN ('settled', 'voided')")
_KINDS = "kind IN ('opened', 'admitted', 'refused', 'settled', 'voided', 'budget_changed')"

# (table, moment, condition under which it is refused, what the database then says)
_REFUSED = (
    ("entries", "UPDATE", None, "entries are never changed"),
    ("entries", "DELETE", None, "entries are never removed"),
    (
        "entries",
        "INSERT",
        "NEW.sequence > 1 AND NOT EXISTS (SELECT 1 FROM entries WHERE cohort = NEW.cohort"
        " AND sequence = NEW.sequence - 1 AND digest = NEW.previous_digest)",
        "an entry continues the chain of its cohort",
    ),
    ("cohorts", "DELETE", None, "cohorts are never removed"),
    (
        "cohorts",
        "UPDATE",
        "NEW.name <> OLD.name OR NEW.population <> OLD.population OR NEW.policy <> OLD.policy"
        " OR NEW.opened_at <> OLD.opened_at",
        "a cohort keeps what it was opened with",
    ),
    ("rounds", "DELETE", None, "rounds are never removed"),
    (
        "rounds",
        "UPDATE",
        "NEW.registration <> OLD.registration OR NEW.round_id <> OLD.round_id OR NEW.cohort <> OLD.cohort"
        " OR NEW.content <> OLD.content OR NEW.content_digest <> OLD.content_digest"
        " OR NEW.registered_by <> OLD.registered_by OR NEW.registered_at <> OLD.registered_at"
        " OR (OLD.outcome_sequence IS NOT NULL AND (NEW.outcome_sequence IS NULL"
        " OR NEW.outcome_sequence <> OLD.outcome_sequence))"
        " OR (OLD.closing_sequence IS NOT NULL AND (NEW.closing_sequence IS NULL"
        " OR NEW.closing_sequence <> OLD.closing_sequence))",
        "a registered round keeps its content and its outcome",
    ),
    ("heads", "DELETE", None, "heads are never removed"),
    (
        "heads",
        "UPDATE",
        "NEW.cohort <> OLD.cohort OR NEW.sequence <> OLD.sequence + 1"
        " OR (OLD.status = 'overspent' AND NEW.status <> 'overspent')",
        "a head moves one entry at a time and stays overspent",
    ),
    ("accounted_rounds", "UPDATE", None, "accounted rounds are never changed"),
    ("accounted_rounds", "DELETE", None, "accounted rounds are never removed"),
    ("privacy_losses", "UPDATE", None, "stored privacy losses are never changed"),
)
_NOT_EMPTIED = ("cohorts", "rounds", "entries", "heads", "holdings", "accounted_rounds")


def upgrade() -> None:
    """Create the tables, then the triggers that guard them."""
    _create_cohorts_and_rounds()
    _create_chain()
    _create_holdings()
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    else:
        _guard_postgresql()


def _create_cohorts_and_rounds() -> None:
    op.create_table(
        "cohorts",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("population", sa.BigInteger, nullable=False),
        sa.Column("epsilon_budget", sa.Double, nullable=False),
        sa.Column("delta_budget", sa.Double, nullable=False),
        sa.Column("policy", sa.String(20), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_cohorts"),
        sa.CheckConstraint("population >= 1", name=op.f("ck_cohorts_population")),
        sa.CheckConstraint("epsilon_budget > 0", name=op.f("ck_cohorts_epsilon_budget")),
        sa.CheckConstraint("delta_budget > 0 AND delta_budget < 1", name=op.f("ck_cohorts_delta_budget")),
    )
    op.create_table(
        "rounds",
        sa.Column("registration", _ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("content_digest", _DIGEST, nullable=False),
        sa.Column("registered_by", _NAME, nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True)),
        sa.Column("outcome_sequence", sa.BigInteger),
        sa.Column("closing_sequence", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("last_error", sa.Text),
        sa.PrimaryKeyConstraint("registration", name="pk_rounds"),
        sa.UniqueConstraint("round_id", name="uq_rounds_round_id"),
        sa.UniqueConstraint("cohort", "round_id", name="uq_rounds_cohort_round_id"),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.name"], name="fk_rounds_cohort"),
        sa.CheckConstraint("length(content_digest) = 32", name=op.f("ck_rounds_content_digest")),
        sa.CheckConstraint(
            "closing_sequence IS NULL OR closing_sequence > outcome_sequence",
            name=op.f("ck_rounds_closing_after_outcome"),
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_rounds_attempts")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_rounds_pending",
        "rounds",
        ["cohort", "registration"],
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )


def _create_chain() -> None:
    op.create_table(
        "entries",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("sequence", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("round_id", _NAME),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("previous_digest", _DIGEST, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("cohort", "sequence", name="pk_entries"),
        sa.UniqueConstraint("cohort", "sequence", "digest", name="uq_entries_cohort_sequence_digest"),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.name"], name="fk_entries_cohort"),
        sa.ForeignKeyConstraint(
            ["cohort", "round_id"], ["rounds.cohort", "rounds.round_id"], name="fk_entries_cohort_round_id"
        ),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_entries_sequence")),
        sa.CheckConstraint(_KINDS, name=op.f("ck_entries_kind")),
        sa.CheckConstraint(
            "(kind IN ('opened', 'budget_changed')) = (round_id IS NULL)",
            name=op.f("ck_entries_about_a_round"),
        ),
        sa.CheckConstraint("(kind = 'opened') = (sequence = 1)", name=op.f("ck_entries_opened_first")),
        sa.CheckConstraint(
            "length(digest) = 32 AND length(previous_digest) = 32", name=op.f("ck_entries_digests")
        ),
    )
    op.create_index("ix_entries_cohort_kind", "entries", ["cohort", "kind"])
    for name, condition in (("uq_entries_one_outcome", _OUTCOME), ("uq_entries_one_closing", _CLOSING)):
        op.create_index(
            name, "entries", ["round_id"], unique=True, sqlite_where=condition, postgresql_where=condition
        )
    op.create_table(
        "heads",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.PrimaryKeyConstraint("cohort", name="pk_heads"),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.name"], name="fk_heads_cohort"),
        sa.ForeignKeyConstraint(
            ["cohort", "sequence", "digest"],
            ["entries.cohort", "entries.sequence", "entries.digest"],
            name="fk_heads_cohort_sequence_digest",
            deferrable=True,
            initially="DEFERRED",
        ),
        sa.CheckConstraint("status IN ('open', 'overspent')", name=op.f("ck_heads_status")),
    )


def _create_holdings() -> None:
    op.create_table(
        "accounted_rounds",
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("parameters", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_accounted_rounds"),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_accounted_rounds_digest")),
    )
    op.create_table(
        "holdings",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("accounted_digest", _DIGEST, nullable=False),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("local_count", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("cohort", "accounted_digest", name="pk_holdings"),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.name"], name="fk_holdings_cohort"),
        sa.ForeignKeyConstraint(
            ["accounted_digest"], ["accounted_rounds.digest"], name="fk_holdings_accounted_digest"
        ),
        sa.CheckConstraint("count >= 0", name=op.f("ck_holdings_count")),
        sa.CheckConstraint("local_count >= 0", name=op.f("ck_holdings_local_count")),
    )
    op.create_table(
        "privacy_losses",
        sa.Column("key", _DIGEST, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("blob", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_privacy_losses"),
        sa.CheckConstraint(
            "length(key) = 32 AND length(digest) = 32", name=op.f("ck_privacy_losses_digests")
        ),
    )


def _guard_sqlite() -> None:
    for number, (table, moment, condition, message) in enumerate(_REFUSED):
        when = f"WHEN {condition}" if condition else ""
        op.execute(
            f"CREATE TRIGGER guard_{number:02}_{table}_{moment.lower()} BEFORE {moment} ON {table}"
            f" FOR EACH ROW {when} BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION shuffle_ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$"
    )
    for number, (table, moment, condition, message) in enumerate(_REFUSED):
        body = (
            f"IF {condition or 'TRUE'} THEN RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation';"
        )
        name = f"guard_{number:02}_{table}_{moment.lower()}"
        result = "OLD" if moment == "DELETE" else "NEW"
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body} END IF; RETURN {result}; END $$"
        )
        op.execute(f"CREATE TRIGGER {name} BEFORE {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")
    for table in _NOT_EMPTIED:
        op.execute(
            f"CREATE TRIGGER guard_{table}_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
            f" EXECUTE FUNCTION shuffle_ledger_refuse('{table} are never emptied')"
        )
