"""Pages about single rounds: their history, and previews of what somebody is about to tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from shuffle_ledger.accounting import Accountant, InvalidParameter
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.api.dependencies import (
    Asked,
    Reader,
    Registrar,
    Service,
    call_of,
    in_thread,
    refuse_foreign,
    seen_cohort,
)
from shuffle_ledger.ledger.api.pages.routes import asked_for, checked_form, page, whole
from shuffle_ledger.ledger.decisions.descriptions import described_now
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.decisions.restatements import RESTATABLE, correct, settle, void
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotCollectable, NotFound
from shuffle_ledger.ledger.machine import Cause
from shuffle_ledger.ledger.roles import Permission
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Corrected, Settled, Voided, most_spent

# What may be told of a round in these states, with the fields that its form sends.
_ACTS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "settle": (RESTATABLE[Cause.SETTLE], ("reports",)),
    "void": (RESTATABLE[Cause.VOID], ("reason",)),
    "correct": (RESTATABLE[Cause.CORRECT], ("reports", "reason")),
}
_SAID_NO: Final = (Conflict, InvalidValue, InvalidParameter, NotCollectable)

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """What would change in one budget."""

    cohort: str
    epsilon_spent_before: float  # upper bounds
    epsilon_spent_after: float
    epsilon_remaining: float  # after it
    breaks: bool  # the budget's promise, which holds now


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What somebody is about to tell, and what it would change in each chain."""

    act: str
    fields: Mapping[str, str]
    consequences: tuple[Consequence, ...]


@router.post("/cohorts/{cohort}/register")
async def register_page(cohort: str, request: Request, token: Registrar, service: Asked) -> Response:
    """Register a round that was quoted on the cohort's page, and show it."""
    name = seen_cohort(token, cohort)
    form = await checked_form(request)
    try:
        asked = asked_for(form.get("round_id", "").strip(), name, form, team=token.team)
        service.door.let_guess(token)
        try:
            await service.registered(asked, actor=token.name, wait_seconds=None)
        except Conflict:
            await refuse_foreign(service, token, asked.round_id)
            raise
    except _SAID_NO as error:
        return page("error.html.jinja", request, status=409, title="Not registered", detail=str(error))
    return _shown(service, asked.round_id)


@router.get("/rounds/{round_id}")
async def round_page(round_id: str, request: Request, token: Reader, service: Asked) -> HTMLResponse:
    """Show a round, all that happened to it, and what may be told of it."""
    name = await in_thread(call_of(service, token).round, unquote(round_id))
    return await _round(request, service, token, name)


@router.post("/rounds/{round_id}/{act}")
async def act_page(round_id: str, act: str, request: Request, token: Registrar, service: Asked) -> Response:
    """Show what telling something of a round would change or, once that is confirmed, tell it."""
    name = await in_thread(call_of(service, token).round, unquote(round_id))
    form = await checked_form(request)
    if act not in _ACTS:
        raise NotFound("there is nothing at this address")
    fields = {field: form.get(field, "").strip() for field in _ACTS[act][1]}
    said = _Said(act=act, round_id=name, fields=fields, actor=token.name)
    try:
        if form.get("confirmed") != "yes":
            found = await service.deciding.run(lambda accountant: said.foreseen(service.store, accountant))
            return await _round(request, service, token, name, preview=found)
        await service.deciding.run(lambda accountant: said.tell(service.store, accountant))
    except _SAID_NO as error:
        return await _round(request, service, token, name, wrong=str(error))
    return _shown(service, name)


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What somebody says of a round."""

    act: str
    round_id: str
    fields: Mapping[str, str]
    actor: str

    @property
    def reports(self) -> int:
        """The number of reports; raises InvalidValue."""
        return whole("reports", self.fields["reports"])

    def foreseen(self, store: Store, accountant: Accountant) -> Preview:
        """Return what it would change, in each budget that it would change."""
        answer = self.tell(store, accountant, dry_run=True)
        found = []
        for one in answer.audience or (answer,):
            view = store.view(one.cohort)
            if one.sequence <= view.head_sequence:
                continue  # the chain says so already
            consequence = Consequence(
                cohort=one.cohort,
                epsilon_spent_before=view.spent.epsilon_upper,
                epsilon_spent_after=one.epsilon_spent_upper,
                epsilon_remaining=one.epsilon_remaining,
                breaks=getattr(one, "overspent", False) and view.cohort.status == "open",
            )
            found.append(consequence)
        return Preview(act=self.act, fields=self.fields, consequences=tuple(found))

    def tell(
        self, store: Store, accountant: Accountant, *, dry_run: bool = False
    ) -> Settled | Voided | Corrected:
        """Write it, unless it is a dry run; return what is recorded, or would be."""
        name, reason = self.round_id, self.fields.get("reason", "")
        said: dict[str, Any] = {"actor": self.actor, "dry_run": dry_run}
        if self.act == "settle":
            return settle(store, accountant, name, reports=self.reports, **said)
        if self.act == "void":
            return void(store, accountant, name, reason=reason, **said)
        return correct(store, accountant, name, {"reports": self.reports}, reason=reason, **said)


async def _round(
    request: Request,
    service: Service,
    token: AccessToken,
    name: str,
    *,
    preview: Preview | None = None,
    wrong: str | None = None,
) -> HTMLResponse:
    record = await in_thread(round_record, service.store, name)
    may = token.may(Permission.REGISTER)
    acts = [act for act, (states, _) in _ACTS.items() if may and record.state in states]
    return page(
        "round.html.jinja",
        request,
        status=409 if wrong else 200,
        record=record,
        refused_by=most_spent(getattr(record.outcome, "refused_by", ())),
        now=described_now(record),
        acts=acts,
        preview=preview,
        wrong=wrong,
    )


def _shown(service: Service, round_id: str) -> RedirectResponse:
    place = f"{service.root_path}/rounds/{quote(round_id, safe='')}"
    return RedirectResponse(place, status_code=303, headers={"Cache-Control": "no-store"})
