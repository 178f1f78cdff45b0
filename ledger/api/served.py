"""The operations that a server answers itself: it registers with its dispatch, makes long answers,
remembers others, and knows its own state. Everything else is answered as `ledger.answering` does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote as quoted

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import operations
from shuffle_ledger.ledger.answering.calls import Call, answer_to
from shuffle_ledger.ledger.answers.budgets import BudgetStatement
from shuffle_ledger.ledger.api.dependencies import Service, in_thread, refuse_foreign
from shuffle_ledger.ledger.api.long_answers import WAIT_SECONDS
from shuffle_ledger.ledger.api.metrics import CONTENT_TYPE
from shuffle_ledger.ledger.api.problems import REFUSED, TOO_LARGE, problem
from shuffle_ledger.ledger.decisions.incidents import cohort_or_parent
from shuffle_ledger.ledger.decisions.outcomes import present_answer
from shuffle_ledger.ledger.decisions.quoting import check_without_slots, is_first_sample
from shuffle_ledger.ledger.errors import Conflict, LedgerError, NotFound, TryAgain
from shuffle_ledger.ledger.evidence.statement_builder import Progress
from shuffle_ledger.ledger.health import health, health_document, retry
from shuffle_ledger.ledger.operations import Operation, Unfinished
from shuffle_ledger.ledger.questions.audits import VerifyChains, VerifyCohort
from shuffle_ledger.ledger.questions.cohorts import ShowBudget
from shuffle_ledger.ledger.questions.fields import Nothing
from shuffle_ledger.ledger.questions.rounds import OfRound, RecordIncident, RegisterRound
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.values.documents import Json, document_of, json_parts
from shuffle_ledger.ledger.values.requests import Admitted, Incident, Outcome, Pending, RoundRequest

QUESTION_MAX = 1 << 16  # characters of a calculator's question; a larger one would take very long
PUBLISHED_SECONDS = 10  # an answer that anyone may ask for is kept so long, here and in caches
_PARTS_DEPTH = 4  # of a statement's JSON: the statement, its cohorts, each of them, and its lists


@dataclass(frozen=True, kw_only=True)
class ServedAsk:
    """One request for an operation."""

    operation: Operation[..., Any]
    service: Service
    call: Call
    request: Request
    waited: float | None  # seconds that it says it waits; None: it does not say

    @property
    def preferred(self) -> dict[str, str]:
        """The header that says that the request was waited for."""
        return {} if self.waited is None else {"Preference-Applied": f"wait={self.waited:g}"}

    async def answered(self, asked: Any) -> Any:
        """Return what the function of `ledger.answering` answers, on its thread."""
        function, at = answer_to(self.operation)
        thread = at(asked) if callable(at) else at
        if thread is None:
            return await in_thread(function, self.call, asked)
        return await getattr(self.service, thread).run(
            lambda accountant: function(replace(self.call, computing=accountant), asked)
        )

    def response(self, answer: Any, headers: Mapping[str, str] | None = None) -> Response:
        """Return the response with an answer."""
        if isinstance(answer, str | bytes):
            return Response(answer, media_type=self.operation.media, headers=headers)
        return JSONResponse(operations.document(answer), self.operation.status, headers)


Served: TypeAlias = "Callable[[ServedAsk, Any], Awaitable[Any]]"
SERVED: dict[str, Served] = {}


def serves(*operation: Operation[..., Any]) -> Callable[[Served], Served]:
    """Return a decorator of a function that answers requests for some operations in the server's own way:
    with the answer, or with a response."""

    def kept(function: Served) -> Served:
        SERVED.update({each.name: function for each in operation})
        return function

    return kept


@serves(operations.SHOW_BUDGET)
async def show_budget(ask: ServedAsk, asked: ShowBudget) -> BudgetStatement:
    """Answer from memory while nothing moved, if it is about today."""
    name, service = ask.call.cohort(asked.cohort), ask.service
    if asked.on is not None:
        store, day = service.store, asked.on
        return await service.reading.run(lambda accountant: budget(store, accountant, name, on=day))
    return await service.reading.run(lambda accountant: service.budgets.budget(accountant, name))


@serves(operations.PERMIT_KEYS, operations.REVOKED_PERMITS)
async def published(ask: ServedAsk, asked: Nothing) -> Response:
    """Answer as a moment ago: anyone may ask, so that the database is not asked each time."""
    kept, name, now = ask.service.published, ask.operation.name, time.monotonic()
    if name not in kept or now - kept[name][0] >= PUBLISHED_SECONDS:
        kept[name] = (now, await ask.answered(asked))
    return ask.response(kept[name][1], {"Cache-Control": f"public, max-age={PUBLISHED_SECONDS}"})


@serves(operations.REGISTER_ROUND)
async def register(ask: ServedAsk, asked: RegisterRound) -> Response:
    """Register a round, and have it decided as the server's dispatch says."""
    service, call = ask.service, ask.call
    # Before the round is looked at: no cohort, no answer.
    names = await in_thread(call.audience, asked.named(), round_id=asked.round_id)
    request = asked.request(names, team=call.team)
    token = ask.request.state.token
    service.door.let_guess(token)
    if not asked.accept_warnings and await in_thread(is_first_sample, call.store, request):
        await service.pricing.run(lambda accountant: check_without_slots(call.store, accountant, request))
    try:
        answer = await service.registered(request, actor=call.actor, wait_seconds=ask.waited)
    except Conflict:
        await refuse_foreign(service, token, request.round_id)
        raise
    return await _decision(ask, request, answer)


