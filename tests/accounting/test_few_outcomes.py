"""Rounds in which few reports are not of the most likely component, however many there are: listed."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import parse_randomizer
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes, is_countable
from shuffle_ledger.accounting.numeric.arrays import UNIT_ROUND_OFF, running_sums

# Reports of a component, besides the most likely one, that are summed over, and what is beyond them.
_COUNTED = 9
_BEYOND = 1e-17
NAMED = [
    "generic(epsilon0={})",
    "krr(epsilon0={}, k=2)",
    "krr(epsilon0={}, k=3)",
    "krr(epsilon0={}, k=1000000000000)",
    "blh(epsilon0={})",
    "blh(epsilon0={}, domain=3)",
    "rappor(epsilon0={})",
    "rappor(epsilon0={}, domain=3)",
    "oue(epsilon0={})",
    "oue(epsilon0={}, domain=3)",
    "hadamard(epsilon0={})",
    "hadamard(epsilon0={}, domain=4)",
]


def _exact(masses: Decomposition, reports: int, excess: float) -> float:
    """`E[(S)_+] / n` over few reports of any component but the last of c, in 60 digits. The leftover one
    gains nothing; the last has what all others leave over."""
    with mpmath.workdps(60):
        rare = [mpmath.mpf(float(one)) for one in [*masses.c[:-1], masses.leftover]]
        other, order = 1 - mpmath.fsum(rare), 1 + mpmath.mpf(excess)
        a, b = ([mpmath.mpf(float(one)) for one in side] for side in (masses.a, masses.b))
        gains = [(x - order * y) / z for x, y, z in zip(a[:-1], b[:-1], rare[:-1], strict=True)] + [0]
        own, total = (a[-1] - order * b[-1]) / other, mpmath.mpf(0)
        for counts in itertools.product(range(min(_COUNTED, reports + 1)), repeat=len(rare)):
            left = reports - sum(counts)
            gain = sum(k * g for k, g in zip(counts, gains, strict=True)) + left * own
            if left < 0 or gain <= 0:
                continue
            weight = mpmath.ff(reports, sum(counts)) * other**left
            for k, mass in zip(counts, rare, strict=True):
                weight *= mass**k / mpmath.factorial(k)
            total += weight * gain
        return float(total / reports)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    reports=st.integers(1, 10**9),
    expected=st.lists(st.floats(1e-6, 0.03), min_size=1, max_size=2),
    left=st.floats(1e-12, 0.03),
    shares=st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)),
    excess=st.floats(0.0, 3.0),
)
def test_rare_reports_among_many_are_summed_exactly(
    reports: int,
    expected: list[float],
    left: float,
    shares: tuple[float, float],
    excess: float,
) -> None:
    """The most likely component has nearly all of up to a billion reports: the others' counts are few."""
    rare = [one / reports for one in expected]
    c = np.array([*rare, 1 - math.fsum(rare) - left / reports])
    a, b = (np.append(np.full(len(rare), one / len(rare)), 1 - one) for one in shares)
    a[0], b[-1] = a[0] + 1 - math.fsum(a), b[-1] + 1 - math.fsum(b)
    masses = Decomposition(a, b, c, rest=left / reports)
    outcomes = enumerate_outcomes(masses, reports, limit=10**6)
    assert outcomes is not None
    exact = _exact(masses, reports, excess)
    found = outcomes.profile(np.array([excess]))
    assert found.lower[0] <= exact * (1 + 1e-12) + _BEYOND
    assert found.upper[0] >= exact * (1 - 1e-12)
    assert found.upper[0] - found.lower[0] <= 1e-5 * exact + 1e-13


