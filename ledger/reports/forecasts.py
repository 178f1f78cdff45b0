"""Forecasts: how many more rounds fit into budgets, what limits them, and on which date a schedule ends.

Every budget that a round is charged to decides by itself, and the rounds that all of them admitted so far are
charged to each. So a budget that takes a number of rounds ends a schedule on the day of the next one that is
charged to it, and the schedule ends with the budget that ends it first. `fitting` is that rule; every answer
of this module is one or more of its answers.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.answers.budgets import FittingRounds
from shuffle_ledger.ledger.answers.forecasts import (
    Forecast,
    JointForecast,
    KindForecast,
    LargestEpsilon0,
    RecentSchedule,
    ScheduleForecast,
    WindowForecast,
)
from shuffle_ledger.ledger.answers.summaries import KINDS_SHOWN_MAX
from shuffle_ledger.ledger.decisions.decide import check_request
from shuffle_ledger.ledger.decisions.descriptions import check_sizes
from shuffle_ledger.ledger.decisions.quotas import with_budgets
from shuffle_ledger.ledger.decisions.windows import empty_view, views_of, views_on, why_refused_on
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies.base import changed
from shuffle_ledger.ledger.policies.largest_epsilon0 import epsilon0_of, largest_epsilon0, with_epsilon0
from shuffle_ledger.ledger.policies.registry import LossSource, policy_of
from shuffle_ledger.ledger.policies.room import SEARCH, Room, dearest, help_of_slots, is_over, least, room_of
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.chain_outlines import chain_outlines
from shuffle_ledger.ledger.reports.listing import views_now
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.requests import request_of
from shuffle_ledger.ledger.values.schedules import (
    FIT_MAX,
    ForecastWanted,
    Schedule,
    ScheduleDays,
)
from shuffle_ledger.ledger.values.texts import checked_text
from shuffle_ledger.ledger.values.windows import Window, periods_of

PERIODS_MAX: Final = 10_000  # of a schedule of several kinds; more are not counted
SCHEDULED_MAX: Final = 1_000  # days of a schedule on which windows are looked at
SEARCHED_MAX: Final = 50  # budgets for which an epsilon0 is searched for, each by itself: a second of each
FORESEEN_POINTS: Final = 12  # at which the spending of a schedule is computed
PROMISE: Final = (
    "This many rounds or more will be admitted, one after the other, if nothing else is admitted, corrected"
    " or changed meanwhile, each round is declared as here and settled with no fewer reports (with exactly as"
    " many if users are sampled), and no other cohort or quota refuses it. Nothing is reserved for them. More"
    " may fit, unless the next one is said to be refused."
)
PROMISE_OF_ALL: Final = (
    "All of these budgets will admit this many rounds or more, one after the other, if nothing else is"
    " admitted, corrected or changed meanwhile, and each round is declared as here and settled with no fewer"
    " reports (with exactly as many if users are sampled). Nothing is reserved for them. More may fit, unless"
    " the next one is said to be refused."
)
DAYS_OF_WINDOWS: Final = " Each round is collected on its day of the schedule or, without a schedule, today."
_WIDTH: Final = 2e-3  # of the epsilon0 that fits, relative
_DIGITS: Final = 4  # of the epsilon0 that fits into windows: as narrow as that


# The rule.


def fitting(
    losses: LossSource,
    view: CohortView,
    kinds: Sequence[ShuffledRound],
    days: ScheduleDays,
    *,
    most: int,
) -> Room:
    """Returns how many turns of a schedule a cohort admits, in its own budget and in all of its windows.

    Args:
        losses: where privacy losses come from.
        view: the cohort now.
        kinds: the rounds of one turn, in their order.
        days: on which one turn each is collected; without a schedule, all of them on the first.
        most: turns that are counted; of a cohort with windows and a schedule, `SCHEDULED_MAX` at most.

    Guarantee: that of `room_of`, if the rounds of each turn are collected on its day.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    room = room_of(losses, [view], kinds)
    if not view.cohort.windows or not room.turns:
        return _up_to(most, room)
    if days.every is None:
        rooms = (each for _, each in _rooms_on(losses, view, kinds, days.first))
        return _up_to(most, least([room, *rooms]))
    room = _up_to(min(most, SCHEDULED_MAX), room)
    dates = (days.last_of(turn) for turn in range(1, room.turns + 1))
    return _in_windows(losses, view, kinds, [day for day in dates if day is not None]) or room


