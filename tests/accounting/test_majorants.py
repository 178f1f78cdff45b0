"""Laws above those of many pairs, attacked in fractions: every transform, every mean, whole divergences."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import Pairs
from shuffle_ledger.accounting.amplification.worst_pair import convex_order as majorants_module
from shuffle_ledger.accounting.amplification.worst_pair import evaluation
from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants, group_ceilings
from shuffle_ledger.accounting.amplification.worst_pair.search import WorstPair
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs
from shuffle_ledger.accounting.numeric.arrays import IndexArray
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.randomizers import Table

FloatArray = npt.NDArray[np.float64]
Rows = tuple[tuple[float, ...], ...]
_SMOOTHING = 0.012
# Gains are known to units in the last place.
_UNITS = Fraction(1, 2**50)


class _Law(NamedTuple):
    """A law on finitely many values; what masses leave over is at 0."""

    values: list[Fraction]
    masses: list[Fraction]

    @property
    def mean(self) -> Fraction:
        return sum((c * g for g, c in zip(self.values, self.masses, strict=True)), Fraction(0))

    def transform(self, t: Fraction) -> Fraction:
        """`E[(G - t)_+]`."""
        total = sum(
            (c * max(g - t, Fraction(0)) for g, c in zip(self.values, self.masses, strict=True)), Fraction(0)
        )
        return total + (1 - sum(self.masses)) * max(-t, Fraction(0))

    def divergence(self, reports: int) -> Fraction:
        """`E[(G_1 + ... + G_n)_+] / n`."""
        values, masses = [*self.values, Fraction(0)], [*self.masses, 1 - sum(self.masses)]
        total = Fraction(0)
        for some in itertools.product(range(len(values)), repeat=reports):
            gained = sum(values[one] for one in some)
            if gained > 0:
                total += gained * math.prod(masses[one] for one in some)
        return total / reports


def _exact(rows: Rows, pair: tuple[int, int], excess: float) -> _Law:
    """The law of what one report gains, of what a device draws from that was given these rows."""
    shares = [[Fraction(one) / sum(map(Fraction, row)) for one in row] for row in rows]
    c = [min(column) for column in zip(*shares, strict=True)]
    gained = [a - (1 + Fraction(excess)) * b for a, b in zip(shares[pair[0]], shares[pair[1]], strict=True)]
    return _Law([one / mass for one, mass in zip(gained, c, strict=True)], c)


def _ends(table: Table) -> tuple[TablePairs, list[tuple[int, int]]]:
    """All pairs of rows, and which these are."""
    inputs = len(table.rows)
    ends = [(x, y) for x in range(inputs) for y in range(inputs) if x != y]
    first, second = (np.array(one, dtype=np.int64) for one in zip(*ends, strict=True))
    shares = [[Fraction(one) / sum(map(Fraction, row)) for one in row] for row in table.rows]
    high = np.array([[float(one) for one in row] for row in shares])
    low = np.array(
        [
            [float(one - Fraction(near)) for one, near in zip(*both, strict=True)]
            for both in zip(shares, high.tolist(), strict=True)
        ]
    )
    rest = float(1 - sum(min(column) for column in zip(*shares, strict=True)))
    return TablePairs(high, low, rest=rest, ends=(first, second)), ends


def _normal(weights: FloatArray) -> Rows:
    shares = weights / weights.sum(axis=1, keepdims=True)
    return tuple(tuple(row) for row in shares.tolist())


def _checked_laws(rows: Rows, few: FloatArray, excess: FloatArray) -> bool:
    """Whether there is a law for every group and order; each is above all of its pairs', exactly."""
    pairs, ends = _ends(Table(rows=rows))
    every = np.arange(len(pairs))
    majorants = Majorants.of(pairs, every, few)
    group, order = np.divmod(np.arange(len(majorants.groups) * excess.size), excess.size)
    laws, known = majorants.laws(group, excess[order])
    for row, place in enumerate(known):
        at = float(excess[order[place]])
        members = [_exact(rows, ends[one], at) for one in majorants.groups[group[place]]]
        values, masses = laws.gains[row].tolist(), laws.c[row].tolist()
        law = _Law(
            [Fraction(one) + abs(Fraction(one)) * _UNITS for one in values], list(map(Fraction, masses))
        )
        assert sum(law.masses) <= 1
        assert 1 - sum(law.masses) >= Fraction(float(laws.leftover[row])) * (1 - _UNITS)
        drift = Fraction(float(laws.imbalance[row]))
        assert all(drift >= one.mean for one in members)
        assert drift >= _Law(list(map(Fraction, values)), law.masses).mean
        for t in sorted({Fraction(0), *law.values, *(value for one in members for value in one.values)}):
            assert law.transform(t) >= max(one.transform(t) for one in members)
        assert law.mean >= max(one.mean for one in members)
    return known.size == group.size


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-16, 1e-9, 1e-3, 0.3])
@pytest.mark.parametrize("shape", [(3, 7), (5, 3)])
def test_laws_are_above_all_pairs_exactly(
    shape: tuple[int, int], noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At orders where transforms are known, between these, and beyond the last one; in groups of two and
    more."""
    monkeypatch.setattr(majorants_module, "FIRST_GROUP", 2)
    draw = np.random.default_rng(list(shape))
    rows = _normal(1 + 6 * np.eye(*shape) + noise * draw.uniform(size=shape))
    few = np.array([0.0, 0.02, 0.3, 1.0, 3.0, 5.9])
    excess = np.array([0.0, 1e-9, 0.02, 0.7, 8.0])
    assert _checked_laws(rows, few, excess)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=12, deadline=None)
def test_laws_of_any_table_are_above_all_pairs(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(2, 4), st.integers(2, 5)))
    scale = data.draw(st.sampled_from([1e-12, 0.1, 1.0, 8.0, 40.0]))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = _normal(np.exp(scale * draw.uniform(size=shape)))
    last = data.draw(st.sampled_from([1e-6, 0.1, 3.0, 1e5]))
    few = np.sort(np.unique(last * draw.uniform(size=data.draw(st.integers(2, 5)))))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(majorants_module, "FIRST_GROUP", data.draw(st.sampled_from([1, 2, 16])))
        _checked_laws(rows, few, np.sort(last * draw.uniform(0.0, 1.2, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("reports", [1, 2, 4])
@pytest.mark.parametrize("noise", [1e-14, 1e-4, 0.5])
def test_no_ceiling_is_below_an_exact_divergence(reports: int, noise: float) -> None:
    rows = _normal(1 + 4 * np.eye(4, 4) + noise * np.random.default_rng(reports).uniform(size=(4, 4)))
    pairs, ends = _ends(Table(rows=rows))
    majorants = Majorants.of(pairs, np.arange(len(pairs)), np.array([0.0, 0.5, 2.0, 4.5]))
    excess = np.array([0.0, 0.1, 0.5, 1.3, 3.0, 3.9])
    exact = [[float(_exact(rows, pair, float(at)).divergence(reports)) for at in excess] for pair in ends]
    upper = np.ones((len(pairs), excess.size))
    majorants.lower(
        (np.arange(len(pairs)), upper), np.zeros(excess.size), reports, excess, np.full(excess.size, 0.003)
    )
    assert np.all(upper >= np.array(exact) * (1 - 1e-13))
    largest = np.max(exact, axis=0)
    assert np.all(upper.min(axis=0)[1:] <= 1.7 * largest[1:] + 1e-12)


@pytest.mark.parametrize("reports", [1, 3])
@pytest.mark.parametrize("noise", [1e-14, 1e-4, 0.5])
def test_a_law_at_one_order_is_above_its_group_and_close_to_it(reports: int, noise: float) -> None:
    draw = np.random.default_rng(reports)
    rows = _normal(1 + 4 * np.eye(4, 4) + noise * draw.uniform(size=(4, 4)))
    pairs, ends = _ends(Table(rows=rows))
    excess = np.array([0.0, 0.1, 0.5, 1.3, 3.0, 3.9])
    groups = [np.sort(draw.choice(len(pairs), 1 + place % len(pairs), replace=False)) for place in range(6)]
    found = group_ceilings(pairs, groups, reports, excess, np.full(excess.size, 0.003))
    for ceiling, group, at in zip(found, groups, excess.tolist(), strict=True):
        largest = max(float(_exact(rows, ends[one], at).divergence(reports)) for one in group)
        assert largest * (1 - 1e-13) <= ceiling <= 1.5 * largest + 1e-12


@pytest.mark.slow
def test_pairs_that_are_next_to_equal_are_summed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of millions of reports, of outputs that are almost impossible under some inputs: the pairs differ
    by less than the error of laws between orders."""
    draw = np.random.default_rng(3)
    rows = np.where(draw.uniform(size=(40, 3)) < 0.3, 2e-7, 1.0) * (1 + 1e-4 * draw.uniform(size=(40, 3)))
    rows = np.maximum(rows, 2e-7 * rows.max(axis=0))
    pairs, _ = _ends(Table(rows=_normal(rows)))
    summed = []

    def counted(some: Pairs, which: IndexArray, *given: Any, **rest: Any) -> ProfileBounds:
        summed.append(which.size)
        return blanket_profiles(some, which, *given, **rest)

    monkeypatch.setattr(evaluation, "blanket_profiles", counted)
    worst = WorstPair(pairs=pairs, reports=5 * 10**7, smoothing=_SMOOTHING, listed=lambda _: None)
    excess = np.expm1(np.linspace(0.0, 1.0, 120))
    found = worst.largest(excess)[0]
    assert sum(summed) < 14 * excess.size
    which, order = np.divmod(np.arange(len(pairs) * 12), 12)
    every = blanket_profiles(pairs, which, 5 * 10**7, excess[10 * order], smoothing=_SMOOTHING)
    upper, lower = (one.reshape(-1, 12).max(axis=0) for one in every)
    assert np.all(found.upper[::10] >= lower)
    assert np.all(found.lower[::10] <= upper)
    assert np.all(found.upper[::10] <= upper * (1 + 1e-3))


@pytest.mark.parametrize("reports", [10, 10**4, 10**9])
def test_one_law_is_next_to_those_of_nearly_equal_pairs(reports: int) -> None:
    rows = _normal(1 + 10 * np.eye(30) + 1e-6 * np.random.default_rng(3).uniform(size=(30, 30)))
    pairs, _ = _ends(Table(rows=rows))
    few = np.linspace(0.0, 7 * math.sqrt(float(pairs.spread.max()) / reports), 12)
    excess = (few[1:] + few[:-1]) / 2
    majorants = Majorants.of(pairs, np.arange(len(pairs)), few)
    rows_of = np.zeros(excess.size, dtype=np.int64), np.arange(excess.size)
    found = majorants.ceilings(rows_of, reports, excess, np.full(excess.size, _SMOOTHING))
    some = blanket_profiles(
        pairs, np.zeros(excess.size, dtype=np.int64), reports, excess, smoothing=_SMOOTHING
    )
    assert np.all(found >= some.lower)
    assert np.all(found <= some.upper * (1 + 1e-3))


def test_orders_before_the_first_one_have_no_law() -> None:
    pairs, _ = _ends(Table(rows=_normal(np.random.default_rng(5).uniform(0.2, 1.0, (4, 4)))))
    majorants = Majorants.of(pairs, np.arange(len(pairs)), np.array([0.1, 0.2]))
    rows = np.zeros(2, dtype=np.int64), np.arange(2)
    found = majorants.ceilings(rows, 10, np.array([0.09, 0.1]), np.full(2, _SMOOTHING))
    assert found[0] == 1
    assert found[1] < 1


def test_all_pairs_are_in_the_first_group_and_each_in_one_of_the_others() -> None:
    pairs, _ = _ends(Table(rows=_normal(np.random.default_rng(6).uniform(0.2, 1.0, (12, 4)))))
    ranked = np.random.default_rng(7).permutation(len(pairs))
    every, *others = Majorants.of(pairs, ranked, np.array([0.0, 1.0])).groups
    assert every.tolist() == np.concatenate(others).tolist() == ranked.tolist()
    assert [one.size for one in others] == [16, 16, 32, 64, 4]


def test_components_that_nobody_hides_and_orders_that_are_equal_have_no_majorants() -> None:
    hidden = TablePairs(np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]))
    bare = TablePairs(np.array([[0.5, 0.5, 0.0], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]]))
    assert Majorants.are_for(hidden, np.array([0.0, 0.1]))
    assert not Majorants.are_for(bare, np.array([0.0, 0.1]))
    assert not Majorants.are_for(hidden, np.array([0.1]))
    assert not Majorants.are_for(hidden, np.array([0.1, 0.1]))