@serves(operations.RETRY_ROUND)
async def retry_(ask: ServedAsk, asked: OfRound) -> Response:
    """Have a round decided again, as `register`."""
    service, store = ask.service, ask.service.store
    name = await in_thread(ask.call.round, asked.round_id)
    await in_thread(retry, store, name)
    stored = await in_thread(store.round, name)
    answer = await in_thread(present_answer, store, stored)
    if isinstance(answer, Pending):
        answer = await service.decided(answer, wait_seconds=ask.waited)
    return await _decision(ask, RoundRequest.from_bytes(stored.content), answer)


async def _decision(ask: ServedAsk, request: RoundRequest, answer: Outcome | Pending) -> Response:
    location = f"{ask.service.root_path}/v1/rounds/" + quoted(request.round_id, safe="")
    headers = {"Location": location, **ask.preferred}
    content = operations.document(answer)
    if isinstance(answer, Admitted):
        return JSONResponse(content, 201, headers)
    if isinstance(answer, Pending):
        return JSONResponse(content, 202, {**headers, "Retry-After": "1"})
    fits = document_of(await ask.service.fits_instead(request))
    members: dict[str, Json] = {**content, "fits": fits}  # type: ignore[dict-item]  # the document of a decision
    return problem(REFUSED, answer.message, headers=headers, members=members)


@serves(operations.RECORD_INCIDENT)
async def record_incident(ask: ServedAsk, asked: RecordIncident) -> Incident:
    """Record it, and count the identifiers of others that a token names."""
    service, token = ask.service, ask.request.state.token
    await in_thread(cohort_or_parent, service.store, ask.call.cohort(asked.cohort))
    service.door.let_guess(token)
    with contextlib.suppress(NotFound):  # it would be told to every cohort of a round of that identifier
        await refuse_foreign(service, token, asked.round_id)
    try:
        found: Incident = await ask.answered(asked)
    except Conflict:
        await refuse_foreign(service, token, asked.round_id)
        raise
    return found


@serves(operations.AMPLIFY, operations.COMPOSE, operations.CALIBRATE)
async def calculated(ask: ServedAsk, asked: Any) -> Any:
    """Answer a question that is computed once for all who ask it.

    Raises:
        TryAgain: too many others wait, or it takes longer than `decision_timeout_seconds`. In the second case
            the computation continues, and the same question gets its answer later.
    """
    key = _written(ask.operation, asked)
    if len(key) > QUESTION_MAX:
        detail = f"The question, written out, may have at most {QUESTION_MAX} characters; it has {len(key)}."
        return problem(TOO_LARGE, detail)
    try:
        async with asyncio.timeout(ask.service.settings.decision_timeout_seconds):
            return await ask.service.calculations.get(key, partial(ask.answered, asked))
    except TimeoutError:
        raise TryAgain("the answer is still being computed; ask the same again later") from None


def _written(operation: Operation[..., Any], asked: Any) -> str:
    return json.dumps([operation.name, operation.request(asked)["body"]], sort_keys=True)


@serves(operations.VERIFY_COHORT)
async def verify_cohort(ask: ServedAsk, asked: VerifyCohort) -> Response:
    """Verify one chain, as `long_answer`."""
    verifying: ServedAsk = replace(ask, operation=operations.VERIFY)
    answer: Response = await long_answer(verifying, VerifyChains(cohort=asked.cohort))
    return answer


@serves(operations.VERIFY, operations.MAKE_STATEMENT)
async def long_answer(ask: ServedAsk, asked: Any) -> Response:
    """Answer with what takes long, or with how far it is; equal questions share it."""
    ask.call.named(asked.cohorts)
    function, _ = answer_to(ask.operation)

    def work(accountant: Accountant, tell: Progress) -> bytes:
        found = function(replace(ask.call, computing=accountant, progress=tell), asked)
        return b"".join(json_parts(found, depth=_PARTS_DEPTH))

    question = hashlib.sha256(_written(ask.operation, asked).encode()).digest()
    wait_seconds = WAIT_SECONDS if ask.waited is None else ask.waited
    found = await ask.service.long_answers.get(question, work, wait_seconds=wait_seconds)
    if isinstance(found, Unfinished):
        return JSONResponse(document_of(found), 202, {**ask.preferred, "Retry-After": "1"})
    return Response(found, media_type="application/json", headers=ask.preferred)


@serves(operations.ALIVE)
async def alive(_ask: ServedAsk, _asked: object) -> operations.ServerState:
    """Answer that the server is alive."""
    return operations.ServerState(status="ok")


@serves(operations.READY)
async def ready(ask: ServedAsk, _asked: object) -> operations.ServerState | Response:
    """Answer whether the server takes requests."""
    if ask.service.is_ending:
        return JSONResponse({"status": "ending"}, 503)
    try:
        await in_thread(ask.service.store.check)
    except LedgerError:
        return JSONResponse({"status": "unavailable"}, 503)
    return operations.ServerState(status="ok")


@serves(operations.HEALTH)
async def health_(ask: ServedAsk, _asked: object) -> Json:
    """Answer with what waits and what is wrong, of the broker too."""
    ask.call.about_all()
    found = await in_thread(ask.service.dispatch.health or partial(health, ask.service.store))
    return health_document(found)


@serves(operations.SHOW_METRICS)
async def show_metrics(ask: ServedAsk, _asked: object) -> Response:
    """Answer with the metrics."""
    ask.call.about_all()
    return Response(await in_thread(ask.request.app.state.metrics.text), media_type=CONTENT_TYPE)
