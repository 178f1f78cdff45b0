"""Totals of the whole ledger for metrics, read in the background so that every scrape is fast.

One thread reads the figures when they are stale; a scrape waits for it for a moment and then answers with
those of the last time. Stale means older than `STALE_TIMES` times what reading them took: reading takes at
most a twentieth of one core, however many cohorts there are. The first reading takes longer, for it reads
every cohort: until it ends, a scrape has the health and the counts, and says that the figures are incomplete.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from shuffle_ledger.ledger.api.cohort_uses import CohortUses
from shuffle_ledger.ledger.errors import Damaged, TryAgain
from shuffle_ledger.ledger.health import Health
from shuffle_ledger.ledger.reports.listing import CohortUse, RoundCounts, refusals_after, round_counts
from shuffle_ledger.ledger.storage.store import Store

STALE_TIMES = 20.0
STALE_SECONDS_MAX = 30.0  # also where a broker that is down made reading slow
WAIT_SECONDS = 0.05  # of a scrape for figures that are being read
FIRST_WAIT_SECONDS = 0.25  # of the first scrape for complete figures
UNAVAILABLE_SECONDS = 8.0  # of the first scrape for any; less than a scrape may take
COHORTS_AT_ONCE = 2_000  # read in one go; then the reader rests for as long as they took
REFUSALS_AT_ONCE = 20_000  # entries read in one go to tell refusals by reason
COHORT_COST = 10  # of these entries: what asking for the refusals of one cohort counts as
SHARES = (0.5, 0.8, 0.9, 1.0)  # of a budget

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one moment."""

    health: Health
    rounds_admitted: int
    rounds_refused: int
    refused_by_reason: Mapping[str, int] | None  # None: not all refusals were read yet
    worst: tuple[CohortUse, ...] | None  # that used most of their budgets, most first; None: not known yet
    used_at_least: Mapping[float, int]  # how many cohorts used this share of their budgets, or more
    read_at: float  # by the clock of the process
    read_seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether every cohort and every refusal was read."""
        return self.worst is not None and self.refused_by_reason is not None


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
        self._answerable = threading.Event()  # there are figures, or reading them failed
        self._ending = threading.Event()
        self._uses = uses or CohortUses(store)
        self._refused: dict[str, int] = {}  # rounds that cohorts refused, of which not all were read
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
                self._answerable.clear()
                reading = self._reading = self._reader.submit(self._read)
                reading.add_done_callback(lambda _: self._answerable.set())
        if reading is None and latest is not None:
            return latest
        if reading is not None:
            wait([reading], timeout=FIRST_WAIT_SECONDS if latest is None else WAIT_SECONDS)
            if latest is None and not reading.done():
                self._answerable.wait(UNAVAILABLE_SECONDS)
            if reading.done():
                return reading.result(timeout=0)
        if self._latest is None:
            raise TryAgain("the figures about the ledger are being read: ask again")
        return self._latest

    def close(self) -> None:
        """Read no more."""
        self._ending.set()
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _is_stale(self, latest: Figures) -> bool:
        return self._clock() - latest.read_at > min(STALE_TIMES * latest.read_seconds, STALE_SECONDS_MAX)

    def _read(self) -> Figures:
        began = self._clock()
        health = self._health()
        if self._latest is None:
            self._publish(began, health, round_counts(self._store))
        try:
            self._read_cohorts()
            totals = self._uses.totals(worst_max=self._worst_max, shares=SHARES)
            caught_up = self._read_refusals()
        except Damaged as error:  # which `BROKEN` says, too; the alarms must not fail with it
            _log.error("the figures about the ledger are incomplete: %s", error)
            return self._publish(began, health, round_counts(self._store))
        return self._publish(
            began,
            health,
            RoundCounts(admitted=totals.rounds_admitted, refused=totals.rounds_refused),
            refused_by_reason=dict(self._reasons) if caught_up else None,
            worst=totals.worst,
            used_at_least=totals.used_at_least,
        )

    def _publish(
        self,
        began: float,
        health: Health,
        counts: RoundCounts,
        *,
        refused_by_reason: Mapping[str, int] | None = None,
        worst: tuple[CohortUse, ...] | None = None,
        used_at_least: Mapping[float, int] | None = None,
    ) -> Figures:
        ended = self._clock()
        self._latest = found = Figures(
            health=health,
            rounds_admitted=counts.admitted,
            rounds_refused=counts.refused,
            refused_by_reason=refused_by_reason,
            worst=worst,
            used_at_least=used_at_least or {},
            read_at=ended,
            read_seconds=ended - began,
        )
        self._answerable.set()
        return found

    def _read_cohorts(self) -> None:
        """Read the cohorts that moved, in portions; raises TryAgain if the server ends meanwhile."""
        while True:
            began = time.monotonic()
            if self._uses.catch_up(heads_max=COHORTS_AT_ONCE):
                return
            if self._ending.wait(time.monotonic() - began):
                raise TryAgain("the server is ending")

    def _read_refusals(self) -> bool:
        """Read refusals that are new; return whether none is left to be read."""
        left = REFUSALS_AT_ONCE
        self._refused |= self._uses.take_refused()
        for cohort, refused in list(self._refused.items()):
            read, after = self._refusals.get(cohort, (0, 0))
            left -= COHORT_COST
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
