"""What analysts and pages read: budgets, histories, lists, profiles, entries.

Imports `decisions` and what lies below it.
"""

from shuffle_ledger.ledger.policies.room import SEARCH
from shuffle_ledger.ledger.reports.budgets import HistoryPoint, budget, heads, history
from shuffle_ledger.ledger.reports.calibrations import calibrate, calibrate_for
from shuffle_ledger.ledger.reports.collection_days import by_use_case, days_of, last_of_days
from shuffle_ledger.ledger.reports.forecasts import forecast, joint_forecast
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds

__all__ = [
    "SEARCH",
    "HistoryPoint",
    "RoundFilter",
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
