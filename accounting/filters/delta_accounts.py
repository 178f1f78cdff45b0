"""Accounts of delta, for rounds that are only approximately private: what they cost beyond their pure
versions.

Filters charge the pure version of a round. Two shares of the budget's delta pay for the rest: one for the
probability that a round reveals everything, one for the total variation distance to the pure version.
`docs/adaptivity.md`, section 10, has the theorem and shows why one share for both is too little.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.rounding import float_above

# Beyond this epsilon the price of slack is above every float: any slack exhausts the account.
_LARGEST_PRICED_EPSILON = 700.0
_PRICE_ROUND_OFF = 2.0**-48  # relative round-off of an exponential and a sum
_PRICED_DENOMINATOR = 10**9  # of the fraction that names the epsilon of a price
_PRICED_MARGIN = 2.0**-30  # relative: covers the round-off of a price and its logarithm
_LIMIT_ROUND_OFF = Fraction(1, 2**32)  # relative distance of limits of one epsilon, on any computers


@dataclass(frozen=True, kw_only=True)
class AccountsReading:
    """The use of each account by approximate rounds, and the accounts, all in units of delta.

    Attributes:
        certain_loss_used_upper: probability that some round reveals everything, summed over rounds.
        certain_loss_share: the share of delta for it.
        slack_used_upper: `(1 + exp(epsilon))` times the total variation distances, summed over rounds.
        slack_share: the share of delta for it.
        epsilon: the epsilon in the price of slack: the largest budget that the cohort has had.
    """

    certain_loss_used_upper: float
    certain_loss_share: float
    slack_used_upper: float
    slack_share: float
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class DeltaAccounts:
    """The two accounts of a set of filters.

    Attributes:
        certain_loss: share of delta for `T`, the sum of the probabilities that a round reveals everything.
        slack: share of delta for `(1 + exp(epsilon)) U`, with `U` the sum of the total variation distances,
            at the largest epsilon that is ever promised.

    Guarantee: if `T` and `U` are within the limits of an epsilon at the end of every path, then approximate
        rounds together cost at most `certain_loss + slack` of delta more than their pure versions, at any
        epsilon up to that one, however rounds were chosen.
    Source: docs/adaptivity.md, Theorem 9.
    """

    certain_loss: float
    slack: float

    def limits(self, epsilon: float) -> tuple[Fraction, Fraction]:
        """Returns the largest `T` and `U` for a promise of `epsilon`, rounded down."""
        price = _price(epsilon)
        return Fraction(self.certain_loss), Fraction(0) if price is None else Fraction(self.slack) / price

    def epsilon_covering(self, slack: Fraction) -> float | None:
        """Returns nearly the largest epsilon at whose price a total `U`, above 0, is within its share.

        Guarantee: `U` is at most the limit of this epsilon, and of every smaller one.

        Returns:
            None if there is none above 0.
        """
        price = Fraction(self.slack) / slack
        if price <= 2:
            return None
        epsilon = math.log(min(price - 1, Fraction(math.exp(_LARGEST_PRICED_EPSILON)))) * (1 - _PRICED_MARGIN)
        return epsilon if slack <= self.limits(epsilon)[1] else None

    def reading(
        self, certain: Fraction, slack: Fraction, *, slack_limit: Fraction, epsilon: float
    ) -> AccountsReading:
        """Returns the part of each account that totals `T` and `U` use, rounded up.

        Args:
            certain, slack: the totals.
            slack_limit: the limit of `U` in force.
            epsilon: the promise whose price it has, if it was never larger; the reading names the epsilon of
                the price in force.
        """
        used = math.inf if slack else 0.0
        if slack_limit:
            price = Fraction(self.slack) / slack_limit
            used = float_above(slack * price)
            if slack_limit * (1 + _LIMIT_ROUND_OFF) < self.limits(epsilon)[1]:  # a larger promise was lowered
                priced = Fraction(math.log(price - 1))
                epsilon = float(priced.limit_denominator(_PRICED_DENOMINATOR))
        return AccountsReading(
            certain_loss_used_upper=float_above(certain),
            certain_loss_share=self.certain_loss,
            slack_used_upper=used,
            slack_share=self.slack,
            epsilon=epsilon,
        )

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        return {"certain_loss": self.certain_loss, "slack": self.slack}

    @classmethod
    def from_mapping(cls, mapping: object) -> DeltaAccounts:
        """Reads the JSON form; raises InvalidParameter if it is not one."""
        names = ("certain_loss", "slack")
        if not isinstance(mapping, Mapping) or set(mapping) != set(names):
            raise InvalidParameter("accounts", mapping, f"the fields {', '.join(names)}")
        return cls(**{name: validation.not_negative(name, mapping[name]) for name in names})


@functools.lru_cache(maxsize=256)
def _price(epsilon: float) -> Fraction | None:
    """Returns an upper bound on `1 + exp(epsilon)`, the cost of a unit of slack; None if it is beyond all
    floats."""
    if epsilon > _LARGEST_PRICED_EPSILON:
        return None
    return Fraction((1 + math.exp(epsilon)) * (1 + _PRICE_ROUND_OFF))
