"""Forecasts: how many more rounds a cohort admits, what limits them, and on which date a schedule ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound
from shuffle_ledger.ledger.decisions.decide import check_sizes
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.machine import Standing
from shuffle_ledger.ledger.policies.registry import Books, BudgetPolicy, policy_of
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.glimpses import Every
from shuffle_ledger.ledger.reports.rounds_left import (
    KINDS_MAX,
    ROUNDS_MAX,
    Room,
    by_frequency,
    dearest,
    is_over,
    room_for,
)
from shuffle_ledger.ledger.reports.schedule_days import ScheduleDays
from shuffle_ledger.ledger.reports.schedules_of_late import ScheduleOfLate, schedule_of_late
from shuffle_ledger.ledger.reports.window_forecasts import (
    SCHEDULED_MAX,
    WindowForecast,
    blocked,
    first_day,
    of_windows,
    periods_within,
)
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.local_budget import local_rounds_left
from shuffle_ledger.ledger.values.requests import CohortStatus
from shuffle_ledger.ledger.values.texts import checked_text

EVERY: tuple[Every, ...] = ("day", "week", "month")
FIT_MAX = 1_000  # rounds for which an epsilon0 is searched for: an answer takes seconds
PROMISE = (
    "If nothing else is admitted, corrected or changed in between, each round is declared as here and settled"
    " with no fewer reports (with the same number if users are sampled), and no other cohort or quota that it"
    " is charged to refuses it, at least so many will be admitted one after the other. Nothing is reserved: a"
    " forecast is no promise. Unless it says that the next one is refused, more may fit."
)
DAYS_OF_WINDOWS = " Each round is collected on its day of the schedule or, without a schedule, today."
_NOTHING = Room(count=0, is_largest=True)
_WIDTH = 2e-3  # of the epsilon0 that fits, relative


@dataclass(frozen=True, kw_only=True)
class ForecastWanted:
    """A question about the future of a cohort."""

    round: ShuffledRound | None = None  # None: each kind that the cohort has had, or that its plan has
    fit: int | None = None  # ask for the largest epsilon0 with which this number of rounds still fits
    every: Every | None = None  # one round in each of these periods
    until: date | None = None  # the last day of the schedule
    first_on: date | None = None  # the day of its first round; None: today, UTC

    def __post_init__(self) -> None:
        """Raise InvalidValue for questions that contradict each other."""
        if self.fit is not None and self.round is None:
            expected = "a round described beside it, by its randomizer and reports"
            raise InvalidValue(field="fit", value=self.fit, expected=expected)
        whole = isinstance(self.fit, int) and not isinstance(self.fit, bool)
        if self.fit is not None and not (whole and 1 <= self.fit <= FIT_MAX):
            raise InvalidValue(field="fit", value=self.fit, expected=f"a whole number from 1 to {FIT_MAX}")
        if self.every not in (None, *EVERY):
            raise InvalidValue(field="every", value=self.every, expected="one of: " + ", ".join(EVERY))
        for name, day in (("until", self.until), ("first_on", self.first_on)):
            if day is not None and self.every is None:
                expected = "`every` beside it: " + ", ".join(EVERY)
                raise InvalidValue(field=name, value=day.isoformat(), expected=expected)

    def days(self, today: date) -> ScheduleDays:
        """Return the days of the schedule; `today` is its first one, if it names none."""
        return ScheduleDays(every=self.every, first=self.first_on or today, until=self.until)


@dataclass(frozen=True, kw_only=True)
class LargestEpsilon0:
    """How much local privacy rounds may give up so that a number of them fits."""

    rounds: int
    epsilon0: float | None  # with which `rounds` rounds were found to fit; None: none was found


@dataclass(frozen=True, kw_only=True)
class KindForecast:
    """How many more rounds of one kind fit, each kind by itself."""

    round: ShuffledRound  # as asked; of kinds in use as the ledger accounts it
    rounds_at_least: int  # this number is admitted, one after the other
    next_is_refused: bool  # one more certainly is; False: it may fit too
    limited_by: str  # a word for the limit that ends it
    limit: str  # the same as a sentence
    ends_on: date | None  # the day of the last round of the schedule; None: no round, no schedule, or no end
    rounds_until: int | None  # that the schedule has until the last day asked for
    reaches_until: bool | None  # all of them fit
    # For as many as `fit`, else as the schedule has. None: not asked; or a schedule of a cohort with windows.
    largest: LargestEpsilon0 | None
    windows: tuple[WindowForecast, ...] = ()  # how many each window admits by itself


@dataclass(frozen=True, kw_only=True)
class ScheduleForecast:
    """How long one round of every kind in use fits in each period, all kinds together."""

    periods_at_least: int
    ends_on: date | None
    periods_until: int | None
    reaches_until: bool | None


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The rounds that a cohort would still admit. It promises and reserves nothing."""

    cohort: str
    policy: str
    status: CohortStatus
    epsilon_budget: float
    delta_budget: float
    epsilon_spent_upper: float
    rounds_pending: int  # registered and undecided: they are not counted here, and may be admitted
    every: Every | None
    first_on: date | None
    until: date | None
    kinds: tuple[KindForecast, ...]
    together: ScheduleForecast | None  # None: no schedule, or fewer than two kinds
    of_late: ScheduleOfLate | None = None  # None: no schedule is recognized, or a round was described
    promise: str  # what the numbers say, and that nothing is reserved


