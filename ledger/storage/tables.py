"""The tables. Migrations create them; `storage.store` alone reads and writes them.

Triggers (see the migrations) add what a table definition cannot say: entries never change or vanish, a head
moves forward only, a registered round keeps its content. Nothing here repeats what digests and primary keys
guarantee: what an admission writes costs five index rows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

from shuffle_ledger.ledger.errors import Damaged

SCHEMA_REVISION = "v1_0004"  # the migration this code was written for

NAME = String(200)
DIGEST = LargeBinary(32)
# SQLite numbers rows only in a column declared INTEGER, which holds 64 bits there.
ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


def _index_of(rows: str, name: str, *columns: str, unique: bool = False) -> Index:
    """Return an index of those rows that a condition of SQL is true of, which the migration states for each
    database: as arguments of a dialect, conditions would import both dialects wherever a table is used."""
    return Index(name, *columns, unique=unique, info={"rows": rows})


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime on every database; SQLite stores it without its zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Refuse naive values and store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Return an aware UTC datetime."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], datetime | None]:
        """Read as the database's driver does; raise Damaged for what is no moment, which SQLite can hold."""
        read = super().result_processor(dialect, coltype)

        def moment(stored: Any) -> datetime | None:
            try:
                return read(stored) if read is not None else stored
            except (AttributeError, TypeError, ValueError) as error:
                raise Damaged(f"a row says {stored!r:.100} where a moment belongs: it was changed") from error

        return moment


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row: which ledger this is. Checkpoints name it, so that one ledger's is not taken for another's.
ledger_identity = Table(
    "ledger_identity",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("ledger_id", String(32), nullable=False),  # random, hexadecimal; made with the table
    CheckConstraint("number = 1", name="one_row"),
    CheckConstraint("length(ledger_id) = 32", name="ledger_id"),
)

NO_PART = "period IS NULL AND quota IS NULL"  # of another cohort
# True of every round: the index for lists is used only where a statement says it. By old statistics, planners
# would else use it for decisions too, and read all rounds of a cohort for each.
LISTED = "registration > 0"
ONE_ROW = "(CASE WHEN shared THEN cohort ELSE '' END)"

cohorts = Table(
    "cohorts",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("population", BigInteger, nullable=False),
    Column("delta_budget", Double, nullable=False),
    Column("policy", String(20), nullable=False),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("labels", LargeBinary),  # canonical bytes of a mapping; none: it has no labels
    Column("windows", LargeBinary),  # canonical bytes of a list; none: it has no windows
    Column("period", LargeBinary),  # canonical bytes of a mapping, of a period of a window
    Column("quota", LargeBinary),  # canonical bytes of a mapping, of a team's quota
    Column("ceiling", LargeBinary),  # canonical bytes of a number: the most that epsilon may be raised to
    Column("local_budget", LargeBinary),  # canonical bytes of a number, for the sum of epsilon0
    Column("rounds_per_user", LargeBinary),  # canonical bytes of a number: a user takes part in no more
    CheckConstraint("population >= 1", name="population"),
    CheckConstraint("delta_budget > 0 AND delta_budget <= 1", name="delta_budget"),
    _index_of("quota IS NOT NULL", "ix_cohorts_quota", "name"),
    # Pages are in the order of code points: on PostgreSQL the migration gives this index the collation "C".
    Index("ix_cohorts_in_order", "name"),
    _index_of(NO_PART, "ix_cohorts_no_parts", "name"),
)

