"""The largest of many profiles, against every one of them evaluated at every order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import ShuffledRound, Table
from shuffle_ledger.accounting.amplification.blanket.divergence import blanket_profile, blanket_profiles
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs, Pairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.enumeration import Outcomes, enumerate_outcomes
from shuffle_ledger.accounting.amplification.worst_pair.chernoff import Powers
from shuffle_ledger.accounting.amplification.worst_pair.convex_order import Majorants
from shuffle_ledger.accounting.amplification.worst_pair.sampled_bounds import Bounds, chords
from shuffle_ledger.accounting.amplification.worst_pair.search import WorstPair
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs
from shuffle_ledger.accounting.pld.bounds import ProfileBounds
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


@pytest.mark.parametrize("reports", [1, 40, 10**6])
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
@pytest.mark.parametrize(("shape", "spread"), [((8, 8), 1.0), ((12, 5), 3.0), ((6, 40), 8.0), ((9, 9), 0.05)])
@pytest.mark.parametrize("reports", [3, 100, 10**4, 10**9])
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


@pytest.mark.slow
def test_crowded_orders_are_bounded_as_closely_as_others() -> None:
    """Noisy response of few reports: near order 1 hundreds of pairs are nearly equal, and not evaluated."""
    rows = 1 + 10 * np.eye(16, 18) + 0.02 * np.random.default_rng(1).uniform(size=(16, 18))
    pairs = TablePairs(rows / rows.sum(axis=1, keepdims=True))
    worst = WorstPair(pairs=pairs, reports=10, smoothing=_SMOOTHING, listed=lambda _: None)
    excess = np.expm1(1.5 * np.linspace(0.0, 1.0, 60) ** 2)
    found, _ = worst.largest(excess)
    which, order = np.divmod(np.arange(len(pairs) * excess.size), excess.size)
    every = blanket_profiles(pairs, which, 10, excess[order], smoothing=_SMOOTHING)
    upper, lower = (one.reshape(-1, excess.size) for one in every)
    assert np.all(found.upper >= lower.max(axis=0) * (1 - 1e-9))
    width = (upper - lower).max(axis=0) + _little(upper.max(axis=0))
    assert np.all(found.upper - found.lower <= width)


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


def test_nothing_is_ruled_out_that_may_be_the_largest() -> None:
    """With bounds at any orders; and the pairs that are ruled out are below their stated bound."""
    ruled_out = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        kinks = draw.exponential(draw.choice([0.1, 1.0, 30.0]), (25, 6))
        sizes = np.exp(-draw.exponential(draw.choice([0.1, 30.0]), (25, 6))) / 6

        def profiles(at: np.ndarray, kinks: np.ndarray = kinks, sizes: np.ndarray = sizes) -> np.ndarray:
            return np.asarray((sizes / kinks * np.maximum(kinks - at[:, None, None], 0.0)).sum(axis=2).T)

        few = np.unique(draw.exponential(1.0, int(draw.integers(2, 9))))
        excess = np.sort(
            np.append(few[1:], draw.uniform(few[0] * draw.choice([0.5, 1.0]), few[-1] * 1.2, 30))
        )
        upper = profiles(few) * draw.uniform(1.0, 1.1, (25, few.size))
        reached = upper.max(axis=0) * draw.uniform(0.0, 1.0, few.size)
        bounds = Bounds(few, 3 * np.arange(25), upper, np.zeros_like(few), reached)
        enough = np.maximum(profiles(excess).max(axis=0) * draw.choice([0.1, 0.9, 1.0]), 1e-37)
        gone, most = bounds.ruled_out(excess, enough)
        assert np.all(profiles(excess)[gone // 3] <= np.minimum(enough, most) * (1 + 1e-12))
        assert np.all(most <= enough * (1 + 1e-12))
        assert gone.size == 0 or excess[0] >= few[0]
        ruled_out += gone.size
    assert ruled_out > 500


def test_bounds_of_two_questions_hold_for_pairs_of_either() -> None:
    """Pairs that only one of them names are below what bounds all others there."""
    one = Bounds(
        np.array([0.0, 2.0]),
        np.array([1, 4]),
        np.array([[0.5, 0.1], [0.4, 0.2]]),
        np.array([0.6, 0.3]),
        np.ones(2),
    )
    other = Bounds(
        np.array([1.0, 2.0]),
        np.array([2, 4]),
        np.array([[0.2, 0.05], [0.3, 0.25]]),
        np.array([0.4, 0.35]),
        np.ones(2),
    )
    both = one.with_orders_of(other)
    assert both.few.tolist() == [0.0, 1.0, 2.0]
    assert both.places.tolist() == [1, 2, 4]
    assert both.upper.tolist() == [[0.5, 0.4, 0.1], [0.6, 0.2, 0.05], [0.4, 0.3, 0.2]]
    assert both.others.tolist() == [0.6, 0.4, 0.3]
    assert both.of(np.array([0, 4])).tolist() == [[0.6, 0.4, 0.3], [0.4, 0.3, 0.2]]


def test_what_is_remembered_is_nobody_elses() -> None:
    """The caller may change the arrays of orders and of answers afterwards."""
    rows = np.exp(np.random.default_rng(0).uniform(0.0, 1.0, (7, 7)))
    pairs = TablePairs(rows / rows.sum(axis=1, keepdims=True))
    again = np.expm1(np.linspace(0.003, 0.99, 57))
    found = []
    for changed in (False, True):
        worst = WorstPair(pairs=pairs, reports=50, smoothing=_SMOOTHING, listed=lambda _: None)
        excess = np.expm1(np.linspace(0.0, 1.0, 40))
        bounds, _ = worst.largest(excess)
        if changed:
            excess *= 0.2
            bounds.upper[:] = bounds.lower[:] = 0.0
        found.append(worst.largest(again)[0])
    assert np.array_equal(found[0].upper, found[1].upper)
    assert np.array_equal(found[0].lower, found[1].lower)


@pytest.mark.parametrize(
    ("reports", "first", "last"),
    [(21085, 0.0, 0.02631349071008806), (5948, 0.0028388429992434318, 0.06140471743171324)],
)
def test_chords_keep_what_is_left_of_a_steep_fall(reports: int, first: float, last: float) -> None:
    """An order next to a remembered one, where the profile has fallen by more digits than a float has."""
    rows = np.array(
        [
            [0.16145250475972736, 0.43120278954031965, 0.4073447056999529],
            [0.1809454074125427, 0.5304937794203379, 0.2885608131671193],
            [0.311056542418426, 0.3596627963826438, 0.3292806611989301],
        ]
    )
    pairs = TablePairs(rows)
    worst = WorstPair(pairs=pairs, reports=reports, smoothing=0.01, listed=lambda _: None)
    worst.largest(np.array([first, last]))
    excess = np.nextafter(last, 0)
    found, _ = worst.largest(np.array([excess]))
    every = blanket_profiles(
        pairs, np.arange(len(pairs)), reports, np.full(len(pairs), excess), smoothing=0.002
    )
    assert found.upper[0] >= every.lower.max()


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [{}, {"sampled_from": 310, "honest_fraction": 0.99}])
def test_a_sharper_profile_begins_with_what_was_found(
    sampled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as close as one that begins anew, without another sample of all pairs where users are certain;
    and what it begins with stays as it is."""
    rows = np.random.default_rng(3).gamma(0.7, size=(6, 9))
    table = Table(rows=tuple(map(tuple, (rows / rows.sum(axis=1, keepdims=True)).tolist())))
    shuffled = ShuffledRound(randomizer=table, reports=300, **sampled)
    excess = np.expm1(np.linspace(0.0, 1.0, 30))
    samples: list[int] = []
    of_pairs = Powers.of

    def counted(*given: Any) -> Powers:
        samples.append(1)
        return of_pairs(*given)

    monkeypatch.setattr(Powers, "of", counted)
    first = RoundProfile(shuffled, smoothing=0.1)
    wide = first(excess)
    taken = len(samples)
    close = first.sharper(0.01)(excess)
    assert bool(sampled) or len(samples) == taken
    anew = RoundProfile(shuffled, smoothing=0.01)(excess)
    for one, other in ((close, wide), (close, anew), (wide, anew)):
        assert np.all(one.lower <= other.upper)
        assert np.all(other.lower <= one.upper)
    apart, before, usual = (np.median(one.upper - one.lower) for one in (close, wide, anew))
    assert apart <= min(0.2 * before, 1.1 * usual)
    again = first(excess)
    assert np.median(again.upper - again.lower) >= 0.5 * before


