"""Writes rounds to several cohorts until it is killed: one by one, several in one commit, of all cohorts."""

from __future__ import annotations

import itertools
import random
import sys
from contextlib import suppress

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit_together, register_and_admit, void
from shuffle_ledger.ledger.errors import TryAgain
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest

ROUND = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=0.1)"), reports=1_000)


def main(database_url: str, name: str, cohorts: list[str]) -> None:
    """Never return."""
    accountant, chance = Accountant(precision=4e-3), random.Random(name)  # noqa: S311 - what comes next
    with Store.connect(database_url) as store:
        for number in itertools.count():
            with suppress(TryAgain):
                write(store, accountant, f"{name}-{number}", chance.choice(cohorts), cohorts)
            if number == 0:
                sys.stdout.write("writing\n")
                sys.stdout.flush()


def write(store: Store, accountant: Accountant, name: str, one: str, cohorts: list[str]) -> None:
    """Write one round of one cohort or of all, or one of each; some are given back."""
    number = int(name.rpartition("-")[2])
    if number % 8 == 0:
        each = [RoundRequest(round_id=f"{name}-{cohort}", cohort=cohort, round=ROUND) for cohort in cohorts]
        admit_together(store, accountant, each, actor=name)
        return
    audience = tuple(cohorts) if number % 8 == 1 else ()
    cohort = audience[0] if audience else one
    wanted = RoundRequest(round_id=name, cohort=cohort, audience=audience, round=ROUND)
    answer, _ = register_and_admit(store, accountant, wanted, actor=name)
    if number % 4 == 2 and isinstance(answer, Admitted):
        void(store, accountant, wanted.round_id, reason="nothing was sent", actor=name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
