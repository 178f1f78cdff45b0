"""The course of a round: the entries from which a correction, a settlement or a void continues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.decisions.truths import truth_of
from shuffle_ledger.ledger.policies.base import IN_CLEAR
from shuffle_ledger.ledger.policies.registry import Course, Step
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
