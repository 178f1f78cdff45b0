"""Declared privacy loss distributions, and conversions from and to dp-accounting: never a smaller epsilon.

A stand-in has the attributes of dp-accounting that are read, so that any content can be tried.
`test_dp_accounting.py` tries the real library.
"""

from __future__ import annotations

import itertools
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    Accountant,
    AccountingError,
    InvalidParameter,
    PrivacyLoss,
    ShuffledRound,
    from_dp_accounting,
    parse_randomizer,
    rounds_of_dp_event,
    to_dp_accounting,
)
from shuffle_ledger.accounting.randomizers.privacy_loss import MAXIMUM_LOSSES
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

Atoms = tuple[list[float], list[float], float]


@dataclass
class Dense:
    """What `DensePLDPmf` of dp-accounting holds."""

    _discretization: float
    _lower_loss: int
    _probs: Any
    _infinity_mass: float
    _pessimistic_estimate: bool = True

    def to_dense_pmf(self) -> Dense:
        return self


class Loss:
    """What `PrivacyLossDistribution` of dp-accounting holds and how it is made."""

    def __init__(self, remove: Dense, add: Dense | None = None) -> None:
        self._pmf_remove, self._symmetric = remove, add is None
        self._pmf_add = add or remove

    @classmethod
    def create_from_rounded_probability(
        cls,
        masses: Mapping[int, float],
        infinity: float,
        spacing: float,
        pessimistic_estimate: bool = True,
    ) -> Loss:
        low = min(masses)
        dense = [masses.get(place, 0.0) for place in range(low, max(masses) + 1)]
        return cls(Dense(spacing, low, np.array(dense), infinity, pessimistic_estimate))

    def divergence(self, epsilon: float) -> mp.mpf:
        """Return the larger hockey-stick divergence of both directions, from the definition."""
        each = [(pmf._lower_loss, pmf) for pmf in (self._pmf_remove, self._pmf_add)]
        atoms = [
            (
                [(low + place) * pmf._discretization for place in range(len(pmf._probs))],
                list(pmf._probs),
                pmf._infinity_mass,
            )
            for low, pmf in each
        ]
        return max(divergence(one, epsilon) for one in atoms)


def divergence(atoms: Atoms, epsilon: float) -> mp.mpf:
    losses, masses, infinity = atoms
    gains = [
        mp.mpf(p) * -mp.expm1(mp.mpf(epsilon) - mp.mpf(x))
        for x, p in zip(losses, masses, strict=True)
        if x > epsilon
    ]
    return mp.mpf(infinity) + mp.fsum(gains)


def gaussian_loss(mu: float, spacing: float, *, symmetric: bool = True) -> Loss:
    """Return the loss of N(mu, 1) against N(0, 1), rounded up to a grid by mpmath."""
    reach = math.ceil(12 * mu / spacing)
    places = list(range(-reach, reach + 1))

    def below(place: int, scale: float) -> mp.mpf:
        return mp.ncdf((place * mp.mpf(spacing) - mp.mpf(mu * scale) ** 2 / 2) / (mu * scale))

    def rounded(scale: float) -> Dense:
        cumulated = [mp.mpf(0), *(below(place, scale) for place in places)]
        masses = [float(here - there) for there, here in itertools.pairwise(cumulated)]
        return Dense(spacing, places[0], np.array(masses), float(1 - cumulated[-1]))

    return Loss(rounded(1.0), None if symmetric else rounded(1.3))


def profile(randomizer: Any, losses: list[float]) -> Any:
    return RoundProfile(ShuffledRound(randomizer=randomizer, reports=1), smoothing=2e-3)(np.expm1(losses))


