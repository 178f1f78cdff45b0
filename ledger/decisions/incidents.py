"""Incidents: releases that nothing admitted, under a new identifier or a known one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.descriptions import check_sizes
from shuffle_ledger.ledger.decisions.outcomes import cohorts_of
from shuffle_ledger.ledger.decisions.restatements import Restatement, answer_of, first_draft, restated
from shuffle_ledger.ledger.decisions.steps import NewRoundRequest
from shuffle_ledger.ledger.decisions.windows import open_periods, placed, views_of
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.machine import Cause
from shuffle_ledger.ledger.policies.base import in_clear
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.storage.rows import EntryDraft, NewRound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE, LedgerEntry
from shuffle_ledger.ledger.values.requests import (
    Cohort,
    Incident,
    ReleaseTimes,
    RoundRequest,
    checked_new_name,
)

_log = logging.getLogger(__name__)


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
    dry_run: bool = False,
) -> Incident:
    """Record a release that nothing admitted: charged like the settlement of a round that declared nothing.

    If a budget does not cover it, its cohort is overspent. So is a cohort if it is not attested that the
    release came after the opening, which chose its limits and slots. A frozen cohort records the release
    alone. Under the identifier of a round of several cohorts, the release is recorded in all of them, in one
    commit.

    Args:
        cohort: whose data it was; of a round of several cohorts, any of these. A period of a window, such as
            `de-phone@2026-W48`, is charged alone: a round that the cohort knows was also collected in it.
        round_id: a new identifier, or that of a round that is undecided, refused or voided.
        described: the round that was released. None: unknown, so that everything counts as revealed.
        reason: how it came about.
        actor: the author. The same again gives the same answer.
        released: when, as the actor attests.
        collected_on: the first day of its collection; a cohort with windows needs it. Of an identifier that
            is registered, the days are those of the registration; others are a Conflict.
        collected_until: the last day, if there are several.
        reaches: which cohorts the actor may write to; under an identifier of others, which may be registered
            at any moment, nothing is recorded.
        dry_run: answer what would be recorded, and record nothing.

    Raises:
        NotFound: no such cohort.
        InvalidValue: values that there cannot be, such as a release in the future, or a collection that
            begins after today by the database's clock.
        Conflict: the identifier is of a round that was admitted, of another cohort's, or of an incident that
            was recorded with other content: correct it.
        TryAgain, Unavailable: nothing was changed; TryAgain also if the cohort was opened again meanwhile.
    """
    said: dict[str, Any] = {"described": described, "released": released or ReleaseTimes(), "reason": reason}
    asked = Restatement(cause=Cause.INCIDENT, round_id=round_id, actor=actor, **said)
    days: dict[str, Any] = {"collected_on": collected_on, "collected_until": collected_until}
    request = RoundRequest(round_id=round_id, cohort=cohort, round=described or in_clear(), **days)
    owner = cohort_or_parent(store, request.cohort)
    try:
        stored = store.round(request.round_id)
    except NotFound:
        checked_new_name("round_id", request.round_id)
        _check_begun(store, owner.name, collected_on)
        check_sizes(request.round, owner.population)
        entries = _first_entries(store, accountant, asked, request, owner, dry_run=dry_run)
        if entries:
            return answer_of(store, Incident, entries, dry_run=dry_run)
        stored = store.round(request.round_id)  # taken meanwhile
    if not all(map(reaches, cohorts_of(stored))):
        raise Conflict(f"round {stored.round_id!r}: this identifier cannot be used")
    if request.cohort not in cohorts_of(stored):
        raise Conflict(f"round {stored.round_id!r} is of cohort {stored.cohort!r}")
    _check_days(request, RoundRequest.from_bytes(stored.content))
    return answer_of(store, Incident, restated(store, accountant, asked, dry_run=dry_run), dry_run=dry_run)


def cohort_or_parent(store: Store, name: str) -> Cohort:
    """Returns the cohort of a name or, for a period that is not open yet, the cohort that would have it.

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


def _first_entries(
    store: Store,
    accountant: Accountant,
    asked: Restatement,
    request: RoundRequest,
    owner: Cohort,
    *,
    dry_run: bool,
) -> list[LedgerEntry]:
    """Append an incident with the rows of its identifier; returns none if that was taken meanwhile.

    Raises TryAgain if `owner`, by which it was checked, was opened again since: with other windows, perhaps.
    """
    placing, request = _placed(store, request)
    if not dry_run:
        open_periods(store, placing, actor=asked.actor)
    store.check_same(store.cohorts_named([owner.name]), [owner])  # also where a period is charged alone
    new = NewRoundRequest(request=request, actor=asked.actor)  # a release may have any name
    losses = LossSource(store=store, accountant=accountant)

    def drafted(found: Sequence[NewRound]) -> list[EntryDraft]:
        store.check_same([each.view.cohort for each in found], [owner])
        return [first_draft(losses, asked, each.view, new.stored(each)) for each in found]

    # What takes a computation is computed now, where nothing waits for it.
    views = views_of(store, placing) if dry_run else store.views(request.cohorts)
    views = [
        replace(view, head_sequence=max(view.head_sequence, FIRST_SEQUENCE))  # a period is opened first
        for view in views
        if view.cohort.name in request.cohorts
    ]
    drafts = drafted([NewRound(view=view, registration=0) for view in views])
    if dry_run:
        return [store.drafted(view, draft) for view, draft in zip(views, drafts, strict=True)]
    bodies = optimistic_append.append_with_round(store, request.cohorts, request.round_id, drafted)
    if bodies is None:
        return []
    for view, body in zip(views, bodies, strict=True):
        if body.details["overspent"] and view.cohort.status == "open":
            _log.error("cohort %s is OVERSPENT since entry %d", body.cohort, body.sequence)
    return [store.entry(body.cohort, body.sequence) for body in bodies]


def _placed(store: Store, request: RoundRequest) -> tuple[RoundRequest, RoundRequest]:
    """Returns the request by which periods are opened for an incident, and the one that is charged. A period
    that is named itself is charged alone."""
    found = cohort_or_parent(store, request.cohort)
    parent = store.cohort(found.period.cohort) if found.period is not None else found
    if parent.name == request.cohort or found.quota is not None:
        request = placed(request, store.cohorts_named(request.members))
        return request, request
    if request.cohort not in [period.name for period in parent.periods(request)]:
        expected = f"a day of {request.cohort!r}, a period of a window of cohort {parent.name!r}"
        given = request.collected_on and request.collected_on.isoformat()
        raise InvalidValue(field="collected_on", value=given, expected=expected)
    return replace(request, cohort=parent.name, windows=(request.cohort,)), request


def _check_begun(store: Store, cohort: str, first: date | None) -> None:
    """Raises InvalidValue if a collection of which something was released begins after today."""
    if first is None:
        return
    today = store.view(cohort).now.date()
    if first > today:
        raise InvalidValue(
            field="collected_on",
            value=first.isoformat(),
            expected=f"a day until {today.isoformat()}",
            message=f"{first.isoformat()} is yet to come: register the round with `round register`.",
        )


def _check_days(request: RoundRequest, registered: RoundRequest) -> None:
    """Raises Conflict if a release is of days whose periods its registration does not charge."""
    said, known = request.days, registered.days
    if said is None or known is None or (known[0] <= said[0] and said[1] <= known[1]):
        return
    raise Conflict(
        f"{request.round_id!r} was registered as collected from {known[0].isoformat()} until"
        f" {known[1].isoformat()}: record it without other days, then one of each period that it lacks"
    )
