"""Cheap bounds on tables' pairs, and pairs on grids, against every outcome listed and against the pairs as
they are."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, Table
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile, blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.enumeration import enumerate_outcomes
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs, _alike
from shuffle_ledger.accounting.randomizers.binary_input import bracketed
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile


def _rows(draw: np.random.Generator, shape: tuple[int, int], spread: float) -> np.ndarray:
    rows = np.exp(draw.uniform(0.0, spread, shape))
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _table(rows: np.ndarray) -> Table:
    return Table(rows=tuple(tuple(row) for row in rows.tolist()))


def _everywhere(pairs: Pairs, excess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs and orders."""
    which, order = np.divmod(np.arange(len(pairs) * excess.size), excess.size)
    return which, order


@pytest.mark.parametrize("seed", range(6))
def test_pairs_of_a_table_are_its_decompositions(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = _rows(draw, (4, 5), 2.0)
    rows[:2, 3] *= seed % 2
    rows /= rows.sum(axis=1, keepdims=True)
    pairs = TablePairs(rows)
    listed = ListedPairs(list(pairs))
    assert len(pairs) == 12
    places = np.arange(12)
    excess = np.full(12, 0.2)
    for ours, theirs in zip(pairs.laws(places, excess), listed.laws(places, excess), strict=True):
        np.testing.assert_allclose(np.sort(ours[1].gains), np.sort(theirs[1].gains), rtol=1e-12)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-12)
    for own, their in zip(pairs.impossible(), listed.impossible(), strict=True):
        np.testing.assert_allclose(own, their, rtol=1e-12)


def test_values_that_are_alike_are_never_far_apart() -> None:
    """Also where each is next to another one."""
    values = np.cumprod(np.full(400, 1 + 3e-15)).reshape(20, 20)
    numbers = _alike(values)
    for one in np.unique(numbers):
        together = values[numbers == one]
        assert together.max() <= together.min() * (1 + 2.0**-45)
    assert 30 < np.unique(numbers).size < 60
    assert np.all(np.diff(numbers.ravel()) >= 0)


def test_digits_that_one_float_has_not_tell_rows_apart() -> None:
    """Rows that differ by 1e-15, columns of equal ratios otherwise: against fractions, two reports."""
    steps = [(0, 0, 0, 0), (3, -1, -2, 0), (3, -2, -1, 0), (1, 1, -1, -1), (0, 5, -5, 0)]
    exact = [[Fraction(1, 4) + Fraction(step, 3 * 10**15) for step in row] for row in steps]
    high = np.array([[float(value) for value in row] for row in exact])
    low = [
        [float(value - Fraction(near)) for value, near in zip(*both, strict=True)]
        for both in zip(exact, high.tolist(), strict=True)
    ]
    rest = float(max(sum(row) for row in exact) - sum(map(min, zip(*exact, strict=True))))
    pairs = TablePairs(high, np.array(low), rest=rest)
    assert pairs.components == 4
    differences = {tuple(sorted(x - y for x, y in zip(*two, strict=True))) for two in permutations(steps, 2)}
    assert len(pairs) >= len(differences)
    excess = np.array([0.0, 1e-16, 1e-15, 2.5e-15])
    which, order = _everywhere(pairs, excess)
    least = [min(column) for column in zip(*exact, strict=True)]
    truth = []
    for place, at in zip(which, order, strict=True):
        a, b = (exact[int(one[place])] for one in pairs._ends)
        r = Fraction(float(excess[at]))
        gains = [(x - (1 + r) * y) / c for x, y, c in zip(a, b, least, strict=True)]
        outcomes = [*zip(least, gains, strict=True), (1 - sum(least), Fraction(0))]
        truth.append(
            float(sum(p * q * max(g + h, Fraction(0)) for p, g in outcomes for q, h in outcomes) / 2)
        )
    found = blanket_profiles(pairs, which, 2, excess[order], smoothing=0.003)
    assert np.all(found.upper * (1 + 1e-9) >= truth)
    assert np.all(found.lower * (1 - 1e-9) <= truth)
    for place, (first, second) in enumerate(zip(*pairs._ends, strict=True)):
        apart = sorted(float(x - y) for x, y in zip(exact[first], exact[second], strict=True))
        known = pairs.masses(np.array([place])).difference[0]
        np.testing.assert_allclose(np.sort(known), apart, rtol=1e-12, atol=1e-30)
        listed = enumerate_outcomes(pairs[place], 2, limit=1000)
        assert listed is not None
        bounds = listed.profile(excess)
        np.testing.assert_allclose(bounds.upper, np.array(truth)[which == place], rtol=1e-6, atol=1e-24)


