"""Signed heads of all chains: making them, reading saved ones, writing them on a schedule.

Imports `storage` and what lies below it.
"""

from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.checkpoints.saved_heads import SavedHeads, Signature, read_saved_heads
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints, trusted_key

__all__ = [
    "SavedHeads",
    "ScheduledCheckpoints",
    "Signature",
    "read_saved_heads",
    "sign_standing",
    "trusted_key",
]