# A row without an outcome is the outbox: whatever happens to a message, the round is still found here.
# A round of several cohorts has a row for each of them; the first one's is not `shared`.
rounds = Table(
    "rounds",
    metadata,
    Column("registration", ROW_NUMBER, primary_key=True, autoincrement=True),  # the order of registration
    Column("round_id", NAME, nullable=False),
    Column("cohort", NAME, nullable=False),
    Column("content", LargeBinary, nullable=False),  # canonical bytes of the request
    Column("content_digest", DIGEST, nullable=False),
    Column("registered_by", NAME, nullable=False),
    Column("registered_at", UtcDateTime, nullable=False),
    Column("queued_at", UtcDateTime),  # when the sweeper last queued it again
    Column("outcome_sequence", BigInteger),  # of the entry that admitted or refused it, or tells the incident
    Column("closing_sequence", BigInteger),  # of the entry that settled or voided it
    Column("attempts", Integer, nullable=False, server_default=text("0")),  # failed attempts to decide
    Column("last_error", Text),
    # True: another row of the same round, for the first cohort of its audience, holds the request.
    Column("shared", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("length(content_digest) = 32", name="content_digest"),
    CheckConstraint(
        "closing_sequence IS NULL OR closing_sequence > outcome_sequence", name="closing_after_outcome"
    ),
    CheckConstraint("attempts >= 0", name="attempts"),
    # One first row of each round, and one other row for each further cohort.
    Index("uq_rounds_round", "round_id", text(ONE_ROW), unique=True),
    _index_of("outcome_sequence IS NULL", "ix_rounds_pending", "cohort", "registration"),
    _index_of(LISTED, "ix_rounds_in_order", "cohort", "registration"),
    sqlite_autoincrement=True,
)

# Rounds that were registered without an outcome, listed by a trigger: if the row of one vanishes before an
# entry tells of the round, this list still names it. Chains name all others.
registrations = Table(
    "registrations",
    metadata,
    Column("cohort", NAME, primary_key=True),
    Column("round_id", NAME, primary_key=True),
    Column("content_digest", DIGEST, nullable=False),
)

OPENED = "kind = 'opened'"
REFUSED = "kind = 'refused'"
CLOSED = "status <> 'open'"
BROKEN = "problem IS NOT NULL"
RESTATED = "kind IN ('corrected', 'incident')"  # afterwards, of releases

entries = Table(
    "entries",
    metadata,
    Column("cohort", NAME, primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("round_id", NAME),
    Column("body", LargeBinary, nullable=False),  # canonical bytes; frozen
    Column("previous_digest", DIGEST, nullable=False),
    Column("digest", DIGEST, nullable=False),
    # The place in the feed of all chains; see `storage.positions`. On PostgreSQL a sequence gives it.
    Column("position", BigInteger, nullable=False),
    UniqueConstraint("position"),
    CheckConstraint("sequence >= 1", name="sequence"),
    CheckConstraint(
        "kind IN ('opened', 'admitted', 'refused', 'settled', 'voided', 'budget_changed', 'closed',"
        " 'frozen', 'corrected', 'incident')",
        name="kind",
    ),
    CheckConstraint(
        "(kind IN ('opened', 'budget_changed', 'closed', 'frozen')) = (round_id IS NULL)",
        name="about_a_round",
    ),
    CheckConstraint("kind = 'opened' OR sequence > 1", name="opened_first"),
    CheckConstraint("length(digest) = 32 AND length(previous_digest) = 32", name="digests"),
    _index_of(OPENED, "ix_entries_opened", "cohort", "sequence"),
    _index_of(REFUSED, "ix_entries_refused", "cohort", "sequence"),
    _index_of("kind = 'incident'", "uq_entries_one_incident", "round_id", "cohort", unique=True),
    _index_of(RESTATED, "ix_entries_told", "round_id", "sequence"),
)

# The columns of a chain's entry: the place in the feed is no part of its chain.
ENTRY_COLUMNS = tuple(column for column in entries.c if column is not entries.c.position)

COUNT_OF_KIND = {
    "opened": "openings",
    "admitted": "admitted",
    "refused": "refused",
    "settled": "settled",
    "voided": "voided",
    "budget_changed": "budget_changes",
    "closed": "closures",
    "frozen": "freezes",
    "corrected": "corrections",
    "incident": "incidents",
}

# The one row per cohort that changes: writers compete for it, and only the first wins. No index has a column
# that every entry changes, and pages keep room: PostgreSQL then updates a row without touching an index.
heads = Table(
    "heads",
    metadata,
    Column("cohort", NAME, primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", DIGEST, nullable=False),
    Column("status", String(20), nullable=False),
    Column("epsilon_budget", Double, nullable=False),  # infinite: no budget of its life
    Column(
        "used_share", Double, nullable=False
    ),  # of this budget, as the last entry states it; may be infinite
    # Number of entries of each kind, so that they need not be counted.
    *(
        Column(count, BigInteger, nullable=False, server_default=text("1" if kind == "opened" else "0"))
        for kind, count in COUNT_OF_KIND.items()
    ),
    CheckConstraint("status IN ('open', 'closed', 'overspent', 'frozen')", name="status"),
    CheckConstraint("epsilon_budget > 0", name="epsilon_budget"),
    CheckConstraint("used_share >= 0", name="used_share"),
    CheckConstraint("sequence = " + " + ".join(COUNT_OF_KIND.values()), name="counted"),
    Index("ix_heads_in_order", "cohort"),  # as that of cohorts
    _index_of(CLOSED, "ix_heads_closed", "cohort"),
)

accounted_rounds = Table(
    "accounted_rounds",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("parameters", LargeBinary, nullable=False),  # canonical bytes
    CheckConstraint("length(digest) = 32", name="digest"),
)

# What each cohort holds, kept with every entry so that a decision need not read history.
holdings = Table(
    "holdings",
    metadata,
    Column("cohort", NAME, primary_key=True),
    Column("accounted_digest", DIGEST, primary_key=True),
    Column("count", BigInteger, nullable=False),  # charged now
    Column("local_count", BigInteger, nullable=False),  # rounds whose reports may have been sent
    CheckConstraint("count >= 0", name="count"),
    CheckConstraint("local_count >= 0", name="local_count"),
)

privacy_losses = Table(
    "privacy_losses",
    metadata,
    Column("key", DIGEST, primary_key=True),  # of the accounted parameters and the numerical policy
    Column("digest", DIGEST, nullable=False),  # of the blob
    Column("blob", LargeBinary, nullable=False),
    CheckConstraint("length(key) = 32 AND length(digest) = 32", name="digests"),
)

# Last results of the scheduled verification. Not part of the record: the table may be emptied at any time.
verifications = Table(
    "verifications",
    metadata,
    Column("cohort", NAME, primary_key=True),  # refers to nothing: a cohort that vanished is reported too
    Column("verified_at", UtcDateTime, nullable=False),
    Column("head_sequence", BigInteger, nullable=False),  # of the last head found good; 0: none yet
    Column("head_digest", String(64), nullable=False),  # hexadecimal
    Column("numbers_checked", Integer, nullable=False),
    Column("problem", Text),  # the first one; NULL: everything held
    CheckConstraint("head_sequence >= 0", name="head_sequence"),
    Index("ix_verifications_verified", "verified_at", "cohort"),
    _index_of(BROKEN, "ix_verifications_broken", "cohort"),
)

# Cohorts without a row in `verifications`. Triggers on both tables keep the list.
unverified = Table(
    "unverified",
    metadata,
    Column("cohort", NAME, primary_key=True),
    Column("opened_at", UtcDateTime, nullable=False),
    Index("ix_unverified_opened", "opened_at", "cohort"),
)

# Tokens for the HTTP API. The secret itself is not stored: see `access`.
access_tokens = Table(
    "access_tokens",
    metadata,
    Column("token_id", String(16), primary_key=True),
    Column("name", NAME, nullable=False),  # the actor of what its bearer does
    Column("secret_digest", DIGEST, nullable=False),
    Column("role", String(20), nullable=False),
    Column("cohorts", LargeBinary),  # canonical bytes of the names it is limited to; none: every cohort
    Column("team", String(60)),  # its rounds are charged to the quotas of this team; none: to no quotas
    Column("created_by", NAME, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
    CheckConstraint("role IN ('admin', 'registrar', 'reader', 'auditor')", name="role"),
    CheckConstraint("length(secret_digest) = 32", name="secret_digest"),
    CheckConstraint("expires_at > created_at", name="expires_after_creation"),
    Index("ix_access_tokens_created_at", "created_at"),
)

# Permits of rounds: one for each, signed anew when the key changes. See `ledger.permits`.
permits = Table(
    "permits",
    metadata,
    Column("round_id", NAME, primary_key=True),
    Column("event", String(64), nullable=False),  # digest of the entry that admitted it, hexadecimal
    Column("token", Text, nullable=False),
    Column("releaser", NAME),  # none: any
    Column("issued_by", NAME, nullable=False),
    Column("issued_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Index("ix_permits_expires_at", "expires_at"),
)

# Receipts of releases, as their releasers signed them; a row refers to nothing, for it may outlive its round.
receipts = Table(
    "receipts",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of the token, hexadecimal
    Column("round_id", NAME, nullable=False),
    Column("cohort", NAME, nullable=False),  # the first one of the permit
    Column("token", Text, nullable=False),
    Column("keys", Text, nullable=False),  # a JWK set: the releaser's key, and that of the permit
    Column("recorded_by", NAME, nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    Index("ix_receipts_round_id", "round_id"),
    Index("ix_receipts_cohort", "cohort", "digest"),
)

# Sessions that were ended before they expired: copies of their cookies must not work any more.
ended_sessions = Table(
    "ended_sessions",
    metadata,
    Column(
        "session_id", String(32), primary_key=True
    ),  # hexadecimal, from the cookie; opens nothing by itself
    Column("expires_at", UtcDateTime, nullable=False),
    Index("ix_ended_sessions_expires_at", "expires_at"),
)

# Accepted losses of entries, after the database was put back to an earlier state, and the actors.
reconciliations = Table(
    "reconciliations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("checkpoint_digest", DIGEST, nullable=False),  # of the canonical bytes beside it
    Column("checkpoint", LargeBinary, nullable=False),  # the last known state of what was lost
    Column("nothing_later", Boolean, nullable=False),  # attested: no entry followed the checkpoint
    Column("reason", Text, nullable=False),
    Column("actor", NAME, nullable=False),
    Column("recorded_at", UtcDateTime, nullable=False),
    CheckConstraint("number >= 1", name="number"),
    CheckConstraint("length(checkpoint_digest) = 32", name="checkpoint_digest"),
)

# Cohorts that a restored backup does not know: their names are never given a fresh budget.
lost_cohorts = Table(
    "lost_cohorts",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("reconciliation", Integer, ForeignKey("reconciliations.number"), nullable=False),
    Column("sequence", BigInteger, nullable=False),  # of its last known entry
    Column("digest", DIGEST, nullable=False),
    CheckConstraint("sequence >= 1", name="sequence"),
    CheckConstraint("length(digest) = 32", name="digest"),
)

# Subscriptions of services to events. The secrets are not stored: see `webhooks.subscriptions`.
webhooks = Table(
    "webhooks",
    metadata,
    Column("subscription_id", String(16), primary_key=True),
    Column("url", Text, nullable=False),
    Column("filters", LargeBinary, nullable=False),  # canonical bytes of the kinds, cohorts and thresholds
    Column("secret_digest", DIGEST, nullable=False),
    Column("created_by", NAME, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("cursor", String(40)),  # of the feed: everything up to it is delivered; NULL: nothing
    Column("attempts", Integer, nullable=False),  # failed ones, of the entry behind the cursor
    Column("next_attempt_at", UtcDateTime),  # NULL: at once
    Column("failing_since", UtcDateTime),  # NULL: the last attempt succeeded
    Column("last_error", Text),
    Column("locked_until", UtcDateTime),  # by the process that delivers; past: when the last one ended
    CheckConstraint("length(secret_digest) = 32", name="secret_digest"),
    CheckConstraint("attempts >= 0", name="attempts"),
)
