"""The overview's curves and forecasts, kept in memory: only cohorts whose heads moved are read again."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeVar

from shuffle_ledger.accounting import Accountant, AccountingError
from shuffle_ledger.ledger import loss_cache
from shuffle_ledger.ledger.answers.budgets import FittingRounds
from shuffle_ledger.ledger.answers.forecasts import RecentSchedule
from shuffle_ledger.ledger.answers.summaries import KINDS_SHOWN_MAX
from shuffle_ledger.ledger.errors import LedgerError
from shuffle_ledger.ledger.policies.registry import LossSource
from shuffle_ledger.ledger.reports.chain_outlines import ChainOutline, chain_outlines
from shuffle_ledger.ledger.reports.forecasts import by_frequency, schedule_forecast, what_fits
from shuffle_ledger.ledger.reports.listing import CohortHead
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import POLICY_PLAN

REMEMBERED_MAX: Final = 4096
COMPUTED_AT_ONCE: Final = 24  # forecasts that one page computes at most, and as many after it is sent
COMPUTED_SECONDS: Final = 0.1  # after which a page begins no other one
KINDS_MAX: Final = 32  # whose privacy losses are read for one forecast

Kept = TypeVar("Kept")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The future of a cohort, if it goes on at the present pace; the numbers are those of `forecast`."""

    fits: tuple[FittingRounds, ...]  # of the kinds in use, as `budget` lists them
    of_late: RecentSchedule | None  # None: no schedule is recognized


class Overview:
    """Curves and forecasts of cohorts. Any thread may ask."""

    def __init__(self, store: Store) -> None:
        """Begin with nothing."""
        self._store = store
        self._lock = threading.Lock()
        self._outlines: OrderedDict[str, ChainOutline] = OrderedDict()
        self._outlooks: OrderedDict[str, tuple[int, date, Outlook | None]] = OrderedDict()

    def outlines(self, heads: Collection[CohortHead]) -> dict[str, ChainOutline]:
        """Return the outlines of cohorts up to their heads; later ones, if the heads moved meanwhile."""
        sequences = {head.body.cohort: head.body.sequence for head in heads}
        with self._lock:
            known = {name: self._outlines[name] for name in sequences if name in self._outlines}
        moved = [name for name, sequence in sequences.items() if known.get(name) is None
                 or known[name].sequence < sequence]  # fmt: skip
        if moved:
            read = chain_outlines(self._store, moved)
            known |= read
            for name, outline in read.items():
                self._keep(self._outlines, name, outline)
        return known

    def known_outlooks(
        self, seen: Sequence[tuple[str, ChainOutline]], *, today: date
    ) -> dict[str, Outlook | None]:
        """Return the outlooks of cohorts that were computed before, as `outlooks` does."""
        with self._lock:
            kept = {name: self._outlooks[name] for name, _ in seen if name in self._outlooks}
        sequences = {name: outline.sequence for name, outline in seen}
        return {name: one[2] for name, one in kept.items() if one[:2] == (sequences[name], today)}

    def outlooks(
        self,
        accountant: Accountant,
        seen: Sequence[tuple[str, ChainOutline]],
        *,
        today: date,
        seconds: float = COMPUTED_SECONDS,
    ) -> dict[str, Outlook | None]:
        """Return the outlooks of cohorts, those that are known and a few more; others are left out.

        None: no outlook is computed here, for the privacy loss of a kind is not stored, or the cohort's page
        says what is wrong.

        Args:
            accountant: computes with the ledger's precision.
            seen: cohorts with their outlines, the most urgent first.
            today: the first day of all schedules.
            seconds: after which no other computation is begun; 0: one is made.
        """
        found = self.known_outlooks(seen, today=today)
        unknown = dict([each for each in seen if each[0] not in found][:COMPUTED_AT_ONCE])
        if unknown:
            ends = time.monotonic() + seconds
            self._store.remember_openings(list(unknown))
            for view in self._store.views(list(unknown)):
                name, outline = view.cohort.name, unknown[view.cohort.name]
                if view.head_sequence == outline.sequence:  # else the next page has its next outline
                    found[name] = self._computed(accountant, view, outline, today)
                    self._keep(self._outlooks, name, (view.head_sequence, today, found[name]))
                if time.monotonic() > ends:
                    break
        return found

    def _computed(
        self, accountant: Accountant, view: CohortView, outline: ChainOutline, today: date
    ) -> Outlook | None:
        losses = LossSource(store=self._store, accountant=accountant, keep=False)
        try:
            if not _has_losses(losses, view, outline):
                return None
            late = outline.schedule
            return Outlook(
                fits=what_fits(losses, view, by_frequency(view.local), on=today),
                of_late=schedule_forecast(losses, view, late, today=today) if late is not None else None,
            )
        except (AccountingError, LedgerError):
            return None  # the cohort's own page says what is wrong

    def _keep(self, memory: OrderedDict[str, Kept], name: str, value: Kept) -> None:
        with self._lock:
            memory[name] = value
            memory.move_to_end(name)
            while len(memory) > REMEMBERED_MAX:
                memory.popitem(last=False)


def _has_losses(losses: LossSource, view: CohortView, outline: ChainOutline) -> bool:
    """Return whether all privacy losses that the forecasts need are stored, and few; give them to the
    accountant.
    """
    if view.cohort.policy == POLICY_PLAN or view.cohort.status != "open":
        return True
    kinds = outline.schedule.kinds if outline.schedule is not None else ()
    needed = {*by_frequency(view.local)[:KINDS_SHOWN_MAX], *kinds}
    if len(needed) > KINDS_MAX:
        return False
    loss_cache.recall(losses.store, losses.accountant, needed)
    return not loss_cache.unknown(losses.accountant, needed)
