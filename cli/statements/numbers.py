"""Numbers as a statement prints them: aligned, and rounded to the side on which they stay true."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_DIGITS_OF_BUDGET = 5
_EXACT = Context(prec=400)


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
        return self._rounded(epsilon, ROUND_CEILING)

    def lower(self, epsilon: float) -> str:
        """Returns a lower bound, or what is left, rounded down."""
        return self._rounded(epsilon, ROUND_FLOOR)

    def _rounded(self, epsilon: float, rounding: str) -> str:
        if math.isinf(epsilon):
            return "unbounded"
        step = Decimal(1).scaleb(-self.decimals)
        return f"{Decimal(epsilon).quantize(step, rounding=rounding, context=_EXACT):,f}"


def plain(value: float) -> str:
    """Returns a number that somebody typed as he may have typed it, exactly."""
    text = repr(float(value))
    return text[:-2] if text.endswith(".0") else text


def one_in(probability: float) -> str:
    """Returns a small probability in words, rounded up."""
    whole = math.floor(1 / probability)
    if whole < 2:
        return plain(probability)
    magnitude = 10 ** max(0, math.floor(math.log10(whole)) - 1)
    return f"1 in {whole // magnitude * magnitude:,}"


def certainty(epsilon: float) -> str:
    """Returns how sure somebody may become of one of two answers he held for equally likely: rounded up."""
    if math.isinf(epsilon):
        return "100 %"
    share = 100 / (1 + math.exp(-min(epsilon, 700.0)))
    rounded = math.ceil(share * 10 * (1 + 1e-12)) / 10
    return "practically 100 %" if rounded >= 100 else f"{rounded:.1f} %"


def percent(part: float, whole: float) -> str:
    """Returns a share in percent, rounded up."""
    return (
        "more than all" if math.isinf(part) else f"{math.ceil(part / whole * 1000 * (1 - 1e-12)) / 10:.1f} %"
    )


def moment(value: datetime) -> str:
    """Returns a moment in UTC, to the second."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def day(value: datetime | date) -> str:
    """Returns the day, in UTC."""
    return (value.astimezone(UTC) if isinstance(value, datetime) else value).strftime("%Y-%m-%d")


def grouped(digest: str) -> str:
    """Returns a digest in groups of eight digits, for comparing by eye."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))
