"""Time, memory and width of what the accountant and the ledger do, beside the naive way: `make bench`.

Every case runs alone in a fresh process and is repeated; the median time and the peak memory of the process
are printed. Figures compare with each other on one machine, and with nothing else.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import binom

from accounting import Accountant, ShuffledRound, parse_randomizer
from ledger import admission, schema
from ledger.budgets import RoundRequest
from ledger.store import Store

REPEATS = 5


def one_round(randomizer: str, reports: int, **rest: object) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports, **rest)  # type: ignore[arg-type]


def loss(randomizer: str, reports: int) -> Callable[[], str]:
    """One round's privacy loss from nothing, and its epsilon at delta 1e-6."""

    def run() -> str:
        shuffled = one_round(randomizer, reports)
        certificate = Accountant().certify({shuffled: 1}, delta=1e-6)
        return f"[{certificate.epsilon_lower:.6g}, {certificate.epsilon_upper:.6g}]"

    return run


def exact_sum(epsilon0: float, reports: int, epsilon: float) -> Callable[[], str]:
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


def clone_kinds(kinds: int, rounds: int) -> Mapping[ShuffledRound, int]:
    chosen = [
        one_round(f"generic(epsilon0={0.2 * (k % 10 + 1):.1f})", 1000 + k // 10, analysis="clone")
        for k in range(kinds)
    ]
    return dict.fromkeys(chosen, rounds // kinds)


def composition(kinds: int, rounds: int, delta: float, *, warm: bool) -> Callable[[], str]:
    """Rounds of many kinds composed; `warm` computes the privacy losses before the clock starts."""
    counts = clone_kinds(kinds, rounds)
    ready = Accountant()
    if warm:
        for kind in counts:
            ready.privacy_loss(kind)

    def run() -> str:
        accountant = Accountant()
        if warm:
            for kind in counts:
                accountant.adopt(kind, ready.privacy_loss(kind))
        certificate = accountant.certify(counts, delta=delta)
        return f"[{certificate.epsilon_lower:.6g}, {certificate.epsilon_upper:.6g}]"

    return run


def convolutions(kinds: int, rounds: int, delta: float) -> Callable[[], str]:
    """The naive way: losses rounded up to one grid, powers by FFT convolution, no bound on its own error."""
    counts = clone_kinds(kinds, rounds)
    accountant = Accountant()
    losses = [(accountant.privacy_loss(kind).upper, count) for kind, count in counts.items()]

    def run() -> str:
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
        return f"{high:.6g}"

    return run


def admissions(history: int) -> Callable[[], str]:
    """Rounds of one known kind admitted to a cohort that already has `history` of them, on SQLite."""
    folder = Path(tempfile.mkdtemp())
    url = f"sqlite:///{folder / 'bench.db'}"
    schema.initialise(url)
    store = Store.connect(url)
    accountant = Accountant(precision=4e-3)
    admission.open_cohort(
        store, name="bench", population=10**9, epsilon=50.0, delta=1e-9, policy="fixed", actor="bench"
    )
    shuffled = one_round("krr(k=8, epsilon0=1)", 10**8)
    done = iter(range(10**9))

    def admit_one() -> None:
        name = f"round-{next(done)}"
        request = RoundRequest(
            round_id=name, cohort="bench", round=shuffled, collected_on=None, use_case=None
        )
        admission.register(store, request, actor="bench")
        admission.admit(store, accountant, name)

    for _ in range(history):
        admit_one()

    def run() -> str:
        began = time.perf_counter()
        for _ in range(50):
            admit_one()
        return f"{50 / (time.perf_counter() - began):.0f} admissions/s"

    return run


def cases() -> Iterator[tuple[str, Callable[..., Callable[[], str]], tuple[object, ...], dict[str, object]]]:
    for exponent in (4, 6, 9):
        yield f"loss, generic(1), n = 1e{exponent}", loss, ("generic(epsilon0=1)", 10**exponent), {}
        if exponent < 7:
            yield f"  exact sum, one delta, n = 1e{exponent}", exact_sum, (1.0, 10**exponent, 0.01), {}
    for randomizer in (
        "krr(k=10, epsilon0=2)",
        "rappor(epsilon0=4)",
        "oue(epsilon0=2)",
        "hadamard(epsilon0=4)",
    ):
        for reports in (10, 10**6):
            yield f"loss, {randomizer}, n = {reports:g}", loss, (randomizer, reports), {}
    for rounds in (1000, 10_000):
        yield f"{rounds} rounds of 10 clone kinds", composition, (10, rounds, 1e-6), {"warm": True}
        yield f"  by convolutions, {rounds} rounds", convolutions, (10, rounds, 1e-6), {}
    yield "10000 rounds of 100 kinds, losses known", composition, (100, 10_000, 1e-6), {"warm": True}
    yield "10000 rounds of 100 kinds, from nothing", composition, (100, 10_000, 1e-6), {"warm": False}
    yield "10000 rounds of 100 kinds, delta 1e-30", composition, (100, 10_000, 1e-30), {"warm": True}
    for history in (10, 2000):
        yield f"known kind, history of {history}", admissions, (history,), {}


def measure(
    make: Callable[..., Callable[[], str]], arguments: tuple[object, ...], named: dict[str, object]
) -> tuple[float, int, str]:
    """Median seconds, peak memory in MiB of this process, and the last answer."""
    run = make(*arguments, **named)
    seconds, answer = [], ""
    for _ in range(REPEATS):
        began = time.perf_counter()
        answer = run()
        seconds.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform == "darwin" else 1024)
    return statistics.median(seconds), peak, answer


def main() -> None:
    """Without an argument: every case in a process of its own. With one: that case, here."""
    numbered = list(enumerate(cases()))
    if len(sys.argv) > 1:
        name, make, arguments, named = numbered[int(sys.argv[1])][1]
        seconds, peak, answer = measure(make, arguments, named)
        print(f"{name:48} {seconds:9.4f} {peak:6d}  {answer}", flush=True)
        return
    print(f"{'case':48} {'seconds':>9} {'MiB':>6}  answer", flush=True)
    for number, _ in numbered:
        subprocess.run([sys.executable, "-m", "tests.benchmarks", str(number)], check=True, timeout=600)


if __name__ == "__main__":
    main()
