"""Cheap bounds on tables' pairs, and pairs on grids, against every outcome listed and against the pairs as
they are."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from itertools import permutations
from typing import Any

import mpmath
import numpy as np
import pytest

import accounting.ceilings as ceilings_module
from accounting import Accountant, ShuffledRound, Table
from accounting.blanket_sum import blanket_profile, blanket_profiles
from accounting.ceilings import Tilts, ceilings
from accounting.decomposition import Decomposition
from accounting.enumeration import enumerate_outcomes
from accounting.gain_laws import ListedPairs, Pairs, Tilted
from accounting.randomizers.two_inputs import bracketed
from accounting.screening import Powers, chernoff, saddles
from accounting.shuffling import RoundProfile
from accounting.table_pairs import TablePairs, _alike


def _rows(draw: np.random.Generator, shape: tuple[int, int], spread: float) -> np.ndarray:
    rows = np.exp(draw.uniform(0.0, spread, shape))
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _table(rows: np.ndarray) -> Table:
    return Table(rows=tuple(tuple(row) for row in rows.tolist()))


def _listed(pairs: TablePairs, reports: int, excess: np.ndarray) -> np.ndarray:
    """What every pair certainly reaches, over all its outcomes, shape (pairs, orders)."""
    every = [enumerate_outcomes(one, reports, limit=10**6) for one in pairs]
    return np.array([one.profile(excess).lower for one in every if one is not None]).reshape(len(pairs), -1)


def _everywhere(pairs: Pairs, excess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs and orders."""
    which, order = np.divmod(np.arange(len(pairs) * excess.size), excess.size)
    return which, order


@pytest.mark.parametrize("spacing", [0.1, 0.7, 3.0])
@pytest.mark.parametrize("seed", range(40))
def test_no_ceiling_is_below_a_profile(seed: int, spacing: float) -> None:
    """At the tilts that are meant for it, at another pair's, and at any, with periods that are far too short;
    pairs of a table and listed ones; rows that miss outputs among them, and outputs that hide nobody."""
    draw = np.random.default_rng(seed)
    rows = _rows(draw, (3, int(draw.integers(2, 5))), float(draw.choice([0.01, 0.5, 2.0, 8.0])))
    if seed % 4 == 0:
        rows[0, 0] = 0.0
        rows[0] /= rows[0].sum()
    reports = int(draw.choice([1, 2, 7, 40]))
    pairs = TablePairs(rows)
    excess = np.expm1(draw.uniform(0.0, float(np.log(rows.max() / rows[rows > 0].min())), 6))
    excess.sort()
    which, order = _everywhere(pairs, excess)
    exact = _listed(pairs, reports, excess).ravel()
    rarer = pairs.hiding(float(np.median(rows.min(axis=0))) + 1e-9)
    assert rarer is not None
    for some in (pairs, rarer, ListedPairs(list(pairs))):
        own = Powers.of(some, reports, excess).saddles(reports).tilts(8.0)
        theirs = saddles(some, np.full(excess.size, len(some) - 1), reports, excess)[order]
        anything = np.exp(draw.uniform(-5, 5, (2, which.size)))
        for tilts in (
            Tilts(*(one.ravel() for one in own)),
            Tilts(theirs, np.zeros(which.size)),
            Tilts(anything[0], anything[1] / anything[0]),
        ):
            found = ceilings(some, which, order, reports, excess, tilts=tilts, spacing=spacing)
            assert np.all(found >= exact * (1 - 1e-12))
        bound = np.exp(np.minimum(chernoff(some, reports, excess), 0.0)).ravel()
        assert np.all(bound >= exact * (1 - 1e-12))


