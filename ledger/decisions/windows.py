"""Windows: which periods a round is charged to, and opening the chains of these periods.

The periods follow from the days of collection alone, which are fixed when the round is registered. Each
period is a budget of its own with a chain of its own, of policy adaptive: a round is decided for its cohorts
and all their periods together, as for the cohorts of an audience. Source: docs/decisions/0016-windows.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.decisions import optimistic_append
from shuffle_ledger.ledger.decisions.descriptions import check_sizes
from shuffle_ledger.ledger.decisions.freezing import freezing, loss_of
from shuffle_ledger.ledger.errors import InvalidValue, NotFound, TryAgain
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.rows import CohortView, EntryDraft
from shuffle_ledger.ledger.storage.store import Store, opening_body
from shuffle_ledger.ledger.values.entries import Spending
from shuffle_ledger.ledger.values.requests import COLLECTION_FIELDS, POLICY_ADAPTIVE, Cohort, RoundRequest
from shuffle_ledger.ledger.values.windows import Period, Window, periods_of

CHAINS_MAX: Final = 1_000  # that one round is charged to: each of them gets an entry that lists them all
YEARS_AHEAD: Final = 2  # a collection may end in this year or in so many later ones, whatever the windows
BOOKED_MAX: Final = 100  # later periods that are shown
_NOT_OPENED: Final = "nobody"
NOTHING_KNOWN: Final[Mapping[str, CohortView]] = {}


def with_windows(
    store: Store,
    request: RoundRequest,
    *,
    is_new: bool = False,
    known: Mapping[str, CohortView] = NOTHING_KNOWN,
) -> RoundRequest:
    """Return a request with the periods of its cohorts' windows; opens nothing.

    Without windows that is the request itself. A round that says no days is collected today, by the
    database's clock, which never goes back within a chain; a registered one keeps its days when its request
    is repeated.

    Args:
        store: the ledger.
        request: the round.
        is_new: its identifier stands for any that is not registered.
        known: views that stand for what the ledger says of their cohorts, which it need not have.

    Raises:
        NotFound: no such cohort.
        InvalidValue: the collection ended before today, ends after the year after next, or is longer
            than a window allows.
    """
    others = [name for name in request.members if name not in known]
    given = [known[name].cohort for name in request.members if name in known]
    if not (any(each.windows or each.parent for each in given) or (others and store.has_windows(others))):
        return request
    registered = None
    if not is_new:
        with contextlib.suppress(NotFound):
            registered = RoundRequest.from_bytes(store.round(request.round_id).content)
    if registered is None:
        views = _viewed(store, request.members, known)
        today = max(view.now for view in views).date()
        request = request if request.days else dataclasses.replace(request, collected_on=today)
        check_collection(request, today)
        return placed(request, [view.cohort for view in views])
    if request.days is None and registered.days is not None:
        first, until = registered.collected_on, registered.collected_until
        request = dataclasses.replace(request, collected_on=first, collected_until=until)
    return placed(request, store.cohorts_named(request.members))


def check_collection(request: RoundRequest, today: date) -> None:
    """Raises InvalidValue for a new round whose days ended before today, or end after `last_day_allowed`."""
    if request.days is None:
        return
    last = request.days[1]
    message = why_refused_on(last, today)
    if message is None:
        return
    name = COLLECTION_FIELDS[bool(request.collected_until)]
    expected = f"a day from {today.isoformat()} to {last_day_allowed(today).isoformat()}"
    raise InvalidValue(field=name, value=last.isoformat(), expected=expected, message=message)


def why_refused_on(last: date, today: date) -> str | None:
    """Returns in a sentence why no collection that ends on a day can be registered today; None: one can."""
    latest = last_day_allowed(today)
    if last < today:
        return f"{last.isoformat()} is over: record it with `incident record`."
    if last > latest:
        return f"{last.isoformat()} is too far ahead: the last day allowed today is {latest.isoformat()}."
    return None


def last_day_allowed(today: date) -> date:
    """Returns the last day on which a collection that is registered today may end: the end of the year after
    next, so that each period can be planned two periods ahead."""
    return date(today.year + YEARS_AHEAD, 12, 31)


def is_over(request: RoundRequest, today: date) -> bool:
    """Whether a round is charged to windows, and only to those of days that have passed."""
    return bool(request.windows) and request.days is not None and request.days[1] < today


def placed(request: RoundRequest, cohorts: Sequence[Cohort]) -> RoundRequest:
    """Return a request with the periods that its days are in.

    Args:
        request: a round with days.
        cohorts: those of the request, in order.

    Raises:
        InvalidValue: as `with_windows`; or a cohort is itself a period, which is charged with its cohort's
            rounds only.
    """
    return dataclasses.replace(request, windows=period_names(request, cohorts))


def period_names(request: RoundRequest, cohorts: Sequence[Cohort]) -> tuple[str, ...]:
    """Return the names of the periods that a round of some cohorts is charged to, in order.

    Raises:
        InvalidValue: as `placed`; or there are too many of them.
    """
    names: list[str] = []
    for cohort in cohorts:
        if cohort.parent is not None:
            what = "a period of its window" if cohort.period else "a quota of one of its teams"
            expected = f"{cohort.parent!r}: this is {what}, and is charged with its rounds"
            raise InvalidValue(field="cohort", value=cohort.name, expected=expected)
        names += [period.name for period in cohort.periods(request)]
    if names and len(names) + len(cohorts) > CHAINS_MAX:
        expected = f"at most {CHAINS_MAX} budgets of one round, its cohorts and their periods together"
        raise InvalidValue(field="audience", value=len(names) + len(cohorts), expected=expected)
    return tuple(sorted(names))


def open_periods(store: Store, request: RoundRequest, *, actor: str) -> None:
    """Open the chains of a request's periods that are not open yet, in one transaction.

    A chain without rounds promises nothing, so one that stays empty does no harm. A period of a frozen cohort
    is frozen before anything is written into it: lost rounds may have been collected in it.

    Raises:
        Conflict: the name of a period is taken by another cohort, or was lost with its entries.
    """
    if not request.windows:
        return
    cohorts = store.cohorts_named(request.members)
    missing = _missing(store, request, cohorts)
    if missing:
        # A cohort that has a chain of a period is not opened again: none is opened for a round that it lacks.
        check_sizes(request.round, sum(each.population for each in cohorts), cohorts=len(cohorts))
        parents = {cohort.name: cohort for cohort in cohorts}
        given = [
            (each, _policy_for(each, store.opening(parents[each.parent or ""])).opening()) for each in missing
        ]
        store.open_cohorts(given, actor=actor, numerical_policy=NUMERICAL_POLICY, parents=cohorts)
    for cohort in cohorts:
        if (said := loss_of(store, cohort)) is None:
            continue
        for period in cohort.periods(request):
            if period.name in request.windows:
                _freeze(store, period.name, said, actor=actor)


def views_of(
    store: Store, request: RoundRequest, known: Mapping[str, CohortView] = NOTHING_KNOWN
) -> list[CohortView]:
    """Return the views of a request's cohorts and periods in order; periods that are not open yet as they
    would be opened. Leaves no trace.

    Args:
        store: the ledger.
        request: with its periods and quotas.
        known: views that stand for what the ledger says of their cohorts, which it need not have.

    Raises:
        NotFound: no such cohort.
        BehindCheckpoint: more was spent than the ledger knows, so any price would be too low.
    """
    if all(name in known for name in request.cohorts):
        return [known[name] for name in request.cohorts]
    cohorts = [view.cohort for view in _viewed(store, request.members, known)] if request.windows else []
    missing = _missing(store, request, cohorts, known)
    lost = {cohort.name for cohort in cohorts if loss_of(store, cohort) is not None}
    of_new = {cohort.name for cohort in missing}
    there = [name for name in request.cohorts if name not in of_new]
    found = {view.cohort.name: view for view in _viewed(store, there, known)}
    store.check_anchor()  # now: the connection may have been opened for this
    store.check_same([view.cohort for name, view in found.items() if name not in known])
    at = max(view.at for view in found.values())
    for cohort in missing:
        parent = found[cohort.parent or ""]
        found[cohort.name] = _unopened_period(store, parent, cohort, at, is_lost=cohort.parent in lost)
    return [found[name] for name in request.cohorts]


def views_on(store: Store, view: CohortView, day: date) -> list[CohortView]:
    """Return the views of the periods that a round collected on a day would be charged to, beside its cohort.

    Args:
        store: the ledger.
        view: the cohort now. Leaves no trace.
        day: the day; raises InvalidValue for one too far away.
    """
    found = periods_of(view.cohort.windows, view.cohort.name, day, day)
    names = [period.name for period in found]
    known = {cohort.name for cohort in store.cohorts(only=names)} if names else set()
    there = {each.cohort.name: each for each in store.views(sorted(known))} if known else {}
    is_lost = bool(found) and loss_of(store, view.cohort) is not None
    return [
        there.get(period.name)
        or _unopened_period(store, view, _as_cohort(view.cohort, period), view.at, is_lost=is_lost)
        for period in found
    ]


def views_booked(store: Store, view: CohortView, day: date) -> list[CohortView]:
    """Return the views of periods that begin after a day and to which rounds are charged already, the
    earliest first; at most `BOOKED_MAX`."""
    if not view.cohort.windows:
        return []
    later = sorted(store.periods_after(view.cohort.name, day), key=lambda period: (period.first, period.last))
    names = [period.name for period in later[:BOOKED_MAX]]
    return [each for each in store.views(names) if each.spent.rounds] if names else []


def empty_view(store: Store, view: CohortView, window: Window) -> CohortView:
    """Return the view of a period of a window in which nothing was collected; leaves no trace."""
    period = next(window.periods(view.cohort.name, view.at.date(), view.at.date()))
    return _unopened_period(store, view, _as_cohort(view.cohort, period), view.at)


def unopened_view(cohort: Cohort, policy: registry.BudgetPolicy, at: datetime) -> CohortView:
    """Return the view of a budget that is not open yet, as it would be opened at a moment."""
    body = opening_body(cohort, policy.opening(), _NOT_OPENED, NUMERICAL_POLICY, opened_at=at)
    return CohortView(
        cohort=cohort,
        head_sequence=0,
        head_digest=b"",
        spent=Spending.nothing(cohort.delta_budget),
        at=at,
        details=body.details,
        opening=body.to_bytes(),
    )


def _viewed(store: Store, names: Sequence[str], known: Mapping[str, CohortView]) -> list[CohortView]:
    others = [name for name in names if name not in known]
    read = {view.cohort.name: view for view in store.views(others)} if others else {}
    return [read[name] if name in read else known[name] for name in names]


def _freeze(store: Store, period: str, said: Mapping[str, Any], *, actor: str) -> None:
    def decide(view: CohortView) -> EntryDraft | Cohort:
        if view.cohort.status == "frozen":
            return view.cohort
        return freezing(store, view, None, said, actor=actor)

    optimistic_append.append(store, period, decide)


def _missing(
    store: Store,
    request: RoundRequest,
    cohorts: Sequence[Cohort],
    known: Mapping[str, CohortView] = NOTHING_KNOWN,
) -> list[Cohort]:
    if not request.windows:
        return []
    periods = {period.name: (cohort, period) for cohort in cohorts for period in cohort.periods(request)}
    if not set(request.windows) <= set(period_names(request, cohorts)):
        raise TryAgain(f"cohort {request.cohort!r} was opened again meanwhile; ask the same again")
    # Cohorts that are not stored have no periods that are.
    new = {name for name, (cohort, _) in periods.items() if cohort.opened_at is None}
    asked = [name for name in request.windows if name not in new and name not in known]
    there = known.keys() | {cohort.name for cohort in store.cohorts(only=asked)} if asked else known.keys()
    return [_as_cohort(*periods[name]) for name in request.windows if name not in there]


def _as_cohort(cohort: Cohort, period: Period) -> Cohort:
    window = next(window for window in cohort.windows if window.kind == period.kind)
    return Cohort(
        name=period.name,
        population=cohort.population,
        epsilon_budget=window.epsilon,
        delta_budget=window.delta,
        policy=POLICY_ADAPTIVE,
        period=period,
        local_budget=window.local_budget,
    )


def _policy_for(period: Cohort, opening: bytes) -> registry.BudgetPolicy:
    """Return the policy that a period is opened with: with the share for approximate rounds of its cohort,
    which was opened by these canonical bytes."""
    return registry.policy_for(period, approximate_share=registry.approximate_share_of(opening))


def _unopened_period(
    store: Store, parent: CohortView, cohort: Cohort, at: datetime, *, is_lost: bool = False
) -> CohortView:
    """Return the view of a period as it would be opened; one `is_lost` would be frozen at once."""
    view = unopened_view(cohort, _policy_for(cohort, parent.opening or store.opening(parent.cohort)), at)
    if not is_lost:
        return view
    frozen = dataclasses.replace(cohort, status="frozen")
    return dataclasses.replace(view, cohort=frozen, spent=view.spent.unknown_after(view.head_sequence))
