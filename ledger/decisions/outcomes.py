"""Rebuilds decisions and closings from entries, word for word.

A decision says what was decided; `present_answer` returns it only while it stands.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import Any, TypeVar

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.errors import Damaged
from shuffle_ledger.ledger.storage.rows import StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.repeats import least_open, refuse_uncollectable
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Corrected,
    Incident,
    Member,
    Outcome,
    Pending,
    RefusalReason,
    Refused,
    RefusedBy,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
    RoundState,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.values.texts import POPULATION_MAX

_DECISIONS = frozenset({EntryKind.ADMITTED, EntryKind.REFUSED})
_CLOSINGS = frozenset({EntryKind.SETTLED, EntryKind.VOIDED})
_Answer = TypeVar(
    "_Answer", Admitted, Refused, Outcome, Settled, Voided, Settled | Voided, Corrected, Incident
)


def outcome_of(store: Store, stored: StoredRound) -> Outcome | None:
    """Return the outcome of a round; None while it is pending, and where its release was told first."""
    if stored.outcome_sequence is None:
        return None
    entry = _own(store.entry(stored.cohort, stored.outcome_sequence), stored)
    return None if entry.kind == EntryKind.INCIDENT else outcome_from(entry)


def cohorts_of(stored: StoredRound) -> tuple[str, ...]:
    """Return the names of the cohorts that a stored round is of, in order."""
    return RoundRequest.from_bytes(stored.content).cohorts


def without_lost(store: Store, cohorts: Sequence[str]) -> tuple[str, ...]:
    """Return the cohorts of one round, in order, without those that were lost when the database was put back
    to an earlier state."""
    lost = store.lost_cohorts() if len(cohorts) > 1 else set()
    return tuple(name for name in cohorts if name not in lost)


def users_of(store: Store, stored: StoredRound) -> dict[str, int]:
    """Return how many users the cohorts of a stored round have together, and how many these cohorts are, as
    arguments for checks of sizes. Nobody knows how many a lost cohort had, so that any number may be."""
    members = RoundRequest.from_bytes(stored.content).members
    if without_lost(store, members) != members:
        return {"population": POPULATION_MAX, "cohorts": len(members)}
    # A release that was told of a period alone has no cohort beside it.
    population = store.population(members) or store.cohort(members[0]).population
    return {"population": population, "cohorts": len(members)}


def closing_of(store: Store, stored: StoredRound) -> Settled | Voided | None:
    """Return how a round was closed, None while it is not."""
    if stored.closing_sequence is None:
        return None
    entry = _own(store.entry(stored.cohort, stored.closing_sequence), stored)
    closing = restatement_from(entry)
    if isinstance(closing, Settled | Voided):
        return closing
    raise Damaged(f"cohort {entry.cohort!r}, entry {entry.sequence}: a {entry.kind} entry closes nothing")


def _own(entry: LedgerEntry, stored: StoredRound) -> LedgerEntry:
    if entry.round_id != stored.round_id:
        raise Damaged(f"round {stored.round_id!r}: its row refers to the entry of another round")
    return entry


def round_record(store: Store, round_id: str) -> RoundRecord:
    """Return a registered round and all that has happened to it; raises NotFound.

    Of a round of several cohorts, the numbers are those of the first one, beside those of each that decided.
    """
    stored = store.round(round_id)
    record = record_of(store, stored)
    outcome, closing, incident = record.outcome, record.closing, record.incident
    return replace(
        record,
        outcome=outcome and with_members(store, stored, outcome),
        closing=closing and with_members(store, stored, closing, _CLOSINGS),
        incident=incident and with_members(store, stored, incident, {EntryKind.INCIDENT}),
    )


def with_members(
    store: Store, stored: StoredRound, answer: _Answer, kinds: Collection[EntryKind] = _DECISIONS
) -> _Answer:
    """Return what entries of some kinds say of a round, with the numbers of each of its budgets if there are
    several."""
    cohorts = cohorts_of(stored)
    if len(cohorts) == 1:
        return answer
    entries = store.entries_about([stored.round_id], cohorts)
    bodies = [entry.content() for entry in entries if entry.kind in kinds]
    return with_all_budgets(answer, bodies, RoundRequest.from_bytes(stored.content).quotas)


def record_of(store: Store, stored: StoredRound) -> RoundRecord:
    """Return a stored round and all that has happened to it."""
    outcome = outcome_of(store, stored)
    closing = closing_of(store, stored)
    restated = [
        restatement_from(_own(one, stored)) for one in store.restatements_of(stored.cohort, stored.round_id)
    ]
    corrections = tuple(one for one in restated if isinstance(one, Corrected))
    incident = next((one for one in restated if isinstance(one, Incident)), None)
    request = RoundRequest.from_bytes(stored.content)
    state: RoundState = "pending"
    accounted: ShuffledRound | None = None
    match incident or closing or outcome:
        case Incident():
            state = "incident"
        case Admitted() as admitted:
            state, accounted = "admitted", admitted.accounted
        case Refused():
            state = "refused"
        case Settled():
            state = "settled"
        case Voided():
            state = "voided"
    record = RoundRecord(
        request=request,
        registered_by=stored.registered_by,
        registered_at=stored.registered_at,
        state=state,
        outcome=outcome,
        closing=closing,
        accounted=accounted,
        attempts=stored.attempts,
        last_error=stored.last_error,
        corrections=corrections,
        incident=incident,
    )
    return replace(record, accounted=record.restatements[-1].accounted) if record.restatements else record


def outcome_from(entry: LedgerEntry) -> Outcome:
    """Return the decision an entry records; raises Damaged when it records none."""
    return outcome_in(entry.content())


def outcome_in(body: EntryBody, accounted: ShuffledRound | None = None) -> Outcome:
    """Return the decision that an entry's body records; raises Damaged when it records none.

    `accounted` is the round that the body charges, if the caller has parsed it already.
    """
    if body.kind is EntryKind.ADMITTED:
        return Admitted(
            round_id=str(body.round_id),
            cohort=body.cohort,
            sequence=body.sequence,
            epsilon_spent_upper=body.spent.epsilon_upper,
            epsilon_spent_lower=body.spent.epsilon_lower,
            epsilon_remaining=body.epsilon_remaining,
            accounted=accounted or ShuffledRound.from_mapping(body.details["accounted"]),
        )
    if body.kind is EntryKind.REFUSED:
        requested = body.details["requested"]
        unbounded = requested is None or math.isinf(requested["epsilon_upper"])
        return Refused(
            round_id=str(body.round_id),
            cohort=body.cohort,
            sequence=body.sequence,
            reason=RefusalReason(body.details["reason"]),
            message=body.details["message"],
            epsilon_spent_upper=body.spent.epsilon_upper,
            epsilon_requested_upper=None if unbounded else requested["epsilon_upper"],
            epsilon_budget=body.epsilon_budget,
            delta_budget=body.delta_budget,
            epsilon_remaining=body.epsilon_remaining,
            refused_by=tuple(
                _refused_by(name, numbers) for name, numbers in body.details.get("refused_by", {}).items()
            ),
        )
    raise Damaged(f"cohort {body.cohort!r}, entry {body.sequence}: a {body.kind} entry decides nothing")


def joint_outcome(bodies: Sequence[EntryBody], accounted: ShuffledRound | None = None) -> Outcome:
    """Return the decision that entries of all cohorts of a round record: the first one's, with the numbers
    of all of them if there are several.

    `accounted` is the round that the first body charges, if the caller has parsed it already.
    """
    outcome = outcome_in(bodies[0], accounted)
    return with_all_budgets(outcome, bodies, bodies[0].details["request"].get("quotas", ()))


def with_all_budgets(answer: _Answer, bodies: Sequence[EntryBody], quotas: Collection[str]) -> _Answer:
    """Return the first budget's answer about a round with what its entries left of all, if there are several.

    `epsilon_remaining` becomes the least of the budgets that promise, which quotas do not. Of a cohort
    without a budget of its life, what is spent is that of this budget.

    Args:
        answer: as the first budget's entry has it.
        bodies: the entries that say the same of the round, one of each budget.
        quotas: the names of those that are quotas.
    """
    if len(bodies) < 2:
        return answer
    promising = [body for body in bodies if body.cohort not in quotas]
    least = min(promising or bodies, key=lambda body: body.epsilon_remaining)
    changes: dict[str, Any] = {"epsilon_remaining": least.epsilon_remaining, "audience": _members(bodies)}
    if math.isinf(answer.epsilon_remaining):
        changes |= {"epsilon_spent_upper": least.spent.epsilon_upper}
        changes |= {"epsilon_spent_lower": least.spent.epsilon_lower}
        changes |= {"epsilon_budget": least.epsilon_budget, "delta_budget": least.delta_budget}
    has = {one.name for one in fields(answer)}  # a refusal has neither an audience nor a lower bound
    return replace(answer, **{name: value for name, value in changes.items() if name in has})


def _members(bodies: Sequence[EntryBody]) -> tuple[Member, ...]:
    return tuple(
        Member(
            cohort=body.cohort,
            sequence=body.sequence,
            epsilon_spent_upper=body.spent.epsilon_upper,
            epsilon_remaining=body.epsilon_remaining,
            overspent=bool(body.details.get("overspent", False)),
        )
        for body in bodies
        if math.isfinite(body.epsilon_budget)  # else there is no budget of the cohort's life
    )


def restatement_from(entry: LedgerEntry) -> Settled | Voided | Corrected | Incident:
    """Return what an entry says of a release that turned out otherwise; raises Damaged if it says nothing."""
    body = entry.content()
    details = body.details
    said: dict[str, Any] = {
        "round_id": str(body.round_id),
        "cohort": body.cohort,
        "sequence": body.sequence,
        "epsilon_spent_upper": body.spent.epsilon_upper,
        "epsilon_spent_lower": body.spent.epsilon_lower,
        "epsilon_remaining": body.epsilon_remaining,
    }
    if body.kind is EntryKind.VOIDED:
        return Voided(**said, reason=details["reason"], attestation=details["attestation"])
    if body.kind not in (EntryKind.SETTLED, EntryKind.CORRECTED, EntryKind.INCIDENT):
        raise Damaged(
            f"cohort {entry.cohort!r}, entry {entry.sequence}: a {body.kind} entry restates nothing"
        )
    said |= {
        "accounted": ShuffledRound.from_mapping(details["accounted"]),
        "overspent": details["overspent"],
    }
    if body.kind is EntryKind.SETTLED:
        return Settled(**said, reports=details["reports"])
    described = details["round"]
    said |= {"round": described and ShuffledRound.from_mapping(described), "reason": details["reason"]}
    if body.kind is EntryKind.CORRECTED:
        return Corrected(**said, changed=details["accounted"] != details["accounted_before"])
    released = ReleaseTimes.from_mapping(details["released"])
    return Incident(**said, released=released, chosen_after=details["chosen_after"])


def _refused_by(cohort: str, numbers: Mapping[str, Any]) -> RefusedBy:
    return RefusedBy(cohort=cohort, **{**numbers, "reason": RefusalReason(numbers["reason"])})


def collected_on(body: EntryBody) -> date | None:
    """Returns the date on which the round of an admitted or refused entry was collected, if it was given."""
    text = body.details.get("request", {}).get("collected_on")
    return date.fromisoformat(text) if text else None


def present_answer(store: Store, stored: StoredRound) -> Outcome | Pending:
    """Return the decision about a round while it stands, Pending while there is none.

    Args:
        stored: the round's row, read after the request came.

    **Guarantee**: Admitted is returned only of a round that was neither voided nor settled when its row was
    read, and whose cohorts were all open after that.

    Raises:
        NotCollectable: an admission of the round permits no release any more, or the round is an incident.
    """
    outcome = outcome_of(store, stored)
    if outcome is None and stored.outcome_sequence is not None:
        refuse_uncollectable(stored.round_id, "incident", stored.cohort, "open")
    if outcome is None:
        return Pending(round_id=stored.round_id, cohort=stored.cohort)
    if isinstance(outcome, Admitted):
        closing = closing_of(store, stored)
        state: RoundState = "admitted"
        if closing is not None:
            state = "voided" if isinstance(closing, Voided) else "settled"
        cohort = least_open(store.cohorts_named(cohorts_of(stored)))
        refuse_uncollectable(stored.round_id, state, cohort.name, cohort.status)
    return with_members(store, stored, outcome)
