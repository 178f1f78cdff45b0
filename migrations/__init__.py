"""Schema migrations, run by `ledger.schema`."""
