"""Rounds that wait for a quick decision: all that wait are one commit, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.api.accountant_thread import AccountantThread
from shuffle_ledger.ledger.api.line import TOGETHER_MAX, DecisionLine
from shuffle_ledger.ledger.decisions import register_and_admit
from shuffle_ledger.ledger.errors import InvalidValue, NotFound
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual

WAIT_SECONDS_MAX = 60


def test_those_who_wait_together_are_decided_in_few_commits(
    store: Store, accountant: Accountant, make_request: Callable[..., RoundRequest]
) -> None:
    """Admitted until the budget is used up, refused behind that; a new kind, an unknown cohort and a taken
    identifier get their own answers and keep nothing from the others."""
    for name in ("phones", "tablets"):
        open_as_usual(store, name, epsilon=1.5)
        register_and_admit(store, accountant, make_request(f"first of {name}", cohort=name), actor="tester")
    plain = [make_request(f"r{n}", cohort=("phones", "tablets")[n % 2]) for n in range(2 * TOGETHER_MAX)]
    odd = {
        3: make_request("new kind", cohort="phones", epsilon0=1.03125),
        9: make_request("first of phones", cohort="phones"),
        12: make_request("lost", cohort="nobody opened it"),
        20: make_request("large", cohort="phones", reports=10**7),
    }
    requests = [odd.get(place, request) for place, request in enumerate(plain)]
    desk = AccountantThread(accountant)
    line, begins, heads = DecisionLine(store, desk), threading.Event(), store.heads()
    written: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith(("WITH moves", "BEGIN IMMEDIATE")):
            written.append(statement)

    async def ask() -> list[Any]:
        first = asyncio.ensure_future(desk.run(lambda _: begins.wait(WAIT_SECONDS_MAX), quick=True))
        await asyncio.sleep(0)  # one turn of the event loop: the first caller takes the desk
        asked = [asyncio.ensure_future(line.admit_at_once(each, actor="tester")) for each in requests]
        await asyncio.sleep(0)  # and all others are in line
        asked[1].cancel()  # a caller that hangs up
        begins.set()
        await first
        return await asyncio.gather(*asked, return_exceptions=True)

    event.listen(store.engine, "before_cursor_execute", note)
    answers = asyncio.run(ask())
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[3] is answers[9] is None
    assert isinstance(answers[12], NotFound)
    assert isinstance(answers[20], InvalidValue)
    others = [answer for place, answer in enumerate(answers) if place not in (1, *odd)]
    assert {type(answer) for answer in others} == {Admitted, Refused}
    assert [answer.round_id for answer in others] == [
        request.round_id for place, request in enumerate(requests) if place not in (1, *odd)
    ]
    assert len(written) <= 3 + 3 * len(odd) < len(others)
    added = sum(new.sequence - old.sequence for new, old in zip(store.heads(), heads, strict=True))
    assert added in (len(others), len(others) + 1)  # the caller that hung up may have been decided
    assert verify(store, accountant, numbers="all").ok


@pytest.mark.slow
def test_a_refused_budget_is_never_overspent_by_a_group(
    store: Store, accountant: Accountant, make_request: Callable[..., RoundRequest]
) -> None:
    """As many are admitted as one after another."""
    for name in ("alone", "together"):
        open_as_usual(store, name, epsilon=1.5)
        register_and_admit(store, accountant, make_request(f"first of {name}", cohort=name), actor="tester")
    requests = {
        name: [make_request(f"{name} {n}", cohort=name) for n in range(40)] for name in ("alone", "together")
    }
    line = DecisionLine(store, AccountantThread(accountant))

    async def ask() -> list[Any]:
        return await asyncio.gather(*(line.admit_at_once(each, actor="x") for each in requests["together"]))

    together = [type(answer) for answer in asyncio.run(ask())]
    alone = [type(register_and_admit(store, accountant, each, actor="x")[0]) for each in requests["alone"]]
    assert together == alone
    assert {Admitted, Refused} == set(alone)
