"""Pairs below a profile that is known between bounds, near and far apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.discretization import _supporting_values


@given(
    seed=st.integers(0, 10**6),
    points=st.integers(3, 150),
    blur=st.sampled_from([0.0, 1e-9, 1e-4, 0.03, 0.5]),
    lost=st.sampled_from([0.0, 0.1]),
)
@settings(deadline=None, max_examples=300)
def test_no_supporting_line_is_above_the_profile(seed: int, points: int, blur: float, lost: float) -> None:
    """However far apart the bounds are, at all orders or at some, where nothing is known but 0."""
    draw = np.random.default_rng(seed)
    excess = np.concatenate([[0.0], np.expm1(np.sort(draw.uniform(0.0, 3.0, points)))])
    excess[-1] = np.expm1(3.0)
    between = np.sort(np.concatenate([excess, *(draw.uniform(excess[:-1], excess[1:]) for _ in range(4))]))
    kinks, weights = np.expm1(draw.uniform(0.0, 2.5, 12)), draw.dirichlet(np.full(12, 0.3))

    def profile(orders: np.ndarray) -> np.ndarray:
        return np.asarray(weights @ np.maximum(kinks[:, None] - orders, 0.0) / kinks.max())

    exact = profile(excess)
    upper, lower = exact * (1 + blur * draw.uniform(size=exact.size)), exact * (1 - blur)
    lower[draw.uniform(size=exact.size) < lost] = 0.0
    found = np.interp(between, excess, _supporting_values(excess, upper, lower))
    assert np.all(found <= profile(between) + 1e-12)


def test_one_order_of_which_nothing_is_known_costs_little() -> None:
    """Chords beyond the neighbours carry the lower bound over it."""
    excess = np.expm1(np.linspace(0.0, 2.0, 200))
    exact = np.exp(-excess) - np.exp(-excess[-1])
    lower = exact.copy()
    lower[70] = 0.0
    found = _supporting_values(excess, exact, lower)
    kept = np.abs(np.arange(200) - 70) > 3
    assert np.all(found[kept] >= 0.99 * exact[kept] - 3e-4)
