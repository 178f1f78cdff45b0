"""Statements of cohorts as files for people, from their pages; a long one is made while the browser waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.dependencies import Asked, Auditor, in_thread, seen_cohort
from shuffle_ledger.ledger.api.jobs import Wanted
from shuffle_ledger.ledger.api.pages.routes import page
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted

WAIT_SECONDS: Final = 5.0  # for a statement before the browser asks again
REFRESH_SECONDS: Final = 3
_TYPES: Final = {"html": "text/html", "pdf": "application/pdf", "json": "application/json"}

router = APIRouter(include_in_schema=False)


@router.get("/cohorts/{cohort}/statement.{form}")
async def statement_file(
    *,
    cohort: str,
    form: Literal["html", "pdf", "json"],
    request: Request,
    token: Auditor,
    service: Asked,
    begun: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """Answer with a statement as a file, or with a page that asks for it again until it is made.

    Args:
        cohort: what it is about.
        form: of the file.
        request: for the page.
        token: who asks.
        service: the server's.
        begun: the statement that is being made; None: make one.
    """
    name = seen_cohort(token, cohort)
    statement_file = service.dispatch.statement_files.get(form)
    if statement_file is None:
        raise NotFound(f"this server makes no statements as {form}")

    def made(accountant: Accountant, tell: Progress) -> bytes:
        found = wanted.made(service.store, accountant, made_at=datetime.now(UTC), progress=tell)
        return statement_file(found)

    if begun is not None:
        job = service.jobs.find(token, begun, kind="statement", form=form)
        if job.wanted.cohorts != (name,):
            raise NotFound(f"no statement {begun!r} is about this cohort")
    else:
        await in_thread(service.store.cohort, name)
        wanted = StatementWanted(cohorts=(name,))
        asked = Wanted(kind="statement", what=wanted, form=form, cohorts=wanted.cohorts)
        job = service.jobs.begin(asked, made)
    content = await job.made(wait_seconds=WAIT_SECONDS)
    if content is None:
        job.is_kept = True
        place = f"{service.root_path}/cohorts/{quote(name, safe='')}/statement.{form}?begun={job.job_id}"
        answer = page("making.html.jinja", request, status=202, cohort=name, progress=job.progress())
        answer.headers["Refresh"] = f"{REFRESH_SECONDS}; url={place}"
        return answer
    if not job.is_kept:
        service.jobs.forget(job)
    named = quote(f"statement-{name}.{form}", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{named}", "Cache-Control": "no-store"}
    return Response(content, media_type=_TYPES[form], headers=headers)
