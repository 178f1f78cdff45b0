"""The client for asyncio: answers, errors and repetitions of the other one, and tasks side by side."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import shuffle_ledger as sl
from shuffle_ledger.ledger.client.client import AsyncLedgerClient, LedgerClient
from shuffle_ledger.ledger.errors import AnswerLost, Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.methods import Method
from shuffle_ledger.ledger.values.requests import Admitted
from tests.api.conftest import Server, listed
from tests.api.test_client import LARGE, SMALL, _request

WAIT_SECONDS_MAX = 30.0


class _Losing(httpx.AsyncBaseTransport):
    """Loses two answers of three."""

    def __init__(self) -> None:
        self._inner, self.count = httpx.AsyncHTTPTransport(), 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._inner.handle_async_request(request)
        await answer.aread()
        self.count += 1
        if self.count % 3:
            raise httpx.ReadError("the connection was lost")
        return answer


@pytest.mark.slow
def test_both_clients_answer_the_same(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shuffle_ledger.ledger.methods.PAGE_ROWS", 2)

    async def asked() -> list[Any]:
        async with sl.AsyncLedgerClient(server.url, server.tokens["admin"], retry_seconds=5) as client:
            await client.open_cohort(name="tv", population=9000, epsilon=1.0, delta=1e-9, policy="adaptive")
            outcomes = await asyncio.gather(*(client.register(_request(name)) for name in "abcde"))
            assert all(isinstance(each, Admitted) for each in outcomes)
            await client.settle("a", reports=900)
            with pytest.raises(Conflict):
                await client.register(_request("a", LARGE))
            with pytest.raises(NotFound):
                await client.cohort("nobody")
            return [
                await client.cohorts(),
                [each async for each in client.each_cohort()],
                [each async for each in client.rounds("phones")],
                [each async for each in client.entries("phones")],
                [each async for each in client.events()],
                [each async for each in client.each_head()],
                await client.budget("phones"),
                await client.quote("phones", [SMALL]),
                (await client.verify("phones")).ok,
            ]

    with LedgerClient(server.url, server.tokens["admin"], retry_seconds=5) as client:
        found = asyncio.run(asked())
        lists = [client.each_cohort(), client.rounds("phones"), client.entries("phones"), client.events()]
        assert found == [
            client.cohorts(),
            *map(list, lists),
            list(client.each_head()),
            client.budget("phones"),
            client.quote("phones", [SMALL]),
            client.verify("phones").ok,
        ]
        assert found[0] == listed(server.store)
        assert len(found[2]) == 5


def test_a_lost_answer_is_asked_for_again_without_blocking_other_tasks(server: Server) -> None:
    losing = _Losing()

    async def asked() -> int:
        client = AsyncLedgerClient(server.url, server.tokens["admin"], transport=losing, retry_seconds=30)
        registering = asyncio.create_task(client.register(_request("a")))
        turns = 0
        while not registering.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert isinstance(await registering, Admitted)
        await client.aclose()
        return turns

    assert asyncio.run(asked()) > 5
    assert losing.count == 3
    assert server.store.count_entries("phones")["admitted"] == 1

    async def lost() -> None:
        transport = httpx.MockTransport(lambda _: (_ for _ in ()).throw(httpx.ReadTimeout("gone")))
        async with AsyncLedgerClient("http://ledger", "sl_x", transport=transport, retry_seconds=0) as client:
            await client.budget("phones")

    with pytest.raises(AnswerLost):
        asyncio.run(lost())
    with pytest.raises(InvalidValue):
        AsyncLedgerClient("ftp://ledger", "sl_x")


def test_events_are_awaited_and_a_task_that_waits_for_them_can_be_cancelled(server: Server) -> None:
    async def asked() -> list[str | None]:
        found: list[str | None] = []
        async with AsyncLedgerClient(server.url, server.tokens["auditor"]) as client:

            async def follow() -> None:
                async for event in client.events(kinds=["admitted"], poll_seconds=60):
                    found.append(event.round_id)  # noqa: PERF401 - until it is cancelled

            following = asyncio.create_task(follow())
            async with asyncio.timeout(WAIT_SECONDS_MAX):  # less than the poll takes
                while not found:
                    await asyncio.sleep(0.01)
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following
        return found

    server.register("a")
    assert asyncio.run(asked()) == ["a"]


def test_the_methods_of_both_clients_say_what_they_take() -> None:
    names = {
        name
        for each in LedgerClient.__mro__
        for name, value in vars(each).items()
        if isinstance(value, Method)
    }
    assert len(names) > 30
    for name in names:
        for kind in (LedgerClient, AsyncLedgerClient):
            assert inspect.getdoc(getattr(kind, name)), name
            assert "self" in inspect.signature(getattr(kind, name)).parameters, name
    client = LedgerClient("http://ledger", "sl_x")
    assert list(inspect.signature(client.budget).parameters) == ["cohort", "on"]


def test_the_examples_of_the_documentation_run(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHUFFLE_LEDGER_SERVER", server.url)
    monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", server.tokens["registrar"])
    text = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
    section = text.partition("## From Python\n")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    for example in examples:
        exec(example, {})  # noqa: S102 - our own documentation
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == ["collect and release once", *["Admitted"] * 3]
    assert sorted(said[4:]) == [f"phones-w{week}" for week in (48, 49, 50, 51)]
