"""The largest of many profiles, against every one of them evaluated at every order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import ShuffledRound, Table
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile, blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import Outcomes, enumerate_outcomes
from shuffle_ledger.accounting.amplification.worst_pair.search import WorstPair, chords
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

_SMOOTHING = 0.02


def _pairs(rows: np.ndarray) -> list[Decomposition]:
    hidden = rows.min(axis=0)
    return [Decomposition(a, b, hidden) for a in rows for b in rows if a is not b]


def _table(kind: str, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    rows = {
        "random": lambda: draw.gamma(1.0, size=(4, 5)),
        "rows nearly equal": lambda: draw.uniform(0.5, 1.0, 5) * (1 + 0.02 * draw.uniform(-1, 1, (4, 5))),
        "rows all but equal": lambda: 1 + np.eye(4, 5) + 1e-9 * draw.uniform(-1, 1, (4, 5)),
        "zeros": lambda: draw.uniform(0.2, 1.0, (4, 5)) * (draw.uniform(size=(4, 5)) < 0.8) + 1e-3,
        "outputs of one input": lambda: np.hstack([draw.uniform(0.2, 1.0, (4, 3)), 1e-6 * np.eye(4, 2)]),
    }[kind]()
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _little(upper: np.ndarray) -> np.ndarray:
    """What bounds may be raised by for pairs that are not evaluated: twice as much as bounds on one
    are apart, more the farther out."""
    depth = -2 * np.log(np.clip(upper / upper.max(), NEGLIGIBLE_DELTA, 1.0))
    return np.asarray(2.0 * _SMOOTHING**2 * upper * (1 + depth) + 1e-37)


@pytest.mark.parametrize("reports", [1, 40])
@pytest.mark.parametrize(
    "kind", ["random", "rows nearly equal", "rows all but equal", "zeros", "outputs of one input"]
)
@pytest.mark.parametrize("limit", [0, 2000])
def test_no_pair_is_missed(kind: str, reports: int, limit: int) -> None:
    """Also between the orders at which all pairs are looked at."""
    pairs = _pairs(_table(kind, reports))
    ratios = [one.a[one.b > 0] / one.b[one.b > 0] for one in pairs]
    excess = np.expm1(np.log(np.concatenate(ratios).max()) * np.linspace(0.0, 1.1, 100) ** 3)
    listed: list[Outcomes | None] = [enumerate_outcomes(one, reports, limit=limit) for one in pairs]
    worst = WorstPair(
        pairs=ListedPairs(pairs), reports=reports, smoothing=_SMOOTHING, listed=lambda place: listed[place]
    )
    found, best = worst.largest(excess)
    every = [
        blanket_profile(one, reports, excess, smoothing=_SMOOTHING)
        if outcomes is None
        else outcomes.profile(excess)
        for one, outcomes in zip(pairs, listed, strict=True)
    ]
    upper, lower = np.max([one.upper for one in every], axis=0), np.max([one.lower for one in every], axis=0)
    # Pairs that are not evaluated may add very little to the bounds.
    added = _little(upper)
    width = np.max([one.upper - one.lower for one in every], axis=0)
    assert np.all(lower * (1 - 1e-9) <= found.upper)
    assert np.all(found.lower <= upper * (1 + 1e-9))
    assert np.all(found.upper <= upper * (1 + 1e-9) + added)
    assert np.all(found.upper - found.lower <= width + upper * 1e-9 + added)
    named = np.choose(best, [one.upper for one in every]) if len(every) <= 32 else upper
    assert np.all(found.lower <= named * (1 + 1e-9))
    # Pairs may be evaluated with another smoothing the second time, but not with a larger one than here.
    assert np.all(worst.reached(best, excess) >= found.lower - width - upper * 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "spread"), [((12, 5), 3.0), ((6, 40), 8.0)])
@pytest.mark.parametrize("reports", [3, 10**4])
def test_no_pair_of_a_table_is_missed(shape: tuple[int, int], spread: float, reports: int) -> None:
    """Where pairs are many, most are ruled out by bounds on all of them; asked again between known orders,
    the answers are no wider."""
    rows = np.exp(np.random.default_rng(shape).uniform(0.0, spread, shape))
    pairs = TablePairs(rows / rows.sum(axis=1, keepdims=True))
    largest = min(0.99 * math.log1p(float(pairs.last_excess.max())), 9 * spread / math.sqrt(reports))
    worst = WorstPair(pairs=pairs, reports=reports, smoothing=_SMOOTHING, listed=lambda _: None)
    for count in (23, 60):
        excess = np.expm1(largest * np.linspace(0.0, 1.0, count) ** 2)
        found, best = worst.largest(excess)
        which, order = np.divmod(np.arange(len(pairs) * count), count)
        every = blanket_profiles(pairs, which, reports, excess[order], smoothing=_SMOOTHING)
        upper, lower = (one.reshape(-1, count) for one in every)
        assert np.all(found.upper >= lower.max(axis=0) * (1 - 1e-9))
        assert np.all(found.lower <= upper[best, np.arange(count)] * (1 + 1e-9))
        width = (upper - lower).max(axis=0)
        assert np.all(found.upper - found.lower <= width + _little(upper.max(axis=0)))


def test_pairs_are_summed_alike_alone_and_together() -> None:
    """Pairs with different numbers of components, some of them unhidden, each at separate orders."""
    draw = np.random.default_rng(1)
    pairs = []
    for size in (2, 5, 9):
        a, b, c = (draw.dirichlet(np.ones(size)) for _ in range(3))
        c[size // 2] = 0.0
        pairs.append(Decomposition(a, b, 0.7 * c))
    which, excess = draw.integers(0, 3, 60), np.expm1(draw.uniform(0.0, 2.0, 60))
    together = blanket_profiles(pairs, which, 50, excess, smoothing=_SMOOTHING)
    for place, one in enumerate(pairs):
        alone = blanket_profile(one, 50, excess[which == place], smoothing=_SMOOTHING)
        assert np.allclose(together.upper[which == place], alone.upper, rtol=1e-9, atol=0)
        assert np.allclose(together.lower[which == place], alone.lower, rtol=1e-9, atol=0)


def test_chords_say_nothing_of_orders_before_the_first_and_the_last_value_of_those_beyond() -> None:
    found = chords(np.array([1.0, 2.0]), np.array([[0.5, 0.1]]), np.array([0.5, 1.0, 1.5, 2.0, 9.0]))
    np.testing.assert_allclose(found, [[1.0, 0.5, 0.3, 0.1, 0.1]], rtol=1e-14)
    assert np.all(found >= [[1.0, 0.5, 0.3, 0.1, 0.1]])


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [{}, {"sampled_from": 310, "honest_fraction": 0.99}])
def test_a_sharper_profile_is_as_close_as_a_new_one(sampled: dict[str, Any]) -> None:
    """It is as close as one that begins anew, and what it begins with stays as it is."""
    rows = np.random.default_rng(3).gamma(0.7, size=(6, 9))
    table = Table(rows=tuple(map(tuple, (rows / rows.sum(axis=1, keepdims=True)).tolist())))
    shuffled = ShuffledRound(randomizer=table, reports=300, **sampled)
    excess = np.expm1(np.linspace(0.0, 1.0, 30))
    first = RoundProfile(shuffled, smoothing=0.1)
    wide = first(excess)
    close = first.sharper(0.01)(excess)
    anew = RoundProfile(shuffled, smoothing=0.01)(excess)
    for one, other in ((close, wide), (close, anew), (wide, anew)):
        assert np.all(one.lower <= other.upper)
        assert np.all(other.lower <= one.upper)
    apart, before, usual = (np.median(one.upper - one.lower) for one in (close, wide, anew))
    assert apart <= min(0.2 * before, 1.1 * usual)
    again = first(excess)
    assert np.median(again.upper - again.lower) >= 0.5 * before
