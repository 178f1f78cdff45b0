"""How a cohort's rounds may be chosen: policies `fixed`, `plan` and `adaptive`, and their numbers.

Imports `loss_cache`, `storage` and what lies below them.
"""

from shuffle_ledger.ledger.policies.registry import ASSUMES, SlotReading

__all__ = [
    "ASSUMES",
    "SlotReading",
]
