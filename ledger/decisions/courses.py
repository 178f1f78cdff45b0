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
from shuffle_ledger.ledger.values.requests import Admitted, Corrected, Incident, RoundRecord, Settled


def course_of(store: Store, record: RoundRecord) -> Course:
    """Return a round's first and last charge, of a round that was admitted or is an incident."""
    first = record.incident or record.outcome
    if first is None:
        raise AssertionError("a round without a charge has no course")
    told = [first.sequence, *(one.sequence for one in record.corrections)]
    if isinstance(record.closing, Settled) and record.incident is None:
        told.append(record.closing.sequence)
    return Course(
        first=_details(store, first.cohort, first.sequence),
        last=_details(store, first.cohort, max(told)),
        is_incident=record.incident is not None,
    )


def described_now(record: RoundRecord) -> ShuffledRound:
    """Return what is said of a round by now: what was declared, settled, corrected or told last."""
    described = record.request.round
    if record.incident is not None:
        described = record.incident.round or IN_CLEAR
    told: list[Corrected | Settled] = [*record.corrections]
    if isinstance(record.closing, Settled) and record.incident is None:
        told.append(record.closing)
    for one in sorted(told, key=lambda one: one.sequence):
        described = truth_of(described, one.reports) if isinstance(one, Settled) else one.round
    return described


def first_accounted(record: RoundRecord) -> ShuffledRound:
    """Return what a round was accounted as when it was admitted, or told as an incident."""
    first = record.incident or record.outcome
    if not isinstance(first, Incident | Admitted):
        raise AssertionError("nothing was charged for the round")
    return first.accounted


def changes_of(step: Step) -> tuple[HoldingChange, ...]:
    """Return how what is held changes."""
    return tuple(HoldingChange(accounted=kind, count=count) for kind, count in step.changes.items())


def _details(store: Store, cohort: str, sequence: int) -> Mapping[str, Any]:
    return store.entry(cohort, sequence).content().details
