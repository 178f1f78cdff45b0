"""Profiles of shuffled reports before sampling: what a round of so many honest users reveals, by whatever
argument bounds it."""

from __future__ import annotations

import copy
import functools
import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from shuffle_ledger.accounting.amplification.blanket.divergence import chernoff_log_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import Outcomes, enumerate_outcomes, is_countable
from shuffle_ledger.accounting.amplification.noise_pairs import Pair
from shuffle_ledger.accounting.amplification.random_size.contour import Counts
from shuffle_ledger.accounting.amplification.random_size.tables import CountTable, CountTables
from shuffle_ledger.accounting.amplification.worst_pair.chernoff import chernoff
from shuffle_ledger.accounting.amplification.worst_pair.search import WorstPair
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray, order_less_one
from shuffle_ledger.accounting.pld.bounds import ProfileBounds

# Lists of outcomes that one profile keeps, and outcomes in them.
_REMEMBERED = 4
_REMEMBERED_OUTCOMES = 2_000_000
_REMEMBERED_SEARCHES = 8
# Outcomes that one of many pairs may have listed, however many pairs there are.
_OUTCOMES_OF_ONE = 50_000
# Pairs that are looked at one by one even where a rough bound is enough.
_FEW_PAIRS = 8
# Of pairs with more outcomes altogether orders cost something, even if these are listed.
_FEW_LISTED = 300_000
# Width of the smoothing of a first look at a profile.
_ROUGH = 0.2
# What moving an order may change in a profile is little where it is this share of what smoothing does.
_LITTLE = 0.1
# The same where orders are off by roundings only, of the bound.
_LITTLE_ROUNDING = 1e-10
# What smoothing does, as a share of what it did, where grids were to blame for most of what it seemed to do.
_GRIDS = 0.5


