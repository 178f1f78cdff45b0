"""The filters of a budget, what a round costs in each, how much each allows at an epsilon, and what totals
read.

A round is charged before it is released: one number for every filter, about the smallest certified one (see
`charges.py`). The ledger's machine adds charges up and compares totals with the limits of an epsilon,
exactly. Rounds may go on while at least one filter holds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.delta_accounts import DeltaAccounts
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, Reading, RenyiFilter
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.numeric.rounding import float_above
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence
from shuffle_ledger.accounting.printed_numbers import exact_text

#: Part of a budget's delta for approximate rounds, if the opening says nothing else: half of it for certain
#: loss, half for slack. And the largest part that an opening may say.
APPROXIMATE_SHARE: Final = 1 / 64
LARGEST_APPROXIMATE_SHARE: Final = 0.9

# Share of the rest for the Renyi filters, and their orders in units of the one that suits a
# Gaussian budget. The Gaussian filter has most of the rest and decides almost always; Renyi filters are for
# rounds that it bounds badly: few reports, heavy tails.
_RENYI_SHARE = 0.08
_RENYI_ORDERS = (1.0, 0.75)
# Share for the filter that adds up largest losses, for rounds that no other filter bounds; it stays finite up
# to this many times the budget.
_PURE_SHARE = 1 / 512
_PURE_REACH = 64.0
# Part of a filter's share that pays for mass outside of the dominating pairs.
_LEAK_PART = 0.05
# Reserves: variance of Gaussian noise that smooths irregular rounds, as shares of the whole Gaussian budget.
_RESERVES = (0.0, 1 / 64, 1 / 16, 1 / 5, 1 / 2)

# Budgets with a larger epsilon have the filters of this one.
_LARGEST_EPSILON = 1e4
# Smallest epsilon and delta of a budget that filters can share.
_LEAST_EPSILON = 1e-9
_LEAST_DELTA = 1e-60
# Relative room for round-off when delta is divided into shares.
_SHARE_ROUND_OFF = 2.0**-40
_BISECTIONS = 60
# Relative distance of a limit below the largest total that fits, so that it fits on every computer. Of a
# variance, at least the second number over its root: round-off makes readings of small ones jagged.
_LIMIT_MARGIN = 2.0**-18
_JAGGED = 2.0**-43
# Below this epsilon no positive total of an order is sought.
_LEAST_SOUGHT = 1e-300


@dataclass(frozen=True, kw_only=True)
class FilterCharge:
    """The cost of one round in each filter; exact fractions.

    Attributes:
        gaussian: variances, one for each reserve.
        renyi: Renyi divergences, one for each order.
        account: the round's probability of revealing everything, and its total variation distance to the
            round that the filters charge.
    """

    gaussian: tuple[Fraction, ...]
    renyi: tuple[Fraction, ...]
    account: tuple[Fraction, ...]

    def __mul__(self, count: int | Fraction) -> FilterCharge:
        return FilterCharge(**{name: tuple(count * one for one in part) for name, part in vars(self).items()})

    def at_least(self, other: FilterCharge) -> FilterCharge:
        """Returns the larger of two charges, filter by filter."""
        pairs = {name: zip(part, vars(other)[name], strict=True) for name, part in vars(self).items()}
        return FilterCharge(**{name: tuple(max(a, b) for a, b in pair) for name, pair in pairs.items()})


@dataclass(frozen=True, kw_only=True)
class FilterLimits:
    """The largest totals with which filters hold at an epsilon; exact, and rounded down.

    Attributes:
        gaussian: the largest variance, reserves included.
        renyi: the largest divergence for each order.
    """

    gaussian: Fraction
    renyi: tuple[Fraction, ...]


@dataclass(frozen=True, kw_only=True)
class FilterReading:
    """One filter's answer: its name, its share of delta, and bounds on the smallest epsilon at which it
    holds."""

    name: str
    delta: float
    epsilon_upper: float
    epsilon_lower: float


@dataclass(frozen=True, kw_only=True)
class FilterSet:
    """A Gaussian filter and Renyi filters, which share a budget's delta with two accounts. Filters charge the
    pure versions of rounds; the accounts pay for the rest. Rounds may go on while one filter and both
    accounts hold.

    Guarantee: if the set was fixed before the first output, and on every path one filter, which may depend on
    the path, and both accounts hold at epsilon at the end, all released outputs together are `(epsilon, sum
    of the shares)`-DP.
    Source: docs/adaptivity.md, Lemma 6 and Theorem 9.
    """

    gaussian: GaussianFilter
    renyi: tuple[RenyiFilter, ...]
    accounts: DeltaAccounts

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, approximate_share: float = APPROXIMATE_SHARE
    ) -> FilterSet:
        """Makes the filters for a budget. Their shares of delta add up to at most delta, and never change.

        Args:
            epsilon, delta: the budget, delta without what other parts of it have.
            approximate_share: part of delta for approximate rounds: half of it for certain loss, half for
                slack.

        Raises:
            InvalidParameter: epsilon is not finite or below 1e-9, delta is not between 0 and 1 or below
                1e-60, or the share is not above 0 and at most 0.9.
        """
        expected = f"a finite number, at least {exact_text(_LEAST_EPSILON)}"
        given = validation.real("epsilon", epsilon, expected)
        if given < _LEAST_EPSILON:
            raise InvalidParameter("epsilon", epsilon, expected)
        delta = validation.probability("delta", delta)
        if delta < _LEAST_DELTA:
            raise InvalidParameter(
                "delta", delta, f"at least {exact_text(_LEAST_DELTA)}, which filters share"
            )
        return _for_budget(given, delta, checked_share(approximate_share))

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        gaussian = {**vars(self.gaussian), "reserves": list(self.gaussian.reserves)}
        renyi = [{**vars(one), "order": None if math.isinf(one.order) else one.order} for one in self.renyi]
        return {"gaussian": gaussian, "renyi": renyi, "accounts": self.accounts.to_mapping()}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> FilterSet:
        """Reads the JSON form.

        Raises:
            InvalidParameter: it does not describe filters.
        """
        match mapping:
            case {"gaussian": Mapping() as gaussian, "renyi": [*orders]}:
                reserves = _numbers(dict(enumerate(gaussian.get("reserves", []))))
                rest = _numbers({name: value for name, value in gaussian.items() if name != "reserves"})
                try:
                    return cls(
                        gaussian=GaussianFilter(reserves=tuple(reserves.values()), **rest),
                        renyi=tuple(_renyi(one) for one in orders),
                        accounts=DeltaAccounts.from_mapping(mapping.get("accounts")),
                    )
                except TypeError:
                    pass
        raise InvalidParameter("filters", mapping, "a Gaussian filter and Renyi filters")

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Every decision looks charges up by their filters: the hash is computed once.
        return hash((self.gaussian, self.renyi, self.accounts))

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the filters for people, the Gaussian one first."""
        return ("gaussian", *(one.name for one in self.renyi))

    def limits(self, epsilon: float) -> FilterLimits:
        """Returns the largest totals that hold at an epsilon.

        Guarantee: with totals up to these, each filter's reading is at most epsilon, on every computer.
        """
        return _limits(self, min(epsilon, _LARGEST_EPSILON), epsilon)

    def readings(
        self, variance: Fraction, divergences: Sequence[Fraction], *, deciding: bool = False
    ) -> tuple[FilterReading, ...]:
        """Returns the answer of each filter, the Gaussian one first.

        Args:
            variance: the total of the Gaussian filter, its reserve included; 0 of an empty budget.
            divergences: the total for each order.
            deciding: leave out Renyi filters whose epsilon is certainly above that of the Gaussian one: the
                least answer is not theirs.
        """
        first = self.gaussian_reading(variance)
        found = (
            _named(one.name, one.delta, one.reading(total))
            for one, total in zip(self.renyi, divergences, strict=True)
            if not (deciding and one.is_above(float_above(total), first.epsilon_upper))
        )
        return (first, *found)

    def confirms(self, variance: float, divergences: Sequence[float], lower: float, upper: float) -> bool:
        """Returns whether the Gaussian filter certainly holds at `upper`, and no filter at `lower`.

        It costs two evaluations of the Gaussian filter, a reading about eight. False may mean that round-off
        leaves it undecided.

        Args:
            variance, divergences: as of `readings`, as the float behind the nearest one.
            lower, upper: epsilons.
        """
        return (
            self.gaussian.holds(variance, upper)
            and self.gaussian.is_above(variance, lower)
            and all(one.is_above(total, lower) for one, total in zip(self.renyi, divergences, strict=True))
        )

    def gaussian_reading(self, variance: Fraction) -> FilterReading:
        """Returns the answer of the Gaussian filter to a total, its reserve included."""
        return _named("gaussian", self.gaussian.delta, _gaussian_reading(self.gaussian, variance))

    def shares(self) -> tuple[float, ...]:
        """Returns the shares of delta: of the filters, then of the accounts."""
        accounts = (self.accounts.certain_loss, self.accounts.slack)
        return (self.gaussian.delta, *(one.delta for one in self.renyi), *accounts)