@st.composite
def atoms(draw: st.DrawFn) -> Atoms:
    """Yield losses that are those of two distributions P and Q, by way of their masses."""
    size = draw(st.integers(2, 6))
    weights = st.lists(st.integers(1, 1000), min_size=size, max_size=size)
    p, q = np.array(draw(weights), dtype=float), np.array(draw(weights), dtype=float)
    infinity = draw(st.sampled_from([0.0, 1e-6, 0.05]))
    p, q = p / p.sum() * (1 - infinity), q / q.sum()
    found: dict[float, float] = {}
    for one, other in zip(p.tolist(), q.tolist(), strict=True):
        loss = math.log(one / other)
        found[loss] = min(found.get(loss, 0.0) + one, 1.0)  # all of them together may round to more
    return sorted(found), [found[loss] for loss in sorted(found)], infinity


@given(first=atoms(), second=st.none() | atoms())
@settings(max_examples=60, deadline=None)
def test_the_profile_is_at_least_the_sum_over_the_losses(first: Atoms, second: Atoms | None) -> None:
    randomizer = PrivacyLoss(
        losses=tuple(first[0]),
        masses=tuple(first[1]),
        infinity=first[2],
        reverse=second,  # type: ignore[arg-type]  # lists, as JSON has them
    )
    orders = [0.0, *(abs(x) for x in first[0]), *(abs(x) * 0.7 for x in first[0]), 9.0]
    bounds = profile(randomizer, orders)
    both = [first] if second is None else [first, second]
    variation = max(divergence(one, 0.0) for one in both)
    for epsilon, upper, lower in zip(orders, bounds.upper, bounds.lower, strict=True):
        exact = max(divergence(one, epsilon) for one in both)
        lifted = max(exact, variation - (1 - variation) * mp.expm1(epsilon) / 2)
        assert upper >= exact * (1 - mp.mpf("1e-12"))
        assert lower <= lifted * (1 + mp.mpf("1e-11")) + mp.mpf("1e-15")
        assert upper - lower <= 1e-9


@pytest.mark.parametrize(
    ("losses", "masses"),
    [
        ([0.7, 4.9], [0.9999998995652079, 4.34802148107161e-10]),
        ([0.1, 1.2, 4.0], [0.9934962799067261, 1.2210357269520666e-05, 0.006491509736004338]),
        ([0.0, 0.5], [0.7, 0.3]),  # as floats these lack 6e-17
        ([0.0, 0.5], [0.75, 0.25]),
    ],
)
def test_what_is_missing_is_summed_exactly(losses: list[float], masses: list[float]) -> None:
    missing = 1 - sum(map(Fraction, masses), Fraction(0))
    bounds = profile(PrivacyLoss(losses=tuple(losses), masses=tuple(masses)), [20.0])
    lower, upper = (Fraction(float(one[0])) for one in (bounds.lower, bounds.upper))
    assert lower <= missing <= upper <= missing * (1 + Fraction(1, 10**11))


def test_missing_mass_is_infinite_loss() -> None:
    randomizer = parse_randomizer("privacy_loss(losses=[0, 1], masses=[0.75, 0.125])")
    bounds = profile(randomizer, [0.0, 2.0])
    assert bounds.upper[1] >= 0.125
    assert bounds.lower[1] == pytest.approx(0.125, rel=1e-12)
    answer = Accountant().certify({ShuffledRound(randomizer=randomizer, reports=1): 1}, delta=0.1)
    assert answer.epsilon_upper == math.inf


