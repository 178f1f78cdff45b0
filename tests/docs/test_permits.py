"""The pages about permits: their commands print what they show, and each threat has its test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shuffle_ledger.gate import CODES
from tests.docs.test_shell_blocks import DOCS, normal, run, shown

ROOT = Path(__file__).parents[2]
PAGE, THREATS = DOCS / "permits.md", DOCS / "permit-threats.md"
TESTS = (
    "gate/test_gate.py::test_a_permitted_batch_leaves_once",
    "ledger/test_permits.py::test_a_named_permit_leaves_by_no_other_gate",
    "gate/test_gate.py::test_what_is_no_permit_for_this_batch_is_refused",
    "gate/test_gate.py::test_the_clocks_may_differ_by_the_leeway",
    "ledger/test_permits.py::test_a_round_that_ends_after_its_permit_is_revoked",
    "ledger/test_permits.py::test_a_stolen_key_of_permits_is_found_by_the_receipts_of_its_releases",
    "ledger/test_permits.py::test_a_stolen_key_of_a_gate_permits_nothing",
    "ledger/test_permits.py::test_a_ledger_of_an_old_backup_permits_twice_and_is_found_out",
    "ledger/test_permits.py::test_a_releaser_that_lies_about_counts_is_bound_to_the_lie",
    "ledger/test_permits.py::test_the_statement_and_the_bundle_say_whose_word_it_is",
)


@pytest.mark.slow
def test_the_commands_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in (("PERMIT_KEY", "permit.pem"), ("RELEASER_KEYS", "releasers.json")):
        monkeypatch.setenv(f"SHUFFLE_LEDGER_{name}", file)
    run(["init"])
    run(["cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6"])
    (tmp_path / "batch.txt").write_text("one\ntwo\nthree\n")
    commands = list(shown(PAGE))
    assert len(commands) == 15
    for arguments, expected, code in commands:
        printed = run(arguments, code)
        if expected:
            assert normal(printed) == normal(expected), arguments
    stated = run(["audit", "statement", "phones", "--format", "json"])
    rounds = json.loads(stated)["cohorts"][0]["rounds"]
    assert {each["round_id"]: each["release"]["basis"] for each in rounds} == dict.fromkeys(
        ("w48", "w49", "dap-7"), "receipt"
    )


def test_the_page_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {kind: int(code) for code, kind in rows} == dict(CODES)


def test_the_code_of_the_page_is_the_gate() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the page of this repository
    assert callable(names["released"])


def test_each_threat_has_its_test() -> None:
    rows = [line for line in THREATS.read_text("utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(TESTS) == 10
    for test in TESTS:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")
