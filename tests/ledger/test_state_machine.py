"""Any sequence of operations, compared with a model that knows nothing of databases.

The accountant here is a double whose epsilon is a plain sum: what is attacked is which rounds count, not
how much they cost. Real numbers are attacked in the other modules.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import uuid
from collections import Counter
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
    Outcome,
    Pending,
    Refused,
    ReleaseTimes,
    RoundRequest,
    Settled,
    Voided,
)
from shuffle_ledger.ledger.verification.verifier import verify

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


def costing(filters: FilterSet, others: Fraction, loss: Fraction) -> FilterCharge:
    """Returns the charge of a round with a largest loss, and the same in all other filters."""
    return FilterCharge(
        gaussian=(others,) * len(filters.gaussian.reserves),
        renyi=(*(others for _ in filters.renyi[:-1]), loss),
        account=(Fraction(0), Fraction(0)),
    )


def in_units(loss: float) -> Fraction:
    """Returns a loss as the machine counts it: rounded up to its unit."""
    return units_above(loss, LOSS_UNIT) * LOSS_UNIT


class AddingAccountant:
    """Costs the local epsilon0, more for fewer reports, and adds up."""

    precision = 4e-3  # charges are proven anew at it first: by this accountant

    def knows(self, accounted: ShuffledRound) -> bool:
        return True

    def privacy_loss(self, accounted: ShuffledRound) -> Any:
        """Any loss will do, as long as it can be read back."""
        return ANY_LOSS

    def knows_charge(self, accounted: ShuffledRound, filters: FilterSet) -> bool:
        return True

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        """Nothing rests on it."""
        return costing(filters, Fraction(0), Fraction(0))

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Any:
        cost = sum(
            count * accounted.randomizer.epsilon0 / (1 + accounted.reports // 100)
            for accounted, count in sorted(rounds.items(), key=str)
        )
        error = SimpleNamespace(discretization=0.0, truncation=0.0, round_off=0.0)
        return SimpleNamespace(
            epsilon_upper=cost,
            epsilon_lower=cost,
            rounds=sum(rounds.values()),
            error=error,
            method=NUMERICAL_POLICY,
        )


class ChargingAccountant(AddingAccountant):
    """The same for filters: only the one for largest losses bounds anything, and it adds up exactly."""

    def __init__(self) -> None:
        self.seen: set[ShuffledRound] = set()  # what is known is decided at once

    def knows_charge(self, accounted: ShuffledRound, filters: FilterSet) -> bool:
        return True

    def remembers_charge(self, accounted: ShuffledRound, filters: FilterSet) -> bool:
        return accounted in self.seen

    def charge(self, accounted: ShuffledRound, filters: FilterSet) -> FilterCharge:
        self.seen.add(accounted)
        cost = Fraction(super().certify({accounted: 1}, delta=DELTA).epsilon_upper)
        return costing(filters, Fraction(10**30), cost)

    def certify(
        self, rounds: Mapping[ShuffledRound, int], *, delta: float, budget: float | None = None
    ) -> Any:
        certificate = super().certify(rounds, delta=delta, budget=budget)
        certificate.epsilon_lower *= 1 - 1e-12  # sums of floats: a bound needs room
        return certificate


@dataclass
class ModelCohort:
    """The expected state of a cohort."""

    held: Counter[ShuffledRound] = field(default_factory=Counter)
    local: float = 0.0
    overspent: bool = False
    entries: list[tuple[str, str | None]] = field(default_factory=lambda: [("opened", None)])


def requested(name: str, cohort: str, epsilon0: float, reports: int) -> RoundRequest:
    randomizer = parse_randomizer({"kind": "krr", "k": 4, "epsilon0": epsilon0})
    return RoundRequest(
        round_id=name, cohort=cohort, round=ShuffledRound(randomizer=randomizer, reports=reports)
    )


class Operations(RuleBasedStateMachine):
    """Everything anybody can do with rounds."""

    names = Bundle("names")
    policy: str
    new_database: Callable[[], str]  # a function, kept on the class without becoming a method

    @initialize()
    def open(self) -> None:
        self.store = Store.connect(self.new_database())
        self.accountant = cast("Accountant", self.new_accountant())
        self.cohorts = {"phones": ModelCohort(), "tablets": ModelCohort()}
        for name in self.cohorts:
            open_cohort(
                self.store,
                name=name,
                population=POPULATION,
                epsilon=BUDGET,
                delta=DELTA,
                policy=self.policy,
                actor="model",
                **self.options(),
            )
        self.requests: dict[str, RoundRequest] = {}
        self.pending: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.charged: dict[str, ShuffledRound] = {}
        self.closings: dict[str, Settled | Voided] = {}

    def new_accountant(self) -> AddingAccountant:
        return AddingAccountant()

    def options(self) -> dict[str, Any]:
        """Returns the policy's arguments for opening a cohort."""
        return {}

    def cost(self, held: Counter[ShuffledRound]) -> float:
        return float(self.accountant.certify(held, delta=DELTA).epsilon_upper)

    def spent(self, cohort: str) -> float:
        return self.cost(+self.cohorts[cohort].held)

    def is_broken(self, cohort: str) -> bool:
        """Whether what was settled is beyond the budget."""
        return self.spent(cohort) > BUDGET

    def is_spent(self, cohort: str, stated: float) -> bool:
        """Returns whether the ledger may state this spending."""
        return stated == self.spent(cohort)

    def refusal(self, cohort: str) -> str:
        return "cohort_overspent" if self.cohorts[cohort].overspent else "budget_exceeded"

    def would_admit(self, request: RoundRequest) -> bool:
        cohort = self.cohorts[request.cohort]
        wanted = cohort.held + Counter({slot_for(request.round): 1})
        return not cohort.overspent and self.cost(wanted) <= BUDGET

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
        """Whether a round was admitted and must not be collected any more."""
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
            cohort.held[outcome.accounted] += 1
            cohort.local += outcome.accounted.randomizer.epsilon0
        else:
            assert outcome.reason == self.refusal(request.cohort)
        self.outcomes[name] = outcome
        self.pending.remove(name)

    @rule(name=names, reports=REPORTS)
    def settle(self, name: str, reports: int) -> None:
        cohort = self.cohorts[self.requests[name].cohort]
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
        assert settled.accounted == self.turned_out(name, before, reports)
        cohort.held[before] -= 1
        cohort.held[settled.accounted] += 1
        self.note_settled(name, before, settled.accounted)
        cohort.overspent = cohort.overspent or self.is_broken(self.requests[name].cohort)
        assert settled.overspent == cohort.overspent
        cohort.entries.append(("settled", name))
        self.closings[name] = settled

    def turned_out(self, name: str, before: ShuffledRound, reports: int) -> ShuffledRound:
        """Returns the round that a settlement charges."""
        if reports >= before.reports:
            return before
        return slot_for(dataclasses.replace(before, reports=reports))

    def note_settled(self, name: str, before: ShuffledRound, after: ShuffledRound) -> None:
        """Take notice of what a settled round turned out to be."""

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
        cohort = self.cohorts[self.requests[name].cohort]
        self.note_voided(name, self.charged[name])
        cohort.held[self.charged.pop(name)] -= 1
        self.closings[name] = void(self.store, self.accountant, name, reason=reason, actor="model")
        cohort.entries.append(("voided", name))

    def note_voided(self, name: str, accounted: ShuffledRound) -> None:
        """Take notice of a voided round."""

    @rule()
    def reopen(self) -> None:
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
            assert self.is_spent(name, statement.epsilon_spent_upper)
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