@pytest.mark.parametrize("reports", [20, 300, 10**5, 10**9])
def test_ceilings_are_as_near_as_the_kernel(reports: int) -> None:
    """A 24th of the spacing's square where tilts suit the pair, however many users there are; and with it the
    outcomes of few reports."""
    pairs = TablePairs(_rows(np.random.default_rng(5), (2, 8), 1.0))
    largest = min(0.5 * float(np.log1p(pairs.last_excess[0])), 4 / math.sqrt(reports))
    excess, which = np.expm1(np.linspace(0.0, largest, 5)), np.zeros(5, dtype=np.int64)
    exact = blanket_profile(pairs[0], reports, excess, smoothing=0.003)
    own = Powers.of(pairs, reports, excess).saddles(reports).at(which, np.arange(5))
    rare = np.maximum(own.height - np.log(exact.lower), 0.0)
    for spacing in (0.3, 0.1, 0.03):
        tilts = own.tilts(5.0 - 2 * math.log(spacing) + 2 * rare)
        found = ceilings(pairs, which, np.arange(5), reports, excess, tilts=tilts, spacing=spacing)
        assert np.all(found <= (1 + spacing**2 / 12 + 5e-3) * exact.upper)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 0.99])
def test_what_is_left_over_may_be_less_than_a_rounding(share: float) -> None:
    """Next to nothing is known of it but that all masses add up to 1: bounds make room, against fractions."""
    unit = 2.0**-53
    rows = np.array([[1 - 2 * unit, 3.5 * unit], [1.0, 1.5 * unit]])
    pair = Decomposition(rows[0], rows[1], rows.min(axis=0))
    pairs = ListedPairs([pair])
    excess = np.array([share * float((pair.difference / pair.b).max())])
    order = 1 + Fraction(excess[0])
    a, b = ([Fraction(mass) for mass in row] for row in rows)
    masses = [min(both) for both in zip(a, b, strict=True)]
    gains = [(x - order * y) / mass for x, y, mass in zip(a, b, masses, strict=True)]
    outcomes = [*zip(masses, gains, strict=True), (1 - sum(masses), Fraction(0))]
    exact = sum(p * q * max(g + h, Fraction(0)) for p, g in outcomes for q, h in outcomes) / 2
    theta = np.array([3 / float(max(gains))])
    first = np.zeros(1, dtype=np.int64)
    for spacing in (0.02, 0.3):
        tilts = Tilts(theta, 80 / theta)
        assert ceilings(pairs, first, first, 2, excess, tilts=tilts, spacing=spacing)[0] >= exact
    found = blanket_profile(pair, 2, excess, smoothing=0.003)
    assert found.lower[0] <= exact <= found.upper[0]


def test_where_others_seldom_hide_a_report_it_adds_what_it_gains() -> None:
    """The bound is close there, at any tilt, and never below."""
    rows = np.array([[0.5 - 1e-9, 0.5, 1e-9], [0.4, 0.6 - 1e-6, 1e-6], [0.1, 0.9 - 3e-8, 3e-8]])
    rows = np.hstack([rows * 1e-3, np.diag([1.0, 1.0, 1.0]) * (1 - rows.sum(axis=1) * 1e-3)])
    pairs, excess = TablePairs(rows), np.expm1([0.0, 0.3, 3.0])
    which, order = _everywhere(pairs, excess)
    for reports, room in ((2, 1e-2), (40, 0.1)):
        exact = np.array([blanket_profile(one, reports, excess, smoothing=1e-3).lower for one in pairs])
        tilts = Tilts(np.full(which.size, 1e-9), np.zeros(which.size))
        found = ceilings(pairs, which, order, reports, excess, tilts=tilts, spacing=0.7)
        assert np.all(found >= exact.ravel() * (1 - 1e-12))
        assert np.all(found <= exact.ravel() * (1 + room))


