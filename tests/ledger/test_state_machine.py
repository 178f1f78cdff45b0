"""Any sequence of operations, compared with a model that knows nothing of databases.

The accountant here is a double whose epsilon is a plain sum: what is attacked is which rounds count, not
how much they cost. Real numbers are attacked in the other modules.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from shuffle_ledger.accounting import (
    NUMERICAL_POLICY,
    Accountant,
    FilterCharge,
    FilterSet,
    ShuffledRound,
    fits,
    parse_randomizer,
    slot_for,
)
from shuffle_ledger.ledger.decisions import (
    admit,
    admit_at_once,
    correct,
    open_cohort,
    quote,
    record_incident,
    register,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.errors import Conflict, NotCollectable
from shuffle_ledger.ledger.machine import LOSS_UNIT
from shuffle_ledger.ledger.policies.numbers import units_above
from shuffle_ledger.ledger.reports.budgets import budget, history
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Cohort,
    Outcome,
    Pending,
    Refused,
    RoundRequest,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.releases import after_opening

POPULATION = 1000
BUDGET = 3.0
DELTA = 1e-9
COHORTS = st.sampled_from(["phones", "tablets"])
NAMES = st.sampled_from([f"round-{number}" for number in range(12)])
REPORTS = st.sampled_from([1, 2, 7, 99, 100, 101, 500, 999, 1000])
EPSILONS = st.sampled_from([0.25, 0.5, 1.0, 2.0])


ANY_LOSS = Accountant(precision=0.1).privacy_loss(
    ShuffledRound(randomizer=parse_randomizer("declared(epsilon=0.1)"), reports=1)
)


def in_units(loss: float) -> Fraction:
    """Returns a loss as the machine counts it: rounded up to its unit."""
    return units_above(loss, LOSS_UNIT) * LOSS_UNIT


def price(accounted: ShuffledRound) -> float:
    """Returns what a round costs here: its epsilon0, and less where there are more reports."""
    return accounted.randomizer.epsilon0 / (1 + accounted.reports // 100)


class AddingAccountant:
    """Of its filters only the one for largest losses bounds anything, and it adds up exactly."""

    precision = 4e-3  # charges are proven anew at it first: by this accountant

    def __init__(self) -> None:
        self.seen: set[ShuffledRound] = set()  # what is known is decided at once

    def knows(self, accounted: ShuffledRound) -> bool:
        return True

    def privacy_loss(self, accounted: ShuffledRound) -> Any:
        """Any loss will do, as long as it can be read back."""
        return ANY_LOSS

    def knows_charge(self, accounted: ShuffledRound, filters: FilterSet) -> bool:
        return True

    def remembers_charge(self, accounted: ShuffledRound, filters: FilterSet) -> bool:
        return accounted in self.seen

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        self.seen.add(accounted)
        endless = Fraction(10**30)
        return FilterCharge(
            gaussian=(endless,) * len(filters.gaussian.reserves),
            renyi=(*(endless for _ in filters.renyi[:-1]), Fraction(price(accounted))),
            account=(Fraction(0), Fraction(0)),
        )

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Any:
        cost = sum(count * price(accounted) for accounted, count in sorted(rounds.items(), key=str))
        return SimpleNamespace(
            epsilon_upper=cost,
            epsilon_lower=cost * (1 - 1e-12),  # sums of floats: a bound needs room
            rounds=sum(rounds.values()),
            error=SimpleNamespace(discretization=0.0, truncation=0.0, round_off=0.0),
            method=NUMERICAL_POLICY,
        )


@dataclass
class ModelCohort:
    """The expected state of a cohort."""

    local: float = 0.0
    overspent: bool = False
    entries: list[tuple[str, str | None]] = field(default_factory=lambda: [("opened", None)])


def requested(name: str, cohort: str, epsilon0: float, reports: int) -> RoundRequest:
    randomizer = parse_randomizer({"kind": "krr", "k": 4, "epsilon0": epsilon0})
    return RoundRequest(
        round_id=name, cohort=cohort, round=ShuffledRound(randomizer=randomizer, reports=reports)
    )


class Operations(RuleBasedStateMachine):
    """Everything anybody can do with rounds, and tell of them later."""

    names = Bundle("names")
    new_database: Callable[[], str]  # a function, kept on the class without becoming a method

    @initialize()
    def open(self) -> None:
        self.store = Store.connect(self.new_database())
        self.accountant = cast("Accountant", AddingAccountant())
        self.cohorts = {"phones": ModelCohort(), "tablets": ModelCohort()}
        opened: dict[str, Any] = {"population": POPULATION, "epsilon": BUDGET, "delta": DELTA}
        for name in self.cohorts:
            open_cohort(self.store, name=name, policy="adaptive", actor="model", **opened)
        self.requests: dict[str, RoundRequest] = {}
        self.pending: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.closings: dict[str, Settled | Voided] = {}
        self.charged: dict[str, ShuffledRound] = {}  # what may be settled or voided
        self.told: dict[str, ShuffledRound] = {}  # what may be corrected
        self.costs: dict[str, Fraction] = {}  # the most that each round was ever known to cost
        self.local: dict[str, float] = {}
        self.said: dict[str, tuple[ShuffledRound, str]] = {}  # the last correction
        self.incidents: dict[str, str] = {}  # their cohorts
        self.reported: dict[str, dict[str, Any]] = {}  # what was told of them

    def spent(self, cohort: str, more: Fraction = Fraction(0)) -> float:
        exact = more + sum(cost for name, cost in self.costs.items() if self.requests[name].cohort == cohort)
        rounded = float(exact)
        return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)

    def would_admit(self, request: RoundRequest) -> bool:
        wanted = self.spent(request.cohort, in_units(price(slot_for(request.round))))
        return not self.cohorts[request.cohort].overspent and wanted <= BUDGET

    def note_charge(self, name: str, accounted: ShuffledRound) -> None:
        """Take notice of what a round is charged as from now on."""
        self.told[name] = accounted
        self.costs[name] = max(self.costs.get(name, Fraction(0)), in_units(price(accounted)))
        self.local.setdefault(name, accounted.randomizer.epsilon0)

    def note(self, kind: str, name: str, *, overspent: bool) -> None:
        """Take notice of an entry that charged a round anew."""
        cohort = self.cohorts[self.requests[name].cohort]
        cohort.overspent = cohort.overspent or self.spent(self.requests[name].cohort) > BUDGET
        assert overspent == cohort.overspent
        cohort.entries.append((kind, name))

    @rule(target=names, name=NAMES, cohort=COHORTS, epsilon0=EPSILONS, reports=REPORTS)
    def register(self, name: str, cohort: str, epsilon0: float, reports: int) -> Any:
        request = requested(name, cohort, epsilon0, reports)
        if name in self.requests and (self.requests[name] != request or self.is_over(name)):
            expected = Conflict if self.requests[name] != request else NotCollectable
            with pytest.raises(expected):
                quote(self.store, self.accountant, request)
            with pytest.raises(expected):
                register(self.store, request, actor="model")
            return multiple()
        quoted = quote(self.store, self.accountant, request)
        known = self.outcomes.get(name)
        assert (quoted.would_be == "admitted") == (
            isinstance(known, Admitted) if known else self.would_admit(request)
        )
        answer = register(self.store, request, actor="model")
        if name not in self.requests:
            self.requests[name] = request
            self.pending.append(name)
        assert answer == self.outcomes.get(name, Pending(round_id=name, cohort=cohort))
        return name

    def is_over(self, name: str) -> bool:
        """Whether a round must not be collected any more."""
        if name in self.incidents and name not in self.outcomes:
            return True
        closed = name in self.closings or self.cohorts[self.requests[name].cohort].overspent
        return isinstance(self.outcomes.get(name), Admitted) and closed

    @rule(name=names)
    def admit(self, name: str) -> None:
        if self.is_over(name):
            with pytest.raises(NotCollectable):
                admit(self.store, self.accountant, name)
            return
        if name in self.outcomes:
            assert admit(self.store, self.accountant, name) == self.outcomes[name]
            return
        expected = self.would_admit(self.requests[name])
        self.note_outcome(name, admit(self.store, self.accountant, name), expected=expected)

    @rule(name=names)
    def register_and_admit_again(self, name: str) -> None:
        if self.is_over(name):
            with pytest.raises(NotCollectable):
                register_and_admit(self.store, self.accountant, self.requests[name], actor="model")
            return
        known = name in self.outcomes
        answer = register_and_admit(self.store, self.accountant, self.requests[name], actor="model")
        if not known:
            outcome = round_record(self.store, name).outcome
            assert outcome is not None
            self.note_outcome(name, outcome, expected=self.would_admit(self.requests[name]))
        assert answer == (self.outcomes[name], known)

    @rule(target=names, name=NAMES, cohort=COHORTS, epsilon0=EPSILONS, reports=REPORTS)
    def admit_at_once(self, name: str, cohort: str, epsilon0: float, reports: int) -> Any:
        request = requested(name, cohort, epsilon0, reports)
        expected = self.would_admit(request)
        outcome = admit_at_once(self.store, self.accountant, request, actor="model")
        if outcome is None:
            return multiple()
        assert name not in self.requests
        self.requests[name] = request
        self.pending.append(name)
        self.note_outcome(name, outcome, expected=expected)
        return name

    def note_outcome(self, name: str, outcome: Outcome, *, expected: bool) -> None:
        request = self.requests[name]
        cohort = self.cohorts[request.cohort]
        assert isinstance(outcome, Admitted if expected else Refused)
        cohort.entries.append(("admitted" if expected else "refused", name))
        if isinstance(outcome, Admitted):
            self.charged[name] = outcome.accounted
            self.note_charge(name, outcome.accounted)
            cohort.local += outcome.accounted.randomizer.epsilon0
        else:
            assert outcome.reason == ("cohort_overspent" if cohort.overspent else "budget_exceeded")
        self.outcomes[name] = outcome
        self.pending.remove(name)

    @rule(name=names, reports=REPORTS)
    def settle(self, name: str, reports: int) -> None:
        closing = self.closings.get(name)
        if isinstance(closing, Settled) and closing.reports == reports:
            assert settle(self.store, self.accountant, name, reports=reports, actor="other") == closing
            return
        if name not in self.charged:
            with pytest.raises(Conflict):
                settle(self.store, self.accountant, name, reports=reports, actor="model")
            return
        before = self.charged.pop(name)
        settled = settle(self.store, self.accountant, name, reports=reports, actor="model")
        truth = dataclasses.replace(before, reports=reports)
        assert settled.accounted == (before if reports >= before.reports else slot_for(truth))
        self.note_charge(name, settled.accounted)
        self.note("settled", name, overspent=settled.overspent)
        self.closings[name] = settled

    @rule(name=names, reason=st.sampled_from(["a bug", "a leak"]))
    def void(self, name: str, reason: str) -> None:
        closing = self.closings.get(name)
        if isinstance(closing, Voided) and closing.reason == reason:
            assert void(self.store, self.accountant, name, reason=reason, actor="other") == closing
            return
        if name not in self.charged:
            with pytest.raises(Conflict):
                void(self.store, self.accountant, name, reason=reason, actor="model")
            return
        del self.charged[name], self.told[name], self.costs[name]
        self.closings[name] = void(self.store, self.accountant, name, reason=reason, actor="model")
        self.cohorts[self.requests[name].cohort].entries.append(("voided", name))

    @rule(name=names, epsilon0=EPSILONS, reports=REPORTS, reason=st.sampled_from(["a log", "a diary"]))
    def correct(self, name: str, epsilon0: float, reports: int, reason: str) -> None:
        request = self.requests[name]
        truth = requested(name, request.cohort, epsilon0, reports).round
        changes = {"reports": reports, "randomizer": truth.randomizer.to_mapping()}
        told: dict[str, Any] = {"reason": reason, "actor": "model"}
        if name not in self.told:
            with pytest.raises(Conflict):
                correct(self.store, self.accountant, name, changes, **told)
            return
        answer = correct(self.store, self.accountant, name, changes, **told)
        if self.said.get(name) == (truth, reason):
            assert answer == round_record(self.store, name).corrections[-1]
            return
        before, cohort = self.told[name], self.cohorts[request.cohort]
        assert answer.accounted == (before if fits(truth, before) else slot_for(truth))
        self.note_charge(name, answer.accounted)
        more = max(0.0, answer.accounted.randomizer.epsilon0 - self.local[name])
        cohort.local, self.local[name] = cohort.local + more, self.local[name] + more
        if name in self.charged:
            self.charged[name] = answer.accounted
        self.said[name] = (truth, reason)
        self.note("corrected", name, overspent=answer.overspent)

    @rule(target=names, name=NAMES, cohort=COHORTS, epsilon0=EPSILONS, reports=REPORTS)
    def record_incident(self, name: str, cohort: str, epsilon0: float, reports: int) -> Any:
        request = requested(name, cohort, epsilon0, reports)
        told: dict[str, Any] = {"round_id": name, "described": request.round, "reason": "?", "actor": "model"}
        told["released"] = after_opening(self.store.cohort(cohort))
        known = self.requests.setdefault(name, request)
        if self.incidents.get(name) == cohort and self.reported[name] == told:
            record = round_record(self.store, name)
            assert record.incident is not None
            again = record_incident(self.store, self.accountant, cohort, **told)
            assert again.sequence == record.incident.sequence
            return multiple()
        if known.cohort != cohort or name in self.told:
            with pytest.raises(Conflict):
                record_incident(self.store, self.accountant, cohort, **told)
            return multiple()
        answer = record_incident(self.store, self.accountant, cohort, **told)
        assert answer.accounted == slot_for(request.round)
        self.incidents[name], self.reported[name] = cohort, told
        self.said.pop(name, None)
        if name in self.pending:
            self.pending.remove(name)
        self.cohorts[cohort].local += epsilon0
        self.local[name] = epsilon0
        self.note_charge(name, answer.accounted)
        self.note("incident", name, overspent=answer.overspent)
        return name

    @rule(cohort=COHORTS, population=st.sampled_from([POPULATION, POPULATION + 1, POPULATION + 2]))
    def open_again(self, cohort: str, population: int) -> None:
        found, waits = self.store.cohort(cohort), [self.requests[name].cohort for name in self.pending]
        values: dict[str, Any] = {"epsilon": BUDGET, "delta": DELTA, "policy": "adaptive", "actor": "model"}

        def opened() -> Cohort:
            return open_cohort(self.store, name=cohort, population=population, **values)

        if population == found.population:
            assert opened() == found
        elif cohort in waits or set(self.cohorts[cohort].entries) != {("opened", None)}:
            with pytest.raises(Conflict, match="not opened again"):
                opened()
        else:
            assert opened().population == self.store.cohort(cohort).population == population
            self.cohorts[cohort].entries.append(("opened", None))

    @rule()
    def connect_anew(self) -> None:
        url = self.store._engine.url.render_as_string(hide_password=False)
        self.store.close()
        self.store = Store.connect(url)

    @invariant()
    def as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.pending(limit=100) == self.pending
        for name, cohort in self.cohorts.items():
            statement = budget(self.store, self.accountant, name)
            assert statement.epsilon_spent_upper == self.spent(name)
            assert statement.status == ("overspent" if cohort.overspent else "open")
            assert cohort.overspent or statement.epsilon_spent_upper <= BUDGET
            assert statement.local_epsilon_upper == cohort.local
            assert [(point.kind, point.round_id) for point in history(self.store, name)] == cohort.entries

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for name, request in self.requests.items():
            record = round_record(self.store, name)
            assert record.request == request
            assert (record.outcome, record.closing) == (self.outcomes.get(name), self.closings.get(name))
        report = verify(self.store, self.accountant, numbers="all")
        assert report.ok, [cohort.problems for cohort in report.cohorts]
        self.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_any_sequence_of_operations(
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sqlite_template: Path,
) -> None:
    def new_sqlite() -> str:
        path = tmp_path / f"{uuid.uuid4().hex}.db"
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}"

    new_database, examples = new_sqlite, 12
    if database == "postgresql":
        new_database, examples = request.getfixturevalue("new_postgresql_ledger"), 4
    Operations.new_database = staticmethod(new_database)
    run_state_machine_as_test(
        Operations,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
