"""Declared privacy loss distributions: profiles and compositions, listed, and never a smaller epsilon."""

from __future__ import annotations

import math
import sys
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
    parse_randomizer,
    to_dp_accounting,
)
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

Atoms = tuple[list[float], list[float], float]


def divergence(atoms: Atoms, epsilon: float) -> mp.mpf:
    losses, masses, infinity = atoms
    gains = [
        mp.mpf(p) * -mp.expm1(mp.mpf(epsilon) - mp.mpf(x))
        for x, p in zip(losses, masses, strict=True)
        if x > epsilon
    ]
    return mp.mpf(infinity) + mp.fsum(gains)


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


def test_an_export_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=500)
    with pytest.raises(AccountingError, match="pip install dp-accounting"):
        to_dp_accounting(shuffled)
    with pytest.raises(InvalidParameter, match="a number from 1e-09 to 1"):
        to_dp_accounting(shuffled, discretization=0)
