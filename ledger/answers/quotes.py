"""Prices of planned rounds, and what would fit in place of one."""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_ledger.ledger.values.requests import Quote

BATCH_MAX = 200  # rounds of one quote


@dataclass(frozen=True, kw_only=True)
class Fits:
    """What would fit now in place of a round. Each value was itself certified to fit."""

    rounds: int  # number of such rounds; 200 means that or more
    epsilon0: (
        float | None
    )  # one such round with this epsilon0; None: no single epsilon0 decides, or none fits


@dataclass(frozen=True, kw_only=True)
class BatchQuote:
    """The answers that the rounds would get if they were registered now, in this order."""

    cohort: str
    rounds_admitted: int
    rounds_refused: int
    epsilon_spent_upper: float  # of the cohort's own budget, now
    epsilon_remaining: float  # of it, after all of them
    quotes: tuple[Quote, ...]
    fits: Fits | None  # in place of the first round; None unless asked
