"""Sums of charges, and which filters hold then: with fractions, as the ledger's machine says it with whole
numbers.
"""

from __future__ import annotations

from fractions import Fraction

from shuffle_ledger.accounting import FilterCharge, FilterSet


def together(*charges: FilterCharge) -> FilterCharge:
    """The charges of several rounds, added up."""
    first, *others = charges
    for one in others:
        first = FilterCharge(
            **{
                name: tuple(a + b for a, b in zip(part, vars(one)[name], strict=True))
                for name, part in vars(first).items()
            }
        )
    return first


def variance(filters: FilterSet, total: FilterCharge) -> Fraction:
    """The Gaussian total, reserve included, at the fixed reserve where it is least."""
    pairs = zip(filters.gaussian.reserves, total.gaussian, strict=True)
    return min(Fraction(reserve) + used for reserve, used in pairs)


def epsilon_upper(filters: FilterSet, total: FilterCharge) -> float:
    """The smallest reading of a filter; accounts of delta are not asked."""
    return min(one.epsilon_upper for one in filters.readings(variance(filters, total), total.renyi))


def holding(filters: FilterSet, total: FilterCharge, epsilon: float) -> set[str]:
    """The names of the filters that hold at an epsilon; none of them if an account of delta is used up."""
    limits, accounts = filters.limits(epsilon), filters.accounts.limits(epsilon)
    if any(used > limit for used, limit in zip(total.account, accounts, strict=True)):
        return set()
    used = (variance(filters, total), *total.renyi)
    allowed = (limits.gaussian, *limits.renyi)
    named = zip(filters.names, used, allowed, strict=True)
    return {name for name, one, limit in named if one <= limit}
