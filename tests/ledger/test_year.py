"""A year of telemetry, replayed by an independent model of the rules.

Cohorts with budgets for their life, for weeks, for months and for runs of days, one of them without a life;
quotas of three teams; rounds over audiences, late settlements, voids, corrections and incidents. The model
knows the calendar and which budgets a round is charged to by its own few lines, and asks the exact machine
about each of them: no database, no chains. At the end each budget of the ledger must be where the model says.
"""

from __future__ import annotations

import dataclasses
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import Accountant, ShuffledRound, slot_for
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import with_budgets
from shuffle_ledger.ledger.machine import Cause, Charge, Cost, Described, Posting, Round, State
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, decided, restated
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import Admitted, Cohort
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.clerk import DAY, Clerk, krr

WEEKS = 52
POPULATION = 50_000
LIFE, QUOTAS = (1.0, 1e-6), {"ads": 0.6, "maps": 0.35, "mail": 0.2}
SHARES = ((10, 2.0, 0.2), (4, 1.0, 0.05), (16, 3.0, 0.5))
KINDS = tuple((krr(1, epsilon0, k=k).randomizer, share) for k, epsilon0, share in SHARES)
WINDOWS: dict[str, tuple[Window, ...]] = {
    "a": (Window(unit="week", epsilon=0.12, delta=1e-7),),
    "b": (
        Window(unit="day", sliding=3, epsilon=0.2, delta=1e-6),
        Window(unit="month", epsilon=0.4, delta=1e-6),
    ),
    "c": (),
    "d": (Window(unit="week", epsilon=0.1, delta=1e-7),),  # without a budget of its life, or quotas
}
GROUPS = ("ab", "abc", "ac", "c", "bd", "d")


def named(cohort: str, first: date, last: date) -> dict[str, tuple[float, float]]:
    """Return the periods of a cohort that days are in, with their budgets, by enumeration of the days."""
    found: dict[str, tuple[float, float]] = {}
    for window in WINDOWS[cohort]:
        for day in (first + n * DAY for n in range((last - first).days + 1)):
            labels = {"week": [f"{day:%G-W%V}"], "month": [f"{day:%Y-%m}"]}
            runs = [f"{day - n * DAY}+3d" for n in range(3)]
            for label in labels.get(window.unit, runs):
                found[f"{cohort}@{label}"] = (window.epsilon, window.delta)
    return found


@dataclass
class Budget:
    """One budget of the model: its rules, and what the machine made of its events."""

    epsilon: float
    delta: float
    promises: bool  # a quota does not, so that nothing breaks it
    charges: dict[str, Charge] = field(default_factory=dict)  # of the rounds admitted, and the incidents

    def __post_init__(self) -> None:
        self.state: State = machine.new_state(self.policy.machine_rules, self.policy.limits)

    @cached_property
    def policy(self) -> BudgetPolicy:
        quota = None if self.promises else Quota(cohort="any", team="ads")
        shape: dict[str, Any] = {"name": "any", "population": POPULATION, "policy": "adaptive"}
        return BudgetPolicy.opened(
            Cohort(epsilon_budget=self.epsilon, delta_budget=self.delta, quota=quota, **shape)
        )

    def cost(self, accountant: Accountant, kind: ShuffledRound) -> Cost:
        assert self.policy.filters is not None
        return cost_of(accountant.charge(slot_for(kind), self.policy.filters))

    def admits(self, accountant: Accountant, kind: ShuffledRound) -> Posting | None:
        """Return what the admission of a round posts; None if the budget refuses it."""
        posting = decided(self.state, self.cost(accountant, kind))
        return None if posting.reasons or self.state.is_overspent else posting

    def post(self, name: str, posting: Posting) -> None:
        assert posting.charge is not None
        self.charges[name] = posting.charge
        self.state = dataclasses.replace(self.state, total=posting.total, is_overspent=posting.is_overspent)

    def restate(self, accountant: Accountant, name: str, kind: ShuffledRound | None, cause: Cause) -> None:
        """Charge a round for what it turned out to be; None: nothing was released."""
        known = {self.policy.machine_rules.name: self.charges[name]} if name in self.charges else {}
        cost = None if kind is None else self.cost(accountant, kind)
        described = Described.NOTHING if kind is None else Described.STATED
        self.post(name, restated(self.state, Round(charges=known), described, cause, cost))
        if kind is None:
            del self.charges[name]


