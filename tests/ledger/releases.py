"""Times of releases that nothing admitted, as tests attest them."""

from __future__ import annotations

from datetime import timedelta

from shuffle_ledger.ledger.values.requests import Cohort, ReleaseTimes


def after_opening(cohort: Cohort) -> ReleaseTimes:
    """The earliest time that is later than a cohort's opening."""
    assert cohort.opened_at is not None
    return ReleaseTimes(after=cohort.opened_at + timedelta(microseconds=1))
