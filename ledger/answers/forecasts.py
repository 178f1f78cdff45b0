"""How many more rounds fit into budgets, what limits them, and when a schedule ends."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from shuffle_ledger import accounting
from shuffle_ledger.ledger.values.requests import CohortStatus, SlotsHelp
from shuffle_ledger.ledger.values.schedules import Every
from shuffle_ledger.ledger.values.windows import Window


@dataclass(frozen=True, kw_only=True)
class LargestEpsilon0:
    """How much local privacy rounds may give up so that a number of them fits."""

    rounds: int
    epsilon0: float | None  # with which `rounds` rounds were found to fit; None: none was found


@dataclass(frozen=True, kw_only=True)
class WindowForecast:
    """How many rounds of one kind a window admits by itself."""

    window: Window
    rounds_today: int  # more, if they are collected today, UTC
    rounds_in_empty: int  # in a period in which nothing else is collected


@dataclass(frozen=True, kw_only=True)
class KindForecast:
    """How many more rounds of one kind fit, each kind by itself."""

    round: accounting.ShuffledRound  # as asked; of kinds in use as the ledger accounts it
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
    slots_would_help: SlotsHelp | None = None  # of a new cohort: with slots it would admit far more


@dataclass(frozen=True, kw_only=True)
class ScheduleForecast:
    """How long one round of every kind in use fits in each period, all kinds together."""

    periods_at_least: int
    ends_on: date | None
    periods_until: int | None
    reaches_until: bool | None


@dataclass(frozen=True, kw_only=True)
class RecentSchedule:
    """How long a cohort can go on at its present pace, from today: one round of each kind in every period."""

    every: Every
    # The last round of each use case and randomizer, as accounted.
    kinds: tuple[accounting.ShuffledRound, ...]
    periods_at_least: int
    ends_on: date | None  # the day of the last rounds; None: no period fits, or no end is known


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
    of_late: RecentSchedule | None = None  # None: no schedule is recognized, or a round was described
    promise: str  # what the numbers say, and that nothing is reserved


@dataclass(frozen=True, kw_only=True)
class JointForecast:
    """The rounds of some cohorts that all of their budgets would still admit. It reserves nothing."""

    audience: tuple[str, ...]  # the cohorts
    team: str | None  # whose rounds they are: its quotas are among the budgets
    round: accounting.ShuffledRound  # as asked
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
