"""A round of several chains that two processes decide at once is decided once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit, register, void
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.storage import rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, request_of
from shuffle_ledger.ledger.verification import verify
from tests.ledger.desk import open_as_usual

KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=1)"), reports=10_000)


@pytest.mark.parametrize("is_voided", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_decision_between_two_statements_of_a_read_is_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str, is_voided: bool
) -> None:
    """On PostgreSQL each statement has its own snapshot: another process decides before or after the rows of
    the round are read."""
    ledger, accountant = store, Accountant()
    for name in ("phones", "tablets"):
        open_as_usual(ledger, name, population=100_000, delta=1e-6)
    register(ledger, request_of(("phones", "tablets"), KRR, round_id="one"), actor="ada")
    read: Callable[..., object] = rows.round_rows
    others: list[object] = []

    def meanwhile(*given: object) -> object:
        found = None if when == "before" else read(*given)
        if not others:
            others.append(None)
            others[0] = admit(ledger, accountant, "one")
            if is_voided:
                void(ledger, accountant, "one", reason="cancelled", actor="ada")
        return read(*given) if found is None else found

    monkeypatch.setattr(rows, "round_rows", meanwhile)
    if is_voided:
        with pytest.raises(NotCollectable):
            admit(ledger, accountant, "one")
    else:
        assert isinstance(admit(ledger, accountant, "one"), Admitted)
    monkeypatch.undo()
    for name in ("phones", "tablets"):
        kinds = [entry.kind for entry in ledger.entries_of(name)]
        assert kinds == ["opened", "admitted", *(["voided"] if is_voided else [])]
        assert sum(ledger.view(name).held.values()) == (0 if is_voided else 1)
    assert verify(ledger, accountant).ok
