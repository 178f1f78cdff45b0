"""The used parts of all budgets, kept in memory.

The feed says which cohorts moved since the last time, so what a page or a scrape reads does not grow with
the ledger. The first one reads every cohort, as does one that comes after very many entries; `catch_up` does
so in portions.
"""

from __future__ import annotations

import bisect
import heapq
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final, TypeAlias

from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.reports.events import cursor_now, moved_since
from shuffle_ledger.ledger.reports.listing import CohortUse, HeadCount, cohort_uses, head_counts
from shuffle_ledger.ledger.reports.promises import worst_used_shares
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import FIRST_SEQUENCE
from shuffle_ledger.ledger.values.requests import CohortStatus

MOVED_MAX: Final = 5_000  # entries since the last time; after more of them every head is read
ALARMING: Final[tuple[CohortStatus, ...]] = ("overspent", "frozen")

_Place: TypeAlias = tuple[bool, float, str]  # of a cohort in the order of urgency


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What all cohorts add up to."""

    rounds_admitted: int
    rounds_refused: int
    worst: tuple[CohortUse, ...]  # that used most of their budgets, most first
    used_at_least: Mapping[float, int]  # how many cohorts used this share of their budgets, or more


@dataclass(frozen=True, kw_only=True)
class UrgentPage:
    """A page of cohorts, without parts of others, in the order in which somebody should look at them."""

    names: tuple[str, ...]
    more: bool  # there are others behind the last one
    any: bool  # the reader may know of a cohort
    alarming: Mapping[CohortStatus, tuple[str, ...]]  # all overspent and frozen cohorts, in order


def _today() -> date:
    return datetime.now(UTC).date()


class CohortUses:
    """The state of all cohorts, as a server keeps it. Any thread may ask, and gets the present state."""

    _urgent: list[_Place] | None  # all places in order; None: some moved since they were put in order

    def __init__(self, store: Store, *, today: Callable[[], date] = _today) -> None:
        """Read nothing yet."""
        self._store = store
        self._today = today
        self._lock = threading.Lock()
        self._forget_all()

    def catch_up(self, *, heads_max: int) -> bool:
        """Read what moved, at most that many cohorts of it; return whether none is left."""
        with self._lock:
            self._catch_up(heads_max=heads_max)
            return not self._left

    def totals(self, *, worst_max: int, shares: Collection[float]) -> Totals:
        """Return the sums over all cohorts, and those that used most of their budgets."""
        with self._lock:
            self._catch_up()
            return Totals(
                rounds_admitted=self._admitted,
                rounds_refused=self._refused,
                worst=tuple(heapq.nsmallest(worst_max, self._uses.values(), key=_most_used_first)),
                used_at_least={
                    share: sum(use.ratio >= share for use in self._uses.values()) for share in shares
                },
            )

    def take_refused(self) -> dict[str, int]:
        """Return how many rounds each cohort refused that refused more since the last time this was asked."""
        with self._lock:
            self._catch_up()
            taken = dict(self._refused_more)
            self._refused_more.clear()
            return taken

    def urgent(
        self, token: AccessToken, *, after: str, limit: int, search: str = "", by_name: bool = False
    ) -> UrgentPage:
        """Return a page of the cohorts that a token sees: overspent and frozen ones first, then those that
        used the larger part of the budget of which they used most, periods of today included, then by name.

        Args:
            token: whose page it is.
            after: the page begins behind this cohort; with the first one if it is none that the token sees.
            limit: how many names at most.
            search: only cohorts with this text in their names, capitals or not.
            by_name: all in the order of their names.
        """
        with self._lock:
            self._catch_up()
            urgent = self._seen_by(token)
            sought = search.casefold()
            names = [name for _, _, name in urgent if sought in name.casefold()]
            if by_name:
                names.sort()
            begins = names.index(after) + 1 if after in names else 0
            closed = sorted(name for _, _, name in urgent[: bisect.bisect_left(urgent, (True,))])
            statuses = {name: self._known[name].status for name in closed}
        return UrgentPage(
            names=tuple(names[begins : begins + limit]),
            more=len(names) > begins + limit,
            any=bool(urgent),
            alarming={
                status: tuple(name for name in closed if statuses[name] == status) for status in ALARMING
            },
        )

    def seen(self, token: AccessToken) -> list[str]:
        """Return the names of the cohorts that a token sees, without parts of others, by urgency."""
        with self._lock:
            self._catch_up()
            return [name for _, _, name in self._seen_by(token)]

    def _seen_by(self, token: AccessToken) -> list[_Place]:
        if token.cohorts is None:
            if self._urgent is None:
                self._urgent = sorted(self._places.values())
            return self._urgent
        names = {*token.cohorts, *self._marked} & self._places.keys()
        return sorted(self._places[name] for name in names if token.sees(name))

    def _forget_all(self) -> None:
        self._day = self._today()  # whose periods the shares of `_urgent` are of
        self._cursor: str | None = None  # of the feed: what is known is true of all entries up to it
        self._known: dict[str, HeadCount] = {}
        self._uses: dict[str, CohortUse] = {}  # of cohorts with more than their first entry
        self._places: dict[str, _Place] = {}  # without parts of other cohorts
        self._urgent = None
        self._marked: set[str] = set()  # of these, names that look like a part's: tokens see them, too
        self._refused_more: dict[str, int] = {}
        self._left: dict[str, HeadCount] = {}  # moved, and not read yet
        self._admitted = self._refused = 0

    def _catch_up(self, *, heads_max: int | None = None) -> None:
        moved = None
        if self._day != self._today():
            self._forget_all()  # periods ended
        if self._cursor is not None:
            try:
                moved = moved_since(self._store, self._cursor, limit=MOVED_MAX)
            except Conflict:  # the database was put back: nothing that is known can be trusted
                self._forget_all()
        if moved is not None:
            names, cursor = moved
            counts = head_counts(self._store, only=names) if names else []
        else:
            cursor, counts = cursor_now(self._store), head_counts(self._store)  # in this order
            if not self._known.keys() <= {each.cohort for each in counts}:
                self._forget_all()  # a cohort vanished
        left = {**self._left, **{each.cohort: each for each in counts}}
        self._left = {name: each for name, each in left.items() if self._known.get(name) != each}
        self._cursor = cursor
        portion = [*self._left.values()][:heads_max]
        self._note(portion)
        for each in portion:
            del self._left[each.cohort]

    def _note(self, moved: Sequence[HeadCount]) -> None:
        used = [each.cohort for each in moved if each.sequence > FIRST_SEQUENCE]
        uses = cohort_uses(self._store, only=used) if used else {}
        renewing = [each.cohort for each in moved if each.has_windows and each.sequence > FIRST_SEQUENCE]
        shares = worst_used_shares(self._store, renewing, self._day)
        for each in moved:
            name, before = each.cohort, self._known.get(each.cohort)
            refused_before = 0 if before is None else before.refused
            self._admitted += each.admitted - (0 if before is None else before.admitted)
            self._refused += each.refused - refused_before
            if each.refused > refused_before:
                self._refused_more[name] = each.refused
            self._known[name] = each
            if name in uses:
                self._uses[name] = uses[name]
            if not each.is_part:
                share = shares.get(name, uses[name].ratio if name in uses else 0.0)
                self._places[name] = each.status == "open", -share, name
                self._urgent = None
                if "@" in name:
                    self._marked.add(name)


def _most_used_first(use: CohortUse) -> tuple[float, str]:
    return -use.ratio, use.cohort
