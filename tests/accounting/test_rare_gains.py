"""Sums by the number of reports of rare gains, against every outcome listed in fractions."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.amplification.blanket import divergence, rare_events
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Laws, ListedPairs
from shuffle_ledger.accounting.amplification.blanket.rare_events import RareGains
from shuffle_ledger.accounting.amplification.blanket.tilting import Given
from shuffle_ledger.accounting.amplification.decomposition import Decomposition


@pytest.fixture
def every_gain_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many reports are expected, and however near they are."""
    monkeypatch.setattr(divergence, "RARE_GAIN_REPORTS", math.inf)
    monkeypatch.setattr(rare_events, "MOST_EXPECTED", math.inf)
    monkeypatch.setattr(rare_events, "LEAST_TILTED_GAIN", 0.0)


def _pair(draw: np.random.Generator, *, rarely: float) -> Decomposition:
    """Two or three components; those that gain are rarely hidden, those that lose often."""
    size = int(draw.integers(2, 4))
    a, b = (draw.dirichlet(np.full(size, 0.7)) + 1e-9 for _ in range(2))
    a, b = a / a.sum(), b / b.sum()
    hidden = np.where(a > b, np.exp(-draw.uniform(0.0, rarely, size)), draw.uniform(0.3, 1.0, size))
    return Decomposition(a, b, np.minimum(a, b) * hidden)


def _laws(pair: Decomposition, excess: float) -> Laws:
    _, laws, _ = next(ListedPairs([pair]).laws(np.zeros(1, dtype=np.int64), np.array([excess])))
    return laws


def _exact(pair: Decomposition, reports: int, excess: float) -> list[Fraction]:
    """`E[(S)_+] / n` of outcomes with 0, 1, 2, ... reports of the largest gain; all is whole numbers of two
    units, so that no sum of fractions is reduced."""
    a, b, c = ([Fraction(float(mass)) for mass in column] for column in (pair.a, pair.b, pair.c))
    order = 1 + Fraction(excess)
    gains = [*((x - order * y) / mass for x, y, mass in zip(a, b, c, strict=True)), Fraction(0)]
    masses, largest = [*c, 1 - sum(c)], int(np.argmax([float(gain) for gain in gains]))
    of_gain, of_mass = (math.lcm(*(one.denominator for one in parts)) for parts in (gains, masses))
    whole_gains = [int(gain * of_gain) for gain in gains]
    powers = [[int(mass * of_mass) ** count for count in range(reports + 1)] for mass in masses]
    found = [0] * (reports + 1)
    for counts in itertools.product(range(reports + 1), repeat=len(c)):
        everyone = [*counts, reports - sum(counts)]
        gained = sum(count * gain for count, gain in zip(everyone, whole_gains, strict=True))
        if everyone[-1] >= 0 and gained > 0:
            ways = math.factorial(reports) // math.prod(math.factorial(count) for count in everyone)
            chance = math.prod(power[count] for power, count in zip(powers, everyone, strict=True))
            found[everyone[largest]] += ways * chance * gained
    return [Fraction(one, of_gain * of_mass**reports * reports) for one in found]


