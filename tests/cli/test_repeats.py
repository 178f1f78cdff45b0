"""A repeated registration answers with the round's present state, on the command line and in exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from shuffle_ledger.ledger.decisions import register_and_admit
from shuffle_ledger.ledger.errors import NotAllowed, RoundStuck, TryAgain, Unauthorized, Unavailable
from tests.cli.conftest import ROUND, Run

WEEK = ("round", "register", "phones", "--id", "week1", *ROUND, "--json")


@pytest.mark.slow
def test_a_voided_round_is_a_conflict_by_every_command(phones: Run, tmp_path: Path) -> None:
    file = tmp_path / "rounds.csv"
    file.write_text('round_id,cohort,randomizer,reports\nweek1,phones,"krr(k=2, epsilon0=0.5)",1000\n')
    assert phones(*WEEK).json["outcome"] == "admitted"
    phones("round", "void", "week1", "--reason", "the job failed")
    for words in (
        WEEK,
        ("round", "retry", "week1", "--json"),
        ("round", "import", str(file), "--json"),
        ("round", "quote", "phones", "--id", "week1", *ROUND, "--check", "--json"),
        ("round", "quote", "phones", "--id", "week1", *ROUND, "--json"),
    ):
        answer = phones(*words)
        assert answer.code == 5, words
        assert (answer.json["error"]["kind"], answer.json["error"]["state"]) == ("conflict", "voided"), words
        assert "admitted" not in answer.stdout, words
    assert phones("budget", "phones", "--json").json["epsilon_spent_upper"] == 0


@pytest.mark.slow
def test_a_checked_quote_exits_as_registering_would(phones: Run) -> None:
    beyond = ("--randomizer", "krr(k=2, epsilon0=9)", "--reports", "10")
    for words, code in ((ROUND, 0), (beyond, 3)):
        assert phones("round", "quote", "phones", *words).code == 0
        assert phones("round", "quote", "phones", *words, "--check").code == code
        assert phones("round", "register", "phones", "--id", f"code{code}", *words).code == code
        again = phones("round", "quote", "phones", "--id", f"code{code}", *words, "--check", "--json")
        assert (again.code, again.json["would_be"]) == (code, "refused" if code else "admitted")
    other = phones("round", "quote", "phones", "--id", "code0", *beyond, "--check", "--json")
    assert (other.code, other.json["error"]["kind"]) == (5, "conflict")


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (TryAgain("busy"), 7, "busy"),
        (Unavailable("gone"), 7, "unavailable"),
        (NotAllowed("the role reader may not register"), 8, "forbidden"),
        (Unauthorized("no such token"), 8, "unauthorized"),
        (RoundStuck("five times"), 1, "stuck"),
    ],
)
def test_schedulers_can_tell_errors_apart(
    phones: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, kind: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(f"shuffle_ledger.cli.backends.database.{register_and_admit.__name__}", fails)
    answer = phones(*WEEK)
    assert (answer.code, answer.json["error"]["kind"]) == (code, kind)
