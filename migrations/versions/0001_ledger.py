"""The schema: cohorts, rounds, chains, what is held; evidence against restores; tokens; webhooks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "v1_0004"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(200)
_DIGEST = sa.LargeBinary(32)
_MOMENT = sa.DateTime(timezone=True)
_ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ROOM_TO_UPDATE = {"fillfactor": "70"}  # of pages whose rows every entry changes, without touching an index
_COUNTS = (
    "openings",
    "admitted",
    "refused",
    "settled",
    "voided",
    "budget_changes",
    "closures",
    "freezes",
    "corrections",
    "incidents",
)
_KINDS = (
    "kind IN ('opened', 'admitted', 'refused', 'settled', 'voided', 'budget_changed', 'closed', 'frozen',"
    " 'corrected', 'incident')"
)


class _Guard(NamedTuple):
    """The changes of a row that a trigger refuses: those of some columns, those that a condition names."""

    table: str
    moment: str
    message: str
    kept: tuple[str, ...] = ()
    refused: str | None = None  # without this and without columns: every change

    def name(self) -> str:
        return f"guard_{self.table}_{self.moment.lower()}"

    def condition(self, differs: str) -> str | None:
        changes = [f"NEW.{column} {differs} OLD.{column}" for column in self.kept]
        return " OR ".join([*changes, *([self.refused] if self.refused else [])]) or None


_GUARDS = (
    _Guard("entries", "UPDATE", "entries are never changed"),
    _Guard("entries", "DELETE", "entries are never removed"),
    _Guard(
        "cohorts",
        "INSERT",
        "a cohort that was lost is not opened again",
        refused="EXISTS (SELECT 1 FROM lost_cohorts WHERE name = NEW.name)",
    ),
    _Guard("cohorts", "DELETE", "cohorts are never removed"),
    _Guard(
        "cohorts",
        "UPDATE",
        "a cohort keeps what it was opened with, unless it is opened again before anything is decided",
        kept=("name", "period", "quota"),
        refused="NEW.opened_at <= OLD.opened_at OR EXISTS (SELECT 1 FROM heads"
        " WHERE heads.cohort = OLD.name AND heads.openings + heads.budget_changes < heads.sequence)",
    ),
    _Guard("rounds", "DELETE", "rounds are never removed"),
    _Guard(
        "rounds",
        "UPDATE",
        "a registered round keeps its content, its cohorts and its outcome",
        kept=(
            *("registration", "round_id", "cohort", "content", "content_digest", "registered_by"),
            *("registered_at", "shared"),
        ),
        refused="(OLD.outcome_sequence IS NOT NULL AND (NEW.outcome_sequence IS NULL"
        " OR NEW.outcome_sequence <> OLD.outcome_sequence))"
        " OR (OLD.closing_sequence IS NOT NULL AND (NEW.closing_sequence IS NULL"
        " OR NEW.closing_sequence <> OLD.closing_sequence))",
    ),
    _Guard("registrations", "UPDATE", "registrations are never changed"),
    _Guard("registrations", "DELETE", "registrations are never removed"),
    _Guard("heads", "DELETE", "heads are never removed"),
    _Guard(
        "heads",
        "UPDATE",
        "a head moves forward, stays as it ended, and changes its budget by an entry that says so",
        kept=("cohort",),
        refused="NEW.sequence <= OLD.sequence"
        " OR (NEW.epsilon_budget <> OLD.epsilon_budget AND NEW.budget_changes = OLD.budget_changes"
        " AND NEW.openings = OLD.openings)"
        " OR (OLD.status <> 'open' AND NEW.status = 'open')"
        " OR (OLD.status = 'overspent' AND NEW.status = 'closed')"
        " OR (OLD.status = 'frozen' AND NEW.status <> 'frozen')",
    ),
    _Guard("accounted_rounds", "UPDATE", "accounted rounds are never changed"),
    _Guard("accounted_rounds", "DELETE", "accounted rounds are never removed"),
    _Guard("privacy_losses", "UPDATE", "stored privacy losses are never changed"),
    _Guard("ledger_identity", "UPDATE", "a ledger keeps its identity"),
    _Guard("ledger_identity", "DELETE", "a ledger keeps its identity"),
    _Guard("reconciliations", "UPDATE", "reconciliations are never changed"),
    _Guard("reconciliations", "DELETE", "reconciliations are never removed"),
    _Guard("lost_cohorts", "UPDATE", "lost cohorts are never changed"),
    _Guard("lost_cohorts", "DELETE", "lost cohorts are never removed"),
    _Guard("permits", "DELETE", "permits are never removed"),
    _Guard(
        "permits",
        "UPDATE",
        "a permit is only signed anew",
        kept=("round_id", "event", "issued_by", "issued_at", "expires_at"),
    ),
    _Guard("receipts", "UPDATE", "receipts are never changed"),
    _Guard("receipts", "DELETE", "receipts are never removed"),
    _Guard("access_tokens", "DELETE", "tokens are never removed"),
    _Guard(
        "access_tokens",
        "UPDATE",
        "a token keeps what it was issued with, and stays revoked",
        kept=("token_id", "name", "secret_digest", "role", "cohorts", "team", "created_by", "created_at"),
        refused="NEW.expires_at > OLD.expires_at"
        " OR (OLD.revoked_at IS NOT NULL AND (NEW.revoked_at IS NULL OR NEW.revoked_at <> OLD.revoked_at))",
    ),
)
_NOT_EMPTIED = (
    *("cohorts", "rounds", "entries", "heads", "holdings", "accounted_rounds", "ledger_identity"),
    *("registrations", "reconciliations", "lost_cohorts", "permits", "receipts"),
)
_ALL_UNVERIFIED = (
    "INSERT INTO unverified (cohort, opened_at) SELECT name, opened_at FROM cohorts"
    " WHERE NOT EXISTS (SELECT 1 FROM verifications WHERE verifications.cohort = cohorts.name)"
)
# Lists that triggers keep: after which change, of which table, of which rows, and what is done.
_KEPT_LISTS = {
    "note_registration": (
        "INSERT",
        "rounds",
        "WHEN (NEW.outcome_sequence IS NULL)",
        "INSERT INTO registrations (cohort, round_id, content_digest)"
        " VALUES (NEW.cohort, NEW.round_id, NEW.content_digest);",
    ),
    "note_unverified": (
        "INSERT",
        "cohorts",
        "",
        "INSERT INTO unverified (cohort, opened_at) VALUES (NEW.name, NEW.opened_at);",
    ),
    "note_verified": ("INSERT", "verifications", "", "DELETE FROM unverified WHERE cohort = NEW.cohort;"),
    "note_forgotten": (
        "DELETE",
        "verifications",
        "",
        "INSERT INTO unverified (cohort, opened_at) SELECT name, opened_at FROM cohorts"
        " WHERE name = OLD.cohort;",
    ),
}


def upgrade() -> None:
    """Create the tables, then the triggers that guard them and those that keep lists."""
    _create_cohorts()
    _create_rounds()
    _create_entries()
    _create_heads()
    _create_holdings()
    _create_identity()
    _create_losses_of_entries()
    _create_verifications()
    _create_access()
    _create_permits()
    _create_webhooks()
    if op.get_bind().dialect.name == "sqlite":
        _add_triggers_of_sqlite()
    else:
        _number_entries()
        _add_triggers_of_postgresql()


def _create_cohorts() -> None:
    op.create_table(
        "cohorts",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("population", sa.BigInteger, nullable=False),
        sa.Column("delta_budget", sa.Double, nullable=False),
        sa.Column("policy", sa.String(20), nullable=False),
        sa.Column("opened_at", _MOMENT, nullable=False),
        sa.Column("labels", sa.LargeBinary),
        sa.Column("windows", sa.LargeBinary),
        sa.Column("period", sa.LargeBinary),
        sa.Column("quota", sa.LargeBinary),
        sa.Column("ceiling", sa.LargeBinary),
        sa.Column("local_budget", sa.LargeBinary),
        sa.Column("rounds_per_user", sa.LargeBinary),
        sa.PrimaryKeyConstraint("name", name="pk_cohorts"),
        sa.CheckConstraint("population >= 1", name=op.f("ck_cohorts_population")),
        sa.CheckConstraint("delta_budget > 0 AND delta_budget <= 1", name=op.f("ck_cohorts_delta_budget")),
    )
    _create_index("ix_cohorts_quota", "cohorts", ["name"], where="quota IS NOT NULL")
    op.create_index("ix_cohorts_in_order", "cohorts", [_in_order("name")])
    _create_index(
        "ix_cohorts_no_parts", "cohorts", [_in_order("name")], where="period IS NULL AND quota IS NULL"
    )


def _create_rounds() -> None:
    op.create_table(
        "rounds",
        sa.Column("registration", _ROW_NUMBER, autoincrement=True, nullable=False),
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("content_digest", _DIGEST, nullable=False),
        sa.Column("registered_by", _NAME, nullable=False),
        sa.Column("registered_at", _MOMENT, nullable=False),
        sa.Column("queued_at", _MOMENT),
        sa.Column("outcome_sequence", sa.BigInteger),
        sa.Column("closing_sequence", sa.BigInteger),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("last_error", sa.Text),
        sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.PrimaryKeyConstraint("registration", name="pk_rounds"),
        sa.CheckConstraint("length(content_digest) = 32", name=op.f("ck_rounds_content_digest")),
        sa.CheckConstraint(
            "closing_sequence IS NULL OR closing_sequence > outcome_sequence",
            name=op.f("ck_rounds_closing_after_outcome"),
        ),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_rounds_attempts")),
        sqlite_autoincrement=True,
    )
    one_row = sa.text("(CASE WHEN shared THEN cohort ELSE '' END)")
    op.create_index("uq_rounds_round", "rounds", ["round_id", one_row], unique=True)
    in_order = ["cohort", "registration"]
    _create_index("ix_rounds_pending", "rounds", in_order, where="outcome_sequence IS NULL")
    _create_index("ix_rounds_in_order", "rounds", in_order, where="registration > 0")
    op.create_table(
        "registrations",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("content_digest", _DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("cohort", "round_id", name="pk_registrations"),
    )


def _create_entries() -> None:
    op.create_table(
        "entries",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("sequence", sa.BigInteger, autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("round_id", _NAME),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("previous_digest", _DIGEST, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("cohort", "sequence", name="pk_entries"),
        sa.UniqueConstraint("position", name="uq_entries_position"),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_entries_sequence")),
        sa.CheckConstraint(_KINDS, name=op.f("ck_entries_kind")),
        sa.CheckConstraint(
            "(kind IN ('opened', 'budget_changed', 'closed', 'frozen')) = (round_id IS NULL)",
            name=op.f("ck_entries_about_a_round"),
        ),
        sa.CheckConstraint("kind = 'opened' OR sequence > 1", name=op.f("ck_entries_opened_first")),
        sa.CheckConstraint(
            "length(digest) = 32 AND length(previous_digest) = 32", name=op.f("ck_entries_digests")
        ),
    )
    _create_index("ix_entries_opened", "entries", ["cohort", "sequence"], where="kind = 'opened'")
    _create_index("ix_entries_refused", "entries", ["cohort", "sequence"], where="kind = 'refused'")
    _create_index(
        "ix_entries_told", "entries", ["round_id", "sequence"], where="kind IN ('corrected', 'incident')"
    )
    _create_index(
        "uq_entries_one_incident", "entries", ["round_id", "cohort"], where="kind = 'incident'", unique=True
    )


def _create_heads() -> None:
    op.create_table(
        "heads",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("epsilon_budget", sa.Double, nullable=False),
        sa.Column("used_share", sa.Double, nullable=False),
        *(
            sa.Column(
                count,
                sa.BigInteger,
                nullable=False,
                server_default=sa.text("1" if count == "openings" else "0"),
            )
            for count in _COUNTS
        ),
        sa.PrimaryKeyConstraint("cohort", name="pk_heads"),
        sa.CheckConstraint(
            "status IN ('open', 'closed', 'overspent', 'frozen')", name=op.f("ck_heads_status")
        ),
        sa.CheckConstraint("epsilon_budget > 0", name=op.f("ck_heads_epsilon_budget")),
        sa.CheckConstraint("used_share >= 0", name=op.f("ck_heads_used_share")),
        sa.CheckConstraint("sequence = " + " + ".join(_COUNTS), name=op.f("ck_heads_counted")),
        postgresql_with=_ROOM_TO_UPDATE,
    )
    op.create_index("ix_heads_in_order", "heads", [_in_order("cohort")])
    _create_index("ix_heads_closed", "heads", ["cohort"], where="status <> 'open'")


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
        sa.CheckConstraint("count >= 0", name=op.f("ck_holdings_count")),
        sa.CheckConstraint("local_count >= 0", name=op.f("ck_holdings_local_count")),
        postgresql_with=_ROOM_TO_UPDATE,
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


def _create_identity() -> None:
    identity = op.create_table(
        "ledger_identity",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("ledger_id", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_ledger_identity"),
        sa.CheckConstraint("number = 1", name=op.f("ck_ledger_identity_one_row")),
        sa.CheckConstraint("length(ledger_id) = 32", name=op.f("ck_ledger_identity_ledger_id")),
    )
    op.bulk_insert(identity, [{"number": 1, "ledger_id": uuid.uuid4().hex}])


def _create_losses_of_entries() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("checkpoint_digest", _DIGEST, nullable=False),
        sa.Column("checkpoint", sa.LargeBinary, nullable=False),
        sa.Column("nothing_later", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", _NAME, nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_reconciliations"),
        sa.CheckConstraint("number >= 1", name=op.f("ck_reconciliations_number")),
        sa.CheckConstraint(
            "length(checkpoint_digest) = 32", name=op.f("ck_reconciliations_checkpoint_digest")
        ),
    )
    op.create_table(
        "lost_cohorts",
        sa.Column("name", _NAME, nullable=False),
        sa.Column("reconciliation", sa.Integer, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_lost_cohorts"),
        sa.ForeignKeyConstraint(
            ["reconciliation"], ["reconciliations.number"], name="fk_lost_cohorts_reconciliation"
        ),
        sa.CheckConstraint("sequence >= 1", name=op.f("ck_lost_cohorts_sequence")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_lost_cohorts_digest")),
    )


def _create_verifications() -> None:
    op.create_table(
        "verifications",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("verified_at", _MOMENT, nullable=False),
        sa.Column("head_sequence", sa.BigInteger, nullable=False),
        sa.Column("head_digest", sa.String(64), nullable=False),
        sa.Column("numbers_checked", sa.Integer, nullable=False),
        sa.Column("problem", sa.Text),
        sa.PrimaryKeyConstraint("cohort", name="pk_verifications"),
        sa.CheckConstraint("head_sequence >= 0", name=op.f("ck_verifications_head_sequence")),
    )
    op.create_index("ix_verifications_verified", "verifications", ["verified_at", "cohort"])
    _create_index("ix_verifications_broken", "verifications", ["cohort"], where="problem IS NOT NULL")
    op.create_table(
        "unverified",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("opened_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("cohort", name="pk_unverified"),
    )
    op.create_index("ix_unverified_opened", "unverified", ["opened_at", "cohort"])


def _create_access() -> None:
    op.create_table(
        "access_tokens",
        sa.Column("token_id", sa.String(16), nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("secret_digest", _DIGEST, nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("cohorts", sa.LargeBinary),
        sa.Column("created_by", _NAME, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.Column("revoked_at", _MOMENT),
        sa.Column("team", sa.String(60)),
        sa.PrimaryKeyConstraint("token_id", name="pk_access_tokens"),
        sa.CheckConstraint(
            "role IN ('admin', 'registrar', 'reader', 'auditor')", name=op.f("ck_access_tokens_role")
        ),
        sa.CheckConstraint("length(secret_digest) = 32", name=op.f("ck_access_tokens_secret_digest")),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_access_tokens_expires_after_creation")),
    )
    op.create_index("ix_access_tokens_created_at", "access_tokens", ["created_at"])
    op.create_table(
        "ended_sessions",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_ended_sessions"),
    )
    op.create_index("ix_ended_sessions_expires_at", "ended_sessions", ["expires_at"])


def _create_permits() -> None:
    op.create_table(
        "permits",
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("releaser", _NAME),
        sa.Column("issued_by", _NAME, nullable=False),
        sa.Column("issued_at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("round_id", name="pk_permits"),
    )
    op.create_index("ix_permits_expires_at", "permits", ["expires_at"])
    op.create_table(
        "receipts",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("keys", sa.Text, nullable=False),
        sa.Column("recorded_by", _NAME, nullable=False),
        sa.Column("recorded_at", _MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_receipts"),
    )
    op.create_index("ix_receipts_round_id", "receipts", ["round_id"])
    op.create_index("ix_receipts_cohort", "receipts", ["cohort", "digest"])


def _create_webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("subscription_id", sa.String(16), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("filters", sa.LargeBinary, nullable=False),
        sa.Column("secret_digest", _DIGEST, nullable=False),
        sa.Column("created_by", _NAME, nullable=False),
        sa.Column("created_at", _MOMENT, nullable=False),
        sa.Column("cursor", sa.String(40)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt_at", _MOMENT),
        sa.Column("failing_since", _MOMENT),
        sa.Column("last_error", sa.Text),
        sa.Column("locked_until", _MOMENT),
        sa.PrimaryKeyConstraint("subscription_id", name="pk_webhooks"),
        sa.CheckConstraint("length(secret_digest) = 32", name=op.f("ck_webhooks_secret_digest")),
        sa.CheckConstraint("attempts >= 0", name=op.f("ck_webhooks_attempts")),
    )


def _create_index(
    name: str, table: str, columns: Sequence[str | sa.TextClause], *, where: str, unique: bool = False
) -> None:
    rows = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=rows, postgresql_where=rows)


def _in_order(column: str) -> sa.TextClause:
    """Return a column by the code points of its text, as SQLite compares it anyway."""
    order = "" if op.get_bind().dialect.name == "sqlite" else ' COLLATE "C"'
    return sa.text(f"{column}{order}")


def _number_entries() -> None:
    """Let a sequence give each entry its place in the feed of all chains."""
    op.execute("CREATE SEQUENCE entries_position_seq OWNED BY entries.position")
    op.execute("ALTER TABLE entries ALTER COLUMN position SET DEFAULT nextval('entries_position_seq')")


def _add_triggers_of_sqlite() -> None:
    for guard in _GUARDS:
        condition = guard.condition("IS NOT")
        when = f"WHEN {condition}" if condition else ""
        op.execute(
            f"CREATE TRIGGER {guard.name()} BEFORE {guard.moment} ON {guard.table}"
            f" FOR EACH ROW {when} BEGIN SELECT RAISE(ABORT, '{guard.message}'); END"
        )
    for name, (moment, table, which, what) in _KEPT_LISTS.items():
        op.execute(f"CREATE TRIGGER {name} AFTER {moment} ON {table} FOR EACH ROW {which} BEGIN {what} END")


def _add_triggers_of_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION shuffle_ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$"
    )
    for guard in _GUARDS:
        condition = guard.condition("IS DISTINCT FROM")
        begun = f"BEFORE {guard.moment} ON {guard.table} FOR EACH ROW"
        if condition and "SELECT" in condition:  # a condition of a trigger reads no table
            refuse = f"RAISE EXCEPTION '{guard.message}' USING ERRCODE = 'restrict_violation';"
            _add_trigger_of_postgresql(
                guard.name(), begun, f"IF {condition} THEN {refuse} END IF; RETURN NEW;"
            )
            continue
        when = f"WHEN ({condition})" if condition else ""
        op.execute(
            f"CREATE TRIGGER {guard.name()} {begun} {when}"
            f" EXECUTE FUNCTION shuffle_ledger_refuse('{guard.message}')"
        )
    for name, (moment, table, which, what) in _KEPT_LISTS.items():
        _add_trigger_of_postgresql(
            name, f"AFTER {moment} ON {table} FOR EACH ROW {which}", f"{what} RETURN NULL;"
        )
    _add_trigger_of_postgresql(
        "note_all_forgotten",
        "AFTER TRUNCATE ON verifications FOR EACH STATEMENT",
        f"{_ALL_UNVERIFIED} ON CONFLICT DO NOTHING; RETURN NULL;",
    )
    for table in _NOT_EMPTIED:
        op.execute(
            f"CREATE TRIGGER guard_{table}_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
            f" EXECUTE FUNCTION shuffle_ledger_refuse('{table} are never emptied')"
        )


def _add_trigger_of_postgresql(name: str, when: str, what: str) -> None:
    op.execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what} END $$")
    op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {name}()")
