"""Laws above those of many pairs, attacked in fractions: every transform, every mean, whole divergences."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profiles
from shuffle_ledger.accounting.amplification.worst_pair.convex_order import law_ceilings, laws_above
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs
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


def _checked_laws(rows: Rows, excess: FloatArray) -> bool:
    """Whether there is a law at every order; each is above all of its pairs', exactly."""
    pairs, ends = _ends(Table(rows=rows))
    groups = np.random.default_rng(len(pairs)).uniform(size=(len(pairs), excess.size)) < 0.5
    groups[0] = True
    laws, known = laws_above(pairs, groups, excess)
    for row, place in enumerate(known):
        members = [_exact(rows, ends[one], float(excess[place])) for one in np.flatnonzero(groups[:, place])]
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
    return known.size == excess.size


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-16, 1e-3])
@pytest.mark.parametrize("shape", [(3, 7), (5, 3)])
def test_laws_are_above_all_pairs_exactly(shape: tuple[int, int], noise: float) -> None:
    """At orders from 1 to beyond the last loss."""
    draw = np.random.default_rng(list(shape))
    rows = _normal(1 + 6 * np.eye(*shape) + noise * draw.uniform(size=shape))
    assert _checked_laws(rows, np.array([0.0, 1e-9, 0.02, 0.7, 8.0]))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=12, deadline=None)
def test_laws_of_any_table_are_above_all_pairs(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(2, 4), st.integers(2, 5)))
    scale = data.draw(st.sampled_from([1e-12, 0.1, 1.0, 8.0, 40.0]))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = _normal(np.exp(scale * draw.uniform(size=shape)))
    last = data.draw(st.sampled_from([1e-6, 0.1, 3.0, 1e5]))
    _checked_laws(rows, np.sort(last * draw.uniform(0.0, 1.2, 4)))


@pytest.mark.parametrize("reports", [1, 3])
@pytest.mark.parametrize("noise", [1e-14, 0.5])
def test_a_law_is_above_its_group_and_close_to_it(reports: int, noise: float) -> None:
    draw = np.random.default_rng(reports)
    rows = _normal(1 + 4 * np.eye(4, 4) + noise * draw.uniform(size=(4, 4)))
    pairs, ends = _ends(Table(rows=rows))
    excess = np.array([0.0, 0.1, 0.5, 1.3, 3.0, 3.9])
    groups = draw.uniform(size=(len(pairs), excess.size)) < np.linspace(0.1, 1.0, excess.size)
    groups[0] = True
    found = law_ceilings(pairs, groups, reports, excess, 0.003)
    for ceiling, group, at in zip(found, groups.T, excess.tolist(), strict=True):
        largest = max(float(_exact(rows, ends[one], at).divergence(reports)) for one in np.flatnonzero(group))
        assert largest * (1 - 1e-13) <= ceiling <= 1.5 * largest + 1e-12


@pytest.mark.parametrize("reports", [1, 40])
def test_components_that_nobody_hides_count_with_the_largest(reports: int) -> None:
    rows = np.array([[0.5, 0.5, 0.0], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]])
    pairs, excess = TablePairs(rows), np.array([0.0, 0.2, 1.0, 5.0])
    every = np.ones((len(pairs), excess.size), dtype=np.bool_)
    found = law_ceilings(pairs, every, reports, excess, _SMOOTHING)
    which, order = np.divmod(np.arange(every.size), excess.size)
    exact = blanket_profiles(pairs, which, reports, excess[order], smoothing=_SMOOTHING)
    assert np.all(found >= exact.lower.reshape(every.shape).max(axis=0) * (1 - 1e-12))
    assert np.all(found[1:] < 1)


def test_without_pairs_there_is_no_law() -> None:
    pairs, _ = _ends(Table(rows=_normal(np.random.default_rng(5).uniform(0.2, 1.0, (4, 4)))))
    groups = np.zeros((len(pairs), 2), dtype=np.bool_)
    assert law_ceilings(pairs, groups, 10, np.zeros(2), _SMOOTHING).tolist() == [1.0, 1.0]
    bare, group = (
        TablePairs(np.eye(3) * 0.5 + 0.5 * np.roll(np.eye(3), 1, axis=1)),
        np.ones((6, 1), dtype=np.bool_),
    )
    assert law_ceilings(bare, group[: len(bare)], 10, np.zeros(1), _SMOOTHING).tolist() == [1.0]


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
        for at in (*few, excess):
            exact = float(_exact((first, second), pair, at).divergence(1))
            group = np.arange(len(pairs))[:, None] == place
            assert law_ceilings(pairs, group, 1, np.array([at]), _SMOOTHING)[0] >= exact


@pytest.mark.parametrize(("least", "excess"), [(1e-19, 1.8e18), (1e-17, 1.5e15), (1e-11, 1756.5)])
def test_far_beyond_the_last_loss_no_number_overflows(least: float, excess: float) -> None:
    pairs, _ = _ends(Table(rows=((least, 1 - least), (0.44, 0.56))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = law_ceilings(
            pairs, np.ones((len(pairs), 1), dtype=np.bool_), 10, np.array([excess]), _SMOOTHING
        )
    assert 0 <= found[0] <= 1
