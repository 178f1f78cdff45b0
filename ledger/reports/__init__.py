"""What analysts and pages read: budgets, histories, lists, profiles, entries.

Imports `decisions` and what lies below it.
"""

from shuffle_ledger.ledger.reports.budgets import (
    BudgetStatement,
    HistoryPoint,
    PromiseReading,
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
    ScheduleOfLate,
    forecast,
    joint_forecast,
)
from shuffle_ledger.ledger.reports.listing import ShownCohort, shown_cohort
from shuffle_ledger.ledger.reports.round_lists import STATES, ListedRound, RoundFilter, RoundPage, list_rounds
from shuffle_ledger.ledger.reports.schedules import EVERY, Every

__all__ = [
    "EVERY",
    "FIT_MAX",
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
    "ListedRound",
    "PromiseReading",
    "RoundFilter",
    "RoundPage",
    "ScheduleOfLate",
    "ShownCohort",
    "budget",
    "by_use_case",
    "calibrate",
    "calibrate_for",
    "days_of",
    "forecast",
    "heads",
    "history",
    "joint_forecast",
    "last_of_days",
    "list_rounds",
    "shown_cohort",
]
