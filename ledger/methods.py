"""The operations as methods: of a ledger in a database, and of one behind a server, with asyncio or without.

A method is written once, as a generator of steps: an operation that is asked, or a pause. A blocking ledger
performs them one after the other, an awaiting one awaits each of them.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

from shuffle_ledger.ledger import operations, questions
from shuffle_ledger.ledger.operations import Operation, Unfinished
from shuffle_ledger.ledger.values.requests import RoundState

if TYPE_CHECKING:
    from shuffle_ledger.ledger.answers.cohorts import ListedCohort
    from shuffle_ledger.ledger.answers.entries import Event, PublishedEntry
    from shuffle_ledger.ledger.answers.rounds import ListedRound
    from shuffle_ledger.ledger.evidence.statement import Statement
    from shuffle_ledger.ledger.evidence.statement_request import StatementWanted
    from shuffle_ledger.ledger.values.checkpoint import Checkpoint, CheckpointHead
    from shuffle_ledger.ledger.values.requests import Cohort, Quote, RoundRequest
    from shuffle_ledger.ledger.values.saved_heads import SavedHeads
    from shuffle_ledger.ledger.verification.number_checks import Numbers
    from shuffle_ledger.ledger.verification.verifier import VerificationReport

PAGE_ROWS = 500  # asked for at once; fewer make more requests

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Now = TypeVar("Now")
Later = TypeVar("Later")
Progress: TypeAlias = "Callable[[str, int, int], None]"  # told a step, and parts done of how many


@dataclass(frozen=True, kw_only=True)
class Ask:
    """An operation that is asked; its answer comes back."""

    operation: Operation[..., Any]
    asked: Any
    wait_seconds: float | None = None  # that a server may wait for the answer
    progress: Progress | None = None  # told how far the work is, where it is done here


@dataclass(frozen=True)
class Pause:
    """A pause of some seconds."""

    seconds: float


@dataclass(frozen=True)
class NextValues(Generic[Answer]):
    """The next values of a listing."""

    values: Sequence[Answer]


Steps = Generator[Ask | Pause, Any, Answer]
Pages = Generator[Ask | Pause | NextValues[Answer], Any, None]


class Blocking:
    """A ledger whose methods return when they are done."""

    def answer(self, ask: Ask) -> Any:
        """Return the answer of an operation."""
        raise NotImplementedError

    def perform(self, step: Ask | Pause) -> Any:
        """Return the answer of an operation, or pause."""
        return self.answer(step) if isinstance(step, Ask) else time.sleep(step.seconds)


class Awaiting:
    """A ledger whose methods are awaited."""

    async def answer(self, ask: Ask) -> Any:
        """Return the answer of an operation."""
        raise NotImplementedError

    async def perform(self, step: Ask | Pause) -> Any:
        """Return the answer of an operation, or pause."""
        import asyncio  # noqa: PLC0415 - what awaits has it; a blocking program does not wait for it

        return await (self.answer(step) if isinstance(step, Ask) else asyncio.sleep(step.seconds))


class Method(Generic[Parameters, Now, Later]):
    """A method of steps. A blocking ledger returns `Now`, an awaiting one `Later`."""

    def __init__(
        self, steps: Callable[..., Any], blocking: Callable[..., Any], awaiting: Callable[..., Any]
    ) -> None:
        functools.update_wrapper(self, steps)
        self._blocking = functools.wraps(steps)(
            lambda ledger, *given, **named: blocking(ledger, steps(ledger, *given, **named))
        )
        self._awaiting = functools.wraps(steps)(
            lambda ledger, *given, **named: awaiting(ledger, steps(ledger, *given, **named))
        )

    @overload
    def __get__(self, ledger: None, owner: type) -> Self: ...
    @overload
    def __get__(self, ledger: Blocking, owner: type) -> Callable[Parameters, Now]: ...
    @overload
    def __get__(self, ledger: Awaiting, owner: type) -> Callable[Parameters, Later]: ...
    def __get__(self, ledger: object, owner: type) -> Any:
        """Return the method of a ledger."""
        if ledger is None:
            return self
        return MethodType(self._awaiting if isinstance(ledger, Awaiting) else self._blocking, ledger)

    def __call__(self, ledger: Any, *given: Any, **named: Any) -> Any:
        """Call the method of a ledger through its class."""
        return self.__get__(ledger, type(ledger))(*given, **named)


def method(
    steps: Callable[Concatenate[Any, Parameters], Steps[Answer]],
) -> Method[Parameters, Answer, Coroutine[Any, Any, Answer]]:
    """Return the method whose steps end with its answer."""
    return Method(steps, _run, _awaited)


def listing(
    pages: Callable[Concatenate[Any, Parameters], Pages[Answer]],
) -> Method[Parameters, Iterator[Answer], AsyncIterator[Answer]]:
    """Return the method that yields values, page by page."""
    return Method(pages, _listed, _awaited_list)


def asks(
    operation: Operation[Parameters, Answer],
) -> Method[Parameters, Answer, Coroutine[Any, Any, Answer]]:
    """Return the method that asks one operation, with the arguments of its question."""
    return method(_Asking(operation))


class _Asking(Generic[Parameters, Answer]):
    """The steps that ask one operation. Only their signature and a call import the question's module."""

    def __init__(self, operation: Operation[Parameters, Answer]) -> None:
        self._operation = operation
        self.__doc__ = operation.about

    @property
    def __signature__(self) -> inspect.Signature:
        """The arguments of the question."""
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.signature(self._operation.asked)
        return signature.replace(parameters=[itself, *signature.parameters.values()])

    def __call__(self, _ledger: Any, /, *given: Parameters.args, **named: Parameters.kwargs) -> Steps[Answer]:
        """Ask the operation."""
        found: Answer = yield Ask(operation=self._operation, asked=self._operation.asked(*given, **named))
        return found


