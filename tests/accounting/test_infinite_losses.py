"""Outcomes that one value cannot make: losses that are infinite for certain, at any epsilon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, Table, attack_epsilon, parse_randomizer
from shuffle_ledger.accounting.amplification.blanket.gain_laws import ListedPairs
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.amplification.worst_pair.table_rows import TablePairs
from shuffle_ledger.accounting.numeric.effort import counted
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting.datasets import shuffled, worst

Rows = list[list[Fraction]]

ROWS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=3)


def _rows(weights: list[list[int]]) -> Rows:
    """Rows of probabilities; a row of nothing is uniform."""
    filled = [row if any(row) else [1, 1, 1] for row in weights]
    return [[Fraction(one, sum(row)) for one in row] for row in filled]


def _table(rows: Rows) -> Table:
    return Table(rows=tuple(tuple(map(float, row)) for row in rows))


def _revealing(rows: Rows, users: int) -> Iterator[float]:
    """Masses of multisets that one of two values cannot make, all others holding one value."""
    table = np.array(rows, dtype=np.float64)
    for other in table:
        laws = [shuffled([row] + [other] * (users - 1)) for row in table]
        for p, q in itertools.permutations(laws, 2):
            yield float(p[q == 0].sum())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(ROWS, st.integers(1, 3))
@example([[2, 3, 0], [0, 2, 1], [1, 0, 1]], 2)  # all triples of inputs have infinite losses
def test_who_is_ruled_out_more_often_than_delta_has_no_epsilon(weights: list[list[int]], users: int) -> None:
    rows = _rows(weights)
    described, exact = ShuffledRound(randomizer=_table(rows), reports=users), max(_revealing(rows, users))
    for share, certain in ((0.99, True), (1.001, False)):
        if 0 < (delta := exact * share) < 1:
            found = attack_epsilon(described, delta=delta)
            assert found is not None
            assert math.isinf(found) == certain


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=4, max_size=5), st.integers(1, 2)
)
@example([[7, 3, 0], [3, 4, 3], [2, 3, 5], [3, 3, 4]], 2)
def test_tables_of_many_inputs_with_impossible_outputs_are_bounded(
    weights: list[list[int]], users: int
) -> None:
    """With more than eight pairs, all share tilts; at large orders these suit none of the pairs."""
    rows = _rows(weights)
    described, accountant = ShuffledRound(randomizer=_table(rows), reports=users), Accountant()
    epsilons = (0.5, 3.0)
    truths = worst(np.array(rows, dtype=np.float64), users, np.exp(epsilons).tolist())
    for epsilon, truth in zip(epsilons, truths.tolist(), strict=True):
        assert accountant.certify_delta({described: 1}, epsilon=epsilon).delta_upper >= truth * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("computed_anew")
def test_an_impossible_output_that_is_likely_needs_no_search_of_a_worst_pair() -> None:
    """The mass at infinite loss alone is above delta: the same answer as from the loss, without sums."""
    rows = np.random.default_rng(1).dirichlet(np.full(12, 3.0), 10)
    rows[1:, 0] = 0
    one = ShuffledRound(randomizer=_table((rows / rows.sum(axis=1, keepdims=True)).tolist()), reports=1000)
    other = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=1)"), reports=1000)
    searched, accountant = Accountant(), Accountant()
    with counted() as search:
        loss = searched.privacy_loss(one)
    assert loss.lower.infinity > 0.01
    for rounds in ({one: 1}, {one: 3}, {one: 1, other: 5}):
        with counted() as effort:
            found = accountant.certify(rounds, delta=1e-3)
        assert effort.spent < search.spent / 10
        assert found == searched.certify(rounds, delta=1e-3)
        assert found.epsilon_lower == math.inf
    assert not accountant.knows(one)
    above = 1 - (1 - loss.upper.infinity) ** 3 + 1e-6
    assert searched.certify({one: 3}, delta=above) == accountant.certify({one: 3}, delta=above)


@pytest.mark.parametrize(
    ("written", "reports", "delta"),
    [("binomial_sum(p=0.9, bits=2)", 100, 7e-10), ("binomial_sum(p=0.9, bits=1)", 50, 5e-3)],
)
def test_noise_that_is_exhausted_is_seen_by_the_attacker(written: str, reports: int, delta: float) -> None:
    """All flips of all users are ones with probability `p^(bits reports)`: the count is then the largest."""
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=reports)
    found = attack_epsilon(shuffled, delta=delta)
    assert found == math.inf
    certificate = Accountant().certify({shuffled: 1}, delta=delta)
    assert certificate.epsilon_lower == certificate.epsilon_upper == math.inf
    assert certificate.precise
    assert certificate.error.truncation == certificate.error.discretization == 0
    more = attack_epsilon(shuffled, delta=delta * 1.1)
    assert more is not None
    assert math.isfinite(more)


@pytest.mark.parametrize("reports", [1, 3, 60])
def test_others_may_make_what_one_value_cannot(reports: int) -> None:
    """Nothing gives the value away once one of them makes an output that either value could make."""
    a, b, c = np.array([0.3, 0.2, 0.5]), np.array([0.0, 0.6, 0.4]), np.array([0.25, 0.5, 0.15])
    exact = 0.3 * (1 - 0.65) ** (reports - 1)
    found = ListedPairs([Decomposition(a, b, c)]).infinity(reports)[0]
    assert found <= exact
    assert found >= exact * (1 - 1e-9)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(1, 200), st.integers(1, 20))
def test_infinite_losses_are_counted_in_full(weights: list[list[int]], reports: int, rounds: int) -> None:
    """Outputs that are unhidden and possible under one of two values only: at an epsilon beyond all other
    losses only they contribute, whatever the number of reports."""
    rows = _rows(weights)
    alone = [
        sum((a for a, b, *_ in zip(rows[x0], rows[x1], strict=True) if b == 0), Fraction(0))
        for x0, x1 in itertools.permutations(range(len(rows)), 2)
    ]
    exact = 1 - (1 - float(max(alone))) ** rounds
    shuffled = ShuffledRound(randomizer=_table(rows), reports=reports)
    found = Accountant().certify_delta({shuffled: rounds}, epsilon=50.0 * rounds)
    assert found.delta_lower <= exact * (1 + 1e-12)
    assert found.delta_upper >= exact * (1 - 1e-12)
    if exact > 0:
        assert found.delta_upper - found.delta_lower <= 1e-5 * exact
        assert found.precise


def test_a_sample_reveals_whom_it_has_as_often_as_it_has_him() -> None:
    shuffled = ShuffledRound(
        randomizer=parse_randomizer("table([[0,1],[0.5,0.5]])"),
        reports=100,
        sampled_from=1000,
        honest_fraction=0.9,
    )
    found = Accountant().certify_delta({shuffled: 1}, epsilon=3.0)
    assert found.delta_lower <= 0.05 <= found.delta_upper <= found.delta_lower * (1 + 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3), (4, 6)])
def test_what_is_impossible_is_the_profile_at_the_end(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(sum(shape))
    for _ in range(8):
        rows = draw.gamma(1.0, size=shape) * (draw.uniform(size=shape) < 0.8) + 1e-9
        rows[rows <= 1e-9] = 0.0
        rows[:, 0] += 0.1
        table = _table((rows / rows.sum(axis=1, keepdims=True)).tolist())
        for reports in (1, 2, 50):
            profile = RoundProfile(ShuffledRound(randomizer=table, reports=reports), smoothing=1e-2)
            last = profile(np.array([math.expm1(200.0)]))
            assert profile.infinity <= last.upper[0]
            assert last.upper[0] - profile.infinity <= 1e-5 * last.upper[0]
        pairs = TablePairs(np.array(table.rows))
        listed = ListedPairs(list(pairs))
        np.testing.assert_allclose(pairs.infinity(7), listed.infinity(7), rtol=1e-9)


@pytest.mark.parametrize("epsilon", [5.0, 26.0, 45.0])
def test_hardly_any_infinite_mass_is_not_lost_beside_large_orders(epsilon: float) -> None:
    """Components without b are rounded relative to themselves, not to the order times nothing."""
    randomizer = Table(rows=((1e-9, 0.5 - 1e-9, 0.5), (0.0, 0.3, 0.7)))
    found = Accountant().certify_delta({ShuffledRound(randomizer=randomizer, reports=10): 1}, epsilon=epsilon)
    assert found.delta_lower <= 1e-9 <= found.delta_upper
    assert found.delta_upper - found.delta_lower <= 1e-5 * found.delta_upper