@pytest.mark.parametrize("epsilon0", [1e-9, 1e-5, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("written", NAMED)
def test_what_is_left_over_is_known_to_its_own_digits(written: str, epsilon0: float) -> None:
    """Next to epsilon0 = 0 it is next to nothing: 1 - sum(c) has lost all of its digits there."""
    randomizer = parse_randomizer(written.format(epsilon0))
    for name in randomizer.analyses:
        for bracket in randomizer.analysis(name).brackets:
            for masses in bracket:
                assert masses.rest is not None
                with mpmath.workdps(60):
                    left = 1 - mpmath.fsum(mpmath.mpf(float(one)) for one in masses.c)
                    assert abs(left - masses.rest) <= 4 * masses.c.size * UNIT_ROUND_OFF


def test_what_is_left_over_of_response_next_to_nothing() -> None:
    """`(e - 1) / (e + k - 1)`, of which the floats of c tell nothing."""
    for k, epsilon0 in ((2, 1e-9), (2, 1.5844455861229419e-09), (10**12, 1e-9), (10**12, 1.0), (1000, 1e-6)):
        written = f"krr(epsilon0={epsilon0!r}, k={k})"
        rest = parse_randomizer(written).analysis("blanket").decomposition.rest
        with mpmath.workdps(60):
            e = mpmath.exp(mpmath.mpf(epsilon0))
            assert rest is not None
            assert abs(rest / ((e - 1) / (e + k - 1)) - 1) < 8 * UNIT_ROUND_OFF
            rest = parse_randomizer(written).analysis("strong-adversary").decomposition.rest
            assert rest is not None
            assert abs(rest / ((e + k - 3) / (e + k - 1)) - 1) < 8 * UNIT_ROUND_OFF


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=300), st.integers(1, 400))
def test_running_sums_are_off_by_a_unit(values: list[float], times: int) -> None:
    repeated = values * times
    sums = running_sums(np.array(repeated))
    assert sums.size == len(repeated) + 1
    for count in (0, 1, len(values), len(repeated)):
        assert abs(sums[count] - math.fsum(repeated[:count])) <= 2 * UNIT_ROUND_OFF * sums[count]


@pytest.mark.slow
@pytest.mark.parametrize(("reports", "kinds"), [(1, 4096), (3, 170)])
def test_few_reports_of_many_kinds(reports: int, kinds: int) -> None:
    """Every outcome is there once: the masses sum to 1, and to `max(a, b)` sorted by hand for one report."""
    draw = np.random.default_rng(reports)
    a, b, c = draw.dirichlet(np.ones(kinds), size=3)
    masses = Decomposition(a, b, c * 0.9)
    outcomes = enumerate_outcomes(masses, reports, limit=10**6)
    assert outcomes is not None
    listed = (
        math.comb(reports + kinds, kinds) - 1
    )  # without the outcome in which all reports are leftover ones
    assert outcomes.p.size == listed
    assert math.fsum(outcomes.p) == pytest.approx(1, rel=1e-12)
    assert math.fsum(outcomes.q) == pytest.approx(1, rel=1e-12)
    if reports == 1:
        upper, lower = outcomes.profile(np.array([0.0]))
        exact = math.fsum(np.maximum(a - b, 0.0))
        assert lower[0] <= exact <= upper[0] <= (1 + 1e-9) * lower[0]


@pytest.mark.slow
def test_small_terms_beside_a_large_one_are_not_lost() -> None:
    """Thousands of masses below a unit of the first, which adding them one by one never sees."""
    kinds, small = 4096, 5.4e-17
    c = np.full(kinds, 0.1 / (kinds - 1))
    c[0] = 1 - math.fsum(c[1:])
    a, b = np.full(kinds, small), np.zeros(kinds)
    a[1], a[-1], b[-1] = 0.55, 1 - 0.55 - (kinds - 2) * small, 1.0
    outcomes = enumerate_outcomes(Decomposition(a, b, c, rest=0.0), 1, limit=10**6)
    assert outcomes is not None
    upper, lower = outcomes.profile(np.array([0.0]))
    assert lower[0] <= math.fsum(a[:-1]) <= upper[0]


def test_components_hidden_by_next_to_nothing_are_not_listed() -> None:
    """Ratios to their mass overflow."""
    masses = Decomposition(np.array([0.5, 0.5]), np.array([0.2, 0.8]), np.array([1e-310, 0.9]), rest=0.1)
    assert not is_countable(masses, 3, limit=1000)
    assert enumerate_outcomes(masses, 3, limit=1000) is None


def test_half_a_billion_reports_are_not_added_up_one_by_one() -> None:
    """Two components with half the reports each: too many logarithms, whatever few outcomes there are."""
    masses = Decomposition(np.array([0.6, 0.4]), np.array([0.4, 0.6]), np.array([0.5, 0.5]), rest=0.0)
    assert is_countable(masses, 10**5, limit=10**6)
    assert not is_countable(masses, 10**9, limit=10**7)
