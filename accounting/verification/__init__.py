"""Checks of stated numbers by other computations: charges that cover a round, and a second method.

Imports all of `accounting` but `calibration` and `attacks`.
"""

from shuffle_ledger.accounting.verification.coverage import Coverage
from shuffle_ledger.accounting.verification.second_method import (
    AGREEMENT,
    SMALLEST_DELTA,
    composed_epsilon,
    round_delta,
)

__all__ = [
    "AGREEMENT",
    "SMALLEST_DELTA",
    "Coverage",
    "composed_epsilon",
    "round_delta",
]
