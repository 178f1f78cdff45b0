"""Restatements: settle, void, correct and incident are four commands and one path.

Each says what turned out otherwise than it was recorded. `restated` asks the machine what that changes in
each budget of the round, and appends to all their chains in one commit. No budget refuses a restatement.
Source: docs/decisions/0014-corrections-and-incidents.md, 0033-restated.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.descriptions import (
    check_sizes,
    described_now,
    described_otherwise,
    local_kind,
    refuse_larger_sample,
    with_reports,
)
from shuffle_ledger.ledger.decisions.outcomes import (
    cohorts_of,
    record_of,
    restatement_from,
    users_of,
    with_all_budgets,
    without_lost,
)
from shuffle_ledger.ledger.errors import Conflict, Damaged, InvalidValue, NotFound
from shuffle_ledger.ledger.machine import Cause
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.base import in_clear, slot_of
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.days import microseconds_of
from shuffle_ledger.ledger.values.differences import other_content
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    VOID_ATTESTATION,
    Admitted,
    Cohort,
    Corrected,
    Incident,
    ReleaseTimes,
    RoundRecord,
    RoundRequest,
    Settled,
    Voided,
    checked_reports,
)
from shuffle_ledger.ledger.values.texts import checked_text

_log = logging.getLogger(__name__)

# The states of a round of which each may be said.
RESTATABLE: Final[Mapping[Cause, tuple[str, ...]]] = {
    Cause.SETTLE: ("admitted",),
    Cause.VOID: ("admitted",),
    Cause.CORRECT: ("admitted", "settled", "incident"),
    Cause.INCIDENT: ("pending", "refused", "voided"),
}
_KINDS: Final[Mapping[Cause, EntryKind]] = {
    Cause.SETTLE: EntryKind.SETTLED,
    Cause.VOID: EntryKind.VOIDED,
    Cause.CORRECT: EntryKind.CORRECTED,
    Cause.INCIDENT: EntryKind.INCIDENT,
}
_CLOSINGS: Final = (Cause.SETTLE, Cause.VOID)
Answer = TypeVar("Answer", Settled, Voided, Corrected, Incident)


@dataclass(frozen=True, kw_only=True)
class Restatement:
    """What an actor states of a release that turned out otherwise than it was recorded.

    Attributes:
        cause: which of the four commands states it.
        round_id: the round.
        actor: the author.
        reason: why; a settlement needs none.
        reports: of a settlement, the number of reports that were really shuffled.
        changes: of a correction, the fields that differ, as in a round's JSON form.
        described: of an incident, what was released; None: unknown: it counts as reports in the clear.
        released: of an incident, when, as the actor attests.
    """

    cause: Cause
    round_id: str
    actor: str
    reason: str | None = None
    reports: int | None = None
    changes: Mapping[str, object] = field(default_factory=dict)
    described: ShuffledRound | None = None
    released: ReleaseTimes = field(default_factory=ReleaseTimes)

    def __post_init__(self) -> None:
        """Raises InvalidValue for texts that cannot be stored, and for a correction that changes nothing."""
        texts = {
            "actor": checked_text("actor", self.actor),
            "round_id": checked_text("round_id", self.round_id),
        }
        if self.cause is not Cause.SETTLE:
            texts["reason"] = checked_text("reason", self.reason, length_max=REASON_LENGTH_MAX)
        for name, text in texts.items():
            object.__setattr__(self, name, text)
        if self.cause is Cause.CORRECT and not self.changes:
            raise InvalidValue(field="round", value={}, expected="at least one other field")

    def describes(self, record: RoundRecord) -> ShuffledRound | None:
        """Returns the release by this description; None: nothing was released. Raises InvalidParameter."""
        if self.cause is Cause.VOID:
            return None
        if self.cause is Cause.INCIDENT:
            return self.described or in_clear()
        now = described_now(record)
        return (
            described_otherwise(now, self.changes) if self.changes else with_reports(now, self.reports or 0)
        )

    def repeats(self, record: RoundRecord) -> int | None:
        """Returns the entry that says the same already; None: there is none. Raises Conflict if an incident
        was recorded with other content."""
        closing, incident = record.closing, record.incident
        if self.cause is Cause.SETTLE:
            is_same = isinstance(closing, Settled) and closing.reports == self.reports
            return closing.sequence if closing and is_same else None
        if self.cause is Cause.VOID:
            is_same = isinstance(closing, Voided) and closing.reason == self.reason
            return closing.sequence if closing and is_same else None
        if self.cause is Cause.CORRECT:
            last = record.restatements[-1] if record.restatements else None
            if not isinstance(last, Corrected) or last.reason != self.reason:
                return None
            return last.sequence if last.round == self.describes(record) else None
        if incident is None:
            return None
        known = (incident.round, incident.released.to_mapping(), incident.reason)
        if known == (self.described, self.released.to_mapping(), self.reason):
            return incident.sequence
        raise other_content(
            f"incident {self.round_id!r} was recorded with other content (correct the round to change it)",
            _contents(incident.round, incident.released, incident.reason),
            _contents(self.described, self.released, self.reason),
        )


def restated(
    store: Store, accountant: Accountant, asked: Restatement, *, dry_run: bool = False
) -> list[LedgerEntry]:
    """Record what turned out otherwise, in the chain of each budget of a registered round, in one commit.

    The same again is answered with the entries that say it already. With `dry_run`, nothing is recorded.

    Raises:
        NotFound: no such round.
        InvalidValue, InvalidParameter: a description of no round of these cohorts.
        Conflict: the round is in a state in which this cannot be said of it; a budget is frozen and the round
            is to be closed; or it is settled before its collection began.
        TryAgain, Unavailable: nothing was changed, but for AnswerLost: it may have been, and the same again
            answers.
    """
    stored = store.round(asked.round_id)
    cohorts = without_lost(store, cohorts_of(stored))
    lost = [name for name in cohorts_of(stored) if name not in cohorts]
    if lost and asked.cause in _CLOSINGS:
        raise Conflict(
            f"cohort {lost[0]!r} was lost when the database was put back: how its rounds ended is unknown,"
            " and what was released is told by a correction"
        )
    users, losses = users_of(store, stored), LossSource(store=store, accountant=accountant)

    def decide(view: CohortView) -> EntryDraft | LedgerEntry | None:
        try:
            row = store.round_in(view.cohort.name, stored.round_id)
        except NotFound:
            row = None
        record = None if row is None else record_of(store, row)
        if view.cohort.status == "frozen" and len(cohorts_of(stored)) > 1 and _was_lost(asked, record):
            return None  # only the other cohorts record this
        if row is None or record is None:
            raise NotFound(f"cohort {view.cohort.name!r} has no round {stored.round_id!r}")
        if (known := asked.repeats(record)) is not None:
            return store.entry(view.cohort.name, known)
        _check(asked, record, view, users)
        return _draft(losses, asked, view, row, record)

    if dry_run:
        entries = _would_be(store, store.views(cohorts), decide)
    else:
        entries = optimistic_append.append_to_each(store, cohorts, decide)
    if not entries:
        raise Conflict(f"round {stored.round_id!r}: all its cohorts are frozen, and lost what they had of it")
    return entries


def settle(
    store: Store,
    accountant: Accountant,
    round_id: str,
    *,
    reports: int,
    actor: str,
    dry_run: bool = False,
) -> Settled:
    """Close a released round with the number of reports really shuffled, in the unit of its registration:
    before the honest fraction is taken, and with participation the users.

    Fewer than were accounted are charged at their true cost, even beyond the budget: the cohort is then
    overspent and admits nothing any more. More change nothing, for what was spent never shrinks, unless users
    were sampled: then more reports are a higher sampling rate, and that is charged. Of declared slots, the
    round takes the kind that `machine.filters.place` names. Settling again with the same number gives the
    same answer.

    Args:
        dry_run: answer what would be recorded, and record nothing.

    Raises:
        What `restated` raises.
    """
    asked = Restatement(cause=Cause.SETTLE, round_id=round_id, actor=actor, reports=reports)
    return answer_of(store, Settled, restated(store, accountant, asked, dry_run=dry_run), dry_run=dry_run)


def void(
    store: Store, accountant: Accountant, round_id: str, *, reason: str, actor: str, dry_run: bool = False
) -> Voided:
    """Give back the reservation of a round that released nothing; the entry says who attests it, and why.

    The reports may have been sent, so the round keeps counting in the local budget. Voiding
    again for the same reason gives the same answer.

    Raises:
        What `restated` raises.
    """
    asked = Restatement(cause=Cause.VOID, round_id=round_id, actor=actor, reason=reason)
    return answer_of(store, Voided, restated(store, accountant, asked, dry_run=dry_run), dry_run=dry_run)


def correct(
    store: Store,
    accountant: Accountant,
    round_id: str,
    changes: Mapping[str, object],
    *,
    reason: str,
    actor: str,
    dry_run: bool = False,
) -> Corrected:
    """State what a released round truly was, and charge it.

    If a budget does not cover the truth, its cohort is overspent. A frozen cohort records the truth alone.
    The same correction again, with the same reason, gives the same answer, unless the round was settled, or
    recorded as an incident, since.

    Args:
        changes: the fields of the round that differ, as in a round's JSON form.

    Raises:
        What `restated` raises.
    """
    said = {"reason": reason, "changes": changes}
    asked = Restatement(cause=Cause.CORRECT, round_id=round_id, actor=actor, **said)  # type: ignore[arg-type]
    return answer_of(store, Corrected, restated(store, accountant, asked, dry_run=dry_run), dry_run=dry_run)


def _check(asked: Restatement, record: RoundRecord, view: CohortView, users: Mapping[str, int]) -> None:
    """Raises Conflict or InvalidValue if this cannot be said of a round."""
    if view.cohort.status == "frozen" and asked.cause in _CLOSINGS:
        raise Conflict(
            f"cohort {view.cohort.name!r} is frozen, for entries were lost: how its rounds ended is unknown"
        )
    if record.state not in RESTATABLE[asked.cause]:
        raise Conflict(_cannot(asked, record))
    if asked.cause is Cause.SETTLE:
        per_user = described_now(record).reports_per_user
        checked_reports(asked.reports, field="reports", per_user=per_user, **users)
        _check_collected(view, record)
    actual = asked.describes(record)
    if asked.cause in (Cause.CORRECT, Cause.INCIDENT) and actual is not None:
        check_sizes(actual, **users)
    is_resampled = asked.cause is Cause.INCIDENT or "sampled_from" in asked.changes
    if actual is not None and actual.sampled_from is not None and not is_resampled:
        refuse_larger_sample(record, actual.reports)


def _was_lost(asked: Restatement, record: RoundRecord | None) -> bool:
    """Returns whether a frozen chain lost what it had of a round, so that this cannot be said of it there."""
    if asked.cause is Cause.INCIDENT:
        return record is None
    return asked.cause is Cause.CORRECT and (record is None or record.state not in RESTATABLE[Cause.CORRECT])


def _cannot(asked: Restatement, record: RoundRecord) -> str:
    """Returns why something cannot be said of a round in its state."""
    round_id, state, wanted = asked.round_id, record.state, str(_KINDS[asked.cause])
    if asked.cause is Cause.INCIDENT:
        return (
            f"round {round_id!r} is {state}, which permitted its release: if it was otherwise than was said,"
            " correct the round"
        )
    if asked.cause is Cause.CORRECT:
        return (
            f"round {round_id!r} is {state}: only a round that was admitted and not voided can be corrected."
            " If it was released all the same, record an incident with its identifier"
        )
    if state == "incident":
        return (
            f"round {round_id!r} is an incident, which nothing admitted: it cannot be {wanted}; what was"
            " released is told by a correction"
        )
    how = " differently" if state == wanted else ""
    return f"round {round_id!r} is {state}{how}: only an admitted round can be {wanted}"


def _check_collected(view: CohortView, record: RoundRecord) -> None:
    """Raises Conflict if a round that is charged to windows is settled before its collection begins."""
    days = record.request.days
    today = view.now.date()
    if record.request.windows and days is not None and today < days[0]:
        raise Conflict(
            f"round {record.request.round_id!r} is collected from {days[0].isoformat()} on, and today is"
            f" {today.isoformat()}: it can be settled then, or voided if it is not collected at all"
        )


def _check_past(released: ReleaseTimes, now: datetime) -> None:
    """Raises InvalidValue if a stated release is in the future."""
    for name, moment in (("released_after", released.after), ("released_before", released.before)):
        if moment is not None and moment > now:
            expected = f"no later than the ledger's clock, {canonical.spelled_moment(now)}"
            raise InvalidValue(field=name, value=moment.isoformat(), expected=expected)


def first_draft(losses: LossSource, asked: Restatement, view: CohortView, row: StoredRound) -> EntryDraft:
    """Returns the entry of an incident under an identifier that is registered with it."""
    record = RoundRecord(
        request=RoundRequest.from_bytes(row.content),
        registered_by=row.registered_by,
        registered_at=row.registered_at,
        state="pending",
        outcome=None,
        closing=None,
        accounted=None,
        attempts=0,
        last_error=None,
    )
    return replace(_draft(losses, asked, view, row, record), registers=row)


def _draft(
    losses: LossSource, asked: Restatement, view: CohortView, row: StoredRound, record: RoundRecord
) -> EntryDraft:
    """Returns the entry that says in one chain what turned out otherwise, with what that changes."""
    policy = registry.policy_of(losses.store, view)
    actual, last = asked.describes(record), _last_charged(losses.store, asked, record)
    before = None if record.accounted is None or asked.cause is Cause.INCIDENT else record.accounted
    details: dict[str, Any] = _stated(asked, view, row, actual)
    overspent, spent = view.cohort.status == "overspent", view.spent
    changes: tuple[HoldingChange, ...] = ()
    if asked.cause is Cause.INCIDENT:
        details["chosen_after"] = False
    if view.cohort.status == "frozen":
        accounted = before or slot_of(actual or record.request.round)
        details |= {"privacy_loss": None, **policy.unchanged(view)}
    else:
        opened_at = _opened_at(losses.store, view.cohort) if asked.cause is Cause.INCIDENT else None
        step = policy.restating(
            losses,
            view,
            asked.cause,
            actual,
            last=last,
            released_after=microseconds_of(asked.released.after),
            opened_at=microseconds_of(opened_at),
        )
        accounted = step.accounted or before or slot_of(record.request.round)
        overspent, spent = step.posting.is_overspent, step.spent
        changes = _holdings(asked, record, step.changes, accounted)
        details |= step.details
        if actual is not None:
            details["privacy_loss"] = loss_cache.digest_of(losses.store, losses.accountant, accounted).hex()
    details["accounted"] = accounted.to_mapping()
    if actual is not None:
        details["overspent"] = overspent
        details |= {} if before is None else {"accounted_before": before.to_mapping()}
    return EntryDraft(
        kind=_KINDS[asked.cause],
        round_id=row.round_id,
        actor=asked.actor,
        numerical_policy=NUMERICAL_POLICY,
        spent=spent,
        details=details,
        changes=changes,
        status="overspent" if overspent and view.cohort.status != "frozen" else None,
    )


def _stated(
    asked: Restatement, view: CohortView, row: StoredRound, actual: ShuffledRound | None
) -> dict[str, Any]:
    """Returns what an entry says that the actor states."""
    if asked.cause is Cause.SETTLE:
        return {"reports": asked.reports}
    if asked.cause is Cause.VOID:
        return {"reason": asked.reason, "attestation": VOID_ATTESTATION}
    if asked.cause is Cause.CORRECT and actual is not None:
        return {"round": actual.to_mapping(), "reason": asked.reason}
    _check_past(asked.released, view.now)
    return {
        "request": RoundRequest.from_bytes(row.content).to_mapping(),
        "registration": row.registration,
        "registered_at": canonical.spelled_moment(row.registered_at),
        "registered_by": row.registered_by,
        "round": None if asked.described is None else asked.described.to_mapping(),
        "released": asked.released.to_mapping(),
        "reason": asked.reason,
    }


def _last_charged(store: Store, asked: Restatement, record: RoundRecord) -> Mapping[str, Any] | None:
    """Returns the details of the entry that says last what a round is charged or, for an incident, of the one
    that voided it; None: nothing was charged."""
    last = record.restatements[-1] if record.restatements else record.outcome
    if asked.cause is Cause.INCIDENT:
        voided = record.closing
        return None if voided is None else store.entry(voided.cohort, voided.sequence).content().details
    return None if last is None else store.entry(last.cohort, last.sequence).content().details


def _holdings(
    asked: Restatement, record: RoundRecord, held: Mapping[ShuffledRound, int], accounted: ShuffledRound
) -> tuple[HoldingChange, ...]:
    """Returns the changes of what is held, and of the kinds that count without the shuffler: an incident adds
    one, and a correction moves a round to a kind only if that says more."""
    sent = int(asked.cause is Cause.INCIDENT)
    changes = [HoldingChange(accounted=kind, count=count, local_count=sent) for kind, count in held.items()]
    if asked.cause is Cause.CORRECT:
        admitted = [one for one in (record.outcome,) if isinstance(one, Admitted) and not record.incident]
        afterwards = [one for one in record.restatements if isinstance(one, Incident | Corrected)]
        known = [one.accounted for one in (*admitted, *afterwards)]
        before, after = local_kind(known), local_kind([*known, accounted])
        if before != after:
            changes.append(HoldingChange(accounted=before, count=0, local_count=-1))
            changes.append(HoldingChange(accounted=after, count=0, local_count=1))
    return tuple(changes)


def _opened_at(store: Store, cohort: Cohort) -> datetime | None:
    """Returns when the rules of a cohort were chosen: when it was opened, or for a period of a window, when
    its cohort was. None: before anything is stored."""
    if cohort.period is None:
        return cohort.opened_at
    try:
        return store.cohort(cohort.period.cohort).opened_at
    except NotFound:
        return cohort.opened_at  # later, so that less counts as attested


def _contents(described: ShuffledRound | None, released: ReleaseTimes, reason: str | None) -> dict[str, Any]:
    """Returns what an incident says, field by field, as JSON has it."""
    fields = described.to_mapping() if described else {"round": "unknown"}
    return {**fields, **released.to_mapping(), "reason": reason}


def _would_be(
    store: Store,
    views: Sequence[CohortView],
    decide: Callable[[CohortView], EntryDraft | LedgerEntry | None],
) -> list[LedgerEntry]:
    """Returns the entries that would be appended, or that say the same already."""
    pairs = [(view, decide(view)) for view in views]
    return [
        store.drafted(view, found) if isinstance(found, EntryDraft) else found
        for view, found in pairs
        if found is not None
    ]


def answer_of(store: Store, kind: type[Answer], entries: Sequence[LedgerEntry], *, dry_run: bool) -> Answer:
    """Returns what the entries of all chains of a round say: the first one's numbers, with those of each, and
    the least that remains of a promise."""
    found = [restatement_from(entry) for entry in entries]
    first = found[0]
    if not isinstance(first, kind):
        raise Damaged(
            f"round {first.round_id!r}: a {type(first).__name__} was recorded, not a {kind.__name__}"
        )
    more: dict[str, Any] = {"dry_run": dry_run}
    for name in ("overspent", "changed"):
        if hasattr(first, name):
            more[name] = any(getattr(one, name) for one in found)
    answer = replace(first, **more)
    if len(entries) == 1:
        return answer
    bodies = [entry.content() for entry in entries]
    return with_all_budgets(answer, bodies, _quotas_of(store, first.round_id))


def _quotas_of(store: Store, round_id: str) -> tuple[str, ...]:
    """Returns the names of a round's budgets that are quotas; those of an incident alone are none."""
    try:
        return RoundRequest.from_bytes(store.round(round_id).content).quotas
    except NotFound:
        return ()
