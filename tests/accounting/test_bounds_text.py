"""Every printed bound is still a bound, exactly on the float, whatever float it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    bounds_text,
    exact_text,
    interval_text,
    lower_column,
    lower_text,
    upper_column,
    upper_text,
)

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(value=finite, digits=st.integers(1, 20))
@example(value=5e-324, digits=6)
@example(value=sys.float_info.max, digits=6)
@example(value=16.25810609, digits=6)
@example(value=999999.5, digits=6)
@example(value=-2.5e-9, digits=3)
def test_a_printed_bound_is_a_bound_with_few_digits(value: float, digits: int) -> None:
    above, below = upper_text(value, digits=digits), lower_text(value, digits=digits)
    assert Fraction(Decimal(below)) <= Fraction(value) <= Fraction(Decimal(above))
    for text in (above, below):
        assert len(Decimal(text).normalize().as_tuple().digits) <= digits
        # No number with that many digits is closer on this side.
        unit = Fraction(10) ** (Decimal(text).adjusted() - digits + 1)
        assert abs(Fraction(Decimal(text)) - Fraction(value)) < unit or value == 0


@given(value=finite, decimals=st.integers(0, 12))
@example(value=sys.float_info.max, decimals=3)
@example(value=5e-324, decimals=3)
def test_a_bound_in_a_column_is_a_bound(value: float, decimals: int) -> None:
    above, below = upper_column(value, decimals=decimals), lower_column(value, decimals=decimals)
    low, high = (Fraction(Decimal(text.replace(",", ""))) for text in (below, above))
    assert low <= Fraction(value) <= high < low + Fraction(2, 10**decimals)


@given(value=finite)
def test_what_was_given_is_printed_exactly(value: float) -> None:
    assert float(exact_text(value)) == value


def test_the_sentence_that_was_wrong() -> None:
    assert (upper_text(16.25810609), lower_text(16.25810609)) == ("16.2582", "16.2581")
    assert (upper_text(1e-7), lower_text(0.0), exact_text(-0.0), exact_text(30000.0)) == (
        "1e-07",
        "0",
        "0",
        "30000",
    )


def test_an_interval_without_an_upper_end_is_a_lower_bound() -> None:
    assert (interval_text(0.5, 0.75), bounds_text(0.5, 0.75)) == (
        "0.5 to 0.75",
        "at most 0.75 (and at least 0.5)",
    )
    for spell in (interval_text, bounds_text):
        assert (spell(16.5, math.inf), spell(math.inf, math.inf)) == ("at least 16.5", "unbounded")
        assert spell(0.0, math.inf) == "no bound"


@pytest.mark.parametrize("spell", [upper_text, lower_text, exact_text])
def test_what_is_no_number_is_said_in_words(spell: Callable[[float], str]) -> None:
    assert (spell(math.inf), spell(math.nan)) == ("unbounded", "unknown")
    assert upper_text(None) == upper_column(math.inf, decimals=3) == "unbounded"
