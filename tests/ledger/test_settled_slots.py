"""A settlement keeps the accounted round if it covers the truth, and else charges the truth's slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import ShuffledRound, fits, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions.descriptions import with_reports
from shuffle_ledger.ledger.policies.base import accounted_again

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


def charged(declared: ShuffledRound, reports: int) -> ShuffledRound:
    return accounted_again(slot_for(declared), with_reports(declared, reports))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(declared_rounds(), COUNTS)
def test_a_settlement_rounds_once(declared: ShuffledRound, reports: int) -> None:
    accounted = slot_for(declared)
    assert charged(declared, declared.reports) == accounted
    settled, truth = charged(declared, reports), with_reports(declared, reports)
    assert settled in (accounted, slot_for(truth))
    assert slot_for(settled) == settled
    assert settled.reports <= reports
    assert settled == accounted or fits(truth, settled)
    if accounted.reports <= reports <= declared.reports:
        assert settled == accounted


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
    fewer, enough = (accounted_again(accounted, with_reports(corrected, reports)) for reports in (700, 1_800))
    assert fewer == slot_for(with_reports(corrected, 700))
    assert enough == accounted
