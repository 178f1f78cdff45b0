"""How devices interact decides which bound holds: sequential rounds have the published pair alone."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    calibrate,
    fits,
    slot_for,
)
from shuffle_ledger.accounting.verification.second_method import round_delta

GENERIC = "generic(epsilon0=1)"


def made(randomizer: Any = GENERIC, reports: int = 10_000, **fields: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=randomizer, reports=reports, **fields)


@pytest.fixture(scope="module")
def accountant() -> Accountant:
    return Accountant()


@pytest.mark.parametrize(
    ("fields", "interaction", "analysis", "epsilon"),
    [
        ({}, "sequential", "clone", 0.0530055),
        ({"interaction": "identical"}, "identical", "tight", 0.0432064),
        ({"analysis": "tight"}, "identical", "tight", 0.0432064),
        ({"analysis": "clone"}, "sequential", "clone", 0.0530055),
        ({"analysis": "clone", "interaction": "identical"}, "identical", "clone", 0.0530055),
        (
            {"randomizer": "krr(k=4, epsilon0=1)", "interaction": "sequential"},
            "sequential",
            "clone",
            0.0530055,
        ),
        (
            {"randomizer": "joint(generic(epsilon0=0.25), krr(k=2, epsilon0=0.75))"},
            "sequential",
            "clone",
            0.0530055,
        ),
        # Silence is no credit where devices depend on each other, and a hundredth of the population is one.
        ({"participation": 0.1}, "sequential", "clone", 0.0530055),
        ({"participation": 0.1, "interaction": "identical"}, "identical", "clone", 0.015284),
        ({"reports": 20_000, "honest_fraction": 0.5}, "sequential", "clone", 0.0530055),
    ],
)
def test_what_a_round_costs_is_decided_by_its_interaction(
    accountant: Accountant, fields: dict[str, Any], interaction: str, analysis: str, epsilon: float
) -> None:
    shuffled = made(**fields)
    assert (shuffled.interaction, shuffled.analysis) == (interaction, analysis)
    found = accountant.certify({shuffled: 1}, delta=1e-6)
    assert found.epsilon_upper == pytest.approx(epsilon, rel=1e-4)
    second = round_delta(shuffled, epsilon=found.epsilon_upper)
    assert second == pytest.approx(1e-6, rel=1e-2)


def test_what_is_declared_by_name_is_identical_unless_it_says_otherwise() -> None:
    for call in (
        "krr(k=4, epsilon0=1)",
        "declared(epsilon=1)",
        "binomial_sum()",
        "joint(oue(epsilon0=1), laplace(epsilon0=1))",
    ):
        shuffled = made(call, 100)
        assert shuffled.interaction == "identical"
        assert shuffled == made(call, 100, interaction="identical")


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"interaction": "sequential", "analysis": "tight"}, "analysis", "clone for sequential rounds"),
        (
            {"randomizer": "krr(k=4, epsilon0=1)", "interaction": "sequential", "analysis": "blanket"},
            "analysis",
            "clone",
        ),
        (
            {
                "randomizer": "krr(k=4, epsilon0=1)",
                "interaction": "sequential",
                "analysis": "strong-adversary",
            },
            "analysis",
            "clone",
        ),
        (
            {"randomizer": "declared(epsilon=1)", "interaction": "sequential"},
            "interaction",
            "identical for this declared",
        ),
        (
            {"randomizer": "binomial_sum()", "interaction": "sequential"},
            "interaction",
            "identical for this binomial_sum",
        ),
        (
            {"randomizer": "uniformity_tester(noise=1)", "interaction": "sequential"},
            "interaction",
            "identical",
        ),
        ({"randomizer": "distinct_elements(p=0.1)", "interaction": "sequential"}, "interaction", "identical"),
        (
            {"randomizer": "table([[1, 0], [0.5, 0.5]])", "interaction": "sequential"},
            "interaction",
            "every single report",
        ),
        (
            {"randomizer": "joint(generic(epsilon0=20), generic(epsilon0=20))"},
            "interaction",
            "from 1e-09 to 30",
        ),
        ({"interaction": "both"}, "interaction", "identical or sequential"),
        ({"interaction": ""}, "interaction", "identical or sequential"),
        ({"interaction": 1}, "interaction", "identical or sequential"),
    ],
)
def test_combinations_without_a_bound_are_refused(fields: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        made(**fields)
    assert caught.value.field == field
    assert reason in str(caught.value)


def test_a_sequential_round_fits_no_identical_slot() -> None:
    sequential, identical = made(), made(interaction="identical")
    assert not fits(sequential, identical)
    assert not fits(sequential, made(analysis="clone", interaction="identical"))
    assert not fits(made(analysis="clone", interaction="sequential"), made("krr(k=2, epsilon0=1)"))
    assert not fits(sequential, before(analysis="tight"))
    assert not fits(sequential, before(analysis="clone"))
    # The other way round the slot's pair is that of every randomizer.
    assert fits(identical, sequential)
    assert fits(before(analysis="tight"), sequential)
    assert fits(made("krr(k=3, epsilon0=1)", 12_000), sequential)
    assert fits(before(analysis="tight"), identical)
    assert not fits(made("krr(k=3, epsilon0=1.1)"), sequential)
    assert not fits(made("krr(k=3, epsilon0=1)", 9_000), sequential)
    assert not fits(made("declared(epsilon=0.001)"), sequential)
    assert not fits(made("binomial_sum()"), sequential)


def before(**fields: Any) -> ShuffledRound:
    """A round as it was read from what was written before rounds declared their interaction."""
    mapping = made(**{"analysis": "clone", **fields, "interaction": "undeclared"}).to_mapping()
    assert "interaction" not in mapping
    return ShuffledRound.from_mapping(json.loads(json.dumps(mapping)))


@pytest.mark.slow
def test_a_fitting_round_costs_no_more_than_its_slot(accountant: Accountant) -> None:
    slot = made()
    cost = accountant.certify({slot: 1}, delta=1e-6).epsilon_upper
    for described in (
        made(interaction="identical"),
        made("krr(k=3, epsilon0=1)"),
        made("laplace(epsilon0=1)", 11_000),
    ):
        assert fits(described, slot)
        assert accountant.certify({described: 1}, delta=1e-6).epsilon_upper < cost


@pytest.mark.parametrize("analysis", ["tight", "clone"])
def test_what_was_written_before_keeps_its_form_and_its_numbers(
    accountant: Accountant, analysis: str
) -> None:
    old = before(analysis=analysis)
    assert old.interaction == "undeclared"
    assert "interaction" not in slot_for(old).to_mapping()
    same = made(analysis=analysis, interaction="identical")
    found = [accountant.certify({one: 3}, delta=1e-6) for one in (old, same)]
    assert found[0] == found[1]
    assert old.interaction_text == "accounted as identical randomizers"


def test_a_form_says_whether_it_was_written_before() -> None:
    whole = made().to_mapping()
    assert whole["interaction"] == "sequential"
    assert ShuffledRound.from_mapping(whole) == made()
    assert ShuffledRound.from_mapping({"randomizer": GENERIC, "reports": 10_000}) == made()
    with pytest.raises(InvalidParameter, match="interaction"):
        ShuffledRound.from_mapping({**whole, "interaction": "undeclared"})


def test_words_mean_what_they_meant_before_unless_they_declare_more() -> None:
    assert made().formerly == before(analysis="tight")
    assert made(interaction="identical").formerly == before(analysis="tight")
    assert made(analysis="clone").formerly == before(analysis="clone")
    assert made(participation=0.5).formerly == before(analysis="clone", participation=0.5)
    assert made(interaction="sequential").formerly is None
    assert before(analysis="tight").formerly == before(analysis="tight")
    asked = made().asked_mapping()
    assert (asked["analysis"], asked["interaction"]) == (None, None)
    again = ShuffledRound.from_mapping(asked)
    assert again == made()
    assert again.formerly == before(analysis="tight")


@pytest.mark.slow
def test_a_sequential_round_is_calibrated_as_one() -> None:
    described = {"randomizer": "krr(k=4)", "reports": 10_000, "interaction": "sequential"}
    found = calibrate(described, epsilon=0.0530056, delta=1e-6, precision=0.05)
    assert found.round.interaction == "sequential"
    assert found.round.randomizer.kind == "generic"
    assert 0.9 < found.epsilon0 <= 1.0001


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
