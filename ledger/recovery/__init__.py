"""Lost entries: appends them again from a proven copy, or freezes the cohorts that lost them.

Imports `verification` and what lies below it.
"""

from shuffle_ledger.ledger.recovery.reconciliation import Reconciled, reconcile
from shuffle_ledger.ledger.recovery.restore_entries import Recovered, recover

__all__ = [
    "Reconciled",
    "Recovered",
    "reconcile",
    "recover",
]
