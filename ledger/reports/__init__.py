"""What analysts and pages read: budgets, histories, lists, profiles, entries.

Imports `decisions` and what lies below it.
"""

from shuffle_ledger.ledger.policies.room import SEARCH
from shuffle_ledger.ledger.reports.budgets import (
    BudgetStatement,
    HistoryPoint,
    budget,
    heads,
    history,
)
from shuffle_ledger.ledger.reports.calibrations import calibrate, calibrate_for
from shuffle_ledger.ledger.reports.collection_days import by_use_case, days_of, last_of_days
from shuffle_ledger.ledger.reports.forecasts import (
    FIT_MAX,
    FittingRounds,
    Forecast,
    ForecastWanted,
    JointForecast,
    KindForecast,
    LargestEpsilon0,
    RecentSchedule,
    WindowForecast,
    forecast,
    joint_forecast,
)
from shuffle_ledger.ledger.reports.listing import ShownCohort, shown_cohort
from shuffle_ledger.ledger.reports.promises import ListedCohort, PromiseReading
from shuffle_ledger.ledger.reports.round_lists import STATES, ListedRound, RoundFilter, RoundPage, list_rounds
from shuffle_ledger.ledger.reports.schedules import EVERY, Every
from shuffle_ledger.ledger.reports.summaries import (
    FITS_IF,
    day_in_words,
    fits_in_words,
    kind_in_words,
    pace_detail,
    pace_in_words,
    state_in_words,
    used_percent,
)

__all__ = [
    "EVERY",
    "FITS_IF",
    "FIT_MAX",
    "SEARCH",
    "STATES",
    "BudgetStatement",
    "Every",
    "FittingRounds",
    "Forecast",
    "ForecastWanted",
    "HistoryPoint",
    "JointForecast",
    "KindForecast",
    "LargestEpsilon0",
    "ListedCohort",
    "ListedRound",
    "PromiseReading",
    "RecentSchedule",
    "RoundFilter",
    "RoundPage",
    "ShownCohort",
    "WindowForecast",
    "budget",
    "by_use_case",
    "calibrate",
    "calibrate_for",
    "day_in_words",
    "days_of",
    "fits_in_words",
    "forecast",
    "heads",
    "history",
    "joint_forecast",
    "kind_in_words",
    "last_of_days",
    "list_rounds",
    "pace_detail",
    "pace_in_words",
    "shown_cohort",
    "state_in_words",
    "used_percent",
]