@pytest.mark.parametrize("lost", [1e-3, 1.0, 1e4])
def test_moments_of_gains_that_are_far_below_0(lost: float) -> None:
    """They matter by what is left of their weights, in 50 digits; and no moment overflows because of them."""
    pair = Decomposition(np.array([0.6, 0.39, 0.01]), np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.3, 1e-6]))
    theta, u = 3e-2 / lost, 13.0 * np.arange(30.0)
    tilted = ListedPairs([pair]).tilted(np.zeros(1, dtype=np.int64), np.array([50.0]), np.array([theta]))
    assert tilted.finite[0]
    error = tilted.error(u)[:, 0] + 11 * 2.0**-53
    with mpmath.workdps(50):
        gains = [
            (mpmath.mpf(a) - 51 * mpmath.mpf(b)) / c for a, b, c in zip(pair.a, pair.b, pair.c, strict=True)
        ]
        rest = 1 - mpmath.fsum(mpmath.mpf(c) for c in pair.c)
        exact = [
            rest
            + mpmath.fsum(
                c * mpmath.exp(mpmath.mpc(1, v) * mpmath.mpf(theta) * g)
                for c, g in zip(pair.c, gains, strict=True)
            )
            for v in u
        ]
        square = mpmath.fsum(
            c * mpmath.exp(theta * g) * (theta * g) ** 2 for c, g in zip(pair.c, gains, strict=True)
        )
    for found, turns in ((tilted.moments(u), 0), (tilted.multiples(13.0, u.size), 8)):
        off = [abs(mpmath.mpc(complex(one)) - other) for one, other in zip(found[:, 0], exact, strict=True)]
        assert np.all(
            np.array(off, dtype=float) <= (error + turns * 2.0**-53 * np.arange(30)) * tilted.mass[0]
        )
    assert float(square) <= tilted.square[0] <= 1.01 * float(square)
    assert tilted.mass[0] == pytest.approx(float(exact[0].real), rel=1e-12)


def test_tables_and_lists_have_the_same_tilted_laws() -> None:
    rows = _rows(np.random.default_rng(2), (16, 6), 3.0)
    rows[0, 2] = 0.0
    pairs = TablePairs(rows / rows.sum(axis=1, keepdims=True))
    listed, places, u = ListedPairs(list(pairs)), np.arange(len(pairs)), 0.7 * np.arange(40.0)
    ours = pairs.shared(places, 0.7, 0.3)
    theirs = listed.tilted(places, np.full(places.size, 0.7), np.full(places.size, 0.3))
    assert ours is not None
    assert listed.shared(places, 0.7, 0.3) is None
    np.testing.assert_allclose(ours.mass, theirs.mass, rtol=1e-13)
    np.testing.assert_allclose(ours.square, theirs.square, rtol=1e-8)
    error = (ours.error(u) + theirs.error(u)) * ours.mass
    turns = 16 * 2.0**-53 * np.arange(40.0)[:, None] * ours.mass
    values = ours.moments(u)
    assert np.all(np.abs(values - theirs.moments(u)) <= error)
    for multiples in (ours.multiples(0.7, 40), theirs.multiples(0.7, 40)):
        assert np.all(np.abs(values - multiples) <= error + turns)
    np.testing.assert_allclose(pairs.leftover(places), listed.leftover(places), rtol=1e-12)


