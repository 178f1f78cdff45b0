"""Names that are gone: each is refused with the sentence that says what replaces it."""

from __future__ import annotations

import pytest

from shuffle_ledger.ledger.gone_names import GONE
from tests.cli.conftest import Run

SETTINGS = [name for name in GONE if name.startswith("SHUFFLE_LEDGER_")]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_is_gone_is_refused_with_what_replaces_it(
    phones: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "anything")
    answer = phones("cohort", "list", "--json")
    assert answer.code == 2
    assert answer.json["error"]["message"] == f"setting {name} is gone: {GONE[name]}"
    assert "anything" not in answer.stdout