def moved(
    bounds: Callable[[FloatArray], ProfileBounds], excess: FloatArray, off: FloatArray, *, little: float
) -> ProfileBounds:
    """Bounds on a convex profile that falls from at most 1, at orders that may be so far off.

    Args:
        bounds: those at orders as they stand.
        excess: orders minus one, ascending, shape (orders,).
        off: by how much an order may be less or more, shape (orders,).
        little: what orders may change in a bound, relative, without being moved.
    """
    upper, lower = bounds(excess)
    nearer = np.maximum(excess - off, 0.0)
    # It falls no faster than it did on average since the order before.
    run, before = nearer - np.append(0.0, excess[:-1]), np.append(1.0, upper[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        rise = np.where((excess > 0) & (before > 0), off * before / np.maximum(run, 0.0), 0.0)
    # Next to where nothing is left any more all orders are to be moved.
    over = excess[upper <= 0][:1]
    far = (rise > little * upper) | ((before <= 0) & (nearer < over.sum()))
    upper, lower = upper + rise, np.maximum(lower - rise, 0.0)
    if np.any(far):
        upper[far] = bounds(nearer[far]).upper
        lower[far] = bounds((excess + off)[far]).lower
    return ProfileBounds(upper, lower)


def rounded_orders(bounds: Callable[[FloatArray], ProfileBounds], excess: FloatArray) -> ProfileBounds:
    """As `moved`, at orders that are off by a few roundings."""
    return moved(bounds, excess, 8 * UNIT_ROUND_OFF * excess, little=_LITTLE_ROUNDING)


class MechanismProfile(ABC):
    """The privacy profile of the shuffled reports of a number of honest users.

    Attributes:
        largest_loss: privacy loss beyond which the profile is exactly 0; may be infinite.
        last_loss: privacy loss beyond which the profile is exactly flat, None where that is not known.

    Guarantee: bounds hold for every pair of neighbouring datasets and both directions, at every order at
    least 1, and the profile falls as honest users are added. The float that is nearest to the order of
    `largest_loss`, on whichever side, stands for that loss.
    """

    largest_loss: float
    last_loss: float | None = None

    @abstractmethod
    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Bounds at the orders `1 + excess`, for `excess >= 0` ascending, shape (orders,)."""

    def near(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """`bounds` that hold at orders that are off by a few roundings, too."""
        return rounded_orders(functools.partial(self.bounds, honest), excess)

    @abstractmethod
    def infinity(self, honest: int) -> float:
        """A lower bound on the mass at infinite loss."""

    @abstractmethod
    def is_listed(self, honest: int) -> bool:
        """Whether the profile, a sharper one too, is one sum over outcomes, so that more orders cost next to
        nothing."""

    def of_counts(self, counts: Counts, first: float, last: float) -> CountTable | None:
        """`bounds` of every number of honest users at once, at orders from `1 + first` to `1 + last`; None
        where these would not be as close, or no faster."""
        return None

    def sharper(self, share: float) -> MechanismProfile:
        """The same profile, with bounds that smoothing keeps apart by about so much of what it does here, if
        it does."""
        return self

    def sketch(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """About `bounds`, cheaply: of a pair that seems the largest. Nothing may rest on it."""
        return self.bounds(honest, excess)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """Logarithm of a cheap upper bound at the orders `1 + excess`, shape (orders,)."""
        with np.errstate(divide="ignore"):
            logarithm: FloatArray = np.log(self.bounds(honest, excess).upper)
        return logarithm


class BlanketProfile(MechanismProfile):
    """The largest profile of several blanket pairs, in both directions.

    Args:
        above: one decomposition for each pair of inputs that may be the worst, or pairs in every direction.
        below: the same for lower bounds; None when `above` is exact.
        between: the pairs themselves where those are near them and faster; sharper bounds are theirs.
        weight: factor of the divergences.
        largest_loss: loss beyond which the profile is exactly 0.
        room: relative room that bounds make for the rounding of masses.
        doubt: the same, absolute.
        blur: how far off the ratios of components may be, relative, since nearly equal ones were joined.
        smoothing: width of the quadrature's smoothing; see `blanket_profile`.
        outcomes: number of outcomes that may be listed; rounds with more are summed by quadrature.
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
        self._above = _directions(above)
        self._below = self._above if below is None else _directions(below)
        self._between = None if between is None else _directions(between)
        self._outcomes = _ListedOutcomes(max(outcomes // len(self._above), min(outcomes, _OUTCOMES_OF_ONE)))
        self._worst: OrderedDict[tuple[int, int], WorstPair] = OrderedDict()

    def bounds(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.bounds`."""
        inside = excess < order_less_one(min(self.largest_loss, 700.0))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            found = self._moved if self._blur else self._largest
            above, below = found(honest, excess[inside])
            upper[inside] = self._weight * (above * (1 + self._room) + self._doubt)
            lower[inside] = self._weight * (below * (1 - self._room) - self._doubt)
        return ProfileBounds(upper, np.maximum(lower, 0.0))

    def of_counts(self, counts: Counts, first: float, last: float) -> CountTable | None:
        """See `MechanismProfile.of_counts`."""
        tables = CountTables(
            above=self._above,
            below=self._below,
            largest_loss=self.largest_loss,
            smoothing=self._smoothing,
            bounds=self._largest,
            usual=lambda honest, values: self._search(self._above, honest).usual(values),
            is_listed=self.is_listed,
        )
        found = tables.between(counts, first, last)
        if found is None:
            return None
        excess, (above, below) = found
        upper = self._weight * (above * (1 + self._room) + self._doubt)
        lower = np.maximum(self._weight * (below * (1 - self._room) - self._doubt), 0.0)
        reach = -2 * math.expm1(-self.largest_loss)
        return CountTable.of(excess, ProfileBounds(upper, lower), blur=self._blur, reach=reach)

    def _largest(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """Bounds on the largest profile of the pairs as they stand."""
        found, best = self._search(self._above, honest).largest(excess)
        if self._below is self._above:
            return found
        below = self._search(self._below, honest)
        alike = len(self._below) == len(self._above)
        lower = below.reached(best, excess) if alike else below.largest(excess)[0].lower
        return ProfileBounds(found.upper, lower)

    def _moved(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """The same where ratios are known, or alike, to fewer digits: orders are as far off as these."""
        off = self._blur * (excess - 2 * math.expm1(-self.largest_loss))
        upper, lower = moved(
            functools.partial(self._largest, honest), excess, off, little=_LITTLE * self._smoothing**2
        )
        # Beyond order 1 it falls no faster than the order rises.
        below = np.maximum(off - excess, 0.0)
        return ProfileBounds(upper + below, np.maximum(lower - below, 0.0))

    def sharper(self, share: float) -> BlanketProfile:
        """See `MechanismProfile.sharper`: it begins with what was found here."""
        found = copy.copy(self)
        found.sharpen(share)
        return found

    def sharpen(self, share: float) -> None:
        """Let smoothing keep bounds apart by about so much of what it did."""
        if self._between is not None:
            self._above = self._below = self._between
            share = max(share, _GRIDS)
        self._smoothing *= math.sqrt(share)
        self._worst = OrderedDict((key, one.smoothed(self._smoothing)) for key, one in self._worst.items())

    def sketch(self, honest: int, excess: FloatArray) -> ProfileBounds:
        """See `MechanismProfile.sketch`."""
        inside = excess < order_less_one(min(self.largest_loss, 700.0))
        upper, lower = np.zeros_like(excess), np.zeros_like(excess)
        if np.any(inside):
            rough = self._search(self._above, honest).smoothed(_ROUGH)
            upper[inside], lower[inside] = rough.sketch(excess[inside])
        return ProfileBounds(upper * self._weight, lower * self._weight)

    def infinity(self, honest: int) -> float:
        """See `MechanismProfile.infinity`."""
        found = float(self._below.infinity(honest).max())
        return self._weight * max(found * (1 - self._room) - self._doubt, 0.0)

    def is_listed(self, honest: int) -> bool:
        """See `MechanismProfile.is_listed`."""
        others = (one for one in (self._below, self._between) if one is not None and one is not self._above)
        sides = [self._above, *others]
        pairs = max(map(len, sides))
        limit = self._outcomes.limit if pairs <= _FEW_PAIRS else _FEW_LISTED // pairs
        limit = min(limit, self._outcomes.limit)
        return all(is_countable(one, honest, limit=limit) for side in sides for one in side)

    def crude_log(self, honest: int, excess: FloatArray) -> FloatArray:
        """See `MechanismProfile.crude_log`."""
        doubt = math.log(self._doubt) if self._doubt else -math.inf
        if len(self._above) > _FEW_PAIRS:
            return np.asarray(np.logaddexp(chernoff(self._above, honest, excess).max(axis=0), doubt))
        which, order = np.divmod(np.arange(len(self._above) * excess.size), excess.size)
        crude = chernoff_log_profiles(self._above, which, honest, excess[order])
        largest: FloatArray = crude.reshape(len(self._above), excess.size).max(axis=0)
        return np.asarray(np.logaddexp(largest, doubt))

    def _search(self, pairs: Pairs, honest: int) -> WorstPair:
        """The search for the largest of the pairs' profiles."""
        key = (id(pairs), honest)
        if key not in self._worst:
            while len(self._worst) >= _REMEMBERED_SEARCHES:
                self._worst.popitem(last=False)
            self._worst[key] = WorstPair(
                pairs=pairs,
                reports=honest,
                smoothing=self._smoothing,
                listed=functools.partial(self._outcomes.of, pairs, honest=honest),
            )
        return self._worst[key]


class _ListedOutcomes:
    """Outcomes of pairs of so many reports, remembered for a while.

    Args:
        limit: number of outcomes that may be listed.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._known: OrderedDict[tuple[int, int, int], Outcomes | None] = OrderedDict()
        self._size = 0
        self._beyond: dict[tuple[int, int], bool] = {}

    def of(self, pairs: Pairs, place: int, honest: int) -> Outcomes | None:
        """The outcomes of one of the pairs, None when there are too many."""
        key = (id(pairs), place, honest)
        if key not in self._known:
            found = None
            if not self._is_beyond(pairs, place, honest):
                found = enumerate_outcomes(pairs[place], honest, limit=self.limit)
            self._size += 0 if found is None else found.p.size
            while self._size > _REMEMBERED_OUTCOMES and self._known:
                _, oldest = self._known.popitem(last=False)
                self._size -= 0 if oldest is None else oldest.p.size
            self._known[key] = found
        return self._known[key]

    def _is_beyond(self, pairs: Pairs, place: int, honest: int) -> bool:
        """Whether too many outcomes would have to be listed, as far as that is known without looking."""
        if not pairs.is_whole(place):
            return False
        key = (id(pairs), honest)
        if key not in self._beyond:
            self._beyond[key] = not is_countable(pairs[place], honest, limit=self.limit)
        return self._beyond[key]


def _directions(pairs: Sequence[Decomposition]) -> Pairs:
    """The pairs in both directions, each profile once."""
    if isinstance(pairs, Pairs):
        return pairs
    seen: dict[object, Decomposition] = {}
    for pair in pairs:
        merged = pair.merged()
        for one in (merged, merged.swapped()):
            seen.setdefault(one.signature(), one)
    return ListedPairs(list(seen.values()))


class PairProfile(MechanismProfile):
    """The profile of pairs that are known outcome by outcome, the largest of them at every order.

    Args:
        above: pairs above the mechanism's, one for each direction, given the number of honest users.
        below: pairs below them.
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
        """See `MechanismProfile.near`: sums over outcomes make room for orders' roundings as for ratios'."""
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
            while len(self._made) >= _REMEMBERED:
                self._made.popitem(last=False)
            self._made[key] = [pair.outcomes() for pair in self._makers[side](honest)]
        return self._made[key]
