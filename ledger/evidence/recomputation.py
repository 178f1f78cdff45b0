"""Computing a chain's numbers again, from nothing but the parameters in its entries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shuffle_ledger.accounting import (
    Accountant,
    AccountingError,
    FilterCharge,
    FilterSet,
    ShuffledRound,
    exact_text,
)
from shuffle_ledger.accounting.verification import Coverage
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.evidence.findings import NumberCheck, Numbers, SecondOpinion, Subject
from shuffle_ledger.ledger.evidence.second_opinions import SecondOpinions
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, Spending
from shuffle_ledger.ledger.verification.budget_trail import Trail
from shuffle_ledger.ledger.verification.replay import ALTERS, ReplayedEntry

SAMPLES = 16  # per chain, beside every largest spending
SECOND_COMPOSITIONS = 16  # numbers of a chain that get a second opinion
SECOND_KINDS = 16  # kinds of rounds that do, unless all numbers are computed again


# What do these rounds, each so often, reveal together at this delta?
_Asked: TypeAlias = tuple[frozenset[tuple[ShuffledRound, int]], float]


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """A number to be computed again: the composed rounds, and the entry's numbers."""

    body: EntryBody
    subject: Subject
    rounds: frozenset[tuple[ShuffledRound, int]]
    stated: Spending
    limit: float  # the epsilon beyond which rounds are refused

    @property
    def asked(self) -> _Asked:
        """Returns what is computed and compared with the stated spending."""
        return self.rounds, self.body.delta_budget


