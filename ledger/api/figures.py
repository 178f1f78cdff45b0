"""Totals of the whole ledger for metrics, read in the background so that every scrape is fast.

One thread reads the figures when they are stale; a scrape waits for it for a moment and then answers with
those of the last time. Stale means older than `STALE_TIMES` times what reading them took: reading takes at
most a twentieth of one core, however many cohorts there are. Refusals are read once each, a bounded number at
a time: until all were read, the figures say that they are incomplete.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime

from shuffle_ledger.ledger.errors import Damaged, TryAgain
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.reports.listing import (
    CohortUse,
    most_used,
    refusals_after,
    refused_counts,
    round_counts,
)
from shuffle_ledger.ledger.reports.urgency import used_at_least
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import RefusalReason

STALE_TIMES = 20.0
STALE_SECONDS_MAX = 30.0  # also where a broker that is down made reading slow
WAIT_SECONDS = 0.05  # of a scrape for figures that are being read
UNAVAILABLE_SECONDS = 8.0  # of the first scrape for any; less than a scrape may take
REFUSALS_AT_ONCE = 5_000  # entries read in one go to tell refusals by reason
COHORT_COST = 10  # of these entries: what asking for the refusals of one cohort counts as
SHARES = (0.5, 0.8, 0.9, 1.0)  # of a budget

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one moment."""

    health: Health
    rounds_admitted: int
    rounds_refused: int
    used_at_least: Mapping[float, int]  # how many cohorts used this share of a budget, or more
    worst: tuple[CohortUse, ...] | None  # that used most of their budgets, most first; None: one is damaged
    refused_by_reason: Mapping[str, int] | None  # None: not all refusals were read yet, or one is damaged
    read_at: float  # by the clock of the process
    read_seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether every refusal was read, and nothing that was read is damaged."""
        return self.worst is not None and self.refused_by_reason is not None


class LedgerFigures:
    """Reads the figures of a ledger; any thread may ask."""

    def __init__(
        self,
        store: Store,
        health: Callable[[], Health],
        *,
        worst_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._health = health
        self._worst_max = worst_max
        self._clock = clock
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="figures")
        self._reading: Future[Figures] | None = None
        self._latest: Figures | None = None
        self._refusals: dict[str, tuple[int, int]] = {}  # how many were read, and the last one's sequence
        self._reasons: Tally[str] = Tally()

    def latest(self) -> Figures:
        """Return the latest figures.

        Raises:
            TryAgain: there are none yet.
            What reading them raises, Unavailable mostly.
        """
        with self._lock:
            latest, reading = self._latest, self._reading
            if reading is not None and reading.done():
                reading = self._reading = None
            if reading is None and (latest is None or self._is_stale(latest)):
                reading = self._reading = self._reader.submit(self._read)
        if reading is not None:
            wait([reading], timeout=UNAVAILABLE_SECONDS if latest is None else WAIT_SECONDS)
            latest = reading.result() if reading.done() else latest
        if latest is None:
            raise TryAgain("the figures about the ledger are being read: ask again")
        return latest

    def close(self) -> None:
        """Read no more."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _is_stale(self, latest: Figures) -> bool:
        return self._clock() - latest.read_at > min(STALE_TIMES * latest.read_seconds, STALE_SECONDS_MAX)

    def _read(self) -> Figures:
        began, worst, is_read = self._clock(), None, False
        health, (admitted, refused) = self._health(), round_counts(self._store)
        today = datetime.now(UTC).date()
        used = used_at_least(self._store, today, shares=SHARES)
        try:
            worst = most_used(self._store, today, limit=self._worst_max)
            is_read = self._read_refusals()
        except Damaged as error:  # which `BROKEN` says, too; the alarms must not fail with it
            _log.error("the figures about the ledger are incomplete: %s", error)
        ended = self._clock()
        self._latest = Figures(
            health=health,
            rounds_admitted=admitted,
            rounds_refused=refused,
            used_at_least=used,
            worst=worst,
            refused_by_reason=dict(self._reasons) if is_read else None,
            read_at=ended,
            read_seconds=ended - began,
        )
        return self._latest

    def _read_refusals(self) -> bool:
        """Read refusals that are new; return whether none is left to be read."""
        left = REFUSALS_AT_ONCE
        for cohort, refused in refused_counts(self._store).items():
            read, after = self._refusals.get(cohort, (0, 0))
            if read >= refused:
                continue
            left -= COHORT_COST
            while read < refused:
                if left <= 0:
                    return False
                page = refusals_after(self._store, cohort, after=after)
                if not page:
                    break  # the head counts what is not there: for verification to find
                self._reasons += Tally(_reason(entry.content()) for entry in page)
                read, after = read + len(page), page[-1].sequence
                self._refusals[cohort] = (read, after)
                left -= len(page)
        return True


def _reason(body: EntryBody) -> str:
    """Return why a cohort refused a round: where one of its periods or quotas did, why that did."""
    details = body.details
    reason = str(details.get("reason"))
    if reason != RefusalReason.REFUSED_ELSEWHERE:
        return reason
    refused_by = details.get("refused_by", {})
    parts = sorted(name for name in refused_by if name.startswith(f"{body.cohort}@"))
    return str(refused_by[parts[0]].get("reason")) if parts else reason
