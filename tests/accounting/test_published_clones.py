"""The settings of "Hiding Among the Clones" (Feldman, McMillan, Talwar), against exact sums over clones.

The paper prints no numbers with its figures. Settings are its own where it names them, and ours elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from tests.accounting.exact_sums import Pair, bisected, clones, composed, near


def _round(epsilon0: float, reports: int, analysis: str = "clone") -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "generic", "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, analysis=analysis)


def _closed_form(epsilon0: float, reports: int, delta: float) -> float:
    """Theorem 3.1, where it holds: `epsilon0 <= log(n / (16 log(2/delta)))`."""
    e = math.exp(epsilon0)
    if e > reports / (16 * math.log(2 / delta)):
        return epsilon0
    root = 8 * math.sqrt(e * math.log(4 / delta) / reports)
    return min(math.log1p((e - 1) / (e + 1) * (root + 8 * e / reports)), epsilon0)


def _by_clones(epsilon0: float, reports: int, delta: float) -> float:
    """Theorem 3.2 by an exact sum over the number of clones, the user's own report included."""
    e = math.exp(epsilon0)
    number = near(reports, 1 / e)
    number = number[number > 0]
    weights = stats.binom.pmf(number, reports, 1 / e) / reports

    def profile(epsilon: float) -> float:
        """Given C hidden reports, A of the first kind, P is `A e + C - A`, and Q `A + (C - A) e`, in units of
        `2 e/(1 + e)`: a binomial tail and its mean."""
        order = math.exp(epsilon)
        up, down = e - order, 1 - order * e
        least = np.floor(-number * down / (up - down)) + 1
        mean = number / 2 * stats.binom.sf(least - 2, number - 1, 0.5)
        tail = (up - down) * mean + number * down * stats.binom.sf(least - 1, number, 0.5)
        return float((weights * np.maximum(tail, 0)).sum()) * 2 * e / (1 + e)

    return bisected(profile, delta, epsilon0)


def _two_ary_lower(epsilon0: float, reports: int, delta: float) -> float:
    """Appendix G: binary randomized response when everybody else holds 0."""
    p = 1 / (math.exp(epsilon0) + 1)
    counts = near(reports, p)
    others = stats.binom.pmf(counts, reports - 1, p), stats.binom.pmf(counts - 1, reports - 1, p)
    zero, one = ((1 - own) * others[0] + own * others[1] for own in (p, 1 - p))
    return max(Pair(x, y).epsilon(delta, epsilon0) for x, y in ((zero, one), (one, zero)))


FIGURE_2 = [(6.0, 10**5), (6.0, 10**7), (0.01, 10**6), (2.0, 10**6)]


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon0", "reports"), FIGURE_2)
def test_figure_2_bounds_of_one_round(epsilon0: float, reports: int) -> None:
    """delta = 1e-6. The clone pair is what an exact sum says; the bounds lie in the order of theory."""
    certificate = Accountant().certify({_round(epsilon0, reports): 1}, delta=1e-6)
    exact = _by_clones(epsilon0, reports, 1e-6)
    assert certificate.epsilon_lower <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= certificate.epsilon_upper
    assert certificate.precise
    tight = Accountant().certify({_round(epsilon0, reports, "tight"): 1}, delta=1e-6)
    assert _two_ary_lower(epsilon0, reports, 1e-6) <= tight.epsilon_upper
    assert tight.epsilon_upper <= certificate.epsilon_upper
    assert certificate.epsilon_lower <= _closed_form(epsilon0, reports, 1e-6)


def _renyi(pair: Pair, order: float) -> float:
    """Of the outcomes that weigh more than 1e-40: at most the pair's."""
    seen = (pair.p > 1e-40) & (pair.q > 1e-40)
    exponents = order * np.log(pair.p[seen]) - (order - 1) * np.log(pair.q[seen])
    top = float(exponents.max())
    return (top + math.log(float(np.exp(exponents - top).sum()))) / (order - 1)


@pytest.mark.parametrize("reports", [10**4])
def test_figure_3_renyi_divergences(reports: int) -> None:
    """epsilon0 = 5, orders from 3 to 10,000."""
    pair = clones(reports, math.exp(-5.0), math.exp(5.0) / (math.exp(5.0) + 1))
    loss = Accountant().privacy_loss(_round(5.0, reports))
    for order in (3.0, 10.0, 30.0, 100.0, 1000.0, 10_000.0):
        above, below = loss.upper.renyi_divergence(order), loss.lower.renyi_divergence(order)
        listed = _renyi(pair, order)
        assert below <= above
        assert listed * (1 - 1e-9) <= above <= 5.0
        if order <= 10:
            assert below <= listed * (1 + 1e-9)
            assert above <= listed * 1.01
    assert loss.upper.renyi_divergence(10_000.0) > 4.9


@pytest.mark.slow
@pytest.mark.parametrize("epsilon0", [3.0])
def test_figure_3_compositions_beat_renyi_and_advanced_composition(epsilon0: float) -> None:
    """10,000 rounds of 10,000 users at delta 1e-6: the composition lies below both ways of the figure."""
    e, rounds, delta = math.exp(epsilon0), 10_000, 1e-6
    pair = clones(10**4, 1 / e, e / (e + 1))
    certificate = Accountant().certify({_round(epsilon0, 10**4): rounds}, delta=delta)
    low, high = composed([(pair, rounds)], 2e-5 * epsilon0)(delta)
    assert certificate.epsilon_lower <= high
    assert low <= certificate.epsilon_upper
    orders = np.geomspace(1.5, 40.0, 30)
    # From a Renyi divergence to epsilon: Canonne, Kamath, Steinke (2020), Proposition 12.
    converted = min(
        rounds * _renyi(pair, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders.tolist()
    )
    assert certificate.epsilon_upper < converted < 1.1 * certificate.epsilon_lower
    single = pair.epsilon(delta / 2 / rounds, epsilon0)
    advanced = _advanced(single, rounds, delta / 2)
    assert certificate.epsilon_upper < converted < advanced


def _advanced(epsilon: float, rounds: int, slack: float) -> float:
    """Kairouz, Oh, Viswanath (2015), Theorem 3.3's closed forms."""
    drift = rounds * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * rounds * math.log(1 / slack))
    return min(rounds * epsilon, drift + spread)
