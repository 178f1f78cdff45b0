"""Statements of cohorts as files for people, from their pages; a long one is made while the browser waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.dependencies import Asked, Auditor, in_thread, seen_cohort
from shuffle_ledger.ledger.api.pages.routes import page
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.evidence.statement_request import StatementWanted
from shuffle_ledger.ledger.operations import Unfinished

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
) -> Response:
    """Answer with a statement as a file, or with a page that asks for it again until it is made.

    Args:
        cohort: what it is about.
        form: of the file.
        request: for the page.
        token: who asks.
        service: the server's.
    """
    name = seen_cohort(token, cohort)
    statement_file = service.dispatch.statement_files.get(form)
    if statement_file is None:
        raise NotFound(f"this server makes no statements as {form}")

    def made(accountant: Accountant, tell: Progress) -> bytes:
        wanted = StatementWanted(cohorts=(name,))
        found = wanted.made(service.store, accountant, made_at=datetime.now(UTC), progress=tell)
        return statement_file(found)

    await in_thread(service.store.cohort, name)
    content = await service.long_answers.get((form, name), made, wait_seconds=WAIT_SECONDS)
    if isinstance(content, Unfinished):
        place = f"{service.root_path}/cohorts/{quote(name, safe='')}/statement.{form}"
        answer = page("making.html.jinja", request, status=202, cohort=name, progress=content)
        answer.headers["Refresh"] = f"{REFRESH_SECONDS}; url={place}"
        return answer
    named = quote(f"statement-{name}.{form}", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{named}", "Cache-Control": "no-store"}
    return Response(content, media_type=_TYPES[form], headers=headers)
