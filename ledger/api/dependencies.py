"""What routes share: the store, the threads, how rounds get decided, and what somebody may see."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ParamSpec, TypeVar
from urllib.parse import unquote

import anyio
from fastapi import Depends, Request

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger import telemetry
from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.answering.calls import Call, seen_name, sees_round
from shuffle_ledger.ledger.answers.quotes import Fits
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.api.auth.middleware import Door
from shuffle_ledger.ledger.api.auth.sessions import Sessions
from shuffle_ledger.ledger.api.line import DecisionLine
from shuffle_ledger.ledger.api.long_answers import LongAnswers
from shuffle_ledger.ledger.api.memory import AnswerMemory
from shuffle_ledger.ledger.api.overview import Overview
from shuffle_ledger.ledger.api.pages.spending import Continuation
from shuffle_ledger.ledger.api.recent import RecentBudgets
from shuffle_ledger.ledger.decisions.admission import register
from shuffle_ledger.ledger.decisions.outcomes import present_answer
from shuffle_ledger.ledger.decisions.quoting import fits_instead
from shuffle_ledger.ledger.errors import Conflict, LedgerError, NotAllowed
from shuffle_ledger.ledger.evidence.statement import Statement
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.reports.profile import ProfilePoint
from shuffle_ledger.ledger.roles import Permission, refusal
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.documents import Json
from shuffle_ledger.ledger.values.requests import Outcome, Pending, RoundRequest

WAIT_SECONDS_MAX = 300.0
POLL_FIRST_SECONDS, POLL_MAX_SECONDS = 0.02, 0.5
FITS_LINE_MAX = 8  # with more computations waiting, a refusal does not compute what still fits
LEFT_OVER_MAX = 10_000
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})", re.ASCII)
Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """How a registered round gets decided; the composition root says, for `ledger` knows no broker."""

    decide: Callable[[Accountant, str], Outcome | Pending]  # in this process
    publish: Callable[[str], bool] | None = None  # to workers; None: no broker, `decide` is used
    health: Callable[[], Health] | None = None  # with checkpoints and queues; None: the ledger's own
    # Statements as files for people, by the ending of their names.
    statement_files: Mapping[str, Callable[[Statement], bytes]] = field(default_factory=dict)


@dataclass(kw_only=True)
class Service:
    """One server's view of the ledger."""

    settings: Settings
    store: Store
    dispatch: Dispatch
    sessions: Sessions
    deciding: AccountantThread
    pricing: AccountantThread
    calculating: AccountantThread  # of the command line's precision
    reading: AccountantThread
    budgets: RecentBudgets  # on the thread for reading
    auditing: AccountantThread
    door: Door
    overview: Overview  # on the thread for reading
    observe_decision: Callable[[str, float], None] = lambda _outcome, _seconds: None
    root_path: str = ""  # before every address in answers; empty: the server has the whole host
    long_answers: LongAnswers  # on the thread for auditing
    is_ending: bool = False  # the server was asked to stop, and answers until others take its place
    profiles: AnswerMemory[tuple[ProfilePoint, ...]] = field(default_factory=AnswerMemory)
    continuations: AnswerMemory[Continuation | None] = field(default_factory=AnswerMemory)
    calculations: AnswerMemory[Json] = field(default_factory=AnswerMemory)
    published: dict[str, tuple[float, Any]] = field(default_factory=dict)  # answers to all
    _fits: AnswerMemory[Fits] = field(default_factory=AnswerMemory)
    _line: DecisionLine = field(init=False)
    _tasks: set[asyncio.Task[Outcome | Pending]] = field(default_factory=set)
    _begun: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin the line of the thread for decisions."""
        self._line = DecisionLine(self.store, self.deciding)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on with some work that no answer waits for; at most one at a time, others are dropped."""
        if self._begun:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("work after an answer failed: %s", task.exception())

    async def registered(
        self, request: RoundRequest, *, actor: str, wait_seconds: float | None
    ) -> Outcome | Pending:
        """Register a round and have it decided: at once where that is quick, else as `decided`."""
        began = time.perf_counter()
        answer = await self._registered(request, actor=actor, wait_seconds=wait_seconds)
        outcome, seconds = type(answer).__name__.lower(), time.perf_counter() - began
        self.observe_decision(outcome, seconds)
        telemetry.decided(outcome)
        return answer

    async def _registered(
        self, request: RoundRequest, *, actor: str, wait_seconds: float | None
    ) -> Outcome | Pending:
        # With a broker, too: a known kind does not wait behind new ones that workers compute.
        if self.deciding.is_quick:
            outcome = await self._line.admit_at_once(request, actor=actor)
            if outcome is not None:
                return outcome
        answer = await in_thread(register, self.store, request, actor=actor)
        if isinstance(answer, Pending):
            return await self.decided(answer, wait_seconds=wait_seconds)
        return answer

    async def decided(self, pending: Pending, *, wait_seconds: float | None) -> Outcome | Pending:
        """Return a round's outcome; Pending if it is not decided after `wait_seconds`.

        With a broker, None does not wait; without one, a decision here is waited for as settings allow.
        """
        if self.dispatch.publish is not None:
            await in_thread(self.dispatch.publish, pending.round_id)
            return await self._polled(pending, wait_seconds or 0.0)
        task = asyncio.ensure_future(
            self.deciding.run(lambda accountant: self.dispatch.decide(accountant, pending.round_id))
        )
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        allowed = self.settings.decision_timeout_seconds if wait_seconds is None else wait_seconds
        done, _ = await asyncio.wait({task}, timeout=allowed)
        return task.result() if done else pending

    async def decide_left_over(self) -> None:
        """Decide what a server that died left undecided, when there are no workers to do so."""
        if self.dispatch.publish is not None:
            return
        for round_id in await in_thread(self.store.pending, limit=LEFT_OVER_MAX):
            try:
                await self.deciding.run(functools.partial(_decided, self.dispatch, round_id))
            except Exception:  # noqa: BLE001 - counted with that round, which must not hold up the others
                _log.exception("round %s, left over, could not be decided", round_id)

    async def fits_instead(self, request: RoundRequest) -> Fits | None:
        """Return what would fit in place of a refused round; None when the server is too busy to say, and of
        a round of several cohorts, of one with windows, or of a team.
        """
        if request.audience or request.team or self.store.has_windows(request.members):
            return None
        view = await in_thread(self.store.view, request.cohort)
        key = (view.cohort, view.spent, frozenset(view.local.items()), request.round)
        if key not in self._fits and self.pricing.waiting >= FITS_LINE_MAX:
            return None

        async def computed() -> Fits:
            return await self.pricing.run(lambda accountant: fits_instead(self.store, accountant, request))

        try:
            return await self._fits.get(key, computed)
        except Exception:  # noqa: BLE001 - the refusal stands, and is worth more than this
            _log.exception("what would fit instead of round %s is not known", request.round_id)
            return None

    async def _polled(self, pending: Pending, wait_seconds: float) -> Outcome | Pending:
        loop = asyncio.get_running_loop()
        ends, pause = loop.time() + wait_seconds, POLL_FIRST_SECONDS
        while True:
            answer = await in_thread(self._outcome, pending)
            if not isinstance(answer, Pending) or loop.time() + pause >= ends:
                return answer
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_MAX_SECONDS)

    def _outcome(self, pending: Pending) -> Outcome | Pending:
        return present_answer(self.store, self.store.round(pending.round_id))

    def _finished(self, task: asyncio.Task[Outcome | Pending]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.warning("a decision failed: %s", task.exception())


def _decided(dispatch: Dispatch, round_id: str, accountant: Accountant) -> Outcome | Pending:
    return dispatch.decide(accountant, round_id)


async def in_thread(
    work: Callable[Parameters, Answer], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Answer:
    """Return what `work` returns, in a thread of the pool."""
    return await anyio.to_thread.run_sync(functools.partial(work, *arguments, **named))


def service_of(request: Request) -> Service:
    """Return the server's service."""
    service: Service = request.app.state.service
    return service


class Needs:
    """A dependency: the bearer's token, if its role has a permission; raises NotAllowed."""

    def __init__(self, permission: Permission) -> None:
        self._permission = permission

    def __call__(self, request: Request) -> AccessToken:
        """Return the token."""
        token: AccessToken | None = request.state.token
        if token is None:
            raise LedgerError("a route that needs a token is open to strangers")
        if not token.may(self._permission):
            raise NotAllowed(refusal(token.role, self._permission))
        return token


def call_of(service: Service, token: AccessToken) -> Call:
    """Return a call of the bearer of a token."""
    return Call(
        store=service.store, settings=service.settings, actor=token.name, team=token.team, token=token
    )


def seen_cohort(token: AccessToken, segment: str) -> str:
    """Return the cohort's name that a path's segment is, as `seen_name`."""
    return seen_name(token, unquote(segment))


async def refuse_foreign(service: Service, token: AccessToken, round_id: str) -> None:
    """Say of an identifier that a cohort the token does not see uses only that it cannot be used."""
    found = await in_thread(service.store.round, round_id)
    if not sees_round(token, found):
        service.door.count_guess(token)
        raise Conflict(f"round {round_id!r}: this identifier cannot be used")


def wait_of(prefer: str | None) -> float | None:
    """Return the seconds that `Prefer: wait=N` asks for, None if it does not; others are ignored."""
    found = _WAIT.search(prefer) if prefer else None
    return min(float(found.group(1)), WAIT_SECONDS_MAX) if found else None


Asked = Annotated[Service, Depends(service_of)]
Reader = Annotated[AccessToken, Depends(Needs(Permission.READ))]
Registrar = Annotated[AccessToken, Depends(Needs(Permission.REGISTER))]
Auditor = Annotated[AccessToken, Depends(Needs(Permission.ENTRIES))]
