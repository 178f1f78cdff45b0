"""Compositions are certified as closely as asked, where something once kept their pairs apart."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.accounting.pld.composition import Composition
from tests.accounting.alike import alike


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
@pytest.mark.parametrize("delta", [1e-9])
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
