"""A settlement keeps the accounted round if it covers the truth, and else charges the truth's slot."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import NUMERICAL_POLICY, ShuffledRound, fits, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions.settled_rounds import really_shuffled
from shuffle_ledger.ledger.decisions.truths import truth_of

BEFORE = "shuffle-ledger-numerics-21"
KRR = parse_randomizer("krr(k=4, epsilon0=1)")
COUNTS = st.one_of(st.integers(1, 500), st.integers(1, 10**7))


@st.composite
def declared_rounds(draw: st.DrawFn) -> ShuffledRound:
    """A round of every sampling form."""
    reports = draw(COUNTS)
    fields: dict[str, float] = draw(
        st.sampled_from(
            [
                {},
                {"sampled_from": draw(st.integers(reports, 20 * reports))},
                {"participation": draw(st.floats(0.001, 1.0))},
            ]
        )
    )
    return ShuffledRound(randomizer=KRR, reports=reports, **fields)  # type: ignore[arg-type]


def charged(declared: ShuffledRound, reports: int, *, policy: str = NUMERICAL_POLICY) -> ShuffledRound:
    accounted = slot_for(declared, numerical_policy=policy)
    return really_shuffled(accounted, declared, reports, numerical_policy=policy)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(declared_rounds(), COUNTS)
def test_a_settlement_rounds_once(declared: ShuffledRound, reports: int) -> None:
    accounted = slot_for(declared)
    assert charged(declared, declared.reports) == accounted
    settled, truth = charged(declared, reports), truth_of(declared, reports)
    assert settled in (accounted, slot_for(truth))
    assert slot_for(settled) == settled
    assert settled.reports <= reports
    assert settled == accounted or fits(truth, settled)
    if accounted.reports <= reports <= declared.reports:
        assert settled == accounted


@pytest.mark.parametrize(
    "fields", [{"participation": 0.5}, {"sampled_from": 100_000}, {"sampled_from": 12_345}]
)
def test_a_round_that_was_accounted_by_an_older_rule_stays_what_it_was(fields: dict[str, float]) -> None:
    """Settled as declared: the numbers in the entry that admitted it stay, whichever rule made them."""
    declared = ShuffledRound(randomizer=KRR, reports=10_000, **fields)  # type: ignore[arg-type]
    older = slot_for(declared, numerical_policy=BEFORE)
    assert really_shuffled(older, declared, 10_000, numerical_policy=NUMERICAL_POLICY) == older
    fewer = really_shuffled(older, declared, 5_000, numerical_policy=NUMERICAL_POLICY)
    assert fewer == slot_for(truth_of(declared, 5_000))


@pytest.mark.parametrize("participation", [None, 0.5])
def test_a_charge_that_a_correction_left_covers_the_honest_reports_that_arrived(
    participation: float | None,
) -> None:
    """Of 700 reports 210 are honest: a charge for 537 honest ones stayed, for it is of 597 reports."""
    declared, corrected = (
        ShuffledRound(
            randomizer=KRR, reports=reports, honest_fraction=honest_fraction, participation=participation
        )
        for reports, honest_fraction in ((600, 0.9), (2_000, 0.3))
    )
    accounted = slot_for(declared)
    assert fits(corrected, accounted), "so the correction changes no charge"
    fewer, enough = (
        really_shuffled(accounted, corrected, reports, numerical_policy=NUMERICAL_POLICY)
        for reports in (700, 1_800)
    )
    assert fewer == slot_for(truth_of(corrected, 700))
    assert enough == accounted


def test_older_settlements_made_the_slot_of_a_slot() -> None:
    declared = ShuffledRound(randomizer=KRR, reports=10_000, participation=0.5)
    first = slot_for(declared, numerical_policy=BEFORE)
    second = slot_for(dataclasses.replace(first, reports=5_000), numerical_policy=BEFORE)
    assert charged(declared, 5_000, policy=BEFORE) == second
    assert (second.participation or 0) > 0.508
    assert charged(declared, 5_000).participation == first.participation
