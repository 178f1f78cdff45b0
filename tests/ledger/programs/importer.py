"""Registers and decides rounds in order, saying after each step what was committed. Made to be killed."""

from __future__ import annotations

import sys

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import register
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.workers.dispatch import decide


def say(line: str) -> None:
    """Tell the test, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(database_url: str, rounds: int) -> None:
    """Import rounds with the numbers 0 to `rounds - 1`."""
    accountant, settings = Accountant(), Settings(database_url=database_url, broker_url=None)
    randomizer = parse_randomizer("krr(k=10, epsilon0=2)")
    with Store.connect(database_url) as store:
        for number in range(rounds):
            reports = 1_000 if number % 3 else 2_000
            request = RoundRequest(
                round_id=f"round-{number}",
                cohort="phones",
                round=ShuffledRound(randomizer=randomizer, reports=reports),
            )
            answer = register(store, request, actor="importer")
            say(f"registered {number}")
            if type(answer).__name__ == "Pending":
                answer = decide(store, accountant, settings, request.round_id)
            say(f"{type(answer).__name__} {number} {getattr(answer, 'sequence', '')}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
