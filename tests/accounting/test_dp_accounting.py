"""The real dp-accounting: its distributions and events are read, and ours compose with its own."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import norm

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    ShuffledRound,
    from_dp_accounting,
    parse_randomizer,
    rounds_of_dp_event,
    to_dp_accounting,
)
from shuffle_ledger.accounting.randomizers.privacy_loss import MAXIMUM_LOSSES
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

DELTA = 1e-6
SPACING = 1e-3


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """Return the divergence of the Gaussian mechanism with sensitivity 1, by its closed form."""
    half, shift = 0.5 / sigma, epsilon * sigma
    return float(norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift))


def test_its_distribution_becomes_a_round_with_at_least_its_epsilon() -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=SPACING)
    release = ShuffledRound(randomizer=from_dp_accounting(theirs, relation="substitution"), reports=1)
    found = Accountant().certify({release: 1}, delta=DELTA)
    assert gaussian_delta(found.epsilon_upper, 2.0) <= DELTA
    assert found.epsilon_upper <= theirs.get_epsilon_for_delta(DELTA) * (1 + 1e-6) + SPACING


@pytest.mark.parametrize(("sigma", "count"), [(1.0, 1), (5.0, 10)])
def test_its_distributions_whose_masses_sum_to_more_than_one_are_read(sigma: float, count: int) -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(sigma).self_compose(count)
    assert math.fsum(theirs._pmf_remove.to_dense_pmf()._probs.tolist()) > 1 + 1e-9
    release = ShuffledRound(randomizer=from_dp_accounting(theirs, relation="substitution"), reports=1)
    accountant = Accountant()
    for delta in (1e-3, DELTA, 1e-9):
        found = accountant.certify({release: 1}, delta=delta).epsilon_upper
        assert gaussian_delta(found, sigma / math.sqrt(count)) <= delta
        assert theirs.get_epsilon_for_delta(delta) <= found <= theirs.get_epsilon_for_delta(delta) * 1.001


def test_a_round_composes_with_a_mechanism_that_only_it_knows() -> None:
    accountant = Accountant()
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=2)"), reports=2000)
    ours = to_dp_accounting(shuffled, accountant=accountant, discretization=SPACING)
    randomized = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.3, 0.0), value_discretization_interval=SPACING
    )
    together = ours.self_compose(3).compose(randomized).get_epsilon_for_delta(DELTA)
    pure = ShuffledRound(randomizer=parse_randomizer("declared(epsilon=0.3)"), reports=1)
    known = accountant.certify({shuffled: 3, pure: 1}, delta=DELTA)
    assert known.epsilon_lower <= together <= known.epsilon_upper + 5 * SPACING


@pytest.mark.parametrize(
    "described",
    [
        ShuffledRound(
            randomizer=parse_randomizer("generic(epsilon0=1)"), reports=1000, delta0=1e-9, analysis="clone"
        ),
        ShuffledRound(randomizer=parse_randomizer("local_gaussian(sigma=4, delta0=1e-7)"), reports=300),
        ShuffledRound(randomizer=parse_randomizer("distinct_elements(p=0.01, security=10)"), reports=1000),
        ShuffledRound(randomizer=parse_randomizer("distinct_elements(p=0.01)"), reports=1000),
        ShuffledRound(
            randomizer=parse_randomizer("generic(epsilon0=1)"), reports=10, delta0=0.2, analysis="clone"
        ),
    ],
)
def test_what_a_round_has_beyond_its_pure_version_is_in_the_distribution(described: ShuffledRound) -> None:
    accountant = Accountant()
    ours = to_dp_accounting(described, accountant=accountant, discretization=SPACING)
    least = 1.0  # a delta that holds at an epsilon holds at every larger one; losses are rounded up
    for epsilon in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0):
        known = accountant.certify_delta({described: 1}, epsilon=epsilon)
        before = accountant.certify_delta({described: 1}, epsilon=max(epsilon - SPACING, 0.0))
        least = min(least, before.delta_upper)
        found = ours.get_delta_for_epsilon(epsilon)
        assert min(known.delta_lower, least) * (1 - 1e-6) <= found
        assert found <= max(1.1 * least, 1e-30) + (0.0 if epsilon else SPACING)


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_its_events_become_rounds_in_which_a_record_is_replaced(relation: str) -> None:
    """A noise multiplier is the noise over the norm of one record, and two records count in a replacement."""
    event = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 6),
            dp_accounting.LaplaceDpEvent(10.0),
            dp_accounting.NoOpDpEvent(),
        ]
    )
    rounds = rounds_of_dp_event(event, relation=relation)
    assert sorted(rounds.values()) == [1, 6]
    found = Accountant().certify(rounds, delta=DELTA)
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(
        4.0, sensitivity=2.0, value_discretization_interval=SPACING
    )
    laplace = privacy_loss_distribution.from_laplace_mechanism(
        10.0, sensitivity=2.0, value_discretization_interval=SPACING
    )
    theirs = gaussian.self_compose(6).compose(laplace).get_epsilon_for_delta(DELTA)
    assert found.epsilon_lower <= theirs <= found.epsilon_upper + 1e-2


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_gaussian_events_have_the_closed_form_of_twice_the_norm(relation: str) -> None:
    def nested(one: dp_accounting.DpEvent) -> list[dp_accounting.DpEvent]:
        return [
            dp_accounting.SelfComposedDpEvent(one, 10),
            dp_accounting.ComposedDpEvent([one] * 10),
            dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([one] * 5), 2),
        ]

    for event in nested(dp_accounting.GaussianDpEvent(4.0)):
        rounds = rounds_of_dp_event(event, relation=relation)
        found = Accountant().certify(rounds, delta=DELTA)
        sigma = 4 / (2 * math.sqrt(10))
        right = brentq(lambda epsilon: gaussian_delta(epsilon, sigma) - DELTA, 0, 20)  # noqa: B023 - called here
        assert right == pytest.approx(8.3062, abs=1e-4)
        assert found.epsilon_lower <= right <= found.epsilon_upper


@pytest.mark.parametrize("relation", ["substitution", "add-remove"])
def test_laplace_events_have_the_closed_form_of_twice_the_norm(relation: str) -> None:
    found = Accountant().certify(
        rounds_of_dp_event(dp_accounting.LaplaceDpEvent(0.5), relation=relation), delta=DELTA
    )
    right = 4 + 2 * math.log1p(-DELTA)  # where 1 - exp((epsilon - 4)/2) is delta
    assert found.epsilon_lower <= right <= found.epsilon_upper


def test_zero_concentrated_events_are_for_the_neighbours_that_are_named() -> None:
    event = dp_accounting.ZCDpEvent(0.05)
    for relation, rho in (("substitution", 0.05), ("add-remove", 0.2)):
        found = Accountant().certify(rounds_of_dp_event(event, relation=relation), delta=DELTA)
        # The Gaussian mechanism with this rho is one of the mechanisms that the event may be.
        sigma = 1 / math.sqrt(2 * rho)
        assert gaussian_delta(found.epsilon_upper, sigma) <= DELTA


def test_a_release_on_its_way_there_and_back_loses_no_privacy() -> None:
    accountant = Accountant()
    ((described, count),) = rounds_of_dp_event(
        dp_accounting.GaussianDpEvent(4.0), relation="substitution"
    ).items()
    assert count == 1
    there = to_dp_accounting(described, accountant=accountant, discretization=SPACING)
    back = ShuffledRound(randomizer=from_dp_accounting(there, relation="substitution"), reports=1)
    again = accountant.certify({back: 1}, delta=DELTA).epsilon_upper
    for epsilon in (there.get_epsilon_for_delta(DELTA), again):
        assert gaussian_delta(epsilon, 2.0) <= DELTA


def test_events_that_are_no_central_release_are_refused() -> None:
    with pytest.raises(ValueError, match="a list of events"):
        rounds_of_dp_event(dp_accounting.ComposedDpEvent(5), relation="substitution")
    with pytest.raises(ValueError, match="PoissonSampledDpEvent"):
        rounds_of_dp_event(
            dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)),
            relation="substitution",
        )
    with pytest.raises(ValueError, match="relation"):
        rounds_of_dp_event(dp_accounting.NoOpDpEvent(), relation="replace-special")
    gaussian = dp_accounting.GaussianDpEvent(3.0)
    for event, expected in (
        (dp_accounting.ZCDpEvent(0.1, 0.5), "expected 0"),
        (dp_accounting.GaussianDpEvent(0.0), "a number"),
        (dp_accounting.SelfComposedDpEvent(gaussian, 10**7 + 1), "a whole number from 0"),
    ):
        with pytest.raises(InvalidParameter, match=expected):
            rounds_of_dp_event(event, relation="substitution")
    for _ in range(40):
        gaussian = dp_accounting.ComposedDpEvent([gaussian])
    with pytest.raises(InvalidParameter, match="at most 32 events inside one another"):
        rounds_of_dp_event(gaussian, relation="substitution")


def listed(masses: dict[int, float], infinity: float = 0.0, spacing: float = 0.1, **rest: Any) -> Any:
    """Returns dp-accounting's distribution of these masses at multiples of a spacing."""
    return privacy_loss_distribution.PrivacyLossDistribution.create_from_rounded_probability(
        masses, infinity, spacing, **rest
    )


