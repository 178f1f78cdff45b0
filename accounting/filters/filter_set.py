"""The filters of a budget, and the total of rounds' charges in them.

A round is charged before it is released: one number for every filter, about the smallest certified one (see
`charges.py`). Charges add up exactly. Rounds may go on while at least one filter holds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.counts import ROUNDS_MAX, largest_count
from shuffle_ledger.accounting.filters.delta_accounts import AccountsReading, DeltaAccounts
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, Reading, RenyiFilter
from shuffle_ledger.accounting.filters.sliding_reserve import SlidingReserve
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
_EXACT_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?")
# Parts of charges that some sets of filters do not have.
_OPTIONAL_PARTS = ("sliding", "rounds")
# Relative distance of the sliding reserve's limit below the largest variance that fits the budget, so that it
# fits on every computer.
_LIMIT_MARGIN = 2.0**-18


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The charge of one round, or the total of several, in each filter; exact fractions.

    Attributes:
        gaussian: variances, one for each reserve.
        renyi: Renyi divergences, one for each order.
        sliding: if there is a sliding reserve: the charged variance, the part of it that was given back, and
            the part that settlements added. It depends on the remaining budget, not only on the round.
        account: the round's probability of revealing everything, and its total variation distance to the
            round that the filters charge.
        rounds: if a user joins a limited number of rounds: how many rounds these are, and how many of them
            nothing admitted, if the limit does not cover those. The other parts of a total are then the
            largest charges, not sums.
    """

    gaussian: tuple[Fraction, ...]
    renyi: tuple[Fraction, ...]
    account: tuple[Fraction, ...]
    sliding: tuple[Fraction, ...] = ()
    rounds: tuple[Fraction, ...] = ()

    def __add__(self, other: Charge) -> Charge:
        return self._combined(operator.add, other)

    def __sub__(self, other: Charge) -> Charge:
        return self._combined(operator.sub, other)

    def __mul__(self, count: int | Fraction) -> Charge:
        return Charge(**{name: tuple(count * one for one in part) for name, part in vars(self).items()})

    @property
    def cost(self) -> Charge:
        """Returns the part that depends on the round alone, not on the remaining budget."""
        return dataclasses.replace(self, sliding=(), rounds=())

    @property
    def pure(self) -> Charge:
        """Returns the charge without what it uses of the accounts of delta."""
        return dataclasses.replace(self, account=(Fraction(0),) * 2)

    def at_least(self, other: Charge) -> Charge:
        """Returns the larger of two charges, filter by filter."""
        return self._combined(max, other)

    def _combined(self, combine: Callable[[Fraction, Fraction], Fraction], other: Charge) -> Charge:
        pairs = {name: zip(part, vars(other)[name], strict=True) for name, part in vars(self).items()}
        return Charge(**{name: tuple(combine(a, b) for a, b in pair) for name, pair in pairs.items()})

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form: exact numbers, written `numerator/denominator`."""
        parts = {name: [str(value) for value in part] for name, part in vars(self).items()}
        return {name: part for name, part in parts.items() if part or name not in _OPTIONAL_PARTS}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Charge:
        """Reads the JSON form; raises InvalidParameter if it is not one."""
        kept = {name: _exact(mapping, name) for name in _OPTIONAL_PARTS if name in mapping}
        stated = {name: _exact(mapping, name) for name in ("gaussian", "renyi", "account")}
        return cls(**stated, **kept)


@dataclass(frozen=True, kw_only=True)
class RaisedLimits:
    """The limits that a raised budget gives a set of filters, which otherwise never changes.

    Attributes:
        sliding_limit: limit of the sliding reserve; None without one.
        slack_epsilon: the largest epsilon that the budget has had, for the price of slack.
    """

    sliding_limit: float | None
    slack_epsilon: float

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        return dict(vars(self))

    @classmethod
    def from_mapping(cls, mapping: object) -> RaisedLimits:
        """Reads the JSON form; raises InvalidParameter if it is not one."""
        match mapping:
            case {"sliding_limit": None | float() as limit, "slack_epsilon": float(priced)}:
                if all(value is None or 0 < value < math.inf for value in (limit, priced)):
                    return cls(sliding_limit=limit, slack_epsilon=priced)
        raise InvalidParameter("raised", mapping, "a sliding_limit or null, and a slack_epsilon")


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
    of the shares)`-DP. With `rounds_per_user`: if no user takes part in more admitted rounds than that, by a
    rule that does not depend on the user's data.
    Source: docs/adaptivity.md, Lemma 6, Theorem 9 and Theorem 14.
    """

    gaussian: GaussianFilter
    renyi: tuple[RenyiFilter, ...]
    accounts: DeltaAccounts
    sliding_limit: float | None = None  # of the Gaussian filter's sliding reserve
    # In how many admitted rounds a user takes part at most; then there is no sliding reserve. Incidents count
    # beside these rounds: a user may have joined them, too.
    rounds_per_user: int | None = None

    @classmethod
    def for_budget(
        cls,
        *,
        epsilon: float,
        delta: float,
        ceiling: float | None = None,
        rounds_per_user: int | None = None,
        approximate_share: float = APPROXIMATE_SHARE,
    ) -> FilterSet:
        """Makes the filters for a budget. Their shares of delta add up to at most delta, and never change.

        Args:
            epsilon, delta: the budget.
            ceiling: the largest epsilon that it may be raised to, also for reasons that depend on data. Slack
                is priced at it from the beginning. None: for no such reason.
            rounds_per_user: in how many admitted rounds one user takes part at most; None: in any number.
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
        made = _for_budget(given, delta, checked_share(approximate_share))
        if ceiling is not None:
            made = dataclasses.replace(made, accounts=made.accounts.at(ceiling))
        if rounds_per_user is not None:
            made = dataclasses.replace(made, sliding_limit=None, rounds_per_user=rounds_per_user)
        return made

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        gaussian = {**vars(self.gaussian), "reserves": list(self.gaussian.reserves)}
        renyi = [{**vars(one), "order": None if math.isinf(one.order) else one.order} for one in self.renyi]
        limited = {} if self.sliding_limit is None else {"sliding_limit": self.sliding_limit}
        capped = {} if self.rounds_per_user is None else {"rounds_per_user": self.rounds_per_user}
        accounts = self.accounts.to_mapping()
        return {"gaussian": gaussian, "renyi": renyi, "accounts": accounts, **limited, **capped}

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
                limited = {name: value for name, value in mapping.items() if name == "sliding_limit"}
                cap = mapping.get("rounds_per_user")
                if cap is not None and (type(cap) is not int or cap < 1 or limited):
                    raise InvalidParameter(
                        "rounds_per_user", cap, "a whole number, without a sliding reserve"
                    )
                try:
                    return cls(
                        gaussian=GaussianFilter(reserves=tuple(reserves.values()), **rest),
                        renyi=tuple(_renyi(one) for one in orders),
                        sliding_limit=_numbers(limited).get("sliding_limit"),
                        accounts=DeltaAccounts.from_mapping(mapping.get("accounts")),
                        rounds_per_user=cap,
                    )
                except TypeError:
                    pass
        raise InvalidParameter("filters", mapping, "a Gaussian filter and Renyi filters")

    def nothing(self) -> Charge:
        """Returns the total of an empty cohort: 0 in every filter."""
        zero = Fraction(0)
        return Charge(
            gaussian=(zero,) * len(self.gaussian.reserves),
            renyi=(zero,) * len(self.renyi),
            account=(zero,) * 2,
            sliding=(zero,) * 3 if self._sliding else (),
            rounds=self._counted(),
        )

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Every decision looks charges up by their filters: the hash is computed once.
        return hash((self.gaussian, self.renyi, self.accounts, self.sliding_limit, self.rounds_per_user))

    @functools.cached_property
    def without_totals(self) -> FilterSet:
        """Returns the filters without the parts that do not affect a round's cost."""
        return dataclasses.replace(self, sliding_limit=None, rounds_per_user=None)

    def under(self, raised: RaisedLimits | None) -> FilterSet:
        """Returns the filters in force after changes of the budget; None: with the limits they were opened
        with."""
        return self if raised is None else _under(self, raised)

    def raised(self, before: RaisedLimits | None, epsilon: float) -> RaisedLimits | None:
        """Returns the limits in force for a budget changed to `epsilon`, never less than `before`; None for
        those that the filters were opened with."""
        now = self.under(before)
        limit = now.sliding_limit
        if limit is not None:
            limit = max(limit, _limit(self.gaussian, min(epsilon, _LARGEST_EPSILON)))
        priced = now.accounts.at(epsilon).epsilon
        if (limit, priced) == (self.sliding_limit, self.accounts.epsilon):
            return None
        return RaisedLimits(sliding_limit=limit, slack_epsilon=priced)

    @functools.cached_property
    def _sliding(self) -> SlidingReserve | None:
        limit = self.sliding_limit
        return None if limit is None else SlidingReserve(limit=limit, reserves=self.gaussian.reserves)

    def taken(self, spent: Charge, cost: Charge) -> Charge:
        """Returns the charge of a round with this cost in each filter, after a total of `spent`."""
        if self.rounds_per_user is not None:
            return dataclasses.replace(cost, rounds=self._counted(1))
        if self._sliding is None:
            return cost
        charge = self._sliding.charge(_held(spent), cost.gaussian)
        return dataclasses.replace(cost, sliding=(charge, Fraction(0), Fraction(0)))

    def taken_instead(self, spent: Charge, before: Charge, cost: Charge) -> Charge:
        """Returns the new charge of a round whose settlement gave the cost `cost`, in place of the charge
        `before`: never less than before, filter by filter. Of an incident, `before` is `nothing()`."""
        if self.rounds_per_user is not None:
            counted = before.rounds if before.rounds[0] else self._counted(1, incidents=1)
            least = before.at_least(dataclasses.replace(cost, rounds=before.rounds))
            return dataclasses.replace(least, rounds=counted)
        least = before.cost.at_least(cost)
        if self._sliding is None:
            return least
        taken = before.sliding[0]
        charge = self._sliding.charge(_held(spent - before), [max(cost, taken) for cost in least.gaussian])
        return dataclasses.replace(least, sliding=(charge, Fraction(0), before.sliding[2] + charge - taken))

    def after(self, spent: Charge, charge: Charge) -> Charge:
        """Returns the total after one more round, which is charged this."""
        if self.rounds_per_user is None:
            return spent + charge
        counted = tuple(map(operator.add, spent.rounds, charge.rounds))
        return dataclasses.replace(spent.at_least(charge), rounds=counted)

    def after_instead(self, spent: Charge, before: Charge, charge: Charge) -> Charge:
        """Returns the total after a round turned out to be charged this, and not `before`."""
        if self.rounds_per_user is None:
            return spent - before + charge
        return dataclasses.replace(spent.at_least(charge), rounds=spent.rounds)

    def after_more(self, spent: Charge, cost: Charge, count: int) -> Charge:
        """Returns the total after some more rounds of one cost, without the sliding reserve."""
        if self.rounds_per_user is None:
            return spent.cost + cost * count
        if count == 0:
            return spent
        most = spent.at_least(dataclasses.replace(cost, rounds=spent.rounds))
        return dataclasses.replace(most, rounds=(spent.rounds[0] + count, *spent.rounds[1:]))

    def rounds_of_one_user(self, spent: Charge) -> int | None:
        """Returns in how many of the rounds of a total one user takes part at most; None without a limit."""
        if self.rounds_per_user is None:
            return None
        return int(min(spent.rounds[0], self.rounds_per_user + spent.rounds[1]))

    def _of_one_user(self, spent: Charge) -> Charge:
        """Returns a bound on the sum of the charges of the rounds that one user takes part in."""
        most = self.rounds_of_one_user(spent)
        return spent if most is None else spent * most

    def _counted(self, rounds: int = 0, *, incidents: int = 0) -> tuple[Fraction, ...]:
        """Returns numbers of rounds, as these filters keep them."""
        return tuple(map(Fraction, (rounds, incidents))) if self.rounds_per_user else ()

    def given_back(self, spent: Charge, charge: Charge) -> Charge:
        """Returns the total after a round with this charge turned out to have released nothing.

        The Gaussian filter gets its part back if the round's reserve is intact. Otherwise the decision not to
        release may have been made when too little noise remained to hide it.
        """
        if self.rounds_per_user is not None:
            return spent  # the largest charges say nothing of the second largest
        rest = spent - charge
        if self._sliding is None:
            return rest
        taken, returned, late = spent.sliding
        if self._sliding.is_intact(taken, charge.gaussian, charge.sliding[0]):
            return dataclasses.replace(rest, sliding=(taken, returned + charge.sliding[0], late))
        return dataclasses.replace(rest, gaussian=spent.gaussian, sliding=spent.sliding)

    def readings(self, spent: Charge) -> tuple[FilterReading, ...]:
        """Returns the answer of each filter to a total of `spent`, the Gaussian one first."""
        spent = self._of_one_user(spent)
        found = [_named("gaussian", self.gaussian.delta, self._gaussian_reading(spent))]
        found += [
            _named(one.name, one.delta, one.reading(total))
            for one, total in zip(self.renyi, spent.renyi, strict=True)
        ]
        if not self.accounts.hold(spent.account):
            found = [dataclasses.replace(one, epsilon_upper=math.inf) for one in found]
        return tuple(found)

    def epsilon_upper(self, spent: Charge) -> float:
        """Returns an upper bound on the smallest epsilon at which one of the filters holds."""
        return min(reading.epsilon_upper for reading in self.readings(spent))

    def accounts_reading(self, spent: Charge) -> AccountsReading:
        """Returns the use of the accounts of delta."""
        return self.accounts.reading(self._of_one_user(spent).account)

    def lacks_delta(self, spent: Charge, *, epsilon: float) -> bool:
        """Returns whether an account of delta is exhausted and a filter would otherwise hold at `epsilon`."""
        if self.accounts.hold(self._of_one_user(spent).account):
            return False
        return self.epsilon_upper(spent.pure) <= epsilon

    def most_more(self, spent: Charge, cost: Charge, *, epsilon: float) -> int:
        """Returns how many more rounds of one cost the filters admit at `epsilon`, one after the other, up to
        `ROUNDS_MAX`.

        Proof: a round is admitted if after it the accounts of delta hold, and beside them a fixed reserve, a
        Renyi filter or the sliding reserve. Totals never shrink from round to round, so each of these
        conditions holds for the first rounds up to a number, and for none beyond. The result is the larger of
        two such numbers: the one of everything that adds costs up, with the accounts, and the smaller one of
        the sliding reserve's and the accounts'.
        """
        budget = 2 * self.gaussian.reserves[-1]
        about = budget / max(float(cost.gaussian[0]), budget / ROUNDS_MAX)
        most = largest_count(
            lambda n: self.epsilon_upper(self.after_more(spent, cost, n)) <= epsilon, math.floor(about)
        )
        if self._sliding is None or self._at_limit.epsilon_upper > epsilon:
            return most
        if not self._sliding.holds(_held(spent), spent.sliding[2]):  # settlements used up its headroom
            return most
        sliding = self._sliding.most_more(_held(spent), cost.gaussian)
        accounts = self.accounts.most_more(spent.account, cost.account)
        return min(max(most, sliding if accounts is None else min(sliding, accounts)), ROUNDS_MAX)

    def epsilon_of(self, spent: Charge, cost: Charge, count: int, *, epsilon: float) -> float:
        """Returns the smallest epsilon at which one filter holds after `count` more rounds of one cost;
        infinite if one of these rounds would be refused at `epsilon`."""
        if self.most_more(spent, cost, epsilon=epsilon) < count:
            return math.inf
        # If the sliding reserve decides, it holds at the budget's epsilon or below.
        return min(self.epsilon_upper(self.after_more(spent, cost, count)), epsilon)

    def most_alike(self, cost: Charge, *, epsilon: float) -> int:
        """Returns how many rounds of one cost the filters of an empty cohort admit, up to `ROUNDS_MAX`."""
        return self.most_more(self.nothing(), cost, epsilon=epsilon)

    def shares(self) -> tuple[float, ...]:
        """Returns the shares of delta: of the filters, then of the accounts."""
        accounts = (self.accounts.certain_loss, self.accounts.slack)
        return (self.gaussian.delta, *(one.delta for one in self.renyi), *accounts)

    def _gaussian_reading(self, spent: Charge) -> Reading:
        """Returns the Gaussian filter's reading: from the fixed reserves, or from the sliding one if that is
        smaller. A total without a sliding part uses the fixed ones alone."""
        reading = self.gaussian.reading(spent.gaussian)
        if self._sliding is None or not spent.sliding or _held(spent) <= 0:
            return reading
        if not self._sliding.holds(_held(spent), spent.sliding[2]):
            return reading
        return min(reading, self._at_limit)

    @functools.cached_property
    def _at_limit(self) -> Reading:
        """Returns the Gaussian filter's reading at the sliding reserve's limit, valid while that reserve
        holds."""
        return self.gaussian.epsilon(self.sliding_limit or 0.0)


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
    accounts = DeltaAccounts(certain_loss=half, slack=half, epsilon=given)
    limit = _limit(gaussian, epsilon)
    return FilterSet(gaussian=gaussian, renyi=tuple(renyi), accounts=accounts, sliding_limit=limit)


