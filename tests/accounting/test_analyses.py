"""The analysis says which rounds a bound holds for: `clone` in any secret order, others for one
randomizer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    fits,
)
from shuffle_ledger.accounting.verification.second_method import round_delta

GENERIC = "generic(epsilon0=1)"


def made(randomizer: Any = GENERIC, reports: int = 10_000, **fields: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=randomizer, reports=reports, **fields)


@pytest.fixture(scope="module")
def accountant() -> Accountant:
    return Accountant()


@pytest.mark.parametrize(
    ("fields", "analysis", "epsilon"),
    [
        ({}, "clone", 0.0530055),
        ({"analysis": "clone"}, "clone", 0.0530055),
        ({"analysis": "tight"}, "tight", 0.0432064),
        ({"analysis": "clone-identical"}, "clone-identical", 0.0530055),
        ({"randomizer": "joint(generic(epsilon0=0.25), krr(k=2, epsilon0=0.75))"}, "clone", 0.0530055),
        (
            {"randomizer": "joint(generic(epsilon0=0.25), krr(k=2, epsilon0=0.75))", "analysis": "tight"},
            "tight",
            0.0432064,
        ),
        # Silence is no credit where devices depend on each other, and a hundredth of the population is one.
        ({"participation": 0.1}, "clone", 0.0530055),
        ({"participation": 0.1, "analysis": "clone-identical"}, "clone-identical", 0.015284),
        ({"reports": 20_000, "honest_fraction": 0.5}, "clone", 0.0530055),
    ],
)
def test_what_a_round_costs_is_decided_by_its_analysis(
    accountant: Accountant, fields: dict[str, Any], analysis: str, epsilon: float
) -> None:
    shuffled = made(**fields)
    assert shuffled.analysis == analysis
    found = accountant.certify({shuffled: 1}, delta=1e-6)
    assert found.epsilon_upper == pytest.approx(epsilon, rel=1e-4)
    second = round_delta(shuffled, epsilon=found.epsilon_upper)
    assert second is None or second == pytest.approx(1e-6, rel=1e-2)


@pytest.mark.parametrize("participation", [None, 0.3])
@pytest.mark.parametrize("written", [GENERIC, "joint(generic(epsilon0=0.5), generic(epsilon0=0.5))"])
def test_the_default_is_the_bound_that_asks_for_nothing(
    accountant: Accountant, written: str, participation: float | None
) -> None:
    """No other analysis of the same words charges more."""
    default = made(written, 2_000, participation=participation)
    cost = accountant.certify({default: 1}, delta=1e-6).epsilon_upper
    names = ("clone-identical",) if participation else ("tight", "clone-identical")
    for name in names:
        other = made(written, 2_000, participation=participation, analysis=name)
        assert accountant.certify({other: 1}, delta=1e-6).epsilon_upper <= cost * (1 + 2e-3)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"randomizer": "krr(k=4, epsilon0=1)", "analysis": "clone"},
            r"one of blanket, strong-adversary for krr; generic\(epsilon0=E\) stands for any randomizer",
        ),
        ({"randomizer": "krr(k=4, epsilon0=1)", "analysis": "clone-identical"}, "one of blanket"),
        ({"randomizer": "declared(epsilon=1)", "analysis": "clone"}, "one of declared"),
        ({"randomizer": "binomial_sum()", "analysis": "clone"}, "one of exact"),
        ({"analysis": "blanket"}, "one of clone, tight, clone-identical"),
        ({"analysis": ["clone"]}, "one of clone, tight, clone-identical"),
        ({"analysis": "tight", "participation": 0.5}, "one of clone, clone-identical"),
        ({"analysis": "tight", "delta0": 1e-12}, "one of clone, clone-identical"),
        ({"randomizer": "joint(generic(epsilon0=20), generic(epsilon0=20))"}, "from 1e-09 to 30"),
        (
            {
                "randomizer": "joint(generic(epsilon0=1), table([[1, 0], [0.5, 0.5]]))",
            },
            "every single report",
        ),
    ],
)
def test_an_analysis_without_a_bound_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        made(**fields)
    assert caught.value.field == "analysis"


def test_a_round_of_any_order_fits_no_slot_of_one_randomizer() -> None:
    any_order, tight = made(), made(analysis="tight")
    identical = made(analysis="clone-identical")
    assert not fits(any_order, tight)
    assert not fits(any_order, identical)
    assert not fits(any_order, made("krr(k=2, epsilon0=1)"))
    # The other way round the slot's pair is that of every randomizer.
    assert fits(tight, any_order)
    assert fits(identical, any_order)
    assert fits(made("krr(k=3, epsilon0=1)", 12_000), any_order)
    assert not fits(made("krr(k=3, epsilon0=1.1)"), any_order)
    assert not fits(made("krr(k=3, epsilon0=1)", 9_000), any_order)
    assert not fits(made("declared(epsilon=0.001)"), any_order)
    assert not fits(made("binomial_sum()"), any_order)
    # A coin is credit to one randomizer on all devices alone.
    assert not fits(made(participation=0.1), made(participation=0.1, analysis="clone-identical"))


def test_noise_is_one_randomizer_unless_it_says_otherwise() -> None:
    noise = "local_gaussian(sigma=4, delta0=1e-14)"
    assert made(noise).analysis == "clone-identical"
    any_order = made(noise, participation=0.5, analysis="clone")
    assert any_order.analysis == "clone"
    assert any_order.coin is None
    assert not fits(any_order, made(noise, participation=0.5))


def test_a_form_reads_back_equal() -> None:
    for described in (made(), made(analysis="tight"), made(participation=0.5, analysis="clone-identical")):
        assert ShuffledRound.from_mapping(described.to_mapping()) == described
        assert ShuffledRound.from_mapping(described.asked_mapping()) == described
    assert made().asked_mapping()["analysis"] is None
    with pytest.raises(InvalidParameter, match="only the fields"):
        ShuffledRound.from_mapping({**made().to_mapping(), "interaction": "identical"})


def adversary(draw: np.random.Generator, e: float, devices: int) -> Any:
    """Laws of what each device sends, by earlier messages: of the user's two values, and of every other."""
    laws: dict[tuple[int, ...], np.ndarray] = {}

    def law(messages: tuple[int, ...]) -> np.ndarray:
        if messages not in laws:
            labels = draw.permutation(3)
            values = [0, 1, *draw.choice([0, 1, 2, 2, 2], size=devices - 1)]
            table = np.ones((devices + 1, 3))
            for row, value in enumerate(values):
                table[row, labels[value]] = e
            laws[messages] = table / (e + 2)
        return laws[messages]

    return law


