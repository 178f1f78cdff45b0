"""The accountant: one round's privacy loss from nothing, and many rounds composed, beside the naive ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import binom

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from tests.accounting.alike import alike
from tests.benchmarks.case import Case, Interval, Work


def one_round(randomizer: str, reports: int, **rest: object) -> ShuffledRound:
    """A round, by its randomizer's notation."""
    return alike(
        randomizer=parse_randomizer(randomizer),
        reports=reports,
        **rest,
    )


def clone_kinds(kinds: int, rounds: int) -> Mapping[ShuffledRound, int]:
    """Rounds of ten local epsilons from 0.2 to 2, by the published pair, spread evenly over `kinds` kinds."""
    chosen = [
        one_round(f"generic(epsilon0={0.2 * (k % 10 + 1):.1f})", 1000 + k // 10, analysis="clone")
        for k in range(kinds)
    ]
    return dict.fromkeys(chosen, rounds // kinds)


def loss(randomizer: str, reports: int) -> Work:
    """One round's privacy loss from nothing, and its epsilon at delta 1e-6."""

    def run() -> Interval:
        certificate = Accountant().certify({one_round(randomizer, reports): 1}, delta=1e-6)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def exact_sum(epsilon0: float, reports: int, epsilon: float) -> Work:
    """The naive way for one delta of the clone pair: a binomial tail for every number of clones, O(n)."""

    def run() -> str:
        e, excess = np.exp(epsilon0), np.expm1(epsilon)
        p, q = 1 / (2 * e), e / (1 + e)
        gains = np.array([2 * q - 1 - excess * (1 - q), 1 - 2 * q - excess * q]) / p
        number = np.arange(1, reports + 1)
        least = np.floor(-number * gains[1] / (gains[0] - gains[1])) + 1
        first = number / 2 * binom.sf(least - 2, number - 1, 0.5)
        tail = (gains[0] - gains[1]) * first + number * gains[1] * binom.sf(least - 1, number, 0.5)
        return f"delta {(binom.pmf(number, reports, 2 * p) * np.maximum(tail, 0)).sum() / reports:.6g}"

    return run


def composition(kinds: int, rounds: int, delta: float, *, warm: bool, precision: float = 1e-3) -> Work:
    """Rounds of many kinds composed; `warm` computes the privacy losses before the clock starts."""
    counts = clone_kinds(kinds, rounds)
    ready = Accountant(precision=precision)
    if warm:
        for kind in counts:
            ready.privacy_loss(kind)

    def run() -> Interval:
        accountant = Accountant(precision=precision)
        if warm:
            for kind in counts:
                accountant.adopt(kind, ready.privacy_loss(kind))
        certificate = accountant.certify(counts, delta=delta)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def convolutions(kinds: int, rounds: int, delta: float) -> Work:
    """The naive way: losses rounded up to one grid, powers by FFT convolution, no bound on its own error."""
    counts = clone_kinds(kinds, rounds)
    accountant = Accountant()
    losses = [(accountant.privacy_loss(kind).upper, count) for kind, count in counts.items()]

    def run() -> Interval:
        step = 1e-3
        total, start = np.ones(1), 0
        for pair, count in losses:
            signed = np.concatenate([-pair.losses[::-1], [0.0], pair.losses])
            index = np.ceil(signed / step - 1e-9).astype(int)
            masses = np.zeros(index[-1] - index[0] + 1)
            np.add.at(masses, index - index[0], np.concatenate([pair.q[::-1], [pair.zero], pair.p]))
            power, shift, left = masses, int(index[0]), count
            while left:
                if left % 2:
                    total, start = fftconvolve(total, power), start + shift
                left //= 2
                if left:
                    power, shift = fftconvolve(power, power), 2 * shift
        x = (np.arange(total.size) + start) * step
        low, high = 0.0, float(x[-1])
        for _ in range(40):
            middle = (low + high) / 2
            small = (total[x > middle] * -np.expm1(middle - x[x > middle])).sum() <= delta
            low, high = (low, middle) if small else (middle, high)
        return Interval(high)

    return run


def cases() -> Iterator[Case]:
    """Losses of single rounds, then compositions."""
    for exponent in (4, 6, 9):
        group = f"n = 1e{exponent}"
        prepare = partial(loss, "generic(epsilon0=1)", 10**exponent)
        yield Case(name=f"loss, generic(1), {group}", prepare=prepare, group=group)
        if exponent < 7:
            prepare = partial(exact_sum, 1.0, 10**exponent, 0.01)
            yield Case(name=f"  exact sum, one delta, {group}", prepare=prepare, group=group)
    for written in ("krr(k=10, epsilon0=2)", "rappor(epsilon0=4)", "oue(epsilon0=2)", "hadamard(epsilon0=4)"):
        for reports in (10, 10**6):
            yield Case(name=f"loss, {written}, n = {reports:g}", prepare=partial(loss, written, reports))
    for rounds in (1000, 10_000):
        group = f"{rounds} rounds"
        prepare = partial(composition, 10, rounds, 1e-6, warm=True)
        yield Case(name=f"{group} of 10 clone kinds", prepare=prepare, group=group)
        prepare = partial(convolutions, 10, rounds, 1e-6)
        yield Case(name=f"  by convolutions, {group}", prepare=prepare, group=group)
    for name, delta, warm in (
        ("losses known", 1e-6, True),
        ("from nothing", 1e-6, False),
        ("1e-30", 1e-30, True),
    ):
        prepare = partial(composition, 100, 10_000, delta, warm=warm)
        yield Case(name=f"10000 rounds of 100 kinds, {name}", prepare=prepare)