# Equal cohorts share one object, which caches its reading at the limit.
@functools.lru_cache(maxsize=256)
def _under(filters: FilterSet, raised: RaisedLimits) -> FilterSet:
    accounts = filters.accounts.at(raised.slack_epsilon)
    return dataclasses.replace(filters, sliding_limit=raised.sliding_limit, accounts=accounts)


def _held(spent: Charge) -> Fraction:
    """Returns the charged variance minus the part given back: the sliding reserve compares it with its
    limit."""
    charged, returned, _ = spent.sliding
    return charged - returned


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
    limit = low * (1 - _LIMIT_MARGIN)
    while gaussian.epsilon(limit).epsilon_upper > epsilon:  # readings of tiny budgets are not monotone
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
    expected = "a finite number, not negative"
    numbers = {str(name): validation.real(str(name), value, expected) for name, value in mapping.items()}
    for name, value in numbers.items():
        if value < 0:
            raise InvalidParameter(name, value, expected)
    return numbers


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


def _exact(mapping: Mapping[str, object], field: str) -> tuple[Fraction, ...]:
    values = mapping.get(field)
    if not isinstance(values, list | tuple):
        raise InvalidParameter(field, values, "a list of exact numbers")
    try:
        return tuple(map(_fraction, values))
    except (ValueError, ZeroDivisionError):
        raise InvalidParameter(field, values, "exact numbers such as 3/4") from None


def _fraction(value: object) -> Fraction:
    # `Fraction` also accepts exponents such as 1e999999999, which would exhaust the memory: they are refused.
    text = str(value)
    if not _EXACT_NUMBER.fullmatch(text):
        raise ValueError(value)
    numerator, _, denominator = text.partition("/")
    return Fraction(int(numerator), int(denominator or 1))
