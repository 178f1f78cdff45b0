"""Sampling and slots: against the mechanism itself, every sample and every report listed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.accounting.errors import InvalidParameter
from shuffle_ledger.accounting.rounds import round_profile
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile
from tests.accounting import exact_sums
from tests.accounting.alike import alike
from tests.accounting.datasets import largest, shuffled


@pytest.mark.slow
@pytest.mark.parametrize(("k", "users", "sample"), [(2, 5, 3), (3, 4, 2), (2, 4, 1)])
@pytest.mark.parametrize("epsilon0", [0.5, 3.0])
def test_no_neighbouring_datasets_tell_more(k: int, users: int, sample: int, epsilon0: float) -> None:
    """Every dataset of the others, both directions, sampled and unsampled: the true divergence stays below
    the bound."""
    weights = np.exp(epsilon0 * np.eye(k))
    table = weights / weights.sum(axis=1, keepdims=True)
    shuffled_round = alike(
        randomizer=parse_randomizer(f"krr(k={k}, epsilon0={epsilon0})"),
        reports=sample,
        sampled_from=users,
    )
    epsilons = [0.0, 0.2 * epsilon0, 0.6 * epsilon0]
    bounds = [Accountant().certify_delta({shuffled_round: 1}, epsilon=one).delta_upper for one in epsilons]
    for others in itertools.combinations_with_replacement(range(k), users - 1):
        laws = []
        for x in range(k):
            samples = itertools.combinations((x, *others), sample)
            laws.append(np.mean([shuffled(table[list(chosen)]) for chosen in samples], axis=0))
        assert np.all(largest(laws, np.exp(epsilons).tolist()) <= np.array(bounds) * (1 + 1e-12))


@pytest.mark.slow
def test_honest_fraction_under_sampling_is_the_hypergeometric_mixture(oracle: Any) -> None:
    """Every number of honest users in the sample, with its own rate: `sum_j Pr[j] s_j H^(j)(1 + (e^eps -
    1)/s_j)`."""
    population, sample, fraction = 20, 8, 0.7
    honest = 14
    shuffled = alike(
        randomizer=parse_randomizer("krr(k=2, epsilon0=1)"),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
        analysis="blanket",
    )
    masses = shuffled.randomizer.analysis("blanket").decomposition.merged()
    for epsilon in (0.0, 0.1, 0.3):
        exact = mp.mpf(0)
        for j in range(max(1, sample - (population - honest)), min(sample, honest) + 1):
            weight = mp.mpf(math.comb(honest, j) * math.comb(population - honest, sample - j))
            weight /= math.comb(population, sample)
            rate = mp.mpf(j) / honest
            inner = mp.log(1 + mp.expm1(mp.mpf(epsilon)) / rate)
            exact += weight * rate * oracle.delta(oracle.blanket_outcomes(masses, j), inner)
        certificate = Accountant().certify_delta({shuffled: 1}, epsilon=epsilon)
        assert certificate.delta_lower <= exact <= certificate.delta_upper
        assert certificate.delta_upper - certificate.delta_lower <= 0.02 * certificate.delta_upper


@pytest.mark.parametrize("seed", range(3))
def test_cells_of_numbers_enclose_the_sum_over_every_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells from single numbers to eleven deviations, few orders and many: each between the bounds, by sums
    over clones."""
    random = np.random.default_rng(seed)
    epsilon0 = float(random.uniform(0.3, 3.0))
    population, sample = 300 + int(random.integers(300)), 40 + int(random.integers(120))
    fraction = round(float(random.uniform(0.2, 0.97)), 3)
    shuffled = alike(
        randomizer=parse_randomizer(f"generic(epsilon0={epsilon0!r})"),
        reports=sample,
        sampled_from=population,
        honest_fraction=fraction,
    )
    honest = math.floor(fraction * population)
    share, e = sample / population, math.exp(epsilon0)
    largest = math.log1p(share * (e - 1))
    epsilons = np.linspace(0.0, largest, 9)[:-1]
    law = stats.hypergeom(population, honest, sample)
    exact = np.zeros(len(epsilons))
    for j in range(1, sample + 1):
        if law.pmf(j) < 1e-18:
            continue
        pair = exact_sums.clones(j, 2 / (1 + e), e / (1 + e))
        rate = j / honest
        found = [pair.delta(math.log1p(math.expm1(epsilon) / rate)) for epsilon in epsilons]
        exact += law.pmf(j) * rate * np.array(found)
    many = np.union1d(epsilons, np.linspace(0.0, largest, 400))
    for cell, smoothing, width in ((11.0, 0.014, 1.0), (0.8, 0.014, 1.0), (1e-3, 0.014, 0.02)):
        monkeypatch.setattr(round_profile, "CELL_DEVIATIONS", cell)
        profile = RoundProfile(shuffled, smoothing=smoothing)
        # At most seven orders are bounded one by one, more of them by chords between them.
        for orders, places in ((epsilons[:3], slice(0, 3)), (many, slice(None))):
            bounds, truth = profile(np.expm1(orders)), exact[places]
            at = np.searchsorted(orders, epsilons[places])
            upper, lower = bounds.upper[at], bounds.lower[at]
            assert np.all(lower <= truth * (1 + 1e-10) + 1e-15)
            assert np.all(truth <= upper * (1 + 1e-10) + 1e-15)
            seen = truth > 1e-12
            assert np.all((upper - lower)[seen] <= width * upper[seen])


def test_sampled_rounds_with_dishonest_users_are_their_own_slot() -> None:
    """At 55 of 56 users with 55 % honest, fewer reports at a higher rate cost less: no ordering holds."""
    shuffled = alike(
        randomizer=parse_randomizer("generic(epsilon0=1)"),
        reports=155,
        sampled_from=157,
        honest_fraction=0.55,
    )
    assert slot_for(shuffled) == shuffled


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("reports", (0, -1, 10**12 + 1, 1.0, float("nan"), float("inf"), "10", True, None)),
        ("sampled_from", (0, 9, -5, 10**12 + 1, 20.0)),
        ("participation", (0, -0.1, 1.1, float("nan"), "x", 1e-320)),
        ("honest_fraction", (0, -1, 1.01, 0.05, float("inf"))),
        ("delta0", (-1e-9, 1, float("nan"))),
        ("analysis", ("clone", "", 3)),
    ],
)
def test_bad_rounds_are_refused_by_field(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        arguments = {"randomizer": parse_randomizer("krr(k=3, epsilon0=1)"), "reports": 10, field: value}
        with pytest.raises(InvalidParameter) as caught:
            ShuffledRound(**arguments)
        assert caught.value.field == field
        assert "expected" in str(caught.value)
