"""The answers of the ledger: budgets, cohorts, rounds, forecasts, entries, and the words for them.

Imports `values` only: a program that asks a server loads no engine.
"""

from shuffle_ledger.ledger.answers.budgets import (
    BudgetStatement,
    Closure,
    PromiseReading,
    QuotaReading,
    SlotReading,
    worth_showing,
)
from shuffle_ledger.ledger.answers.calculations import (
    amplification,
    attack_on,
    calibrated_error,
    calibrated_rounds,
    certified,
    certified_alike,
    composition,
    few_honest,
)
from shuffle_ledger.ledger.answers.cohorts import ListedCohort
from shuffle_ledger.ledger.answers.forecasts import (
    Forecast,
    JointForecast,
    KindForecast,
    LargestEpsilon0,
    WindowForecast,
)
from shuffle_ledger.ledger.answers.quotes import Fits
from shuffle_ledger.ledger.answers.rounds import STATES, ListedRound
from shuffle_ledger.ledger.answers.summaries import (
    ASSUMES,
    FITS_IF,
    KINDS_SHOWN_MAX,
    fits_in_words,
    pace_in_words,
    state_in_words,
    used_percent,
)

__all__ = [
    "ASSUMES",
    "FITS_IF",
    "KINDS_SHOWN_MAX",
    "STATES",
    "BudgetStatement",
    "Closure",
    "Fits",
    "Forecast",
    "JointForecast",
    "KindForecast",
    "LargestEpsilon0",
    "ListedCohort",
    "ListedRound",
    "PromiseReading",
    "QuotaReading",
    "SlotReading",
    "WindowForecast",
    "amplification",
    "attack_on",
    "calibrated_error",
    "calibrated_rounds",
    "certified",
    "certified_alike",
    "composition",
    "few_honest",
    "fits_in_words",
    "pace_in_words",
    "state_in_words",
    "used_percent",
    "worth_showing",
]
