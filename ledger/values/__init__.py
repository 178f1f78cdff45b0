"""The ledger's values and their canonical bytes: requests, outcomes, entries, checkpoints, signatures.

Imports `errors` only.
"""

from shuffle_ledger.ledger.values.audiences import named_in
from shuffle_ledger.ledger.values.calculations import (
    amplification_document,
    analyses_of,
    attack_on,
    calibrated_error,
    calibration_document,
    certified,
    certified_alike,
    composition_document,
    few_honest,
)
from shuffle_ledger.ledger.values.checkpoint import Checkpoint
from shuffle_ledger.ledger.values.days import (
    DAY_EXPECTED,
    MOMENT_EXPECTED,
    NotADay,
    day_from,
    moment_from,
)
from shuffle_ledger.ledger.values.differences import other_cohort
from shuffle_ledger.ledger.values.documents import (
    Decision,
    Json,
    decision_document,
    document_of,
    number,
    record_document,
)
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import (
    POLICIES,
    POLICY_ADAPTIVE,
    POLICY_PLAN,
    Admitted,
    Cohort,
    Corrected,
    Incident,
    Member,
    Opening,
    Outcome,
    Pending,
    Quote,
    RefusalReason,
    Refused,
    RefusedBy,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
    RoundState,
    Settled,
    SlotsHelp,
    Voided,
    checked_new_name,
    checked_reports,
    cohort_from_opening,
)
from shuffle_ledger.ledger.values.signing import SigningKey, read_public_key
from shuffle_ledger.ledger.values.strict_json import NotStrictJson, read_json
from shuffle_ledger.ledger.values.unusual_cohorts import opening_warnings
from shuffle_ledger.ledger.values.windows import ROLLING_EXPECTED, Period, Window, rolling_of

__all__ = [
    "DAY_EXPECTED",
    "MOMENT_EXPECTED",
    "POLICIES",
    "POLICY_ADAPTIVE",
    "POLICY_PLAN",
    "ROLLING_EXPECTED",
    "Admitted",
    "Checkpoint",
    "Cohort",
    "Corrected",
    "Decision",
    "EntryKind",
    "Incident",
    "Json",
    "Member",
    "NotADay",
    "NotStrictJson",
    "Opening",
    "Outcome",
    "Pending",
    "Period",
    "Quota",
    "Quote",
    "RefusalReason",
    "Refused",
    "RefusedBy",
    "ReleaseTimes",
    "RoundRecord",
    "RoundRequest",
    "RoundState",
    "Settled",
    "SigningKey",
    "SlotsHelp",
    "Voided",
    "Window",
    "amplification_document",
    "analyses_of",
    "attack_on",
    "calibrated_error",
    "calibration_document",
    "certified",
    "certified_alike",
    "checked_new_name",
    "checked_reports",
    "cohort_from_opening",
    "composition_document",
    "day_from",
    "decision_document",
    "document_of",
    "few_honest",
    "moment_from",
    "named_in",
    "number",
    "opening_warnings",
    "other_cohort",
    "read_json",
    "read_public_key",
    "record_document",
    "rolling_of",
]
