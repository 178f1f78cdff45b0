"""Accounts of delta, for rounds that are only approximately private: what they cost beyond their pure
versions.

Filters charge the pure version of a round. Two shares of the budget's delta pay for the rest: one for the
probability that a round reveals everything, one for the total variation distance to the pure version.
`docs/adaptivity.md`, section 10, has the theorem and shows why one share for both is too little.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shuffle_ledger.accounting import validation
from shuffle_ledger.accounting.errors import InvalidParameter

# Beyond this epsilon the price of slack is above every float: any slack exhausts the account.
_LARGEST_PRICED_EPSILON = 700.0
_PRICE_ROUND_OFF = 2.0**-48  # relative round-off of an exponential and a sum


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
        slack: share of delta for `(1 + exp(epsilon)) U`, with `U` the sum of the total variation distances.
        epsilon: the largest epsilon at which the filters may be read.

    Guarantee: if both accounts hold at the end of every path, then approximate rounds together cost at most
        `certain_loss + slack` of delta more than their pure versions, at any epsilon up to `epsilon`,
        however rounds were chosen.
    Source: docs/adaptivity.md, Theorem 9.
    """

    certain_loss: float
    slack: float
    epsilon: float

    def hold(self, spent: Sequence[Fraction]) -> bool:
        """Returns whether both totals, `T` and `U`, are within their accounts."""
        certain, slack = spent
        return certain <= self._certain_limit and slack <= self._slack_limit

    def most_more(self, spent: Sequence[Fraction], cost: Sequence[Fraction]) -> int | None:
        """Returns how many more rounds of one cost fit in both accounts. It is 0 if the totals are already
        beyond an account, also for a cost of 0; else None for a cost of 0, which has no limit."""
        if not self.hold(spent):
            return 0
        limits = (self._certain_limit, self._slack_limit)
        parts = [(limit - total) // one for limit, total, one in zip(limits, spent, cost, strict=True) if one]
        return min(parts) if parts else None

    def at(self, epsilon: float) -> DeltaAccounts:
        """Returns the accounts for a budget raised to `epsilon`; a smaller epsilon changes nothing."""
        if epsilon <= self.epsilon:
            return self
        return DeltaAccounts(certain_loss=self.certain_loss, slack=self.slack, epsilon=epsilon)

    def reading(self, spent: Sequence[Fraction]) -> AccountsReading:
        """Returns the used part of each account, rounded up."""
        certain, slack = spent
        price = self._price
        used = math.inf if price is None and slack else _float_above(slack * (price or 0))
        return AccountsReading(
            certain_loss_used_upper=_float_above(certain),
            certain_loss_share=self.certain_loss,
            slack_used_upper=used,
            slack_share=self.slack,
            epsilon=self.epsilon,
        )

    def to_mapping(self) -> dict[str, object]:
        """Returns the JSON form."""
        return {"certain_loss": self.certain_loss, "slack": self.slack, "epsilon": self.epsilon}

    @classmethod
    def from_mapping(cls, mapping: object) -> DeltaAccounts:
        """Reads the JSON form; raises InvalidParameter if it is not one."""
        names = ("certain_loss", "slack", "epsilon")
        if not isinstance(mapping, Mapping) or set(mapping) != set(names):
            raise InvalidParameter("accounts", mapping, f"the fields {', '.join(names)}")
        expected = "a finite number, not negative"
        numbers = {name: validation.real(name, mapping[name], expected) for name in names}
        for name, value in numbers.items():
            if value < 0:
                raise InvalidParameter(name, value, expected)
        return cls(**numbers)

    @functools.cached_property
    def _price(self) -> Fraction | None:
        """Returns an upper bound on `1 + exp(epsilon)`, the cost of a unit of slack; None if it is beyond all
        floats."""
        if self.epsilon > _LARGEST_PRICED_EPSILON:
            return None
        return Fraction((1 + math.exp(self.epsilon)) * (1 + _PRICE_ROUND_OFF))

    @functools.cached_property
    def _certain_limit(self) -> Fraction:
        return Fraction(self.certain_loss)

    @functools.cached_property
    def _slack_limit(self) -> Fraction:
        return Fraction(0) if self._price is None else Fraction(self.slack) / self._price


def _float_above(value: Fraction) -> float:
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)