@pytest.mark.slow
@given(atoms())
@settings(max_examples=5, deadline=None)
def test_the_composition_is_at_least_that_of_all_pairs_of_losses(one: Atoms) -> None:
    losses, masses, infinity = one
    # Both directions are declared: one that did not dominate the other would be no declaration of this pair.
    ratios = [p * math.exp(-x) for x, p in zip(losses, masses, strict=True)]
    other = ([-x for x in losses[::-1]], ratios[::-1], max(0.0, 1.0 - math.fsum(ratios)))
    randomizer = PrivacyLoss(
        losses=tuple(losses),
        masses=tuple(masses),
        infinity=infinity,
        reverse=other,  # type: ignore[arg-type]  # likewise
    )
    twice: Atoms = (
        [x + y for x in losses for y in losses],
        [p * q for p in masses for q in masses],
        infinity * (2 - infinity),
    )
    shuffled = ShuffledRound(randomizer=randomizer, reports=1)
    found = Accountant().certify_delta({shuffled: 2}, epsilon=0.5)
    assert found.delta_upper >= divergence(twice, 0.5) * (1 - mp.mpf("1e-12"))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"losses": [1, 0], "masses": [0.5, 0.5]}, "ascending numbers from -120 to 120"),
        ({"losses": [0, 121], "masses": [0.5, 0.5]}, "ascending numbers from -120 to 120"),
        ({"losses": [0, 0], "masses": [0.5, 0.5]}, "ascending numbers from -120 to 120"),
        ({"losses": [0], "masses": [0.5, 0.5]}, "as many masses as losses, 1"),
        ({"losses": [], "masses": []}, "1 to 10000 numbers"),
        ({"losses": [0.0] * 10_001, "masses": [0.0]}, "1 to 10000 numbers"),
        ({"losses": [0, 1], "masses": [0.9, -0.1]}, "probabilities"),
        ({"losses": [0, 1], "masses": [0.9, math.nan]}, "a number"),
        ({"losses": [0, 1], "masses": [0.9, 0.2]}, "masses whose sum, with infinity, is at most 1"),
        ({"losses": [0], "masses": [0.9], "infinity": 0.2}, "masses whose sum, with infinity, is at most 1"),
        # Masses that no Q has: with only negative losses the release would seem perfectly private.
        ({"losses": [-5], "masses": [1]}, "masses for which the sum of mass * exp(-loss) is at most 1"),
        ({"losses": [60], "masses": [1]}, "a total variation below 1"),
        ({"losses": [0], "masses": [1], "reverse": [[0], [1]]}, "[losses, masses, infinity] of the other"),
        ({"losses": [0], "masses": [1], "reverse": [[0], [2], 0]}, "probabilities"),
        ({"losses": "x", "masses": [1]}, "1 to 10000 numbers"),
    ],
)
def test_what_is_no_distribution_is_refused(parameters: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_randomizer({"kind": "privacy_loss", **parameters})
    assert expected in caught.value.expected


def test_the_description_names_the_content() -> None:
    many = {"losses": [k / 10 for k in range(20)], "masses": [0.05] * 20}
    other = {**many, "masses": [0.05] * 19 + [0.049]}
    first, second = (parse_randomizer({"kind": "privacy_loss", **one}) for one in (many, other))
    assert first != second
    assert "sha256" in first.describe()
    assert first.describe() != second.describe()
    assert parse_randomizer(first.to_mapping()) == first
    few = parse_randomizer("privacy_loss(losses=[0, 1], masses=[0.9, 0.1], reverse=[[0, 1], [0.9, 0.1], 0])")
    assert parse_randomizer(few.describe()) == few


@pytest.mark.parametrize(("spacing", "symmetric"), [(0.05, True), (0.05, False)])
def test_an_imported_distribution_keeps_its_upper_side(spacing: float, symmetric: bool) -> None:
    source = gaussian_loss(0.5, spacing, symmetric=symmetric)
    taken = from_dp_accounting(source, relation="substitution")
    orders = [0.0, 0.011, 0.3, 0.5, 1.7, 3.0]
    for epsilon, upper in zip(orders, profile(taken, orders).upper, strict=True):
        exact = source.divergence(epsilon)
        assert upper >= exact * (1 - mp.mpf("1e-12"))
        assert upper <= exact * 1.05 + 1e-9


def test_an_import_of_many_losses_is_coarser_and_above() -> None:
    size = 2 * MAXIMUM_LOSSES + 3
    masses = np.full(size, 0.4 / size)
    low = Dense(1e-3, -1, np.append([0.1, 0.5], masses), 0.0)
    beyond = Dense(1.0, 0, np.append([0.4], np.full(129, 1e-3)), 0.1)
    taken = from_dp_accounting(Loss(low), relation="substitution")
    assert len(taken.losses) <= MAXIMUM_LOSSES
    orders = [0.0, 0.5, 3.3333, 11.0, 19.9]
    for epsilon, upper in zip(orders, profile(taken, orders).upper, strict=True):
        losses = np.arange(1, size + 1) * 1e-3
        exact = math.fsum(0.4 / size * -np.expm1(epsilon - losses[losses > epsilon]))
        assert exact * (1 - 1e-10) <= upper <= exact + 1e-3
    infinity = from_dp_accounting(Loss(beyond), relation="substitution").directions[0].infinity
    assert infinity >= 0.1 + 9e-3


def test_imports_that_are_no_upper_bounds_are_refused() -> None:
    source = gaussian_loss(0.5, 0.1)
    with pytest.raises(InvalidParameter, match="substitution: compute the distribution for datasets"):
        from_dp_accounting(source, relation="add-remove")
    optimistic = Loss.create_from_rounded_probability({0: 1.0}, 0.0, 0.1, pessimistic_estimate=False)
    with pytest.raises(InvalidParameter, match="pessimistic estimates, which are upper bounds"):
        from_dp_accounting(optimistic, relation="substitution")
    with pytest.raises(InvalidParameter, match="a privacy loss distribution of dp-accounting"):
        from_dp_accounting({"losses": []}, relation="substitution")


@pytest.mark.parametrize(
    ("masses", "infinity"), [([], 1.0), ([0.0], 1.0), ([0.0, 1.0], 0.0), ([0.0, 0.5], 0.5)]
)
@pytest.mark.parametrize("symmetric", [True, False])
def test_an_import_that_reveals_everything_is_refused_as_such(
    masses: list[float], infinity: float, symmetric: bool
) -> None:
    """Losses beyond 120 count as infinite; without any finite loss there is no dense form to read."""

    class Sparse(Dense):
        def to_dense_pmf(self) -> Dense:
            return Dense(self._discretization, min(range(len(self._probs))), self._probs, self._infinity_mass)

    revealing = Sparse(121.0, 0, np.array(masses), infinity)
    harmless = Dense(121.0, 0, np.array([1.0]), 0.0)
    source = Loss(revealing) if symmetric else Loss(harmless, revealing)
    with pytest.raises(InvalidParameter) as caught:
        from_dp_accounting(source, relation="substitution")
    assert str(caught.value) == (
        "pld: got 'a release that certainly reveals everything', expected a probability below 1 of losses"
        " that are infinite or above 120"
    )


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where dp-accounting would be."""
    inner = types.SimpleNamespace(PrivacyLossDistribution=Loss)
    package, pld = types.ModuleType("dp_accounting"), types.ModuleType("dp_accounting.pld")
    pld.privacy_loss_distribution = inner  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "dp_accounting", package)
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", pld)


@pytest.mark.parametrize("written", ["krr(k=4, epsilon0=1)", "gaussian(sigma=3)", "declared(epsilon=0.4)"])
@pytest.mark.usefixtures("library")
def test_an_exported_round_keeps_its_upper_side(written: str) -> None:
    shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=500)
    accountant = Accountant()
    made = to_dp_accounting(shuffled, accountant=accountant, discretization=0.01)
    for epsilon in (0.0, 0.05, 0.2, 0.39, 1.0):
        known = accountant.certify_delta({shuffled: 1}, epsilon=epsilon)
        assert made.divergence(epsilon) >= known.delta_lower
        assert made.divergence(epsilon) <= 1.2 * known.delta_upper + 5e-3
    back = from_dp_accounting(made, relation="substitution")
    found = accountant.certify({ShuffledRound(randomizer=back, reports=1): 1}, delta=1e-6)
    assert found.epsilon_upper >= accountant.certify({shuffled: 1}, delta=1e-6).epsilon_lower


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_several_reports_of_a_user_are_exported_as_several_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []

    def self_compose(loss: Loss, times: int) -> Loss:
        composed.append((float(loss.divergence(0.2)), times))
        return loss

    monkeypatch.setattr(Loss, "self_compose", self_compose, raising=False)
    randomizer, accountant = parse_randomizer("krr(k=4, epsilon0=1)"), Accountant()
    single = ShuffledRound(randomizer=randomizer, reports=250)
    several = ShuffledRound(randomizer=randomizer, reports=500, reports_per_user=2)
    made = to_dp_accounting(single, accountant=accountant)
    assert not composed
    to_dp_accounting(several, accountant=accountant)
    assert composed == [(float(made.divergence(0.2)), 2)]


def test_an_export_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=500)
    with pytest.raises(AccountingError, match="pip install dp-accounting"):
        to_dp_accounting(shuffled)
    with pytest.raises(InvalidParameter, match="a number from 1e-09 to 1"):
        to_dp_accounting(shuffled, discretization=0)


def event(kind: str, **fields: Any) -> Any:
    """Return a stand-in for an event of dp-accounting."""
    return type(kind, (), fields)()


@pytest.mark.parametrize(
    ("relation", "expected"),
    [
        (
            "add-remove",
            {
                "gaussian(sigma=3, relation='add-remove')": 12,
                "central_laplace(scale=2, relation='add-remove')": 2,
                "declared(rho=0.1, relation='add-remove')": 2,
            },
        ),
        (
            "substitution",
            {
                "gaussian(sigma=3, sensitivity=2)": 12,
                "central_laplace(scale=2, sensitivity=2)": 2,
                "declared(rho=0.1)": 2,
            },
        ),
    ],
)
def test_events_become_releases(relation: str, expected: dict[str, int]) -> None:
    gaussian, laplace = (
        event("GaussianDpEvent", noise_multiplier=3.0),
        event("LaplaceDpEvent", noise_multiplier=2.0),
    )
    many = event("SelfComposedDpEvent", event=gaussian, count=5)
    nothing = event("SelfComposedDpEvent", event=laplace, count=0)
    concentrated = event("ZCDpEvent", rho=0.1, xi=0.0)
    whole = event(
        "ComposedDpEvent", events=[many, gaussian, laplace, nothing, concentrated, event("NoOpDpEvent")]
    )
    twice = event("SelfComposedDpEvent", event=whole, count=2)
    found = {
        shuffled.randomizer.describe(): count
        for shuffled, count in rounds_of_dp_event(twice, relation=relation).items()
    }
    assert found == {parse_randomizer(text).describe(): count for text, count in expected.items()}


@pytest.mark.parametrize(
    ("unsupported", "expected"),
    [
        (event("PoissonSampledDpEvent", sampling_probability=0.1, event=None), "one of GaussianDpEvent"),
        (event("NonPrivateDpEvent"), "one of GaussianDpEvent"),
        (event("ZCDpEvent", rho=0.1, xi=0.5), "0"),
        (event("GaussianDpEvent", noise_multiplier=0), "a number"),
        (event("SelfComposedDpEvent", event=event("NoOpDpEvent"), count=-1), "a whole number from 0"),
        (
            event(
                "SelfComposedDpEvent", event=event("GaussianDpEvent", noise_multiplier=3.0), count=10**7 + 1
            ),
            "a whole number from 0",
        ),
    ],
)
def test_events_that_are_not_read_exactly_are_refused(unsupported: Any, expected: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        rounds_of_dp_event(unsupported, relation="substitution")
    assert expected in caught.value.expected


def test_events_are_limited_in_depth() -> None:
    inner = event("GaussianDpEvent", noise_multiplier=3.0)
    for _ in range(40):
        inner = event("ComposedDpEvent", events=[inner])
    with pytest.raises(InvalidParameter, match="at most 32 events inside one another"):
        rounds_of_dp_event(inner, relation="substitution")
