"""Privacy profiles of the shuffled reports of a number of honest users, before sampling: one class for each
way to bound them."""

from __future__ import annotations

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence

from shuffle_ledger.accounting.amplification.blanket.divergence import largest_chernoff_log
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import Outcomes, enumerate_outcomes, is_countable
from shuffle_ledger.accounting.amplification.noise_pairs import Pair
from shuffle_ledger.accounting.amplification.worst_pair.chernoff import chernoff
from shuffle_ledger.accounting.amplification.worst_pair.search import WorstPair
from shuffle_ledger.accounting.numeric.arrays import (
    LARGEST_EXPONENT,
    UNIT_ROUND_OFF,
    FloatArray,
    order_less_one,
)
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# A profile keeps these for later questions: lists of outcomes of noise pairs, outcomes of blanket pairs, and
# searches for the worst pair. More: memory.
_LISTS_KEPT = 4
_OUTCOMES_KEPT = 2_000_000
_SEARCHES_KEPT = 8
# Blanket pairs with more outcomes are summed by quadrature, which then takes less time; but one pair may have
# as many as the second number, however many pairs share the limit.
_OUTCOMES_OF_ALL, _OUTCOMES_OF_ONE = 200_000, 50_000
# Crude bounds are computed pair by pair for at most this many pairs; for more, from common tilts.
_FEW_PAIRS = 8
# If more pairs than that have more outcomes than this altogether, more orders cost noticeable time.
_CHEAP_OUTCOMES = 300_000
# Logarithm of a Gaussian sum's divergence over Chernoff's bound on it: the first at order 1, and less by `L
# (second + third L)` where the bound has fallen by the exponent d, L the logarithm of `1 + d`.
_CHERNOFF_EXCESS = (-0.573, 0.2, 0.058)
# An order that is off is accepted if it changes a bound by at most this share of the smoothing's square.
_MOVED_PER_SMOOTHING = 0.1
# The same if orders are off by round-off only, as a share of the bound.
_MOVED_BY_ROUND_OFF = 1e-10
# Least share of the smoothing's effect that is left when the exact pairs replace those on grids: the grids
# caused most of the width.
_LEAST_SHARE_WITHOUT_GRIDS = 0.5


