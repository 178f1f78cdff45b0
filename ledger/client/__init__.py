"""The Python client of the HTTP API, and its transport.

Imports the ledger's values and reports, never its storage's writers.
"""

from shuffle_ledger.ledger.client.client import LedgerClient

__all__ = [
    "LedgerClient",
]
