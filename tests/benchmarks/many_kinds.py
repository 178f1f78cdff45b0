"""Many different kinds of rounds: every week another number of reports, or another number of categories.

*ms for a new kind* is the processor time of the privacy loss of a kind that was never computed, the median of
neighbouring numbers of reports around each n. Precision 4e-3 is the ledger's, 1e-3 the library's. In the last
cases all kinds differ in n or k: their losses from nothing, then their composition at two deltas, the second
by the same accountant.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from functools import partial

from shuffle_ledger.accounting import Accountant, ShuffledRound
from tests.benchmarks.accountant_speed import one_round
from tests.benchmarks.case import Case, Work

_PRECISIONS = (4e-3, 1e-3)
_REPORTS = (100, 1000, 10_000, 10**6, 10**9)
_SAMPLED = ", one in 20 sampled"
_RANDOMIZERS = (
    "krr(k=10, epsilon0=2)",
    "krr(k=1000, epsilon0=6)",
    "generic(epsilon0=1)",
    "rappor(epsilon0=4)",
    "oue(epsilon0=2)",
    "olh(epsilon0=2)",
    "hadamard(epsilon0=4)",
    "subset(domain=64, epsilon0=2)",
    "laplace(epsilon0=1)",
    "krr(k=10, epsilon0=2)" + _SAMPLED,
    "rappor(epsilon0=4)" + _SAMPLED,
)
_NEIGHBOURS = 5  # numbers of reports around each n


def described(kind: str, reports: int) -> ShuffledRound:
    """A round of a randomizer as it is written here: its notation, and perhaps that users were sampled."""
    notation = kind.removesuffix(_SAMPLED)
    return one_round(notation, reports, sampled_from=None if notation == kind else 20 * reports)


def new_kinds(kind: str, precision: float) -> Work:
    """One randomizer's new kinds, for few reports and many."""
    Accountant(precision=precision).privacy_loss(described(kind, 77))  # what the first use of a process costs

    def run() -> str:
        found = []
        for reports in _REPORTS:
            taken = []
            for more in range(_NEIGHBOURS):
                round_ = described(kind, reports + more * reports // 50)
                began = time.process_time()
                Accountant(precision=precision).privacy_loss(round_)
                taken.append(time.process_time() - began)
            found.append(f"{reports:g}: {statistics.median(taken) * 1e3:.1f}")
        return f"ms for a new kind, {', '.join(found)}"

    return run


def weekly(kinds: int) -> list[ShuffledRound]:
    """Different kinds: four randomizers in turn, numbers of reports from 1,000 up, numbers of categories."""
    written = (
        lambda week: f"krr(k={3 + week // 4 % 50}, epsilon0=2)",
        lambda _: "rappor(epsilon0=4)",
        lambda _: "oue(epsilon0=2)",
        lambda _: "hadamard(epsilon0=4)",
    )
    return [one_round(written[week % 4](week), 1000 + 97 * week) for week in range(kinds)]


def many(kinds: int) -> Work:
    """Different kinds from nothing, and their composition."""
    rounds = dict.fromkeys(weekly(kinds), 1)

    def run() -> str:
        accountant, times = Accountant(precision=_PRECISIONS[0]), [time.process_time()]
        for one in rounds:
            accountant.privacy_loss(one)
        times.append(time.process_time())
        for delta in (1e-6, 1e-8):
            accountant.certify(rounds, delta=delta)
            times.append(time.process_time())
        losses, first, other = (after - before for before, after in itertools.pairwise(times))
        return f"losses {losses:.2f} s, composed at one delta {first:.2f} s, at another {other:.2f} s"

    return run


def cases() -> Iterator[Case]:
    """New kinds of each randomizer, then many kinds."""
    for precision in _PRECISIONS:
        for kind in _RANDOMIZERS:
            prepare = partial(new_kinds, kind, precision)
            yield Case(name=f"{kind}, precision {precision:g}", prepare=prepare, computes=True, repeats=1)
    for kinds in (100, 300, 1000, 3000):
        name, prepare = f"{kinds} different kinds", partial(many, kinds)
        yield Case(name=name, prepare=prepare, group="many", computes=True, repeats=1)