_NEARLY_EQUAL = (
    (
        (
            0.24358941744665882,
            0.2925206805807687,
            0.19595024193784877,
            0.21790031525106485,
            0.050039344783658936,
        ),
        (
            0.24358941744665888,
            0.29252068058076863,
            0.1959502419378487,
            0.21790031525106487,
            0.05003934478365893,
        ),
        (
            *(8.18708035885311e-17, 1.0374576637439329e-16, 1.4900907609588535e-16, 2.1785623910675075e-16),
            3.1930936019894867e-16,
        ),
        1.8232618299148534e-16,
    ),
    (
        (
            *(0.17774865526103262, 0.2141479403844703, 0.10715133840081459, 0.08815639164049542),
            *(0.2132664354887335, 0.16498104934971902, 0.018632369764058642, 0.015915819710675964),
        ),
        (
            *(0.17774865526076847, 0.214147940384196, 0.10715133840101515, 0.08815639164043054),
            *(0.21326643548926072, 0.1649810493496322, 0.018632369764044587, 0.01591581971065231),
        ),
        (1.4859643702821293e-12, 1.4861129815802873e-12),
        1.4861129815802873e-12,
    ),
)


@pytest.mark.parametrize(("first", "second", "few", "excess"), _NEARLY_EQUAL)
def test_outputs_that_are_joined_gain_no_less(
    first: tuple[float, ...], second: tuple[float, ...], few: tuple[float, ...], excess: float
) -> None:
    """Next to the largest ratio, where gains of outputs that agree in a float's digits have two signs."""
    pairs, ends = _ends(Table(rows=(first, second)))
    for place, pair in enumerate(ends):
        majorants = Majorants.of(pairs, np.array([place]), np.array(few))
        exact = float(_exact((first, second), pair, excess).divergence(1))
        rows = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        assert majorants.ceilings(rows, 1, np.array([excess]), np.full(1, _SMOOTHING))[0] >= exact


