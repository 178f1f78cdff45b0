"""Compositions of rounds that verification asks for: each stands alone."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from shuffle_ledger.accounting import Accountant, AccountingError, ShuffledRound
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.values.entries import Spending


class Question(NamedTuple):
    """What do these rounds, each so often, reveal together at this delta?"""

    rounds: frozenset[tuple[ShuffledRound, int]]
    delta: float


class Bounds(NamedTuple):
    """Epsilon is certified to lie between these."""

    lower: float
    upper: float


Answer: TypeAlias = Bounds | str  # or why there is none


def answered(accountant: Accountant, question: Question) -> Answer:
    """Return the certified interval, or why there is none."""
    try:
        certificate = accountant.certify(dict(question.rounds), delta=question.delta)
        spending = Spending.from_certificate(certificate, delta=question.delta)
    except (AccountingError, LedgerError) as error:
        return str(error)
    return Bounds(spending.epsilon_lower, spending.epsilon_upper)
