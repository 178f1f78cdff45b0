"""The privacy loss distribution of one round, on a lattice of losses.

All pairs here are symmetric (exchanging the datasets exchanges P and Q), since a round's profile is the
larger of its two directions at every order. A symmetric pair is given by its losses `x > 0`, their masses `p`
under P and `q = exp(-x) p` under Q, the mass at loss 0, and the mass at infinity; the loss `-x` has mass `q`
under P.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, IndexArray
from shuffle_ledger.accounting.numeric.later import np

Side = Literal["upper", "lower"]

#: Losses are resolved up to where the profile falls below this; the mass beyond counts as infinite loss.
NEGLIGIBLE_DELTA = 1e-46
_DIVERGENCE_ROUND_OFF = 64 * UNIT_ROUND_OFF  # relative room for the last steps of a Renyi divergence
_SUM_TOLERANCE = 1e-9  # allowed distance of the sum of masses from 1
_SUM_ROUND_OFF = 1e-11  # relative round-off of the sum of a pair's masses
_MINIMUM_ORDER = 1e-200  # of a Renyi divergence; below, products with losses underflow
_MAXIMUM_ORDER = 1e9


class Tail(NamedTuple):
    """Upper bounds on the tail of a profile that is 0 from the last loss on.

    Attributes:
        losses: ascending, shape (points,).
        log_heights: `log_heights[i]` is an upper bound on the logarithm of the profile from `losses[i]` on,
            shape (points - 1,).
    """

    losses: FloatArray
    log_heights: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class PrivacyLossDistribution:
    """A symmetric pair of discrete distributions, given by its privacy losses on a lattice.

    Attributes:
        spacing: distance of neighbouring lattice losses.
        index: positive lattice positions with mass, ascending, shape (losses,); the losses are `index *
            spacing`.
        p: mass under P at these losses, shape (losses,).
        q: mass under Q at these losses, and under P at their negatives, shape (losses,).
        zero: mass at loss 0.
        infinity: mass under P where Q has none.
        support: upper bound on the finite losses of the round; may be infinite.
        side: "upper" if the pair's profile is at least the profile that it bounds, "lower" if at most.

    Source: docs/theory/pld.md, P2 and P6.
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
        probable = np.all((masses >= 0) & (masses <= 1 + _SUM_TOLERANCE))  # false for NaN
        if not probable or abs(float(masses.sum()) - 1) > _SUM_TOLERANCE:
            raise InvalidParameter(
                "masses", sum(masses.tolist()), "finite masses, not negative, that sum to 1"
            )
        if self.index.size and (self.index[0] < 1 or np.any(np.diff(self.index) < 1)):
            raise InvalidParameter("index", self.index.tolist()[:4], "ascending positive lattice positions")

    @property
    def losses(self) -> FloatArray:
        """Returns the positive privacy losses, shape (losses,)."""
        return np.asarray(self.index * self.spacing, dtype=np.float64)

    @property
    def largest_loss(self) -> float:
        """Returns the largest finite privacy loss, at most `support`; 0 if there is none."""
        largest = float(self.index[-1] * self.spacing) if self.index.size else 0.0
        return min(largest, self.support)

    def variance(self) -> float:
        """Returns the variance of the finite privacy loss under P; 0 if every loss is infinite."""
        total = self.p.sum() + self.q.sum() + self.zero
        if total == 0:
            return 0.0
        mean = (self.losses * (self.p - self.q)).sum() / total
        second = (self.losses**2 * (self.p + self.q)).sum() / total
        return float(max(second - mean * mean, 0.0))

    def without_tail(self, mass: float) -> PrivacyLossDistribution:
        """Returns the pair without its largest losses: as many as have, with their negatives, a probability
        of at most `mass`.

        Guarantee: it bounds on the same side. In an upper pair the removed mass counts as infinite loss in
        both directions; in a lower pair it counts as loss 0.
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
            zero=self.zero + (0.0 if above else moved * (1 - _SUM_ROUND_OFF)),
            infinity=self.infinity + (moved * (1 + _SUM_ROUND_OFF) if above else 0.0),
        )

    def unless_revealed(self, mass: float) -> PrivacyLossDistribution:
        """Returns the pair on condition that an event of probability `mass`, which reveals everything, does
        not occur.

        Args:
            mass: from 0 to the mass at infinity. Beyond 1/2 the pair itself is returned: no budget allows a
                mass this large, and the remaining masses would be round-off.

        Guarantee: the pair is dominated by that event together with the returned pair, round-off included.
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
        """Returns `H_{e^epsilon}(P || Q)`, up to round-off, for any real epsilon."""
        if epsilon < 0:
            return -math.expm1(epsilon) + math.exp(epsilon) * self.hockey_stick_divergence(-epsilon)
        beyond = self.losses > epsilon
        gains = self.p[beyond] * -np.expm1(epsilon - self.losses[beyond])
        return float(gains.sum()) + self.infinity

    def divergence_bound(self, epsilon: float) -> float:
        """Returns `H_{e^epsilon}(P || Q)` for `epsilon >= 0`, rounded up for an upper pair and down for a
        lower one."""
        value = self.hockey_stick_divergence(epsilon)
        # Losses, and their differences from epsilon, have errors of a few units of the losses.
        beyond = float(self.p[self.losses > epsilon * (1 - 8 * UNIT_ROUND_OFF)].sum())
        doubt = UNIT_ROUND_OFF * (64 * value + 8 * (epsilon + self.largest_loss) * beyond)
        return value + doubt if self.side == "upper" else max(value - doubt, 0.0)

    def renyi_divergence(self, order: float, *, finite: bool = False, tail: Tail | None = None) -> float:
        """Returns the Renyi divergence `D_order(P || Q)`, the same in both directions; the Kullback-Leibler
        divergence at order 1.

        Args:
            order: a number from 1e-200 to 1e9.
            finite: whether P and Q are conditioned on finite losses, which have probability `1 - infinity`
                under each of them.
            tail: for an upper pair, bounds on the part of the profile that its mass at infinite loss
                represents.

        Guarantee: for an upper pair at least the divergence of everything that the pair dominates, for a
        lower
            pair at most that of everything that dominates it, round-off included. An upper pair's mass at
            infinity makes the result infinite from order 1 on, unless `support` is finite: that mass then
                counts
            at the loss `support`, which is still above every profile that falls to 0 there.
        Source: Renyi divergences are mixtures of hockey-stick divergences; docs/theory/pld.md, P9.

        Raises:
            InvalidParameter: the order is out of range.
        """
        order = validation.between("order", order, _MINIMUM_ORDER, _MAXIMUM_ORDER)
        with np.errstate(divide="ignore"):
            losses, log_q = self.losses, np.log(self.q)
        infinity = 0.0 if finite else self.infinity
        if infinity > 0 and order >= 1:
            tail = self._tail() if tail is None else tail
            if tail is None:
                return self.support if self.side == "upper" else math.inf
            # Atoms whose profile is above the tail: each one's is a line from a height down to 0 at the next
            # loss.
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
        """Returns bounds on the tail that an upper pair's mass at infinity represents; None if losses are
        unbounded."""
        if self.side == "lower" or not self.largest_loss < self.support < math.inf:
            return None
        return Tail(np.array([self.largest_loss, self.support]), np.array([math.log(self.infinity)]))


def _renyi_divergence(
    losses: FloatArray, log_q: FloatArray, infinity: float, order: float, *, upwards: bool
) -> float:
    """Returns the Renyi divergence of a symmetric pair, rounded up or down.

    `sum P^order Q^(1 - order) - 1` equals `-infinity + sum of q (1 - exp((1 - order) x)) expm1(order x)`.
    Each term combines a loss and its negative, so all terms have one sign and nothing cancels.
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
        # If the sum is near 1, `1 - sum` cancels: it is computed exactly; otherwise log1p is more accurate.
        left = math.fsum((1.0, -infinity, -math.exp(log_sum)))
        lost = infinity + math.exp(log_sum)
        value = math.inf if left <= 0 else -math.log1p(-lost) if lost < 0.5 else -math.log(left)
        value /= 1 - order
    return value * (1 + _DIVERGENCE_ROUND_OFF if upwards else 1 - _DIVERGENCE_ROUND_OFF)