def forecast(
    store: Store, accountant: Accountant, cohort: str, wanted: ForecastWanted, *, today: date
) -> Forecast:
    """Return how many more rounds a cohort admits, under its own policy, filters and slots.

    Args:
        store: the ledger. Nothing is written.
        accountant: computes with the ledger's precision.
        cohort: its name.
        wanted: what is asked.
        today: the first day of a schedule that names none.

    Guarantee: if as many rounds of one kind as this says are registered one after the other, nothing else is
    admitted, settled, corrected or changed in between, and no other cohort or quota that they are charged to
    refuses, every one is admitted. This is not a statement about privacy: it is made of parameters and of the
    public record.

    Raises:
        NotFound: no such cohort.
        InvalidValue: the round has more reports, or a larger population to sample, than the cohort has users;
            or the schedule of a cohort with windows begins before today.
        BehindCheckpoint: more was spent than the ledger knows.
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    view = store.view(checked_text("cohort", cohort))
    store.check_anchor()  # now: the connection may have been opened for this
    if wanted.round is not None:
        check_sizes(wanted.round, view.cohort.population)
    return view_forecast(Books(store=store, accountant=accountant, keep=False), view, wanted, today=today)


def view_forecast(
    books: Books, view: CohortView, wanted: ForecastWanted, *, today: date, searches: bool = True
) -> Forecast:
    """Return what `forecast` says of a cohort that was read, and of a round whose size was checked.

    It `searches` for an epsilon0 if that is asked for.
    """
    store, today = books.store, first_day([view], today)
    if view.cohort.windows and wanted.first_on is not None and wanted.first_on < today:
        expected = (
            f"a day from {today.isoformat()}: of a cohort with windows, no round of earlier days is admitted"
        )
        raise InvalidValue(field="first_on", value=wanted.first_on.isoformat(), expected=expected)
    policy = policy_of(store, view)
    kinds = [wanted.round] if wanted.round is not None else _in_use(store, view, policy)
    days = wanted.days(today)
    asked = _Asked(books=books, view=view, policy=policy, wanted=wanted, days=days, searches=searches)
    found = tuple(_of_kind(asked, kind) for kind in kinds[:KINDS_MAX])
    return Forecast(
        cohort=view.cohort.name,
        policy=view.cohort.policy,
        status=view.cohort.status,
        epsilon_budget=view.cohort.epsilon_budget,
        delta_budget=view.cohort.delta_budget,
        epsilon_spent_upper=view.spent.epsilon_upper,
        rounds_pending=store.count_pending(view.cohort.name),
        every=wanted.every,
        first_on=days.first if wanted.every else None,
        until=wanted.until,
        kinds=found,
        together=_together(books, view, kinds, days),
        of_late=None if wanted.round is not None else schedule_of_late(books, view, today=today),
        promise=PROMISE + (DAYS_OF_WINDOWS if view.cohort.windows else ""),
    )


def kind_forecast(books: Books, view: CohortView, kind: ShuffledRound, *, today: date) -> KindForecast:
    """Return what `forecast` says of one kind, of a cohort that was read; raises as that."""
    days = ScheduleDays(every=None, first=today, until=None)
    policy = policy_of(books.store, view)
    asked = _Asked(books=books, view=view, policy=policy, wanted=ForecastWanted(), days=days)
    return _of_kind(asked, kind)


def _in_use(store: Store, view: CohortView, policy: BudgetPolicy) -> list[ShuffledRound]:
    """Return the kinds of a plan; else those that the cohort has had, the most frequent first."""
    slots = policy.slots(view)
    if slots:
        return [slot.round for slot in slots]
    holdings = store.holdings(view.cohort.name)
    counts = {
        ShuffledRound.from_mapping(canonical.decode(item.parameters)): item.local_count for item in holdings
    }
    return by_frequency(counts)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question about a cohort as it is now."""

    books: Books
    view: CohortView
    policy: BudgetPolicy
    wanted: ForecastWanted
    days: ScheduleDays
    searches: bool = True