def test_what_a_pair_needs_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders between others, and sharper bounds, are not looked at too roughly first."""
    reports = np.linspace(-2.0, 3.0, 64)
    rows = np.exp(-(((reports - np.array([[0.0], [1.0]])) / 0.5) ** 2) / 2)
    pairs = TablePairs(rows / rows.sum(axis=1, keepdims=True), roughly=True)
    assert len(pairs) == 1
    rows_summed: list[int] = []

    def counted(*given: Any, **rest: Any) -> ProfileBounds:
        rows_summed.append(given[1].size)
        return blanket_profiles(*given, **rest)

    monkeypatch.setattr(
        "shuffle_ledger.accounting.amplification.worst_pair.evaluation.blanket_profiles", counted
    )
    excess = np.expm1(np.linspace(0.01, 3.0, 41))

    def taken(search: WorstPair, orders: np.ndarray) -> float:
        rows_summed.clear()
        search.largest(orders)
        return sum(rows_summed) / orders.size

    first = WorstPair(pairs=pairs, reports=10**4, smoothing=0.01, listed=lambda _: None)
    assert taken(first, excess[::2]) > 1.5
    assert taken(first, excess[1::2]) < 1.2
    assert taken(first.smoothed(0.007), excess) < 1.2


@pytest.mark.slow
def test_outcomes_are_not_listed_for_an_order_or_two() -> None:
    """Of hundreds of pairs that may be the largest somewhere, few are worth it."""
    draw = np.random.default_rng(0)
    rows = np.where(draw.uniform(size=(24, 4)) < 0.5, 0.16, 1.0) * (1 + 1e-3 * draw.uniform(size=(24, 4)))
    pairs, listed = TablePairs(rows / rows.sum(axis=1, keepdims=True)), list[int]()

    def outcomes(place: int) -> Outcomes:
        listed.append(place)
        found = enumerate_outcomes(pairs[place], 30, limit=10**5)
        assert found is not None
        return found

    worst = WorstPair(pairs=pairs, reports=30, smoothing=_SMOOTHING, listed=outcomes)
    excess = np.expm1(np.linspace(0.0, 12.0, 30))
    found = worst.largest(excess)[0]
    assert len(pairs) > 500
    assert len(set(listed)) < 40
    every = [outcomes(place).profile(excess) for place in range(len(pairs))]
    upper, lower = np.max([one.upper for one in every], axis=0), np.max([one.lower for one in every], axis=0)
    assert np.all(lower * (1 - 1e-9) <= found.upper)
    assert np.all(found.lower <= upper * (1 + 1e-9))
    assert np.all(found.upper - found.lower <= 2 * _little(upper))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-5, 0.3])
def test_laws_above_pairs_are_made_where_some_orders_show_their_use(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all orders of a sample if they rule out pairs at a few of them, which are 5 of 33."""
    rows = 1 + 10 * np.eye(20) + noise * np.random.default_rng(1).uniform(size=(20, 20))
    pairs, orders = TablePairs(rows / rows.sum(axis=1, keepdims=True)), list[int]()
    of_pairs = Majorants.of

    def counted(some: Pairs, ranked: np.ndarray, few: np.ndarray) -> Majorants:
        orders.append(few.size)
        return of_pairs(some, ranked, few)

    monkeypatch.setattr(Majorants, "of", counted)
    worst = WorstPair(pairs=pairs, reports=100, smoothing=_SMOOTHING, listed=lambda _: None)
    worst.largest(np.expm1(np.linspace(0.0, 1.0, 100)))
    assert orders
    assert (sum(orders) < 20) == (noise > 0.1)