class Model:
    """Every budget by its name, and which of them a round is charged to."""

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self.budgets: dict[str, Budget] = {}
        self.rounds: dict[str, list[Budget]] = {}

    def place(self, name: str, members: Sequence[str], team: str | None, first: date, last: date) -> None:
        charged: dict[str, tuple[float, float]] = {}
        for member in members:
            charged |= named(member, first, last)
            charged |= {member: LIFE} if member != "d" else {}
            charged |= {f"{member}@team={team}": (QUOTAS[team], LIFE[1])} if team and member != "d" else {}
        for each, (epsilon, delta) in charged.items():
            if each not in self.budgets:
                self.budgets[each] = Budget(epsilon, delta, promises="@team=" not in each)
        self.rounds[name] = [self.budgets[each] for each in charged]

    def ask(self, name: str, kind: ShuffledRound) -> bool:
        found = [(each, each.admits(self.accountant, kind)) for each in self.rounds[name]]
        if any(posting is None for _, posting in found):
            return False
        for each, posting in found:
            assert posting is not None
            each.post(name, posting)
        return True

    def restate(self, name: str, kind: ShuffledRound | None, cause: Cause) -> None:
        for each in self.rounds[name]:
            each.restate(self.accountant, name, kind, cause)


class Clock:
    """The ledger's clock on SQLite: what `strftime` says is now."""

    def __init__(self) -> None:
        self.now = datetime(2027, 1, 4, 9, tzinfo=UTC)

    def rule(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("strftime", -1, lambda *_: f"{self.now:%Y-%m-%d %H:%M:%S}.000")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def year(store: Store, accountant: Accountant, clock: Clock) -> Clerk:
    """Return a ledger at the beginning of a year, with its cohorts and quotas."""
    event.listen(store.engine, "connect", clock.rule)
    store.engine.dispose()
    clerk = Clerk(store, accountant, population=POPULATION, epsilon=LIFE[0], delta=LIFE[1])
    for name, windows in WINDOWS.items():
        clerk.open(name, windows=windows, **({"epsilon": None, "delta": None} if name == "d" else {}))
        for team, epsilon in QUOTAS.items() if name != "d" else ():
            clerk.quota(team, epsilon, cohort=name)
    return clerk


@pytest.mark.slow
def test_a_year_ends_where_the_model_says(year: Clerk, clock: Clock) -> None:
    draw, model = random.Random(1), Model(year.accountant)  # noqa: S311 - draws of a test
    outcomes: list[bool] = []
    open_rounds: list[tuple[int, str, ShuffledRound]] = []
    for week in range(WEEKS):
        for team in draw.sample(sorted(QUOTAS), 2):
            members = draw.choice(GROUPS)
            randomizer, share = draw.choice(KINDS)
            kind = ShuffledRound(randomizer=randomizer, reports=int(share * POPULATION * len(members)))
            name, first = f"{team}-{week}", clock.now.date() + draw.randrange(4) * DAY
            last = first + draw.choice((0, 0, 1)) * DAY
            model.place(name, members, team, first, last)
            outcomes.append(model.ask(name, kind))
            until = last if last > first else None
            request = year.request(kind, *members, name=name, team=team, on=first, until=until)
            answer = year.decide(with_budgets(year.store, request))
            assert isinstance(answer, Admitted) == outcomes[-1], (name, answer)
            if outcomes[-1]:
                open_rounds.append((week + draw.choice((1, 2, 5)), name, kind))
        clock.now += 7 * DAY
        for due, name, kind in [one for one in open_rounds if one[0] <= week]:
            open_rounds.remove((due, name, kind))
            if draw.random() < 0.15:
                year.void(name)
                model.restate(name, None, Cause.VOID)
                continue
            truth = dataclasses.replace(kind, reports=int(kind.reports * draw.choice((0.5, 0.8, 1.1))))
            truth = truth if truth.reports <= POPULATION else kind
            year.settle(name, truth.reports)
            model.restate(name, truth, Cause.SETTLE)
        if week in (
            WEEKS // 2,
            WEEKS - 5,
        ):  # of nothing that is attested: it may have come before the opening
            day, leak = clock.now.date() - 9 * DAY, f"leak-{week}"
            model.place(leak, "b", None, day, day)
            year.incident(leak, krr(1_000), "b", on=day)
            model.restate(leak, krr(1_000), Cause.INCIDENT)
    _, name, kind = open_rounds[0]
    worse = dataclasses.replace(kind, randomizer=krr(1, 3.5).randomizer)
    year.correct(name, randomizer=worse.randomizer.to_mapping())
    model.restate(name, worse, Cause.CORRECT)
    compare(year, model)
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.9, "a year in which budgets matter"
    year.check()


def compare(year: Clerk, model: Model) -> None:
    """Compare every chain of the ledger with the budget of its name in the model."""
    met = 0
    for cohort in year.store.cohorts():
        view, budget = year.store.view(cohort.name), model.budgets.get(cohort.name)
        if cohort.name == "d":
            assert cohort.status == "open", "a record promises nothing"
        elif budget is None or not budget.state.total.sliding:
            assert view.spent.epsilon_upper == 0.0, cohort.name
        else:
            met += 1
            said = budget.policy.spending(budget.state, rounds=len(budget.charges)).epsilon_upper
            assert year.total(cohort.name) == budget.state.total, cohort.name
            assert view.spent.epsilon_upper == said, cohort.name
            assert (view.cohort.status == "overspent") == budget.state.is_overspent, cohort.name
    assert met == sum(bool(budget.state.total.sliding) for budget in model.budgets.values()) > 50
