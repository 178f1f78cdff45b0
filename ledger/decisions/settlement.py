"""Closing admitted rounds: `settle` charges what really happened, `void` gives back what released nothing."""

from __future__ import annotations

from dataclasses import replace

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.courses import changes_of, course_of, described_now, refuse_larger_sample
from shuffle_ledger.ledger.decisions.outcomes import (
    closing_from,
    cohorts_of,
    members_in,
    record_of,
    users_of,
    without_lost,
)
from shuffle_ledger.ledger.decisions.previews import Telling
from shuffle_ledger.ledger.decisions.truths import truth_of
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    VOID_ATTESTATION,
    RoundRecord,
    RoundState,
    Settled,
    Voided,
    checked_reports,
)
from shuffle_ledger.ledger.values.texts import checked_text


def settle(store: Store, accountant: Accountant, round_id: str, *, reports: int, actor: str) -> Settled:
    """Close a released round with the number of reports really shuffled, in the unit of its registration:
    before the honest fraction is taken, and with participation the users.

    Fewer than were accounted are charged at their true cost, even beyond the budget: the cohort is then
    overspent and admits nothing any more. More change nothing, for what was spent never shrinks, unless users
    were sampled: then more reports are a higher sampling rate, and that is charged. A settlement is the
    correction of the number of reports that also closes (`decisions.corrections`). Under policy `plan` the
    round must instead stand in a slot of the kind that `accounting.place` names for what was released; if
    none is left, the cohort is overspent. Settling again with the same number gives the same answer.

    A round of several cohorts is settled in all of them, in one commit, by the rules of each: some may be
    overspent with it and others not. An incident of the round in another chain stays as it is told.

    Raises:
        NotFound: no such round.
        InvalidValue: `reports` is not from 1 to the cohort's population, times the reports of each user (a
            round without reports is voided); or it is more than was told last of a sample of several cohorts.
        Conflict: the round is pending, refused, voided, an incident, or settled with another number; or a
            cohort of it is frozen; or it is charged to windows, and its collection has not begun.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been, and the same again
            answers.
    """
    telling = settling(store, accountant, round_id, reports=reports, actor=actor)
    entries = optimistic_append.append_to_each(store, telling.cohorts, telling.decide)
    settled, audience = closing_from(entries[0]), members_in(entries)
    if not isinstance(settled, Settled):
        raise Conflict(f"round {telling.stored.round_id!r} is voided")
    overspent = settled.overspent or any(member.overspent for member in audience)
    return replace(settled, overspent=overspent, audience=audience)


def settling(store: Store, accountant: Accountant, round_id: str, *, reports: int, actor: str) -> Telling:
    """Return what `settle` would write; raises what it raises."""
    actor = checked_text("actor", actor)
    stored = store.round(checked_text("round_id", round_id))
    cohorts = _none_lost(store, stored)
    users = users_of(store, stored)

    def decide(view: CohortView) -> EntryDraft | LedgerEntry:
        record = record_of(store, store.round_in(view.cohort.name, stored.round_id))
        described = described_now(record)
        checked_reports(reports, field="reports", per_user=described.reports_per_user, **users)
        if isinstance(record.closing, Settled) and record.closing.reports == reports:
            return store.entry(view.cohort.name, record.closing.sequence)
        _refuse_frozen(view)
        before = _reserved(stored.round_id, record.state, record.accounted, "settled")
        _refuse_before_collection(view, record)
        refuse_larger_sample(record, reports)
        policy, books = registry.policy_of(store, view), Books(store=store, accountant=accountant)
        step = policy.replacing(books, view, course_of(store, record), truth_of(described, reports))
        accounted = step.accounted or before
        overspent = step.posting.is_overspent
        details = {
            "reports": reports,
            "accounted_before": before.to_mapping(),
            "accounted": accounted.to_mapping(),
            "privacy_loss": loss_cache.digest_of(store, accountant, accounted).hex(),
            "overspent": overspent,
            **step.details,
        }
        return EntryDraft(
            kind=EntryKind.SETTLED,
            round_id=stored.round_id,
            actor=actor,
            numerical_policy=NUMERICAL_POLICY,
            spent=step.spent,
            details=details,
            changes=changes_of(step),
            status="overspent" if overspent else None,
        )

    return Telling(stored=stored, cohorts=cohorts, decide=decide)


