"""The exact state machine: pure functions that decide what events do to budgets.

A caller passes states, costs and limits in; postings come out. `fold` applies a posting. Nothing here knows a
store, a clock, the accountant, floating point or chance, so a verifier that folds the same events gets the
same postings.
"""

from shuffle_ledger.ledger.machine.budgets import (
    change_budget,
    fold,
    freeze,
    may_open_again,
    new_state,
    open_budget,
)
from shuffle_ledger.ledger.machine.decisions import decide
from shuffle_ledger.ledger.machine.filters import (
    Coordinates,
    added,
    rounds_of_one_user,
    standing,
    taken,
)
from shuffle_ledger.ledger.machine.forecasts import after, how_many, room
from shuffle_ledger.ledger.machine.periods import BudgetName, CohortBudgets, WindowUnits, budgets_of
from shuffle_ledger.ledger.machine.restatements import (
    is_after_opening,
    may_precede_opening,
    restate,
)
from shuffle_ledger.ledger.machine.values import (
    DELTA_UNIT,
    EPSILON_UNIT,
    LOSS_UNIT,
    ROUNDS_MAX,
    UNBOUNDED,
    BudgetKind,
    Cause,
    Charge,
    Cost,
    Decided,
    Described,
    InvalidStep,
    Level,
    Limits,
    Posting,
    PostingKind,
    Request,
    Round,
    Rules,
    State,
    Total,
    Unchanged,
    parts_of,
)

__all__ = [
    "DELTA_UNIT",
    "EPSILON_UNIT",
    "LOSS_UNIT",
    "ROUNDS_MAX",
    "UNBOUNDED",
    "BudgetKind",
    "BudgetName",
    "Cause",
    "Charge",
    "CohortBudgets",
    "Coordinates",
    "Cost",
    "Decided",
    "Described",
    "InvalidStep",
    "Level",
    "Limits",
    "Posting",
    "PostingKind",
    "Request",
    "Round",
    "Rules",
    "State",
    "Total",
    "Unchanged",
    "WindowUnits",
    "added",
    "after",
    "budgets_of",
    "change_budget",
    "decide",
    "fold",
    "freeze",
    "how_many",
    "is_after_opening",
    "may_open_again",
    "may_precede_opening",
    "new_state",
    "open_budget",
    "parts_of",
    "restate",
    "room",
    "rounds_of_one_user",
    "standing",
    "taken",
]