@pytest.mark.slow
@pytest.mark.usefixtures("every_gain_is_rare")
@pytest.mark.parametrize("scale", [1.01, 16.0])
@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("rarely", [0.0, 9.0])
def test_counted_sums_keep_the_bounds(
    rarely: float, most: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rare or not, of one scale or several, with more reports than are counted."""
    monkeypatch.setattr(rare_events, "MOST_SUMMED", most)
    monkeypatch.setattr(rare_events, "UNSUMMED_SHARE", math.inf)
    monkeypatch.setattr(divergence, "SCALE_RATIO", scale)
    draw, counted = np.random.default_rng(most), []
    summed = RareGains.summed

    def watched(
        self: RareGains, laws: Laws, reports: int, *, smoothing: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        counted.append(self.most.size)
        return summed(self, laws, reports, smoothing=smoothing, known=known)

    monkeypatch.setattr(RareGains, "summed", watched)
    for _ in range(25):
        pair, reports = _pair(draw, rarely=rarely), int(draw.integers(2, 12))
        most_of_it = math.log(float((pair.a / pair.b).max()))
        excess = np.sort(np.expm1(draw.uniform(0.0, most_of_it, 2)))
        found = blanket_profile(pair, reports, excess, smoothing=float(draw.choice([0.2, 0.03, 0.005])))
        for upper, lower, more in zip(found.upper, found.lower, excess.tolist(), strict=True):
            assert lower <= sum(_exact(pair, reports, more)) <= upper
    assert sum(counted) >= 12


@pytest.mark.slow
@pytest.mark.usefixtures("every_gain_is_rare")
@pytest.mark.parametrize("overwhelming", [0.5, 12.0])
@pytest.mark.parametrize("little", [1e-6, 1e-2])
@pytest.mark.parametrize("seed", range(2))
def test_outcomes_with_a_rare_gain_are_known_by_themselves(
    seed: int, little: float, overwhelming: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With losses that are left out, and more reports than are summed, both bounded by what is small."""
    monkeypatch.setattr(rare_events, "UNSUMMED_SHARE", little)
    monkeypatch.setattr(rare_events, "OVERWHELMING", overwhelming)
    draw, seen = np.random.default_rng(seed), 0
    for _ in range(30):
        pair, reports = _pair(draw, rarely=12.0), int(draw.integers(8, 11))
        excess = float(np.expm1(draw.uniform(0.0, math.log(float((pair.a / pair.b).max())))))
        laws = _laws(pair, excess)
        largest = laws.gains == laws.gains.max()
        rare = RareGains.of(laws, largest, reports, laws.saddle(reports))
        if laws.gains.max() <= 0 or rare.most[0] == 0:
            continue
        upper, lower = rare.summed(laws, reports, smoothing=np.array([0.01]), known=np.zeros(1))
        assert lower[0] <= sum(_exact(pair, reports, excess)[1:]) <= upper[0]
        seen += 1
    assert seen >= 5


@pytest.mark.parametrize("reports", [1000])
def test_rare_gains_beside_common_losses(reports: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A staircase: one rare gain, and any number of losses, five on average, each a large part of the gain.
    In one sum some divergences are known only up to a factor."""
    lost, widths = 5 / reports, []
    for c, steps in itertools.product((1e-7, 1e-12, 1e-30), (2.3, 3.7, 6.9)):
        gained = 0.3 * c / lost * steps
        a = np.array([gained, lost, 1 - lost - gained])
        b = np.array([c, 0.3 + 2 * lost, 1 - c - 0.3 - 2 * lost])
        pair, excess = Decomposition(a, b, np.array([c, lost, 0.0])), np.array([0.5, 2.0])
        exact = [_of_two(pair, reports, more, rare=0, most=80) for more in excess.tolist()]
        for rare in (True, False):
            monkeypatch.setattr(rare_events, "MOST_EXPECTED", 1.0 if rare else 0.0)
            found = blanket_profile(pair, reports, excess, smoothing=0.01)
            for upper, lower, truth in zip(found.upper, found.lower, exact, strict=True):
                assert lower <= truth <= upper
            widths.append(float((1 - found.lower / found.upper).max()))
    assert max(widths[::2]) <= 3e-3
    assert max(widths[1::2]) >= 0.1


@pytest.mark.parametrize(
    ("reports", "excess", "a", "b", "c"),
    [
        (
            20,
            1.1189823150634766,
            [0.42792751600867834, 0.0009669817222890968, 0.5711055022690325],
            [0.25, 0.00045634251660100713, 0.749543657483399],
            [0.9999999999999991, 8.673617379884035e-19, 0.0],
        ),
    ],
)
def test_gains_that_hardly_outweigh_their_rounding(
    reports: int, excess: float, a: list[float], b: list[float], c: list[float]
) -> None:
    """A rare gain of a hundred units of what it is a difference of, and losses as small: all sums of both."""
    pair = Decomposition(np.array(a), np.array(b), np.array(c))
    found = blanket_profile(pair, reports, np.array([excess]), smoothing=0.04)
    exact = _of_two(pair, reports, excess, rare=1, most=reports)
    assert found.lower[0] <= exact <= found.upper[0]


def test_masses_of_given_reports_count_what_gains_are_rounded_by() -> None:
    """Tilts that suit gains of a few units of what they are differences of."""
    draw, short = np.random.default_rng(3), 0
    for _ in range(200):
        b, excess = float(draw.uniform(0.1, 0.2)), float(draw.uniform(1.0, 2.0))
        a = b * (1 + excess) * (1 + int(draw.integers(10, 60)) * 2.0**-52)
        pair = Decomposition(np.array([a, 1 - a]), np.array([b, 1 - b]), np.array([1e-9, 0.0]))
        laws = _laws(pair, excess)
        gain, theta = float(laws.gains[0, 0]), 20 / laws.gains[0, :1]
        if gain <= 0:
            continue
        found = Given.of(laws, np.array([[True]]), 100, theta, number=2)
        with mpmath.workdps(60):
            exactly = (Fraction(pair.a[0]) - (1 + Fraction(excess)) * Fraction(pair.b[0])) / Fraction(
                pair.c[0]
            )
            tilted = mpmath.mpf(float(theta[0])) * exactly.numerator / exactly.denominator
            exact = mpmath.log(4950) + 2 * (mpmath.log(float(pair.c[0])) + tilted)
        least = float(found.log_mass[0] + found.log_mass_error[0])
        assert exact <= least + float(found.raised[0])
        short += exact > least
    assert short > 10  # without it


@pytest.mark.parametrize("smoothing", [0.04, 0.012, 0.003])
@pytest.mark.parametrize(
    ("reports", "excess", "a", "c"),
    [
        (4, 1927699.2910285657, 4.361035658112671e-08, [0.9999999999999575, 4.246679136184761e-14]),
        (5, 150.95615913206234, 3.4791956328403637e-15, [0.9999999999999999, 5.5003120782862727e-17]),
    ],
)
def test_what_is_left_over_may_be_lost_to_a_rounding(
    reports: int, excess: float, a: float, c: list[float], smoothing: float
) -> None:
    """A rare gain beside a loss that nearly every report has: only with one that is left over is it one."""
    pair = Decomposition(np.array([1 - a, a]), np.array([1.0, 0.0]), np.array(c))
    found = blanket_profile(pair, reports, np.array([excess]), smoothing=smoothing)
    assert found.lower[0] <= sum(_exact(pair, reports, excess)) <= found.upper[0]


def _of_two(pair: Decomposition, reports: int, excess: float, *, rare: int, most: int) -> mpmath.mpf:
    """The divergence of a rare gain, at most `most` reports of another component, and an unhidden component,
    to 40 digits."""
    with mpmath.workdps(60):
        a, b, c = ([mpmath.mpf(float(mass)) for mass in column] for column in (pair.a, pair.b, pair.c))
        order, common = 1 + mpmath.mpf(excess), 1 - rare
        gain, other = ((a[one] - order * b[one]) / c[one] for one in (rare, common))
        total, rest = mpmath.mpf(0), 1 - c[0] - c[1]
        for gains, others in itertools.product(range(6), range(most + 1)):
            left, value = reports - gains - others, gains * gain + others * other
            if left >= 0 and value > 0:
                ways = mpmath.binomial(reports, gains) * mpmath.binomial(reports - gains, others)
                total += ways * c[rare] ** gains * c[common] ** others * rest**left * value
        return total / reports + max(a[2] - order * b[2], 0)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon0", "participation", "reports"), [(1.0, 1e-200, 30)])
@pytest.mark.usefixtures("computed_anew")
def test_reports_that_hardly_anyone_sends_are_bounded_without_a_warning(
    epsilon0: float, participation: float, reports: int
) -> None:
    """Next to always at most one report arrives, of any of the users: the others have the other value."""
    randomizer = parse_randomizer(f"laplace(epsilon0={epsilon0})")
    described = ShuffledRound(randomizer=randomizer, reports=reports, participation=participation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Accountant(precision=0.1).certify_delta({described: 1}, epsilon=0.01)
    loss = math.log1p(reports * math.expm1(0.01))
    alone = participation * max(-math.expm1((loss - epsilon0) / 2), 0.0)
    assert alone > 0
    assert found.delta_lower <= alone <= found.delta_upper
