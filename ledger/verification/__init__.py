"""Replays a chain: does each entry follow from those before it, from its parameters and from the tables?

Imports `policies`, `checkpoints` and what lies below them.
"""

from shuffle_ledger.ledger.verification.number_checks import Numbers
from shuffle_ledger.ledger.verification.verifier import (
    CohortVerification,
    Comparison,
    VerificationReport,
    verify,
)

__all__ = [
    "CohortVerification",
    "Comparison",
    "Numbers",
    "VerificationReport",
    "verify",
]
