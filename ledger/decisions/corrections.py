"""Correcting rounds: what a released round truly was, told afterwards and charged at its true cost.

A settlement is the correction of the number of reports that also closes the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.courses import (
    changes_of,
    course_of,
    described_now,
    first_accounted,
    refuse_larger_sample,
)
from shuffle_ledger.ledger.decisions.decide import check_sizes
from shuffle_ledger.ledger.decisions.outcomes import (
    cohorts_of,
    corrected_from,
    members_in,
    record_of,
    users_of,
    without_lost,
)
from shuffle_ledger.ledger.decisions.previews import Telling
from shuffle_ledger.ledger.decisions.truths import local_kind, restated
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import REASON_LENGTH_MAX, Corrected, RoundRecord
from shuffle_ledger.ledger.values.texts import checked_text

CORRECTABLE = ("admitted", "settled", "incident")


def correct(
    store: Store,
    accountant: Accountant,
    round_id: str,
    changes: Mapping[str, object],
    *,
    reason: str,
    actor: str,
) -> Corrected:
    """Tell what a released round truly was, and charge it; the budget refuses no correction.

    If the budget, or the plan, does not cover the truth, the cohort is overspent. A frozen cohort records
    the truth alone. A round of several cohorts is corrected in all of them, in one commit.
    Source: docs/decisions/0014-corrections-and-incidents.md, with the rule of each policy.

    Args:
        store: the ledger.
        accountant: computes privacy losses.
        round_id: a round that is admitted or settled, or an incident.
        changes: the fields of the round that differ, as in a round's JSON form.
        reason: the reason of the correction.
        actor: the author. The same correction again, with the same reason, gives the same answer, unless
            the round was settled, or recorded as an incident, since.

    Raises:
        NotFound: no such round.
        InvalidValue, InvalidParameter: no reason, or no round of this cohort, that there can be.
        Conflict: the round is pending, refused or voided.
        TryAgain, Unavailable: nothing was changed.
    """
    telling = correcting(store, accountant, round_id, changes, reason=reason, actor=actor)
    entries = optimistic_append.append_to_each(store, telling.cohorts, telling.decide)
    if not entries:
        raise Conflict(
            f"round {telling.stored.round_id!r}: all its cohorts are frozen, and lost what they had of it"
        )
    corrected, audience = corrected_from(entries[0]), members_in(entries)
    overspent = corrected.overspent or any(member.overspent for member in audience)
    changed = corrected.changed or any(corrected_from(entry).changed for entry in entries[1:])
    return replace(corrected, overspent=overspent, changed=changed, audience=audience)


def correcting(
    store: Store,
    accountant: Accountant,
    round_id: str,
    changes: Mapping[str, object],
    *,
    reason: str,
    actor: str,
) -> Telling:
    """Return what `correct` would write; raises what it raises."""
    actor = checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    if not changes:
        raise InvalidValue(field="round", value=dict(changes), expected="at least one other field")
    stored = store.round(checked_text("round_id", round_id))
    cohorts = without_lost(store, cohorts_of(stored))
    users = users_of(store, stored)

    def decide(view: CohortView) -> EntryDraft | LedgerEntry | None:
        try:
            record = record_of(store, store.round_in(view.cohort.name, stored.round_id))
        except NotFound:
            record = None
        is_known = record is not None and record.state in CORRECTABLE
        if view.cohort.status == "frozen" and len(cohorts_of(stored)) > 1 and not is_known:
            return None  # it lost its entries about the round; only the other cohorts record the correction
        if record is None:
            raise NotFound(f"cohort {view.cohort.name!r} has no round {stored.round_id!r}")
        if record.state not in CORRECTABLE:
            raise Conflict(
                f"round {stored.round_id!r} is {record.state}: only a round that was admitted and not voided"
                " can be corrected. If it was released all the same, record an incident with its identifier"
            )
        truth = restated(described_now(record), changes)
        check_sizes(truth, **users)
        if truth.sampled_from is not None and "sampled_from" not in changes:
            refuse_larger_sample(record, truth.reports)
        last = record.told[-1] if record.told else None
        if isinstance(last, Corrected) and (last.round, last.reason) == (truth, reason):
            return store.entry(view.cohort.name, last.sequence)
        return _draft(store, accountant, view, record, truth, told_by=(actor, reason))

    return Telling(stored=stored, cohorts=cohorts, decide=decide)


def _draft(
    store: Store,
    accountant: Accountant,
    view: CohortView,
    record: RoundRecord,
    truth: ShuffledRound,
    *,
    told_by: tuple[str, str],
) -> EntryDraft:
    policy, books = registry.policy_of(store, view), Books(store=store, accountant=accountant)
    course, (actor, reason) = course_of(store, record), told_by
    before = accounted = course.accounted
    overspent, spent = view.cohort.status == "overspent", view.spent
    changes: tuple[HoldingChange, ...] = ()
    details, loss = policy.unchanged(view), None
    if view.cohort.status != "frozen":
        step = policy.replacing(books, view, course, truth)
        accounted, spent, details = step.accounted or before, step.spent, dict(step.details)
        overspent = step.posting.is_overspent
        changes = (*changes_of(step), *_moved(record, accounted))
        loss = loss_cache.digest_of(store, accountant, accounted).hex()
    return EntryDraft(
        kind=EntryKind.CORRECTED,
        round_id=record.request.round_id,
        actor=actor,
        numerical_policy=NUMERICAL_POLICY,
        spent=spent,
        details={
            "round": truth.to_mapping(),
            "reason": reason,
            "accounted_before": before.to_mapping(),
            "accounted": accounted.to_mapping(),
            "privacy_loss": loss,
            "overspent": overspent,
            **details,
        },
        changes=changes,
        status="overspent" if overspent else None,
    )


def _moved(record: RoundRecord, accounted: ShuffledRound) -> tuple[HoldingChange, ...]:
    """Return how the kinds change that count without the shuffler: only to one that says more."""
    told = (one.accounted for one in record.told if isinstance(one, Corrected))
    kinds = [first_accounted(record), *told]
    before, after = local_kind(kinds), local_kind([*kinds, accounted])
    if before == after:
        return ()
    return (
        HoldingChange(accounted=before, count=0, local_count=-1),
        HoldingChange(accounted=after, count=0, local_count=1),
    )
