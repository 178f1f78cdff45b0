"""Pages of cohorts and of heads: every name once and in order, for tokens with and without limits."""

from __future__ import annotations

from typing import Any

import pytest

from shuffle_ledger.ledger.decisions import open_cohort
from shuffle_ledger.ledger.reports import budgets
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import cohorts
from shuffle_ledger.ledger.values.windows import Window
from tests.api.conftest import Server

# In the order of code points, as nearly no language sorts them.
NAMES = ["B", "Z", "a", "a b", "a-b", "ab", "b", "phones", "secret", "\u00e9", "\u0391", "\uff21"]
WINDOWED = "b"


@pytest.fixture
def many(server: Server) -> Server:

    window = Window(unit="week", epsilon=1.0, delta=1e-8)
    for name in NAMES:
        if name not in ("phones", "secret"):
            more: dict[str, Any] = {"windows": [window]} if name == WINDOWED else {}
            budget = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6}
            open_cohort(server.store, name=name, **budget, policy="adaptive", actor="tester", **more)  # type: ignore[arg-type]  # as the names say
    assert server.register("r", cohort=WINDOWED).status_code == 201
    return server


def _heads(server: Server, limit: int, bearer: str = "auditor") -> list[str]:
    found, after = [], ""
    while after is not None:
        query = {"limit": limit, "after": after}
        page = server.ask("GET", "/v1/heads", bearer=bearer, params=query).json()
        assert len(page["heads"]) <= limit
        found += [head["cohort"] for head in page["heads"]]
        after = page["after"]
    return found


def _cohorts(server: Server, limit: int, bearer: str = "reader") -> list[str]:
    found: list[str] = []
    while True:
        query = {"limit": limit, "after": found[-1] if found else ""}
        page = server.ask("GET", "/v1/cohorts", bearer=bearer, params=query).json()
        if not page:
            return found
        found += [each["name"] for each in page]


@pytest.mark.parametrize("limit", [1, 5])
def test_pages_have_every_name_once_and_in_order(many: Server, limit: int) -> None:
    whole = many.ask("GET", "/v1/heads", bearer="auditor").json()
    assert set(whole) == {"format", "heads"}  # as before there were pages
    names = [head["cohort"] for head in whole["heads"]]
    assert names == sorted(names)
    assert _heads(many, limit) == names
    assert [name for name in names if "@" not in name] == NAMES
    assert _cohorts(many, limit) == NAMES
    assert [each["name"] for each in many.ask("GET", "/v1/cohorts").json()] == NAMES


def test_a_limited_token_sees_its_own_in_pages(many: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "HEADS_AT_ONCE", 2)
    many.issue("limited", "auditor", cohorts=["Z", WINDOWED, "\uff21", "absent"])
    own = [name for name in _heads(many, 1000) if name.partition("@")[0] in ("Z", WINDOWED, "\uff21")]
    assert len(own) == 4
    for limit in (1, 2, 1000):
        assert _heads(many, limit, "limited") == own
        assert _cohorts(many, limit, "limited") == ["Z", WINDOWED, "\uff21"]


def test_any_text_may_be_gone_on_behind(many: Server) -> None:
    for after in ("a\0b", "a%", "\ud800".encode("utf-8", "replace").decode(), "zzz"):
        expected = [name for name in NAMES if name > after]
        found = many.ask("GET", "/v1/cohorts", params={"after": after})
        assert (found.status_code, [each["name"] for each in found.json()]) == (200, expected)
        assert many.ask("GET", "/v1/heads", bearer="auditor", params={"after": after}).status_code == 200


def test_postgresql_sorts_names_as_python_does(postgresql_store: Store) -> None:
    for name in NAMES:
        if name not in ("phones", "secret"):
            budget: dict[str, Any] = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6}
            open_cohort(postgresql_store, name=name, **budget, policy="adaptive", actor="tester")
    assert [each.name for each in postgresql_store.cohorts()] == NAMES
    assert [each.cohort for each in postgresql_store.heads()] == NAMES
    assert [each.name for each in postgresql_store.cohorts(after="a b", limit=3)] == NAMES[4:7]
    assert [each.cohort for each in postgresql_store.heads(after="a\0b", limit=2)] == NAMES[3:5]


def test_no_language_sorts_names() -> None:
    """The database of the tests may have no language, so the words of the statement are looked at."""
    assert str(engine.in_order(cohorts.c.name, "postgresql")) == 'cohorts.name COLLATE "C"'
    assert str(engine.in_order(cohorts.c.name, "sqlite")) == "cohorts.name"
