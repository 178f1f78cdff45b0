"""Tables whose rows are next to equal: their differences are in digits that floats of probabilities have
not."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import ShuffledRound, Table, attack_delta, parse_randomizer
from accounting.shuffling import RoundProfile


def _shares(row: list[float]) -> list[Fraction]:
    total = sum(map(Fraction, row))
    return [Fraction(one) / total for one in row]


@settings(max_examples=60, deadline=None)
@given(
    large=st.floats(0.2, 0.8),
    small=st.floats(-40, -13).map(lambda x: 10.0**x),
    more=st.integers(1, 5),
    reports=st.sampled_from([1, 2]),
)
def test_rows_that_differ_in_their_last_digits_only(
    large: float, small: float, more: int, reports: int
) -> None:
    """Divided by their sums they differ everywhere, by less than two floats of each probability hold."""
    rows = [[large, 1 - large, one] for one in (small, small + more * math.ulp(small))]
    a, b = map(_shares, rows)
    # One report shows no more than both rows' distance; of two the likelier outputs show less.
    exact = float(sum((max(x - y, Fraction(0)) for x, y in zip(a, b, strict=True)), Fraction(0)))
    shuffled = ShuffledRound(randomizer=Table(rows=tuple(map(tuple, rows))), reports=reports)
    upper, lower = RoundProfile(shuffled, smoothing=0.01)(np.array([0.0]))
    assert lower[0] <= exact
    assert upper[0] <= exact * (1 + 1e-5) + 1e-30
    if reports == 1:
        assert exact <= upper[0]
        assert (attack_delta(shuffled, epsilon=0.0) or 0.0) <= exact


def test_a_trillion_reports_of_rows_that_differ_in_the_last_digit() -> None:
    """An order between losses of 1e-29: the upper bound was a ten thousandth below the sum."""
    rare = [3.715493412146432e-13, 3.7154934121464315e-13]
    rows = [[0.6586078570693097, 0.3413921429303187, one] for one in rare]
    excess, reports = 5.048709793414476e-29, 10**12
    shuffled = ShuffledRound(randomizer=Table(rows=tuple(map(tuple, rows))), reports=reports)
    upper, lower = RoundProfile(shuffled, smoothing=0.01)(np.array([excess]))
    a, b = map(_shares, rows)
    assert a[0] * b[1] == a[1] * b[0]  # two outputs of equal ratios, and a rare one
    with mpmath.workdps(80):
        gains = [
            mpmath.mpf((x - (1 + Fraction(excess)) * y).numerator)
            / (x - (1 + Fraction(excess)) * y).denominator
            / min(x, y)
            for x, y in zip(a, b, strict=True)
        ]
        likely = mpmath.mpf(min(a[2], b[2]).numerator) / min(a[2], b[2]).denominator
        mass, exact = (1 - likely) ** reports, mpmath.mpf(0)
        for count in range(60):
            exact += mass * max(count * gains[2] + (reports - count) * gains[0], 0) / reports
            mass *= likely / (1 - likely) * (reports - count) / (count + 1)
        assert lower[0] <= exact <= upper[0] <= exact * 1.1


def test_rows_of_equal_probabilities_are_known_exactly() -> None:
    """The same probabilities, in other places or with others' sums, are in no doubt."""
    assert parse_randomizer("table([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])").doubt == 0
    assert parse_randomizer("table([[0.7, 0.3], [0.3, 0.7]])").doubt == 0
    assert parse_randomizer("table([[0.5, 0.5, 1e-30], [0.5, 0.5, 2e-30]])").doubt > 0
