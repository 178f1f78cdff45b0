"""Memoized permanent responses, against lists of all reports of small domains."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    Rappor,
    ShuffledRound,
    memoized_epsilon,
)

BITS = 3


def transcripts(
    own: tuple[int, ...], times: int, f: float, p: float, q: float, bits: int = BITS
) -> np.ndarray:
    """Probabilities of all lists of reports of one value that sets these bits."""
    reports = list(itertools.product((0, 1), repeat=bits))
    law = np.zeros(len(reports) ** times)
    for kept in reports:
        chance = math.prod(1 - f / 2 if kept[place] == (place in own) else f / 2 for place in range(bits))
        one = [
            math.prod(
                (q if k else p) if y else (1 - q if k else 1 - p) for y, k in zip(report, kept, strict=True)
            )
            for report in reports
        ]
        every = np.ones(1)
        for _ in range(times):
            every = np.multiply.outer(every, one).ravel()
        law += chance * every
    return law


@pytest.mark.parametrize(
    ("f", "p", "q"), [(0.5, 0.25, 0.75), (0.1, 0.4, 0.6), (0.8, 0.1, 0.95), (0.25, 0.0, 1.0)]
)
def test_epsilon_is_the_largest_log_ratio_of_all_reports(f: float, p: float, q: float) -> None:
    for times in (1, 2, 3):
        first, second = (transcripts((place,), times, f, p, q) for place in (0, 1))
        seen = first > 0
        largest = float(np.log(first[seen] / second[seen]).max())
        epsilon = memoized_epsilon(f=f, p=p, q=q, reports=times)
        assert largest <= epsilon * (1 + 1e-13)
        assert math.isclose(largest, epsilon, rel_tol=1e-9)
    two = [transcripts(own, 2, f, p, q, bits=4) for own in ((0, 1), (2, 3), (0, 2))]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [float(np.nanmax(np.log(one / other))) for one, other in itertools.permutations(two, 2)]
    assert math.isclose(max(ratios), memoized_epsilon(f=f, p=p, q=q, reports=2, hashes=2), rel_tol=1e-9)


def test_reports_add_up_to_the_permanent_response() -> None:
    losses = [memoized_epsilon(f=0.5, p=0.25, q=0.75, reports=times) for times in (0, 1, 2, 5, 20, 10**6)]
    permanent = memoized_epsilon(f=0.5, p=0.25, q=0.75)
    assert losses[0] == 0
    assert losses == sorted(losses)
    assert math.isclose(permanent, 2 * math.log(3))
    assert math.isclose(losses[-1], permanent)
    # The published epsilon of one report.
    kept, flipped = (0.5 * 0.5 * (0.25 + 0.75) + 0.5 * one for one in (0.75, 0.25))
    assert math.isclose(losses[1], math.log(kept * (1 - flipped) / (flipped * (1 - kept))))
    assert math.isclose(memoized_epsilon(f=0.5, p=0.25, q=0.75, reports=[1, 5]), losses[1] + losses[3])
    assert memoized_epsilon(f=0, p=0.25, q=0.75, reports=3) == pytest.approx(6 * math.log(3))
    assert memoized_epsilon(f=0, p=0.25, q=0.75) == math.inf
    assert memoized_epsilon(f=1, p=0.25, q=0.75) == 0


def test_a_change_at_another_time_has_no_bound() -> None:
    """A life of one value against a life of two values: the ratio grows with the number of reports."""
    f, p, q = 0.5, 0.25, 0.75
    ratios = []
    for times in (1, 2, 3):
        constant = transcripts((0,), 2 * times, f, p, q, bits=2)
        changed = np.multiply.outer(
            transcripts((0,), times, f, p, q, bits=2), transcripts((1,), times, f, p, q, bits=2)
        ).ravel()
        ratios.append(float(np.log(changed / constant).max()))
    assert ratios[0] < ratios[1] < ratios[2]
    assert ratios[2] > memoized_epsilon(f=f, p=p, q=q, reports=[3, 3])


@pytest.mark.parametrize("others", [0, 1, 2])
def test_all_rounds_together_are_one_round_of_the_permanent_response(others: int) -> None:
    """Two users, two rounds that are shuffled apart: the divergence of all that is seen."""
    f, p, q = 0.5, 0.25, 0.75
    size = 2**BITS
    laws = [transcripts((place,), 2, f, p, q).reshape(size, size) for place in (0, 1)]
    other = transcripts((others,), 2, f, p, q).reshape(size, size)

    def seen(law: np.ndarray) -> np.ndarray:
        both = np.einsum("ab,cd->acbd", law, other)  # the reports of round 1, then those of round 2
        both = both + both.transpose(1, 0, 2, 3)
        found: np.ndarray = both + both.transpose(0, 1, 3, 2)
        return found / 4

    first, second = (seen(law) for law in laws)
    permanent = Rappor(epsilon0=memoized_epsilon(f=f, p=0, q=1), domain=BITS)
    one = ShuffledRound(randomizer=permanent, reports=2)
    accountant = Accountant()
    for epsilon in (0.0, 0.3, 1.0, 1.8):
        divergence = float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
        assert divergence <= accountant.certify_delta({one: 1}, epsilon=epsilon).delta_upper