class AdaptiveOperations(Operations):
    """The same where filters decide."""

    policy = "adaptive"

    def new_accountant(self) -> AddingAccountant:
        return ChargingAccountant()

    def cost(self, held: Counter[ShuffledRound]) -> float:
        costs = {one: self.accountant.certify({one: 1}, delta=DELTA).epsilon_upper for one in held}
        exact = sum((count * in_units(costs[one]) for one, count in held.items()), Fraction(0))
        rounded = float(exact)
        return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)


class TellingOperations(Operations):
    """The same with later records: corrections, and incidents (releases without admission)."""

    @initialize()
    def begin_telling(self) -> None:
        self.told: dict[str, ShuffledRound] = {}  # what is charged for what may be corrected
        self.said: dict[str, tuple[ShuffledRound, str]] = {}  # the last correction
        self.local: dict[str, float] = {}
        self.incidents: dict[str, str] = {}  # their cohorts
        self.reported: dict[str, dict[str, Any]] = {}  # what was told of them

    def is_over(self, name: str) -> bool:
        is_told = name in self.incidents and name not in self.outcomes
        return is_told or super().is_over(name)

    def note_outcome(self, name: str, outcome: Outcome, *, expected: bool) -> None:
        super().note_outcome(name, outcome, expected=expected)
        if isinstance(outcome, Admitted):
            self.note_charge(name, None, outcome.accounted)

    def note_settled(self, name: str, before: ShuffledRound, after: ShuffledRound) -> None:
        self.note_charge(name, before, after)

    def note_voided(self, name: str, accounted: ShuffledRound) -> None:
        del self.told[name]

    def note_charge(self, name: str, before: ShuffledRound | None, after: ShuffledRound) -> None:
        """Take notice of what a round is charged as from now on; before, it was nothing, or another."""
        self.told[name] = after
        self.local.setdefault(name, after.randomizer.epsilon0)

    @rule(
        name=Operations.names,
        epsilon0=EPSILONS,
        reports=REPORTS,
        reason=st.sampled_from(["a log", "a diary"]),
    )
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
        cohort.held[before] -= 1
        cohort.held[answer.accounted] += 1
        self.note_charge(name, before, answer.accounted)
        more = max(0.0, answer.accounted.randomizer.epsilon0 - self.local[name])
        cohort.local, self.local[name] = cohort.local + more, self.local[name] + more
        if name in self.charged:
            self.charged[name] = answer.accounted
        self.said[name] = (truth, reason)
        self.note_told(name, "corrected", overspent=answer.overspent)

    @rule(target=Operations.names, name=NAMES, cohort=COHORTS, epsilon0=EPSILONS, reports=REPORTS)
    def record_incident(self, name: str, cohort: str, epsilon0: float, reports: int) -> Any:
        request = requested(name, cohort, epsilon0, reports)
        told: dict[str, Any] = {"round_id": name, "described": request.round, "reason": "?", "actor": "model"}
        told["released"] = ReleaseTimes(after=self.store.cohort(cohort).opened_at)
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
        self.cohorts[cohort].held[answer.accounted] += 1
        self.cohorts[cohort].local += epsilon0
        self.local[name] = epsilon0
        self.note_charge(name, None, answer.accounted)
        self.note_told(name, "incident", overspent=answer.overspent)
        return name

    def note_told(self, name: str, kind: str, *, overspent: bool) -> None:
        cohort = self.cohorts[self.requests[name].cohort]
        cohort.overspent = cohort.overspent or self.is_broken(self.requests[name].cohort)
        assert overspent == cohort.overspent
        cohort.entries.append((kind, name))


