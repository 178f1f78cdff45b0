"""The privacy profile of one round: certified bounds, also where the number of honest reports is random."""

from __future__ import annotations

import copy
import functools
import math

from shuffle_ledger.accounting.amplification.profiles import rounded_orders
from shuffle_ledger.accounting.amplification.samples import NumberCell, mixture, number_cells
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import LARGEST_EXPONENT, TINY, UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds, Sketch
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA, Tail
from shuffle_ledger.accounting.rounds.shuffled_round import ShuffledRound

# A round with at most this many outcomes is summed outcome by outcome; and the same for each number of honest
# reports, if that is random.
_LISTED_OUTCOMES = 1_000_000
_LISTED_OUTCOMES_OF_MIXTURE = 200_000
# Width of a cell of numbers of honest reports, in deviations of the number. Larger: faster, wider bounds.
CELL_DEVIATIONS = 0.8
# Losses of a crude bound on the profile: 0, and this many from the share of the largest loss on.
_SKETCH_POINTS, _SKETCH_FROM = 65, 1e-9
# If the bound falls by more than this many times the logarithm of what is negligible between two of these,
# the loss where it is negligible is searched for between them, at this many points, at most this often.
_STEEP_SHARE, _SEARCH_POINTS, _MOST_SEARCHES = 2.0, 17, 3
# A profile counts as flat if it is above its value at infinity by at most this share of the smoothing's
# square; and points of the search for the loss from which on it is.
_FLAT_SHARE = 0.05
_FLAT_POINTS = 33
# That search is made if the crude bound on the end is this many times that of the most likely cell, or above
# this share of the largest resolved loss.
_FAR_END, _NEAR_LIMIT = 10.0, 0.9
#: Larger losses count as infinite. No table has larger finite ones, since its probabilities are at least
#: 1e-50.
LARGEST_RESOLVED_LOSS = 120.0
_LOG_NEGLIGIBLE = math.log(NEGLIGIBLE_DELTA)


def honest_cells(shuffled: ShuffledRound, *, width: float) -> list[NumberCell]:
    """Returns the possible numbers of honest reports in cells of this width, in deviations of the number; a
    single cell if the number is certain."""
    if shuffled.certain_reports is not None:
        return [NumberCell.of(shuffled.certain_reports, np.ones(1))]
    population, sample = int(shuffled.sampled_from or 0), shuffled.reports
    return number_cells(population, shuffled.honest_users, sample, width=width)


