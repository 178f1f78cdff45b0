"""What analysts and pages read: budgets, histories, lists, profiles, entries.

Imports `decisions` and what lies below it.
"""

from shuffle_ledger.ledger.reports.budgets import BudgetStatement, HistoryPoint, budget, heads, history
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import (
    EVERY,
    FIT_MAX,
    Forecast,
    ForecastWanted,
    KindForecast,
    ScheduleOfLate,
    forecast,
)
from shuffle_ledger.ledger.reports.glimpses import Every
from shuffle_ledger.ledger.reports.listing import ShownCohort, shown_cohort
from shuffle_ledger.ledger.reports.round_lists import STATES, ListedRound, RoundFilter, RoundPage, list_rounds
from shuffle_ledger.ledger.reports.rounds_left import FittingRounds

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
    "KindForecast",
    "ListedRound",
    "RoundFilter",
    "RoundPage",
    "ScheduleOfLate",
    "ShownCohort",
    "budget",
    "calibrate_for",
    "forecast",
    "heads",
    "history",
    "list_rounds",
    "shown_cohort",
]
