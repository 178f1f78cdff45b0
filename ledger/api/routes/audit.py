"""Routes for auditors: the chain, its heads, and the replay of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.api.dependencies import (
    Asked,
    Auditor,
    CohortName,
    Limit,
    Prefer,
    Service,
    StatementId,
    VerificationId,
    in_thread,
    refuse_limited,
    seen_cohort,
    seen_name,
    wait_of,
)
from shuffle_ledger.ledger.api.description import ANSWERS, BUNDLE_TYPE, BUNDLED, STATED, VERIFIED, answers
from shuffle_ledger.ledger.api.jobs import WAIT_SECONDS, Job, Wanted, Work
from shuffle_ledger.ledger.api.schemas.audit import LedgerStanding, MakeBundle, MakeStatement, VerifyChains
from shuffle_ledger.ledger.api.schemas.strict_body import StrictRoute
from shuffle_ledger.ledger.checkpoints.schedule import trusted_key
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.evidence.statement_request import cohort_names
from shuffle_ledger.ledger.reports.budgets import heads, heads_page
from shuffle_ledger.ledger.reports.events import CURSOR_PATTERN, events_after
from shuffle_ledger.ledger.reports.listing import PAGE_MAX, entries_after
from shuffle_ledger.ledger.reports.published_entries import page_of
from shuffle_ledger.ledger.storage.anchor import standing_after
from shuffle_ledger.ledger.values.documents import document_of, json_parts
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.verification.verifier import verify

router = APIRouter(prefix="/v1", tags=["auditing"], route_class=StrictRoute)

_PARTS_DEPTH = 4  # of a statement's JSON: the statement, its cohorts, each of them, and its lists


@router.get("/cohorts/{cohort}/entries", responses=answers(200, ANSWERS.entries, "A page of entries."))
async def entries(
    cohort: CohortName,
    token: Auditor,
    service: Asked,
    after: Annotated[int, Query(ge=0, lt=1 << 62, description="Only entries behind this sequence.")] = 0,
    limit: Limit = 100,
) -> JSONResponse:
    """Read a cohort's chain in pages: go on with `after` until it is null."""
    name = seen_cohort(token, cohort)
    page = await in_thread(entries_after, service.store, name, after=after, limit=limit)
    return JSONResponse(document_of(page_of(page)))


@router.get("/events", responses=answers(200, ANSWERS.events, "A page of the feed."))
async def events(
    token: Auditor,
    service: Asked,
    *,
    after: Annotated[
        str | None,
        Query(pattern=CURSOR_PATTERN, description="Go on behind this cursor, of an event or of a page."),
    ] = None,
    limit: Limit = 100,
    cohort: Annotated[
        str | None, Query(max_length=200, description="Only of this cohort and its windows.")
    ] = None,
    kind: Annotated[list[EntryKind] | None, Query(description="Only of this kind; may be repeated.")] = None,
) -> JSONResponse:
    """Read the entries of all chains the token sees, once each, in one order: go on with `after`."""
    cohorts = token.cohorts
    if cohort is not None:
        cohorts = (seen_name(token, cohort),)
        await in_thread(service.store.cohort, cohort)  # a name that was misspelled is not an empty feed
    page = await in_thread(
        events_after, service.store, after=after, limit=limit, cohorts=cohorts, kinds=kind or ()
    )
    return JSONResponse(document_of(page))


def _sees(token: AccessToken) -> Callable[[str], bool] | None:
    return None if token.cohorts is None else token.sees


@router.get("/heads", responses=answers(200, ANSWERS.heads, "The heads of the chains."))
async def list_heads(
    token: Auditor,
    service: Asked,
    after: Annotated[
        str | None, Query(max_length=200, description="Only chains of names behind this one.")
    ] = None,
    limit: Annotated[
        int | None, Query(ge=1, le=PAGE_MAX, description="How many at most; left out: 1000 behind `after`.")
    ] = None,
) -> JSONResponse:
    """Read the heads of all chains the token sees: saved elsewhere, they show a later rewriting.

    Without parameters, all of one moment. With `after` or `limit`, a page: go on with its `after` until it is
    null; each page is of another moment.
    """
    if after is not None or limit is not None:
        page = partial(heads_page, after=after or "", limit=limit or PAGE_MAX, sees=_sees(token))
        return JSONResponse(await in_thread(page, service.store))
    found = await in_thread(heads, service.store)
    seen = [head for head in found["heads"] if token.sees(head["cohort"])]
    return JSONResponse({**found, "heads": seen})


@router.post("/cohorts/{cohort}/verification", responses=VERIFIED)
async def verification_of_one(
    cohort: CohortName,
    token: Auditor,
    service: Asked,
    entries: Annotated[
        Literal["new", "all"], Query(description="`new`: only those behind the last verified position.")
    ] = "all",
    prefer: Prefer = None,
) -> Response:
    """Replay a cohort's chain, and compute an even sample of its numbers again.

    `200` with the findings, or `202` as `POST /v1/verification`.
    """
    wanted = VerifyChains(cohort=seen_cohort(token, cohort), entries=entries)
    return await _verified(service, token, wanted, prefer)


