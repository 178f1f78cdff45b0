"""Compositions of tables are certified as closely as asked, where something once kept their pairs apart."""

from __future__ import annotations

import numpy as np
import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, Table, parse_randomizer
from shuffle_ledger.accounting.pld.composition import Composition
from tests.accounting.alike import alike


def table(inputs: int, outputs: int, shape: float, seed: int) -> Table:
    """Rows of a Dirichlet law with this parameter."""
    weights = np.random.default_rng(seed).gamma(shape, size=(inputs, outputs)) + 1e-300
    rows = weights / weights.sum(axis=1, keepdims=True)
    return Table(rows=tuple(tuple(row) for row in rows.tolist()))


def gaussian(outputs: int, deviation: float) -> Table:
    """A bit with Gaussian noise, reported on a grid."""
    reports = np.linspace(-2.0, 3.0, outputs)
    weights = np.exp(-(((reports - np.array([[0.0], [1.0]])) / deviation) ** 2) / 2)
    return Table(rows=tuple(map(tuple, (weights / weights.sum(axis=1, keepdims=True)).tolist())))


CASES = {
    "cells that count at tilts of a narrow range": [
        (table(8, 32, 3.0, 703344118), 110, 2, 4.76e-17),
        (table(16, 4, 0.5, 519143155), 39_594, 2, 9.06e-21),
    ],
    "far losses that no delta sees": [
        (table(2, 64, 0.5, 820935504), 2_587_176, 2, 5.06e-30),
        (table(3, 64, 0.5, 1067578153), 3_983_620, 3, 1.33e-29),
    ],
    "sums that hardly vary": [(table(10, 2, 0.3, 448896408), 96_250_939, 355, 6.39e-25)],
    "a grid whose outcomes are listed": [(gaussian(1000, 1.0), reports, 1, 1e-6) for reports in (1, 2)],
    "bounds of single orders that are far apart": [(table(3, 100, 0.3, 712472807), 55, 5991, 1e-10)],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_certificates_are_as_narrow_as_asked(case: str) -> None:
    for randomizer, reports, rounds, delta in CASES[case]:
        shuffled = alike(randomizer=randomizer, reports=reports)
        found = Accountant().certify({shuffled: rounds}, delta=delta)
        assert found.precise
        assert 0 < found.epsilon_upper - found.epsilon_lower <= 1e-3 * found.epsilon_upper


def sampled(randomizer: str, reports: int, population: int | None = None) -> ShuffledRound:
    return alike(
        randomizer=parse_randomizer(randomizer),
        reports=reports,
        sampled_from=population,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "delta"),
    [
        (
            {
                sampled("oue(epsilon0=1.773)", 352_123): 75,
                sampled("generic(epsilon0=7.787)", 189_708, 2_266_562): 3274,
            },
            1e-30,
        ),
        (
            {
                sampled("blh(epsilon0=4.574)", 4222, 12_807): 125,
                sampled("oue(epsilon0=0.376)", 128_515): 178,
                sampled("generic(epsilon0=0.562)", 683): 679,
                sampled("generic(epsilon0=0.558)", 65_797_595): 107,
            },
            1e-30,
        ),
    ],
)
def test_rounds_that_may_reveal_much_do_not_hide_what_others_reveal(
    rounds: dict[ShuffledRound, int], delta: float
) -> None:
    """Tilted to such an epsilon, a loss that next to no round has comes several times: tails fade slowly."""
    found = Accountant().certify(rounds, delta=delta)
    assert found.precise
    assert 0 < found.epsilon_upper - found.epsilon_lower <= 1e-3 * found.epsilon_upper


HARDLY = alike(
    randomizer=parse_randomizer("krr(k=4, epsilon0=1.14e-5)"),
    reports=10,
    participation=0.1,
)
HEAVY = sampled("table([[0.5,0.3,0.2],[0.2,0.5,0.3],[0.1,0.1,0.8]])", 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "delta"),
    [
        ({HARDLY: 100_000, HEAVY: 100}, 1.17e-27),
        (
            {
                sampled("krr(k=10, epsilon0=5.292)", 2): 10_000,
                sampled("generic(epsilon0=3.976)", 10**9): 10**5,
            },
            4e-26,
        ),
    ],
)
def test_rounds_that_hardly_tell_anything_do_not_hide_what_others_tell(
    rounds: dict[ShuffledRound, int], delta: float
) -> None:
    """No lattice suits losses of 1e-6 and of 2; and what the small ones add is next to nothing."""
    accountant = Accountant()
    found = accountant.certify(rounds, delta=delta)
    assert found.precise
    assert 0 < found.epsilon_upper - found.epsilon_lower <= 1e-3 * found.epsilon_upper
    # Deltas of the same compositions, which no sum of epsilons decides, contain the one that was asked for.
    back = accountant.certify_delta(rounds, epsilon=found.epsilon_upper)
    assert back.delta_lower <= delta
    back = accountant.certify_delta(rounds, epsilon=found.epsilon_lower)
    assert back.delta_upper >= delta * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-2, 1e-9, 1e-30])
def test_a_single_round_needs_no_contour(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own pairs and profile say all; contours of losses that one round in a million has take seconds."""
    shuffled = alike(
        randomizer=parse_randomizer("krr(k=10, epsilon0=1e-6)"),
        reports=120,
        analysis="strong-adversary",
    )

    def refused(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Composition, "delta", refused)
    for one in (shuffled, sampled("krr(k=10, epsilon0=2)", 1000), sampled("oue(epsilon0=1)", 50, 400), HEAVY):
        assert Accountant().certify({one: 1}, delta=delta).precise


@pytest.mark.slow
@pytest.mark.parametrize("delta", [5e-324, 1e-310, 1e-299])
def test_no_delta_is_too_small_to_be_shared(delta: float) -> None:
    found = Accountant().certify({HARDLY: 100_000, HEAVY: 100}, delta=delta)
    assert 0 <= found.epsilon_lower <= found.epsilon_upper


def test_contours_that_lead_to_each_other_end_the_search_and_not_the_precision() -> None:
    """Between two tilts the search went back and forth, and kept the worse one: no lower bound was left."""
    kind = alike(
        randomizer=parse_randomizer("generic(epsilon0=4)"),
        reports=1_000,
        sampled_from=100_000,
    )
    found = Accountant(precision=4e-3).certify({kind: 1_005}, delta=5e-10)
    assert 0.99 * found.epsilon_upper < found.epsilon_lower <= found.epsilon_upper