def void(store: Store, accountant: Accountant, round_id: str, *, reason: str, actor: str) -> Voided:
    """Give back the reservation of a round that released nothing; the entry says who attests it, and why.

    The reports may have been sent, so the round keeps counting in the local budget. Voiding
    again for the same reason gives the same answer. A round of several cohorts is voided in all of them, in
    one commit.

    Raises:
        NotFound: no such round.
        InvalidValue: no reason that can be stored.
        Conflict: the round is pending, refused, settled, an incident, or voided for another reason; or a
            cohort of it is frozen.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been.
    """
    telling = voiding(store, accountant, round_id, reason=reason, actor=actor)
    entries = optimistic_append.append_to_each(store, telling.cohorts, telling.decide)
    voided = closing_from(entries[0])
    if not isinstance(voided, Voided):
        raise Conflict(f"round {telling.stored.round_id!r} is settled")
    return replace(voided, audience=members_in(entries))


def voiding(store: Store, accountant: Accountant, round_id: str, *, reason: str, actor: str) -> Telling:
    """Return what `void` would write; raises what it raises."""
    actor = checked_text("actor", actor)
    reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
    stored = store.round(checked_text("round_id", round_id))

    def decide(view: CohortView) -> EntryDraft | LedgerEntry:
        record = record_of(store, store.round_in(view.cohort.name, stored.round_id))
        if isinstance(record.closing, Voided) and record.closing.reason == reason:
            return store.entry(view.cohort.name, record.closing.sequence)
        _refuse_frozen(view)
        before = _reserved(stored.round_id, record.state, record.accounted, "voided")
        policy, books = registry.policy_of(store, view), Books(store=store, accountant=accountant)
        step = policy.replacing(books, view, course_of(store, record), None)
        return EntryDraft(
            kind=EntryKind.VOIDED,
            round_id=stored.round_id,
            actor=actor,
            numerical_policy=NUMERICAL_POLICY,
            spent=step.spent,
            details={
                "reason": reason,
                "attestation": VOID_ATTESTATION,
                "accounted": before.to_mapping(),
                **step.details,
            },
            changes=changes_of(step),
        )

    return Telling(stored=stored, cohorts=_none_lost(store, stored), decide=decide)


def _none_lost(store: Store, stored: StoredRound) -> tuple[str, ...]:
    """Return the names of the cohorts of a round; raise Conflict if one of them was lost."""
    cohorts = cohorts_of(stored)
    lost = [name for name in cohorts if name not in without_lost(store, cohorts)]
    if lost:
        raise Conflict(
            f"cohort {lost[0]!r} was lost when the database was put back: how its rounds ended is unknown,"
            " and what was released is told by a correction"
        )
    return cohorts


def _refuse_frozen(view: CohortView) -> None:
    if view.cohort.status == "frozen":
        raise Conflict(
            f"cohort {view.cohort.name!r} is frozen, for entries were lost: how its rounds ended is unknown"
        )


def _refuse_before_collection(view: CohortView, record: RoundRecord) -> None:
    """Raise Conflict if a round that is charged to windows is settled before its collection begins."""
    days = record.request.days
    today = view.now.date()
    if record.request.windows and days is not None and today < days[0]:
        raise Conflict(
            f"round {record.request.round_id!r} is collected from {days[0].isoformat()} on, and today is"
            f" {today.isoformat()}: it can be settled then, or voided if it is not collected at all"
        )


def _reserved(
    round_id: str, state: RoundState, accounted: ShuffledRound | None, wanted: str
) -> ShuffledRound:
    if state == "incident":
        raise Conflict(
            f"round {round_id!r} is an incident, which nothing admitted: it cannot be {wanted}; what was"
            " released is told by a correction"
        )
    if state != "admitted" or accounted is None:
        how = " differently" if state == wanted else ""
        raise Conflict(f"round {round_id!r} is {state}{how}: only an admitted round can be {wanted}")
    return accounted
