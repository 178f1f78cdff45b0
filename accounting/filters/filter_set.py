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

import numpy as np

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.filters.delta_accounts import AccountsReading, DeltaAccounts
from shuffle_ledger.accounting.filters.gaussian_and_renyi import GaussianFilter, Reading, RenyiFilter
from shuffle_ledger.accounting.filters.repetition import REPETITIONS_MAX, RepetitionFilter, largest_count
from shuffle_ledger.accounting.filters.sliding_reserve import SlidingReserve
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence
from shuffle_ledger.accounting.printed_numbers import exact_text

# Share of the budget's delta for the Renyi filters, and their orders in units of the one that suits a
# Gaussian budget. The Gaussian filter has most of the rest and decides almost always; Renyi filters are for
# rounds that it bounds badly: few reports, heavy tails.
_RENYI_SHARE = 0.08
_RENYI_ORDERS = (1.0, 0.75)
# Share for the filter that adds up largest losses, for rounds that no other filter bounds; it stays finite up
# to this many times the budget.
_PURE_SHARE = 1 / 512
_PURE_REACH = 64.0
# Parts of a filter's share that pay for mass outside of the dominating pairs, and for the distance from
# purely private rounds.
_LEAK_PART = 0.05
_SLACK_PART = 0.01
# Reserves: variance of Gaussian noise that smooths irregular rounds, as shares of the whole Gaussian budget.
_RESERVES = (0.0, 1 / 64, 1 / 16, 1 / 5, 1 / 2)

