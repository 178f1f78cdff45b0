"""Numbers as a statement prints them: aligned, and rounded to the side on which they stay true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction

from shuffle_ledger.accounting import exact_text, lower_column, upper_column

_DIGITS_OF_BUDGET = 5
_NAMES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
_NAMED_BELOW = 10**15  # larger numbers have no names that people know
_HALVES = (2, 3, 4, 6, 8, 10, 12, 14, 16, 18)  # twice the leading digits that are named: 1.5, or whole ones
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


def one_in(probability: float) -> str:
    """Returns a small probability in words of one significant digit, rounded up: "about 1 in 4 million".

    Beside the exact number, words need no precision. A probability that was given as 1e-05 is a decimal
    number, which its float only comes close to.
    """
    whole = math.floor(1 / Fraction(exact_text(probability)))
    if whole < 2:
        return exact_text(probability)
    if whole >= _NAMED_BELOW:
        return f"less than 1 in a {_NAMES[0][1]}"
    tens = 10 ** (len(str(whole)) - 1)
    halves = max(step * tens for step in _HALVES if step * tens <= 2 * whole) if tens > 1 else 2 * whole
    unit, name = next((each for each in _NAMES if halves >= 2 * each[0]), (1, ""))
    count, half = divmod(halves // unit, 2)
    spelled = "a" if count == 1 and not half and name else f"{count}{'.5' if half else ''}"
    return f"about 1 in {spelled} {name}".rstrip()


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


def share_upper(part: float, whole: float) -> float:
    """Returns a share as a number of at most 1, rounded up to four decimals."""
    return 1.0 if part >= whole else math.ceil(10_000 * Fraction(part) / Fraction(whole)) / 10_000


def moment(value: datetime) -> str:
    """Returns a moment in UTC, to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def day(value: datetime | date) -> str:
    """Returns the day, in UTC."""
    return (value.astimezone(UTC) if isinstance(value, datetime) else value).strftime("%Y-%m-%d")


def grouped(digest: str) -> str:
    """Returns a digest in groups of eight digits, for comparing by eye."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))
