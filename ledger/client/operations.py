"""Operations: methods of both clients, written once as generators, and run with or without asyncio.

A step is a question for the server or a pause; the generator gets the answer back. The synchronous client
performs steps and blocks, the asynchronous one awaits each of them.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from shuffle_ledger.ledger.client.transport import AsyncWire, Wire

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Ask:
    """A question for the server; its answer is the content of the response."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None
    long: bool = False


@dataclass(frozen=True)
class Pause:
    """A pause of some seconds."""

    seconds: float


@dataclass(frozen=True)
class Found(Generic[Answer]):
    """The next values of a listing."""

    values: Sequence[Answer]


Steps = Generator[Ask | Pause, Any, Answer]
Pages = Generator[Ask | Pause | Found[Answer], Any, None]


class Blocking:
    """A client whose operations return when they are done."""

    _wire: Wire

    def perform(self, step: Ask | Pause) -> Any:
        """Return the answer to a question, or pause."""
        if isinstance(step, Ask):
            return self._wire.ask(**vars(step))
        time.sleep(step.seconds)  # as the caller asked
        return None


class Awaiting:
    """A client whose operations are awaited."""

    _wire: AsyncWire

    async def perform(self, step: Ask | Pause) -> Any:
        """Return the answer to a question, or pause."""
        if isinstance(step, Ask):
            return await self._wire.ask(**vars(step))
        await asyncio.sleep(step.seconds)
        return None


class Operation(Generic[Parameters, Answer]):
    """A method whose steps end with its answer."""

    def __init__(self, steps: Callable[Concatenate[Any, Parameters], Steps[Answer]]) -> None:
        functools.update_wrapper(self, steps)

        @functools.wraps(steps)
        def blocking(client: Blocking, *given: Any, **named: Any) -> Answer:
            return _run(client, steps(client, *given, **named))

        @functools.wraps(steps)
        async def awaiting(client: Awaiting, *given: Any, **named: Any) -> Answer:
            return await _awaited(client, steps(client, *given, **named))

        self._blocking, self._awaiting = blocking, awaiting

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[Parameters, Answer]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[Parameters, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: object, owner: type) -> Any:
        """Return the method of a client."""
        if client is None:
            return self
        return MethodType(self._awaiting if isinstance(client, Awaiting) else self._blocking, client)

    def __call__(self, client: Any, *given: Any, **named: Any) -> Any:
        """Call the method of a client through its class."""
        return self.__get__(client, type(client))(*given, **named)


class Listing(Generic[Parameters, Answer]):
    """A method that yields values, page by page."""

    def __init__(self, pages: Callable[Concatenate[Any, Parameters], Pages[Answer]]) -> None:
        functools.update_wrapper(self, pages)

        @functools.wraps(pages)
        def blocking(client: Blocking, *given: Any, **named: Any) -> Iterator[Answer]:
            return _listed(client, pages(client, *given, **named))

        @functools.wraps(pages)
        def awaiting(client: Awaiting, *given: Any, **named: Any) -> AsyncIterator[Answer]:
            return _awaited_list(client, pages(client, *given, **named))

        self._blocking, self._awaiting = blocking, awaiting

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[Parameters, Iterator[Answer]]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[Parameters, AsyncIterator[Answer]]: ...
    def __get__(self, client: object, owner: type) -> Any:
        """Return the method of a client."""
        if client is None:
            return self
        return MethodType(self._awaiting if isinstance(client, Awaiting) else self._blocking, client)

    def __call__(self, client: Any, *given: Any, **named: Any) -> Any:
        """Call the method of a client through its class."""
        return self.__get__(client, type(client))(*given, **named)


def collected(pages: Pages[Answer]) -> Steps[list[Answer]]:
    """Return the values of a listing together, as steps of an operation."""
    values: list[Answer] = []
    answer = None
    while True:
        try:
            step = pages.send(answer)
        except StopIteration:
            return values
        if isinstance(step, Found):
            values += step.values
            answer = None
        else:
            answer = yield step


def _run(client: Blocking, steps: Steps[Answer]) -> Answer:
    answer, failure = None, None
    while True:
        try:
            step = _next_of(steps, answer, failure)
        except StopIteration as end:
            done: Answer = end.value
            return done
        try:
            answer, failure = client.perform(step), None
        except Exception as error:  # noqa: BLE001 - the operation's own
            failure = error


async def _awaited(client: Awaiting, steps: Steps[Answer]) -> Answer:
    answer, failure = None, None
    while True:
        try:
            step = _next_of(steps, answer, failure)
        except StopIteration as end:
            done: Answer = end.value
            return done
        try:
            answer, failure = await client.perform(step), None
        except Exception as error:  # noqa: BLE001 - the operation's own
            failure = error


def _next_of(steps: Steps[Any], answer: Any, failure: Exception | None) -> Ask | Pause:
    """Return the next step, given what the last one answered, or raised: the operation may go on after it."""
    return steps.send(answer) if failure is None else steps.throw(failure)


def _listed(client: Blocking, pages: Pages[Answer]) -> Iterator[Answer]:
    answer = None
    while True:
        try:
            step = pages.send(answer)
        except StopIteration:
            return
        if isinstance(step, Found):
            yield from step.values
            answer = None
        else:
            answer = client.perform(step)


async def _awaited_list(client: Awaiting, pages: Pages[Answer]) -> AsyncIterator[Answer]:
    answer = None
    while True:
        try:
            step = pages.send(answer)
        except StopIteration:
            return
        if isinstance(step, Found):
            for value in step.values:
                yield value
            answer = None
        else:
            answer = await client.perform(step)
