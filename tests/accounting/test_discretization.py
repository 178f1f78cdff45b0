"""Pairs below a profile that is known between bounds, near and far apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.numeric.convex_minorants import SupportingLines
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from tests.accounting.conftest import pairs_around


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    points=st.integers(3, 150),
    blur=st.sampled_from([0.0, 1e-9, 1e-4, 0.03, 0.5]),
    lost=st.sampled_from([0.0, 0.1]),
)
@settings(deadline=None, max_examples=150)
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
    steepest = -float(weights.sum() / kinks.max())  # of the profile at order 1
    lines = SupportingLines.of(excess, upper, lower, float(draw.choice([-np.inf, steepest])))
    for steep in (False, True):
        for bent in (0.0, 0.3, 1.0):
            cells = np.flatnonzero(draw.uniform(size=points) < bent)
            bends = draw.uniform(excess[cells], excess[cells + 1])
            bends += draw.choice([0.0, 0.999]) * (lines.meeting[cells] - bends)
            above = lines.at(cells, bends) > 0
            cells, bends = cells[above], bends[above]
            orders, values = np.insert(excess, cells + 1, bends), lines.values(cells, bends, steep=steep)
            assert np.all(np.interp(between, orders, values) <= profile(between) + 1e-12)


def test_a_lower_pair_without_mass_at_loss_0_keeps_what_it_has() -> None:
    """Bounds that fall apart from order 1 on are too steep there for a pair: it begins lower, and loses
    nothing further out."""
    losses = np.array([0.2, 0.6, 1.0, 2.0, 4.0])
    more, less = 0.2 / (1 + np.exp(-losses)), 0.2 / (1 + np.exp(losses))

    def profile(excess: np.ndarray) -> ProfileBounds:
        exact = np.maximum(more - np.multiply.outer(1 + excess, less), 0.0).sum(axis=1)
        return ProfileBounds(exact * (1 + 1e-9), exact * (1 - 0.02 * np.minimum(excess, 1.0)))

    _, below = pairs_around(profile, largest_loss=4.0, end=4.0, precision=1e-3)
    orders = np.linspace(0.0, 3.5, 50)
    exact = profile(np.expm1(orders)).upper
    found = np.array([below.divergence_bound(float(order)) for order in orders])
    assert np.all(found <= exact)
    assert np.all(found >= 0.977 * exact)


def test_the_pair_above_a_discrete_law_does_not_depend_on_last_digits() -> None:
    """Between its losses the profile is linear, and processors differ in its last digit."""
    losses = np.linspace(0.05, 1.0, 20)
    more, less = 0.02 / (1 + np.exp(-losses)), 0.02 / (1 + np.exp(losses))
    draw = np.random.default_rng(1)

    def profile(excess: np.ndarray) -> ProfileBounds:
        exact = np.maximum(more - np.multiply.outer(1 + excess, less), 0.0).sum(axis=1)
        again = exact * (1 + draw.integers(-1, 2, exact.shape) * 2.0**-52)
        return ProfileBounds(again * (1 + 1e-14), again * (1 - 1e-14))

    one, other = (pairs_around(profile, largest_loss=1.0, end=1.0, precision=1e-3)[0] for _ in range(2))
    assert np.array_equal(one.index, other.index)
    orders = np.linspace(0.0, 0.95, 50)
    exact = np.maximum(more - np.multiply.outer(np.exp(orders), less), 0.0).sum(axis=1)
    assert np.all([one.divergence_bound(float(order)) for order in orders] >= exact)


@pytest.mark.parametrize("precision", [1e-2, 1e-3])
def test_the_largest_loss_is_met_from_below(precision: float) -> None:
    """The smallest deltas depend on the largest loss."""
    profile = np.vectorize(lambda excess: max(1 - excess / np.expm1(3.0), 0.0) ** 2 / 4)
    _, below = pairs_around(
        lambda excess: ProfileBounds(profile(excess), profile(excess)),
        largest_loss=3.0,
        end=3.0,
        precision=precision,
    )
    assert 3.0 * (1 - 0.4 * precision) <= float(below.index[-1] * below.spacing) <= 3.0


def test_an_upper_pair_counts_a_loss_whichever_way_it_was_rounded() -> None:
    """The profile it stands for may fall by many digits at that very order."""
    p = 0.25
    above, below = (
        PrivacyLossDistribution(
            spacing=0.1,
            index=np.array([3]),
            p=np.array([p]),
            q=np.array([p * np.exp(-0.1 * 3)]),
            zero=1 - p - p * float(np.exp(-0.1 * 3)),
            infinity=0.0,
            support=math.inf,
            side=side,
        )
        for side in ("upper", "lower")
    )
    loss = float(above.losses[0])
    for epsilon in (math.nextafter(loss, 0.0), loss, math.nextafter(loss, 1.0)):
        # The order of the loss, as a float, may be a unit above what the loss says.
        assert p * 2.0**-53 * loss <= above.divergence_bound(epsilon) <= 1e-14
        assert below.divergence_bound(epsilon) == 0


@pytest.mark.parametrize("mass", [math.nan, math.inf, -1e-300, 1e308, 0.6, 0.3])
def test_masses_that_are_no_probabilities_are_named(mass: float) -> None:
    """Whatever they are, and whether or not their sum overflows."""
    with pytest.raises(InvalidParameter, match=r"masses: got .*, expected finite masses, not negative"):
        PrivacyLossDistribution(
            spacing=0.1,
            index=np.array([3, 5]),
            p=np.array([mass, mass]),
            q=np.array([0.0, 0.0]),
            zero=0.0,
            infinity=0.0,
            support=math.inf,
            side="upper",
        )
