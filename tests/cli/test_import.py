"""An import: checked whole, in order, and finished by running it again, wherever it was interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.cli.backends import database, parallel_losses
from shuffle_ledger.cli.backends.database import DatabaseLedger
from shuffle_ledger.cli.backends.parallel_losses import AHEAD_MIN
from shuffle_ledger.cli.backends.session import open_session
from shuffle_ledger.cli.files.round_files import read_cohorts, read_requests
from shuffle_ledger.cli.files.round_import import plan_import, run_import
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import Pending
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.cli.conftest import Run

PROGRAM = Path(sys.executable).with_name("shuffle-ledger")
IMPORT = ("round", "import", "rounds.csv", "--cohorts", "cohorts.csv", "--json")
ROUNDS = 18
ACTOR = "tester"
PRECISION = 0.1
TRIES_MAX = 10
WAIT_SECONDS = 60.0
COHORTS = "cohort,population,epsilon,delta\nphones,100000,0.15,1e-6\nwatches,50000,0.12,1e-6\n"


@pytest.fixture
def files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory with rounds of two cohorts, more than their budgets hold."""
    # The tests are about the order of decisions; coarse numbers decide the same, and sooner.
    monkeypatch.setenv("SHUFFLE_LEDGER_PRECISION", str(PRECISION))
    monkeypatch.setenv("SHUFFLE_LEDGER_ACTOR", ACTOR)
    _write_files(directory)
    return directory


def _write_files(directory: Path) -> None:
    lines = ["round_id,cohort,collected_on,randomizer,reports"]
    for number in range(ROUNDS):
        cohort = "watches" if number % 3 == 2 else "phones"
        lines.append(f'r{number},{cohort},2025-01-01,"krr(k=2, epsilon0=0.5)",{1000 if number % 2 else 2000}')
    (directory / "rounds.csv").write_text("\n".join(lines) + "\n")
    (directory / "cohorts.csv").write_text(COHORTS)


def chains(directory: Path) -> dict[str, list[Any]]:
    """Return every chain's content without what differs between two runs of the same: the clock's time.

    Numbers of registrations rise in the file's order; a round that is registered again leaves a gap.
    """
    with Store.connect(f"sqlite:///{directory / 'shuffle-ledger.db'}") as store:
        assert store.pending(limit=10) == []
        bodies = {
            cohort.name: [entry.content() for entry in store.entries_of(cohort.name)]
            for cohort in store.cohorts()
        }
    decided = [(body.round_id, body) for each in bodies.values() for body in each if body.round_id]
    ordered = sorted((body.details["registration"], int(round_id[1:])) for round_id, body in decided)
    assert [number for _, number in ordered] == sorted({number for _, number in ordered})
    return {
        name: [
            (body.sequence, body.kind, body.round_id, body.actor, body.spent, _repeatable(body.details))
            for body in each
        ]
        for name, each in bodies.items()
    }


