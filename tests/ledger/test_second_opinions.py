"""A mistake in one of two methods does not pass unseen."""

from __future__ import annotations

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.evidence.second_opinions import SecondOpinions


def one_round(reports: int) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=reports)


@pytest.mark.slow
def test_a_loss_of_another_round_is_contradicted() -> None:
    accountant = Accountant()
    opinions = SecondOpinions(accountant)
    assert opinions.on_kind(one_round(1_000)) is None
    assert opinions.confirmed == {one_round(1_000)}
    # A tenth more reports than there are: a tenth of a percent of epsilon is not what it is about.
    accountant.adopt(one_round(2_000), accountant.privacy_loss(one_round(2_200)))
    contradiction = SecondOpinions(accountant).on_kind(one_round(2_000))
    assert contradiction is not None
    assert "by another method" in contradiction


@pytest.mark.parametrize(("factor", "agrees"), [(1.0, True), (0.99, False), (1.01, False)])
def test_a_composition_beside_the_truth_is_contradicted(factor: float, agrees: bool) -> None:
    accountant = Accountant()
    held = {one_round(1_000): 20, one_round(3_000): 5}
    certificate = accountant.certify(held, delta=1e-7)
    computed = (certificate.epsilon_lower * factor, certificate.epsilon_upper * factor)
    opinion = SecondOpinions(accountant).on_composition(held, delta=1e-7, computed=computed)
    assert opinion is not None
    assert opinion.agrees == agrees
    assert opinion.epsilon_lower <= opinion.epsilon_upper
