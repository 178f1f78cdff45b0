"""Second opinions: the accountant's numbers beside those of a method that shares no arithmetic with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shuffle_ledger.accounting import (
    Accountant,
    AccountingError,
    ShuffledRound,
    charged_as,
    charged_together,
    exact_text,
    with_summed_curves,
)
from shuffle_ledger.accounting.verification import (
    AGREEMENT,
    SMALLEST_DELTA,
    composed_epsilon,
    round_delta,
)
from shuffle_ledger.ledger.evidence.findings import SecondOpinion

COMPOSITION = "plain convolution of the rounds' losses on an even lattice"
# Where on its profile a round is looked at.
_DELTAS = (1e-3, 1e-8)
_WIDTH_TOLERANCE = 1e-3
_NOTHING = 1e-6  # of epsilon: by convolution, what is smaller is round-off


class SecondOpinions:
    """Asks the second method, and remembers which kinds of rounds it confirmed."""

    def __init__(self, accountant: Accountant) -> None:
        self._accountant = accountant
        self.confirmed: set[ShuffledRound] = set()
        self.without: dict[ShuffledRound, None] = {}  # kinds that no second method answers for, in order

    def on_kind(self, kind: ShuffledRound) -> str | None:
        """Return how the second method contradicts a kind's privacy loss; None if it does not."""
        kind, _ = charged_as(kind)  # several reports of a user are several rounds
        if kind in self.confirmed or kind in self.without:
            return None
        loss = self._accountant.privacy_loss(kind)
        answered = False
        for delta in _DELTAS:
            epsilon = self._accountant.certify({kind: 1}, delta=delta).epsilon_upper
            below, above = (pair.hockey_stick_divergence(epsilon) for pair in (loss.lower, loss.upper))
            if math.isinf(epsilon) or not above >= SMALLEST_DELTA:
                continue  # no finite epsilon holds, or the round's own profile ends before
            second = round_delta(kind, epsilon)
            if second is None:
                continue
            answered = True
            if not below * (1 - AGREEMENT) <= second <= above * (1 + AGREEMENT):
                return (
                    f"one round of {kind.in_words}: delta at epsilon"
                    f" {exact_text(epsilon)} is from {exact_text(below)} to {exact_text(above)}; by another"
                    f" method {exact_text(second)}"
                )
        if answered:
            self.confirmed.add(kind)
        else:
            self.without[kind] = None
        return None

    def on_composition(
        self, held: Mapping[ShuffledRound, int], *, delta: float, computed: tuple[float, float]
    ) -> SecondOpinion | None:
        """Return the epsilon of rounds together by the second method; None where it does not answer.

        Args:
            computed: the certified interval, lower end first.
        """
        found = self._composed(held, delta)
        summed = with_summed_curves(held)
        if summed is not None and found is not None:
            other = self._composed(summed, delta)
            found = other if other is None or other[1] < found[1] else found
        if found is None:
            return None
        below, above = found
        room = _WIDTH_TOLERANCE * computed[1] + _NOTHING
        return SecondOpinion(
            method=COMPOSITION,
            epsilon_upper=above,
            epsilon_lower=below,
            agrees=computed[0] <= above + room and below <= computed[1] + room,
        )

    def _composed(self, held: Mapping[ShuffledRound, int], delta: float) -> tuple[float, float] | None:
        """Return the epsilons of the pairs below and above all rounds; None where there is no answer."""
        held = charged_together(held)
        pairs = [(self._accountant.privacy_loss(kind), count) for kind, count in held.items()]
        slack = math.fsum(kind.slack * count for kind, count in held.items())
        uppers = [(loss.upper, count) for loss, count in pairs]
        lowers = [(loss.lower, count) for loss, count in pairs]
        try:
            above = composed_epsilon(uppers, delta=delta, slack=slack)
            below = composed_epsilon(lowers, delta=delta, slack=slack)
        except AccountingError:
            return None
        if above is None or below is None:
            return None
        return min(above, below), max(above, below)
