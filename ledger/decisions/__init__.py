"""Every decision: opening, admission, restatements, changes of a budget, and quotes.

Imports `policies` and what lies below it.
"""

from shuffle_ledger.ledger.decisions.admission import (
    admit,
    admit_at_once,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.decisions.audiences import resolve_audience
from shuffle_ledger.ledger.decisions.batches import admit_together, prepare_together
from shuffle_ledger.ledger.decisions.budget_changes import change_budget
from shuffle_ledger.ledger.decisions.closing import close_cohort
from shuffle_ledger.ledger.decisions.incidents import record_incident
from shuffle_ledger.ledger.decisions.opening import check_new_cohort, check_opening, open_cohort, open_many
from shuffle_ledger.ledger.decisions.outcomes import present_answer, round_record
from shuffle_ledger.ledger.decisions.quotas import quotas_of, set_quota, with_budgets
from shuffle_ledger.ledger.decisions.quoting import (
    check_without_slots,
    fits_instead,
    is_first_sample,
    price,
    quote,
)
from shuffle_ledger.ledger.decisions.restatements import correct, settle, void
from shuffle_ledger.ledger.decisions.windows import check_collection

__all__ = [
    "admit",
    "admit_at_once",
    "admit_together",
    "change_budget",
    "check_collection",
    "check_new_cohort",
    "check_opening",
    "check_without_slots",
    "close_cohort",
    "correct",
    "fits_instead",
    "is_first_sample",
    "open_cohort",
    "open_many",
    "prepare_together",
    "present_answer",
    "price",
    "quotas_of",
    "quote",
    "record_incident",
    "register",
    "register_and_admit",
    "resolve_audience",
    "round_record",
    "set_quota",
    "settle",
    "void",
    "with_budgets",
]