def checked_share(value: object) -> float:
    """Returns a part of delta for approximate rounds; raises InvalidParameter."""
    expected = (
        f"above 0 and at most {exact_text(LARGEST_APPROXIMATE_SHARE)}: the rest of delta is the filters'"
    )
    given = validation.real("approximate_share", value, expected)
    if not 0 < given <= LARGEST_APPROXIMATE_SHARE:
        raise InvalidParameter("approximate_share", value, expected)
    return given


@functools.lru_cache(maxsize=1024)
def _for_budget(given: float, whole: float, approximate: float) -> FilterSet:
    epsilon = min(given, _LARGEST_EPSILON)
    delta = whole * (1 - approximate)
    share = _RENYI_SHARE / len(_RENYI_ORDERS)
    main = delta * (1 - _RENYI_SHARE - _PURE_SHARE) * (1 - _SHARE_ROUND_OFF)
    variance = _gaussian_budget(min(epsilon, 100.0), main * (1 - _LEAK_PART))
    reserves = tuple(part * variance for part in _RESERVES)
    gaussian = GaussianFilter(delta=main, leak_rate=_LEAK_PART * main / variance, reserves=reserves)
    renyi = []
    for part in _RENYI_ORDERS:
        theta = part * math.sqrt(2 * -math.log(share * delta)) / math.sqrt(variance)
        total = max(epsilon + (math.log(share * delta)) / theta, epsilon / 16)
        order = 1 + max(theta, 2.0**-20)
        leak = _LEAK_PART * share * delta / total
        renyi.append(RenyiFilter(order=order, delta=share * delta, leak_rate=leak))
    pure = _PURE_SHARE * delta
    renyi.append(RenyiFilter(order=math.inf, delta=pure, leak_rate=pure / (_PURE_REACH * epsilon)))
    half = approximate / 2 * whole * (1 - _SHARE_ROUND_OFF)
    accounts = DeltaAccounts(certain_loss=half, slack=half)
    return FilterSet(gaussian=gaussian, renyi=tuple(renyi), accounts=accounts)