def test_both_directions_of_an_asymmetric_distribution_are_kept() -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        0.7, sampling_prob=0.3, value_discretization_interval=0.05
    )
    taken = from_dp_accounting(theirs, relation="substitution")
    for epsilon in (0.0, 0.011, 0.3, 1.7, 3.0):
        upper = RoundProfile(ShuffledRound(randomizer=taken, reports=1), smoothing=2e-3)(
            np.expm1([epsilon])
        ).upper[0]
        exact = theirs.get_delta_for_epsilon(epsilon)
        assert exact * (1 - 1e-9) <= upper <= exact * 1.05 + 1e-9


def test_an_import_of_many_losses_is_coarser_and_above() -> None:
    size = 2 * MAXIMUM_LOSSES + 3
    many = listed({-1: 0.1, 0: 0.5, **dict.fromkeys(range(1, size + 1), 0.4 / size)}, spacing=1e-3)
    taken = from_dp_accounting(many, relation="substitution")
    assert len(taken.losses) <= MAXIMUM_LOSSES
    orders, losses = [0.0, 0.5, 3.3333, 19.9], np.arange(1, size + 1) * 1e-3
    found = RoundProfile(ShuffledRound(randomizer=taken, reports=1), smoothing=2e-3)(np.expm1(orders))
    for epsilon, upper in zip(orders, found.upper, strict=True):
        exact = math.fsum(0.4 / size * -np.expm1(epsilon - losses[losses > epsilon]))
        assert exact * (1 - 1e-10) <= upper <= exact + 1e-3
    # Losses beyond 120 count as infinite.
    beyond = listed({0: 0.4, **dict.fromkeys(range(1, 130), 1e-3)}, 0.1, 1.0)
    assert from_dp_accounting(beyond, relation="substitution").directions[0].infinity >= 0.1 + 9e-3


