"""Gaussian noise on numbers: the blanket's bound against all values, few shuffled reports, and attacks."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import scipy

from shuffle_ledger.accounting import (
    Accountant,
    InvalidParameter,
    LocalGaussian,
    ShuffledRound,
    attack_delta,
    attack_epsilon,
    fits,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.accounting.amplification.cut_profiles import CutProfile
from shuffle_ledger.accounting.amplification.decomposition import Decomposition
from shuffle_ledger.accounting.pld.gaussian import gaussian_divergence_at
from shuffle_ledger.accounting.randomizers.local_gaussian import _CUTS, _cut_off
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from shuffle_ledger.accounting.verification.second_method import round_delta
from tests.accounting.datasets import worst
from tests.accounting.test_bounded_noise import excess_above

VALUES = np.linspace(0.0, 1.0, 11)


def noisy(sigma: float, reports: int, **changes: object) -> ShuffledRound:
    return ShuffledRound(randomizer=LocalGaussian(sigma=sigma), reports=reports, **changes)  # type: ignore[arg-type]


def cells(mu: float, ends: np.ndarray) -> np.ndarray:
    """Probabilities of cells of reports in deviations, one row for each value, from the nearer tail."""
    t = ends - mu * VALUES[:, None]
    left, right = np.diff(scipy.special.ndtr(t), axis=1), -np.diff(scipy.special.ndtr(-t), axis=1)
    found: np.ndarray = np.where(t[:, :-1] < 0, left, right)
    return found


@pytest.mark.parametrize("cut", _CUTS)
@pytest.mark.parametrize("mu", [0.05, 1.0])
def test_no_pair_of_values_gains_more(mu: float, cut: float) -> None:
    """Cells of reports with what the densities of the ends hide: the mean of the components of each cell."""
    ends = np.concatenate([[-np.inf], np.linspace(-5, mu + 5, 801), [np.inf]])
    masses = cells(mu, ends)
    hidden = np.minimum(masses[0], masses[-1])
    both = _cut_off(LocalGaussian(sigma=1 / mu), cut)[1].brackets[0]
    thresholds = np.concatenate([-np.geomspace(1e4, 1e-3, 40), [0.0], np.geomspace(1e-3, 1e6, 60)])
    rest = float(scipy.special.erf(mu / math.sqrt(8)))
    for order in (1.0, 1 + 0.1 * mu, math.exp(mu)):
        above, below = (excess_above(one, order, thresholds) for one in both)
        assert np.all(below <= above * (1 + 1e-9) + 1e-12)
        reached = 0.0
        for x0, x1 in itertools.product(range(len(VALUES)), repeat=2):
            law = Decomposition(masses[x0], masses[x1], hidden, rest=rest)
            found = excess_above(law, order, thresholds)
            assert np.all(found <= above * (1 + 1e-9) + 1e-12)
            reached = max(reached, float(found[40] / above[40]))
        assert reached > 0.85  # of the bound on one report


def test_one_report_has_the_divergence_of_the_noise_as_a_lower_bound() -> None:
    accountant = Accountant()
    for mu, epsilon in itertools.product((0.1, 0.4, 1.0), (0.1, 1.0, 4.0)):
        exact = gaussian_divergence_at(mu, epsilon)
        bound = accountant.certify_delta({noisy(1 / mu, 1): 1}, epsilon=epsilon).delta_upper
        attack = attack_delta(noisy(1 / mu, 1), epsilon=epsilon)
        assert attack is not None
        assert attack <= exact[1]
        assert exact[0] <= bound
        # The bound for an interval is larger next to the middle, and cells are wide where reports are rare.
        assert bound <= 1.5 * gaussian_divergence_at(mu, 0.97 * epsilon)[1] + 1e-44


@pytest.mark.parametrize(("reports", "inner"), [(2, 61), pytest.param(3, 25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mu", [0.4, 1.0])
def test_few_shuffled_reports_reveal_no_more(mu: float, reports: int, inner: int) -> None:
    rows = cells(mu, np.concatenate([[-np.inf], np.linspace(-3, mu + 3, inner), [np.inf]]))
    accountant = Accountant()
    shuffled = noisy(1 / mu, reports)
    epsilons = [0.2 * mu, mu]
    found = worst(rows[[0, 4, 10]], reports, np.exp(epsilons).tolist())
    for epsilon, most in zip(epsilons, found.tolist(), strict=True):
        bound = accountant.certify_delta({shuffled: 1}, epsilon=epsilon).delta_upper
        assert 0.55 * bound < most <= bound
        attack = attack_delta(shuffled, epsilon=epsilon)
        assert attack is not None
        assert 0.9 * most < attack <= bound


@pytest.mark.parametrize(
    ("sigma", "reports", "epsilon", "attack"),
    [
        (4.0, 1000, 0.0293, 0.0266),
        pytest.param(2.0, 1000, 0.0704, 0.0592, marks=pytest.mark.slow),
    ],
)
def test_the_numbers_of_the_documentation(sigma: float, reports: int, epsilon: float, attack: float) -> None:
    found = Accountant().certify({noisy(sigma, reports): 1}, delta=1e-6)
    assert found.epsilon_upper == pytest.approx(epsilon, abs=6e-5)
    assert found.epsilon_upper <= found.epsilon_lower * (1 + (2e-3 if sigma > 1 else 0.05))
    assert attack_epsilon(noisy(sigma, reports), delta=1e-6) == pytest.approx(attack, abs=6e-5)


@pytest.mark.slow
def test_a_second_method_finds_the_same_delta() -> None:
    accountant = Accountant()
    for sigma, reports, epsilon in ((4.0, 1000, 0.02), (2.0, 1000, 0.05)):
        found = accountant.certify_delta({noisy(sigma, reports): 1}, epsilon=epsilon)
        second = round_delta(noisy(sigma, reports), epsilon)
        assert second is not None
        assert second == pytest.approx(found.delta_upper, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.25, 1.0])
def test_every_cut_bounds_the_same_profile(mu: float) -> None:
    profile = LocalGaussian(sigma=1 / mu).profile("blanket", participation=1.0, smoothing=0.01, outcomes=0)
    assert isinstance(profile, CutProfile)
    excess = np.expm1(mu * np.array([0.0, 0.01, 0.1, 1.0, 4.0]))
    for honest in (3, 500):
        found = [cut.profile.bounds(honest, excess) for cut in profile._cuts]
        chosen = profile.bounds(honest, excess)
        for one, other in itertools.product([*found, chosen], repeat=2):
            assert np.all(one.lower <= other.upper)
        # The chosen bounds are about as close as those of any cut, each of which has other cells.
        assert np.all(chosen.upper <= 1.2 * np.min([one.upper for one in found], axis=0) + 4e-51)


@pytest.mark.parametrize(
    ("changes", "epsilons"),
    [
        ({"participation": 0.3, "honest_fraction": 0.5}, [0.002, 0.02]),
        ({"sampled_from": 20_000}, [0.0, 0.001]),
    ],
)
def test_no_attack_exceeds_the_bound_of_other_rounds(
    changes: dict[str, float], epsilons: list[float]
) -> None:
    described = noisy(2.0, 1000, **changes)
    found = RoundProfile(described, smoothing=0.03)(np.expm1(epsilons))
    for epsilon, bound in zip(epsilons, found.upper, strict=True):
        attack = attack_delta(described, epsilon=epsilon)
        assert attack is not None
        assert 0.5 * bound < attack <= bound


def test_a_number_is_recorded_as_what_it_is() -> None:
    written = "local_gaussian(sigma=4)"
    noise = parse_randomizer(written)
    assert isinstance(noise, LocalGaussian)
    assert (noise.delta0, noise.epsilon0, noise.describe()) == (
        None,
        math.inf,
        "local_gaussian(sigma=4, sensitivity=1)",
    )
    assert parse_randomizer(noise.to_mapping()) == noise == parse_randomizer(noise.describe())
    described = noisy(4.0, 5000, honest_fraction=0.9)
    assert (described.randomizer, described.delta0, described.slack) == (noise, 0.0, 0.0)
    assert described.analysis == "blanket"
    assert ShuffledRound.from_mapping(described.to_mapping()) == described
    assert ShuffledRound.from_mapping(described.asked_mapping()) == described
    assert fits(described, slot_for(described))


def test_what_fits_is_more_noise_for_the_length_of_the_interval() -> None:
    slot = noisy(4.0, 5000)
    for sigma, sensitivity, expected in (
        (5, 1, True),
        (3, 1, False),
        (8, 2, True),
        (3, 0.5, True),
        (7, 2, False),
    ):
        noise = LocalGaussian(sigma=sigma, sensitivity=sensitivity)
        assert fits(ShuffledRound(randomizer=noise, reports=5000), slot) == expected
    pair = ShuffledRound(randomizer=LocalGaussian(sigma=5, delta0=1e-10), reports=5000)
    assert not fits(pair, slot)
    assert not fits(noisy(5.0, 5000), pair)


def test_what_needs_a_local_delta_is_refused_without_one() -> None:
    for changes, message in (
        ({"delta0": 1e-9}, "names a delta0, or needs none"),
        ({"analysis": "clone"}, "one of blanket"),
        ({"analysis": "clone-identical"}, "one of blanket"),
        ({"sampled_from": 5000, "honest_fraction": 0.5}, "or state a delta0"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            noisy(4.0, 1000, **changes)
    with pytest.raises(InvalidParameter, match="parts"):
        parse_randomizer("joint(krr(k=3, epsilon0=1), local_gaussian(sigma=4))")


def test_a_round_of_vectors_does_not_get_the_bound_of_a_number() -> None:
    """With a delta0, as vectors need it, no other description of the round leads to the blanket."""
    described = ShuffledRound(randomizer=LocalGaussian(sigma=4, delta0=1e-10), reports=1000)
    again = ShuffledRound.from_mapping(described.asked_mapping())
    for one in (described, again, ShuffledRound.from_mapping(described.to_mapping())):
        assert (one.randomizer.kind, one.delta0, one.analysis) == ("generic", 1e-10, "clone-identical")
    with pytest.raises(InvalidParameter, match="one of clone"):
        ShuffledRound(randomizer=LocalGaussian(sigma=4, delta0=1e-10), reports=1000, analysis="blanket")
    assert LocalGaussian(sigma=4).condition == "each report is one number, not a vector"
    assert LocalGaussian(sigma=4, delta0=1e-10).condition == ""
    with pytest.raises(InvalidParameter, match="at least the sensitivity, 2, or a delta0"):
        LocalGaussian(sigma=1.9, sensitivity=2)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "reports"), [(1.0, 10), (2.0, 10**9)])
@pytest.mark.usefixtures("computed_anew")
def test_the_work_is_bounded(sigma: float, reports: int) -> None:
    """At most 10 s of processor, and twice that on a busy machine."""
    begin = time.process_time()
    found = Accountant().certify({noisy(sigma, reports): 1}, delta=1e-9)
    assert time.process_time() - begin < 20
    assert found.epsilon_upper <= 1.1 * found.epsilon_lower
    attack = attack_epsilon(noisy(sigma, reports), delta=1e-9)
    assert attack is not None
    assert attack <= found.epsilon_upper < math.inf
