"""The database: tables, connections, and every statement that reads or writes them.

Imports `values` and what lies below it.
"""

from shuffle_ledger.ledger.storage.anchor import Anchor, standing_after
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store

__all__ = [
    "Anchor",
    "CohortView",
    "Store",
    "initialise",
    "standing_after",
]