def _up_to(most: int, room: Room) -> Room:
    if room.turns <= most:
        return room
    sentence = f"The search stops at {most:,}."
    return Room(turns=most, is_largest=False, word=SEARCH, limit=sentence)


def _in_windows(
    losses: LossSource, view: CohortView, kinds: Sequence[ShuffledRound], dates: Sequence[date]
) -> Room | None:
    """Returns how many of the first dates pass before a period of a window refuses rounds; None: none
    does."""
    name, windows = view.cohort.name, view.cohort.windows
    met = [periods_of(windows, name, day, day) for day in dates]
    names = {period.name for periods in met for period in periods}
    opened = {cohort.name for cohort in losses.store.cohorts_among(names, parts=True)}

    @functools.cache
    def of_opened(period: str) -> Room:
        return room_of(losses, [losses.store.view(period)], kinds)

    @functools.cache
    def of_empty(kind: str) -> Room:
        return room_of(losses, [empty_view(losses.store, view, windows_by_kind[kind])], kinds)

    windows_by_kind = {window.kind: window for window in windows}
    taken: Counter[str] = Counter()
    for turn, periods in enumerate(met):
        for period in periods:
            room = of_opened(period.name) if period.name in opened else of_empty(period.kind)
            if taken[period.name] >= room.turns:
                return replace(_of_window(windows_by_kind[period.kind], room), turns=turn)
            taken[period.name] += 1
    return None


def _rooms_on(
    losses: LossSource, view: CohortView, kinds: Sequence[ShuffledRound], day: date
) -> Iterator[tuple[Window, Room]]:
    """Yields the rooms of the periods that a round collected on a day is charged to, with their windows."""
    windows = {window.kind: window for window in view.cohort.windows}
    for each in views_on(losses.store, view, day):
        window = windows[each.cohort.period.kind if each.cohort.period else ""]
        yield window, _of_window(window, room_of(losses, [each], kinds))


def _of_window(window: Window, room: Room) -> Room:
    sentence = f"The budget for each {window.described} would be used up."
    return replace(room, word=f"window {window.kind}", limit=sentence)


# The question.


def what_fits(
    losses: LossSource, view: CohortView, kinds: Iterable[ShuffledRound], *, on: date | None = None
) -> tuple[FittingRounds, ...]:
    """Returns how many more rounds of each kind fit, of the first `KINDS_SHOWN_MAX`; of a plan, its kinds.

    Guarantee: if as many rounds of a kind as this says are registered, one after the other and nothing else
    in between, and no other cohort or quota that they are charged to refuses, every one is admitted. Of a
    cohort with windows: if they are all collected on the day `on`, which is today if it is None.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    policy = policy_of(losses.store, view)
    slots = policy.slots(view) if policy.filters is None else ()
    listed = [slot.round for slot in slots] if slots else list(kinds)
    today = view.now.date()
    day = ScheduleDays(every=None, first=on or today, until=None)
    if view.cohort.windows and why_refused_on(day.first, today):
        return tuple(FittingRounds(round=kind, rounds_at_least=0) for kind in listed[:KINDS_SHOWN_MAX])
    found = (
        (kind, fitting(losses, view, [kind], day, most=machine.ROUNDS_MAX))
        for kind in listed[:KINDS_SHOWN_MAX]
    )
    return tuple(FittingRounds(round=kind, rounds_at_least=room.turns) for kind, room in found)


def forecast(
    store: Store, accountant: Accountant, cohort: str, wanted: ForecastWanted, *, today: date
) -> Forecast:
    """Returns how many more rounds a cohort admits, under its own policy, filters and slots.

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
    (view,) = views_now(store, [store.view(checked_text("cohort", cohort))])
    store.check_anchor()  # now: the connection may have been opened for this
    if wanted.round is not None:
        check_sizes(wanted.round, view.cohort.population)
    return _forecast(LossSource(store=store, accountant=accountant, keep=False), view, wanted, today=today)