_UNIT = 2.0**-52


@pytest.mark.parametrize(
    ("rows", "epsilon"),
    [
        (
            [[1e-50, 0.3, 0.7], [1e-25, 0.3 + _UNIT, 0.7 - _UNIT], [1e-25, 0.3 + 2 * _UNIT, 0.7 - 2 * _UNIT]],
            0.0,
        ),
        ([[0.5, 0.3, 0.2], [0.5 + 10 * _UNIT, 0.3 - 10 * _UNIT, 0.2], [0.05, 0.35, 0.6]], math.log(10)),
        ([[0.05, 0.35, 0.6], [0.5 + 10 * _UNIT, 0.3 - 10 * _UNIT, 0.2], [0.5, 0.3, 0.2]], math.log(10)),
        (
            [
                [0.2434098233782001, 0.15702113465316342, 0.5995690419686366],
                [0.0006802090363167144, 0.00043879574456546057, 0.9988809952191178],
            ],
            math.log1p(356.8456186002011),
        ),
    ],
)
@pytest.mark.parametrize("reports", [1, 2])
def test_the_last_digit_decides_next_to_the_largest_ratio(
    rows: list[list[float]], epsilon: float, reports: int
) -> None:
    """Outputs, and pairs of rows, that are alike but for a few units in the last place: none stands for the
    other. Against fractions."""
    exact = [[Fraction(value) / sum(map(Fraction, row)) for value in row] for row in rows]
    least = [min(column) for column in zip(*exact, strict=True)]
    order, largest = Fraction(math.exp(epsilon)), Fraction(0)
    for a, b in permutations(exact, 2):
        gains = [(x - order * y) / c for x, y, c in zip(a, b, least, strict=True)]
        law = [*zip(least, gains, strict=True), (1 - sum(least), Fraction(0))]
        sums = law if reports == 1 else [(p * q, g + h) for p, g in law for q, h in law]
        largest = max(largest, sum((p * total for p, total in sums if total > 0), Fraction(0)) / reports)
    shuffled = ShuffledRound(randomizer=_table(np.array(rows)), reports=reports)
    profile = RoundProfile(shuffled, smoothing=0.012)(np.array([float(order - 1)]))
    assert profile.lower[0] <= largest <= profile.upper[0]
    certificate = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
    assert largest <= certificate.delta_upper * (1 + 1e-9)


@pytest.mark.parametrize(("spread", "reports"), [(0.01, 1), (1.0, 1), (1.0, 50), (4.0, 10**4), (8.0, 10**6)])
def test_grids_enclose_pairs_of_many_components(spread: float, reports: int) -> None:
    pair = TablePairs(_rows(np.random.default_rng(reports), (2, 1000), spread))[0]
    bracket = bracketed(pair)
    assert bracket.above.c.size < 0.6 * pair.c.size
    excess = np.expm1(np.linspace(0.0, 0.9 if reports == 1 else min(3.0, 8 / np.sqrt(reports)), 6) * spread)
    if reports == 1:
        above, exact, below = (
            np.maximum(one.difference - excess[:, None] * one.b, 0.0).sum(axis=1)
            for one in (bracket.above, pair, bracket.below)
        )
        assert np.all(above >= exact * (1 - 1e-12))
        assert np.all(below <= exact * (1 + 1e-12))
        return
    above, exact, below = (
        blanket_profile(one, reports, excess, smoothing=0.005) for one in (bracket.above, pair, bracket.below)
    )
    assert np.all(above.upper >= exact.lower)
    assert np.all(below.lower <= exact.upper)
    assert above.upper[0] <= 1.002 * below.lower[0]


