"""What auditors get: statements, bundles of chains, and their verification without a database.

Imports everything in `ledger` but `api` and `client`.
"""

from shuffle_ledger.ledger.evidence.archive import CONTAINER_BYTES_MAX
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_reader import open_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.conditions import Condition
from shuffle_ledger.ledger.evidence.earlier_heads import read_earlier_heads
from shuffle_ledger.ledger.evidence.findings import BundleReport, CohortFound, Finding
from shuffle_ledger.ledger.evidence.statement import (
    Breach,
    CohortPromise,
    CohortStatement,
    EpsilonBounds,
    PromiseState,
    StatedKind,
    StatedPromise,
    StatedRestatement,
    StatedRound,
    Statement,
    Verdict,
)
from shuffle_ledger.ledger.evidence.statement_builder import AsOf, Progress
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted, cohort_names
from shuffle_ledger.ledger.verification.number_checks import BundleNumbers

__all__ = [
    "CONTAINER_BYTES_MAX",
    "AsOf",
    "Breach",
    "BundleNumbers",
    "BundleReport",
    "CohortFound",
    "CohortPromise",
    "CohortStatement",
    "Condition",
    "EpsilonBounds",
    "Finding",
    "Progress",
    "PromiseState",
    "StatedKind",
    "StatedPromise",
    "StatedRestatement",
    "StatedRound",
    "Statement",
    "StatementWanted",
    "Verdict",
    "cohort_names",
    "make_bundle",
    "open_bundle",
    "read_earlier_heads",
    "verify_bundle",
]
