"""Routes about cohorts: open, list, show, budget, quote, forecast."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from shuffle_ledger.ledger.api.dependencies import (
    Asked,
    CohortName,
    Limit,
    Manager,
    Reader,
    TeamName,
    in_thread,
    named_team,
    seen_cohort,
)
from shuffle_ledger.ledger.api.description import ANSWERS, OPENED, answers
from shuffle_ledger.ledger.api.schemas.requests import (
    ChangeBudget,
    ForecastRounds,
    OpenCohort,
    QuoteRounds,
)
from shuffle_ledger.ledger.api.schemas.strict_body import StrictRoute
from shuffle_ledger.ledger.decisions.budget_changes import change_budget
from shuffle_ledger.ledger.decisions.opening import check_opening, open_cohort
from shuffle_ledger.ledger.decisions.quotas import quotas_of, set_quota
from shuffle_ledger.ledger.decisions.quoting import quote_batch
from shuffle_ledger.ledger.errors import NotAllowed
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.values.documents import document_of
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.texts import checked_text

COHORTS_MAX = 1000

router = APIRouter(prefix="/v1", tags=["cohorts"], route_class=StrictRoute)


@router.post("/cohorts", status_code=201, responses=OPENED)
async def open_(body: OpenCohort, token: Manager, service: Asked) -> JSONResponse:
    """Open a cohort with a budget. The same name with the same content changes nothing.

    `409` (`unaccepted_warnings`): its values are unusual; `accept_warnings` says that they are meant.
    """
    if not token.sees(checked_text("name", body.name)):
        raise NotAllowed("the token is limited to other cohorts")
    if not body.accept_warnings:
        await in_thread(check_opening, service.store, body.cohort())
    opening, plan = body.opening(), body.planned()
    desk = service.deciding if body.plan is None else service.auditing  # composing a plan may take minutes
    opened = await desk.run(
        lambda accountant: open_cohort(
            service.store,
            actor=token.name,
            plan=plan,
            approximate_share=body.approximate_share,
            accountant=accountant,
            **opening,
        )
    )
    return JSONResponse(document_of(opened), 201)


@router.get("/cohorts", responses=answers(200, ANSWERS.cohorts, "The cohorts in the order of their names."))
async def list_(
    token: Reader,
    service: Asked,
    after: Annotated[str, Query(max_length=200, description="Only names behind this one.")] = "",
    limit: Limit = COHORTS_MAX,
) -> JSONResponse:
    """List the cohorts that the token sees, in the order of their names."""
    listed = partial(service.store.cohorts, only=token.cohorts, parts=False, after=after, limit=limit)
    return JSONResponse(document_of(await in_thread(listed)))


@router.get("/cohorts/{cohort}", responses=answers(200, ANSWERS.shown_cohort, "The cohort."))
async def show(cohort: CohortName, token: Reader, service: Asked) -> JSONResponse:
    """Show a cohort, with the slots of its plan and how many of each are taken."""
    name = seen_cohort(token, cohort)
    return JSONResponse(document_of(await in_thread(shown_cohort, service.store, name)))


@router.get("/cohorts/{cohort}/budget", responses=answers(200, ANSWERS.budget, "The budget."))
async def show_budget(cohort: CohortName, token: Reader, service: Asked) -> JSONResponse:
    """Show what a cohort may spend, has spent, and has left."""
    name = seen_cohort(token, cohort)
    found = await service.reading.run(lambda accountant: service.budgets.budget(accountant, name))
    return JSONResponse(document_of(found))


@router.put(
    "/cohorts/{cohort}/budget", responses=answers(200, ANSWERS.cohort, "The cohort, with that budget.")
)
async def change_budget_(
    cohort: CohortName, body: ChangeBudget, token: Manager, service: Asked
) -> JSONResponse:
    """Change a cohort's epsilon, by an entry that says who did it and why. Repeating it changes nothing."""
    name = seen_cohort(token, cohort)
    found = await in_thread(service.store.cohort, name)
    if found.epsilon_budget != body.epsilon:
        work = partial(change_budget, service.store, name=name, actor=token.name, **body.model_dump())
        found = await service.deciding.run(lambda _: work())
    return JSONResponse(document_of(found))


@router.get("/cohorts/{cohort}/quotas", responses=answers(200, ANSWERS.quotas, "The quotas, by team."))
async def quotas_(cohort: CohortName, token: Reader, service: Asked) -> JSONResponse:
    """List what teams may use of a cohort's budget, and have used."""
    name = seen_cohort(token, cohort)
    return JSONResponse(document_of(await in_thread(quotas_of, service.store, name)))


@router.put(
    "/cohorts/{cohort}/quotas/{team}", responses=answers(200, ANSWERS.quota, "The team's quota from now on.")
)
async def set_quota_(
    cohort: CohortName, team: TeamName, body: ChangeBudget, token: Manager, service: Asked
) -> JSONResponse:
    """Set what a team's rounds may use of a cohort's budget. It is a limit, and reserves nothing."""
    work = partial(
        set_quota,
        service.store,
        cohort=seen_cohort(token, cohort),
        team=named_team(team),
        actor=token.name,
        **body.model_dump(),
    )
    return JSONResponse(document_of(await service.deciding.run(lambda _: work())))


@router.post("/cohorts/{cohort}/quote", responses=answers(200, ANSWERS.quote, "The prices."))
async def quote_(cohort: CohortName, body: QuoteRounds, token: Reader, service: Asked) -> JSONResponse:
    """Price rounds as if they were registered now, in this order. Leaves no trace and promises nothing."""
    name = seen_cohort(token, cohort)
    await in_thread(service.store.cohort, name)  # before any round is looked at: no cohort, no answer
    requests = [
        RoundRequest(round_id="quote", cohort=name, round=each.round(), team=token.team)
        for each in body.rounds
    ]
    work = partial(quote_batch, service.store, requests=requests, fits=body.fits)
    return JSONResponse(document_of(await service.pricing.run(work)))


@router.post("/cohorts/{cohort}/forecast", responses=answers(200, ANSWERS.forecast, "The forecast."))
async def forecast_(cohort: CohortName, body: ForecastRounds, token: Reader, service: Asked) -> JSONResponse:
    """Say how many more rounds fit, what limits them, and on which day a schedule ends. Reserves nothing."""
    name = seen_cohort(token, cohort)
    await in_thread(service.store.cohort, name)  # before the round is looked at: no cohort, no answer
    wanted, today = body.wanted(), datetime.now(UTC).date()
    found = await service.pricing.run(
        lambda accountant: forecast(service.store, accountant, name, wanted, today=today)
    )
    return JSONResponse(document_of(found))
