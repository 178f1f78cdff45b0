"""Roots of many increasing functions at once, by which tilts are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shuffle_ledger.accounting.numeric.arrays import FloatArray, IndexArray, increasing_root

_SPREAD = st.floats(1e-90, 1e90)


@pytest.mark.slow
@given(st.lists(st.tuples(_SPREAD, _SPREAD), min_size=1, max_size=5), st.floats(1.001, 1.2))
def test_every_root_is_met_as_closely_as_asked(drawn: list[tuple[float, float]], closeness: float) -> None:
    root, start = np.array(drawn).T

    def function(at: FloatArray, which: IndexArray) -> FloatArray:
        return np.asarray(at - root[which])

    found = increasing_root(function, start, closeness=closeness)
    assert np.all((found >= root / closeness) & (found <= root * closeness))


def test_only_what_is_not_yet_known_is_evaluated() -> None:
    root, evaluated = np.array([1.0, 1e100]), np.zeros(2)

    def function(at: FloatArray, which: IndexArray) -> FloatArray:
        evaluated[which] += 1
        return np.asarray(at - root[which])

    increasing_root(function, np.ones(2), closeness=1.02)
    assert evaluated[0] < 10
    assert evaluated[1] > 300


@pytest.mark.parametrize("value", [-1.0, 1.0, np.nan])
def test_where_there_is_no_root_something_positive_is_found(value: float) -> None:
    found = increasing_root(lambda at, _: np.full_like(at, value), np.ones(3))
    assert np.all((found > 0) & np.isfinite(found))
