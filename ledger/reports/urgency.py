"""The order in which somebody should look at the cohorts.

Overspent and frozen ones are first, those with such a period today included; then those that used the larger
part of the budget of which they used most, periods of today included; then by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeAlias

from sqlalchemy import ColumnElement, Connection, case, func, select

from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.rows import IS_NO_PART
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import cohorts, heads
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.requests import CohortStatus
from shuffle_ledger.ledger.values.windows import Window

ALARMING: Final[tuple[CohortStatus, ...]] = ("overspent", "frozen")
# Name, status, used share, and the largest one of its periods.
_Known: TypeAlias = tuple[str, CohortStatus, float, float | None]


@dataclass(frozen=True, kw_only=True)
class UrgentPage:
    """A page of cohorts, without parts of others, in the order in which somebody should look at them."""

    names: tuple[str, ...]
    more: bool  # there are others behind the last one
    any: bool  # the reader may know of a cohort
    alarming: Mapping[CohortStatus, tuple[str, ...]]  # all overspent and frozen cohorts, by name


def urgent(
    store: Store,
    token: AccessToken,
    day: date,
    *,
    after: str,
    limit: int,
    search: str = "",
    by_name: bool = False,
) -> UrgentPage:
    """Return a page of the cohorts that a token sees, the most urgent first.

    Args:
        store: the ledger.
        token: whose page it is.
        day: whose periods count.
        after: the page begins behind this cohort; with the first one if it is none that the token sees.
        limit: how many names at most.
        search: only cohorts with this text in their names, capitals or not.
        by_name: all in the order of their names.
    """
    with engine.reading(store.engine) as connection:
        seen = [each for each in known_cohorts(connection, day) if token.sees(each[0])]
    places = sorted((_alarm(each) is None, -max(each[2], each[3] or 0.0), each[0]) for each in seen)
    sought = search.casefold()
    names = [name for _, _, name in places if sought in name.casefold()]
    if by_name:
        names.sort()
    begins = names.index(after) + 1 if after in names else 0
    return UrgentPage(
        names=tuple(names[begins : begins + limit]),
        more=len(names) > begins + limit,
        any=bool(seen),
        alarming={
            status: tuple(sorted(each[0] for each in seen if _alarm(each) == status)) for status in ALARMING
        },
    )


def used_at_least(store: Store, day: date, *, shares: Sequence[float]) -> dict[float, int]:
    """Return how many cohorts used each share, or more, of the budget of which they used most, periods of the
    day included."""
    with engine.reading(store.engine) as connection:
        used = [max(share, of_periods or 0.0) for *_, share, of_periods in known_cohorts(connection, day)]
    return {share: sum(one >= share for one in used) for share in shares}


def _alarm(known: _Known) -> CohortStatus | None:
    """Return why somebody should look at a cohort: it, or a period of the day, is overspent or frozen."""
    _, status, _, of_periods = known
    if status in ALARMING:
        return status
    return "overspent" if of_periods == math.inf else None


def known_cohorts(connection: Connection, day: date) -> list[_Known]:
    """Return all cohorts, without parts of others, and of their periods those of a day."""
    parts = heads.alias()
    used = case((parts.c.status == "open", parts.c.used_share), else_=math.inf)
    worst = select(func.max(used)).where(parts.c.cohort.in_(_names_of_periods(connection, day)))
    of_periods = case((cohorts.c.windows.is_not(None), worst.scalar_subquery())).label("of_periods")
    query = select(cohorts.c.name, heads.c.status, heads.c.used_share, of_periods)
    query = query.join_from(cohorts, heads, heads.c.cohort == cohorts.c.name).where(IS_NO_PART)
    return [tuple(row) for row in connection.execute(query)]


def _names_of_periods(connection: Connection, day: date) -> list[ColumnElement[str]]:
    """Return what the periods of a day are called, of any window that a cohort has, as expressions."""
    # Parts of cohorts, which may be most rows by far, have none: an index finds the others.
    declared = select(cohorts.c.windows).where(IS_NO_PART, cohorts.c.windows.is_not(None)).distinct()
    listed = [canonical.decode(each) for each in connection.execute(declared).scalars()]
    windows = [Window.from_mapping(each) for some in listed for each in some]
    names = {period.name for window in windows for period in window.periods("", day, day)}
    return [cohorts.c.name.concat(name) for name in sorted(names)]