@router.post("/verification", responses=VERIFIED)
async def verification(body: VerifyChains, token: Auditor, service: Asked, prefer: Prefer = None) -> Response:
    """Replay one chain or all, compute numbers again, and compare with heads that were kept elsewhere.

    `200` with the findings, if there are any within 25 seconds or as long as `Prefer: wait=N` says; else
    `202`: it goes on in the background, and `Location` says where the findings will be.
    """
    if body.cohort is not None:
        seen_name(token, body.cohort)
    return await _verified(service, token, body, prefer)


@router.get("/verifications/{verification_id}", responses=VERIFIED)
async def kept_verification(
    verification_id: VerificationId, token: Auditor, service: Asked, prefer: Prefer = None
) -> Response:
    """Read the findings of a verification in the background; `202` with its progress until it is finished."""
    return await _answered(service, service.jobs.find(token, verification_id, kind="verification"), prefer)


@router.post("/standing", responses=answers(200, ANSWERS.standing, "Where all chains end."))
async def standing(body: LedgerStanding, token: Auditor, service: Asked) -> JSONResponse:
    """Read which ledger this is and where all its chains end, to sign it with a key that is not here.

    Answers `503`, type `...:behind_checkpoint`, when the ledger lacks what the earlier checkpoint has seen.
    """
    refuse_limited(token)
    found = await in_thread(standing_after, service.store, body.earlier())
    named = [
        {"cohort": head.cohort, "sequence": head.sequence, "digest": head.digest.hex()}
        for head in found.heads
    ]
    return JSONResponse(document_of({"ledger_id": found.ledger_id, "at": found.at, "heads": named}))


@router.post("/statements", responses=STATED)
async def statement(body: MakeStatement, token: Auditor, service: Asked, prefer: Prefer = None) -> Response:
    """State what was promised to the users of cohorts, and whether it was kept.

    `200` with the statement, if it is made within 25 seconds or as long as `Prefer: wait=N` says; else `202`:
    it is made in the background, and `Location` says where it will be.
    """
    wanted = body.wanted(_named(token, body.cohorts))
    if wanted.cohorts is None:
        refuse_limited(token)

    def made(accountant: Accountant, tell: Progress) -> bytes:
        found = wanted.made(service.store, accountant, made_at=datetime.now(UTC), progress=tell)
        return b"".join(json_parts(found, depth=_PARTS_DEPTH))

    asked = Wanted(kind="statement", what=wanted, cohorts=wanted.cohorts)
    return await _begun(service, asked, made, prefer)


@router.get("/statements/{statement_id}", responses=STATED)
async def kept_statement(
    statement_id: StatementId, token: Auditor, service: Asked, prefer: Prefer = None
) -> Response:
    """Read a statement that was made in the background; `202` with its progress until it is finished."""
    return await _answered(service, service.jobs.find(token, statement_id, kind="statement"), prefer)


async def _begun(service: Service, wanted: Wanted, work: Work, prefer: str | None) -> Response:
    job = service.jobs.begin(wanted, work)
    answer = await _answered(service, job, prefer)
    if not job.is_kept:
        service.jobs.forget(job)
    return answer


async def _answered(service: Service, job: Job, prefer: str | None) -> Response:
    waited = wait_of(prefer)
    headers = {} if waited is None else {"Preference-Applied": f"wait={waited:g}"}
    found = await job.made(wait_seconds=WAIT_SECONDS if waited is None else waited)
    if found is not None:
        return Response(found, media_type="application/json", headers=headers)
    job.is_kept = True
    headers["Location"] = f"{service.root_path}/v1/{job.wanted.kind}s/{job.job_id}"
    return JSONResponse(document_of(job.progress()), 202, {**headers, "Retry-After": "1"})


@router.post("/bundles", response_class=Response, responses=BUNDLED)
async def bundle(body: MakeBundle, token: Auditor, service: Asked) -> Response:
    """Read the evidence of cohorts in one file, verified where no ledger is. It names every cohort."""
    refuse_limited(token)
    cohorts, checkpoint = _named(token, body.cohorts), body.signed()

    def made(_accountant: Accountant) -> bytes:
        return make_bundle(service.store, cohort_names(service.store, cohorts), checkpoint=checkpoint).data

    return Response(await service.auditing.run(made), media_type=BUNDLE_TYPE)


def _named(token: AccessToken, cohorts: list[str] | None) -> tuple[str, ...] | None:
    return None if cohorts is None else tuple(seen_name(token, name) for name in cohorts)


async def _verified(
    service: Service, token: AccessToken, wanted: VerifyChains, prefer: str | None
) -> Response:
    if wanted.cohort is None:
        refuse_limited(token)
    saved = wanted.saved()

    def made(accountant: Accountant, tell: Progress) -> bytes:
        found = verify(
            service.store,
            accountant,
            cohort=wanted.cohort,
            against=saved,
            numbers=wanted.numbers,
            positions_of=trusted_key(service.settings) if wanted.entries == "new" else None,
            progress=tell,
        )
        return b"".join(json_parts(found, depth=_PARTS_DEPTH))

    what = hashlib.sha256(wanted.model_dump_json().encode()).digest()
    cohorts = None if wanted.cohort is None else (wanted.cohort,)
    return await _begun(service, Wanted(kind="verification", what=what, cohorts=cohorts), made, prefer)