@functools.lru_cache(maxsize=1024)
def _limits(filters: FilterSet, epsilon: float, given: float) -> FilterLimits:
    divergences = tuple(
        _largest_loss(one, given) if math.isinf(one.order) else _largest_total(one, epsilon)
        for one in filters.renyi
    )
    return FilterLimits(gaussian=Fraction(_limit(filters.gaussian, epsilon)), renyi=divergences)


def _largest_loss(rules: RenyiFilter, epsilon: float) -> Fraction:
    """Returns the largest total of largest losses that holds at an epsilon: epsilon itself, up to where leaks
    have used up delta."""
    covered = Fraction(rules.delta) / Fraction(rules.leak_rate) * (1 - Fraction(_LIMIT_MARGIN))
    return min(Fraction(epsilon), covered)


def _largest_total(rules: RenyiFilter, epsilon: float) -> Fraction:
    """Returns a divergence slightly below the largest one whose reading is `epsilon`; 0 if there is none."""
    # With more than `most`, leaks alone cost more than delta.
    most = min(epsilon, rules.delta / rules.leak_rate) if epsilon > _LEAST_SOUGHT else 0.0
    low, high = 0.0, most
    while high > low * (1 + _LIMIT_MARGIN) and high > most * _LIMIT_MARGIN:
        middle = (low + high) / 2
        within = rules.reading(Fraction(middle)).epsilon_upper <= epsilon
        low, high = (middle, high) if within else (low, middle)
    return Fraction(low * (1 - _LIMIT_MARGIN))


