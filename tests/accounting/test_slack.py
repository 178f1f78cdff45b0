"""Rounds that are pure but for their slack: the least of delta and what the slack costs, on both sides."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, parse_randomizer
from shuffle_ledger.accounting.certificate import Interval
from shuffle_ledger.accounting.pld.approximate import delta_interval_with_slack
from tests.accounting.alike import alike


def _response(epsilon: float, x: mp.mpf) -> mp.mpf:
    """The delta of binary randomized response."""
    e = mp.exp(mp.mpf(epsilon))
    return max((e - mp.exp(x)) / (1 + e), mp.mpf(0))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 5.0),
    st.floats(1e-14, 1e-2),
    st.floats(0.0, 8.0),
    st.floats(1e-15, 3e-4),
)
def test_the_least_of_both_is_enclosed(epsilon0: float, slack: float, epsilon: float, noise: float) -> None:
    """For a convex delta with this relative error: compared with every x of a grid, and where it bends."""
    mp.mp.dps = 40
    draw = np.random.default_rng(0)

    def bounds(x: float) -> Interval:
        value = float(_response(epsilon0, mp.mpf(x)))
        off = noise * draw.uniform(0.5, 1.0, 2)
        return Interval(upper=value * (1 + off[0]), lower=value * (1 - off[1]))

    found = delta_interval_with_slack(bounds(epsilon), bounds, epsilon, slack)
    # Linear in the order up to epsilon0, and from there on.
    ends = [0.0, epsilon, *([epsilon0] if epsilon0 < epsilon else [])]
    exact = min(_response(epsilon0, mp.mpf(x)) + (1 + mp.exp(mp.mpf(x))) * slack for x in ends)
    assert found.lower <= exact * (1 + mp.mpf(1e-14))
    assert found.upper >= min(exact, 1) * (1 - mp.mpf(1e-14))
    assert found.upper - found.lower <= max(5e-3, 8 * noise) * found.upper


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "rest"),
    [
        ("generic(epsilon0=1)", {"reports": 1, "delta0": 1e-6}),
        ("generic(epsilon0=0.1)", {"reports": 50, "delta0": 3e-8}),
        ("generic(epsilon0=2)", {"reports": 10_000, "delta0": 1e-14}),
    ],
)
@pytest.mark.parametrize("rounds", [1, 10])
def test_delta_never_rises_and_agrees_with_epsilon(written: str, rest: dict[str, Any], rounds: int) -> None:
    """Delta never rises with epsilon, and epsilon at that delta agrees."""
    question = {alike(randomizer=parse_randomizer(written), **rest): rounds}
    accountant = Accountant()
    found = [accountant.certify_delta(question, epsilon=x) for x in (0.02, 0.5, 1.0, 1.05, 700.0)]
    for earlier, later in itertools.pairwise(found):
        assert later.delta_lower <= earlier.delta_upper
    assert all(one.precise for one in found[:-1])
    for one in found:
        back = accountant.certify(question, delta=min(one.delta_upper * 1.001, 0.99))
        assert back.epsilon_lower <= one.epsilon_upper
        forth = accountant.certify(question, delta=one.delta_lower * 0.999)
        assert forth.epsilon_upper >= one.epsilon_lower * (1 - 2e-3)


def test_one_report_is_bounded_by_the_best_epsilon_below() -> None:
    """Randomized response of epsilon0 1 with a local delta: nothing is gained beyond epsilon0."""
    shuffled = alike(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=1, delta0=1e-6)
    exact = (1 + math.e) * shuffled.slack
    for epsilon in (1.0, 1.5, 3.0, 50.0):
        found = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        assert found.delta_lower <= exact * (1 + 1e-12)
        assert exact * (1 - 1e-12) <= found.delta_upper <= exact * 1.01


def _one_report(epsilon0: mp.mpf, rate: mp.mpf, slack: mp.mpf, delta: mp.mpf) -> mp.mpf:
    """Where `rate q (exp(epsilon0) - 1) - r q + (2 + r) slack` is delta, `q = 1/(1 + exp(epsilon0))`: the
    epsilon of one report of a sample, in closed form."""
    q = 1 / (1 + mp.exp(epsilon0))
    excess = (q * rate * mp.expm1(epsilon0) + 2 * slack - delta) / (q - slack)
    return mp.log1p(max(excess, mp.mpf(0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
def test_next_to_nothing_beside_the_slack_is_not_overrated(seed: int) -> None:
    """Where next to all of delta is slack, what its rounding takes off what is left of delta is in no lower
    bound."""
    mp.mp.dps = 70
    draw = np.random.default_rng(seed)
    epsilon0, population = float(draw.choice([1e-9, 0.5, 1.0, 2.0])), int(10 ** draw.uniform(6, 12))
    delta0 = float(10 ** draw.uniform(-4, -1.5))
    shuffled = alike(
        randomizer=parse_randomizer(f"generic(epsilon0={epsilon0!r})"),
        reports=1,
        sampled_from=population,
        delta0=delta0,
    )
    rate, e = mp.mpf(1) / population, mp.exp(mp.mpf(epsilon0))
    slack = mp.mpf(delta0) * (1 + 1 / (2 * e))
    for share in draw.uniform(0.0, 1.0, 2):
        most = rate * (e - 1) / (1 + e)
        delta = float(2 * slack + mp.mpf(share) * most)
        exact = _one_report(mp.mpf(epsilon0), rate, slack, mp.mpf(delta))
        found = Accountant(precision=float(draw.choice([1e-3, 1e-6]))).certify({shuffled: 1}, delta=delta)
        assert found.epsilon_lower <= exact <= found.epsilon_upper, (epsilon0, population, delta0, delta)


def test_slack_that_alone_is_more_than_delta_leaves_no_epsilon() -> None:
    shuffled = alike(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=1000, delta0=1e-9)
    found = Accountant().certify({shuffled: 1}, delta=1e-6)
    assert found.epsilon_lower == math.inf
    assert found.precise