class AdaptiveTelling(TellingOperations, AdaptiveOperations):
    """Where filters decide, a round is charged the most that it was ever known to cost."""

    @initialize()
    def begin_charging(self) -> None:
        self.costs: dict[str, Fraction] = {}

    def cost_of(self, kind: ShuffledRound) -> Fraction:
        return in_units(self.accountant.certify({kind: 1}, delta=DELTA).epsilon_upper)

    def note_charge(self, name: str, before: ShuffledRound | None, after: ShuffledRound) -> None:
        super().note_charge(name, before, after)
        least = Fraction(0) if before is None else self.costs[name]
        self.costs[name] = max(least, self.cost_of(after))

    def note_voided(self, name: str, accounted: ShuffledRound) -> None:
        super().note_voided(name, accounted)
        del self.costs[name]

    def charged_in(self, cohort: str, more: Fraction = Fraction(0)) -> float:
        exact = more + sum(cost for name, cost in self.costs.items() if self.requests[name].cohort == cohort)
        rounded = float(exact)
        return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)

    def spent(self, cohort: str) -> float:
        return self.charged_in(cohort)

    def would_admit(self, request: RoundRequest) -> bool:
        wanted = self.charged_in(request.cohort, self.cost_of(slot_for(request.round)))
        return not self.cohorts[request.cohort].overspent and wanted <= BUDGET


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_any_sequence_of_operations(
    database: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    sqlite_template: Path,
) -> None:
    run_machine(AdaptiveTelling, database, request, (tmp_path, sqlite_template))


def run_machine(
    machine: type[Operations], database: str, request: pytest.FixtureRequest, paths: tuple[Path, Path]
) -> None:
    """Attack a machine's promises on databases of one kind."""
    tmp_path, sqlite_template = paths

    def new_sqlite() -> str:
        path = tmp_path / f"{uuid.uuid4().hex}.db"
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}"

    new_database, examples = new_sqlite, 12
    if database == "postgresql":
        new_database, examples = request.getfixturevalue("new_postgresql_ledger"), 4
    machine.new_database = staticmethod(new_database)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
