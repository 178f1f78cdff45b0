"""The decisions: what is admitted, refused, settled and voided, and that an answer stays the answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shuffle_ledger.accounting import Accountant, FilterSet, ShuffledRound, parse_randomizer, slot_for
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    open_cohort,
    quote,
    register,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import (
    Conflict,
    InvalidValue,
    LedgerError,
    NotCollectable,
    NotFound,
    RoundStuck,
    SchemaError,
)
from shuffle_ledger.ledger.policies.numbers import cost_of
from shuffle_ledger.ledger.reports.budgets import budget, history
from shuffle_ledger.ledger.storage import schema
from shuffle_ledger.ledger.storage.rows import ATTEMPTS_MAX
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Pending, RefusalReason, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.desk import decided, open_as_usual, policy_in, state_in

MakeRequest = Callable[..., RoundRequest]


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


def test_exactly_the_rounds_that_fit_are_admitted(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    accounted = slot_for(make_request().round)
    fits = fitting(accountant, accounted, epsilon=1.0, delta=1e-9)
    outcomes = [decided(phones, accountant, make_request(f"r{number}")) for number in range(fits + 3)]
    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True] * fits + [False] * 3
    last, refused = outcomes[fits - 1], outcomes[fits]
    assert isinstance(last, Admitted)
    assert isinstance(refused, Refused)
    assert last.accounted == accounted
    # What filters state is no less than what the rounds cost together.
    assert accountant.certify({accounted: fits}, delta=1e-9).epsilon_lower <= last.epsilon_spent_upper <= 1.0
    assert last.epsilon_remaining == 1.0 - last.epsilon_spent_upper
    assert refused.reason == "budget_exceeded"
    assert refused.epsilon_spent_upper == last.epsilon_spent_upper
    assert refused.epsilon_requested_upper is not None
    assert refused.epsilon_requested_upper > 1.0
    smaller = decided(phones, accountant, make_request("small", epsilon0=0.05, reports=900_000))
    assert isinstance(smaller, Admitted)  # a refusal costs nothing
    assert verify(phones, accountant, numbers="all").ok


def test_the_first_outcome_is_the_outcome(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    requests = [make_request("fits"), make_request("too-much", epsilon0=8.0, reports=10)]
    first = [decided(phones, accountant, request) for request in requests]
    assert [type(outcome) for outcome in first] == [Admitted, Refused]
    entries = list(phones.entries_of("phones"))
    for request, outcome in zip(requests, first, strict=True):
        assert register(phones, request, actor="somebody else") == outcome
        assert admit(phones, accountant, request.round_id) == outcome
        for change in ({"reports": 999}, {"use_case": "emoji"}, {"collected_on": date(2025, 1, 1)}):
            with pytest.raises(Conflict):
                register(phones, make_request(request.round_id, **change), actor="tester")
    void(phones, accountant, "fits", reason="a bug in the client", actor="tester")
    with pytest.raises(NotCollectable, match="voided"):
        admit(phones, accountant, "fits")
    assert list(phones.entries_of("phones"))[: len(entries)] == entries


def test_a_quote_says_what_admission_then_does_and_leaves_no_trace(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for request in (make_request("a"), make_request("b", epsilon0=8.0, reports=10)):
        before = list(phones.entries_of("phones"))
        quoted = quote(phones, accountant, request)
        with pytest.raises(NotFound):
            phones.round(request.round_id)
        assert list(phones.entries_of("phones")) == before
        outcome = decided(phones, accountant, request)
        assert quoted.would_be == type(outcome).__name__.lower()
        if isinstance(outcome, Admitted):
            assert quoted.epsilon_requested_upper == outcome.epsilon_spent_upper
            assert quoted.epsilon_remaining == outcome.epsilon_remaining
        else:
            assert quoted.epsilon_requested_upper == outcome.epsilon_requested_upper
            assert (quoted.reason, quoted.message) == (outcome.reason, outcome.message)


def test_rounds_wait_in_order_of_registration(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    names = ["zebra", "apple", "mango"]
    for name in names:
        assert register(phones, make_request(name), actor="t") == Pending(round_id=name, cohort="phones")
    assert phones.pending(limit=10) == names
    assert phones.pending(limit=2) == names[:2]
    admit(phones, accountant, "apple")
    assert phones.pending(limit=10) == ["zebra", "mango"]


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


@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (math.nan, 0.1),
        (math.nan, math.nan),
        (-1.0, -1.0),
        (0.5, math.nan),
        (0.1, 0.2),
        (-math.inf, -math.inf),
    ],
)
def test_what_is_not_a_bound_admits_nothing_and_stops_after_some_attempts(
    store: Store, accountant: Accountant, make_request: MakeRequest, upper: float, lower: float
) -> None:
    broken, request = cast("Accountant", BrokenAccountant(accountant, upper, lower)), make_request("poison")
    opening: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "plan"}
    plan = {request.round: 1}
    open_cohort(store, name="phones", plan=plan, accountant=accountant, actor="tester", **opening)
    phones = store
    register(phones, request, actor="tester")
    for _ in range(ATTEMPTS_MAX):
        with pytest.raises(LedgerError, match="bounds nothing"):
            admit(phones, broken, "poison")
    assert phones.count_entries("phones") == {"opened": 1}
    with pytest.raises(RoundStuck, match=r"`round retry`.*bounds nothing"):
        admit(phones, accountant, "poison")
    assert phones.pending(limit=10) == []
    assert [stuck.round_id for stuck in phones.stuck(limit=10)] == ["poison"]
    phones.forget_failures("poison")
    assert isinstance(admit(phones, accountant, "poison"), Admitted)


def test_a_worker_lost_again_and_again_makes_a_round_stuck(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    register(phones, make_request("killer"), actor="tester")
    for _ in range(ATTEMPTS_MAX - 1):
        phones.record_failure("killer", "a worker was lost")
    with pytest.raises(RoundStuck):
        admit(phones, accountant, "killer", redelivered=True)
    assert phones.count_entries("phones") == {"opened": 1}


def test_an_infinite_loss_is_refused_in_words(phones: Store, accountant: Accountant) -> None:
    clear = ShuffledRound(randomizer=parse_randomizer("table([[1, 0], [0, 1]])"), reports=1)
    outcome = decided(phones, accountant, RoundRequest(round_id="clear", cohort="phones", round=clear))
    assert isinstance(outcome, Refused)
    assert outcome.reason is RefusalReason.UNBOUNDED_LOSS
    assert outcome.epsilon_requested_upper is None
    assert budget(phones, accountant, "phones").epsilon_spent_upper == 0.0


def test_settling_fewer_reports_charges_the_truth_and_overspends(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    admitted = decided(phones, accountant, make_request("a", reports=50_000))
    both = decided(phones, accountant, make_request("b", reports=50_000))
    assert isinstance(admitted, Admitted)
    assert isinstance(both, Admitted)
    fewer = settle(phones, accountant, "a", reports=45_000, actor="tester")
    truth = slot_for(dataclasses.replace(admitted.accounted, reports=45_000))
    assert fewer.accounted == truth
    assert fewer.epsilon_spent_upper > both.epsilon_spent_upper
    assert not fewer.overspent
    worst = settle(phones, accountant, "b", reports=20, actor="tester")
    assert worst.overspent
    assert worst.epsilon_remaining == 0.0
    statement = budget(phones, accountant, "phones")
    assert statement.status == "overspent"
    assert statement.epsilon_spent_upper == worst.epsilon_spent_upper > statement.epsilon_budget
    refused = decided(phones, accountant, make_request("c", epsilon0=0.01, reports=900_000))
    assert isinstance(refused, Refused)
    assert refused.reason == "cohort_overspent"
    assert verify(phones, accountant, numbers="all").ok


def test_a_settlement_says_that_its_cohort_was_overspent_whatever_was_raised_since(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for name in ("a", "b"):
        decided(phones, accountant, make_request(name, reports=50_000))
    assert settle(phones, accountant, "a", reports=20, actor="tester").overspent
    change_budget(phones, "phones", epsilon=100.0, reason="a larger one", actor="tester")
    kept = settle(phones, accountant, "b", reports=50_000, actor="tester")
    assert kept.overspent
    assert kept.epsilon_spent_upper < 100.0
    assert verify(phones, accountant, numbers="all").ok


def test_settling_more_reports_gives_nothing_back(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    admitted = decided(phones, accountant, make_request("a"))
    settled = settle(phones, accountant, "a", reports=900_000, actor="tester")
    assert isinstance(admitted, Admitted)
    assert settled.accounted == admitted.accounted
    assert settled.epsilon_spent_upper == admitted.epsilon_spent_upper


def test_more_reports_of_a_sample_than_declared_are_a_higher_rate_and_are_charged(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    admitted = decided(phones, accountant, make_request("a", reports=1_000, sampled_from=100_000))
    settled = settle(phones, accountant, "a", reports=20_000, actor="tester")
    assert isinstance(admitted, Admitted)
    accounted = settled.accounted
    assert accounted.sampled_from is not None
    assert accounted.reports / accounted.sampled_from >= 20_000 / 100_000
    assert settled.epsilon_spent_upper > 2 * admitted.epsilon_spent_upper


@pytest.mark.parametrize("reports", [9_000, 5_000, 500, 3])
def test_lost_reports_never_make_a_sampled_round_cheaper(
    phones: Store, accountant: Accountant, make_request: MakeRequest, reports: int
) -> None:
    admitted = decided(phones, accountant, make_request("a", reports=10_000, sampled_from=100_000))
    settled = settle(phones, accountant, "a", reports=reports, actor="tester")
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
def test_when_no_honest_report_is_left_nothing_hides_the_user(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    decided(phones, accountant, make_request("a", reports=100, sampled_from=1_000, honest_fraction=0.5))
    settled = settle(phones, accountant, "a", reports=1, actor="tester")
    assert settled.overspent
    assert settled.epsilon_spent_upper == pytest.approx(2.0, rel=1e-2)  # the local guarantee


def test_a_protocol_that_takes_two_users_and_got_one_is_charged_all_there_is(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for cohort in ("phones", "watches"):
        if cohort == "watches":
            open_as_usual(phones, cohort, epsilon=5.0, delta=1e-6)
        described = ShuffledRound(randomizer=parse_randomizer("distinct_elements(p=0.1)"), reports=500)
        request = RoundRequest(round_id=f"of {cohort}", cohort=cohort, round=described)
        assert isinstance(decided(phones, accountant, request), Admitted)
        settled = settle(phones, accountant, request.round_id, reports=1, actor="tester")
        assert settled.overspent
        assert math.isinf(settled.epsilon_spent_upper)
    report = verify(phones, accountant, numbers="all")
    assert report.ok, report


def test_voiding_releases_the_reservation_but_not_what_was_sent(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    decided(phones, accountant, make_request("a", epsilon0=1.5))
    voided = void(phones, accountant, "a", reason="a bug in the client", actor="auditor")
    assert voided.epsilon_spent_upper == 0.0
    assert "nothing" in voided.attestation
    statement = budget(phones, accountant, "phones")
    assert (statement.epsilon_remaining, statement.local_epsilon_upper) == (1.0, 1.5)
    last = list(history(phones, "phones"))[-1]
    assert (last.kind, last.actor, last.reason) == ("voided", "auditor", "a bug in the client")


def test_the_local_budget_is_an_upper_bound_of_the_exact_sum(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for number in range(10):
        decided(phones, accountant, make_request(f"r{number}", epsilon0=0.1, reports=900_000))
    decided(phones, accountant, make_request("refused", epsilon0=9.0, reports=2))
    assert (
        budget(phones, accountant, "phones").local_epsilon_upper >= 1.0
    )  # 0.1 is a little more than a tenth


def test_states_forbid_what_would_rewrite_them(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    for name in ("settled", "voided", "open"):
        decided(phones, accountant, make_request(name, reports=900_000))
    decided(phones, accountant, make_request("refused", epsilon0=9.0, reports=2))
    register(phones, make_request("pending"), actor="tester")
    settled = settle(phones, accountant, "settled", reports=800_000, actor="tester")
    voided = void(phones, accountant, "voided", reason="why", actor="tester")
    count = phones.count_entries("phones")
    assert settle(phones, accountant, "settled", reports=800_000, actor="other") == settled
    assert void(phones, accountant, "voided", reason="why", actor="other") == voided
    for name in ("settled", "voided", "refused", "pending"):
        with pytest.raises(Conflict, match=name):
            settle(phones, accountant, name, reports=799_999, actor="tester")
        with pytest.raises(Conflict, match=name):
            void(phones, accountant, name, reason="another", actor="tester")
    for reports in (0, -1, 1_000_001, True, 2.0, math.nan):
        with pytest.raises(InvalidValue, match="reports"):
            settle(phones, accountant, "open", reports=cast("int", reports), actor="tester")
    with pytest.raises(InvalidValue, match="reason"):
        void(phones, accountant, "open", reason="", actor="tester")
    with pytest.raises(NotFound):
        settle(phones, accountant, "nowhere", reports=1, actor="tester")
    assert phones.count_entries("phones") == count


def test_a_damaged_stored_loss_decides_nothing(
    phones: Store, make_request: MakeRequest, database_url: str, accountant: Accountant
) -> None:
    first = decided(phones, accountant, make_request("a"))
    with phones._engine.begin() as connection:
        connection.exec_driver_sql(_DROP_LOSS_GUARD[phones._engine.dialect.name])
        connection.exec_driver_sql("UPDATE privacy_losses SET blob = digest")
    fresh = Accountant()
    second = decided(phones, fresh, make_request("b"))
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    policy, state = policy_in(phones, "phones"), state_in(phones, "phones")
    assert policy.filters is not None
    cost = cost_of(accountant.charge(first.accounted, policy.filters))
    assert state.total.gaussian == tuple(2 * one for one in cost.gaussian)
    assert second.epsilon_spent_upper == policy.spending(state, rounds=2).epsilon_upper
    report = verify(phones, Accountant())
    assert "privacy loss" in report.cohorts[0].problems[0].what


_DROP_LOSS_GUARD = {
    "sqlite": "DROP TRIGGER guard_privacy_losses_update",
    "postgresql": "DROP TRIGGER guard_privacy_losses_update ON privacy_losses",
}


def test_cohorts_do_not_share_a_budget(
    phones: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    open_as_usual(phones, "tablets")
    decided(phones, accountant, make_request("a"))
    assert budget(phones, accountant, "tablets").epsilon_spent_upper == 0.0
    with pytest.raises(Conflict):
        register(phones, make_request("a", cohort="tablets"), actor="tester")


def test_schema_must_be_known(database_url: str, store: Store) -> None:
    with store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    for attempt in (lambda: Store.connect(database_url), lambda: schema.initialise(database_url)):
        with pytest.raises(SchemaError, match="newer"):
            attempt()
