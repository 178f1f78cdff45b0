"""Totals of the whole ledger for metrics, read in the background so that every scrape is fast.

One thread reads the figures when they are stale; a scrape waits for it for a moment and then answers with
those of the last time. Stale means older than `STALE_TIMES` times what reading them took: reading takes at
most a twentieth of one core, however many cohorts there are.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from shuffle_ledger.ledger.api.cohort_uses import CohortUses
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.reports.listing import CohortUse, refusals_after
from shuffle_ledger.ledger.storage.store import Store

STALE_TIMES = 20.0
STALE_SECONDS_MAX = 30.0  # also where a broker that is down made reading slow
WAIT_SECONDS = 0.05  # of a scrape for figures that are being read
FIRST_WAIT_SECONDS = 20.0  # of the first scrape, which has no others to answer with
REFUSALS_AT_ONCE = 20_000  # entries read in one go to tell refusals by reason
SHARES = (0.5, 0.8, 0.9, 1.0)  # of a budget


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one moment."""

    health: Health
    rounds_admitted: int
    rounds_refused: int
    refused_by_reason: Mapping[str, int] | None  # None: not all refusals were read yet
    worst: tuple[CohortUse, ...]  # that used most of their budgets, most first
    used_at_least: Mapping[float, int]  # how many cohorts used this share of their budgets, or more
    read_at: float  # by the clock of the process
    read_seconds: float


class LedgerFigures:
    """Reads the figures of a ledger; any thread may ask."""

    def __init__(
        self,
        store: Store,
        health: Callable[[], Health],
        *,
        worst_max: int,
        uses: CohortUses | None = None,
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
        self._uses = uses or CohortUses(store)
        self._refused: dict[str, int] = {}  # rounds that cohorts refused, of which not all were read
        self._refusals: dict[str, tuple[int, int]] = {}  # how many were read, and the last one's sequence
        self._reasons: Tally[str] = Tally()

    def latest(self) -> Figures:
        """Return the latest figures; raises what reading the first ones raises, Unavailable mostly."""
        with self._lock:
            latest, reading = self._latest, self._reading
            if reading is not None and reading.done():
                reading = self._reading = None
            if reading is None and (latest is None or self._is_stale(latest)):
                reading = self._reading = self._reader.submit(self._read)
        if reading is None and latest is not None:
            return latest
        if reading is not None:
            wait([reading], timeout=FIRST_WAIT_SECONDS if latest is None else WAIT_SECONDS)
            if reading.done() or latest is None:
                return reading.result(timeout=0)
        if latest is None:
            raise AssertionError("figures are being read, or there are some")
        return latest

    def close(self) -> None:
        """Read no more."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _is_stale(self, latest: Figures) -> bool:
        return self._clock() - latest.read_at > min(STALE_TIMES * latest.read_seconds, STALE_SECONDS_MAX)

    def _read(self) -> Figures:
        began = self._clock()
        health = self._health()
        totals = self._uses.totals(worst_max=self._worst_max, shares=SHARES)
        caught_up = self._read_refusals()
        ended = self._clock()
        self._latest = Figures(
            health=health,
            rounds_admitted=totals.rounds_admitted,
            rounds_refused=totals.rounds_refused,
            refused_by_reason=dict(self._reasons) if caught_up else None,
            worst=totals.worst,
            used_at_least=totals.used_at_least,
            read_at=ended,
            read_seconds=ended - began,
        )
        return self._latest

    def _read_refusals(self) -> bool:
        """Read refusals that are new; return whether none is left to be read."""
        left = REFUSALS_AT_ONCE
        self._refused |= self._uses.take_refused()
        for cohort, refused in list(self._refused.items()):
            read, after = self._refusals.get(cohort, (0, 0))
            while read < refused:
                if left <= 0:
                    return False
                page = refusals_after(self._store, cohort, after=after)
                if not page:
                    break  # the head counts what is not there: for verification to find
                self._reasons.update(str(entry.content().details.get("reason")) for entry in page)
                read, after = read + len(page), page[-1].sequence
                self._refusals[cohort] = (read, after)
                left -= len(page)
            del self._refused[cohort]
        return True