def moved(
    bounds: Callable[[FloatArray], ProfileBounds], excess: FloatArray, off: FloatArray, *, little: float
) -> ProfileBounds:
    """Returns bounds on a convex profile that falls from at most 1, valid at all orders within `off` of those
    given.

    Args:
        bounds: returns bounds at exactly the given orders minus one.
        excess: orders minus one, ascending, shape (orders,).
        off: largest error of each order, in either direction, shape (orders,).
        little: relative change of a bound up to which the slope's bound is used instead of new evaluations.
    """
    upper, lower = bounds(excess)
    nearer = np.maximum(excess - off, 0.0)
    # A convex profile falls no faster here than on average since the order before.
    run, before = nearer - np.append(0.0, excess[:-1]), np.append(1.0, upper[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where((excess > 0) & (before > 0), off * before / np.maximum(run, 0.0), 0.0)
    # Near the end of the profile all orders are evaluated anew.
    over = excess[upper <= 0][:1]
    far = (rise > little * upper) | ((before <= 0) & (nearer < over.sum()))
    upper, lower = upper + rise, np.maximum(lower - rise, 0.0)
    if np.any(far):
        upper[far] = bounds(nearer[far]).upper
        lower[far] = bounds((excess + off)[far]).lower
    return ProfileBounds(upper, lower)


def rounded_orders(bounds: Callable[[FloatArray], ProfileBounds], excess: FloatArray) -> ProfileBounds:
    """Returns what `moved` does, for orders that are off by a few roundings.

    Source: docs/theory/amplification.md, A14.
    """
    return moved(bounds, excess, 8 * UNIT_ROUND_OFF * excess, little=_MOVED_BY_ROUND_OFF)


class MechanismProfile(ABC):
    """The privacy profile of the shuffled reports of a number of honest users: the largest hockey-stick
    divergence of neighbouring datasets, as a function of the order.

    Attributes:
        largest_loss: privacy loss beyond which the profile is exactly 0; may be infinite.
        last_loss: privacy loss beyond which the profile is constant, None if that is not known.

    Guarantee: bounds hold for every pair of neighbouring datasets and both directions, at every order of at
    least 1, and the profile falls as honest users are added. The float nearest to the order
    `exp(largest_loss)`, above or below it, counts as that order.
    """

    largest_loss: float
    last_loss: float | None = None

    @abstractmethod
    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""

    def near(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns `bounds` that hold also if the orders are off by a few roundings."""
        return rounded_orders(functools.partial(self.bounds, honest), excess)

    @abstractmethod
    def infinity(self, honest: int) -> float:
        """Returns a lower bound on the probability of infinite loss."""

    @abstractmethod
    def is_listed(self, honest: int) -> bool:
        """Returns whether this profile, and its sharper version, is a sum over listed outcomes, so that more
        orders cost almost no time."""

    def sharper(self, share: float) -> MechanismProfile:
        """Returns the same profile with closer bounds: the distance that smoothing causes falls to about
        `share` of the present one. A profile without smoothing returns itself."""
        return self

    def for_mixture(self) -> MechanismProfile:
        """Returns the same profile with bounds as close as a mean over many numbers of users needs, if that
        takes less time."""
        return self

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """Returns the logarithm of a cheap upper bound at the orders `1 + excess`, shape (orders,)."""
        with np.errstate(divide="ignore"):
            logarithm: FloatArray = np.log(self.bounds(honest, excess).upper)
        return logarithm

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """Returns an estimate of the logarithm of the profile, which is not a bound, from `crude_log` at
        ascending orders from 1 on, shape (orders,)."""
        return crude


class BlanketProfile(MechanismProfile):
    """The largest profile of several blanket pairs, in both directions.

    Args:
        above: one decomposition for each pair of inputs that may be the worst, or pairs in every direction.
        below: the same for lower bounds; None if `above` is exact.
        between: the exact pairs, if `above` and `below` are faster approximations; `sharper` uses these.
        weight: factor of the divergences.
        largest_loss: privacy loss beyond which the profile is exactly 0.
        room: relative room in the bounds for the round-off of masses.
        doubt: absolute room, likewise.
        blur: bound on the relative error of the components' ratios, since nearly equal ones were joined.
        smoothing: smoothing of the quadrature; see `blanket_profile`.
        outcomes: number of outcomes that may be listed, if that is fast; rounds with more are computed by
            quadrature.
    """

    def __init__(
        self,
        *,
        above: Sequence[Decomposition],
        below: Sequence[Decomposition] | None,
        between: Sequence[Decomposition] | None = None,
        weight: float,
        largest_loss: float,
        room: float,
        blur: float,
        smoothing: float,
        outcomes: int,
        doubt: float = 0.0,
    ) -> None:
        self.largest_loss = largest_loss
        self._weight = weight
        self._room = room
        self._doubt = doubt
        self._smoothing = smoothing
        self._blur = blur
        self._above = directions(above)
        self._below = self._above if below is None else directions(below)
        self._between = None if between is None else directions(between)
        share = min(outcomes, _OUTCOMES_OF_ALL) // len(self._above)
        self._outcomes = _ListedOutcomes(max(share, min(outcomes, _OUTCOMES_OF_ONE)))
        self._worst: OrderedDict[tuple[int, int], WorstPair] = OrderedDict()

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        inside = excess < order_less_one(min(self.largest_loss, LARGEST_EXPONENT))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            found = self._moved if self._blur else self._largest
            above, below = found(honest, excess[inside])
            upper[inside] = self._weight * (above * (1 + self._room) + self._doubt)
            lower[inside] = self._weight * (below * (1 - self._room) - self._doubt)
        return ProfileBounds(upper, np.maximum(lower, 0.0))

    def _largest(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns bounds on the largest profile of the pairs, as if their ratios were exact."""
        found, best = self._search(self._above, honest).largest(excess)
        if self._below is self._above:
            return found
        below = self._search(self._below, honest)
        alike = len(self._below) == len(self._above)
        lower = below.reached(best, excess) if alike else below.largest(excess)[0].lower
        return ProfileBounds(found.upper, lower)

    def _moved(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Returns the same if ratios have the relative error `blur`: the orders are then off by a
        corresponding amount."""
        off = self._blur * (excess - 2 * math.expm1(-self.largest_loss))
        upper, lower = moved(
            functools.partial(self._largest, honest),
            excess,
            off,
            little=_MOVED_PER_SMOOTHING * self._smoothing**2,
        )
        # From order 1 on the profile falls no faster than the order rises.
        below = np.maximum(off - excess, 0.0)
        return ProfileBounds(upper + below, np.maximum(lower - below, 0.0))

    def sharper(self, share: float) -> BlanketProfile:
        """See `MechanismProfile.sharper`. The new profile starts with the bounds found here."""
        found = copy.copy(self)
        found.sharpen(share)
        return found

    def sharpen(self, share: float) -> None:
        """Lowers the smoothing, in place, so that it causes about `share` of its present distance of
        bounds."""
        if self._between is not None:
            self._above = self._below = self._between
            share = max(share, _LEAST_SHARE_WITHOUT_GRIDS)
        self._smoothing *= math.sqrt(share)
        self._worst = OrderedDict((key, one.smoothed(self._smoothing)) for key, one in self._worst.items())

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        found = float(self._below.infinity(honest).max())
        return self._weight * max(found * (1 - self._room) - self._doubt, 0.0)

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        others = (one for one in (self._below, self._between) if one is not None and one is not self._above)
        sides = [self._above, *others]
        pairs = max(map(len, sides))
        limit = self._outcomes.limit if pairs <= _FEW_PAIRS else _CHEAP_OUTCOMES // pairs
        limit = min(limit, self._outcomes.limit)
        return all(is_countable(one, honest, limit=limit) for side in sides for one in side)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`."""
        doubt = math.log(self._doubt) if self._doubt else -math.inf
        if len(self._above) > _FEW_PAIRS:
            crude = chernoff(self._above, honest, excess).max(axis=0)
        else:
            crude = largest_chernoff_log(self._above, honest, excess)
        return np.asarray(np.logaddexp(crude, doubt))

    def estimated_log(self, crude: FloatArray) -> FloatArray:
        """See `MechanismProfile.estimated_log`."""
        first, linear, square = _CHERNOFF_EXCESS
        crude = np.maximum(crude, -LARGEST_EXPONENT)
        fallen = np.log1p(np.maximum(crude[0] - crude, 0.0))
        return np.asarray(crude + first - fallen * (linear + square * fallen) + math.log(self._weight))

    def _search(self, pairs: Pairs, honest: int) -> WorstPair:
        """Returns the search for the largest of the pairs' profiles, from the cache if it is there."""
        key = (id(pairs), honest)
        if key not in self._worst:
            while len(self._worst) >= _SEARCHES_KEPT:
                self._worst.popitem(last=False)
            self._worst[key] = WorstPair(
                pairs=pairs,
                reports=honest,
                smoothing=self._smoothing,
                listed=functools.partial(self._outcomes.of, pairs, honest=honest),
            )
        return self._worst[key]


class _ListedOutcomes:
    """A cache of the outcomes of pairs.

    Args:
        limit: largest number of outcomes of one pair that are listed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: OrderedDict[tuple[int, int, int], Outcomes | None] = OrderedDict()
        self._size = 0

    def of(self, pairs: Pairs, place: int, honest: int) -> Outcomes | None:
        """Returns the outcomes of the pair at a position, None if there are too many."""
        key = (id(pairs), place, honest)
        if key not in self._known:
            found = enumerate_outcomes(pairs[place], honest, limit=self.limit)
            self._size += 0 if found is None else found.p.size
            while self._size > _OUTCOMES_KEPT and self._known:
                _, oldest = self._known.popitem(last=False)
                self._size -= 0 if oldest is None else oldest.p.size
            self._known[key] = found
        return self._known[key]


def directions(pairs: Sequence[Decomposition]) -> Pairs:
    """Returns the pairs in both directions, without repeated profiles.

    Source: docs/theory/pld.md, P2.
    """
    if isinstance(pairs, Pairs):
        return pairs
    seen: dict[object, Decomposition] = {}
    for pair in pairs:
        merged = pair.merged()
        for one in (merged, merged.swapped()):
            seen.setdefault(one.signature(), one)
    return ListedPairs(list(seen.values()))


class PairProfile(MechanismProfile):
    """The profile of pairs that are known outcome by outcome: the largest of their profiles at every order.

    Args:
        above: returns pairs above the mechanism's, one for each direction, given the number of honest users.
        below: returns pairs below the mechanism's, likewise.
    """

    def __init__(self, above: Callable[[int], list[Pair]], below: Callable[[int], list[Pair]]) -> None:
        self.largest_loss = math.inf
        self._makers = {"above": above, "below": below}
        self._made: OrderedDict[tuple[str, int], list[Outcomes]] = OrderedDict()

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        upper = np.max([one.profile(excess).upper for one in self._outcomes("above", honest)], axis=0)
        lower = np.max([one.profile(excess).lower for one in self._outcomes("below", honest)], axis=0)
        return ProfileBounds(np.minimum(upper, 1.0), lower)

    def near(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.near`. The room for the round-off of ratios covers that of orders."""
        return self.bounds(honest, excess)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        listed = self._outcomes("below", honest)
        return max(float(one.p_minus_q[-1]) * (1 - one.relative_error) for one in listed)

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        return True

    def _outcomes(self, side: str, honest: int) -> list[Outcomes]:
        key = (side, honest)
        if key not in self._made:
            while len(self._made) >= _LISTS_KEPT:
                self._made.popitem(last=False)
            self._made[key] = [pair.outcomes() for pair in self._makers[side](honest)]
        return self._made[key]