class Recomputation:
    """Collects a chain's numbers while it is replayed, and computes them again at the end."""

    def __init__(self, accountant: Accountant, numbers: Numbers, length: int) -> None:
        self._accountant = accountant
        self._coverage = Coverage(accountant)
        self._numbers = numbers
        self._stride = 1 if numbers == "all" else max(1, -(-length // SAMPLES))
        self._questions: list[_Stated] = []
        self._last: tuple[ReplayedEntry, bool] | None = None
        self._known: dict[_Asked, Spending | str] = {}  # or why there is none
        self.opinions = SecondOpinions(accountant)
        self.met: dict[ShuffledRound, int] = {}  # kinds of rounds, with the first entry asked about them
        self.kinds: Counter[EntryKind] = Counter()
        self.problems: list[tuple[int | None, str]] = []
        self.notes: list[tuple[int, str]] = []  # sound, and worth knowing
        self.stated = 0  # numbers in the chain
        self.last: EntryBody | None = None  # the last one whose numbers are bounds
        self.within = True  # by the chain's own numbers, no entry leaves more spent than the budget

    def see(self, step: ReplayedEntry, trail: Trail) -> None:
        """Take notice of the next step, and of the policy's state after it."""
        body, kind = step.body, step.body.kind
        self.kinds[kind] += 1
        self.stated += 1 + (step.candidate is not None)
        if not _is_usable(body):
            place = body.sequence if type(body.sequence) is int else None
            self.problems.append((place, "its numbers are none that could be bounds, or a budget"))
            return
        self.last = body
        self.within = self.within and body.spent.epsilon_upper <= step.promised
        if self._numbers == "none" or math.isinf(body.epsilon_budget):
            return
        self._compute_charges(step, trail)
        if kind in ALTERS:
            self._ask_last()  # what follows may hold less: this was the most
        due = kind in ALTERS or step.sequence % self._stride == 0
        if due:
            self._ask(step)
        self._last = (step, due)

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Return what a round costs each filter, from nothing but its parameters."""
        return self._accountant.charge(accounted, filters)

    def certify(self, held: Mapping[ShuffledRound, int], *, delta: float) -> Spending:
        """Return the certified composition of rounds, from nothing but their parameters."""
        return Spending.from_certificate(self._accountant.certify(held, delta=delta), delta=delta)

    def finish(self, tell: Callable[[int, int], None]) -> list[NumberCheck]:
        """Return every number that was asked for, beside what its parameters give."""
        self._ask_last()
        checks = []
        wanted = list(dict.fromkeys(question.asked for question in self._questions))
        for done, asked in enumerate(wanted, start=1):
            self._known[asked] = self._answered(*asked)
            tell(done, len(wanted))
        stride = max(1, len(self._questions) // SECOND_COMPOSITIONS)
        for left, question in enumerate(reversed(self._questions)):
            # Counted from the end, so that the last number always gets a second opinion.
            check = self._answer(question, seconded=left % stride == 0)
            if check is not None:
                checks.append(check)
        self._second_kinds(tell)
        return checks[::-1]

    def _answered(self, rounds: frozenset[tuple[ShuffledRound, int]], delta: float) -> Spending | str:
        try:
            return self.certify(dict(rounds), delta=delta)
        except (AccountingError, LedgerError) as error:
            return str(error)

    def _second_kinds(self, tell: Callable[[int, int], None]) -> None:
        stride = 1 if self._numbers == "all" else max(1, -(-len(self.met) // SECOND_KINDS))
        chosen = list(self.met.items())[::stride]
        for done, (kind, sequence) in enumerate(chosen, start=1):
            try:
                contradiction = self.opinions.on_kind(kind)
            except AccountingError:
                continue  # what cannot be computed is named with the number it is part of
            if contradiction is not None:
                self.problems.append((sequence, contradiction))
            tell(done, len(chosen))

    def _compute_charges(self, step: ReplayedEntry, trail: Trail) -> None:
        try:
            self.problems += [(step.sequence, what) for what in trail.recompute(self, self._coverage)]
            self.notes += [(step.sequence, what) for what in trail.dearer(self)]
        except (AccountingError, LedgerError, ArithmeticError, ValueError) as error:
            self.problems.append((step.sequence, f"its charge cannot be computed again: {error}"))

    def _ask_last(self) -> None:
        if self._last is not None and not self._last[1]:
            self._ask(self._last[0])
            self._last = (self._last[0], True)

    def _ask(self, step: ReplayedEntry) -> None:
        body = step.body
        held = frozenset(step.held.items())
        for kind in step.held:
            self.met.setdefault(kind, body.sequence)
        subject: Subject = "reading" if step.filtered else "spent"
        limited = {"limit": step.limit}
        self._questions.append(_Stated(body=body, subject=subject, rounds=held, stated=body.spent, **limited))
        if step.candidate is None:
            return
        requested = _spending(body.details["requested"])
        if requested is None:
            self.problems.append((body.sequence, "what it says was requested bounds nothing"))
            return
        asked = frozenset(step.candidate.items())
        self._questions.append(
            _Stated(body=body, subject="requested", rounds=asked, stated=requested, **limited)
        )

    def _answer(self, question: _Stated, *, seconded: bool) -> NumberCheck | None:
        body, stated = question.body, question.stated
        again = self._known[question.asked]
        if isinstance(again, str):
            self.problems.append((body.sequence, f"its numbers cannot be computed again: {again}"))
            return None
        # Both intervals contain the same exact number, with any rules and precision. A reading of filters is
        # a separate bound, above the composition: a smaller one would be a contradiction.
        agrees = again.epsilon_lower <= stated.epsilon_upper
        if question.subject != "reading":
            agrees = agrees and stated.epsilon_lower <= again.epsilon_upper
        if not agrees:
            what = (
                f"it says epsilon {question.subject} is from {exact_text(stated.epsilon_lower)} to"
                f" {exact_text(stated.epsilon_upper)}; its parameters give from"
                f" {exact_text(again.epsilon_lower)} to {exact_text(again.epsilon_upper)}"
            )
            self.problems.append((body.sequence, what))
        if body.kind is EntryKind.ADMITTED and again.epsilon_lower > question.limit:
            what = (
                "it admits a round beyond the budget: at least"
                f" {exact_text(again.epsilon_lower)} is spent with it"
            )
            self.problems.append((body.sequence, what))
        second = self._seconded(question, again) if seconded else None
        return NumberCheck(
            sequence=body.sequence,
            round_id=body.round_id,
            subject=question.subject,
            stated_upper=stated.epsilon_upper,
            stated_lower=stated.epsilon_lower,
            computed_upper=again.epsilon_upper,
            computed_lower=again.epsilon_lower,
            agrees=agrees,
            second=second,
        )

    def _seconded(self, question: _Stated, again: Spending) -> SecondOpinion | None:
        computed = (again.epsilon_lower, again.epsilon_upper)
        second = self.opinions.on_composition(dict(question.rounds), delta=again.delta, computed=computed)
        if second is not None and not second.agrees:
            what = (
                f"epsilon {question.subject} is from {exact_text(computed[0])} to {exact_text(computed[1])};"
                f" by another method from {exact_text(second.epsilon_lower)} to"
                f" {exact_text(second.epsilon_upper)}"
            )
            self.problems.append((question.body.sequence, what))
        return second


def _spending(fields: object) -> Spending | None:
    try:
        spending = Spending(**fields)  # type: ignore[arg-type]  # whatever an entry may hold is tried
    except TypeError:
        return None
    return spending if _is_bounds(spending) else None


def _is_bounds(spending: Spending) -> bool:
    """Returns whether an entry's numbers, which may be forged, can be bounds at all."""
    numbers = (spending.epsilon_lower, spending.epsilon_upper)
    return all(type(each) is float for each in numbers) and 0.0 <= numbers[0] <= numbers[1]


def _is_usable(body: EntryBody) -> bool:
    budget = (body.epsilon_budget, body.delta_budget)
    return (
        type(body.sequence) is int and all(type(each) is float for each in budget) and _is_bounds(body.spent)
    )
