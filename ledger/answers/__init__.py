"""The answers of the ledger: budgets, cohorts, rounds, forecasts, entries, and the words for them.

Imports `values` only: a program that asks a server loads no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shuffle_ledger.names import imported_when_used

if TYPE_CHECKING:
    from shuffle_ledger.ledger.answers.budgets import (
        BudgetStatement,
        Closure,
        PromiseReading,
        QuotaReading,
        SlotReading,
        worth_showing,
    )
    from shuffle_ledger.ledger.answers.calculations import (
        CalibratedRounds,
        amplification,
        attack_on,
        calibrated_error,
        calibrated_rounds,
        certified,
        certified_alike,
        composition,
        few_honest,
    )
    from shuffle_ledger.ledger.answers.cohorts import ListedCohort, ShownCohort
    from shuffle_ledger.ledger.answers.entries import EventPage, PublishedPage
    from shuffle_ledger.ledger.answers.forecasts import (
        Forecast,
        JointForecast,
        KindForecast,
        LargestEpsilon0,
        WindowForecast,
    )
    from shuffle_ledger.ledger.answers.heads import Standing
    from shuffle_ledger.ledger.answers.quotes import BatchQuote, Fits
    from shuffle_ledger.ledger.answers.rounds import STATES, ListedRound, RoundPage
    from shuffle_ledger.ledger.answers.summaries import (
        ASSUMES,
        FITS_IF,
        KINDS_SHOWN_MAX,
        fits_in_words,
        pace_in_words,
        state_in_words,
        used_percent,
    )

else:
    __getattr__ = imported_when_used(
        __name__,
        {
            "budgets": "BudgetStatement Closure PromiseReading QuotaReading SlotReading worth_showing",
            "calculations": (
                "CalibratedRounds amplification attack_on calibrated_error calibrated_rounds certified "
                "certified_alike composition few_honest"
            ),
            "cohorts": "ListedCohort ShownCohort",
            "entries": "EventPage PublishedPage",
            "forecasts": "Forecast JointForecast KindForecast LargestEpsilon0 WindowForecast",
            "heads": "Standing",
            "quotes": "BatchQuote Fits",
            "rounds": "ListedRound RoundPage STATES",
            "summaries": (
                "ASSUMES FITS_IF KINDS_SHOWN_MAX fits_in_words pace_in_words state_in_words used_percent"
            ),
        },
    )

__all__ = [
    "ASSUMES",
    "FITS_IF",
    "KINDS_SHOWN_MAX",
    "STATES",
    "BatchQuote",
    "BudgetStatement",
    "CalibratedRounds",
    "Closure",
    "EventPage",
    "Fits",
    "Forecast",
    "JointForecast",
    "KindForecast",
    "LargestEpsilon0",
    "ListedCohort",
    "ListedRound",
    "PromiseReading",
    "PublishedPage",
    "QuotaReading",
    "RoundPage",
    "ShownCohort",
    "SlotReading",
    "Standing",
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
