"""The decisions: what is admitted, refused, settled and voided, and that an answer stays the answer."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shuffle_ledger.accounting import Accountant, FilterSet, ShuffledRound, slot_for
from shuffle_ledger.ledger.decisions import (
    admit,
    register,
)
from shuffle_ledger.ledger.errors import (
    InvalidValue,
    LedgerError,
    NotFound,
    RoundStuck,
    SchemaError,
)
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Refused
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr, parsed

database_url = sqlite_url  # the rules are the same in every database


def fitting(accountant: Accountant, accounted: ShuffledRound, *, epsilon: float, delta: float) -> int:
    """Return how many equal rounds fit a budget, found without the ledger."""
    filters = FilterSet.for_budget(epsilon=epsilon, delta=delta)
    cost, limits, count = accountant.charge(accounted, filters), filters.limits(epsilon), 0

    def holds(rounds: int) -> bool:
        variance = min(
            Fraction(reserve) + rounds * one
            for reserve, one in zip(filters.gaussian.reserves, cost.gaussian, strict=True)
        )
        pairs = zip(cost.renyi, limits.renyi, strict=True)
        return variance <= limits.gaussian or any(rounds * one <= most for one, most in pairs)

    while holds(count + 1):
        count += 1
    return count


def test_exactly_the_rounds_that_fit_are_admitted(clerk: Clerk) -> None:
    accounted = slot_for(krr(1_000))
    fits = fitting(clerk.accountant, accounted, epsilon=1.0, delta=1e-9)
    clerk.open(delta=1e-9)
    outcomes = [clerk.ask(krr(1_000)) for _ in range(fits + 3)]
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True] * fits + [False] * 3
    last, refused = outcomes[fits - 1], outcomes[fits]
    assert isinstance(last, Admitted)
    assert isinstance(refused, Refused)
    assert last.accounted == accounted
    # What filters state is no less than what the rounds cost together.
    composed = clerk.accountant.certify({accounted: fits}, delta=1e-9)
    assert composed.epsilon_lower <= last.epsilon_spent_upper <= 1.0
    assert last.epsilon_remaining == 1.0 - last.epsilon_spent_upper
    assert refused.reason == "budget_exceeded"
    assert refused.epsilon_spent_upper == last.epsilon_spent_upper
    assert refused.epsilon_requested_upper is not None
    assert refused.epsilon_requested_upper > 1.0
    assert clerk.admits(krr(90_000, 0.05)), "a refusal costs nothing"
    clerk.audit()


def test_a_quote_says_what_admission_then_does_and_leaves_no_trace(clerk: Clerk) -> None:
    clerk.open()
    for described in (krr(1_000), krr(10, 8.0)):
        request, before = clerk.request(described), list(clerk.store.entries_of("phones"))
        quoted = clerk.quote(request)
        with pytest.raises(NotFound):
            clerk.store.round(request.round_id)
        assert list(clerk.store.entries_of("phones")) == before
        outcome = clerk.decide(request)
        assert quoted.would_be == type(outcome).__name__.lower()
        if isinstance(outcome, Admitted):
            assert quoted.epsilon_requested_upper == outcome.epsilon_spent_upper
            assert quoted.epsilon_remaining == outcome.epsilon_remaining
        else:
            assert quoted.epsilon_requested_upper == outcome.epsilon_requested_upper
            assert (quoted.reason, quoted.message) == (outcome.reason, outcome.message)


class BrokenAccountant:
    """Returns given numbers, as no sound accountant would."""

    def __init__(self, accountant: Accountant, upper: float, lower: float) -> None:
        self._accountant, self._upper, self._lower = accountant, upper, lower

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accountant, name)

    def certify(self, rounds: Any, *, delta: float, budget: float | None = None) -> Any:
        certificate = self._accountant.certify(rounds, delta=delta, budget=budget)
        values = {field.name: getattr(certificate, field.name) for field in dataclasses.fields(certificate)}
        return SimpleNamespace(**values | {"epsilon_upper": self._upper, "epsilon_lower": self._lower})


@pytest.mark.parametrize(("upper", "lower"), [(math.nan, 0.1), (-1.0, -1.0), (0.5, math.nan), (0.1, 0.2)])
def test_what_is_not_a_bound_admits_nothing_and_stops_after_some_attempts(
    clerk: Clerk, upper: float, lower: float
) -> None:
    broken = cast("Accountant", BrokenAccountant(clerk.accountant, upper, lower))
    clerk.open(policy="plan", plan={krr(1_000): 1})
    register(clerk.store, clerk.request(krr(1_000), name="poison"), actor="tester")
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(LedgerError, match="bounds nothing"):
            admit(clerk.store, broken, "poison")
    assert clerk.kinds() == ["opened"]
    with pytest.raises(RoundStuck, match=r"`round retry`.*bounds nothing"):
        admit(clerk.store, clerk.accountant, "poison")
    assert clerk.store.pending(limit=10) == []
    assert [stuck.round_id for stuck in clerk.store.stuck(limit=10)] == ["poison"]
    clerk.store.forget_failures("poison")
    assert isinstance(admit(clerk.store, clerk.accountant, "poison"), Admitted)


def test_a_worker_lost_again_and_again_makes_a_round_stuck(clerk: Clerk) -> None:
    clerk.open()
    register(clerk.store, clerk.request(name="killer"), actor="tester")
    for _ in range(ATTEMPTS_MAX - 1):
        clerk.store.record_failure("killer", "a worker was lost")
    with pytest.raises(RoundStuck):
        admit(clerk.store, clerk.accountant, "killer", redelivered=True)
    assert clerk.kinds() == ["opened"]


def test_more_reports_of_a_sample_than_declared_are_a_higher_rate_and_are_charged(clerk: Clerk) -> None:
    clerk.open()
    admitted = clerk.ask(krr(1_000, sampled_from=100_000), name="a")
    accounted = clerk.settle("a", 20_000).accounted
    assert accounted.sampled_from is not None
    assert accounted.reports / accounted.sampled_from >= 20_000 / 100_000
    assert clerk.spent() > 2 * admitted.epsilon_spent_upper


@pytest.mark.parametrize("reports", [5_000, 3])
def test_lost_reports_never_make_a_sampled_round_cheaper(clerk: Clerk, reports: int) -> None:
    clerk.open()
    admitted = clerk.ask(krr(10_000, sampled_from=100_000), name="a")
    settled = clerk.settle("a", reports)
    assert isinstance(admitted, Admitted)
    before, after = admitted.accounted, settled.accounted
    assert before.sampled_from is not None
    assert after.sampled_from is not None
    assert after.reports <= reports
    assert after.reports * 100_000 >= 10_000 * after.sampled_from  # users were at risk at that rate
    # Nor did the rate fall that was accounted, but for rounding to whole users.
    assert after.reports * before.sampled_from >= before.reports * (after.sampled_from - 1)
    assert settled.epsilon_spent_upper >= admitted.epsilon_spent_lower


@pytest.mark.slow
def test_when_no_honest_report_is_left_nothing_hides_the_user(clerk: Clerk) -> None:
    clerk.open(delta=1e-9)
    clerk.ask(krr(100, sampled_from=1_000, honest_fraction=0.5), name="a")
    settled = clerk.settle("a", 1)
    assert settled.overspent
    assert settled.epsilon_spent_upper == pytest.approx(2.0, rel=1e-2)  # the local guarantee


def test_a_protocol_that_takes_two_users_and_got_one_is_charged_all_there_is(clerk: Clerk) -> None:
    clerk.open()
    assert clerk.admits(parsed("distinct_elements(p=0.1)", 500), name="a")
    settled = clerk.settle("a", 1)
    assert settled.overspent
    assert math.isinf(settled.epsilon_spent_upper)
    clerk.audit()


def test_a_settlement_has_a_number_of_reports_that_its_cohort_can_send(clerk: Clerk) -> None:
    clerk.open()
    clerk.ask(name="a")
    for reports in (0, -1, 100_001, True, 2.0, math.nan):
        with pytest.raises(InvalidValue, match="reports"):
            clerk.settle("a", cast("int", reports))
    with pytest.raises(NotFound):
        clerk.settle("nowhere", 1)
    assert clerk.kinds() == ["opened", "admitted"]


def test_schema_must_be_known(clerk: Clerk, database_url: str) -> None:
    with clerk.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for attempt in (lambda: Store.connect(database_url), lambda: schema.initialise(database_url)):
        with pytest.raises(SchemaError, match="newer"):
            attempt()
