"""Compares the places of entries in the feed of all chains with the moments that their digests bind.

No digest binds a place. An entry that was moved to a lower place is hidden from readers of the feed that are
beyond it. Its body says when its round was registered, and no later place may be of an entry that was
recorded long before that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from shuffle_ledger.ledger.errors import Damaged, NotFound
from shuffle_ledger.ledger.storage.clocks import APPEND_SECONDS_MAX
from shuffle_ledger.ledger.storage.positions import PlacedEntry
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical

NAMED_MAX = 20  # entries


@dataclass(frozen=True, kw_only=True)
class _Registered:
    """A moment of the database's clock, in the order of the numbers that were given to rounds."""

    number: int
    at: datetime


def moved_ahead(store: Store) -> Iterator[str]:
    """Yield which decisions and incidents have a place before entries of other chains that are older.

    **Guarantee.** Let `a` be `APPEND_SECONDS_MAX` and `d` the clock bound of `store.clocks`. An entry is
    named only if its place was changed, or the database's clock was set back by more than `d` and no round
    was registered between that and the moment at which the clock had caught up to `a`. Every decision and
    incident is named that stands before an entry that was recorded more than `a + d` before the registration
    of its round, unless a round that was registered later shows that the clock was set back by more than `a`.

    *Proof.* An entry X takes its place at most `a` after its cohort was read (a process that stands still
    between its last look at the clock and its last statement aside), and is not recorded before what the
    clock said then. If entry I has an earlier place, its round was registered before X took its own. So a
    clock that is not set back shows at X's reading at most `a` less than at I's registration, one that is
    set forward or back by up to `d` at most `a + d` less. A clock that was set back further gives rounds
    with larger numbers than I's earlier moments. Digests bind both the number and the moment of a decided
    round's registration, so a change of places cannot feign that.

    Entries that were recorded before lost entries were last brought back are not compared with: what is
    brought back has new places. Nor is anything said of entries that register no round: settlements, say.
    """
    tolerance = timedelta(seconds=store.clocks.difference_max_seconds + APPEND_SECONDS_MAX)
    recovered = store.positions.recovered_at()
    oldest: tuple[datetime, PlacedEntry] | None = None  # of the later places
    setbacks: list[_Registered] = []
    named = 0
    for placed in store.positions.from_the_last():
        registered = _moment(placed.registered_at)
        if (
            oldest
            and registered
            and registered - oldest[0] > tolerance
            and not _is_excused(store, placed, registered, setbacks)
        ):
            yield _named(placed, registered, *oldest)
            named += 1
            if named == NAMED_MAX:
                return
        recorded = _moment(placed.recorded_at)
        is_compared = recorded is not None and (recovered is None or recorded > recovered)
        if recorded and is_compared and (oldest is None or recorded < oldest[0]):
            oldest = (recorded, placed)


def _is_excused(store: Store, placed: PlacedEntry, registered: datetime, setbacks: list[_Registered]) -> bool:
    """Whether a round that was registered after the entry's shows that the clock was set back since."""
    try:
        number = store.entry(placed.cohort, placed.sequence).content().details["registration"]
    except (Damaged, LookupError, NotFound):
        return True  # the replay of its chain says what is wrong with it
    if not isinstance(number, int):
        return True  # an older entry does not say
    before = registered - timedelta(seconds=APPEND_SECONDS_MAX)
    if any(each.number > number and each.at < before for each in setbacks):
        return True
    found = store.positions.earliest_registration(after=number)
    if found is None or found[1] >= before:
        return False
    setbacks.append(_Registered(number=found[0], at=found[1]))
    return True


def _moment(spelled: object) -> datetime | None:
    """Returns the moment that a part of a body spells; None if it spells none: SQLite takes any value."""
    try:
        return datetime.fromisoformat(spelled.decode("ascii")) if isinstance(spelled, bytes) else None
    except ValueError:
        return None


def _named(placed: PlacedEntry, registered: datetime, recorded: datetime, other: PlacedEntry) -> str:
    return (
        f"cohort {placed.cohort!r}, entry {placed.sequence}: its round was registered at"
        f" {canonical.spelled_moment(registered)}, and its place in the feed of events is before that of"
        f" cohort {other.cohort!r}, entry {other.sequence}, which was recorded earlier, at"
        f" {canonical.spelled_moment(recorded)}: its place was changed"
    )
