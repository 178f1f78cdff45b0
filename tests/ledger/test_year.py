"""A year of telemetry, replayed by an independent model of the rules.

Cohorts with a budget for their life and one for each week, quotas of three teams; rounds over audiences, late
settlements, voids, and one correction. The model knows the calendar and which budgets a round is charged to
by its own few lines, and asks the exact machine about each of them: no database, no chains. At the end every
budget of the ledger must be where the model says. `SHUFFLE_LEDGER_TEST_YEAR_COHORTS=200` makes it a large
year.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import (
    Accountant,
    ShuffledRound,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import (
    correct,
    open_cohort,
    register_and_admit,
    set_quota,
    settle,
    void,
    with_budgets,
)
from shuffle_ledger.ledger.machine import Cause, Charge, Cost, Described, Posting, Round, State
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.policies.policy import BudgetPolicy, decided, restated
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import Admitted, Cohort, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import total_in

COHORTS = int(os.environ.get("SHUFFLE_LEDGER_TEST_YEAR_COHORTS", "3"))
WEEKS = 52
DAY = timedelta(days=1)
LIFE, WEEK = (1.0, 1e-6), (0.12, 1e-7)
QUOTAS = {"ads": 0.6, "maps": 0.35, "mail": 0.2}
KINDS = tuple(
    (parse_randomizer(f"krr(k={k}, epsilon0={epsilon0})"), share)
    for k, epsilon0, share in ((10, 2.0, 0.2), (4, 1.0, 0.05), (16, 3.0, 0.5))
)
POPULATION = 50_000


@dataclass
class Budget:
    """One budget of the model: its rules, and what the machine made of its events."""

    epsilon: float
    delta: float
    promises: bool  # a quota does not, so that nothing breaks it
    state: State | None = None
    charges: dict[str, Charge] = field(default_factory=dict)  # of the rounds admitted

    @cached_property
    def policy(self) -> BudgetPolicy:
        quota = None if self.promises else Quota(cohort="any", team="ads")
        shape: dict[str, Any] = {"name": "any", "population": POPULATION, "policy": "adaptive"}
        return BudgetPolicy.opened(
            Cohort(epsilon_budget=self.epsilon, delta_budget=self.delta, quota=quota, **shape)
        )

    def cost(self, accountant: Accountant, kind: ShuffledRound) -> Cost:
        assert self.policy.filters is not None
        return cost_of(accountant.charge(kind, self.policy.filters))

    def admits(self, accountant: Accountant, kind: ShuffledRound) -> Posting | None:
        """Return what the admission of a round posts; None if the budget refuses it."""
        state = self.state or machine.new_state(self.policy.machine_rules, self.policy.limits)
        posting = decided(state, self.cost(accountant, kind))
        return None if posting.reasons else posting

    def post(self, name: str, posting: Posting) -> None:
        state = self.state or machine.new_state(self.policy.machine_rules, self.policy.limits)
        assert posting.charge is not None
        self.charges[name] = posting.charge
        self.state = dataclasses.replace(state, total=posting.total, is_overspent=posting.is_overspent)

    def tell(self, accountant: Accountant, name: str, kind: ShuffledRound | None) -> None:
        """Charge a round for what it truly was; None: nothing was released."""
        assert self.state is not None
        charges = Round(charges={self.policy.machine_rules.name: self.charges[name]})
        if kind is None:
            self.post(name, restated(self.state, charges, Described.NOTHING, Cause.VOID, None))
            del self.charges[name]
            return
        cost = self.cost(accountant, kind)
        self.post(name, restated(self.state, charges, Described.STATED, Cause.CORRECT, cost))

    @property
    def epsilon_upper(self) -> float:
        if self.state is None:
            return 0.0
        return self.policy.spending(self.state, rounds=len(self.charges)).epsilon_upper


class Model:
    """Every budget by its name, and which of them a round is charged to."""

    def __init__(self, accountant: Accountant) -> None:
        self.accountant = accountant
        self.budgets: dict[str, Budget] = {}
        self.rounds: dict[str, tuple[str, ...]] = {}

    def ask(
        self, name: str, members: Sequence[str], team: str, kind: ShuffledRound, first: date, last: date
    ) -> bool:
        weeks = {(first + n * DAY).isocalendar()[:2] for n in range((last - first).days + 1)}
        budgets = dict.fromkeys(members, LIFE)
        for member in members:
            budgets |= {f"{member}@{year}-W{week:02}": WEEK for year, week in weeks}
            budgets[f"{member}@team={team}"] = (QUOTAS[team], LIFE[1])
        found = {}
        for each, (epsilon, delta) in budgets.items():
            budget = self.budgets.setdefault(
                each, Budget(epsilon=epsilon, delta=delta, promises="@team=" not in each)
            )
            found[each] = budget.admits(self.accountant, slot_for(kind))
        if None in found.values():
            return False
        for each, posting in found.items():
            assert posting is not None
            self.budgets[each].post(name, posting)
        self.rounds[name] = tuple(budgets)
        return True

    def tell(self, name: str, kind: ShuffledRound | None) -> None:
        for each in self.rounds[name]:
            self.budgets[each].tell(self.accountant, name, kind and slot_for(kind))


class Clock:
    """The ledger's clock on SQLite: what `strftime` says is now."""

    def __init__(self) -> None:
        self.now = datetime(2027, 1, 4, 9, tzinfo=UTC)

    def rule(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.create_function("strftime", -1, self._told)

    def _told(self, form: str, moment: str) -> str:
        assert (form, moment) == ("%Y-%m-%d %H:%M:%f", "now")
        return f"{self.now:%Y-%m-%d %H:%M:%S}.000"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(sqlite_url: str, clock: Clock) -> Any:
    with Store.connect(sqlite_url) as store:
        event.listen(store.engine, "connect", clock.rule)
        store.engine.dispose()
        yield store


@pytest.mark.slow
def test_a_year_ends_where_the_model_says(ledger: Store, clock: Clock, accountant: Accountant) -> None:
    draw, model = random.Random(1), Model(accountant)  # noqa: S311 - draws of a test
    names = [f"c{number:03}" for number in range(COHORTS)]
    groups = [names, names[::2], names[: max(2, COHORTS // 3)], names[-1:]]
    window = Window(unit="week", epsilon=WEEK[0], delta=WEEK[1])
    for name in names:
        opened: dict[str, Any] = {"population": POPULATION, "policy": "adaptive", "windows": (window,)}
        open_cohort(ledger, name=name, epsilon=LIFE[0], delta=LIFE[1], actor="ada", **opened)
        for team, epsilon in QUOTAS.items():
            set_quota(ledger, name, team=team, epsilon=epsilon, reason="agreed", actor="ada")
    outcomes: list[bool] = []
    open_rounds: list[tuple[int, str, ShuffledRound]] = []
    for week in range(WEEKS):
        for team in draw.sample(sorted(QUOTAS), 2):
            members = draw.choice(groups)
            randomizer, share = draw.choice(KINDS)
            kind = ShuffledRound(randomizer=randomizer, reports=int(share * POPULATION * len(members)))
            name, first = f"{team}-{week}", clock.now.date() + draw.randrange(4) * DAY
            last = first + draw.choice((0, 0, 6)) * DAY
            outcomes.append(model.ask(name, members, team, kind, first, last))
            days: dict[str, Any] = {"collected_on": first, "collected_until": last if last > first else None}
            audience = tuple(members) if len(members) > 1 else ()
            request = RoundRequest(
                round_id=name, cohort=members[0], audience=audience, round=kind, team=team, **days
            )
            answer, _ = register_and_admit(ledger, accountant, with_budgets(ledger, request), actor="ada")
            assert isinstance(answer, Admitted) == outcomes[-1], (name, answer)
            if outcomes[-1]:
                open_rounds.append((week + draw.choice((1, 2, 5)), name, kind))
        clock.now += 7 * DAY
        for due, name, kind in [one for one in open_rounds if one[0] <= week]:
            open_rounds.remove((due, name, kind))
            if draw.random() < 0.15:
                void(ledger, accountant, name, reason="cancelled", actor="ada")
                model.tell(name, None)
                continue
            truth = ShuffledRound(
                randomizer=kind.randomizer, reports=int(kind.reports * draw.uniform(0.5, 1.1))
            )
            truth = truth if truth.reports <= POPULATION else kind
            settle(ledger, accountant, name, reports=truth.reports, actor="ada")
            model.tell(name, truth)
    _, name, kind = open_rounds[0]
    worse = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=3.5)"), reports=kind.reports)
    changes = {"randomizer": worse.randomizer.to_mapping()}
    correct(ledger, accountant, name, changes, reason="another build", actor="ada")
    model.tell(name, worse)
    _compare(ledger, model)
    assert 0.1 < sum(outcomes) / len(outcomes) < 0.9, "a year in which budgets matter"
    for name in (names[0], f"{names[0]}@team=ads", f"{names[-1]}@2027-W02"):
        assert verify(ledger, accountant, name).ok


def _compare(ledger: Store, model: Model) -> None:
    """Compare every chain of the ledger with the budget of its name in the model."""
    met = 0
    for cohort in ledger.cohorts():
        view, budget = ledger.view(cohort.name), model.budgets.get(cohort.name)
        if budget is None or budget.state is None:
            assert view.spent.epsilon_upper == 0.0, cohort.name
            continue
        met += 1
        assert total_in(ledger, cohort.name) == budget.state.total, cohort.name
        assert view.spent.epsilon_upper == budget.epsilon_upper, cohort.name
        assert (view.cohort.status == "overspent") == budget.state.is_overspent, cohort.name
    assert met == sum(budget.state is not None for budget in model.budgets.values())