@functools.lru_cache(maxsize=4096)
def _gaussian_reading(rules: GaussianFilter, variance: Fraction) -> Reading:
    return rules.epsilon(math.nextafter(float(variance), math.inf) if variance else 0.0)


def _limit(gaussian: GaussianFilter, epsilon: float) -> float:
    """Returns a variance slightly below the one whose reading is `epsilon`."""
    low = high = 2 * gaussian.reserves[-1]
    while gaussian.epsilon(high).epsilon_upper <= epsilon:
        low, high = high, 2 * high
    while gaussian.epsilon(low).epsilon_upper > epsilon:
        low, high = low / 2, low
    while high > low * (1 + _LIMIT_MARGIN):
        middle = (low + high) / 2
        within = gaussian.epsilon(middle).epsilon_upper <= epsilon
        low, high = (middle, high) if within else (low, middle)
    limit = low * (1 - min(max(_LIMIT_MARGIN, _JAGGED / math.sqrt(low)), 1 / 2))
    while _gaussian_reading(gaussian, Fraction(limit)).epsilon_upper > epsilon:
        limit *= 1 - _LIMIT_MARGIN
    return limit


def _named(name: str, delta: float, reading: Reading) -> FilterReading:
    return FilterReading(name=name, delta=delta, **reading._asdict())


def _renyi(mapping: object) -> RenyiFilter:
    if isinstance(mapping, Mapping) and mapping.get("order", 0) is None:
        rest = {name: value for name, value in mapping.items() if name != "order"}
        return RenyiFilter(order=math.inf, **_numbers(rest))
    return RenyiFilter(**_numbers(mapping))


def _numbers(mapping: object) -> dict[str, float]:
    if not isinstance(mapping, Mapping):
        raise InvalidParameter("filters", mapping, "named numbers")
    return {str(name): validation.not_negative(str(name), value) for name, value in mapping.items()}


def share_of_budget(epsilon: float, *, whole: float, delta: float) -> float:
    """Returns about which share of a budget a smaller epsilon is, at the same delta: the ratio of the
    variances of the Gaussian mechanisms that fit.

    Many small rounds cost about what Gaussian mechanisms cost, whose variances add up. So shares add up, and
    epsilons do not: half of (1, 1e-6) is an epsilon of 0.69.

    Args:
        epsilon: the smaller one.
        whole: the budget's epsilon.
        delta: of both.

    Guarantee: none; for people to compare quotas.
    """
    return _gaussian_budget(epsilon, delta) / _gaussian_budget(whole, delta)


def _gaussian_budget(epsilon: float, delta: float) -> float:
    """Returns about the largest variance of a Gaussian mechanism within a budget; no guarantee depends on
    it."""
    low, high = 1e-30, 1e30
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        within = float(gaussian_divergence(math.sqrt(middle), np.array([epsilon]))[1][0]) <= delta
        low, high = (middle, high) if within else (low, middle)
    return low
