"""The ledger's values and their canonical bytes: requests, outcomes, entries, checkpoints, signatures.

Imports `errors` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shuffle_ledger.names import imported_when_used

if TYPE_CHECKING:
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
        COLLECTION_FIELDS,
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
        most_spent,
        opening_of,
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

else:
    __getattr__ = imported_when_used(
        __name__,
        {
            "audiences": "named_in",
            "checkpoint": "Checkpoint",
            "days": "DAY_EXPECTED MOMENT_EXPECTED NotADay day_from moment_from",
            "differences": "other_cohort",
            "documents": (
                "Decision Json decision_document document_of fields_document number record_document"
            ),
            "entries": "EntryKind",
            "quotas": "Quota",
            "repeats": "least_open quote_repeated refuse_other_content refuse_uncollectable",
            "requests": (
                "Admitted COLLECTION_FIELDS Cohort Corrected Incident Member Opening Outcome POLICIES "
                "POLICY_ADAPTIVE POLICY_PLAN Pending Quote RefusalReason Refused RefusedBy ReleaseTimes "
                "RoundRecord RoundRequest RoundState Settled SlotsHelp Voided checked_new_name "
                "checked_reports cohort_from_opening most_spent opening_of refusal_in_words request_of "
                "worst_status"
            ),
            "saved_heads": "SavedHeads Signature read_saved_heads",
            "schedules": "EVERY ForecastWanted",
            "signing": "SigningKey read_public_key",
            "strict_json": "NotStrictJson read_json",
            "unusual_cohorts": "opening_warnings",
            "windows": "Period ROLLING_EXPECTED UNITS UNITS_EXPECTED Window rolling_of",
        },
    )

__all__ = [
    "COLLECTION_FIELDS",
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
    "most_spent",
    "named_in",
    "number",
    "opening_of",
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
