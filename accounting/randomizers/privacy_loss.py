"""Rounds of which a privacy loss distribution is known, computed elsewhere and read from a file"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.amplification.profiles import MechanismProfile
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, FloatArray
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.printed_numbers import exact_text
from shuffle_ledger.accounting.randomizers.base import plain
from shuffle_ledger.accounting.randomizers.whole_release import LOSS_ROUND_OFF, ReleaseProfile, WholeRelease

#: Largest number of losses in one direction; the JSON form of both then fits into one request.
MAXIMUM_LOSSES = 10_000
#: Largest finite loss, in nats.
LARGEST_LOSS = 120.0
_SUM_TOLERANCE = 1e-9  # largest excess of a sum of probabilities over 1
_TOTAL_VARIATION_MAX = 1 - 1e-9
_SHOWN_LOSSES = 8  # a description lists up to this number of losses, and has the digest of more
# Least largest loss of the lattice, if all losses are 0 or nearly so.
_LEAST_LOSS = 1e-9


class Direction(NamedTuple):
    """A privacy loss distribution of P against Q: finite losses, ascending, their masses under P, and the
    mass of infinite loss."""

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinity: float


@dataclass(frozen=True, kw_only=True)
class PrivacyLoss(WholeRelease):
    """A release whose privacy loss distribution is declared, number by number.

    Attributes:
        losses: finite privacy losses in nats, ascending, at most 120.
        masses: their probabilities under P.
        infinity: probability under P of outcomes that Q cannot make.
        reverse: losses, masses and infinity of the other direction, if the release has two; None if the pair
            dominates both, at every order from 1 on. Orders below 1 do not count:
            neighbours may be exchanged.

    Mass that is missing from the sum of 1 counts as infinite loss. Neighbours differ in one user's data
    (substitution): for other neighbours, declare the distribution of a substitution.

    Guarantee: the profile is at least `max H_a(P || Q)` over the given directions at every order from 1 on,
    hence at least that of every release that they dominate.
    Source: docs/theory/pld.md, P2. For a pair with total variation t, the larger of both directions is at
    least the line of randomized response, `t - (1 - t) (a - 1) / 2`: for `S = {p > q}` it is at least the
    average of `P(S) - a Q(S)` and `Q(S') - a P(S')` with the complement S'. The bounds are never below it.
    """

    kind = "privacy_loss"

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    infinity: float = 0.0
    reverse: tuple[tuple[float, ...], tuple[float, ...], float] | None = None

    def __post_init__(self) -> None:
        losses, masses, infinity = _checked_direction("", self.losses, self.masses, self.infinity)
        for name, value in (("losses", losses), ("masses", masses), ("infinity", infinity)):
            object.__setattr__(self, name, value)
        if self.reverse is not None:
            given: object = self.reverse
            if not isinstance(given, list | tuple) or len(given) != 3:
                raise InvalidParameter("reverse", given, "[losses, masses, infinity] of the other direction")
            object.__setattr__(self, "reverse", tuple(_checked_direction("reverse ", *given)))
        if self._profile_at_one >= _TOTAL_VARIATION_MAX:
            raise InvalidParameter("masses", "masses of a total variation of 1", "a total variation below 1")

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Returns the one or two declared directions; missing mass counts as infinite loss."""
        first = Direction(self.losses, self.masses, self.infinity)
        both = (first,) if self.reverse is None else (first, Direction(*self.reverse))
        return tuple(each._replace(infinity=_with_missing(each)) for each in both)

    @property
    def analyses(self) -> tuple[str, ...]:
        """See `LocalRandomizer.analyses`."""
        return ("declared",)

    def covers(self, other: WholeRelease) -> bool:
        """See `WholeRelease.covers`."""
        return self == other

    def profile(
        self, analysis: str, *, participation: float, smoothing: float, outcomes: int
    ) -> MechanismProfile:
        """See `LocalRandomizer.profile`."""
        return self._profile

    @functools.cached_property
    def _chords(self) -> tuple[_Chords, ...]:
        return tuple(_Chords(each) for each in self.directions)

    @property
    def _profile_at_one(self) -> float:
        return max(float(one.bounds(np.zeros(1)).upper[0]) for one in self._chords)

    @functools.cached_property
    def _profile(self) -> ReleaseProfile:
        at_one = self._profile_at_one
        infinity = max(each.infinity for each in self.directions)
        reach = math.log1p(2 * at_one / (1 - at_one))  # of randomized response with this total variation
        last = max(_LEAST_LOSS, reach, *(one.last_loss for one in self._chords)) * (1 + 4 * LOSS_ROUND_OFF)
        return ReleaseProfile(
            self._bounds,
            delta=0.0,
            largest_loss=math.inf if infinity else last,
            last_loss=last,
            infinity=infinity,
        )

    def _bounds(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at the orders `1 + excess`."""
        here = [one.bounds(excess) for one in self._chords]
        upper = np.max([one.upper for one in here], axis=0)
        lower = np.max([one.lower for one in here], axis=0)
        at_one = [one.bounds(np.zeros(1)) for one in self._chords]
        for found, most, doubt in (
            (upper, max(float(one.upper[0]) for one in at_one), 8 * UNIT_ROUND_OFF),
            (lower, max(float(one.lower[0]) for one in at_one), -8 * UNIT_ROUND_OFF),
        ):
            line = most - (1 - most) * excess / 2
            np.maximum(found, np.where(line > 0, line + doubt, 0.0), out=found)
        return ProfileBounds(upper, lower)

    def to_mapping(self) -> dict[str, object]:
        """See `LocalRandomizer.to_mapping`."""
        mapping = {
            "kind": self.kind,
            "losses": list(self.losses),
            "masses": list(self.masses),
            "infinity": self.infinity,
        }
        if self.reverse is not None:
            losses, masses, infinity = self.reverse
            mapping["reverse"] = [list(losses), list(masses), infinity]
        return mapping

    def describe(self) -> str:
        """Returns this randomizer as a call; of many losses only their number and the digest of the JSON
        form."""
        mapping = self.to_mapping()
        if len(self.losses) <= _SHOWN_LOSSES:
            given = ", ".join(f"{name}={plain(value)}" for name, value in mapping.items() if name != "kind")
            return f"{self.kind}({given})"
        written = json.dumps(mapping, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(written.encode("ascii")).hexdigest()
        return f"{self.kind}({len(self.losses)} losses, sha256 {digest})"


class _Chords:
    """The profile of one direction, a convex and piecewise linear function of the order."""

    def __init__(self, direction: Direction) -> None:
        losses, masses = np.array(direction.losses), np.array(direction.masses)
        positive = losses > 0
        x, p = losses[positive], masses[positive]
        kinks = np.append(0.0, x)
        # Slopes between the kinks: the mass under Q beyond. Heights at the kinks. All terms are positive, so
        # their sums have relative errors of a few units for each term.
        slopes = np.append(np.cumsum((p * np.exp(-x))[::-1])[::-1], 0.0)
        falls = np.exp(kinks[:-1]) * np.expm1(np.diff(kinks)) * slopes[:-1]
        self._heights = np.append(np.cumsum(falls[::-1])[::-1], 0.0) + direction.infinity
        self._slopes, self._kinks = slopes, np.expm1(kinks)
        self._error = (4 * losses.size + 1024) * UNIT_ROUND_OFF
        self.last_loss = float(kinks[-1])

    def bounds(self, excess: FloatArray) -> ProfileBounds:
        """Returns bounds at the orders `1 + excess`."""
        at = np.minimum(np.searchsorted(self._kinks, excess, side="right"), self._kinks.size - 1)
        slopes = self._slopes[at - 1] if self._kinks.size > 1 else np.zeros(excess.size)
        run = np.maximum(self._kinks[at] - excess, 0.0)
        value = self._heights[at] + run * slopes
        # An order and a kink are off by a few units of themselves.
        doubt = self._error * value + 8 * UNIT_ROUND_OFF * (1 + excess) * slopes
        near = excess <= self._kinks[-1] * (1 + LOSS_ROUND_OFF)
        doubt = np.where(near, doubt, self._error * value)
        return ProfileBounds(np.minimum(value + doubt, 1.0), np.maximum(value - doubt, 0.0))


def _checked_direction(of: str, losses: object, masses: object, infinity: object) -> Direction:
    """Returns checked values; `of` names the direction in errors.

    Raises:
        InvalidParameter: lists of other lengths or orders, values that are no losses or probabilities, or
            masses that sum to more than 1 under P or Q.
    """
    expected = f"1 to {MAXIMUM_LOSSES} numbers"
    lists = []
    for name, listed in (("losses", losses), ("masses", masses)):
        if not isinstance(listed, list | tuple) or not 1 <= len(listed) <= MAXIMUM_LOSSES:
            raise InvalidParameter(of + name, listed, expected)
        lists.append(
            [validation.real(f"{of}{name}[{place}]", one, "a number") for place, one in enumerate(listed)]
        )
    x, p = np.array(lists[0]), np.array(lists[1])
    if x.size != p.size:
        raise InvalidParameter(of + "masses", p.size, f"as many masses as losses, {x.size}")
    if not np.all(np.isfinite(x)) or np.any(np.diff(x) <= 0) or np.any(np.abs(x) > LARGEST_LOSS):
        expected = f"ascending numbers from -{exact_text(LARGEST_LOSS)} to {exact_text(LARGEST_LOSS)}"
        raise InvalidParameter(of + "losses", [float(x[0]), float(x[-1])], expected)
    if not np.all((p >= 0) & (p <= 1)):
        raise InvalidParameter(of + "masses", [float(p.min()), float(p.max())], "probabilities")
    beyond = validation.share(of + "infinity", infinity, zero=True)
    total = math.fsum((*lists[1], beyond))
    if total > 1 + _SUM_TOLERANCE:
        raise InvalidParameter(of + "masses", total, "masses whose sum, with infinity, is at most 1")
    other = math.fsum((p * np.exp(-x)).tolist())
    if other > 1 + _SUM_TOLERANCE:
        expected = "masses for which the sum of mass * exp(-loss) is at most 1"
        raise InvalidParameter(of + "masses", other, expected)
    return Direction(tuple(lists[0]), tuple(lists[1]), beyond)


def _with_missing(direction: Direction) -> float:
    """Returns the mass at infinity with what is missing from the sum of 1, rounded up.

    Guarantee: the sum is exact, so what is missing has a relative error of one rounding, however little.
    """
    finite = sum(map(Fraction, direction.masses), Fraction(0))
    beyond = max(1 - finite, Fraction(direction.infinity))
    return min(math.nextafter(float(beyond), math.inf), 1.0) if beyond else 0.0
