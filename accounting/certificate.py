"""Certified intervals, and the causes of their width."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from shuffle_ledger.accounting.printed_numbers import interval_text

#: Version of everything that can change a number; any such change gets a new name.
NUMERICAL_POLICY = "shuffle-ledger-numerics-32"
#: Relative width of intervals of epsilon by default.
DEFAULT_PRECISION = 1e-3


def is_known_policy(name: str) -> bool:
    """Returns whether this version judges entries of a numerical policy by the rules that wrote them."""
    return name == NUMERICAL_POLICY


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """The width of a certified interval by cause, in the unit of the answer.

    Attributes:
        discretization: the lattice of losses, the interpolation of profiles, the smoothing of kinks.
        truncation: infinite and negligible losses, aliasing, nodes that are left out, slack.
        round_off: floating-point arithmetic.
    """

    discretization: float
    truncation: float
    round_off: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Certificate:
    """A certified interval for rounds whose parameters were fixed in advance.

    Attributes:
        epsilon_upper: upper bound on the exact epsilon of the rounds' analyses; infinite if no finite one is
            certain.
        epsilon_lower: lower bound on that epsilon; infinite if it certainly is infinite.
        delta_upper: upper bound on the exact delta at epsilon; the given delta if epsilon was computed.
        delta_lower: lower bound on that delta; likewise.
        rounds: number of rounds together.
        error: width of the computed interval by cause, in its unit.
        precise: whether the interval is as narrow as asked.
        method: the numerical policy.
    """

    epsilon_upper: float
    epsilon_lower: float
    delta_upper: float
    delta_lower: float
    rounds: int
    error: ErrorBudget
    precise: bool
    method: str = NUMERICAL_POLICY

    def smaller(self, other: Certificate) -> Certificate:
        """Returns the answer that is the smaller one of two analyses of the same rounds.

        Guarantee: it contains the smaller of the two exact values.
        """
        first, second = ((one.epsilon_upper, one.delta_upper) for one in (self, other))
        kept, left = (other, self) if second < first else (self, other)
        epsilon, delta = min(kept.epsilon_lower, left.epsilon_lower), min(kept.delta_lower, left.delta_lower)
        more = (kept.epsilon_lower - epsilon) + (kept.delta_lower - delta) if math.isfinite(epsilon) else 0.0
        if more == 0:
            return dataclasses.replace(kept, rounds=self.rounds)
        error = dataclasses.replace(kept.error, discretization=kept.error.discretization + more)
        return dataclasses.replace(
            kept, epsilon_lower=epsilon, delta_lower=delta, rounds=self.rounds, error=error, precise=False
        )

    def __repr__(self) -> str:
        """Returns the interval in few digits: lower bounds are rounded down, upper bounds up."""
        width = "" if self.precise else ", wider than asked"
        return f"<Certificate: epsilon {self._epsilon()}, delta {self._delta()}, rounds {self.rounds}{width}>"

    def _epsilon(self) -> str:
        return interval_text(self.epsilon_lower, self.epsilon_upper)

    def _delta(self) -> str:
        return interval_text(self.delta_lower, self.delta_upper)


@dataclass(frozen=True, kw_only=True)
class RenyiBound:
    """Bounds on a Renyi divergence of some order, the same in both directions.

    Attributes:
        order: above 0; at 1 the divergence is the Kullback-Leibler divergence.
        upper: upper bound on the divergence; may be infinite.
        lower: lower bound on the divergence.
    """

    order: float
    upper: float
    lower: float


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Bounds on one number, and the parts of their distance that truncation and round-off cause."""

    upper: float
    lower: float
    truncation: float = 0.0
    round_off: float = 0.0

    @property
    def width(self) -> float:
        """Returns the distance of the bounds; infinite if only the upper one is infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def is_within(self, precision: float) -> bool:
        """Returns whether the width is at most `precision` times the upper bound."""
        return self.width <= precision * self.upper and self.width < math.inf

    def error(self) -> ErrorBudget:
        """Returns the width by cause; the part that truncation and round-off do not explain is
        discretization.

        Truncation and round-off are upper bounds. If they add up to more than the width, they are scaled down
        to it.
        """
        if self.width == math.inf:
            return ErrorBudget(discretization=0.0, truncation=self.truncation, round_off=self.round_off)
        truncation, round_off = min(self.truncation, self.width), min(self.round_off, self.width)
        share = min(1.0, self.width / max(truncation + round_off, 1e-300))
        truncation, round_off = truncation * share, round_off * share
        return ErrorBudget(
            discretization=max(self.width - truncation - round_off, 0.0),
            truncation=truncation,
            round_off=round_off,
        )

    def intersection(self, other: Interval) -> Interval:
        """Returns the intersection of both intervals, with the causes of the narrower one."""
        narrow = self if self.width <= other.width else other
        return Interval(
            upper=min(self.upper, other.upper),
            lower=max(self.lower, other.lower),
            truncation=narrow.truncation,
            round_off=narrow.round_off,
        )
