"""Computes the numbers of a chain again while it is replayed, where a ledger is and where none is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from shuffle_ledger.accounting import Accountant, AccountingError, ShuffledRound, exact_text
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, Spending
from shuffle_ledger.ledger.verification.proofs import ChargeSource, Proofs
from shuffle_ledger.ledger.verification.replay import ALTERS, Replay, ReplayedEntry

SAMPLES = 16  # per chain, beside every largest spending

Numbers = Literal["sampled", "all"]
BundleNumbers = Literal["sampled", "all", "none"]  # of a bundle
# "reading": what filters say is spent, beside the composition of the rounds, which it bounds from above.
Subject = Literal["spent", "requested", "reading"]


@dataclass(frozen=True, kw_only=True)
class ComparedNumber:
    """A number of an entry, and the composition of its rounds that was computed again."""

    body: EntryBody
    subject: Subject
    rounds: Mapping[ShuffledRound, int]
    stated: Spending
    again: Spending
    agrees: bool  # both may be true: the intervals share a point, or the reading is not below


@dataclass
class NumberChecks:
    """Computes charges again at every entry, and compositions at every largest spending and a sample of
    entries. What disagrees is a problem of the replay."""

    replay: Replay
    losses: ChargeSource
    accountant: Accountant
    numbers: BundleNumbers
    length: int  # of the chain
    checked: int = 0  # entries whose compositions were computed again
    note: Callable[[ComparedNumber], None] | None = None  # gets every number that was computed again
    _last: ReplayedEntry | None = None  # the step before, unless it is checked already

    def __post_init__(self) -> None:
        """Choose the sample."""
        self._stride = 1 if self.numbers == "all" else max(1, -(-self.length // SAMPLES))
        self.proofs = Proofs(self.replay.fold, self.losses, Coverage(self.accountant))

    def see(self, step: ReplayedEntry) -> None:
        """Take notice of the next step."""
        if not is_usable(step.body):
            place = step.body.sequence if type(step.body.sequence) is int else None
            self.replay.blame(place, "its numbers are none that could be bounds, or a budget")
            return
        if self.numbers == "none":
            return
        self._check_charges(step)
        if step.body.kind in ALTERS:
            self.finish()  # what follows may hold less: this was the most
        self._last = step
        if step.body.kind in ALTERS or step.sequence % self._stride == 0:
            self.finish()

    def finish(self) -> None:
        """Check the last step, unless that was done."""
        step, self._last = self._last, None
        if step is None:
            return
        self.checked += 1
        body = step.body
        if math.isinf(body.epsilon_budget):
            return  # there is no budget: what is spent of it is zero by definition
        self._compare(step, "reading" if step.filtered else "spent", step.held, body.spent)
        if step.candidate is not None:
            requested = _spending(body.details["requested"])
            if requested is None:
                self.replay.blame(body.sequence, "what it says was requested bounds nothing")
            else:
                self._compare(step, "requested", step.candidate, requested)

    def _check_charges(self, step: ReplayedEntry) -> None:
        try:
            for what in self.proofs.unproven(opens=step.body.kind is EntryKind.OPENED):
                self.replay.blame(step.sequence, what)
        except (AccountingError, LedgerError, ArithmeticError, ValueError) as error:
            self.replay.blame(step.sequence, f"its charge cannot be computed again: {error}")

    def _compare(
        self, step: ReplayedEntry, subject: Subject, rounds: Mapping[ShuffledRound, int], stated: Spending
    ) -> None:
        body = step.body
        # An admission is compared with the budget, so its interval is as narrow as that takes.
        decides = body.kind is EntryKind.ADMITTED and subject == "spent"
        try:
            again = self.losses.certify(
                rounds, delta=body.delta_budget, budget=body.epsilon_budget if decides else None
            )
        except (AccountingError, LedgerError) as error:
            self.replay.blame(step.sequence, f"its numbers cannot be computed again: {error}")
            return
        # Both intervals contain the same exact number, with any rules and precision. A reading of filters is
        # a separate bound, above the composition: a smaller one would be a contradiction.
        agrees = again.epsilon_lower <= stated.epsilon_upper
        if subject != "reading":
            agrees = agrees and stated.epsilon_lower <= again.epsilon_upper
        if not agrees:
            what = (
                f"it says epsilon {subject} is from {exact_text(stated.epsilon_lower)} to"
                f" {exact_text(stated.epsilon_upper)}; computed again it is from"
                f" {exact_text(again.epsilon_lower)} to {exact_text(again.epsilon_upper)}"
            )
            self.replay.blame(step.sequence, what)
        if body.kind is EntryKind.ADMITTED and again.epsilon_lower > body.epsilon_budget:
            what = f"it admits a round beyond the budget of {exact_text(body.epsilon_budget)}: at least"
            self.replay.blame(step.sequence, f"{what} {exact_text(again.epsilon_lower)} is spent with it")
        if self.note is not None:
            self.note(
                ComparedNumber(
                    body=body, subject=subject, rounds=rounds, stated=stated, again=again, agrees=agrees
                )
            )


def is_usable(body: EntryBody) -> bool:
    """Return whether an entry's numbers, which may be forged, can be bounds, and its budget a budget."""
    budget = (body.epsilon_budget, body.delta_budget)
    is_typed = type(body.sequence) is int and all(type(each) is float for each in budget)
    return is_typed and _is_bounds(body.spent)


def _spending(fields: object) -> Spending | None:
    try:
        spending = Spending(**fields)  # type: ignore[arg-type]  # whatever an entry may hold is tried
    except TypeError:
        return None
    return spending if _is_bounds(spending) else None


def _is_bounds(spending: Spending) -> bool:
    numbers = (spending.epsilon_lower, spending.epsilon_upper)
    return all(type(each) is float for each in numbers) and 0.0 <= numbers[0] <= numbers[1]