@pytest.mark.parametrize(
    ("least", "last", "excess"), [(1e-19, 1.2e18, 1.8e18), (1e-17, 1e15, 1.5e15), (1e-11, 1171.0, 1756.5)]
)
def test_far_beyond_the_last_loss_no_number_overflows(least: float, last: float, excess: float) -> None:
    pairs, _ = _ends(Table(rows=((least, 1 - least), (0.44, 0.56))))
    majorants = Majorants.of(pairs, np.zeros(1, dtype=np.int64), np.array([0.0, last]))
    rows = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = majorants.ceilings(rows, 10, np.array([excess]), np.full(1, _SMOOTHING))
    assert 0 <= found[0] <= 1


def test_points_without_mass_gain_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what decides is taken out, nothing is left to be gained."""
    monkeypatch.setattr(majorants_module, "FIRST_GROUP", 2)
    rows = (
        (0.9999999900546459, 9.94535414686334e-09, 1.003452853472674e-20),
        (0.9999999899032634, 1.0096736553834903e-08, 1.0064519385992773e-20),
        (0.9999999900379645, 9.962035565798161e-09, 9.927708656299006e-21),
        (0.9999999900726435, 9.927356515361806e-09, 9.945327521102627e-21),
        (0.9999999900212524, 9.978747563201913e-09, 9.979397455339717e-21),
    )
    pairs, ends = _ends(Table(rows=rows))
    few = np.array([0.0, 2.4405627980713906e-05, 0.003450819543045583])
    majorants = Majorants.of(pairs, np.array([8, 11, 19, 5, 4]), few)
    excess = np.array([0.00034700929009727477])
    with np.errstate(all="raise"):
        found = majorants.ceilings((np.array([2]), np.array([0])), 4, excess, np.full(1, 0.04))
    exact = [float(_exact(rows, ends[one], excess[0]).divergence(4)) for one in majorants.groups[2]]
    assert max(exact) <= found[0] < 1e-3


def test_pairs_are_ranked_where_nothing_is_left_of_some() -> None:
    rows = _normal(1 + 1e-15 * np.random.default_rng(0).uniform(-1, 1, (16, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = Accountant().privacy_loss(ShuffledRound(randomizer=Table(rows=rows), reports=241392))
    assert 0 < loss.upper.divergence_bound(0.0) < 1e-15


@pytest.mark.slow
@pytest.mark.parametrize("reports", [10, 1000])
def test_hundreds_of_nearly_equal_pairs_are_hardly_evaluated(
    reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the bounds are those of the largest of them."""
    rows = _normal(1 + 10 * np.eye(20) + 1e-5 * np.random.default_rng(1).uniform(size=(20, 20)))
    pairs, _ = _ends(Table(rows=rows))
    summed = []

    def counted(
        some: Pairs, which: IndexArray, count: int, at: FloatArray, *, smoothing: float | FloatArray
    ) -> ProfileBounds:
        summed.append(which.size)
        return blanket_profiles(some, which, count, at, smoothing=smoothing)

    monkeypatch.setattr(evaluation, "blanket_profiles", counted)
    worst = WorstPair(pairs=pairs, reports=reports, smoothing=_SMOOTHING, listed=lambda _: None)
    excess = np.expm1(12 / math.sqrt(reports + 30) * np.linspace(0.0, 1.0, 200) ** 2)
    found, _ = worst.largest(excess)
    assert sum(summed) <= len(pairs) * excess.size / 20
    which, order = np.divmod(np.arange(8 * excess.size), excess.size)
    some = blanket_profiles(pairs, 40 * which, reports, excess[order], smoothing=_SMOOTHING / 4)
    assert np.all(found.upper >= some.lower.reshape(8, -1).max(axis=0) * (1 - 1e-9))
    deep = found.upper < 1e-37
    assert np.all(deep | (found.upper <= some.upper.reshape(8, -1).max(axis=0) * (1 + 0.02)))
