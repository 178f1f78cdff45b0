"""Signed heads of all chains: making them, reading saved ones, writing them on a schedule.

Imports `storage` and what lies below it.
"""

from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.checkpoints.schedule import ScheduledCheckpoints, trusted_key

__all__ = [
    "ScheduledCheckpoints",
    "sign_standing",
    "trusted_key",
]
