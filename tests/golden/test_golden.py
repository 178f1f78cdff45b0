"""What commands and HTTP answer is what they answered when the files were written."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest

from tests.golden.scenarios import LEDGER, kept, names, played, same_but_for_round_off

# What takes more than about half a second of processor time, alone or as the first of its process.
SLOW = {
    *("audience_strata", "audiences", "budget_raised", "bundles", "calculators", "forecast"),
    *("http_audiences", "http_evidence", "http_quote_and_forecast", "http_refused"),
    *("http_service", "http_windows_and_quotas", "import_csv", "kinds_of_rounds", "policy_plan"),
    *("quotas", "quote_refused", "round_refused_after_others", "statement", "verification"),
    *("verification_of_a_tampered_chain", "windows_calendar", "windows_rolling", "without_life"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names()]
)
def test_a_scenario_is_answered_as_before(name: str, tmp_path: Path, sqlite_template: Path) -> None:
    shutil.copy(sqlite_template, tmp_path / LEDGER)
    expected = kept(name)
    found = same_but_for_round_off(expected, played(expected, tmp_path))
    lines = difflib.unified_diff(expected.splitlines(), found.splitlines(), "before", "now", lineterm="", n=8)
    assert found == expected, "\n".join(lines)


def test_round_off_is_no_difference_and_everything_else_is_one() -> None:
    before = "  spent at most 0.0924672\n  rounds 169\n"
    assert same_but_for_round_off(before, before.replace("4672", "4671")) == before
    for other in (
        before.replace("169", "168"),
        before.replace("0.0924672", "0.0925672"),
        before.replace("spent", "used"),
        before + "  more\n",
    ):
        assert same_but_for_round_off(before, other) == other
