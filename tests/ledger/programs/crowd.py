"""Many processes, forked from this one, rush at the last sliver of a cohort's budget; prints every answer."""

from __future__ import annotations

import os
import random
import sys
import time
import traceback

import scipy.optimize  # noqa: F401 - here, before the fork: each process would import it

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit, register, register_and_admit
from shuffle_ledger.ledger.errors import TryAgain, Unavailable
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused, RoundRequest
from tests.statements import keep_compiled

TRIES_MAX = 20  # "try again" is a possible answer, when a whole crowd writes to one cohort
NO_CONNECTION_SECONDS = 0.5  # of waiting for one
NO_CONNECTION = ("too many clients", "too many connections", "connection slots")


def main(database_url: str, cohort: str, way: str, processes: int, seed: int) -> None:
    """Print "Admitted", "Refused REASON" or what went wrong, a line per process."""
    accounted = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000)
    accountant = Accountant()
    keep_compiled()  # before the fork: each process would compile all statements
    with Store.connect(database_url) as store:  # here, before the fork, for its imports, too
        # One more for another cohort of this budget: the kind is known then, and decided at once.
        request = RoundRequest(round_id=f"first of {cohort}", cohort=f"{cohort} too", round=accounted)
        register_and_admit(store, accountant, request, actor="crowd")
    start, go = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)  # returns when the parent closes its end
            time.sleep(random.Random(f"{seed} {number}").uniform(0, 0.2))  # noqa: S311 - who comes when
            _rush(
                database_url,
                accountant,
                RoundRequest(round_id=f"{cohort}-{number}", cohort=cohort, round=accounted),
                in_two_steps=way == "in-two-steps",
            )
        children.append(child)
    os.close(go)
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    sys.exit(1 if failed else 0)


def _rush(database_url: str, accountant: Accountant, request: RoundRequest, *, in_two_steps: bool) -> None:
    code = 0
    try:
        _say(_insist(database_url, accountant, request, in_two_steps=in_two_steps))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test must see it, and the fork must end
        traceback.print_exc()
        _say(f"{type(error).__name__}: {error}")
        code = 1
    os._exit(code)


def _insist(database_url: str, accountant: Accountant, request: RoundRequest, *, in_two_steps: bool) -> str:
    for _ in range(TRIES_MAX):
        try:
            with Store.connect(database_url) as store:
                answer = _ask(store, accountant, request, in_two_steps=in_two_steps)
        except TryAgain:
            continue
        except Unavailable as error:
            if not any(reason in str(error) for reason in NO_CONNECTION):
                raise
            time.sleep(NO_CONNECTION_SECONDS)
            continue
        if isinstance(answer, Refused):
            return f"Refused {answer.reason}"
        assert isinstance(answer, Admitted)
        return "Admitted"
    return "TryAgain, too often"


def _ask(store: Store, accountant: Accountant, request: RoundRequest, *, in_two_steps: bool) -> object:
    if in_two_steps:
        register(store, request, actor="crowd")
        return admit(store, accountant, request.round_id)
    return register_and_admit(store, accountant, request, actor="crowd")[0]


def _say(line: str) -> None:
    os.write(1, (line + "\n").encode())  # short enough to be written at once, with other writers too


if __name__ == "__main__":
    url, name, way, *numbers = sys.argv[1:]
    main(url, name, way, *map(int, numbers))
