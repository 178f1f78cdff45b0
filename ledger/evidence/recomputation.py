"""Computing a bundle's numbers again: from nothing but its entries' parameters, and by a second method."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from shuffle_ledger.accounting import (
    Accountant,
    AccountingError,
    FilterCharge,
    FilterSet,
    ShuffledRound,
    exact_text,
)
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.evidence.findings import NumberCheck, SecondOpinion
from shuffle_ledger.ledger.evidence.second_opinions import SecondOpinions
from shuffle_ledger.ledger.values.entries import EntryBody, Spending
from shuffle_ledger.ledger.verification.number_checks import (
    BundleNumbers,
    ComparedNumber,
    NumberChecks,
    is_usable,
)
from shuffle_ledger.ledger.verification.replay import Replay, ReplayedEntry

SECOND_COMPOSITIONS = 16  # numbers of a chain that get a second opinion
SECOND_KINDS = 16  # kinds of rounds that do, unless all numbers are computed again


class FromParameters:
    """Computes what rounds cost, from nothing but their parameters."""

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Return what a round costs each filter."""
        return self._accountant.charge(accounted, filters)

    def certify(
        self, held: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Spending:
        """Return the certified composition of rounds, as narrow as tells whether it is within a budget."""
        certificate = self._accountant.certify(held, delta=delta, budget=budget)
        return Spending.from_certificate(certificate, delta=delta)


class Recomputation:
    """Collects the numbers of a chain that were computed again, and asks a second method at the end."""

    def __init__(self, replay: Replay, accountant: Accountant, numbers: BundleNumbers, length: int) -> None:
        self._replay = replay
        self._numbers = numbers
        self._losses = FromParameters(accountant)
        self._checks = NumberChecks(
            replay=replay,
            losses=self._losses,
            accountant=accountant,
            numbers=numbers,
            length=length,
            note=self._note,
        )
        self._compared: list[ComparedNumber] = []
        self.opinions = SecondOpinions(accountant)
        self.met: dict[ShuffledRound, int] = {}  # kinds of rounds, with the first entry asked about them
        self.notes: list[tuple[int, str]] = []  # sound, and worth knowing
        self.stated = 0  # numbers in the chain
        self.last: EntryBody | None = None  # the last one whose numbers are bounds
        self.within = True  # by the chain's own numbers, no entry leaves more spent than the budget

    def see(self, step: ReplayedEntry) -> None:
        """Take notice of the next step, just replayed."""
        self.stated += 1 + (step.candidate is not None)
        self._checks.see(step)
        if not is_usable(step.body):
            return
        self.last = step.body
        self.within = self.within and step.body.spent.epsilon_upper <= step.promised
        if self._numbers != "none":
            # The check named already which charge cannot be computed.
            with contextlib.suppress(AccountingError, LedgerError, ArithmeticError, ValueError):
                self.notes += [(step.sequence, what) for what in self._checks.proofs.dearer()]

    def finish(self, tell: Callable[[int, int], None]) -> list[NumberCheck]:
        """Return every number that was asked for, beside what its parameters give."""
        self._checks.finish()
        stride = max(1, len(self._compared) // SECOND_COMPOSITIONS)
        # Counted from the end, so that the last number always gets a second opinion.
        checks = [
            _check(each, self._seconded(each) if left % stride == 0 else None)
            for left, each in enumerate(reversed(self._compared))
        ]
        self._second_kinds(tell)
        return checks[::-1]

    def _note(self, compared: ComparedNumber) -> None:
        self._compared.append(compared)
        if compared.subject != "requested":
            for kind in compared.rounds:
                self.met.setdefault(kind, compared.body.sequence)

    def _second_kinds(self, tell: Callable[[int, int], None]) -> None:
        stride = 1 if self._numbers == "all" else max(1, -(-len(self.met) // SECOND_KINDS))
        chosen = list(self.met.items())[::stride]
        for done, (kind, sequence) in enumerate(chosen, start=1):
            try:
                contradiction = self.opinions.on_kind(kind)
            except AccountingError:
                continue  # what cannot be computed is named with the number it is part of
            if contradiction is not None:
                self._replay.blame(sequence, contradiction)
            tell(done, len(chosen))

    def _seconded(self, compared: ComparedNumber) -> SecondOpinion | None:
        again = compared.again
        computed = (again.epsilon_lower, again.epsilon_upper)
        second = self.opinions.on_composition(compared.rounds, delta=again.delta, computed=computed)
        if second is not None and not second.agrees:
            what = (
                f"epsilon {compared.subject} is from {exact_text(computed[0])} to {exact_text(computed[1])};"
                f" by another method from {exact_text(second.epsilon_lower)} to"
                f" {exact_text(second.epsilon_upper)}"
            )
            self._replay.blame(compared.body.sequence, what)
        return second


def _check(compared: ComparedNumber, second: SecondOpinion | None) -> NumberCheck:
    return NumberCheck(
        sequence=compared.body.sequence,
        round_id=compared.body.round_id,
        subject=compared.subject,
        stated_upper=compared.stated.epsilon_upper,
        stated_lower=compared.stated.epsilon_lower,
        computed_upper=compared.again.epsilon_upper,
        computed_lower=compared.again.epsilon_lower,
        agrees=compared.agrees,
        second=second,
    )
