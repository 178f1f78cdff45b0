"""Computes privacy losses in a process that an import started.

It imports nothing of the ledger, and so starts in less than half the time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess

from shuffle_ledger.accounting import Accountant, ShuffledRound


def loss_bytes(slot: ShuffledRound, precision: float) -> bytes:
    """Returns the round's privacy loss in the form in which it is stored."""
    return Accountant(precision=precision).privacy_loss(slot).to_bytes()


def prepare_process() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
