"""Tables whose rows are next to equal: their differences are in digits that floats of probabilities have
not."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, Table, attack_delta, parse_randomizer
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile


def _shares(row: list[float]) -> list[Fraction]:
    total = sum(map(Fraction, row))
    return [Fraction(one) / total for one in row]


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
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
    """At an order between losses of 1e-29 the upper bound was a ten thousandth below the sum."""
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
        assert lower[0] <= exact <= upper[0] < 1e-14


def test_rows_of_equal_probabilities_are_known_exactly() -> None:
    """The same probabilities, in other places or with others' sums, are in no doubt."""
    assert parse_randomizer("table([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])").doubt == 0
    assert parse_randomizer("table([[0.7, 0.3], [0.3, 0.7]])").doubt == 0
    assert parse_randomizer("table([[0.5, 0.5, 1e-30], [0.5, 0.5, 2e-30]])").doubt > 0


@pytest.mark.parametrize(
    ("rows", "epsilon"),
    [
        (
            (
                (0.2500116082644055, 0.1250021814870732, 0.6249862102485213),
                (0.24998660960344513, 0.12498968251882134, 0.6250237078777335),
            ),
            9.999500033334923e-05,
        ),
        (
            (
                (0.24997881566971067, 0.12499765821505007, 0.6250235261152393),
                (0.24997881541973185, 0.1249976580900524, 0.6250235264902158),
            ),
            1.000000124212781e-09,
        ),
    ],
)
def test_ratios_that_differ_in_digits_which_their_quotients_have_not(
    rows: tuple[tuple[float, ...], ...], epsilon: float
) -> None:
    """Two outputs whose ratios round to one float were one, of the mean: past it, nothing was left."""
    a, b = (list(map(mpmath.mpf, row)) for row in rows)  # the sums are 1
    with mpmath.workdps(60):
        e = mpmath.exp(mpmath.mpf(epsilon))
        ways = [sum(max(x - e * y, 0) for x, y in zip(*way, strict=True)) for way in ((a, b), (b, a))]
        shuffled = ShuffledRound(randomizer=Table(rows=rows), reports=1)
        found = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        assert found.delta_lower <= max(ways) <= found.delta_upper <= 1.05 * max(ways)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), units=st.integers(1, 4), reports=st.integers(1, 3))
def test_rows_a_few_units_apart(seed: int, units: int, reports: int) -> None:
    """Every order at which some sum of gains changes its sign, of exact quotients."""
    draw = np.random.default_rng(seed)
    first = draw.dirichlet(np.ones(3))
    rows = [first.tolist(), (first * (1 + 2.0**-52 * draw.integers(-units, units + 1, 3))).tolist()]
    a, b = map(_shares, rows)
    shuffled = ShuffledRound(randomizer=Table(rows=tuple(map(tuple, rows))), reports=reports)
    for excess in (0.0, *(abs(float(x / y - 1)) for x, y in zip(a, b, strict=True))):
        upper, lower = RoundProfile(shuffled, smoothing=0.01)(np.array([excess]))
        exact = max(_of_exact_gains(*way, reports, Fraction(excess)) for way in ((a, b), (b, a)))
        assert lower[0] <= exact <= upper[0]


def _of_exact_gains(a: list[Fraction], b: list[Fraction], reports: int, excess: Fraction) -> Fraction:
    c = [min(pair) for pair in zip(a, b, strict=True)]
    gains = [(x - (1 + excess) * y) / z for x, y, z in zip(a, b, c, strict=True)] + [Fraction(0)]
    masses = [*c, 1 - sum(c)]
    total = Fraction(0)
    for outcome in itertools.product(range(len(gains)), repeat=reports):
        gain = sum((gains[one] for one in outcome), Fraction(0))
        total += math.prod((masses[one] for one in outcome), start=Fraction(1)) * max(gain, Fraction(0))
    return total / reports