# Budgets with a larger epsilon have the filters of this one.
_LARGEST_EPSILON = 1e4
# Smallest epsilon and delta of a budget that filters can share.
_LEAST_EPSILON = 1e-9
LEAST_DELTA = 1e-60
# Relative room for round-off when delta is divided into shares.
SHARE_ROUND_OFF = 2.0**-40
_BISECTIONS = 60
_EXACT_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?")
# Parts of charges that some sets of filters do not have.
_OPTIONAL_PARTS = ("repetition", "sliding", "account", "rounds")
# Relative distance of the sliding reserve's limit below the largest variance that fits the budget, so that it
# fits on every computer.
_LIMIT_MARGIN = 2.0**-18


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The charge of one round, or the total of several, in each filter; exact fractions.

    Attributes:
        gaussian: variances, one for each reserve.
        renyi: Renyi divergences, one for each order.
        repetition: units, if there is a repetition filter.
        sliding: if there is a sliding reserve: the charged variance, the part of it that was given back, and
            the part that settlements added. It depends on the remaining budget, not only on the round.
        account: if there are accounts of delta: the round's probability of revealing everything, and its
            total variation distance to the round that the filters charge.
        rounds: if a user joins a limited number of rounds: how many rounds these are, and how many of them
            nothing admitted, if the limit does not cover those. The other parts of a total are then the
            largest charges, not sums.
    """

    gaussian: tuple[Fraction, ...]
    renyi: tuple[Fraction, ...]
    repetition: tuple[Fraction, ...] = ()
    sliding: tuple[Fraction, ...] = ()
    account: tuple[Fraction, ...] = ()
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
        return cls(gaussian=_exact(mapping, "gaussian"), renyi=_exact(mapping, "renyi"), **kept)


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
    """A Gaussian filter, Renyi filters and perhaps a repetition filter, which share a budget's delta. Rounds
    may go on while one of them holds. With accounts of delta, Gaussian and Renyi filters charge the pure
    versions of rounds, and hold only while both accounts do.

    Guarantee: if on every path one filter, which may depend on the path, holds at epsilon at the end, all
    released outputs together are `(epsilon, sum of the shares)`-DP. With `rounds_per_user`: if no user takes
    part in more admitted rounds than that, by a rule that does not depend on the user's data.
    Source: docs/adaptivity.md, Lemma 6, Theorem 9 and Theorem 14.
    """

    gaussian: GaussianFilter
    renyi: tuple[RenyiFilter, ...]
    sliding_limit: float | None = None  # of the Gaussian filter's sliding reserve; older cohorts have none
    repetition: RepetitionFilter | None = None  # made when the cohort's first round is admitted
    accounts: DeltaAccounts | None = None  # older cohorts have none: charges pay for slack
    rounds_per_user: int | None = None  # that a user joins at most; then there is no sliding reserve
    # Whether incidents count beside these rounds: a user may have joined them, too. Older cohorts: no.
    incidents_beside: bool = False

    @classmethod
    def for_budget(
        cls, *, epsilon: float, delta: float, accounts: tuple[float, float] | None = None
    ) -> FilterSet:
        """Makes the filters for a budget. Their shares of delta add up to at most delta, and never change.

        Args:
            epsilon, delta: the budget.
            accounts: parts of delta for certain loss and for slack. None: no accounts, and every charge pays
                for its round's slack.

        Raises:
            InvalidParameter: epsilon is not finite or below 1e-9, delta is not between 0 and 1 or below
                1e-60, or the accounts are not two parts that leave some of delta to the filters.
        """
        expected = f"a finite number, at least {exact_text(_LEAST_EPSILON)}"
        given = validation.real("epsilon", epsilon, expected)
        if given < _LEAST_EPSILON:
            raise InvalidParameter("epsilon", epsilon, expected)
        delta = validation.probability("delta", delta)
        if delta < LEAST_DELTA:
            raise InvalidParameter("delta", delta, f"at least {exact_text(LEAST_DELTA)}, which filters share")
        if accounts is not None:
            accounts = _checked_parts(accounts)
        return _for_budget(given, delta, accounts)

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form of all filters except the repetition filter, which the first admitted round
        fixes."""
        gaussian = {**vars(self.gaussian), "reserves": list(self.gaussian.reserves)}
        renyi = [{**vars(one), "order": None if math.isinf(one.order) else one.order} for one in self.renyi]
        limited = {} if self.sliding_limit is None else {"sliding_limit": self.sliding_limit}
        accounts = {} if self.accounts is None else {"accounts": self.accounts.to_mapping()}
        capped = {} if self.rounds_per_user is None else {"rounds_per_user": self.rounds_per_user}
        beside = {"incidents_beside": True} if self.incidents_beside else {}
        return {"gaussian": gaussian, "renyi": renyi, **limited, **accounts, **capped, **beside}

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
                accounts, cap = mapping.get("accounts"), mapping.get("rounds_per_user")
                if cap is not None and (type(cap) is not int or cap < 1 or limited):
                    raise InvalidParameter(
                        "rounds_per_user", cap, "a whole number, without a sliding reserve"
                    )
                try:
                    return cls(
                        gaussian=GaussianFilter(reserves=tuple(reserves.values()), **rest),
                        renyi=tuple(_renyi(one) for one in orders),
                        sliding_limit=_numbers(limited).get("sliding_limit"),
                        accounts=None if accounts is None else DeltaAccounts.from_mapping(accounts),
                        rounds_per_user=cap,
                        incidents_beside=cap is not None and mapping.get("incidents_beside") is True,
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
            repetition=(zero,) if self.repetition else (),
            sliding=(zero,) * 3 if self._sliding else (),
            account=(zero,) * 2 if self.accounts else (),
            rounds=self._counted(),
        )

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        # Every decision looks charges up by their filters: the hash is computed once.
        parts = (self.gaussian, self.renyi, self.sliding_limit, self.repetition, self.accounts)
        return hash((*parts, self.rounds_per_user, self.incidents_beside))

    @functools.cached_property
    def without_totals(self) -> FilterSet:
        """Returns the filters without the parts that do not affect a round's cost (except its repetition
        units)."""
        return dataclasses.replace(
            self, repetition=None, sliding_limit=None, rounds_per_user=None, incidents_beside=False
        )

    def limit_for(self, epsilon: float) -> float | None:
        """Returns the sliding reserve's limit for a budget changed to `epsilon`, never less than before; None
        without a sliding reserve."""
        limit = self.sliding_limit
        return None if limit is None else max(limit, _limit(self.gaussian, min(epsilon, _LARGEST_EPSILON)))

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
        return int(min(spent.rounds[0], self.rounds_per_user + sum(spent.rounds[1:])))

    def _of_one_user(self, spent: Charge) -> Charge:
        """Returns a bound on the sum of the charges of the rounds that one user takes part in."""
        most = self.rounds_of_one_user(spent)
        return spent if most is None else spent * most

    def _counted(self, rounds: int = 0, *, incidents: int = 0) -> tuple[Fraction, ...]:
        """Returns numbers of rounds, as these filters keep them."""
        counts = (rounds, incidents) if self.incidents_beside else (rounds,)
        return tuple(map(Fraction, counts)) if self.rounds_per_user else ()

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
        if self.accounts is not None and not self.accounts.hold(spent.account):
            found = [dataclasses.replace(one, epsilon_upper=math.inf) for one in found]
        if self.repetition is not None:
            (units,) = spent.repetition
            found.append(_named("repetition", self.repetition.delta, self.repetition.reading(units)))
        return tuple(found)

    def epsilon_upper(self, spent: Charge) -> float:
        """Returns an upper bound on the smallest epsilon at which one of the filters holds."""
        return min(reading.epsilon_upper for reading in self.readings(spent))

    def accounts_reading(self, spent: Charge) -> AccountsReading | None:
        """Returns the use of the accounts of delta; None without accounts."""
        return None if self.accounts is None else self.accounts.reading(self._of_one_user(spent).account)

    def lacks_delta(self, spent: Charge, *, epsilon: float) -> bool:
        """Returns whether an account of delta is exhausted and a filter would otherwise hold at `epsilon`."""
        if self.accounts is None or self.accounts.hold(self._of_one_user(spent).account):
            return False
        return dataclasses.replace(self, accounts=None).epsilon_upper(spent) <= epsilon

    def most_more(self, spent: Charge, cost: Charge, *, epsilon: float) -> int:
        """Returns how many more rounds of one cost the filters admit at `epsilon`, one after the other, up to
        `REPETITIONS_MAX`.

        Proof: a round is admitted if after it the repetition filter holds, or if the accounts of delta hold
        and beside them a fixed reserve, a Renyi filter or the sliding reserve. Totals never shrink from round
        to round, so each of these conditions holds for the first rounds up to a number, and for none beyond.
        The result is the larger of two such numbers: the one of everything that adds costs up, with the
        accounts, and the smaller one of the sliding reserve's and the accounts'.
        """
        budget = 2 * self.gaussian.reserves[-1]
        about = budget / max(float(cost.gaussian[0]), budget / REPETITIONS_MAX)
        most = largest_count(
            lambda n: self.epsilon_upper(self.after_more(spent, cost, n)) <= epsilon, math.floor(about)
        )
        if self._sliding is None or self._at_limit.epsilon_upper > epsilon:
            return most
        if not self._sliding.holds(_held(spent), spent.sliding[2]):  # settlements used up its headroom
            return most
        sliding = self._sliding.most_more(_held(spent), cost.gaussian)
        accounts = self.accounts.most_more(spent.account, cost.account) if self.accounts else None
        return min(max(most, sliding if accounts is None else min(sliding, accounts)), REPETITIONS_MAX)

    def epsilon_of(self, spent: Charge, cost: Charge, count: int, *, epsilon: float) -> float:
        """Returns the smallest epsilon at which one filter holds after `count` more rounds of one cost;
        infinite if one of these rounds would be refused at `epsilon`."""
        if self.most_more(spent, cost, epsilon=epsilon) < count:
            return math.inf
        # If the sliding reserve decides, it holds at the budget's epsilon or below.
        return min(self.epsilon_upper(self.after_more(spent, cost, count)), epsilon)

    def most_alike(self, cost: Charge, *, epsilon: float) -> int:
        """Returns how many rounds of one cost the filters of an empty cohort admit, up to
        `REPETITIONS_MAX`."""
        return self.most_more(self.nothing(), cost, epsilon=epsilon)

    def shares(self) -> tuple[float, ...]:
        """Returns the shares of delta: of the filters, then of the accounts."""
        repeated = () if self.repetition is None else (self.repetition.delta,)
        accounts = () if self.accounts is None else (self.accounts.certain_loss, self.accounts.slack)
        return (self.gaussian.delta, *(one.delta for one in self.renyi), *repeated, *accounts)

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


