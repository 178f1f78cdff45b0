"""Tests of the slot rule: a slot is its own slot, dominates its rounds, and is at most 1 % coarser."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import (
    RANDOMIZERS,
    InvalidParameter,
    ShuffledRound,
    fits,
    parse_randomizer,
    place,
    slot_for,
)
from shuffle_ledger.accounting.rounds.round_profile import RoundProfile

WRITTEN = [
    "generic(epsilon0=1.5)",
    "krr(k=10, epsilon0=1.15)",
    "blh(epsilon0=2)",
    "rappor(epsilon0=2)",
    "oue(epsilon0=2)",
    "hadamard(epsilon0=1)",
    "olh(epsilon0=1, g=4)",
    "subset(epsilon0=1, domain=9)",
    "block_hadamard(epsilon0=3, domain=9)",
    "bloom_rappor(epsilon0=1)",
    "cms(epsilon0=1)",
    "hcms(epsilon0=1)",
    "laplace(epsilon0=1)",
    "bounded_laplace(epsilon0=1)",
    "duchi(epsilon0=1)",
    "piecewise(epsilon0=1)",
    "local_gaussian(sigma=2)",
    "local_gaussian(sigma=2, delta0=1e-12)",
    "table([[0.75, 0.25], [0.3, 0.7]])",
    "declared(epsilon=0.1, delta=1e-9)",
    "gaussian(sigma=4)",
    "discrete_gaussian(sigma=4)",
    "central_laplace(scale=2)",
    "privacy_loss(losses=[0, 1], masses=[0.9, 0.1])",
    "joint(krr(k=4, epsilon0=1), laplace(epsilon0=0.5))",
    "parallel((0.5, krr(k=4, epsilon0=1)), (0.5, krr(k=4, epsilon0=0.5)))",
    "binomial_sum(p=0.3)",
    "binomial_histogram(p=0.3)",
    "uniformity_tester(noise=0.2)",
    "distinct_elements(p=0.01)",
]
COUNTS = st.one_of(st.integers(1, 400), st.integers(1, 10**6), st.integers(1, 10**12))
SHARES = st.one_of(st.just(1.0), st.floats(1e-6, 1.0), st.sampled_from([0.5, 0.8, 0.1, 0.995, 1 / 3]))


@st.composite
def rounds(draw: st.DrawFn) -> ShuffledRound:
    """A round of any randomizer, with or without sampling, participation, honest users and local delta."""
    reports = draw(COUNTS)
    fields: dict[str, object] = {"honest_fraction": draw(SHARES)}
    match draw(st.sampled_from(["all", "sample", "coin"])):
        case "sample":
            fields["sampled_from"] = draw(st.one_of(COUNTS, st.integers(reports, 3 * reports)))
        case "coin":
            fields["participation"] = draw(SHARES)
    if draw(st.booleans()):
        fields["delta0"], fields["analysis"] = 1e-12, "clone"
    try:
        randomizer = parse_randomizer(draw(st.sampled_from(WRITTEN)))
        return ShuffledRound(randomizer=randomizer, reports=reports, **fields)  # type: ignore[arg-type]
    except InvalidParameter:
        assume(False)
        raise


def test_every_randomizer_is_among_them() -> None:
    assert {parse_randomizer(one).kind for one in WRITTEN} == set(RANDOMIZERS)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(rounds())
def test_a_slot_is_its_own_slot_and_hardly_coarser(shuffled: ShuffledRound) -> None:
    slot = slot_for(shuffled)
    assert slot_for(slot) == slot
    assert fits(slot, slot)
    assert place([slot], 0, slot) == 0
    # Slack grows with the number of reports: the slot's is the smaller one, and bounds the larger round too.
    assert fits(shuffled, slot)
    assert place([slot], 0, shuffled) == 0
    if slot.randomizer.minimum_honest == 0 and slot.sampled_from is None:
        return  # what is declared does not depend on numbers
    ratio, room = Fraction(101, 100), Fraction(10**12 + 1, 10**12)
    assert slot.honest_fraction == shuffled.honest_fraction
    assert (slot.honest_reports + 1) * ratio * room >= shuffled.honest_reports + 1
    if shuffled.participation is not None:
        assert slot.participation is not None
        assert Fraction(slot.participation) <= Fraction(shuffled.participation) * ratio * room
    if shuffled.sampled_from is not None:
        assert slot.sampled_from is not None
        at_rate = slot.reports * shuffled.sampled_from // shuffled.reports
        assert slot.sampled_from <= at_rate
        assert (slot.sampled_from + 1) * ratio * room >= at_rate + 1


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ("krr(k=4, epsilon0=1)", {"participation": 0.5}),
        ("krr(k=4, epsilon0=1)", {"sampled_from": 40_007}),
        ("krr(k=4, epsilon0=1)", {"honest_fraction": 0.013}),
        ("generic(epsilon0=2)", {"participation": 0.03, "honest_fraction": 0.7}),
        ("distinct_elements(p=0.01)", {"honest_fraction": 0.01}),
        ("distinct_elements(p=0.01)", {"sampled_from": 7_001}),
    ],
)
def test_a_slot_is_never_better_than_its_round(written: str, fields: dict[str, float]) -> None:
    excess = np.expm1([0.0, 0.01, 0.05, 0.2, 0.6])
    for reports in (307, 1_234, 1_777):
        shuffled = ShuffledRound(randomizer=parse_randomizer(written), reports=reports, **fields)  # type: ignore[arg-type]
        slot = slot_for(shuffled)
        inside, outside = (RoundProfile(one, smoothing=2e-3)(excess) for one in (shuffled, slot))
        assert np.all(inside.lower <= outside.upper)


def test_few_honest_users_do_not_become_fewer() -> None:
    """Three of 300 at 1 %: of 298 reports two would be honest."""
    shuffled = ShuffledRound(
        randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=399, honest_fraction=0.01
    )
    assert slot_for(shuffled).honest_reports == shuffled.honest_reports == 3
    assert slot_for(shuffled).reports == 300
    assert slot_for(dataclasses.replace(shuffled, reports=300)).honest_reports == 3