@pytest.mark.parametrize(("devices", "games"), [(2, 150), (3, 60)])
@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
def test_games_in_a_secret_order_reveal_no_more_than_is_said(
    accountant: Accountant, epsilon0: float, devices: int, games: int
) -> None:
    draw, e = np.random.default_rng(7), math.exp(epsilon0)
    epsilons = [0.0, 0.3 * epsilon0, 0.6 * epsilon0]
    shuffled = made(f"generic(epsilon0={epsilon0})", devices)
    said = [accountant.certify_delta({shuffled: 1}, epsilon=one).delta_upper for one in epsilons]
    orders = list(itertools.permutations(range(devices)))
    closest = 0.0
    for _ in range(games):
        law = adversary(draw, e, devices)
        laws = np.zeros((2, 3**devices))
        for place, sent in enumerate(itertools.product(range(3), repeat=devices)):
            for order in orders:
                for value in (0, 1):
                    rows = [value if user == 0 else user + 1 for user in order]
                    laws[value, place] += math.prod(
                        law(sent[:step])[row, sent[step]] for step, row in enumerate(rows)
                    ) / len(orders)
        for epsilon, bound in zip(epsilons, said, strict=True):
            for one, other in (laws, laws[::-1]):
                revealed = np.maximum(one - math.exp(epsilon) * other, 0).sum()
                assert revealed <= bound * (1 + 1e-9)
                closest = max(closest, revealed / bound)
    assert closest > 0.6, "games without power test nothing"
