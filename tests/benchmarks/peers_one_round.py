"""One round beside others, on the same work: its epsilon at a delta.

The published method for any randomizer is evaluated exactly, by a binomial tail for every number of clones:
O(n) for each epsilon that the bisection tries. For 10-ary randomized response stand beside us the
decomposition paper's algorithm (values rounded up to a grid of `(e - 1)/1000`, the n-fold convolution by one
FFT; an implementation of ours, faster than the times reported for the published one) and the sum over all
outcomes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from scipy import fft
from scipy.special import gammaln
from scipy.stats import binom

from shuffle_ledger.accounting import Accountant
from tests.benchmarks.accountant_speed import one_round
from tests.benchmarks.case import Case, Interval, Work

_STEPS = 32
_GRID = 1000


def ours(randomizer: str, reports: int, delta: float, *, analysis: str) -> Work:
    """This package, from nothing."""

    def run() -> Interval:
        shuffled = one_round(randomizer, reports, analysis=analysis)
        certificate = Accountant().certify({shuffled: 1}, delta=delta)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def binomial_tails(epsilon0: float, reports: int, delta: float) -> Work:
    """The published pair, exactly: given the number of clones, a binomial tail."""
    e = math.exp(epsilon0)
    p, q = 1 / (2 * e), e / (1 + e)
    number = np.arange(1, reports + 1)

    def profile(epsilon: float) -> float:
        excess = math.expm1(epsilon)
        up, down = (2 * q - 1 - excess * (1 - q)) / p, (1 - 2 * q - excess * q) / p
        least = np.floor(-number * down / (up - down)) + 1
        first = number / 2 * binom.sf(least - 2, number - 1, 0.5)
        tail = (up - down) * first + number * down * binom.sf(least - 1, number, 0.5)
        return float((binom.pmf(number, reports, 2 * p) * np.maximum(tail, 0)).sum()) / reports

    return partial(_bisected, profile, epsilon0, delta)


def rounding_up(epsilon0: float, k: int, reports: int, delta: float) -> Work:
    """The decomposition paper's algorithm for k-ary randomized response."""
    e = math.exp(epsilon0)
    step = (e - 1) / _GRID
    p = 1 / (e + k - 1)
    shares = np.array([p, p, (k - 2) * p, 1 - k * p])

    def profile(epsilon: float) -> float:
        excess = math.expm1(epsilon)
        values = np.ceil(np.array([e - 1 - excess, 1 - e - excess * e, -excess, 0.0]) / step).astype(int)
        low = int(values.min())
        masses = np.zeros(fft.next_fast_len(reports * int(values.max() - low) + 1, real=True))
        np.add.at(masses, values - low, shares)
        total = fft.irfft(fft.rfft(masses) ** reports, len(masses))
        sums = (np.arange(len(masses)) + reports * low) * step
        return float((total * np.maximum(sums, 0)).sum()) / reports

    return partial(_bisected, profile, epsilon0, delta)


def all_outcomes(epsilon0: float, k: int, reports: int, delta: float) -> Work:
    """k-ary randomized response by every outcome of 1,000 users whose counts are within ten deviations."""
    e = math.exp(epsilon0)
    p = 1 / (e + k - 1)
    c = np.array([p, p, (k - 2) * p])

    def run() -> Interval:
        ranges = []
        for mass in c:
            centre, deviation = reports * mass, math.sqrt(reports * mass * (1 - mass))
            low, high = max(0, int(centre - 10 * deviation)), min(reports, int(centre + 10 * deviation) + 1)
            ranges.append(np.arange(low, high + 1.0))
        first, second, third = np.ix_(*ranges)
        rest = reports - first - second - third
        with np.errstate(invalid="ignore"):
            log_mass = gammaln(reports + 1) + rest * math.log1p(-c.sum()) - gammaln(rest + 1)
            for counts, mass in zip((first, second, third), c, strict=True):
                log_mass = log_mass + counts * math.log(mass) - gammaln(counts + 1)
        weights = np.where(rest >= 0, np.exp(log_mass), 0.0) / reports
        under_p, under_q = e * first + second + third, first + e * second + third

        def profile(epsilon: float) -> float:
            return float((weights * np.maximum(under_p - math.exp(epsilon) * under_q, 0)).sum())

        return _bisected(profile, epsilon0, delta)

    return run


def _bisected(profile: Callable[[float], float], epsilon0: float, delta: float) -> Interval:
    low, high = 0.0, epsilon0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if profile(middle) <= delta else (middle, high)
    return Interval(high)


def cases() -> Iterator[Case]:
    """Any randomizer by the published pair; 10-ary randomized response by its own."""
    for reports, delta in itertools.product((10**4, 10**6), (1e-6, 1e-30)):
        group = f"generic(4), n = {reports:g}, delta {delta:g}"
        prepare = partial(ours, "generic(epsilon0=4)", reports, delta, analysis="clone")
        yield Case(name=f"{group}: ours", prepare=prepare, group=group, computes=True)
        prepare = partial(binomial_tails, 4.0, reports, delta)
        yield Case(name=f"{group}: O(n) tails", prepare=prepare, group=group, computes=True)
    for delta in (1e-6, 1e-12, 1e-20):
        group = f"10-RR(1.15), n = 1000, delta {delta:g}"
        prepare = partial(ours, "krr(k=10, epsilon0=1.15)", 1000, delta, analysis="blanket")
        yield Case(name=f"{group}: ours", prepare=prepare, group=group, computes=True)
        for name, naive in (("rounded up, one FFT", rounding_up), ("all outcomes", all_outcomes)):
            prepare = partial(naive, 1.15, 10, 1000, delta)
            yield Case(name=f"{group}: {name}", prepare=prepare, group=group, computes=True)
