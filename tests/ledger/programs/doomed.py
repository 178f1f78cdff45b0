"""Kills itself with SIGKILL at its first, second, third ... step of a story in the database, to the last.

A step is a statement of a transaction that writes, its commit, or the end of a statement that commits itself:
dying between two reads is dying after the last commit. After every death a healthy process tells the story to
the end. Each time it prints what the dead one was about to do, and how many entries it left.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from contextlib import suppress

from sqlalchemy import Connection, Engine, event

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    admit_together,
    open_cohort,
    register,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import NotCollectable
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest, request_of
from shuffle_ledger.ledger.verification.verifier import verify
from tests.statements import keep_compiled

STEPS_MAX = 500
WRITING = re.compile(r"\b(INSERT|UPDATE|DELETE|DONE)\b")
PRECISION = 0.05  # coarse is fast, and as sound
STORY = ["opened", "admitted", "admitted", "settled", "voided"]
JOINT = ("joint", "joint-in-two-steps")  # every round is of two cohorts


def cohorts(number: int, way: str) -> tuple[str, ...]:
    """Name the cohorts of a story."""
    return (f"cohort-{number}", f"cohort-{number}-twin")[: 2 if way in JOINT else 1]


def asked(names: tuple[str, ...], which: str, shuffled: ShuffledRound) -> RoundRequest:
    """Return a request for a round of the cohorts of a story."""
    return request_of(names, shuffled, round_id=f"{names[0]}-{which}")


def begin(store: Store, accountant: Accountant, number: int, way: str) -> None:
    """Open cohorts and admit their first round, which chooses filters: a computation, and two steps."""
    names = cohorts(number, way)
    for name in names:
        open_cohort(
            store,
            name=name,
            population=1000,
            epsilon=99.0,
            delta=1e-6,
            policy="adaptive",
            actor="storyteller",
        )
    request = asked(names, "first", known_kind())
    register(store, request, actor="storyteller")
    admit(store, accountant, request.round_id)


def known_kind() -> ShuffledRound:
    """Returns the kind of the rounds that are decided at once."""
    return ShuffledRound(randomizer=parse_randomizer("generic(epsilon0=1)"), reports=20)


def tell(store: Store, accountant: Accountant, number: int, way: str) -> None:
    """Open a cohort, if that has not begun; register, decide and close two rounds."""
    names = cohorts(number, way)
    name, shuffled = names[0], known_kind()
    if way == "in-two-steps":
        open_cohort(
            store,
            name=name,
            population=1000,
            epsilon=99.0,
            delta=1e-6,
            policy="adaptive",
            actor="storyteller",
        )
        # Another kind for each, so that its privacy loss is computed and stored in the story too.
        randomizer = parse_randomizer(f"generic(epsilon0={1 + number / 1024})")
        shuffled = ShuffledRound(randomizer=randomizer, reports=20)
    requests = [asked(names, which, shuffled) for which in ("settled", "voided")]
    rounds = [request.round_id for request in requests]
    if way == "together" and admit_together(store, accountant, requests, actor="storyteller"):
        requests = []
    for request in requests:
        if way in ("at-once", "joint") and admit_at_once(store, accountant, request, actor="storyteller"):
            continue
        with suppress(NotCollectable):  # it was closed before the last death
            register(store, request, actor="storyteller")
            admit(store, accountant, request.round_id)
    settle(store, accountant, rounds[0], reports=18, actor="storyteller")
    void(store, accountant, rounds[1], reason="nothing was released", actor="storyteller")


def die_at(step: int, way: str) -> None:
    """Arrange for SIGKILL at the given step of this process; of rounds of two cohorts, only the steps next to
    a commit count: the stories of one cohort die between any two statements of a transaction."""
    steps, ends = itertools.count(1), [True]

    def count(connection: Connection, what: str) -> None:
        writes = connection.get_execution_options().get("shuffle_ledger_write", False)
        if not (writes or WRITING.search(what)):
            return
        begins, ends[:] = ends[0], [what in ("COMMIT", "DONE")]
        if way in JOINT and not begins and not ends[0]:
            return
        if next(steps) == step:
            sys.stdout.write(" ".join(what.split()[:3]) + "\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def before_statement(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith("BEGIN"):  # nothing has happened since the last commit
            count(connection, statement)

    def after_statement(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        alone = connection.get_execution_options().get("shuffle_ledger_alone")
        if alone and WRITING.search(statement):
            count(connection, "DONE")

    event.listen(Engine, "before_cursor_execute", before_statement)
    event.listen(Engine, "after_cursor_execute", after_statement)
    event.listen(Engine, "commit", lambda connection: count(connection, "COMMIT"))


def left_behind(database_url: str, accountant: Accountant, number: int, way: str) -> int:
    """Finish the story; return how many entries the dead one had left. Fails unless all is as told once."""
    names = cohorts(number, way)
    name = names[0]
    story = STORY if way == "in-two-steps" else [STORY[0], "admitted", *STORY[1:]]
    with Store.connect(database_url) as store:
        before = [entry.kind for entry in store.entries_of(name)]
        assert before == story[: len(before)], before
        for other in names:
            assert [entry.kind for entry in store.entries_of(other)] == before
        if not way.endswith("in-two-steps"):
            assert store.pending(limit=1) == []
            assert store.count_pending(name) == 0
        tell(store, accountant, number, way)
        for each in names:
            assert [entry.kind for entry in store.entries_of(each)] == story
    return len(before)


def main(database_url: str, way: str) -> None:
    """Print two lines per death, and "survived" at the end."""
    keep_compiled()  # the dead and the healthy open the ledger again at every step
    accountant = Accountant(precision=PRECISION)
    for number in range(1, STEPS_MAX):
        if way != "in-two-steps":
            with Store.connect(database_url) as store:
                begin(store, accountant, number, way)  # the kind is known from then on
        child = os.fork()
        if child == 0:
            die_at(number, way)
            with Store.connect(database_url) as store:
                tell(store, accountant, number, way)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        sys.stdout.write(f"{left_behind(database_url, accountant, number, way)}\n")
        sys.stdout.flush()
    with Store.connect(database_url) as store:
        report = verify(store, accountant)  # which remembers its numbers: other tests check those
        assert report.ok, report
    sys.stdout.write("survived\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