@pytest.mark.parametrize(
    ("theirs", "relation", "expected"),
    [
        (listed({0: 1.0}), "add-remove", "substitution: compute the distribution for datasets"),
        (listed({0: 1.0}, pessimistic_estimate=False), "substitution", "pessimistic estimates, which are"),
        ({"losses": []}, "substitution", "a privacy loss distribution of dp-accounting"),
        (listed({0: 0.0}, 1.0), "substitution", "a probability below 1 of losses that are infinite"),
        (listed({0: 0.0, 1: 1.0}, 0.0, 121.0), "substitution", "a probability below 1 of losses that are"),
    ],
)
def test_imports_that_bound_nothing_are_refused(theirs: Any, relation: str, expected: str) -> None:
    with pytest.raises(InvalidParameter, match=expected):
        from_dp_accounting(theirs, relation=relation)


def test_several_reports_of_a_user_are_exported_as_several_rounds() -> None:
    randomizer, accountant = parse_randomizer("krr(k=4, epsilon0=1)"), Accountant()
    single = ShuffledRound(randomizer=randomizer, reports=250)
    several = ShuffledRound(randomizer=randomizer, reports=500, reports_per_user=2)
    one, both = (
        to_dp_accounting(each, accountant=accountant, discretization=SPACING) for each in (single, several)
    )
    assert both.get_delta_for_epsilon(0.2) == one.self_compose(2).get_delta_for_epsilon(0.2)
    assert one.get_delta_for_epsilon(0.2) < both.get_delta_for_epsilon(0.2)
