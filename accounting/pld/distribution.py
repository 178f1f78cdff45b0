"""Privacy loss distributions of one round, on a lattice of losses.

All pairs here are symmetric (exchanging the datasets exchanges P and Q): a round's profile is the larger of
its two directions, order by order. A pair is then given by its losses `x > 0`, their masses `p` under P and
`q = exp(-x) p` under Q, the mass at loss 0 and the mass at infinity; loss `-x` has mass `q` under P.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.printed_numbers import exact_text

Side = Literal["upper", "lower"]

# A profile below this is not resolved further: what lies beyond counts as infinite loss.
NEGLIGIBLE_DELTA = 1e-46
_ROOM = 64 * UNIT_ROUND_OFF
_SUM_TOLERANCE = 1e-9
_SUM_ROOM = 1e-11  # of sums of as many masses as a pair has
_MINIMUM_ORDER = 1e-200  # below, products with losses vanish
_MAXIMUM_ORDER = 1e9


class Tail(NamedTuple):
    """Upper bounds on the far part of a profile, which falls to 0 at the last loss.

    `losses` are ascending, shape (points,); `log_heights[i]` bounds the logarithm of the profile from
    `losses[i]` on, shape (points - 1,).
    """

    losses: FloatArray
    log_heights: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivacyLossDistribution:
    """A symmetric pair of discrete distributions by its privacy losses on a lattice.

    Attributes:
        spacing: distance of neighbouring lattice losses.
        index: positive lattice positions with mass, ascending, shape (losses,); the losses are `index *
            spacing`.
        p: mass under P at these losses, shape (losses,).
        q: mass under Q at these losses, and under P at their negatives, shape (losses,).
        zero: mass at loss 0.
        infinity: mass under P where Q has none.
        support: loss that the finite losses of the round certainly do not exceed; may be infinite.
        side: "upper" when the pair's profile is at least, "lower" when it is at most, the profile it stands
            for.
    """

    spacing: float
    index: IndexArray
    p: FloatArray
    q: FloatArray
    zero: float
    infinity: float
    support: float
    side: Side

    def __post_init__(self) -> None:
        for name in ("index", "p", "q"):
            getattr(self, name).setflags(write=False)
        masses = np.concatenate([self.p, self.q, [self.zero, self.infinity]])
        probable = np.all((masses >= 0) & (masses <= 1 + _SUM_TOLERANCE))  # no NaN is
        if not probable or abs(float(masses.sum()) - 1) > _SUM_TOLERANCE:
            raise InvalidParameter(
                "masses", sum(masses.tolist()), "finite masses, not negative, that sum to 1"
            )
        if self.index.size and (self.index[0] < 1 or np.any(np.diff(self.index) < 1)):
            raise InvalidParameter("index", self.index.tolist()[:4], "ascending positive lattice positions")

    @property
    def losses(self) -> FloatArray:
        """Positive privacy losses, shape (losses,)."""
        return np.asarray(self.index * self.spacing, dtype=np.float64)

    @property
    def largest_loss(self) -> float:
        """Largest finite privacy loss, 0 when there is none; of an upper pair, no more than the round's
        own."""
        largest = float(self.index[-1] * self.spacing) if self.index.size else 0.0
        return min(largest, self.support)

    def variance(self) -> float:
        """Variance of the finite privacy loss under P; 0 when every loss is infinite."""
        total = self.p.sum() + self.q.sum() + self.zero
        if total == 0:
            return 0.0
        mean = (self.losses * (self.p - self.q)).sum() / total
        second = (self.losses**2 * (self.p + self.q)).sum() / total
        return float(max(second - mean * mean, 0.0))

    def without_tail(self, mass: float) -> PrivacyLossDistribution:
        """The pair without its largest losses, as many as have at most this probability together with their
        negatives; the pair itself when they are none.

        Guarantee: still on its side. Above, what is taken counts as infinite loss in either direction; below,
        it is told apart no longer and counts as loss 0.
        """
        beyond = np.append(np.cumsum((self.p + self.q)[::-1])[::-1], 0.0)
        kept = int(np.argmax(beyond <= mass))
        moved, above = float(beyond[kept]), self.side == "upper"
        if moved == 0:
            return self
        return dataclasses.replace(
            self,
            index=self.index[:kept],
            p=self.p[:kept],
            q=self.q[:kept],
            zero=self.zero + (0.0 if above else moved * (1 - _SUM_ROOM)),
            infinity=self.infinity + (moved * (1 + _SUM_ROOM) if above else 0.0),
        )

    def unless_revealed(self, mass: float) -> PrivacyLossDistribution:
        """The pair on the condition that a coin, which reveals everything with probability `mass`, does not.

        Args:
            mass: from 0 to the mass at infinity. Beyond 1/2 the pair itself is returned: so large a mass is
                never within a budget, and what is left would be round-off.

        Guarantee: the pair is dominated by the coin together with the pair returned, round-off included.
        """
        if not 0 < mass <= 1 / 2:
            return self
        scale = (1 + 8 * UNIT_ROUND_OFF) / (1 - mass)
        return dataclasses.replace(
            self,
            p=self.p * scale,
            q=self.q * scale,
            zero=self.zero * scale,
            infinity=max(self.infinity - mass, 0.0) * scale,
        )

    def hockey_stick_divergence(self, epsilon: float) -> float:
        """`H_{e^epsilon}(P || Q)`, up to round-off, for any real epsilon."""
        if epsilon < 0:
            return -math.expm1(epsilon) + math.exp(epsilon) * self.hockey_stick_divergence(-epsilon)
        beyond = self.losses > epsilon
        gains = self.p[beyond] * -np.expm1(epsilon - self.losses[beyond])
        return float(gains.sum()) + self.infinity

    def divergence_bound(self, epsilon: float) -> float:
        """`H_{e^epsilon}(P || Q)` for `epsilon >= 0`, rounded up for an upper pair and down for a lower
        one."""
        value = self.hockey_stick_divergence(epsilon)
        # Losses and their differences from epsilon are off by a few units of the losses.
        beyond = float(self.p[self.losses > epsilon * (1 - 8 * UNIT_ROUND_OFF)].sum())
        doubt = UNIT_ROUND_OFF * (64 * value + 8 * (epsilon + self.largest_loss) * beyond)
        return value + doubt if self.side == "upper" else max(value - doubt, 0.0)

    def renyi_divergence(self, order: float, *, finite: bool = False, tail: Tail | None = None) -> float:
        """Renyi divergence of this order, `D_order(P || Q)`, the same in both directions; Kullback-Leibler at
        order 1.

        Args:
            order: a number from 1e-200 to 1e9.
            finite: of P and Q conditioned on finite losses instead, which have probability `1 - infinity`
                under each of them.
            tail: of an upper pair, what its mass at infinite loss stands for.

        Guarantee: at least the divergence of everything that an upper pair dominates, at most that of
            everything that dominates a lower pair, round-off included. An upper pair's mass at infinity makes
            it infinite from order 1 on, unless `support` is finite: that mass then counts at the loss
            `support`, which still is above every profile that falls to 0 there.
        Source: Renyi divergences are mixtures of hockey-stick divergences; docs/theory.md.

        Raises:
            InvalidParameter: the order is out of range.
        """
        expected = f"a number from {exact_text(_MINIMUM_ORDER)} to {exact_text(_MAXIMUM_ORDER)}"
        order = validation.real("order", order, expected)
        if not _MINIMUM_ORDER <= order <= _MAXIMUM_ORDER:
            raise InvalidParameter("order", order, expected)
        with np.errstate(divide="ignore"):
            losses, log_q = self.losses, np.log(self.q)
        infinity = 0.0 if finite else self.infinity
        if infinity > 0 and order >= 1:
            tail = self._tail() if tail is None else tail
            if tail is None:
                return self.support if self.side == "upper" else math.inf
            # Atoms whose profile is above the tail: from each height a line down to 0 at the next loss.
            room = np.diff(tail.losses)
            doubt = 8 * UNIT_ROUND_OFF * (1 + tail.losses[-1] / room)
            far = tail.log_heights - tail.losses[1:] - np.log(-np.expm1(-room)) + doubt
            losses, log_q = np.append(losses, tail.losses[1:]), np.append(log_q, far)
            infinity = 0.0
        if finite:
            log_q = log_q - math.log1p(-self.infinity)
        value = _renyi_divergence(losses, log_q, infinity, order, upwards=self.side == "upper")
        return min(value, self.support) if self.side == "upper" and not infinity else value

    def _tail(self) -> Tail | None:
        """What the mass at infinite loss of an upper pair stands for, if its losses are bounded."""
        if self.side == "lower" or not self.largest_loss < self.support < math.inf:
            return None
        return Tail(np.array([self.largest_loss, self.support]), np.array([math.log(self.infinity)]))


def _renyi_divergence(
    losses: FloatArray, log_q: FloatArray, infinity: float, order: float, *, upwards: bool
) -> float:
    """Renyi divergence of a symmetric pair, rounded up or down.

    `sum P^order Q^(1 - order) - 1` is `-infinity + sum of q (1 - exp((1 - order) x)) expm1(order x)`: a loss
    and its negative together, so that terms are of one sign and nothing cancels.
    """
    if losses.size == 0:
        log_sum, largest = -math.inf, 0.0
    else:
        turn = abs(order - 1) * losses
        steps = np.log(losses) if order == 1 else np.log(-np.expm1(-turn)) + (turn if order < 1 else 0.0)
        log_terms = log_q + steps + order * losses + np.log(-np.expm1(-order * losses))
        top = float(log_terms.max())
        log_sum = top + math.log(math.fsum(np.exp(log_terms - top)))
        largest = float((np.abs(log_q) + np.abs(steps) + (2 * order + 2) * losses).max()) + abs(log_sum)
    doubt = UNIT_ROUND_OFF * (64 + 8 * largest)
    log_sum += doubt if upwards else -doubt
    if order > 1:
        value = float(np.logaddexp(0.0, log_sum)) / (order - 1)
    elif order == 1:
        value = math.inf if infinity > 0 else math.exp(log_sum)
    else:
        # Next to 1 the sum of the two has lost what is left of it.
        left = math.fsum((1.0, -infinity, -math.exp(log_sum)))
        lost = infinity + math.exp(log_sum)
        value = math.inf if left <= 0 else -math.log1p(-lost) if lost < 0.5 else -math.log(left)
        value /= 1 - order
    return value * (1 + _ROOM if upwards else 1 - _ROOM)