def joint_forecast(
    store: Store,
    accountant: Accountant,
    audience: Sequence[str],
    wanted: ForecastWanted,
    *,
    today: date,
    team: str | None = None,
) -> JointForecast:
    """Returns how many more rounds of some cohorts are admitted, each charged to all of them.

    Args:
        store: the ledger. Nothing is written.
        accountant: computes with the ledger's precision.
        audience: the cohorts' names.
        wanted: what is asked; a round is described.
        today: the first day of a schedule that names none.
        team: whose rounds they are.

    Guarantee: that of `forecast`, of rounds that are charged to each of these cohorts, to their windows and
    to the team's quotas in them. It is the least of these budgets' numbers: each of them decides by itself.

    Raises:
        NotFound: no such cohort.
        InvalidValue: no round is described; it has more reports, or a larger population to sample, than the
            cohorts have users together; the schedule of a
            cohort with windows begins before today; or `fit` is asked of too many budgets.
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    kind = wanted.described()
    request = request_of(audience, kind, round_id="forecast", team=team)
    request = with_budgets(store, request, is_new=True)
    views = views_now(store, views_of(store, request))
    check_request(request, [view.cohort for view in views])
    losses = LossSource(store=store, accountant=accountant, keep=False)
    charged = [view for view in views if view.cohort.period is None]  # a cohort's forecast has its windows
    today = _first_day(charged, today)
    is_searched = len(charged) <= SEARCHED_MAX
    if wanted.fit is not None and not is_searched:
        expected = f"it left out for more than {SEARCHED_MAX} budgets, and these are {len(charged)}"
        raise InvalidValue(field="fit", value=wanted.fit, expected=expected)
    budgets = tuple(_forecast(losses, view, wanted, today=today, searches=is_searched) for view in charged)
    kinds = [one.kinds[0] for one in budgets]
    least = min(range(len(kinds)), key=lambda at: (kinds[at].rounds_at_least, not kinds[at].next_is_refused))
    return JointForecast(
        audience=request.members,
        team=team,
        round=kind,
        rounds_at_least=kinds[least].rounds_at_least,
        next_is_refused=kinds[least].next_is_refused,
        limited_by=budgets[least].cohort,
        limit=kinds[least].limit,
        every=wanted.every,
        first_on=budgets[least].first_on,
        until=wanted.until,
        ends_on=kinds[least].ends_on,
        rounds_until=kinds[least].rounds_until,
        reaches_until=kinds[least].reaches_until,
        largest=_largest_of_all(losses, charged, kind, [one.largest for one in kinds], wanted.days(today)),
        budgets=budgets,
        promise=PROMISE_OF_ALL + (DAYS_OF_WINDOWS if any(view.cohort.windows for view in charged) else ""),
    )


def kind_forecast(losses: LossSource, view: CohortView, kind: ShuffledRound, *, today: date) -> KindForecast:
    """Returns what `forecast` says of one kind, of a cohort that was read; raises as that."""
    days = ScheduleDays(every=None, first=_first_day([view], today), until=None)
    return _of_kind(losses, view, kind, days, rounds=None)


def recent_schedule(losses: LossSource, view: CohortView, *, today: date) -> RecentSchedule | None:
    """Returns how long the schedule that the last entries show fits; None if they show none; raises as
    `schedule_forecast`.
    """
    (view,) = views_now(losses.store, [view])
    schedule = chain_outlines(losses.store, [view.cohort.name])[view.cohort.name].schedule
    return None if schedule is None else schedule_forecast(losses, view, schedule, today=today)


def schedule_forecast(
    losses: LossSource, view: CohortView, schedule: Schedule, *, today: date
) -> RecentSchedule | None:
    """Returns how long a cohort can go on at its present pace, from today.

    Guarantee: if the rounds of each period are collected on its day, registered in the order of the kinds,
    and nothing else is admitted in between, every round of `periods_at_least` periods is admitted.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.

    Returns:
        None of a schedule with more than 8 kinds.
    """
    if len(schedule.kinds) > KINDS_SHOWN_MAX:
        return None
    days = ScheduleDays(every=schedule.every, first=_first_day([view], today), until=None)
    count = fitting(losses, view, schedule.kinds, days, most=PERIODS_MAX).turns
    return RecentSchedule(
        every=schedule.every, kinds=schedule.kinds, periods_at_least=count, ends_on=days.last_of(count)
    )


def schedule_spending(
    losses: LossSource, view: CohortView, late: RecentSchedule, *, today: date, until: date
) -> tuple[tuple[date, float], ...]:
    """Returns days of a schedule that fits, and upper bounds on epsilon spent after their rounds.

    Args:
        losses: where privacy losses come from.
        view: the cohort that `late` was computed for.
        late: the schedule.
        today: its first day.
        until: no later days are returned.

    Raises:
        AccountingError, LedgerError: the numbers cannot be computed.
    """
    days = ScheduleDays(every=late.every, first=_first_day([view], today), until=until)
    periods = min(late.periods_at_least, days.count() or 0)
    counts = sorted(
        {math.ceil(periods * step / FORESEEN_POINTS) for step in range(1, FORESEEN_POINTS + 1)} - {0}
    )
    spent = _spent_after(losses, view, late.kinds)
    foreseen = ((days.last_of(count), spent(count)) for count in counts)
    return tuple((day, value) for day, value in foreseen if day is not None)


def _spent_after(
    losses: LossSource, view: CohortView, kinds: Sequence[ShuffledRound]
) -> Callable[[int], float]:
    """Returns the upper bound on the epsilon that is spent as a function of the number of turns."""
    policy = policy_of(losses.store, view)
    if policy.filters is None:
        turn = Counter(dearest(view, policy, kind) for kind in kinds)

        def composed(count: int) -> float:
            held = changed(view.held, {kind: count * times for kind, times in turn.items()})
            return losses.certify(held, delta=view.cohort.delta_budget).epsilon_upper

        return composed
    state, costs = policy.state(view), [policy.cost(losses, kind) for kind in kinds]

    def read(count: int) -> float:
        rounds = view.spent.rounds + count * len(kinds)
        return policy.spending(machine.after(state, costs, count), rounds=rounds).epsilon_upper

    return read


def _forecast(
    losses: LossSource, view: CohortView, wanted: ForecastWanted, *, today: date, searches: bool = True
) -> Forecast:
    """Returns what `forecast` says of a cohort that was read, and of a round with a size that was checked.

    It `searches` for an epsilon0 if that is asked for.
    """
    store, today = losses.store, _first_day([view], today)
    if view.cohort.windows and wanted.first_on is not None and wanted.first_on < today:
        expected = (
            f"a day from {today.isoformat()}: of a cohort with windows, no round of earlier days is admitted"
        )
        raise InvalidValue(field="first_on", value=wanted.first_on.isoformat(), expected=expected)
    kinds = [wanted.round] if wanted.round is not None else _in_use(store, view)
    days = wanted.days(today)
    rounds = wanted.fit or (days.count() if wanted.round is not None else None)
    rounds = rounds if searches else None
    found = tuple(_of_kind(losses, view, kind, days, rounds=rounds) for kind in kinds[:KINDS_SHOWN_MAX])
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
        together=_together(losses, view, kinds, days),
        of_late=None if wanted.round is not None else recent_schedule(losses, view, today=today),
        promise=PROMISE + (DAYS_OF_WINDOWS if view.cohort.windows else ""),
    )


def _of_kind(
    losses: LossSource, view: CohortView, kind: ShuffledRound, days: ScheduleDays, *, rounds: int | None
) -> KindForecast:
    """Returns the forecast of one kind; of the largest epsilon0 for `rounds`, unless that is None."""
    room = fitting(losses, view, [kind], days, most=machine.ROUNDS_MAX)
    return KindForecast(
        round=kind,
        rounds_at_least=room.turns,
        next_is_refused=room.is_largest,
        limited_by=room.word,
        limit=room.limit,
        ends_on=days.last_of(room.turns),
        rounds_until=days.count(),
        reaches_until=days.reaches(room.turns),
        largest=_largest(losses, view, kind, days, rounds) if rounds else None,
        windows=_of_windows(losses, view, kind),
        slots_would_help=help_of_slots(losses, view, kind),
    )


def _of_windows(losses: LossSource, view: CohortView, kind: ShuffledRound) -> tuple[WindowForecast, ...]:
    """Returns how many more rounds each window of an open cohort admits by itself."""
    if view.cohort.status != "open" or not view.cohort.windows:
        return ()
    today = list(_rooms_on(losses, view, [kind], view.now.date()))
    return tuple(
        WindowForecast(
            window=window,
            rounds_today=least(room for of, room in today if of == window).turns,
            rounds_in_empty=room_of(losses, [empty_view(losses.store, view, window)], [kind]).turns,
        )
        for window in view.cohort.windows
    )


def _together(
    losses: LossSource, view: CohortView, kinds: Sequence[ShuffledRound], days: ScheduleDays
) -> ScheduleForecast | None:
    if days.every is None or not 2 <= len(kinds) <= KINDS_SHOWN_MAX:
        return None
    count = fitting(losses, view, kinds, days, most=PERIODS_MAX).turns
    return ScheduleForecast(
        periods_at_least=count,
        ends_on=days.last_of(count),
        periods_until=days.count(),
        reaches_until=days.reaches(count),
    )


def _largest(
    losses: LossSource, view: CohortView, kind: ShuffledRound, days: ScheduleDays, rounds: int
) -> LargestEpsilon0:
    nothing = LargestEpsilon0(rounds=rounds, epsilon0=None)
    if view.cohort.status != "open" or is_over(view) or epsilon0_of(kind) is None or rounds > FIT_MAX:
        return nothing
    if view.cohort.windows and days.every is not None:

        def fits(asked: ShuffledRound) -> bool:
            return fitting(losses, view, [asked], days, most=rounds).turns >= rounds

        return replace(nothing, epsilon0=largest_epsilon0(fits, kind, digits=_DIGITS))
    randomizer = kind.randomizer.to_mapping()
    without = {name: value for name, value in randomizer.items() if name != "epsilon0"}
    described: dict[str, Any] = {**kind.to_mapping(), "randomizer": without}
    try:
        found = calibrate_for(
            losses.store,
            losses.accountant,
            view.cohort.name,
            described,
            rounds=rounds,
            width=_WIDTH,
        )
    except InvalidParameter as error:
        if error.field != "rounds":
            raise
        return nothing
    return LargestEpsilon0(rounds=rounds, epsilon0=found.epsilon0)


def _largest_of_all(
    losses: LossSource,
    views: Sequence[CohortView],
    kind: ShuffledRound,
    found: Sequence[LargestEpsilon0 | None],
    days: ScheduleDays,
) -> LargestEpsilon0 | None:
    """Returns the least epsilon0 of all budgets, if it is found to fit into each; None if none was asked for.

    What fits with a larger epsilon0 need not fit with a smaller one: a budget with slots alone may have
    another slot for it.
    """
    if any(one is None for one in found):
        return None
    values = [one.epsilon0 for one in found if one is not None and one.epsilon0 is not None]
    rounds = next(one.rounds for one in found if one is not None)
    nothing = LargestEpsilon0(rounds=rounds, epsilon0=None)
    if len(values) < len(views):
        return nothing
    least = min(values)
    smaller = with_epsilon0(kind, least)
    fit = (
        fitting(losses, view, [smaller], days, most=rounds).turns >= rounds
        for view, value in zip(views, values, strict=True)
        if value > least
    )
    return replace(nothing, epsilon0=least) if all(fit) else nothing


def _in_use(store: Store, view: CohortView) -> list[ShuffledRound]:
    """Returns the kinds of a plan; else those that the cohort has had, the most frequent first."""
    slots = policy_of(store, view).slots(view)
    if slots:
        return [slot.round for slot in slots]
    holdings = store.holdings(view.cohort.name)
    counts = {
        ShuffledRound.from_mapping(canonical.decode(item.parameters)): item.local_count for item in holdings
    }
    return by_frequency(counts)


def by_frequency(counts: Mapping[ShuffledRound, int]) -> list[ShuffledRound]:
    """Returns kinds of rounds, the most frequent first."""
    return sorted(counts, key=lambda kind: -counts[kind])


def _first_day(views: Iterable[CohortView], today: date) -> date:
    """Returns the first day of collection that cohorts take now: today, or a later one where a chain with
    windows has an entry of it, since the database's clock was set back or is ahead of ours.
    """
    return max([today, *(view.now.date() for view in views if view.cohort.windows)])
