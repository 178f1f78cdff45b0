"""Run by Alembic: applies the migrations on the connection, and in the transaction, of the caller."""

from __future__ import annotations

from alembic import context

from shuffle_ledger.ledger.storage.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run inside the application: use `shuffle-ledger init`")

# transactional_ddl: SQLite too rolls schema changes back once BEGIN is ours (see ledger.storage.engine).
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