def _checked_parts(accounts: object) -> tuple[float, float]:
    expected = "two parts of delta, for certain loss and for slack, that sum to less than 1"
    if not isinstance(accounts, list | tuple) or len(accounts) != 2:
        raise InvalidParameter("accounts", accounts, expected)
    certain, slack = (validation.share("accounts", part, zero=True) for part in accounts)
    if certain + slack >= 1:
        raise InvalidParameter("accounts", accounts, expected)
    return certain, slack


@functools.lru_cache(maxsize=1024)
def _for_budget(given: float, whole: float, accounts: tuple[float, float] | None) -> FilterSet:
    epsilon = min(given, _LARGEST_EPSILON)
    delta = whole if accounts is None else whole * (1 - math.fsum(accounts))
    slack_part = _SLACK_PART if accounts is None else 0.0
    share = _RENYI_SHARE / len(_RENYI_ORDERS)
    main = delta * (1 - _RENYI_SHARE - _PURE_SHARE) * (1 - SHARE_ROUND_OFF)
    variance = _gaussian_budget(min(epsilon, 100.0), main * (1 - _LEAK_PART - slack_part))
    leak, slack = _rates(main, variance, epsilon, slack_part)
    reserves = tuple(part * variance for part in _RESERVES)
    gaussian = GaussianFilter(delta=main, leak_rate=leak, slack_rate=slack, reserves=reserves)
    renyi = []
    for part in _RENYI_ORDERS:
        theta = part * math.sqrt(2 * -math.log(share * delta)) / math.sqrt(variance)
        total = max(epsilon + (math.log(share * delta)) / theta, epsilon / 16)
        leak, slack = _rates(share * delta, total, epsilon, slack_part)
        order = 1 + max(theta, 2.0**-20)
        renyi.append(RenyiFilter(order=order, delta=share * delta, leak_rate=leak, slack_rate=slack))
    pure = _PURE_SHARE * delta
    leak = pure / (_PURE_REACH * epsilon)
    renyi.append(RenyiFilter(order=math.inf, delta=pure, leak_rate=leak, slack_rate=0.0))
    kept = None
    if accounts is not None:
        certain, slack = (part * whole * (1 - SHARE_ROUND_OFF) for part in accounts)
        kept = DeltaAccounts(certain_loss=certain, slack=slack, epsilon=given)
    return FilterSet(
        gaussian=gaussian, renyi=tuple(renyi), sliding_limit=_limit(gaussian, epsilon), accounts=kept
    )


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


def _rates(share: float, total: float, epsilon: float, slack_part: float) -> tuple[float, float]:
    slack = slack_part * share / total / (1 + math.exp(min(epsilon, 500.0)))
    return _LEAK_PART * share / total, slack


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