@pytest.mark.parametrize("reports", [30, 1000, 10**5, 10**9])
def test_points_that_are_next_to_nothing_are_left_out_and_nothing_else(
    reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without them ceilings are the same; among the tables are some whose sums are on a lattice,
    whose characteristic functions come back."""
    left_out: list[int] = []
    summed = ceilings_module._Line.summed

    def watched(line: ceilings_module._Line, *rest: Any) -> np.ndarray:
        left_out.append(rest[2].real.size - rest[3])
        return summed(line, *rest)

    monkeypatch.setattr(ceilings_module._Line, "summed", watched)
    for seed in range(12):
        draw = np.random.default_rng(seed)
        rows = _rows(draw, (4, 6), float(draw.choice([0.1, 1.0, 3.0])))
        if seed % 3 == 0:
            rows = np.full((4, 6), 0.1) + 0.4 * np.eye(4, 6) + 0.2 * (np.arange(6) > 3)
            rows += 1e-5 * draw.random((4, 6))
            rows /= rows.sum(axis=1, keepdims=True)
        pairs = TablePairs(rows)
        for some in (pairs, ListedPairs(list(pairs))):
            excess = np.expm1(
                np.linspace(0.0, 0.9, 4) * min(np.log1p(some.last_excess.min()), 8 / reports**0.5)
            )
            which, order = _everywhere(some, excess)
            own = Powers.of(some, reports, excess).saddles(reports).tilts(12.0)
            tilts = Tilts(*(one.ravel() for one in own))
            for spacing in (0.3, 0.03):
                found = ceilings(some, which, order, reports, excess, tilts=tilts, spacing=spacing)
                with pytest.MonkeyPatch.context() as whole:
                    whole.setattr(ceilings_module, "_FADED", math.inf)
                    every = ceilings(some, which, order, reports, excess, tilts=tilts, spacing=spacing)
                np.testing.assert_allclose(found, every, rtol=1e-5)
    assert reports < 1000 or max(left_out) > 100


def test_a_characteristic_function_that_comes_back_between_two_points_is_noted() -> None:
    """That of gains of 1 or -1 is 0 at both points, and -1 between; that of 20 even gains stays small."""
    pair = Decomposition(np.array([0.6, 0.4]), np.array([0.4, 0.6]), np.array([0.4, 0.4]))
    one = np.ones(1)
    line = ceilings_module._Line(ListedPairs([pair]), 1000, np.zeros(1, dtype=np.int64), one, one)
    for gains, fades in ((np.array([-1.0, 1.0]), False), (np.linspace(-1.0, 1.0, 20), True)):

        def moments(u: np.ndarray, gains: np.ndarray = gains) -> np.ndarray:
            return np.asarray(np.exp(1j * np.outer(u, gains)).mean(axis=1, keepdims=True))

        law = Tilted(
            mass=one,
            square=np.square(gains).mean(keepdims=True),
            moments=moments,
            multiples=lambda step, count: moments(step * np.arange(count)),
            error=lambda u: np.full((u.size, 1), 1e-15),
            finite=np.ones(1, dtype=np.bool_),
        )
        assert line._fades(law, np.array([math.pi / 2, 3 * math.pi / 2]), 100)[0] == fades


def test_points_that_are_left_out_have_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few are kept, ceilings are bounds: against every outcome listed."""
    kept: list[float] = []
    summed = ceilings_module._Line.summed

    def watched(line: ceilings_module._Line, *rest: Any) -> np.ndarray:
        kept.append(rest[3] / rest[2].real.size)
        return summed(line, *rest)

    monkeypatch.setattr(ceilings_module._Line, "summed", watched)
    monkeypatch.setattr(ceilings_module, "_NEGLIGIBLE", 0.7)
    monkeypatch.setattr(ceilings_module, "_FADED", 0.5)
    for seed in range(30):
        pairs = TablePairs(_rows(np.random.default_rng(seed), (2, 3), 2.0))
        excess = np.expm1(np.linspace(0.0, 0.4, 5))
        which, order = _everywhere(pairs, excess)
        theta = saddles(pairs, which, 30, excess[order])
        exact = _listed(pairs, 30, excess)
        for share in (0.3, 1.0, 3.0):
            tilts = Tilts(share * theta, 15 / np.maximum(share * theta, 1e-9))
            found = ceilings(pairs, which, order, 30, excess, tilts=tilts, spacing=0.1)
            assert np.all(found >= exact.ravel() * (1 - 1e-12))
    assert min(kept) < 0.2


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


def test_pairs_that_exchange_outputs_count_once() -> None:
    assert len(TablePairs(np.full((6, 6), 0.1) + 0.4 * np.eye(6))) == 1


@pytest.mark.parametrize("outputs", [8, 1000])
def test_mirrored_inputs_are_one_pair_however_their_probabilities_are_rounded(outputs: int) -> None:
    """Of a thousand outputs some always lie next to where digits are cut off: they are compared instead."""
    draw = np.random.default_rng(outputs)
    for _ in range(20):
        row = np.exp(draw.uniform(-8.0, 0.0, outputs))
        rows = np.array([row, row[::-1] * (1 + 1e-14 * draw.uniform(-1, 1, outputs))])
        rows /= rows.sum(axis=1, keepdims=True)
        assert len(TablePairs(rows, roughly=True)) == 1
        assert len(TablePairs(rows)) == 2
        rows[0, 0] *= 1 + 1e-12
        assert len(TablePairs(rows, roughly=True)) == 2


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
    own = Powers.of(pairs, 2, excess).saddles(2).tilts(12.0)
    tilts = Tilts(*(one.ravel() for one in own))
    above = ceilings(pairs, which, order, 2, excess, tilts=tilts, spacing=0.1)
    assert np.all(above * (1 + 1e-9) >= truth)


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
        RoundProfile(ShuffledRound(randomizer=_table(np.array(rows)), reports=30), smoothing=0.01)(excess)
        for rows in (ends, between)
    )
    np.testing.assert_array_equal(few.upper, many.upper)
    every = [enumerate_outcomes(one, 30, limit=10**6) for one in TablePairs(np.array(between))]
    largest = np.max([one.profile(excess).lower for one in every if one is not None], axis=0)
    assert np.all(many.upper >= largest)
    assert np.all(many.upper <= largest * (1 + 1e-5) + 1e-15)


