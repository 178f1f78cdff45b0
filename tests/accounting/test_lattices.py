"""Lattices of losses: where they end, which losses they keep, and how few they need."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.pld.bounds import Sketch
from shuffle_ledger.accounting.pld.grids import Gaps, Lattice, between, graded
from tests.accounting.alike import alike


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.floats(1e-9, 60.0), st.floats(1e-6, 3.0), st.floats(1e-4, 0.5))
def test_a_lattice_reaches_its_end_however_it_is_written(stop: float, deviation: float, step: float) -> None:
    """Mass beyond the last loss would count as infinite, or be lost."""
    losses = np.append(0.0, np.geomspace(1e-6, 1.0, 40)) * stop
    narrow, wide = -((losses / (deviation * stop)) ** 2) / 2, -np.log1p(losses / (deviation * stop))
    for values in (narrow, wide, np.repeat([-1.0, -90.0], [30, 11])):
        lattice = graded(Sketch(losses, values), deviation * stop, step * deviation * stop, bits=3)
        finer = lattice.divisible(0.0)
        nothing = np.zeros((1, finer.positions.size - 1))
        found = Gaps(nothing + 1e-3, nothing, nothing[0])
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


def _steep() -> str:
    rows = np.exp(np.random.default_rng(3).uniform(-4.0, 4.0, (2, 300)))
    return f"table({(rows / rows.sum(axis=1, keepdims=True)).tolist()})"


@pytest.mark.slow
def test_a_profile_that_falls_steeply_does_not_end_early() -> None:
    """Lines below it reach 0 within wide cells: all the largest losses of the pair below were lost there."""
    shuffled = alike(randomizer=parse_randomizer(_steep()), reports=100)
    accountant = Accountant()
    loss = accountant.privacy_loss(shuffled)
    assert loss.lower.index[-1] * loss.lower.spacing >= 0.98 * loss.upper.index[-1] * loss.upper.spacing
    assert loss.upper.index.size < 1200
    for count, delta in ((1, 1e-6), (2, 1e-12), (1000, 1e-30)):
        assert accountant.certify({shuffled: count}, delta=delta).precise, (count, delta)


@pytest.mark.slow
def test_a_kink_that_no_lattice_meets_does_not_end_the_pair_below() -> None:
    """Two outputs, and almost no other report of the rarer one: the profile falls to almost 0 at one ratio,
    and small deltas of several rounds depend on the rest beyond it."""
    rows = [[0.979392126, 0.020607874], [0.000197560814, 0.999802439186]]
    shuffled = alike(randomizer=parse_randomizer(f"table({rows})"), reports=1000)
    accountant = Accountant()
    loss = accountant.privacy_loss(shuffled)
    assert loss.lower.index[-1] * loss.lower.spacing >= 0.99 * loss.upper.index[-1] * loss.upper.spacing
    for count, delta in ((1, 1e-30), (2, 1e-2), (2, 1e-30), (10, 1e-30)):
        certificate = accountant.certify({shuffled: count}, delta=delta)
        assert certificate.epsilon_lower >= 0.999 * certificate.epsilon_upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("randomizer", "reports", "losses"),
    [
        ("rappor(epsilon0=8)", 1000, 400),
        (_table(2, (4, 8)), 10**5, 1500),
    ],
)
def test_few_losses_are_enough(randomizer: str, reports: int, losses: int) -> None:
    """Also if the largest loss has positive mass, and for any number of repetitions."""
    shuffled = alike(randomizer=parse_randomizer(randomizer), reports=reports)
    accountant = Accountant()
    assert accountant.privacy_loss(shuffled).upper.index.size < losses
    for count, delta in ((1, 1e-6), (20, 1e-9), (1000, 1e-4)):
        certificate = accountant.certify({shuffled: count}, delta=delta)
        assert math.isfinite(certificate.epsilon_upper)
        assert certificate.precise, (count, delta)


def test_every_tilt_has_its_cells_cut() -> None:
    """Cells that many tilts see are cut by what each of these needs, not by what one sees of all."""
    draw = np.random.default_rng(0)
    positions = np.arange(201) * 64
    for seen, blurred in ((0.3, 0.0), (1.2, 5e-4), (40.0, 1e-4)):
        shares = draw.gamma(0.3, size=(12, 200)) * (draw.uniform(size=(12, 200)) < 0.4)
        shares *= seen * 1e-3 / shares.sum(axis=1, keepdims=True) * draw.uniform(0.5, 1.0, (12, 1))
        blur = np.full_like(shares, blurred / 200)
        found = Gaps(shares + blur, blur, np.zeros(200))
        added = between(positions, found, 1e-3)
        pieces = 1 + np.histogram(added, positions)[0]
        left = (shares / pieces**2).sum(axis=1).max() + blurred
        assert left <= 0.9e-3
        assert seen + 1e3 * blurred > 0.9 or added.size == 0
    # A little too much everywhere, which no cell by itself is worth a cut for.
    alike = np.full((2, 200), 1.2e-3 / 200)
    added = between(positions, Gaps(alike, np.zeros_like(alike), np.zeros(200)), 1e-3)
    assert 0.3 * 200 < added.size < 0.4 * 200


@pytest.mark.parametrize("curve", ["[[3, 2.5e-8]]"])
def test_a_composition_of_tiny_divergences_fits_into_memory(curve: str) -> None:
    """The largest losses were millions of times the spacing, and a composition took gigabytes."""
    accountant = Accountant(precision=4e-3)
    release = ShuffledRound(randomizer=parse_randomizer(f"declared(renyi={curve})"), reports=1)
    loss = accountant.privacy_loss(release)
    for pair in (loss.upper, loss.lower):
        assert pair.index[-1] <= 1 << 22
    once = accountant.certify({release: 1}, delta=1e-9)
    assert 0 < once.epsilon_lower <= once.epsilon_upper <= 1.005 * once.epsilon_lower