def _of_kind(asked: _Asked, kind: ShuffledRound) -> KindForecast:
    books, view, policy, days = asked.books, asked.view, asked.policy, asked.days
    windows: tuple[WindowForecast, ...] = ()
    if is_over(view):
        room, limited_by, limit = _NOTHING, "collection_over", "The days of the period have passed."
    elif view.cohort.status == "open":
        room = room_for(books, view, policy, kind)
        limited_by, limit = _limit(books, view, policy, kind, room.count)
        windows = of_windows(books, view, kind)
        if windows:
            room, limited_by, limit = _within_windows(asked, kind, windows, room, (limited_by, limit))
    else:
        room, limited_by = _NOTHING, f"cohort_{view.cohort.status}"
        limit = f"The cohort is {view.cohort.status}: it admits nothing any more."
    rounds = asked.wanted.fit or (days.count() if asked.wanted.round is not None else None)
    rounds = rounds if asked.searches and not (windows and days.every) else None
    return KindForecast(
        round=kind,
        rounds_at_least=room.count,
        next_is_refused=room.is_largest,
        limited_by=limited_by,
        limit=limit,
        ends_on=days.last_of(room.count),
        rounds_until=days.count(),
        reaches_until=days.reaches(room.count),
        largest=_largest(books, view, kind, rounds) if rounds else None,
        windows=windows,
    )


def _within_windows(
    asked: _Asked,
    kind: ShuffledRound,
    windows: tuple[WindowForecast, ...],
    room: Room,
    limit: tuple[str, str],
) -> tuple[Room, str, str]:
    """Return how many rounds fit into the cohort's windows too, with the word and the sentence for the limit.

    The rounds are collected on the days of the schedule; all of them today if there is none.
    """
    days, most = asked.days, min(room.count, SCHEDULED_MAX)
    if days.every is None:
        first = min(windows, key=lambda each: each.rounds_today)
        count, window = first.rounds_today, first.window
        if count >= room.count:
            return room, *limit
    else:
        found = blocked(asked.books, asked.view, [kind], days, most)
        if found.window is None:
            cut = Room(count=found.days, is_largest=False)
            searched_all = found.days == room.count
            return (
                (room, *limit) if searched_all else (cut, "search", f"More than {most:,} are not looked at.")
            )
        count, window = found.days, found.window
    sentence = f"The budget for each {window.described} would be used up."
    return Room(count=count, is_largest=False), f"window {window.kind}", sentence


def _limit(
    books: Books, view: CohortView, policy: BudgetPolicy, kind: ShuffledRound, count: int
) -> tuple[str, str]:
    """Return the word and the sentence for what ends a number of rounds of one kind."""
    if count >= ROUNDS_MAX:
        return "search", f"More than {ROUNDS_MAX:,} rounds are not searched for."
    if local_rounds_left(view.cohort.local_budget, view.local, dearest(view, policy, kind)) <= count:
        return "local_budget", "The sum of epsilon0 over a user's rounds would be above the local budget."
    if policy.filters is None:
        if policy.refuses_all(view) and policy.accounted(view, kind) is not None:
            return "promise", "What the plan promises is above the budget: no round is admitted."
        return "no_free_slot", "The plan has no more free slots whose cost is known to cover such a round."
    return _limit_of_filters(policy, policy.room(books, view, kind), count)


def _limit_of_filters(policy: BudgetPolicy, room: Standing, count: int) -> tuple[str, str]:
    """Return the same of filters: of what they and the accounts of delta take."""
    names = ("gaussian", *policy.machine_rules.orders)
    if room.slots >= count and room.slots > room.filtered:
        return "slots", "The declared slots that such a round fits, which hold longest, would be taken."
    if min(room.certain, room.slack) < max(room.filters):
        return "delta_account", "The part of delta set aside for approximate rounds would be exceeded."
    reserves = len(policy.machine_rules.reserves)
    *fixed, sliding = room.filters
    by_name = dict(zip(names, (max(fixed[:reserves]), *fixed[reserves:]), strict=True))
    word = max(by_name, key=lambda name: by_name[name])
    if count and by_name[word] >= max(sliding, count):
        return f"filter {word}", f"The {word} filter, which holds longest, would be above the budget."
    if count:
        return "filter sliding", "The sliding reserve, which holds longest, would be used up."
    return "filters", "No filter would hold within the budget."


def _largest(books: Books, view: CohortView, kind: ShuffledRound, rounds: int) -> LargestEpsilon0:
    nothing = LargestEpsilon0(rounds=rounds, epsilon0=None)
    randomizer = kind.randomizer.to_mapping()
    single = isinstance(randomizer.get("epsilon0"), float)
    if view.cohort.status != "open" or is_over(view) or not single or rounds > FIT_MAX:
        return nothing
    without = {name: value for name, value in randomizer.items() if name != "epsilon0"}
    described: dict[str, Any] = {**kind.to_mapping(), "randomizer": without}
    try:
        found = calibrate_for(
            books.store, books.accountant, view.cohort.name, described, rounds=rounds, width=_WIDTH
        )
    except InvalidParameter as error:
        if error.field != "rounds":
            raise
        return nothing
    return LargestEpsilon0(rounds=rounds, epsilon0=found.epsilon0)


def _together(
    books: Books, view: CohortView, kinds: Sequence[ShuffledRound], days: ScheduleDays
) -> ScheduleForecast | None:
    if days.every is None or not 2 <= len(kinds) <= KINDS_MAX:
        return None
    count = periods_within(books, view, kinds, days)
    return ScheduleForecast(
        periods_at_least=count,
        ends_on=days.last_of(count),
        periods_until=days.count(),
        reaches_until=days.reaches(count),
    )