@pytest.mark.parametrize("reports", [10**3, 10**9, 10**12])
def test_rows_all_but_equal_are_accounted_without_a_warning(reports: int) -> None:
    rows = 1 + 1e-7 * np.random.default_rng(3).uniform(size=(3, 4))
    table = _table(rows / rows.sum(axis=1, keepdims=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = Accountant().certify({ShuffledRound(randomizer=table, reports=reports): 1}, delta=1e-12)
    assert answer.precise
    assert answer.epsilon_upper <= table.epsilon0


@pytest.mark.parametrize("apart", [0.0, 2.0**-51, 0.2, -0.2])
@pytest.mark.parametrize("reports", [1, 60, 10**5])
@pytest.mark.parametrize("power", [1, 2])
def test_both_directions_count_of_inputs_that_are_all_but_alike(
    apart: float, reports: int, power: int
) -> None:
    """As many as there are but for rounding, on grids and, where bounds are to be sharper, as they are."""
    reached = np.linspace(-2.0, 3.0, 1000)
    noise = np.abs(reached - np.array([[0.0], [1.0]])) ** power
    rows = np.exp(-2 * noise * np.array([[1.0], [1.0 + apart]]))
    rows /= rows.sum(axis=1, keepdims=True)
    excess = np.expm1(np.linspace(0.0, min(9.0, 30 / np.sqrt(reports)), 25))
    pair = TablePairs(rows)[0]
    every = [blanket_profile(one, reports, excess, smoothing=0.01) for one in (pair, pair.swapped())]
    upper, lower = np.max([one.upper for one in every], axis=0), np.max([one.lower for one in every], axis=0)
    if reports == 1:
        exact = [np.maximum(a - (1 + excess[:, None]) * b, 0.0).sum(axis=1) for a, b in (rows, rows[::-1])]
        upper, lower = np.max(exact, axis=0) * (1 + 1e-9), np.max(exact, axis=0) * (1 - 1e-9)
    first = RoundProfile(ShuffledRound(randomizer=_table(rows), reports=reports), smoothing=0.012)
    for profile in (first, first.sharper(0.5)):
        found = profile(excess)
        assert np.all(found.upper >= lower)
        assert np.all(found.lower <= upper)
        # Next to the largest loss little is left, and that is known to fewer digits.
        assert np.all(found.upper - found.lower <= 0.02 * found.upper + 1e-5 * found.upper[0])


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


@pytest.mark.parametrize(("reports", "outputs"), [(2, 1000), (3, 250)])
@pytest.mark.parametrize("kind", ["Gaussian", "Laplace", "unlike", "random"])
def test_two_inputs_of_many_outputs_are_bounded_by_every_sum(kind: str, reports: int, outputs: int) -> None:
    draw = np.random.default_rng(reports)
    away = np.abs(np.linspace(-2.0, 3.0, outputs) - np.array([[0.0], [1.0]]))
    weights = {
        "Gaussian": np.exp(-4 * away**2),
        "Laplace": np.exp(-3 * away),
        "unlike": np.exp(-(away**2) * np.array([[2.0], [0.5]])) + 1e-12,
        "random": draw.gamma(0.7, size=(2, outputs)) + 1e-12,
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
        assert np.all(upper[:6] - lower[:6] <= 0.02 * exact[:6] + 1e-12)
