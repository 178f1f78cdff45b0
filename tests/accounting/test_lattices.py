"""Lattices of losses: where they end, which losses they keep, and how few they need."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.pld.bounds import ProfileBounds, Sketch
from shuffle_ledger.accounting.pld.discretization import _pair
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.pld.grids import Gaps, Lattice, Polygon, Tilts, between, gaps, graded
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
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


def test_steep_cells_are_to_blame_for_what_is_lost_beyond_them() -> None:
    """Cells that hold nothing but what another one lost are not divided in its place."""
    loss = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    upper = np.array([0.1, 0.07, 0.05, 1e-3, 9e-4, 7e-4, 0.0])
    bounds = ProfileBounds(upper, upper)
    lost = ProfileBounds(upper, np.where(loss < 0.25, upper, 0.0))
    below = Polygon.of(np.arange(7), np.expm1(loss), lost.lower)
    above = PrivacyLossDistribution(
        spacing=0.1,
        index=np.array([1, 2, 3]),
        p=np.array([0.1, 0.1, 0.1]),
        q=np.exp(-0.1 * np.array([1, 2, 3])) * 0.1,
        zero=1 - 0.3 - 0.1 * float(np.exp(-0.1 * np.array([1, 2, 3])).sum()),
        infinity=0.0,
        support=0.6,
        side="upper",
    )
    found = gaps(np.expm1(loss), bounds, lost, below, Tilts.of(np.expm1(loss), above))
    assert found.cells[2] > 0
    assert found.cells[3:5].max() < 0.02 * found.cells[2]
    assert found.cells.sum() >= found.apart * (1 - 1e-12)


@pytest.mark.slow
def test_a_kink_next_to_order_1_draws_nothing_down() -> None:
    """Few reports of noisy response: many outcomes with a tiny loss, within the first cell. Supporting lines
    are far below the profile there, and lower the chords from there to far out."""
    draw = np.random.default_rng(8)
    rows = 1 + 10 * np.eye(9, 17) + 0.02 * draw.uniform(size=(9, 17))
    rows /= rows.sum(axis=1, keepdims=True)
    shuffled = alike(randomizer=parse_randomizer(f"table({rows.tolist()})"), reports=5)
    loss = Accountant().privacy_loss(shuffled)
    above, below = (float(((one.p - one.q) * one.losses).sum()) for one in (loss.upper, loss.lower))
    assert (1 - 5e-4) * above <= below <= above


def test_what_corners_draw_down_is_put_down_to_the_cells_beside_them() -> None:
    """A convex profile, but for one corner that a line beside it made low."""
    excess = np.expm1(np.linspace(0.0, 0.6, 7))
    exact = np.exp(-5 * excess) / 10
    low = exact.copy()
    low[3] *= 0.5
    bounds, values = ProfileBounds(exact, exact), ProfileBounds(exact, low)
    above = _pair(Polygon.of(np.arange(7), excess, exact), 0.1, support=math.inf, side="upper")
    tilts = Tilts.of(excess, above)
    found = gaps(excess, bounds, values, Polygon.of(np.arange(7), excess, low), tilts)
    plain = gaps(excess, bounds, values, Polygon.of(np.arange(7), excess, exact), tilts)
    assert np.all(plain.drawn == 0)
    assert found.drawn[2:4].min() > 0.4 * found.drawn.sum() > 0
    assert found.apart >= plain.apart + 0.5 * found.drawn.sum()


@pytest.mark.slow
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


@pytest.mark.parametrize(("little", "noted"), [(1e-38, False), (1e-31, True)])
def test_what_no_delta_notices_keeps_no_pairs_apart(little: float, noted: bool) -> None:
    """Where a profile is that small it is not evaluated, and bounds are factors apart."""
    loss = np.linspace(0.0, 4e-4, 41)
    excess = np.expm1(loss)
    exact = 1e-5 * np.exp(-0.5 * (loss / 2.5e-5) ** 2)
    above = _pair(Polygon.of(np.arange(41), excess, exact), 1e-5, support=math.inf, side="upper")
    far = exact < little
    bounds = ProfileBounds(np.where(far, little, exact), np.where(far, 0.0, exact))
    tilts = Tilts.of(excess, above)

    def blurred(one: ProfileBounds) -> float:
        return gaps(excess, one, one, Polygon.of(np.arange(41), excess, one.lower), tilts).blurred

    assert 5 < far.sum() < 30
    assert blurred(ProfileBounds(exact, exact)) == 0
    assert (blurred(bounds) > 1e-6) == noted


def test_a_bound_that_its_neighbours_replace_blurs_nothing() -> None:
    """An upper bound far above the chord beside it: the pair above does not see it."""
    excess = np.expm1(np.linspace(0.0, 0.6, 7))
    exact = np.exp(-5 * excess) / 10
    exact[-1] = 0.0
    absurd = exact.copy()
    absurd[4] = 1.0
    shown = ProfileBounds(np.minimum(absurd, np.append(exact[:-1] * 1.01, 0.0)), exact)
    above = _pair(Polygon.of(np.arange(7), excess, exact), 0.1, support=math.inf, side="upper")
    tilts, below = Tilts.of(excess, above), Polygon.of(np.arange(7), excess, exact)
    found = gaps(excess, ProfileBounds(absurd, exact), shown, below, tilts)
    assert 0 < found.blurred <= found.apart


def test_bounds_that_are_close_enough_are_not_sharpened(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bound of this round is above its neighbours' chord by orders of magnitude."""
    sharpened: list[float] = []
    sharper = RoundProfile.sharper

    def watched(profile: RoundProfile, share: float) -> RoundProfile:
        sharpened.append(share)
        return sharper(profile, share)

    monkeypatch.setattr(RoundProfile, "sharper", watched)
    randomizer = parse_randomizer("bounded_laplace(epsilon0=0.5)")
    loss = Accountant().privacy_loss(alike(randomizer=randomizer, reports=100))
    assert loss.upper.index.size > 100
    assert not sharpened


@pytest.mark.parametrize("curve", ["[[3, 2.5e-7]]", "[[3, 2.5e-8]]", "[[2, 1e-9]]"])
def test_a_composition_of_tiny_divergences_fits_into_memory(curve: str) -> None:
    """The largest losses were millions of times the spacing, and a composition took gigabytes."""
    accountant = Accountant(precision=4e-3)
    release = ShuffledRound(randomizer=parse_randomizer(f"declared(renyi={curve})"), reports=1)
    loss = accountant.privacy_loss(release)
    for pair in (loss.upper, loss.lower):
        assert pair.index[-1] <= 1 << 22
    once = accountant.certify({release: 1}, delta=1e-9)
    assert 0 < once.epsilon_lower <= once.epsilon_upper <= 1.005 * once.epsilon_lower
