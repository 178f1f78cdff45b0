"""The recipes of docs/recipes.md, run as they stand: by a shell, as a step of a workflow, and as a gate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import issue
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.decisions import admit, open_cohort, void
from shuffle_ledger.ledger.errors import Conflict, Unauthorized
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import Store, initialise
from shuffle_ledger.ledger.values.requests import Pending
from tests.api.conftest import running

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
PROGRAMS = Path(sys.executable).parent
# Exits with the codes in `codes`, one per call; then it is the real program.
STAND_IN = f"""#!/bin/sh
echo "shuffle-ledger $1 $2" >> log
if [ -s codes ]; then code=$(head -n 1 codes); sed -i 1d codes; exit "$code"; fi
exec {PROGRAMS}/shuffle-ledger "$@"
"""
COLLECT = '#!/bin/sh\necho "collect" >> log\necho 900\n'
RELEASE = '#!/bin/sh\necho "release" >> log\n'


def block(language: str) -> str:
    """Return the one block of the page in a language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[[float], Store]:
    """Return a function that makes the ledger of the working directory, with a budget for "phones"."""

    def make(epsilon: float) -> Store:
        initialise(f"sqlite:///{tmp_path / 'shuffle-ledger.db'}")
        store = Store.connect(f"sqlite:///{tmp_path / 'shuffle-ledger.db'}")
        open_cohort(
            store, name="phones", population=10**6, epsilon=epsilon, delta=1e-9, policy="adaptive", actor="x"
        )
        return store

    return make


def in_shell(folder: Path, script: str, *, by: tuple[str, ...], **more: str) -> tuple[int, list[str]]:
    """Run a script beside stand-ins; return its exit code, and the programs that it called."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in (("shuffle-ledger", STAND_IN), ("collect", COLLECT), ("release", RELEASE)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o700)
    (folder / "log").write_text("")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHUFFLE_LEDGER_")}
    done = subprocess.run(
        [*by, "-c", script],
        cwd=folder,
        env=inherited | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PAUSES": "0 0", **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, (folder / "log").read_text().splitlines()


@pytest.mark.system
def test_the_cron_job_collects_and_releases_once_and_only_what_was_admitted(
    tmp_path: Path, ledger: Callable[[float], Store]
) -> None:
    script, register = block("sh"), "shuffle-ledger round register"
    with ledger(1.0) as store:
        (tmp_path / "codes").write_text("7\n7\n")
        code, log = in_shell(tmp_path, script, by=("sh",))
        settle = "shuffle-ledger round settle"
        assert (code, log) == (0, [*[register] * 3, "collect", register, "release", settle])
        assert store.count_entries("phones") == {"opened": 1, "admitted": 1, "settled": 1}
        assert in_shell(tmp_path, script, by=("sh",)) == (1, [register])  # it was released
        for codes, expected in (("7\n" * 3, 75), ("8\n", 1), ("1\n", 1)):
            (tmp_path / "codes").write_text(codes)
            code, log = in_shell(tmp_path, script, by=("sh",))
            assert (code, set(log)) == (expected, {register})


@pytest.mark.system
def test_the_cron_job_does_nothing_for_a_round_that_the_budget_refuses(
    tmp_path: Path, ledger: Callable[[float], Store]
) -> None:
    with ledger(1e-6):
        assert in_shell(tmp_path, block("sh"), by=("sh",)) == (0, ["shuffle-ledger round register"])


@pytest.mark.system
def test_the_step_of_a_workflow_tells_a_refusal_from_a_failure(
    tmp_path: Path, ledger: Callable[[float], Store]
) -> None:
    steps: list[dict[str, Any]] = yaml.safe_load(block("yaml"))["jobs"]["budget"]["steps"]
    [script] = [step["run"] for step in steps if step.get("id") == "budget"]
    output = tmp_path / "output"
    for epsilon, said in ((1.0, "decision=fits\n"), (1e-6, "decision=refused\n")):
        (tmp_path / "shuffle-ledger.db").unlink(missing_ok=True)
        with ledger(epsilon) as store:
            output.write_text("")
            code, _ = in_shell(tmp_path, script, by=("bash", "-e"), GITHUB_OUTPUT=str(output))
            assert (code, output.read_text()) == (0, said)
            assert store.count_entries("phones") == {"opened": 1}
    for code in (1, 2, 4, 7, 8):
        (tmp_path / "codes").write_text(f"{code}\n")
        output.write_text("")
        assert in_shell(tmp_path, script, by=("bash", "-e"), GITHUB_OUTPUT=str(output))[0] != 0
        assert output.read_text() == ""


@pytest.mark.slow
def test_the_gate_returns_the_decision_and_raises_for_everything_else(
    ledger: Callable[[float], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    exec(block("python"), names)  # noqa: S102 - our own documentation
    gate = names["budget_allows"]

    def decide(accountant: Accountant, round_id: str) -> Any:
        if round_id == "phones-later":
            return Pending(round_id=round_id, cohort="phones")
        return admit(store, accountant, round_id)

    with (
        ledger(0.2) as store,
        running(create_app(Settings(broker_url=None), store, Dispatch(decide=decide))) as url,
    ):
        monkeypatch.setenv("SHUFFLE_LEDGER_SERVER", url)
        monkeypatch.setenv(
            "SHUFFLE_LEDGER_TOKEN", issue(store, name="etl", role="registrar", actor="x").token
        )
        decided = [gate(f"w{week}") for week in range(9)]
        assert decided[0]
        assert not decided[-1]
        assert [gate(f"w{week}") for week in range(9)] == decided  # asked again
        void(store, Accountant(), "phones-w0", reason="the job failed", actor="x")
        with pytest.raises(Conflict):
            gate("w0")
        # A kind of round that the ledger does not know waits for a computation.
        unknown = block("python").replace("wait_seconds=60", "wait_seconds=0")
        exec(unknown.replace("epsilon0=0.5", "epsilon0=0.7"), names)  # noqa: S102 - as above
        with pytest.raises(names["AskAgain"]):
            names["budget_allows"]("later")
        monkeypatch.setenv("SHUFFLE_LEDGER_TOKEN", "sl_wrong")
        with pytest.raises(Unauthorized):
            gate("w1")
