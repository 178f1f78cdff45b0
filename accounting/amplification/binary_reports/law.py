"""The law of a report that is one bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shuffle_ledger.accounting.numeric.arrays import FloatArray
from shuffle_ledger.accounting.numeric.later import np


@dataclass(frozen=True, kw_only=True)
class BitLaw:
    """A report that is one bit: 1 with probability `a` under one input, and `b < a` under the other.

    Attributes:
        a, b: these probabilities, inside (0, 1).
        not_a, not_b: those of a 0, each with its own relative round-off.
        gap: `a - b`, with more digits than the subtraction has.
    """

    a: float
    b: float
    not_a: float
    not_b: float
    gap: float

    @classmethod
    def of_response(cls, epsilon0: float) -> BitLaw:
        """Returns the law of binary randomized response."""
        p, q = 1 / (1 + math.exp(epsilon0)), 1 / (1 + math.exp(-epsilon0))
        return cls(a=q, b=p, not_a=p, not_b=q, gap=math.tanh(epsilon0 / 2))

    @property
    def mirrored(self) -> BitLaw:
        """Returns the law of the flipped bit, which exchanges the inputs: its divergences are those of the
        other direction."""
        return BitLaw(a=self.not_b, b=self.not_a, not_a=self.b, not_b=self.a, gap=self.gap)

    @property
    def is_symmetric(self) -> bool:
        """Returns whether both directions have the same divergences."""
        return self.a == self.not_b and self.b == self.not_a

    @property
    def logits(self) -> tuple[float, float]:
        """Returns `log(a / (1 - a))` and `log(b / (1 - b))`."""
        return math.log(self.a / self.not_a), math.log(self.b / self.not_b)

    def gained(self, excess: FloatArray) -> FloatArray:
        """Returns `A = a - r b` at the orders `r = 1 + excess`, shape (orders,).

        The likelihood ratio of a 1 is `a / b`, so the divergence is 0 where A is not positive. `B = A +
        excess` is `r (1 - b) - (1 - a)`.
        """
        return np.asarray(self.gap - excess * self.b)
