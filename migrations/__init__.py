"""Schema migrations, run by `ledger.storage.schema`."""
