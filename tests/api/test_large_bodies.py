"""Large bodies: few are with the application at once, the others wait, and no request is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.auth import middleware
from shuffle_ledger.ledger.api.auth.middleware import LARGE_BODIES_AT_ONCE, LARGE_BODY_BYTES, Door, Gate
from shuffle_ledger.ledger.api.auth.rate_limits import FailureLimit
from shuffle_ledger.ledger.api.auth.sessions import Sessions
from shuffle_ledger.ledger.storage.store import Store

LARGE, SMALL = b"x" * (LARGE_BODY_BYTES + 1), b"x" * LARGE_BODY_BYTES
CROWD = 5 * LARGE_BODIES_AT_ONCE
SECONDS_MAX = 10.0


class Application:
    """Keeps requests with large bodies until it may answer; at another path it fails."""

    def __init__(self) -> None:
        self.inside = 0
        self.most_inside = 0
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        if scope["path"] == "/v1/fails":
            raise OSError("as a failing application")
        if len(body) > LARGE_BODY_BYTES:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            await self.may_answer.wait()
            self.inside -= 1
        await Response(str(len(body)))(scope, receive, send)

    async def filled(self) -> None:
        """Wait until no further large body comes in."""
        while self.inside < LARGE_BODIES_AT_ONCE:
            await asyncio.sleep(0.01)  # nothing tells that a request is inside; the client's timeout ends it


@asynccontextmanager
async def guarded(application: Application, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application behind the gate."""
    door = Door(store, FailureLimit(burst=3, clock=lambda: 0.0))
    gate = Gate(application, store=store, door=door, sessions=Sessions(), root_path="")
    token = issue(store, name="reader", role="reader", actor="tester").token
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx.ASGITransport(gate)
    async with (
        asyncio.timeout(SECONDS_MAX),
        httpx.AsyncClient(transport=transport, base_url="http://ledger.example", headers=headers) as client,
    ):
        yield client


def test_few_large_bodies_are_inside_at_once_and_small_ones_pass_meanwhile(store: Store) -> None:
    async def crowd() -> None:
        application = Application()
        async with guarded(application, store) as client:
            sent = [asyncio.create_task(client.post("/v1/x", content=LARGE)) for _ in range(CROWD)]
            await application.filled()
            small = [await client.post("/v1/x", content=SMALL) for _ in range(CROWD)]
            assert {answer.text for answer in small} == {str(len(SMALL))}
            assert application.inside == LARGE_BODIES_AT_ONCE
            application.may_answer.set()
            answers = await asyncio.gather(*sent)
        assert [answer.text for answer in answers] == [str(len(LARGE))] * CROWD
        assert application.most_inside == LARGE_BODIES_AT_ONCE

    asyncio.run(crowd())


def test_a_large_body_that_waits_too_long_is_told_to_come_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS_MAX", 0.1)

    async def crowd() -> None:
        application = Application()
        async with guarded(application, store) as client:
            inside = [
                asyncio.create_task(client.post("/v1/x", content=LARGE)) for _ in range(LARGE_BODIES_AT_ONCE)
            ]
            await application.filled()
            late = await client.post("/v1/x", content=LARGE)
            assert (late.status_code, late.json()["type"]) == (503, "urn:shuffle-ledger:problem:busy")
            assert late.headers["Retry-After"] == "1"
            application.may_answer.set()
            answers = [*await asyncio.gather(*inside), await client.post("/v1/x", content=LARGE)]
        assert {answer.status_code for answer in answers} == {200}

    asyncio.run(crowd())


def test_large_bodies_that_fail_make_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS_MAX", 0.1)

    async def crowd() -> None:
        application = Application()
        application.may_answer.set()
        async with guarded(application, store) as client:
            for _ in range(LARGE_BODIES_AT_ONCE):
                with pytest.raises(OSError, match="failing"):
                    await client.post("/v1/fails", content=LARGE)
            assert (await client.post("/v1/x", content=LARGE)).status_code == 200

    asyncio.run(crowd())
