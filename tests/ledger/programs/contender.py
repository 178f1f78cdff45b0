"""Waits for the start, then registers and admits its rounds as fast as it can, with all others."""

from __future__ import annotations

import sys

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit, register
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest


def say(line: str) -> None:
    """Tell the test, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(database_url: str, names: list[str]) -> None:
    """Print one outcome per name."""
    accountant = Accountant()
    accounted = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=1_000)
    accountant.certify({accounted: 1}, delta=1e-9)
    with Store.connect(database_url) as store:
        say("ready")
        sys.stdin.readline()
        for name in names:
            register(store, RoundRequest(round_id=name, cohort="phones", round=accounted), actor=name)
        for name in names:
            say(f"{type(admit(store, accountant, name)).__name__} {name}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
