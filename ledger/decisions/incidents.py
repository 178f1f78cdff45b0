"""Recording incidents: releases that nothing admitted. The budget refuses none, and charges all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant, ShuffledRound
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.decide import check_sizes
from shuffle_ledger.ledger.decisions.outcomes import (
    cohorts_of,
    incident_from,
    members_in,
    record_of,
    users_of,
    without_lost,
)
from shuffle_ledger.ledger.decisions.steps import NewRoundRequest
from shuffle_ledger.ledger.decisions.windows import open_periods, placed
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.policies.base import IN_CLEAR, slot_of
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft, HoldingChange, NewRound, StoredRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.differences import other_content
from shuffle_ledger.ledger.values.entries import EntryKind, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    REASON_LENGTH_MAX,
    Cohort,
    Incident,
    ReleaseTimes,
    RoundRequest,
    checked_new_name,
)
from shuffle_ledger.ledger.values.texts import checked_text

_log = logging.getLogger(__name__)


class _Told:
    """What somebody tells of a release."""

    def __init__(
        self, described: ShuffledRound | None, released: ReleaseTimes, *, reason: str, actor: str
    ) -> None:
        self.described, self.released = described, released
        self.reason = checked_text("reason", reason, length_max=REASON_LENGTH_MAX)
        self.actor = checked_text("actor", actor)

    @property
    def truth(self) -> ShuffledRound:
        """Returns the round to charge: for an unknown release, reports in the clear."""
        return self.described or IN_CLEAR

    def is_told_by(self, incident: Incident) -> bool:
        """Returns whether a recorded incident has the same contents."""
        said = (incident.round, incident.released.to_mapping(), incident.reason)
        return said == (self.described, self.released.to_mapping(), self.reason)

    def check_past(self, now: datetime) -> None:
        """Raises InvalidValue if the stated release is in the future."""
        for name, moment in (
            ("released_after", self.released.after),
            ("released_before", self.released.before),
        ):
            if moment is not None and moment > now:
                expected = f"no later than the ledger's clock, {canonical.spelled_moment(now)}"
                raise InvalidValue(field=name, value=moment.isoformat(), expected=expected)


def record_incident(
    store: Store,
    accountant: Accountant,
    cohort: str,
    *,
    round_id: str,
    described: ShuffledRound | None,
    reason: str,
    actor: str,
    released: ReleaseTimes | None = None,
    collected_on: date | None = None,
    collected_until: date | None = None,
    reaches: Callable[[str], bool] = lambda _: True,
) -> Incident:
    """Record a release that nothing admitted: charged like the settlement of a round that declared nothing.

    If the budget, or the plan, does not cover it, the cohort is overspent. So is one of
    policy adaptive or plan if it is not attested that the release came after the cohort was opened, which
    chose its filters or its plan. A frozen cohort
    records the release alone.
    Under the identifier of a round of several cohorts, the release is recorded in all of them, in one commit.
    Source: docs/decisions/0014-corrections-and-incidents.md, with the rule of each policy.

    Args:
        store: the ledger.
        accountant: what computes.
        cohort: whose data it was; of a round of several cohorts, any of these. A period of a window, such as
            `de-phone@2026-W48`, is charged alone: a round that the cohort knows was also collected in it.
        round_id: a new identifier, or that of a round that is undecided, refused or voided.
        described: the round that was released. None: unknown, so that everything counts as revealed.
        reason: how it came about.
        actor: who tells it. The same again gives the same answer.
        released: when, as the actor attests.
        collected_on: the first day of its collection; a cohort with windows needs it. Of an identifier that
            is registered, the days are those of the registration; others are a Conflict.
        collected_until: the last day, if there are several.
        reaches: which cohorts may be told; under an identifier of others, which may be registered at any
            moment, nothing is recorded.

    Raises:
        NotFound: no such cohort.
        InvalidValue: values that there cannot be, such as a release in the future, or a collection that
            begins after today by the database's clock.
        Conflict: the identifier is of a round that was admitted, of another cohort's, or of an incident that
            was told otherwise: correct it.
        TryAgain, Unavailable: nothing was changed.
    """
    told = _Told(described, released or ReleaseTimes(), reason=reason, actor=actor)
    days: dict[str, Any] = {"collected_on": collected_on, "collected_until": collected_until}
    request = RoundRequest(round_id=round_id, cohort=cohort, round=told.truth, **days)
    owner = whose(store, request.cohort)
    try:
        stored = store.round(request.round_id)
    except NotFound:
        checked_new_name("round_id", request.round_id)
        _check_begun(store, owner.name, collected_on)
        check_sizes(told.truth, owner.population)
        request = _placed(store, request, actor=told.actor)
        entry = _told_first(store, accountant, told, request)
        if entry is not None:
            return entry
        stored = store.round(request.round_id)
    if not all(map(reaches, cohorts_of(stored))):
        raise Conflict(f"round {stored.round_id!r}: this identifier cannot be used")
    return _told_of_registered(store, accountant, told, stored, request)


def _check_begun(store: Store, cohort: str, first: date | None) -> None:
    """Raise InvalidValue if a collection of which something was released begins after today."""
    if first is None:
        return
    today = store.view(cohort).now.date()
    if first > today:
        expected = (
            f"no later than {today.isoformat()}, which is today by the ledger's clock: what will be collected"
            " is registered as a round"
        )
        raise InvalidValue(field="collected_on", value=first.isoformat(), expected=expected)


def _contents(described: ShuffledRound | None, released: ReleaseTimes, reason: str) -> dict[str, Any]:
    """Returns what an incident says, field by field, as JSON has it."""
    fields = described.to_mapping() if described else {"round": "unknown"}
    return {**fields, **released.to_mapping(), "reason": reason}


def whose(store: Store, name: str) -> Cohort:
    """Return the cohort of a name, or, if that is of a period that is not open yet, whose it would be.

    Raises:
        NotFound: there is no such cohort.
    """
    try:
        return store.cohort(name)
    except NotFound:
        cohort, at, _ = name.rpartition("@")
        if not at:
            raise
        return store.cohort(cohort)


def _placed(store: Store, request: RoundRequest, *, actor: str) -> RoundRequest:
    """Return a request with the periods that it is charged to, which are open then. A period that is named
    itself is charged alone."""
    found = whose(store, request.cohort)
    parent = store.cohort(found.period.cohort) if found.period is not None else found
    if parent.name == request.cohort or found.quota is not None:
        request = placed(request, store.cohorts_named(request.members))
        open_periods(store, request, actor=actor)
        return request
    if request.cohort not in [period.name for period in parent.periods(request)]:
        expected = f"a day of {request.cohort!r}, a period of a window of cohort {parent.name!r}"
        given = request.collected_on and request.collected_on.isoformat()
        raise InvalidValue(field="collected_on", value=given, expected=expected)
    open_periods(store, replace(request, cohort=parent.name, windows=(request.cohort,)), actor=actor)
    return request


def _told_of_registered(
    store: Store, accountant: Accountant, told: _Told, stored: StoredRound, request: RoundRequest
) -> Incident:
    """Record an incident under an identifier that is registered, in all chains of its round."""
    cohorts = cohorts_of(stored)
    if request.cohort not in cohorts:
        raise Conflict(f"round {stored.round_id!r} is of cohort {stored.cohort!r}")
    registered = RoundRequest.from_bytes(stored.content)
    _check_days(request, registered)
    check_sizes(told.truth, **users_of(store, stored))

    def decide(view: CohortView) -> EntryDraft | LedgerEntry | None:
        try:
            now = store.round_in(view.cohort.name, stored.round_id)
        except NotFound:
            if view.cohort.status == "frozen" and len(cohorts) > 1:
                return None  # it lost what it had of the round; only the other cohorts record the incident
            raise
        record = record_of(store, now)
        if record.incident is not None:
            if told.is_told_by(record.incident):
                return store.entry(view.cohort.name, record.incident.sequence)
            raise other_content(
                f"incident {now.round_id!r} was recorded with other content (correct the round to change it)",
                _contents(record.incident.round, record.incident.released, record.incident.reason),
                _contents(told.described, told.released, told.reason),
            )
        if record.state in ("admitted", "settled"):
            raise Conflict(
                f"round {now.round_id!r} is {record.state}, which permitted its release: if it was otherwise"
                " than was said, correct the round"
            )
        return _drafted(store, accountant, told, view, now)

    return _told_of(optimistic_append.append_to_each(store, without_lost(store, cohorts), decide))


def _check_days(request: RoundRequest, registered: RoundRequest) -> None:
    """Raise Conflict if a release is told of days whose periods its registration does not charge."""
    said, known = request.days, registered.days
    if said is None or known is None or (known[0] <= said[0] and said[1] <= known[1]):
        return
    raise Conflict(
        f"{request.round_id!r} was registered as collected from {known[0].isoformat()} until"
        f" {known[1].isoformat()}: record it without other days, then one of each period that it lacks"
    )


def _told_of(entries: Sequence[LedgerEntry]) -> Incident:
    """Return what the entries of all chains of an incident tell, with the numbers of each."""
    told_of, audience = [incident_from(entry) for entry in entries], members_in(entries)
    overspent = any(one.overspent for one in told_of)
    return replace(told_of[0], overspent=overspent, audience=audience)


def _told_first(store: Store, accountant: Accountant, told: _Told, request: RoundRequest) -> Incident | None:
    """Append an incident with the rows of its identifier; return None if that was taken meanwhile."""
    asked = NewRoundRequest(request=request, actor=told.actor)  # a release may have any name
    # What takes a computation is computed now, where nothing waits for it.
    views = store.views(request.cohorts)
    for view in views:
        new = NewRound(view=view, registration=0, others_wait=False)
        _drafted(store, accountant, told, view, asked.stored(new))

    def drafted(found: Sequence[NewRound]) -> list[EntryDraft]:
        return [_drafted_new(store, accountant, told, asked, new) for new in found]

    bodies = optimistic_append.append_with_round(store, request.cohorts, request.round_id, drafted)
    if bodies is None:
        return None
    for view, body in zip(views, bodies, strict=True):
        if body.details["overspent"] and view.cohort.status == "open":
            _log.error("cohort %s is OVERSPENT since entry %d", body.cohort, body.sequence)
    return _told_of([store.entry(body.cohort, body.sequence) for body in bodies])


def _drafted_new(
    store: Store, accountant: Accountant, told: _Told, asked: NewRoundRequest, new: NewRound
) -> EntryDraft:
    stored = asked.stored(new)
    draft = _drafted(store, accountant, told, new.view, stored)
    return EntryDraft(**{**vars(draft), "registers": stored})


def _drafted(
    store: Store, accountant: Accountant, told: _Told, view: CohortView, stored: StoredRound
) -> EntryDraft:
    told.check_past(view.now)
    policy, books = registry.policy_of(store, view), Books(store=store, accountant=accountant)
    accounted = slot_of(told.truth)
    overspent, spent = view.cohort.status == "overspent", view.spent
    changes: tuple[HoldingChange, ...] = ()
    details, loss, chosen_after = policy.unchanged(view), None, False
    if view.cohort.status != "frozen":
        # A quota may be set by anything: its numbers bound nothing.
        if view.cohort.quota is None:
            chosen_after = not is_later(told.released, than=chosen_at(store, view.cohort))
        step = policy.telling(
            books, view, told.truth, chosen_after=chosen_after, voided=_voided_in(store, view, stored)
        )
        accounted, spent, details = step.accounted or accounted, step.spent, dict(step.details)
        overspent = step.posting.is_overspent
        changes = (HoldingChange(accounted=accounted, count=1, local_count=1),)
        loss = loss_cache.digest_of(store, accountant, accounted).hex()
    return EntryDraft(
        kind=EntryKind.INCIDENT,
        round_id=stored.round_id,
        actor=told.actor,
        numerical_policy=NUMERICAL_POLICY,
        spent=spent,
        details={
            "request": RoundRequest.from_bytes(stored.content).to_mapping(),
            "registration": stored.registration,
            "registered_at": canonical.spelled_moment(stored.registered_at),
            "registered_by": stored.registered_by,
            "round": None if told.described is None else told.described.to_mapping(),
            "released": told.released.to_mapping(),
            "reason": told.reason,
            "accounted": accounted.to_mapping(),
            "privacy_loss": loss,
            "chosen_after": chosen_after,
            "overspent": overspent,
            **details,
        },
        changes=changes,
        status="overspent" if overspent else None,
    )


def _voided_in(store: Store, view: CohortView, stored: StoredRound) -> Mapping[str, Any] | None:
    """Return the details of the entry of a cohort that voided a round; None if nothing did."""
    voided = [
        entry
        for entry in store.entries_about([stored.round_id], [view.cohort.name])
        if entry.kind == EntryKind.VOIDED
    ]
    return voided[0].content().details if voided else None


def chosen_at(store: Store, cohort: Cohort) -> datetime | None:
    """Return when the rules of a cohort were chosen: when it was opened, or for a period of a window, when
    its cohort was. None: before anything is stored."""
    if cohort.period is None:
        return cohort.opened_at
    try:
        return store.cohort(cohort.period.cohort).opened_at
    except NotFound:
        return cohort.opened_at  # later, so that less counts as attested


def is_later(released: ReleaseTimes, *, than: datetime | None) -> bool:
    """Return whether it is attested that something was released after a cohort's rules were chosen.

    Args:
        released: what is attested.
        than: when they were; None: not yet, so that nothing is later.
    """
    return than is not None and released.after is not None and released.after >= than
