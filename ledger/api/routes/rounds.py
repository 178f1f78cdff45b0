"""Routes about rounds: register, list, show, retry, settle, void, correct; and incidents."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote as quoted

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from shuffle_ledger.ledger.api.dependencies import (
    Asked,
    CohortName,
    Limit,
    Prefer,
    Reader,
    Registrar,
    RoundId,
    Service,
    in_thread,
    refuse_foreign,
    seen_audience,
    seen_cohort,
    seen_name,
    seen_round,
    wait_of,
)
from shuffle_ledger.ledger.api.description import ANSWERS, REGISTERED, RETRIED, answers
from shuffle_ledger.ledger.api.problems import REFUSED, problem
from shuffle_ledger.ledger.api.schemas.requests import (
    CorrectRound,
    ForecastForAll,
    Moment,
    QuoteForAll,
    RecordIncident,
    RegisterRound,
    SettleRound,
    VoidRound,
)
from shuffle_ledger.ledger.api.schemas.strict_body import StrictRoute
from shuffle_ledger.ledger.decisions.corrections import correct
from shuffle_ledger.ledger.decisions.incidents import record_incident, whose
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.decisions.quoting import price
from shuffle_ledger.ledger.decisions.repeats import present_answer
from shuffle_ledger.ledger.decisions.settlement import settle, void
from shuffle_ledger.ledger.errors import Conflict, NotFound
from shuffle_ledger.ledger.health import retry
from shuffle_ledger.ledger.reports.joint_forecasts import joint_forecast
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds, without_audience
from shuffle_ledger.ledger.values.documents import decision_document, document_of, record_document
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    Pending,
    RoundRequest,
    RoundState,
)

router = APIRouter(prefix="/v1", tags=["rounds"], route_class=StrictRoute)


@router.post("/rounds", status_code=201, responses=REGISTERED)
async def register_(
    body: RegisterRound, token: Registrar, service: Asked, prefer: Prefer = None
) -> JSONResponse:
    """Register a round of one cohort, or of an audience, under an identifier you choose, and have it decided.

    `201` admitted, which permits one release of this round; `409` refused; `202` while it is undecided: ask
    at `Location`, or repeat the request. With `Prefer: wait=N` the answer waits up to N seconds for the
    outcome. A repeated request answers with the round's present state: `409` (`not_collectable`) once it is
    voided or settled, or its cohort is frozen or overspent.
    """
    # Before the round is looked at: no cohort, no answer.
    named, store = body.named(), service.store
    names = await in_thread(seen_audience, store, token, named, round_id=body.round_id)
    request = body.request(names, team=token.team)
    waited = wait_of(prefer)
    service.door.let_guess(token)
    try:
        answer = await service.registered(request, actor=token.name, wait_seconds=waited)
    except Conflict:
        await refuse_foreign(service, token, request.round_id)
        raise
    return await _decision(service, request, answer, waited=waited)


@router.post("/quote", responses=answers(200, ANSWERS.one_quote, "The price."))
async def quote_(body: QuoteForAll, token: Reader, service: Asked) -> JSONResponse:
    """Price a round of an audience as if it were registered now. Leaves no trace and promises nothing."""
    names = await in_thread(seen_audience, service.store, token, body.named(), round_id=None)
    request = body.request_for(names, round_id="quote", team=token.team)
    found = await service.pricing.run(lambda accountant: price(service.store, accountant, request))
    return JSONResponse(document_of(found))


@router.post("/forecast", responses=answers(200, ANSWERS.joint_forecast, "The forecast."))
async def forecast_(body: ForecastForAll, token: Reader, service: Asked) -> JSONResponse:
    """Say how many more rounds of an audience fit, and which budget ends them. Reserves nothing."""
    names = await in_thread(seen_audience, service.store, token, body.audience, round_id=None)
    wanted, today = body.wanted(), datetime.now(UTC).date()
    found = await service.pricing.run(
        lambda accountant: joint_forecast(
            service.store, accountant, names, wanted, today=today, team=token.team
        )
    )
    return JSONResponse(document_of(found))


@router.get("/audience", responses=answers(200, ANSWERS.audience, "The names, in order."))
async def audience(
    token: Reader,
    service: Asked,
    select: Annotated[str, Query(min_length=1, max_length=4000, description="Names or a selector.")],
    round_id: Annotated[
        str | None, Query(max_length=200, description="As registered: if it is, the cohorts of that time.")
    ] = None,
) -> JSONResponse:
    """Say which cohorts a list of names or a selector over labels means now."""
    names = await in_thread(seen_audience, service.store, token, select, round_id=round_id)
    return JSONResponse({"audience": list(names)})


@router.get("/rounds", responses=answers(200, ANSWERS.rounds, "A page of rounds."))
async def list_(
    *,
    token: Reader,
    service: Asked,
    cohort: Annotated[str | None, Query(max_length=200, description="Only of this cohort.")] = None,
    outcome: Annotated[RoundState | None, Query(description="Only rounds in this state now.")] = None,
    since: Annotated[Moment | None, Query(description="Only registered then or later.")] = None,
    after: Annotated[
        str | None, Query(max_length=200, description="Go on behind this round: `after` of the last page.")
    ] = None,
    limit: Limit = 100,
) -> JSONResponse:
    """List rounds that the token sees in the order of registration, with why each was refused.

    Go on with `after` until it is null: a page may have fewer rounds than `limit`, or none, before the end.
    """
    cohorts = token.cohorts
    if cohort is not None:
        cohorts = (seen_name(token, cohort),)
        await in_thread(service.store.cohort, cohorts[0])
    wanted = RoundFilter(cohorts=cohorts, outcome=outcome, since=since)
    page = await in_thread(list_rounds, service.store, wanted, after=after, limit=limit)
    shown = (
        each if all(map(token.sees, each.audience)) else without_audience(each, token.sees)
        for each in page.rounds
    )
    return JSONResponse(document_of(replace(page, rounds=tuple(shown))))


@router.get(
    "/rounds/{round_id}", responses=answers(200, ANSWERS.record, "The round and what happened to it.")
)
async def show(round_id: RoundId, token: Reader, service: Asked) -> JSONResponse:
    """Show a round and all that has happened to it."""
    name = await in_thread(seen_round, service.store, token, round_id)
    return JSONResponse(record_document(await in_thread(round_record, service.store, name)))


@router.post("/rounds/{round_id}/retry", status_code=201, responses=RETRIED)
async def retry_(round_id: RoundId, token: Registrar, service: Asked, prefer: Prefer = None) -> JSONResponse:
    """Have a round decided that was left alone after too many failures. Answers like a registration."""
    name = await in_thread(seen_round, service.store, token, round_id)
    await in_thread(retry, service.store, name)
    stored = await in_thread(service.store.round, name)
    waited = wait_of(prefer)
    answer = await in_thread(present_answer, service.store, stored)
    if isinstance(answer, Pending):
        answer = await service.decided(answer, wait_seconds=waited)
    return await _decision(service, RoundRequest.from_bytes(stored.content), answer, waited=waited)


@router.post("/rounds/{round_id}/settle", responses=answers(200, ANSWERS.settled, "Settled, now or before."))
async def settle_(round_id: RoundId, body: SettleRound, token: Registrar, service: Asked) -> JSONResponse:
    """Record what a round really collected; fewer reports than planned cost more."""
    name = await in_thread(seen_round, service.store, token, round_id)
    answer = await service.deciding.run(
        lambda accountant: settle(service.store, accountant, name, reports=body.reports, actor=token.name)
    )
    return JSONResponse(decision_document(answer))


@router.post("/rounds/{round_id}/void", responses=answers(200, ANSWERS.voided, "Voided, now or before."))
async def void_(round_id: RoundId, body: VoidRound, token: Registrar, service: Asked) -> JSONResponse:
    """Close a round of which nothing was or will be released. It gives back what it reserved."""
    name = await in_thread(seen_round, service.store, token, round_id)
    answer = await service.deciding.run(
        lambda accountant: void(service.store, accountant, name, reason=body.reason, actor=token.name)
    )
    return JSONResponse(decision_document(answer))


@router.post(
    "/rounds/{round_id}/corrections", responses=answers(200, ANSWERS.corrected, "Corrected, now or before.")
)
async def correct_(round_id: RoundId, body: CorrectRound, token: Registrar, service: Asked) -> JSONResponse:
    """Tell what a released round truly was. It is charged at its true cost, even beyond the budget; what was
    charged does not shrink. What else it was collected from is an incident of each cohort or period that
    lacks it."""
    name = await in_thread(seen_round, service.store, token, round_id)
    changes, told = body.changes(), {"reason": body.reason, "actor": token.name}
    answer = await service.deciding.run(
        lambda accountant: correct(service.store, accountant, name, changes, **told)
    )
    return JSONResponse(decision_document(answer))


@router.post(
    "/cohorts/{cohort}/incidents", responses=answers(200, ANSWERS.incident, "Recorded, now or before.")
)
async def record_incident_(
    cohort: CohortName, body: RecordIncident, token: Registrar, service: Asked
) -> JSONResponse:
    """Record a release that nothing admitted, under a new identifier or that of a round that is undecided,
    refused or voided. It is charged, even beyond the budget."""
    name = seen_cohort(token, cohort)
    # Before the round is looked at: no cohort, no answer. A period may not be open yet.
    await in_thread(whose, service.store, name)
    described, released = None if body.round is None else body.round.round(), body.released()
    service.door.let_guess(token)
    with contextlib.suppress(NotFound):  # it would be told to every cohort of a round of that identifier
        await refuse_foreign(service, token, body.round_id)
    try:
        answer = await service.deciding.run(
            lambda accountant: record_incident(
                service.store,
                accountant,
                name,
                round_id=body.round_id,
                described=described,
                released=released,
                reason=body.reason,
                actor=token.name,
                collected_on=body.collected_on,
                collected_until=body.collected_until,
                reaches=token.sees,
            )
        )
    except Conflict:
        await refuse_foreign(service, token, body.round_id)
        raise
    return JSONResponse(decision_document(answer))


async def _decision(
    service: Service, request: RoundRequest, answer: Outcome | Pending, *, waited: float | None
) -> JSONResponse:
    headers = {"Location": f"{service.root_path}/v1/rounds/" + quoted(request.round_id, safe="")}
    if waited is not None:
        headers["Preference-Applied"] = f"wait={waited:g}"
    document = decision_document(answer)
    if isinstance(answer, Admitted):
        return JSONResponse(document, 201, headers)
    if isinstance(answer, Pending):
        return JSONResponse(document, 202, {**headers, "Retry-After": "1"})
    fits = document_of(await service.fits_instead(request))
    return problem(REFUSED, answer.message, headers=headers, members={**document, "fits": fits})
