"""The course of a round: the entries from which a correction, a settlement or a void continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.truths import truth_of
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies.base import IN_CLEAR, Course, Step
from shuffle_ledger.ledger.storage.rows import HoldingChange
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Incident, RoundRecord, Settled


def course_of(store: Store, record: RoundRecord) -> Course:
    """Return a round's first and last charge, of a round that was admitted or is an incident."""
    first = record.incident or record.outcome
    if first is None:
        raise AssertionError("a round without a charge has no course")
    last = record.told[-1] if record.told else first
    return Course(
        first=_details(store, first.cohort, first.sequence),
        last=_details(store, first.cohort, last.sequence),
        is_incident=record.incident is not None,
    )


def described_now(record: RoundRecord) -> ShuffledRound:
    """Returns the present description of a round: as declared, settled, corrected, or recorded as an incident
    last."""
    described = record.request.round
    for one in record.told:
        described = truth_of(described, one.reports) if isinstance(one, Settled) else one.round or IN_CLEAR
    return described


def refuse_larger_sample(record: RoundRecord, reports: int) -> None:
    """Raises InvalidValue if more reports arrived than were told last, where several cohorts were sampled.

    They may all be of one cohort, whose rate has then risen by more than the average. Several reports of a
    user earn no credit for samples, so that the rate has no effect on the charge there.
    """
    declared = described_now(record)
    if declared.sampled_from is None or declared.reports_per_user > 1 or reports <= declared.reports:
        return
    if len(record.request.members) > 1:
        expected = (
            f"at most {declared.reports}, as was told last, for several cohorts were sampled, and more may"
            " all be of one: if there were more, correct the round first, with `reports` and `sampled_from`,"
            " which reports divided by the largest rate of a cohort give, or with none"
        )
        raise InvalidValue(field="reports", value=reports, expected=expected)


def first_accounted(record: RoundRecord) -> ShuffledRound:
    """Returns the round that was accounted at admission, or when the incident was recorded."""
    first = record.incident or record.outcome
    if not isinstance(first, Incident | Admitted):
        raise AssertionError("nothing was charged for the round")
    return first.accounted


def changes_of(step: Step) -> tuple[HoldingChange, ...]:
    """Returns the changes of the rounds held."""
    return tuple(HoldingChange(accounted=kind, count=count) for kind, count in step.changes.items())


def _details(store: Store, cohort: str, sequence: int) -> Mapping[str, Any]:
    return store.entry(cohort, sequence).content().details