def _run(ledger: Blocking, steps: Steps[Answer]) -> Answer:
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            done: Answer = end.value
            return done
        answer = ledger.perform(step)


async def _awaited(ledger: Awaiting, steps: Steps[Answer]) -> Answer:
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            done: Answer = end.value
            return done
        answer = await ledger.perform(step)


def _listed(ledger: Blocking, pages: Pages[Answer]) -> Iterator[Answer]:
    answer: Any = None
    with suppress(StopIteration):
        while True:
            step = pages.send(answer)
            if isinstance(step, NextValues):
                yield from step.values
            answer = None if isinstance(step, NextValues) else ledger.perform(step)


async def _awaited_list(ledger: Awaiting, pages: Pages[Answer]) -> AsyncIterator[Answer]:
    answer: Any = None
    with suppress(StopIteration):
        while True:
            step = pages.send(answer)
            for value in step.values if isinstance(step, NextValues) else ():
                yield value
            answer = None if isinstance(step, NextValues) else await ledger.perform(step)


class Operations:
    """The operations of a ledger: each is a method, with arguments as of its question."""

    open_cohort = asks(operations.OPEN_COHORT)
    cohort = asks(operations.SHOW_COHORT)
    budget = asks(operations.SHOW_BUDGET)
    change_budget = asks(operations.CHANGE_BUDGET)
    close_cohort = asks(operations.CLOSE_COHORT)
    quotas = asks(operations.QUOTAS)
    set_quota = asks(operations.SET_QUOTA)
    quote = asks(operations.QUOTE)
    quote_for_all = asks(operations.QUOTE_FOR_ALL)
    forecast = asks(operations.FORECAST)
    forecast_for_all = asks(operations.FORECAST_FOR_ALL)
    round = asks(operations.SHOW_ROUND)
    settle = asks(operations.SETTLE)
    void = asks(operations.VOID)
    correct = asks(operations.CORRECT)
    record_incident = asks(operations.RECORD_INCIDENT)
    permit = asks(operations.ISSUE_PERMIT)
    permit_keys = asks(operations.PERMIT_KEYS)
    revoked_permits = asks(operations.REVOKED_PERMITS)
    settle_by_receipt = asks(operations.SETTLE_BY_RECEIPT)
    amplify = asks(operations.AMPLIFY)
    compose = asks(operations.COMPOSE)
    calibrate = asks(operations.CALIBRATE)
    standing = asks(operations.STANDING)

    @method
    def cohorts(self) -> Steps[list[ListedCohort]]:
        """Return the cohorts that the caller sees, in the order of their names, with what is used and left of
        their promises today."""
        found: list[ListedCohort] = []
        after = ""
        while True:
            page: list[ListedCohort] = yield _cohorts_behind(after)
            found += page
            if len(page) < PAGE_ROWS:
                return found
            after = page[-1].name

    @listing
    def each_cohort(self, *, after: str = "") -> Pages[ListedCohort]:
        """Yield the cohorts that the caller sees, in the order of their names, those behind `after`: in
        pages, so that the first ones are there soon."""
        while True:
            page: list[ListedCohort] = yield _cohorts_behind(after)
            yield NextValues(page)
            if len(page) < PAGE_ROWS:
                return
            after = page[-1].name

    @method
    def rehearse(
        self,
        requests: Sequence[RoundRequest],
        *,
        opening: Sequence[Cohort] = (),
        progress: Progress | None = None,
    ) -> Steps[tuple[Quote, ...]]:
        """Return what would be decided about new rounds of the caller's team, registered in this order, as
        `decisions.quoting.rehearse`.

        Args:
            requests: the rounds, one at least; their identifiers do not matter.
            opening: cohorts without plans that would be opened before; one that is open stays as it is.
            progress: told how many are decided, where that is done here.
        """
        asked = questions.rounds.RehearseRounds.of(requests, opening=opening)
        found: tuple[Quote, ...] = yield Ask(operation=operations.REHEARSE, asked=asked, progress=progress)
        return found

    @method
    def audience(self, audience: str, *, round_id: str | None = None) -> Steps[tuple[str, ...]]:
        """Return the cohorts that a selector or a list means, as `decisions.audiences.resolve_audience`."""
        asked = questions.rounds.ResolveAudience(audience, round_id=round_id)
        found: operations.Audience = yield Ask(operation=operations.AUDIENCE, asked=asked)
        return found.audience

    @listing
    def rounds(
        self,
        cohort: str | None = None,
        *,
        outcome: RoundState | None = None,
        since: datetime | None = None,
    ) -> Pages[ListedRound]:
        """Yield rounds in the order of registration, as `reports.round_lists.list_rounds` lists them.

        Args:
            cohort: only of this one; None: of every cohort that the caller sees.
            outcome: only rounds that are in this state now.
            since: only those registered then or later; with its zone.
        """
        asked = questions.rounds.ListRounds(cohort=cohort, outcome=outcome, since=since, limit=PAGE_ROWS)
        while True:
            page = yield Ask(operation=operations.LIST_ROUNDS, asked=asked)
            yield NextValues(page.rounds)
            if page.after is None:
                return
            asked = replace(asked, after=page.after)

    @listing
    def entries(self, cohort: str, *, after: int = 0) -> Pages[PublishedEntry]:
        """Yield a cohort's entries in order, from the one behind sequence `after`."""
        last: int | None = after
        while last is not None:
            asked = questions.audits.ListEntries(cohort=cohort, after=last, limit=PAGE_ROWS)
            page = yield Ask(operation=operations.LIST_ENTRIES, asked=asked)
            yield NextValues(page.entries)
            last = page.after

    @listing
    def events(
        self,
        *,
        after: str | None = None,
        cohort: str | None = None,
        kinds: Sequence[str] = (),
        poll_seconds: float | None = None,
    ) -> Pages[Event]:
        """Yield the entries of all chains that the caller sees, as `reports.events.events_after` orders them.

        Args:
            after: the `cursor` of the last event that was handled; None: from the first entry.
            cohort: only of this one, and of the periods of its windows.
            kinds: only of these kinds; empty: of all.
            poll_seconds: pause at the end of the feed before it is asked again, for ever; None: ends there.

        Raises:
            Conflict: the ledger has no event with this cursor.
        """
        asked = questions.audits.ListEvents(after=after, limit=PAGE_ROWS, cohort=cohort, kind=tuple(kinds))  # type: ignore[arg-type]  # the answering side checks them
        while True:
            page = yield Ask(operation=operations.LIST_EVENTS, asked=asked)
            yield NextValues(page.events)
            asked = replace(asked, after=page.after)
            if page.more:
                continue
            if poll_seconds is None:
                return
            yield Pause(poll_seconds)

    @method
    def heads(self) -> Steps[dict[str, Any]]:
        """Return the heads of all chains that the caller sees, as `reports.budgets.heads` does: of one
        moment."""
        found: dict[str, Any] = yield Ask(operation=operations.LIST_HEADS, asked=questions.audits.ListHeads())
        return found

    @listing
    def each_head(self, *, after: str = "") -> Pages[CheckpointHead]:
        """Yield the heads of the chains that the caller sees, in the order of their names, those behind
        `after`: in pages, each of another moment."""
        from shuffle_ledger.ledger.values.checkpoint import read_head  # noqa: PLC0415 - few programs read heads

        position: str | None = after
        while position is not None:
            asked = questions.audits.ListHeads(after=position, limit=PAGE_ROWS)
            page = yield Ask(operation=operations.LIST_HEADS, asked=asked)
            yield NextValues([read_head(each) for each in page["heads"]])
            position = page.get("after")

    @method
    def verify(
        self,
        cohort: str | None = None,
        *,
        against: SavedHeads | None = None,
        numbers: Numbers = "sampled",
        progress: Progress | None = None,
    ) -> Steps[VerificationReport]:
        """Replay one chain or all, as `verification.verifier.verify` does.

        What takes long is done in a server's background, as for `statement`.

        Args:
            cohort: whose chain; None: all.
            against: heads that were kept elsewhere.
            numbers: which numbers are computed again.
            progress: told what is done, if that takes long.
        """
        asked = questions.audits.VerifyChains.of(cohort, against=against, numbers=numbers)
        found: VerificationReport = yield from _made(
            Ask(operation=operations.VERIFY, asked=asked, progress=progress)
        )
        return found

    @method
    def statement(
        self,
        wanted: StatementWanted,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Steps[Statement]:
        """Return a statement, made now, as `evidence.statement_builder.make_statement` does.

        A server is asked for a statement that takes long until it is made.

        Args:
            wanted: what to state.
            checkpoint: signed heads to state with it.
            progress: told what is done, if that takes long.
        """
        asked = questions.audits.MakeStatement.of(wanted)
        found: Statement = yield from _made(
            Ask(operation=operations.MAKE_STATEMENT, asked=asked, progress=progress)
        )
        return replace(found, checkpoint=None if checkpoint is None else checkpoint.to_json())

    @method
    def bundle(
        self,
        cohorts: Sequence[str] | None,
        *,
        checkpoint: Checkpoint | None = None,
        progress: Progress | None = None,
    ) -> Steps[bytes]:
        """Return the evidence of cohorts and their periods, all if None, as `evidence.bundle.make_bundle`
        does; a server does not say how far it is."""
        asked = questions.audits.MakeBundle.of(cohorts, checkpoint=checkpoint)
        found: bytes = yield Ask(operation=operations.MAKE_BUNDLE, asked=asked, progress=progress)
        return found


def _cohorts_behind(name: str) -> Ask:
    asked = questions.cohorts.ListCohorts(after=name, limit=PAGE_ROWS)
    return Ask(operation=operations.LIST_COHORTS, asked=asked)


def _made(ask: Ask) -> Steps[Any]:
    """Return what is asked for, however long a server takes: it is asked the same until it has the answer."""
    found = yield ask
    while isinstance(found, Unfinished):
        if ask.progress is not None and found.step is not None:
            ask.progress(found.step, found.done or 0, found.of or 0)
        found = yield ask
    return found
