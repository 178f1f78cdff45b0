"""Every decision: opening, admission, closings, corrections, incidents, changes of a budget, and quotes.

Imports `policies` and what lies below it.
"""

from shuffle_ledger.ledger.decisions.admission import (
    admit_in_order,
    admit_queued,
    admit_together,
    change_budget,
    open_cohort,
    quote,
    quote_at,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.corrections import correct
from shuffle_ledger.ledger.decisions.incidents import record_incident
from shuffle_ledger.ledger.decisions.repeats import (
    present_answer,
    quote_repeated,
    refuse_other_content,
    refuse_uncollectable,
)

__all__ = [
    "admit_in_order",
    "admit_queued",
    "admit_together",
    "change_budget",
    "correct",
    "open_cohort",
    "present_answer",
    "quote",
    "quote_at",
    "quote_repeated",
    "record_incident",
    "refuse_other_content",
    "refuse_uncollectable",
    "register",
    "register_and_admit",
    "round_record",
    "settle",
    "void",
]
