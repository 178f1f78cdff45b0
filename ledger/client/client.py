"""A client for the HTTP API: the ledger's own values, through a server.

Requests are repeated when an answer is lost, which is safe: identifiers make every one of them idempotent.
"""

from __future__ import annotations

import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx

from shuffle_ledger.ledger import operations, questions
from shuffle_ledger.ledger.client.transport import RETRY_SECONDS, TIMEOUT_SECONDS, AsyncWire, Wire
from shuffle_ledger.ledger.methods import Ask, Awaiting, Blocking, Operations, Steps, asks, method
from shuffle_ledger.ledger.values.requests import Outcome, Pending, RoundRequest

WAIT_SECONDS = 60.0  # for a decision, where workers make them
Transport = TypeVar("Transport")
AnyWire = TypeVar("AnyWire", Wire, AsyncWire)
_SERVER_WAIT_MAX_SECONDS = 30.0  # in one request; a longer wait is several


class _Served(Operations, Generic[Transport, AnyWire]):
    """The operations of a server, which both clients have."""

    _kind_of_wire: type[AnyWire]
    health = asks(operations.HEALTH)

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        transport: Transport | None = None,
    ) -> None:
        """Connect to nothing yet.

        Raises:
            InvalidValue: `url` is not that of a server, or `token` cannot be sent.
        """
        self._wait_seconds = wait_seconds  # for a decision, where a call names no other number
        self._wire: AnyWire = self._kind_of_wire(
            url, token, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds, transport=transport
        )

    @method
    def register(
        self, request: RoundRequest, *, wait_seconds: float | None = None, accept_warnings: bool = False
    ) -> Steps[Outcome | Pending]:
        """Register a round and return its outcome; Pending if it is undecided after `wait_seconds`,
        by default those of the client.

        A repeated registration answers with the round's present state. Admitted permits one release.

        Raises:
            Conflict: the identifier is bound to other content.
            NotCollectable: the round was admitted before, and is voided or settled, or its cohort is frozen
                or overspent (`state`, `cohort_status`).
            UnacceptedWarnings: it is the first of its cohort and a sample of which declared slots would admit
                far more, and `accept_warnings` was not given; nothing was registered.
        """
        asked = replace(questions.rounds.RegisterRound.asking(request), accept_warnings=accept_warnings)
        ask = Ask(operation=operations.REGISTER_ROUND, asked=asked)
        return (yield from self._decided(ask, wait_seconds))

    @method
    def retry(self, round_id: str, *, wait_seconds: float | None = None) -> Steps[Outcome | Pending]:
        """Have a round decided that was left alone after too many failures; otherwise as `register`."""
        ask = Ask(operation=operations.RETRY_ROUND, asked=questions.rounds.OfRound(round_id))
        return (yield from self._decided(ask, wait_seconds))

    def _decided(self, ask: Ask, wait_seconds: float | None) -> Steps[Outcome | Pending]:
        ends = time.monotonic() + (self._wait_seconds if wait_seconds is None else wait_seconds)
        while True:
            left = min(max(0.0, ends - time.monotonic()), _SERVER_WAIT_MAX_SECONDS)
            answer: Outcome | Pending = yield replace(ask, wait_seconds=left)
            if not isinstance(answer, Pending) or time.monotonic() >= ends:
                return answer


def _request(ask: Ask) -> dict[str, Any]:
    """Return the request that asks an operation."""
    wait = ask.wait_seconds
    headers = None if wait is None else {"Prefer": f"wait={round(wait)}"}
    return {**ask.operation.request(ask.asked), "headers": headers}


class LedgerClient(_Served[httpx.BaseTransport, Wire], Blocking):
    """A ledger behind a server.

    Methods return what the functions of `ledger` of the same name return, and raise the same errors; besides

    Raises:
        Unauthorized: the token is none, expired or revoked.
        NotAllowed: its role or its scope does not include this.
        Unavailable: the server cannot be reached or does not answer, for as long as `retry_seconds`.
    """

    _kind_of_wire = Wire

    def answer(self, ask: Ask) -> Any:
        """Return the server's answer."""
        return ask.operation.read(self._wire.ask(_request(ask)))

    def close(self) -> None:
        """Close all connections."""
        self._wire.close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()


class AsyncLedgerClient(_Served[httpx.AsyncBaseTransport, AsyncWire], Awaiting):
    """The same for programs that use asyncio: methods are awaited, and iterators are asynchronous.

        async with AsyncLedgerClient(url, token) as ledger:
            budget = await ledger.budget("de-phone")
            async for event in ledger.events(): ...

    One client serves any number of tasks of one event loop. Errors are those of `LedgerClient`.
    """

    _kind_of_wire = AsyncWire

    async def answer(self, ask: Ask) -> Any:
        """Return the server's answer."""
        return ask.operation.read(await self._wire.ask(_request(ask)))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._wire.aclose()

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()
