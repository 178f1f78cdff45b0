"""Two processes that say the same of a round of several cohorts at once: one writes, both have the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit, correct, register, settle, void
from shuffle_ledger.ledger.storage import rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import open_as_usual

COHORTS = ("phones", "tablets")
ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=5_000)

TELLINGS: dict[str, Callable[[Store, Accountant], Any]] = {
    "settle": lambda store, accountant: settle(store, accountant, "r", reports=4_000, actor="ada"),
    "void": lambda store, accountant: void(store, accountant, "r", reason="cancelled", actor="ada"),
    "correct": lambda store, accountant: correct(
        store, accountant, "r", {"reports": 4_000}, reason="a log", actor="ada"
    ),
}


@pytest.fixture
def registered(store: Store) -> Store:
    """Return a ledger with a pending round of two cohorts."""
    for name in COHORTS:
        open_as_usual(store, name, epsilon=2.0, delta=1e-6)
    request = RoundRequest(round_id="r", cohort=COHORTS[0], audience=COHORTS, round=ROUND)
    register(store, request, actor="ada")
    return store


@pytest.mark.parametrize("telling", TELLINGS)
def test_what_another_process_told_meanwhile_is_the_answer(
    registered: Store,
    accountant: Accountant,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    telling: str,
) -> None:
    admit(registered, accountant, "r")
    read, told = registered.round_in, list[Any]()
    with Store.connect(database_url) as other:

        def read_late(cohort: str, round_id: str) -> Any:
            if cohort == COHORTS[1] and not told:
                told.append(TELLINGS[telling](other, accountant))
            return read(cohort, round_id)

        monkeypatch.setattr(registered, "round_in", read_late)
        answer = TELLINGS[telling](registered, accountant)
    assert told == [answer]
    assert verify(registered, accountant).ok


def test_what_another_process_decided_between_two_reads_is_the_answer(
    registered: Store, accountant: Accountant, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, decided = rows.round_rows, list[Any]()
    with Store.connect(database_url) as other:

        def read_late(*given: Any) -> Any:
            if not decided:
                decided.append(None)
                decided[0] = admit(other, accountant, "r")
            return read(*given)

        monkeypatch.setattr(rows, "round_rows", read_late)
        answer = admit(registered, accountant, "r")
    assert isinstance(answer, Admitted)
    assert [answer.sequence] == [each.sequence for each in decided]
    assert registered.round("r").attempts == 0
    assert verify(registered, accountant).ok
