"""A worker that reports when it computes, waits on request, and dies when it computes one kind of round."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from shuffle_ledger.accounting import Accountant, FilterCharge, FilterSet, ShuffledRound
from shuffle_ledger.workers.celery_app import app

POISON_EPSILON0 = 0.75  # of a round that kills the process that computes it
CHARGE = Accountant.charge


def main(directory: Path) -> None:
    """Run a worker of two processes until stopped."""

    def charge(self: Accountant, shuffled: ShuffledRound, filters: FilterSet) -> FilterCharge:
        (directory / f"computing-{os.getpid()}").touch()
        if shuffled.randomizer.epsilon0 == POISON_EPSILON0:
            os.kill(os.getpid(), signal.SIGKILL)
        while (directory / "hold").exists():
            time.sleep(0.01)
        return CHARGE(self, shuffled, filters)

    Accountant.charge = charge  # type: ignore[method-assign]  # what the children fork with
    app.conf.worker_lost_wait = 0.1
    app.worker_main(
        ["worker", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
