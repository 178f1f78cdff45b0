"""What shows that a database was put back or thinned out: identity, registrations, counts, frozen cohorts."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NAME = sa.String(200)
_DIGEST = sa.LargeBinary(32)
_OUTCOME = sa.text("kind IN ('admitted', 'refused')")
_CLOSING = sa.text("kind IN ('settled', 'voided')")
_KINDS = "kind IN ('opened', 'admitted', 'refused', 'settled', 'voided', 'budget_changed', 'frozen')"
_NOT_ABOUT_A_ROUND = "(kind IN ('opened', 'budget_changed', 'frozen')) = (round_id IS NULL)"
_STATUSES = "status IN ('open', 'overspent', 'frozen')"
_COUNTS = {
    "admitted": "admitted",
    "refused": "refused",
    "settled": "settled",
    "voided": "voided",
    "budget_changes": "budget_changed",
    "freezes": "frozen",
}
_COUNTED = "sequence = 1 + " + " + ".join(_COUNTS)

# (table, moment, condition under which it is refused, what the database then says)
_HEADS_UPDATE = (
    "heads",
    "UPDATE",
    "NEW.cohort <> OLD.cohort OR NEW.sequence <> OLD.sequence + 1"
    " OR (OLD.status = 'overspent' AND NEW.status = 'open')"
    " OR (OLD.status = 'frozen' AND NEW.status <> 'frozen')",
    "a head moves one entry at a time and stays overspent or frozen",
)
_ENTRIES_GUARDS = (
    ("entries", "UPDATE", None, "entries are never changed"),
    ("entries", "DELETE", None, "entries are never removed"),
    (
        "entries",
        "INSERT",
        "NEW.sequence > 1 AND NOT EXISTS (SELECT 1 FROM entries WHERE cohort = NEW.cohort"
        " AND sequence = NEW.sequence - 1 AND digest = NEW.previous_digest)",
        "an entry continues the chain of its cohort",
    ),
)
_NEW_GUARDS = (
    ("ledger_identity", "UPDATE", None, "a ledger keeps its identity"),
    ("ledger_identity", "DELETE", None, "a ledger keeps its identity"),
    ("registrations", "UPDATE", None, "registrations are never changed"),
    ("registrations", "DELETE", None, "registrations are never removed"),
    ("reconciliations", "UPDATE", None, "reconciliations are never changed"),
    ("reconciliations", "DELETE", None, "reconciliations are never removed"),
    ("lost_cohorts", "UPDATE", None, "lost cohorts are never changed"),
    ("lost_cohorts", "DELETE", None, "lost cohorts are never removed"),
    (
        "cohorts",
        "INSERT",
        "EXISTS (SELECT 1 FROM lost_cohorts WHERE name = NEW.name)",
        "a cohort that was lost is not opened again",
    ),
    (
        "cohorts",
        "UPDATE",
        "NEW.delta_budget <> OLD.delta_budget OR (NEW.epsilon_budget <> OLD.epsilon_budget"
        " AND NOT EXISTS (SELECT 1 FROM heads JOIN entries ON entries.cohort = heads.cohort"
        " AND entries.sequence = heads.sequence WHERE heads.cohort = NEW.name"
        " AND entries.kind = 'budget_changed'))",
        "a budget changes only by the entry that says so",
    ),
)
_NOT_EMPTIED = ("ledger_identity", "registrations", "reconciliations", "lost_cohorts")


def upgrade() -> None:
    """Add the tables, widen the chain's constraints, then guard all of it."""
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    _create_identity()
    _create_registrations()
    _create_reconciliations()
    if on_sqlite:
        _rebuild_entries()
        _rebuild_heads()
    else:
        _widen_entries()
        _widen_heads()
    guards = (*_NEW_GUARDS, _HEADS_UPDATE, *(_ENTRIES_GUARDS if on_sqlite else ()))
    for guard in guards:
        (_guard_sqlite if on_sqlite else _guard_postgresql)(*guard)
    if on_sqlite:
        _guard_sqlite("heads", "DELETE", None, "heads are never removed")
    else:
        for table in _NOT_EMPTIED:
            op.execute(
                f"CREATE TRIGGER guard_{table}_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT"
                f" EXECUTE FUNCTION shuffle_ledger_refuse('{table} are never emptied')"
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


def _create_registrations() -> None:
    op.create_table(
        "registrations",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("round_id", _NAME, nullable=False),
        sa.Column("content_digest", _DIGEST, nullable=False),
        sa.PrimaryKeyConstraint("cohort", "round_id", name="pk_registrations"),
    )
    op.execute(
        "INSERT INTO registrations (cohort, round_id, content_digest)"
        " SELECT cohort, round_id, content_digest FROM rounds"
    )
    insert = (
        "INSERT INTO registrations (cohort, round_id, content_digest)"
        " VALUES (NEW.cohort, NEW.round_id, NEW.content_digest);"
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER note_registration AFTER INSERT ON rounds FOR EACH ROW BEGIN {insert} END")
    else:
        op.execute(
            "CREATE FUNCTION note_registration() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {insert} RETURN NULL; END $$"
        )
        op.execute(
            "CREATE TRIGGER note_registration AFTER INSERT ON rounds FOR EACH ROW"
            " EXECUTE FUNCTION note_registration()"
        )


def _create_reconciliations() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("number", sa.Integer, autoincrement=False, nullable=False),
        sa.Column("checkpoint_digest", _DIGEST, nullable=False),
        sa.Column("checkpoint", sa.LargeBinary, nullable=False),
        sa.Column("nothing_later", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", _NAME, nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
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


# PostgreSQL changes constraints in place.


def _widen_entries() -> None:
    for name, condition in (("kind", _KINDS), ("about_a_round", _NOT_ABOUT_A_ROUND)):
        op.execute(f"ALTER TABLE entries DROP CONSTRAINT ck_entries_{name}")
        op.execute(f"ALTER TABLE entries ADD CONSTRAINT ck_entries_{name} CHECK ({condition})")


def _widen_heads() -> None:
    op.execute("DROP TRIGGER guard_08_heads_update ON heads")
    op.execute("DROP FUNCTION guard_08_heads_update()")
    for column in _COUNTS:
        op.add_column("heads", sa.Column(column, sa.BigInteger, nullable=False, server_default=sa.text("0")))
    counts = ", ".join(f"{column} = {_counted(column)}" for column in _COUNTS)
    op.execute(f"UPDATE heads SET {counts}")  # noqa: S608 - these are our own names, here and below
    # The foreign key to the head's entry is deferred; a table with waiting checks cannot be altered.
    op.execute("SET CONSTRAINTS ALL IMMEDIATE")
    op.execute("ALTER TABLE heads DROP CONSTRAINT ck_heads_status")
    op.execute(f"ALTER TABLE heads ADD CONSTRAINT ck_heads_status CHECK ({_STATUSES})")
    op.execute(f"ALTER TABLE heads ADD CONSTRAINT ck_heads_counted CHECK ({_COUNTED})")


def _counted(column: str) -> str:
    kind = _COUNTS[column]
    return f"(SELECT count(*) FROM entries WHERE entries.cohort = heads.cohort AND entries.kind = '{kind}')"  # noqa: S608


# SQLite makes tables anew: foreign keys are off while migrations run, and checked as a whole afterwards.


def _rebuild_entries() -> None:
    op.create_table(
        "entries_anew",
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
        sa.CheckConstraint(_NOT_ABOUT_A_ROUND, name=op.f("ck_entries_about_a_round")),
        sa.CheckConstraint("(kind = 'opened') = (sequence = 1)", name=op.f("ck_entries_opened_first")),
        sa.CheckConstraint(
            "length(digest) = 32 AND length(previous_digest) = 32", name=op.f("ck_entries_digests")
        ),
    )
    op.execute("INSERT INTO entries_anew SELECT * FROM entries ORDER BY cohort, sequence")
    op.drop_table("entries")
    op.rename_table("entries_anew", "entries")
    op.create_index("ix_entries_cohort_kind", "entries", ["cohort", "kind"])
    for name, condition in (("uq_entries_one_outcome", _OUTCOME), ("uq_entries_one_closing", _CLOSING)):
        op.create_index(name, "entries", ["round_id"], unique=True, sqlite_where=condition)


def _rebuild_heads() -> None:
    op.create_table(
        "heads_anew",
        sa.Column("cohort", _NAME, nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        *(
            sa.Column(column, sa.BigInteger, nullable=False, server_default=sa.text("0"))
            for column in _COUNTS
        ),
        sa.PrimaryKeyConstraint("cohort", name="pk_heads"),
        sa.ForeignKeyConstraint(["cohort"], ["cohorts.name"], name="fk_heads_cohort"),
        sa.ForeignKeyConstraint(
            ["cohort", "sequence", "digest"],
            ["entries.cohort", "entries.sequence", "entries.digest"],
            name="fk_heads_cohort_sequence_digest",
            deferrable=True,
            initially="DEFERRED",
        ),
        sa.CheckConstraint(_STATUSES, name=op.f("ck_heads_status")),
        sa.CheckConstraint(_COUNTED, name=op.f("ck_heads_counted")),
    )
    counts = ", ".join(_counted(column) for column in _COUNTS)
    op.execute(f"INSERT INTO heads_anew SELECT cohort, sequence, digest, status, {counts} FROM heads")  # noqa: S608
    op.drop_table("heads")
    op.rename_table("heads_anew", "heads")


def _guard_sqlite(table: str, moment: str, condition: str | None, message: str) -> None:
    when = f"WHEN {condition}" if condition else ""
    op.execute(
        f"CREATE TRIGGER {_guard_name(table, moment)} BEFORE {moment} ON {table}"
        f" FOR EACH ROW {when} BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def _guard_postgresql(table: str, moment: str, condition: str | None, message: str) -> None:
    name = _guard_name(table, moment)
    refuse = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation';"
    result = "OLD" if moment == "DELETE" else "NEW"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF {condition or 'TRUE'} THEN {refuse} END IF; RETURN {result}; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} BEFORE {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()")


def _guard_name(table: str, moment: str) -> str:
    return f"guard_0002_{table}_{moment.lower()}"