def _repeatable(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if name not in ("registered_at", "registration")}


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> dict[str, list[Any]]:
    """Returns the chains of an import without interruption."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    shutil.copy(sqlite_template, directory / "shuffle-ledger.db")
    _write_files(directory)
    url = f"sqlite:///{directory / 'shuffle-ledger.db'}"
    rounds, cohorts = directory / "rounds.csv", directory / "cohorts.csv"
    with open_session(Settings(database_url=url, actor=ACTOR, precision=PRECISION)) as session:
        plan = plan_import(
            DatabaseLedger(session=session), read_requests(rounds), read_cohorts(cohorts), file=rounds
        )
        run_import(DatabaseLedger(session=session), plan)
    return chains(directory)


def _empty_again(directory: Path, template: Path) -> None:
    for file in directory.glob("shuffle-ledger.db*"):
        file.unlink()
    shutil.copy(template, directory / "shuffle-ledger.db")


@pytest.mark.slow
def test_an_import_with_refusals_is_done_and_counts_them(files: Path, run: Run) -> None:
    answer = run(*IMPORT)
    assert answer.code == 0, answer.stderr
    summary = answer.json
    assert summary["rounds"] == ROUNDS == summary["rounds_admitted"] + summary["rounds_refused"]
    assert summary["rounds_admitted"] > 0
    assert summary["rounds_refused"] > 0
    assert (summary["rounds_pending"], summary["rounds_known"], summary["cohorts_opened"]) == (0, 0, 2)
    assert set(summary["cohorts"]) == {"phones", "watches"}
    ids = [round_id for _, _, round_id, *_ in chains(files)["phones"] if round_id]
    assert ids == [f"r{number}" for number in range(ROUNDS) if number % 3 != 2]
    again = run(*IMPORT).json
    assert again == summary | {"rounds_known": ROUNDS, "cohorts_opened": 0}
    for_people = run(*(word for word in IMPORT if word != "--json")).stdout
    assert f"Decided before this run: {ROUNDS} of {ROUNDS} rounds." in for_people
    assert run("audit", "verify", "--numbers", "all").code == 0


class _Stop:
    """Interrupts at the n-th call, before or after the call does its work."""

    def __init__(self, call: Callable[..., Any], *, at: int, after: bool) -> None:
        self.call, self.left, self.after = call, at, after

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        result = self.call(*arguments, **options)
        if self.left == 0:
            raise KeyboardInterrupt
        return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "step", "at", "after"),
    [
        (database, "open_many", 1, True),
        (database, "register_and_admit", 2, False),
        (database, "register_and_admit", 2, True),
        (database, "admit_together", 2, True),
    ],
)
def test_interrupted_between_any_two_steps_then_finished(  # the interruption, one line, the same chain
    files: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: dict[str, list[Any]],
    module: ModuleType,
    step: str,
    at: int,
    after: bool,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, step, _Stop(getattr(module, step), at=at, after=after))
        answer = run(*IMPORT)
    assert answer.code == 1
    assert answer.json["error"]["kind"] == "interrupted"
    assert "may be run again" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert run(*IMPORT).code == 0
    assert chains(files) == uninterrupted


def test_an_import_that_stops_says_what_is_registered_and_goes_on(
    files: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_some = DatabaseLedger.register_some

    def fail(ledger: DatabaseLedger, requests: Sequence[RoundRequest]) -> Any:
        if requests[0].round_id == "r3":
            raise ZeroDivisionError("as if a bound could not be computed")
        return register_some(ledger, requests[:1])

    with monkeypatch.context() as patched:
        patched.setattr(DatabaseLedger, "register_some", fail)
        answer = run(*IMPORT)
    assert answer.json["error"]["message"] == (
        "rounds.csv, line 5: as if a bound could not be computed (registered before it: 3; importing again"
        " goes on there)"
    )
    assert run(*IMPORT).json["rounds_known"] == 3


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let programs be interrupted where that is ignored and inherited, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
def test_a_process_stopped_again_and_again_is_finished_in_the_end(
    files: Path,
    run: Run,
    uninterrupted: dict[str, list[Any]],
    sqlite_template: Path,
) -> None:
    stopped = 0
    for _ in range(TRIES_MAX):
        wanted = _entries(files) + 2 + stopped
        process = subprocess.Popen(
            [PROGRAM, *IMPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        _stop_at(files, wanted, process, signal.SIGKILL)
        process.communicate(timeout=WAIT_SECONDS)
        if process.returncode == 0:  # it came to its end before the signal: from the beginning
            _forget(files, sqlite_template)
            stopped = 0
            continue
        assert process.returncode == -signal.SIGKILL
        stopped += 1
        if stopped == 2:
            break
    assert stopped == 2, "every import came to its end before it could be stopped"
    assert run("audit", "verify").code == 0
    assert run(*IMPORT).code == 0
    assert chains(files) == uninterrupted


def _forget(directory: Path, sqlite_template: Path) -> None:
    for path in directory.glob("shuffle-ledger.db*"):
        path.unlink()
    shutil.copy(sqlite_template, directory / "shuffle-ledger.db")


def _entries(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "shuffle-ledger.db", timeout=10)) as reader:
        return int(reader.execute("SELECT count(*) FROM entries").fetchone()[0])


def _stop_at(directory: Path, wanted: int, process: subprocess.Popen[str], sent: signal.Signals) -> None:
    """Sends the signal when `wanted` entries are there, unless the process has ended by itself."""
    end = time.monotonic() + WAIT_SECONDS
    while process.poll() is None:
        assert time.monotonic() < end, f"no {wanted} entries within {WAIT_SECONDS} seconds"
        if _entries(directory) >= wanted:
            process.send_signal(sent)
            return
        time.sleep(0.002)  # between two looks at another process; the deadline above ends it


KIND = '2025-01-01,"krr(k=2, epsilon0=0.5)"'
NOT_TAKEN: tuple[tuple[str, str, str, int, list[str]], ...] = (
    ("cohorts.csv", "watches,50000,0.12", "watches,50000,0.3", 5, ["cohorts.csv, line 3", "watches"]),
    ("rounds.csv", f"r16,phones,{KIND},2000", f"r16,phones,{KIND},2001", 5, ["rounds.csv, line 18", "r16"]),
    ("rounds.csv", "r14,watches", "r14,clocks", 4, ["rounds.csv, line 16", "clocks"]),
    (
        "rounds.csv",
        f"r17,watches,{KIND},1000",
        f"r17,watches,{KIND},50001",
        2,
        ["line 19", "reports", "50001"],
    ),
    ("cohorts.csv", "watches,", "..,", 2, ["cohorts.csv, line 3", "other than . and .."]),
    ("rounds.csv", "r17,", ".,", 2, ["rounds.csv, line 19", "other than . and .."]),
)


@pytest.mark.slow
def test_what_the_ledger_would_not_take_is_found_before_anything_is_written(files: Path, run: Run) -> None:
    assert run(*IMPORT).code == 0
    before = chains(files)
    with (files / "rounds.csv").open("a") as rounds:  # a new round, which must not get in
        rounds.write(f"r99,phones,{KIND},1000\n")
    for file, old, new, code, words in NOT_TAKEN:
        right = (files / file).read_text()
        changed = right.replace(old, new)
        assert new in changed
        (files / file).write_text(changed)
        answer = run(*IMPORT)
        assert answer.code == code
        for word in words:
            assert word in answer.json["error"]["message"]
        (files / file).write_text(right)
    assert run("round", "import", "rounds.csv", "--json").code == 0, "all cohorts are open"
    assert len(chains(files)["phones"]) == len(before["phones"]) + 1


def _write_many_kinds(directory: Path, count: int = AHEAD_MIN + 4) -> None:
    lines = ["round_id,cohort,randomizer,reports"]
    reports = [int(1000 * 1.03**number) for number in range(count)]  # slots are one percent apart
    lines += [f'r{number},phones,"krr(k=2, epsilon0=0.5)",{n}' for number, n in enumerate(reports)]
    (directory / "rounds.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_losses_computed_ahead_decide_the_same(
    files: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_losses, "AHEAD_MIN", 8)
    _write_many_kinds(files, 12)
    rounds, cohorts = files / "rounds.csv", files / "cohorts.csv"
    found = []
    for processes in (1, 2):
        _empty_again(files, sqlite_template)
        with open_session(Settings()) as session:
            plan = plan_import(
                DatabaseLedger(session=session), read_requests(rounds), read_cohorts(cohorts), file=rounds
            )
            run_import(DatabaseLedger(session=session), plan, processes=processes)
        found.append(chains(files))
    assert found[0] == found[1]


@pytest.mark.system
def test_a_killed_import_leaves_no_process_behind(files: Path) -> None:
    _write_many_kinds(files)
    process = subprocess.Popen([PROGRAM, *IMPORT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    _stop_at(files, 4, process, signal.SIGKILL)
    process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + WAIT_SECONDS
    while _group_lives(process.pid):
        assert time.monotonic() < end, "processes of the import outlived it"
        time.sleep(0.01)  # between two looks at other processes; the deadline above ends it


@pytest.mark.system
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_reaches_no_computing_child(files: Path) -> None:
    _write_many_kinds(files)
    process = subprocess.Popen(
        [PROGRAM, *IMPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    end = time.monotonic() + WAIT_SECONDS
    while _spawned(process.pid) == 0:
        assert process.poll() is None
        assert time.monotonic() < end, "the import started no process"
        time.sleep(0.05)  # between two looks at other processes; the deadline above ends it
    time.sleep(0.4)  # the children start, and then compute
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 1, errors
    assert "may be run again" in errors
    assert "Traceback" not in errors


def _spawned(group: int) -> int:
    """Return how many computing children a group of processes has."""
    words = subprocess.run(
        ["ps", "-ww", "-o", "args=", "-g", str(group)], capture_output=True, text=True, check=False
    )
    return words.stdout.count("spawn_main")


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_known_kinds_are_decided_together_where_there_is_a_broker(files: Path) -> None:
    """Workers decide only what has to be computed, and no worker runs here."""
    url = f"sqlite:///{files / 'shuffle-ledger.db'}"
    settings = Settings(database_url=url, actor=ACTOR, precision=PRECISION, decision_timeout_seconds=0.0)
    requests = [line.request for line in read_requests(files / "rounds.csv")]
    phones = [request for request in requests if request.cohort == "phones"]
    with open_session(settings) as session:
        ledger = DatabaseLedger(session=session)
        ledger.open_many([line.cohort for line in read_cohorts(files / "cohorts.csv")])
        for known in phones[:2]:
            ledger.register_some([known])
    with open_session(settings.model_copy(update={"broker_url": "memory://"})) as session:
        ledger = DatabaseLedger(session=session)
        for charged in phones[2:4]:  # with losses that are stored
            ledger.register_some([charged])
        answers = ledger.register_some(phones[4:8])
    assert [answer.round_id for answer, _ in answers] == [request.round_id for request in phones[4:8]]
    assert not any(isinstance(answer, Pending) for answer, _ in answers)


@pytest.mark.slow
def test_rounds_of_new_kinds_are_decided_in_one_commit(files: Path) -> None:
    """What their decisions need is stored and computed before. A line that cannot be decided ends a batch."""
    settings = Settings(
        database_url=f"sqlite:///{files / 'shuffle-ledger.db'}", actor=ACTOR, precision=PRECISION
    )
    phones = [line.request for line in read_requests(files / "rounds.csv") if line.request.cohort == "phones"]
    new = [
        replace(request, round=replace(request.round, reports=3000 + number * 500))
        for number, request in enumerate(phones)
    ]
    nobody = replace(new[-1], round_id="of no cohort", cohort="clocks")
    with open_session(settings) as session:
        ledger = DatabaseLedger(session=session)
        ledger.open_many([line.cohort for line in read_cohorts(files / "cohorts.csv")])
        ledger.register_some(new[:1])  # chooses the filters
        assert len(ledger.register_some(new[1:4])) == 1
        with ledger.losses_ahead([request.round for request in new], processes=1) as prepare:
            prepare([*new[2:9], nobody, *new[9:12]])
            answers = ledger.register_some([*new[2:9], nobody, *new[9:12]])
            assert [answer.round_id for answer, _ in answers] == [request.round_id for request in new[2:9]]
            assert len(ledger.register_some(new[9:12])) == 3
        assert session.store.pending(limit=1) == []
        assert verify(session.store, session.accountant, numbers="all").ok


def test_a_file_is_checked_against_the_ledger_without_a_question_for_each_line(files: Path) -> None:
    lines, cohorts = read_requests(files / "rounds.csv"), read_cohorts(files / "cohorts.csv")
    with open_session(Settings(database_url=f"sqlite:///{files / 'shuffle-ledger.db'}")) as session:
        ledger, asked = DatabaseLedger(session=session), []
        event.listen(session.store.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
        plan = plan_import(ledger, lines, cohorts, file=files / "rounds.csv")
    assert len(plan.lines) == ROUNDS
    assert len(asked) < ROUNDS / 2, asked
