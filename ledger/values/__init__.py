"""The ledger's values and their canonical bytes: requests, outcomes, entries, checkpoints, signatures.

Imports `errors` only.
"""

from shuffle_ledger.ledger.values.audiences import named_in
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
    fields_document,
    number,
    record_document,
)
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.repeats import (
    least_open,
    quote_repeated,
    refuse_other_content,
    refuse_uncollectable,
)
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
    refusal_in_words,
    request_of,
    worst_status,
)
from shuffle_ledger.ledger.values.saved_heads import SavedHeads, Signature, read_saved_heads
from shuffle_ledger.ledger.values.schedules import EVERY, ForecastWanted
from shuffle_ledger.ledger.values.signing import SigningKey, read_public_key
from shuffle_ledger.ledger.values.strict_json import NotStrictJson, read_json
from shuffle_ledger.ledger.values.unusual_cohorts import opening_warnings
from shuffle_ledger.ledger.values.windows import (
    ROLLING_EXPECTED,
    UNITS,
    UNITS_EXPECTED,
    Period,
    Window,
    rolling_of,
)

__all__ = [
    "DAY_EXPECTED",
    "EVERY",
    "MOMENT_EXPECTED",
    "POLICIES",
    "POLICY_ADAPTIVE",
    "POLICY_PLAN",
    "ROLLING_EXPECTED",
    "UNITS",
    "UNITS_EXPECTED",
    "Admitted",
    "Checkpoint",
    "Cohort",
    "Corrected",
    "Decision",
    "EntryKind",
    "ForecastWanted",
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
    "SavedHeads",
    "Settled",
    "Signature",
    "SigningKey",
    "SlotsHelp",
    "Voided",
    "Window",
    "checked_new_name",
    "checked_reports",
    "cohort_from_opening",
    "day_from",
    "decision_document",
    "document_of",
    "fields_document",
    "least_open",
    "moment_from",
    "named_in",
    "number",
    "opening_warnings",
    "other_cohort",
    "quote_repeated",
    "read_json",
    "read_public_key",
    "read_saved_heads",
    "record_document",
    "refusal_in_words",
    "refuse_other_content",
    "refuse_uncollectable",
    "request_of",
    "rolling_of",
    "worst_status",
]