def test_rows_between_two_others_change_nothing_where_outputs_are_two() -> None:
    ends = [[0.2, 0.8], [0.6, 0.4]]
    between = [*ends, [0.3, 0.7], [0.45, 0.55], [0.2, 0.8]]
    excess = np.expm1(np.linspace(0.0, 0.6, 7))
    few, many = (
        RoundProfile(
            ShuffledRound(randomizer=_table(np.array(rows)), reports=30, analysis="blanket"), smoothing=0.01
        )(excess)
        for rows in (ends, between)
    )
    np.testing.assert_array_equal(few.upper, many.upper)
    every = [enumerate_outcomes(one, 30, limit=10**6) for one in TablePairs(np.array(between))]
    largest = np.max([one.profile(excess).lower for one in every if one is not None], axis=0)
    assert np.all(many.upper >= largest)
    assert np.all(many.upper <= largest * (1 + 1e-5) + 1e-15)


@pytest.mark.parametrize("reports", [10**3, 10**12])
@pytest.mark.usefixtures("computed_anew")
def test_rows_all_but_equal_are_accounted_without_a_warning(reports: int) -> None:
    rows = 1 + 1e-7 * np.random.default_rng(3).uniform(size=(3, 4))
    table = _table(rows / rows.sum(axis=1, keepdims=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = Accountant().certify({ShuffledRound(randomizer=table, reports=reports): 1}, delta=1e-12)
    assert answer.precise
    assert answer.epsilon_upper <= table.epsilon0


def _every_sum(rows: np.ndarray, reports: int, excess: np.ndarray) -> np.ndarray:
    """The larger divergence of two inputs' two or three reports, over all sums of their gains."""
    hidden, found = rows.min(axis=0), []
    p = np.append(hidden, max(0.0, 1 - hidden.sum()))
    for a, b in (rows, rows[::-1]):
        for more in excess.tolist():
            gains = np.append((a - b - more * b) / hidden, 0.0)
            sums, mass = gains, p
            if reports == 3:
                sums, mass = (gains[:, None] + gains).ravel(), (p[:, None] * p).ravel()
            falling = np.argsort(-sums)
            sums, mass = sums[falling], mass[falling]
            beyond, total = (np.append(0.0, np.cumsum(one)) for one in (mass, mass * sums))
            positive = np.searchsorted(-sums, gains, side="left")
            found.append(float((p * (total[positive] + gains * beyond[positive])).sum()) / reports)
    return np.asarray(np.max(np.reshape(found, (2, -1)), axis=0))


@pytest.mark.slow
@pytest.mark.parametrize(("reports", "outputs"), [(2, 1000), (3, 250)])
@pytest.mark.parametrize("kind", ["Gaussian", "unlike"])
def test_two_inputs_of_many_outputs_are_bounded_by_every_sum(kind: str, reports: int, outputs: int) -> None:
    away = np.abs(np.linspace(-2.0, 3.0, outputs) - np.array([[0.0], [1.0]]))
    weights = {
        "Gaussian": np.exp(-4 * away**2),
        "unlike": np.exp(-(away**2) * np.array([[2.0], [0.5]])) + 1e-12,
    }[kind]
    rows = weights / weights.sum(axis=1, keepdims=True)
    table = _table(rows)
    excess = np.expm1(np.linspace(0.0, 1.02, 12) * table.epsilon0)
    exact = _every_sum(rows, reports, excess)
    first = RoundProfile(ShuffledRound(randomizer=table, reports=reports), smoothing=0.012)
    for profile in (first, first.sharper(0.3)):
        upper, lower = profile(excess)
        assert np.all(upper >= exact * (1 - 1e-9) - 1e-13)
        assert np.all(lower <= exact * (1 + 1e-9) + 1e-13)

        assert np.median((upper[:6] - lower[:6]) / exact[:6]) <= 0.02
