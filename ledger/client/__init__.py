"""The Python clients of the HTTP API, with and without asyncio, and their transport.

Imports the ledger's values and reports, never its storage's writers.
"""

from shuffle_ledger.ledger.client.client import AsyncLedgerClient, LedgerClient

__all__ = [
    "AsyncLedgerClient",
    "LedgerClient",
]
