"""Numbers as a statement prints them: aligned, and rounded to the side on which they stay true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction

from shuffle_ledger.accounting import exact_text, lower_column, upper_column

_DIGITS_OF_BUDGET = 5
_CERTAIN = 99.9  # percent: from here on, a tenth that is rounded up says 100


@dataclass(frozen=True, kw_only=True)
class Digits:
    """How many decimals the epsilons of one cohort have, so that a column of them lines up."""

    decimals: int

    @classmethod
    def for_budget(cls, epsilon: float) -> Digits:
        """Returns as many decimals as give the budget five significant digits, between 3 and 12."""
        wanted = _DIGITS_OF_BUDGET - 1 - math.floor(math.log10(epsilon))
        return cls(decimals=min(max(wanted, 3), 12))

    def upper(self, epsilon: float) -> str:
        """Returns an upper bound, rounded up."""
        return upper_column(epsilon, decimals=self.decimals)

    def lower(self, epsilon: float) -> str:
        """Returns a lower bound, or the rest of a budget, rounded down."""
        return lower_column(epsilon, decimals=self.decimals)


plain = exact_text


def one_in(probability: float) -> str:
    """Returns a small probability in words, rounded up.

    A probability that was given as 1e-05 is a decimal number, which its float only comes close to.
    """
    whole = math.floor(1 / Fraction(plain(probability)))
    if whole < 2:
        return plain(probability)
    magnitude = 10 ** max(0, math.floor(math.log10(whole)) - 1)
    return f"1 in {whole // magnitude * magnitude:,}"


def certainty(epsilon: float) -> str:
    """Returns the probability that an answer can reach if two answers seemed equally likely before: rounded
    up."""
    if math.isinf(epsilon):
        return "100 %"
    share = 100 / (1 + math.exp(-min(epsilon, 700.0))) * (1 + 1e-12)  # above what round-off may have taken
    return "practically 100 %" if share > _CERTAIN else f"{upper_column(share, decimals=1)} %"


def percent(part: float, whole: float) -> str:
    """Returns a share in percent, rounded up."""
    if math.isinf(part):
        return "more than all"
    tenths = math.ceil(1000 * Fraction(part) / Fraction(whole))
    return f"{tenths // 10}.{tenths % 10} %"


def moment(value: datetime) -> str:
    """Returns a moment in UTC, to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def day(value: datetime | date) -> str:
    """Returns the day, in UTC."""
    return (value.astimezone(UTC) if isinstance(value, datetime) else value).strftime("%Y-%m-%d")


def grouped(digest: str) -> str:
    """Returns a digest in groups of eight digits, for comparing by eye."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))
