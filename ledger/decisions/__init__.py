"""Every decision: opening, admission, settlement, voids, changes of a budget, and quotes.

Imports `policies` and what lies below it.
"""

from shuffle_ledger.ledger.decisions.admission import (
    admit,
    admit_at_once,
    admit_in_order,
    pending_before,
    pending_rounds,
    register,
    register_and_admit,
)
from shuffle_ledger.ledger.decisions.batches import admit_together
from shuffle_ledger.ledger.decisions.budget_changes import change_budget
from shuffle_ledger.ledger.decisions.opening import open_cohort
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.decisions.quoting import quote, quote_at
from shuffle_ledger.ledger.decisions.repeats import (
    present_answer,
    quote_repeated,
    refuse_other_content,
    refuse_uncollectable,
)
from shuffle_ledger.ledger.decisions.settlement import settle, void

__all__ = [
    "admit",
    "admit_at_once",
    "admit_in_order",
    "admit_together",
    "change_budget",
    "open_cohort",
    "pending_before",
    "pending_rounds",
    "present_answer",
    "quote",
    "quote_at",
    "quote_repeated",
    "refuse_other_content",
    "refuse_uncollectable",
    "register",
    "register_and_admit",
    "round_record",
    "settle",
    "void",
]
