"""The second method is right by itself, and says so when the first one is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.pld.distribution import PrivacyLossDistribution
from shuffle_ledger.accounting.verification.second_method import AGREEMENT, composed_epsilon, round_delta
from tests.accounting.alike import alike

ROUNDS = [
    ("generic(epsilon0=1)", {"reports": 1}),
    ("generic(epsilon0=4)", {"reports": 1_000_000}),
    ("generic(epsilon0=2)", {"reports": 500, "analysis": "clone"}),
    ("krr(k=2, epsilon0=0.5)", {"reports": 3, "analysis": "blanket"}),
    ("krr(k=96, epsilon0=2)", {"reports": 30_000}),
    ("krr(k=10, epsilon0=2)", {"reports": 10**9, "analysis": "strong-adversary"}),
    ("krr(k=10, epsilon0=1)", {"reports": 1_000, "participation": 0.1}),
    ("oue(epsilon0=8, domain=4096)", {"reports": 19_319, "sampled_from": 192_407}),
    ("rappor(epsilon0=4, domain=2600)", {"reports": 67_015, "honest_fraction": 0.9}),
    ("blh(epsilon0=3)", {"reports": 10_000}),
    ("hadamard(epsilon0=3, domain=64)", {"reports": 10_000}),
    ("generic(epsilon0=1)", {"reports": 10_000, "delta0": 1e-14, "analysis": "clone"}),
]


def one_round(randomizer: str, **parameters: object) -> ShuffledRound:
    return alike(randomizer=parse_randomizer(randomizer), **parameters)


@pytest.fixture(scope="module")
def accountant() -> Accountant:
    return Accountant()


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "parameters"), ROUNDS)
def test_rounds_are_confirmed(accountant: Accountant, randomizer: str, parameters: dict[str, object]) -> None:
    shuffled = one_round(randomizer, **parameters)
    loss = accountant.privacy_loss(shuffled)
    for delta in (1e-3, 1e-8):
        epsilon = 0.9 * accountant.certify({shuffled: 1}, delta=delta).epsilon_lower
        below, above = (pair.hockey_stick_divergence(epsilon) for pair in (loss.lower, loss.upper))
        found = round_delta(shuffled, epsilon)
        assert found is not None
        assert below * (1 - AGREEMENT) <= found <= above * (1 + AGREEMENT)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 5.0), st.integers(1, 300), st.floats(0.0, 0.95))
def test_a_round_of_clones_is_the_sum_over_their_number(epsilon0: float, reports: int, share: float) -> None:
    """Every number of clones and every split of them, with exact binomial masses."""
    shuffled = one_round(f"generic(epsilon0={epsilon0!r})", reports=reports, analysis="clone")
    epsilon = share * epsilon0
    e, excess = math.exp(epsilon0), math.expm1(epsilon)
    p, q = 1 / (2 * e), e / (1 + e)
    gains = np.array([2 * q - 1 - excess * (1 - q), 1 - 2 * q - excess * q]) / p
    exact = 0.0
    for clones in range(1, reports + 1):
        first = np.arange(clones + 1)
        sums = np.maximum(first * gains[0] + (clones - first) * gains[1], 0.0)
        exact += binom.pmf(clones, reports, 2 * p) * float((binom.pmf(first, clones, 0.5) * sums).sum())
    found = round_delta(shuffled, epsilon)
    if exact / reports >= 1e-10:
        assert found == pytest.approx(exact / reports, rel=AGREEMENT)


def gaussian(deviation: float) -> PrivacyLossDistribution:
    """The loss of a Gaussian mechanism of sensitivity 1, finely discretised."""
    mean, scale, spacing = 1 / (2 * deviation**2), 1 / deviation, 1e-4
    index = np.arange(1, int(12 * scale / spacing))
    edges = (np.append(index, index[-1] + 1) - 0.5) * spacing
    p = np.diff(norm.cdf(edges, mean, scale))
    q = p * np.exp(-index * spacing)
    zero = max(0.0, 1 - float(p.sum() + q.sum()))
    return PrivacyLossDistribution(
        spacing=spacing, index=index, p=p, q=q, zero=zero, infinity=0.0, support=math.inf, side="upper"
    )


@pytest.mark.parametrize("count", [1, 30, 900])
def test_gaussians_compose_to_a_gaussian(count: int) -> None:
    deviation, delta = 30.0, 1e-7
    found = composed_epsilon([(gaussian(deviation), count)], delta=delta, slack=0.0)
    assert found is not None
    mu = math.sqrt(count) / deviation
    exact = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert exact == pytest.approx(delta, rel=0.05)


@pytest.mark.slow
def test_compositions_are_confirmed(accountant: Accountant) -> None:
    held = {one_round("krr(k=96, epsilon0=2)", reports=20_000 + 400 * i): 1 + i % 3 for i in range(12)}
    held[one_round("oue(epsilon0=8, domain=4096)", reports=19_319, sampled_from=192_407)] = 4
    for delta in (1e-4, 1e-7, 1e-10):
        certificate = accountant.certify(held, delta=delta)
        pairs = [(accountant.privacy_loss(kind), count) for kind, count in held.items()]
        above = composed_epsilon([(loss.upper, count) for loss, count in pairs], delta=delta, slack=0.0)
        below = composed_epsilon([(loss.lower, count) for loss, count in pairs], delta=delta, slack=0.0)
        assert above is not None
        assert below is not None
        assert (
            certificate.epsilon_lower * (1 - 1e-3) <= below <= above <= certificate.epsilon_upper * (1 + 1e-3)
        )


def test_a_slack_is_part_of_the_second_answer(accountant: Accountant) -> None:
    held = {one_round("generic(epsilon0=1)", reports=10_000, delta0=1e-12, analysis="clone"): 3}
    certificate = accountant.certify(held, delta=1e-6)
    pairs = [(accountant.privacy_loss(kind).upper, count) for kind, count in held.items()]
    slack = sum(kind.slack * count for kind, count in held.items())
    found = composed_epsilon(pairs, delta=1e-6, slack=slack)
    assert found == pytest.approx(certificate.epsilon_upper, rel=1e-3)
    without = composed_epsilon(pairs, delta=1e-6, slack=0.0)
    assert without is not None
    assert without < certificate.epsilon_lower, "or it would not be about the slack"
    assert composed_epsilon(pairs, delta=1e-8, slack=1e-8) is None, "no finite epsilon holds"


def test_where_it_has_no_answer_it_gives_none(accountant: Accountant) -> None:
    for written, fields in (
        ("krr(k=2, epsilon0=1)", {"reports": 100}),
        ("laplace(epsilon0=1)", {"reports": 1_000}),
        ("binomial_histogram(bits=1, p=0.5)", {"reports": 100}),
        ("krr(k=4, epsilon0=1)", {"reports": 100, "sampled_from": 1_000, "honest_fraction": 0.9}),
    ):
        assert round_delta(one_round(written, **fields), 0.1) is None
    loss = accountant.privacy_loss(one_round("krr(k=4, epsilon0=1)", reports=100))
    certain = accountant.privacy_loss(
        one_round("krr(k=4, epsilon0=1)", reports=1, analysis="strong-adversary")
    )
    assert composed_epsilon([(certain.upper, 3)], delta=1e-6, slack=0.0) is None, "no finite epsilon holds"
    assert composed_epsilon([(loss.upper, 3)], delta=1e-12, slack=0.0) is None, "round-off is as large"
    assert composed_epsilon([(loss.upper, 0)], delta=1e-6, slack=0.0) == 0.0


def test_rounds_that_tell_nothing_are_laid_on_no_lattice(accountant: Accountant) -> None:
    shuffled = one_round("table([[0.5, 0.5], [0.5, 0.5]])", reports=10)
    assert composed_epsilon([(accountant.privacy_loss(shuffled).upper, 3)], delta=1e-6, slack=0.0) == 0.0
