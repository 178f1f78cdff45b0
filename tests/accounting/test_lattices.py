"""Lattices of losses: where they end, which losses they keep, and how few they need."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import Accountant, ShuffledRound, parse_randomizer
from accounting.lattices import Gaps, Lattice, between, even, graded


@settings(deadline=None)
@given(st.floats(1e-9, 60.0), st.floats(1e-6, 3.0), st.floats(1e-4, 0.5))
def test_a_lattice_reaches_its_end_however_it_is_written(stop: float, deviation: float, step: float) -> None:
    """What is beyond the last loss would count as infinite, or be taken for nothing."""
    for lattice in (graded(deviation * stop, stop, step * deviation * stop), even(stop, 1e-2, 0.0)):
        finer = lattice.divisible(0.0)
        found = Gaps(1.0, np.full(finer.positions.size - 1, 1e-3), 0.0, np.zeros(finer.positions.size - 1))
        added = between(finer.positions, found, 1e-4)
        more = Lattice(np.union1d(finer.positions, added), finer.unit)
        assert more.positions.size == finer.positions.size + added.size
        for one in (lattice, finer, more, more.reduced()):
            assert one.end >= stop
            assert one.end <= stop * (1 + 1e-15)
        assert np.isin(lattice.excess, more.excess).all()
        assert np.array_equal(more.reduced().excess, more.excess)
        assert np.bitwise_or.reduce(more.reduced().positions) % 2


def _table(seed: int, shape: tuple[int, int]) -> str:
    return f"table({np.random.default_rng(seed).dirichlet(np.ones(shape[1]), size=shape[0]).tolist()})"


@pytest.mark.parametrize(
    ("randomizer", "reports", "losses"),
    [
        ("generic(epsilon0=1)", 10**6, 1200),
        ("rappor(epsilon0=8)", 1000, 400),
        ("blh(epsilon0=4)", 100, 400),
        ("krr(k=10, epsilon0=2)", 10**4, 1600),
        (_table(1, (6, 6)), 20, 500),
        (_table(2, (4, 8)), 10**5, 1500),
    ],
)
def test_few_losses_are_enough(randomizer: str, reports: int, losses: int) -> None:
    """Also where the largest loss has a mass of its own, and however often the round is repeated."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports)
    accountant = Accountant()
    assert accountant.privacy_loss(shuffled).upper.index.size < losses
    for count, delta in ((1, 1e-6), (20, 1e-9), (1000, 1e-4)):
        certificate = accountant.certify({shuffled: count}, delta=delta)
        assert math.isfinite(certificate.epsilon_upper)
        assert certificate.precise, (count, delta)
