"""Rounds that sample each cohort of their audience by itself: what may be told of them afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.courses import described_now
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.requests import RoundRecord


def refuse_more_of_strata(record: RoundRecord, reports: int) -> None:
    """Raise InvalidValue if more reports arrived than were sampled, where each cohort was sampled by itself.

    They may all be of the cohort whose rate was the largest, so that nothing follows for that rate.
    """
    declared = described_now(record)
    if record.request.stratified and declared.sampled_from is not None and reports > declared.reports:
        expected = (
            f"at most {declared.reports}, which the samples of its cohorts are together: if there were more,"
            " correct the round first, with `reports` and with `sampled_from`, which reports divided by the"
            " largest rate of a cohort give, or with none"
        )
        raise InvalidValue(field="reports", value=reports, expected=expected)


def refuse_unproven_of_strata(
    record: RoundRecord, truth: ShuffledRound, changes: Mapping[str, object]
) -> None:
    """Raises InvalidValue if no bound is proven for the corrected round, whose cohorts were sampled
    separately.

    Args:
        record: the round so far.
        truth: the corrected round.
        changes: the corrected fields.
    """
    if not record.request.stratified or truth.sampled_from is None:
        return
    if "sampled_from" not in changes:
        refuse_more_of_strata(record, truth.reports)
    if truth.honest_fraction < 1 or truth.is_sequential or truth.reports_per_user > 1:
        expected = (
            "none, for nothing is proven about a share of honest devices, a secret order or several reports"
            " of a user where cohorts are sampled by themselves"
        )
        raise InvalidValue(field="sampled_from", value=truth.sampled_from, expected=expected)


def refuse_unstated_rate(
    record: RoundRecord, truth: ShuffledRound, changes: Mapping[str, object], further: Collection[str]
) -> None:
    """Raises InvalidValue if nobody says at which rate a further cohort was sampled, where each cohort was
    sampled by itself: the largest rate of the others says nothing about it.

    Args:
        record: the round so far.
        truth: the corrected round.
        changes: the corrected fields.
        further: the cohorts whose users reported, too.
    """
    is_told = "sampled_from" in changes or truth.sampled_from is None
    if not record.request.stratified or is_told or set(further) <= set(record.request.members):
        return
    expected = (
        "a population, or that there was no sample: each cohort was sampled by itself, and reports divided by"
        " it must be the largest rate of all of them, with a further cohort too"
    )
    raise InvalidValue(field="sampled_from", value=None, expected=expected)
