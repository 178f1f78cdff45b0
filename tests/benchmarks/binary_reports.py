"""Rounds of one-bit reports by the default analysis, and by the blanket that it takes the place of: one round
and fifty-two of a kind, from nothing, at delta 1e-8.

The first of two lines is the blanket's; epsilons side by side say what the default saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from tests.benchmarks.case import Case, Interval, Work


def certified(epsilon0: float, reports: int, rounds: int, analysis: str) -> Work:
    """The epsilon of rounds of a kind, whose privacy loss is computed anew."""
    # Lines of datasets are kept per process: a little more epsilon0 each time, so that none are found.
    times = iter(range(1000))

    def run() -> Interval:
        randomizer = parse_randomizer(f"krr(k=2, epsilon0={epsilon0 + 1e-9 * next(times)!r})")
        shuffled = ShuffledRound(randomizer=randomizer, reports=reports, analysis=analysis)
        certificate = Accountant().certify({shuffled: rounds}, delta=1e-8)
        return Interval(certificate.epsilon_upper, certificate.epsilon_lower)

    return run


def cases() -> Iterator[Case]:
    """Local epsilons and numbers of reports; the largest ratios of times are at large local epsilons."""
    for epsilon0 in (0.5, 2.0, 4.0, 8.0):
        for reports in (1000, 20_000, 10**6):
            for rounds in (1, 52):
                group = f"epsilon0 {epsilon0:g}, n = {reports:g}, {rounds} of it"
                for analysis, indent in (("blanket", ""), ("exact", "  ")):
                    prepare = partial(certified, epsilon0, reports, rounds, analysis)
                    yield Case(
                        name=f"{indent}{analysis}, {group}", prepare=prepare, group=group, computes=True
                    )
