"""The exact state machine: pure functions that decide what events do to budgets.

A caller passes states, costs and limits in; postings come out. `fold` applies a posting. Nothing here knows a
store, a clock, the accountant, floating point or chance, so a verifier that folds the same events gets the
same postings.
"""

from shuffle_ledger.ledger.machine.budgets import (
    change_budget,
    fold,
    may_open_again,
    new_state,
)
from shuffle_ledger.ledger.machine.decisions import decide
from shuffle_ledger.ledger.machine.filters import (
    Coordinates,
    added,
    rounds_of_one_user,
    standing,
)
from shuffle_ledger.ledger.machine.forecasts import after, room
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
)
from shuffle_ledger.ledger.machine.windows import (
    CALENDAR_UNITS,
    RUN_MAX,
    RUN_UNITS,
    YEARS,
    periods,
    units_met_max,
)

__all__ = [
    "CALENDAR_UNITS",
    "DELTA_UNIT",
    "EPSILON_UNIT",
    "LOSS_UNIT",
    "ROUNDS_MAX",
    "RUN_MAX",
    "RUN_UNITS",
    "UNBOUNDED",
    "YEARS",
    "BudgetKind",
    "Cause",
    "Charge",
    "Coordinates",
    "Cost",
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
    "added",
    "after",
    "change_budget",
    "decide",
    "fold",
    "is_after_opening",
    "may_open_again",
    "may_precede_opening",
    "new_state",
    "periods",
    "restate",
    "room",
    "rounds_of_one_user",
    "standing",
    "units_met_max",
]
