"""Compositions of rounds that verification asks for: each stands alone, wherever it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

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


class Compositions(Protocol):
    """Answers questions about compositions, in this process or by workers."""

    def answers(self, questions: Sequence[Question], tell: Callable[[int, int], None]) -> Iterator[Answer]:
        """Yield the answers in the questions' order; `tell` how many there are already, and of how many."""


class InThisProcess:
    """Answers one question after the other."""

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant

    def answers(self, questions: Sequence[Question], tell: Callable[[int, int], None]) -> Iterator[Answer]:
        """See `Compositions`."""
        for done, question in enumerate(questions, start=1):
            yield answered(self._accountant, question)
            tell(done, len(questions))


def answered(accountant: Accountant, question: Question) -> Answer:
    """Return the certified interval, or why there is none."""
    try:
        certificate = accountant.certify(dict(question.rounds), delta=question.delta)
        spending = Spending.from_certificate(certificate, delta=question.delta)
    except (AccountingError, LedgerError) as error:
        return str(error)
    return Bounds(spending.epsilon_lower, spending.epsilon_upper)