class RoundProfile:
    """The privacy profile of a round: `self(excess)` bounds its hockey-stick divergence at the orders `1 +
    excess`.

    Args:
        shuffled: the round.
        smoothing: smoothing of the quadrature, in deviations; see `blanket_profile`.
        listed: whether outcomes are listed if they are few. Lists leave out a mass of about
            `NEGLIGIBLE_DELTA`; quadrature has no such limit.

    Attributes:
        largest_loss: privacy loss beyond which the profile is exactly 0; may be infinite.
        end: privacy loss beyond which the profile is negligible, or beyond which losses count as infinite.
        infinity: lower bound on the mass at infinite loss.

    Guarantee: bounds hold for every pair of neighbouring datasets and both directions, at every order of at
    least 1.
    Source: docs/theory/rounds-and-samples.md, S1.

    Raises:
        InvalidParameter: a user may send several reports: such a round is several rounds, see `charged_as`.
    """

    def __init__(self, shuffled: ShuffledRound, *, smoothing: float, listed: bool = True) -> None:
        if shuffled.reports_per_user > 1:
            expected = "1: several reports of a user are charged as several rounds"
            raise InvalidParameter("reports_per_user", shuffled.reports_per_user, expected)
        self._smoothing = smoothing
        self._cells, self._honest = honest_cells(shuffled, width=CELL_DEVIATIONS), shuffled.honest_users
        self._crudes: dict[int, tuple[FloatArray, FloatArray]] = {}
        self._base = shuffled.randomizer.profile(
            str(shuffled.analysis),
            participation=1.0 if shuffled.coin is None else shuffled.coin,
            smoothing=smoothing,
            outcomes=(_LISTED_OUTCOMES if self.is_simple else _LISTED_OUTCOMES_OF_MIXTURE) if listed else 0,
        )
        if not self.is_simple:
            self._base = self._base.for_mixture()
        self.largest_loss = self._sampled_loss(self._base.largest_loss)
        self.infinity = self._infinite_loss()
        self.end = self._last_loss()

    def sharper(self, share: float) -> RoundProfile:
        """Returns the same profile with closer bounds: the distance that smoothing causes falls to about
        `share` of the present one. It starts with the bounds found here."""
        found = copy.copy(self)
        vars(found).update(_smoothing=self._smoothing * math.sqrt(share), _base=self._base.sharper(share))
        return found

    def __call__(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""
        upper, lower = mixture(self._cells, self._honest, self._base, excess)
        # Weights of a mixture are products of up to ten million ratios; a negligible mass is left out.
        room = 1e-14 if self.is_simple else 1e-8
        left_out = 0.0 if self.is_simple else NEGLIGIBLE_DELTA
        return ProfileBounds(upper * (1 + room) + left_out, lower * (1 - room))

    def at(self, losses: FloatArray) -> ProfileBounds:
        """Returns bounds at privacy losses, ascending, shape (losses,); they hold however the orders were
        rounded."""
        excess = np.expm1(losses)
        # With sampling, orders are quotients, and the bounds already include their round-off.
        return rounded_orders(self, excess) if self._is_certain else self(excess)

    @functools.cached_property
    def sketch(self) -> Sketch:
        """Returns a cheap estimate of the profile. It is not a bound."""
        losses, crude = self._crude(self._cells[0].fewest)
        estimate = self._base.estimated_log(crude) + math.log(self._rate)
        return Sketch(losses, np.minimum(estimate, 0.0))

    @property
    def _rate(self) -> float:
        """Returns the largest sampling rate of honest users in any cell."""
        return self._cells[-1].most / self._honest

    @property
    def _is_certain(self) -> bool:
        """Returns whether all honest users certainly report."""
        return self.is_simple and self._rate >= 1

    @property
    def is_simple(self) -> bool:
        """Returns whether the number of honest reports is certain, so that the profile is not a mixture."""
        return len(self._cells) == 1

    @property
    def is_enumerated(self) -> bool:
        """Returns whether the profile is a sum over listed outcomes, so that more orders cost almost no
        time."""
        return self._base.is_listed(self._cells[-1].most)

    def tail(self, loss: float, value: float, points: int) -> Tail:
        """Returns crude upper bounds on the profile from `loss`, where it is at most `value`, to its end."""
        losses = np.linspace(loss, self.largest_loss, points)
        rate, fewest = self._rate, self._cells[0].fewest
        crude = self._base.crude_log(fewest, np.expm1(np.minimum(losses[1:-1], LARGEST_EXPONENT)) / rate)
        # Room for the round-off of the crude bound, which n multiplies.
        crude += 1e-6 + 1e-14 * fewest
        if not self.is_simple:
            crude = np.logaddexp(crude, math.log(NEGLIGIBLE_DELTA))
        with np.errstate(divide="ignore"):
            heights = np.minimum.accumulate(np.append(np.log(value), crude))
        return Tail(losses, heights)

    def _sampled_loss(self, loss: float) -> float:
        """Returns the largest loss under sampling at rate s, rounded up: `log(1 + s (exp(loss) - 1))`."""
        if self._is_certain or math.isinf(loss):
            return loss
        return math.log1p(self._rate * math.expm1(min(loss, LARGEST_EXPONENT))) * (1 + 32 * UNIT_ROUND_OFF)

    def _infinite_loss(self) -> float:
        """Returns a lower bound on the mass of outcomes that are impossible under the other input."""
        terms = [
            one.weight * (one.fewest / self._honest) * self._base.infinity(one.most) for one in self._cells
        ]
        return max(math.fsum(terms) * (1 - 1e-9), 0.0)

    def _last_loss(self) -> float:
        if self._base.last_loss is not None:
            return min(self._sampled_loss(self._base.last_loss), LARGEST_RESOLVED_LOSS)
        end = self._negligible_loss(self._cells[0].fewest)
        if math.isfinite(self.largest_loss):
            return end
        usual = self._negligible_loss(max(self._cells, key=lambda cell: cell.weight).fewest)
        # The smallest number of honest reports may have almost no weight.
        far = end > min(_FAR_END * usual, _NEAR_LIMIT * LARGEST_RESOLVED_LOSS)
        return self._flat_loss(end) if far else end

    def _flat_loss(self, limit: float) -> float:
        """Returns a loss, at most `limit`, beyond which the upper bound is almost flat: its value there
        counts as mass at infinite loss."""
        losses = np.geomspace(1e-9 * limit, limit, _FLAT_POINTS)
        upper = self(np.expm1(losses)).upper
        enough = (1 + _FLAT_SHARE * self._smoothing**2) * upper[-1] + NEGLIGIBLE_DELTA
        return float(losses[int(np.argmax(upper <= enough))])

    def _negligible_loss(self, fewest: int) -> float:
        """Returns about the loss at which a crude bound on the profile of `fewest` honest reports falls below
        `NEGLIGIBLE_DELTA`; at most the largest loss that is resolved."""
        losses, crude = self._crude(fewest)
        for _ in range(_MOST_SEARCHES):
            below = np.flatnonzero(crude < _LOG_NEGLIGIBLE)
            last = max(int(below[0]), 1) if below.size else losses.size - 1
            if losses[last] in (losses[1], self.largest_loss):
                return float(losses[last])
            if not below.size or crude[last] > _STEEP_SHARE * _LOG_NEGLIGIBLE:
                share = (_LOG_NEGLIGIBLE - crude[last - 1]) / min(crude[last] - crude[last - 1], -TINY)
                return float(losses[last - 1] + (losses[last] - losses[last - 1]) * min(share, 1.0))
            losses = np.linspace(losses[last - 1], losses[last], _SEARCH_POINTS)
            crude = self._crude_log(fewest, losses)
        return float(losses[-1])

    def _crude_log(self, fewest: int, losses: FloatArray) -> FloatArray:
        """Returns logarithms of crude upper bounds on the divergence of `fewest` honest reports, before
        sampling, shape (losses,)."""
        return self._base.crude_log(fewest, np.expm1(losses) / self._rate)

    def _crude(self, fewest: int) -> tuple[FloatArray, FloatArray]:
        """Returns losses up to the largest one that is resolved, and `_crude_log` there."""
        if fewest not in self._crudes:
            limit = min(self.largest_loss, LARGEST_RESOLVED_LOSS)
            losses = np.append(0.0, np.geomspace(_SKETCH_FROM * limit, limit, _SKETCH_POINTS))
            self._crudes[fewest] = losses, self._crude_log(fewest, losses)
        return self._crudes[fewest]
