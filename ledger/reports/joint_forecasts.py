"""Forecasts of rounds of several cohorts: how many more all of their budgets admit, and which one ends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions.audiences import request_of
from shuffle_ledger.ledger.decisions.decide import check_request
from shuffle_ledger.ledger.decisions.quotas import with_budgets
from shuffle_ledger.ledger.decisions.windows import views_of
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies.registry import Books
from shuffle_ledger.ledger.reports.forecasts import (
    DAYS_OF_WINDOWS,
    Forecast,
    ForecastWanted,
    LargestEpsilon0,
    kind_forecast,
    view_forecast,
)
from shuffle_ledger.ledger.reports.glimpses import Every
from shuffle_ledger.ledger.reports.window_forecasts import first_day
from shuffle_ledger.ledger.storage.rows import CohortView
from shuffle_ledger.ledger.storage.store import Store

PROMISE = (
    "If nothing else is admitted, corrected or changed in between, and each round is declared as here and"
    " settled with no fewer reports (with the same number if users are sampled), at least so many will be"
    " admitted by all of these budgets, one after the other. Nothing is reserved: a forecast is no promise."
    " Unless it says that the next one is refused, more may fit."
)
SEARCHED_MAX = 50  # budgets for which an epsilon0 is searched for, each by itself: a second of each
_NAME = "forecast"  # stands for the identifier that the rounds would have


@dataclass(frozen=True, kw_only=True)
class JointForecast:
    """The rounds of some cohorts that all of their budgets would still admit. It reserves nothing."""

    audience: tuple[str, ...]  # the cohorts
    team: str | None  # whose rounds they are: its quotas are among the budgets
    round: ShuffledRound  # as asked
    rounds_at_least: int  # this number is admitted by every budget, one after the other
    next_is_refused: bool  # one more certainly is; False: it may fit too
    limited_by: str  # the cohort or quota that ends it, the first of several
    limit: str  # how, as a sentence
    every: Every | None
    first_on: date | None
    until: date | None
    ends_on: date | None  # the day of the last round of the schedule; None: no round, no schedule, or no end
    rounds_until: int | None  # that the schedule has until the last day asked for
    reaches_until: bool | None  # all of them fit
    # An epsilon0 at which this number of rounds was found to fit. None: not asked; a schedule of a cohort
    # with windows; or of more budgets than one is searched for.
    largest: LargestEpsilon0 | None
    budgets: tuple[Forecast, ...]  # of each cohort, and of each quota of the team, by itself
    promise: str  # what the numbers say, and that nothing is reserved


def described_in(wanted: ForecastWanted) -> ShuffledRound:
    """Return the round that a question describes; raises InvalidValue if it describes none."""
    if wanted.round is None:
        raise InvalidValue(field="round", value=None, expected="a round described, by randomizer and reports")
    return wanted.round


def joint_forecast(
    store: Store,
    accountant: Accountant,
    audience: Sequence[str],
    wanted: ForecastWanted,
    *,
    today: date,
    team: str | None = None,
) -> JointForecast:
    """Return how many more rounds of some cohorts are admitted, each charged to all of them.

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
    kind = described_in(wanted)
    request = with_budgets(store, request_of(audience, kind, round_id=_NAME, team=team), is_new=True)
    views = views_of(store, request)
    check_request(request, [view.cohort for view in views])
    books = Books(store=store, accountant=accountant, keep=False)
    charged = [view for view in views if view.cohort.period is None]  # a cohort's forecast has its windows
    today = first_day(charged, today)
    is_searched = len(charged) <= SEARCHED_MAX
    if wanted.fit is not None and not is_searched:
        expected = f"it left out for more than {SEARCHED_MAX} budgets, and these are {len(charged)}"
        raise InvalidValue(field="fit", value=wanted.fit, expected=expected)
    budgets = tuple(view_forecast(books, view, wanted, today=today, searches=is_searched) for view in charged)
    kinds = [one.kinds[0] for one in budgets]
    least = min(range(len(kinds)), key=lambda at: (kinds[at].rounds_at_least, not kinds[at].next_is_refused))
    count, days = kinds[least].rounds_at_least, wanted.days(today)
    return JointForecast(
        audience=request.members,
        team=team,
        round=kind,
        rounds_at_least=count,
        next_is_refused=kinds[least].next_is_refused,
        limited_by=budgets[least].cohort,
        limit=kinds[least].limit,
        every=wanted.every,
        first_on=budgets[least].first_on,
        until=wanted.until,
        ends_on=days.last_of(count),
        rounds_until=days.count(),
        reaches_until=days.reaches(count),
        largest=_largest(books, charged, kind, [one.largest for one in kinds], today=today),
        budgets=budgets,
        promise=PROMISE + (DAYS_OF_WINDOWS if any(view.cohort.windows for view in charged) else ""),
    )


def _largest(
    books: Books,
    views: Sequence[CohortView],
    kind: ShuffledRound,
    found: Sequence[LargestEpsilon0 | None],
    *,
    today: date,
) -> LargestEpsilon0 | None:
    """Return the least epsilon0 of all budgets, if it is found to fit into each; None if none was asked for.

    What fits with a larger epsilon0 need not fit with a smaller one: a budget without rounds chooses its
    filters by the first.
    """
    if any(one is None for one in found):
        return None
    values = [one.epsilon0 for one in found if one is not None and one.epsilon0 is not None]
    rounds = next(one.rounds for one in found if one is not None)
    nothing = LargestEpsilon0(rounds=rounds, epsilon0=None)
    if len(values) < len(views):
        return nothing
    least = min(values)
    randomizer = {**kind.randomizer.to_mapping(), "epsilon0": least}
    smaller = ShuffledRound.from_mapping({**kind.to_mapping(), "randomizer": randomizer})
    fit = (
        kind_forecast(books, view, smaller, today=today).rounds_at_least >= rounds
        for view, value in zip(views, values, strict=True)
        if value > least
    )
    return dataclasses.replace(nothing, epsilon0=least) if all(fit) else nothing
