"""Approximate rounds in a ledger: accounts of delta decide, are shown, given back, and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, InvalidParameter, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import admit, change_budget, open_cohort, quote, register, settle, void
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import ForecastWanted, forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.documents import document_of
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.test_adaptive import rewrite

EPSILON, DELTA = 3.0, 1e-6
AUDITOR = Accountant()
pytestmark = pytest.mark.usefixtures("remembered_second_opinions")
database_url = sqlite_url  # an entry has the same bytes in every database
KRR: dict[str, Any] = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 20_000}
LOCAL: dict[str, Any] = {"randomizer": "generic(epsilon0=1)", "reports": 20_000, "analysis": "clone"}


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with an empty adaptive cohort."""
    opened = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)  # type: ignore[arg-type]  # as it says
    return store


def request(name: str, *, randomizer: str, **fields: Any) -> RoundRequest:
    described = ShuffledRound(randomizer=parse_randomizer(randomizer), **fields)
    return RoundRequest(round_id=name, cohort="watches", round=described, collected_on=None, use_case=None)


def asked(store: Store, accountant: Accountant, wanted: RoundRequest) -> Outcome:
    register(store, wanted, actor="tester")
    return admit(store, accountant, wanted.round_id)


@pytest.fixture
def ask(watches: Store, accountant: Accountant) -> Callable[..., Outcome]:
    """Return a function that registers a round and decides it."""

    def ask(name: str, **fields: Any) -> Outcome:
        return asked(watches, accountant, request(name, **fields))

    return ask


Ask = Callable[..., Outcome]


def used(store: Store, accountant: Accountant) -> float:
    accounts = budget(store, accountant, "watches").delta_accounts
    assert accounts is not None
    return accounts.slack_used_upper


@pytest.mark.slow
def test_an_exhausted_account_refuses_approximate_rounds_alone(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    assert isinstance(ask("pure", **KRR), Admitted)
    outcomes = [ask(f"a{number}", **LOCAL, delta0=3e-14) for number in range(5)]
    assert [type(one) for one in outcomes] == [Admitted] * 4 + [Refused]
    last = outcomes[-1]
    assert isinstance(last, Refused)
    assert (last.reason, last.epsilon_requested_upper) == ("delta_account_exhausted", None)
    assert "local deltas" in last.message
    assert isinstance(ask("later", **KRR), Admitted)
    quoted = quote(watches, accountant, request("q", **LOCAL, delta0=3e-14))
    assert (quoted.would_be, quoted.reason) == ("refused", "delta_account_exhausted")
    assert quoted.delta_accounts == budget(watches, accountant, "watches").delta_accounts
    assert quoted.delta_accounts is not None
    assert quoted.delta_accounts.slack_used_upper <= quoted.delta_accounts.slack_share < DELTA / 16
    shown = document_of(budget(watches, accountant, "watches"))
    assert isinstance(shown, dict)
    assert set(shown["delta_accounts"]) == {  # type: ignore[arg-type]  # an object
        "certain_loss_used_upper",
        "certain_loss_share",
        "slack_used_upper",
        "slack_share",
        "epsilon",
    }
    (stated,) = make_statement(watches, accountant, ["watches"], made_at=datetime.now(UTC)).cohorts
    assert stated.delta_accounts == quoted.delta_accounts
    assert verify(watches, accountant, numbers="all").ok
    assert not audited(watches)


def test_nothing_fits_once_the_repetition_filter_admitted_more_than_the_accounts_have(
    store: Store, accountant: Accountant
) -> None:
    opened = {"population": 1000, "epsilon": 5.0, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)  # type: ignore[arg-type]  # as it says
    often: dict[str, Any] = {"randomizer": "generic(epsilon0=0.5)", "reports": 100, "delta0": 1e-9}
    for name in ("a1", "a2"):
        assert isinstance(asked(store, accountant, request(name, **often)), Admitted)
    other = request("other", randomizer="krr(k=4, epsilon0=1)", reports=100)
    wanted = ForecastWanted(round=other.round)
    (kind,) = forecast(store, accountant, "watches", wanted, today=store.now().date()).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (0, "delta_account")
    described: dict[str, Any] = {"randomizer": {"kind": "krr", "k": 4}, "reports": 100}
    with pytest.raises(InvalidParameter) as refused:
        calibrate_for(store, accountant, "watches", described, rounds=1)
    assert refused.value.field == "rounds"
    outcome = asked(store, accountant, other)
    assert isinstance(outcome, Refused)
    assert outcome.reason == "delta_account_exhausted"
    assert "Rounds without a delta of their own add nothing to that." in outcome.message


def test_voids_give_back_and_settlements_take_more(watches: Store, accountant: Accountant, ask: Ask) -> None:
    ask("pure", **KRR)
    ask("a", **LOCAL, delta0=1e-14)
    before = used(watches, accountant)
    ask("b", **LOCAL, delta0=1e-14)
    assert used(watches, accountant) == pytest.approx(2 * before)
    void(watches, accountant, "b", reason="never released", actor="tester")
    assert used(watches, accountant) == before
    settle(watches, accountant, "a", reports=10_000, actor="tester")
    assert used(watches, accountant) == before, "fewer reports have less slack: the larger one stays"
    assert verify(watches, accountant, numbers="all").ok


@pytest.mark.slow
def test_a_budget_is_not_raised_beyond_what_local_deltas_cost(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    ask("pure", **KRR)
    ask("a", **LOCAL, delta0=3e-14)
    change: dict[str, Any] = {"reason": "as agreed", "actor": "owner"}
    head = watches.view("watches").head_sequence
    with pytest.raises(Conflict, match="cannot be raised"):
        change_budget(watches, accountant, "watches", epsilon=5.0, **change)
    assert watches.view("watches").head_sequence == head
    at_three = used(watches, accountant)
    change_budget(watches, accountant, "watches", epsilon=4.0, **change)
    assert used(watches, accountant) == pytest.approx(at_three * 55.598 / 21.0855, rel=1e-4)
    change_budget(watches, accountant, "watches", epsilon=2.0, **change)
    assert used(watches, accountant) == pytest.approx(at_three * 55.598 / 21.0855, rel=1e-4)
    assert verify(watches, accountant, numbers="all").ok
    assert not audited(watches)


@pytest.mark.slow
def test_a_budget_raised_before_the_first_round_counts(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    change_budget(watches, accountant, "watches", epsilon=4.0, reason="as agreed", actor="owner")
    ask("a", **LOCAL, delta0=1e-15)
    accounts = budget(watches, accountant, "watches").delta_accounts
    assert accounts is not None
    assert accounts.epsilon == 4.0
    assert verify(watches, accountant, numbers="all").ok


FORGERIES = {
    "slack": "too small",
    "certain loss": "too small",
    "negative": "too small",
    "total": "does not follow",
    "judged": "smaller epsilon",
    "set": "parameters choose",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FORGERIES)
def test_forged_accounts_are_found_from_the_bundle_alone(
    watches: Store, accountant: Accountant, ask: Ask, what: str
) -> None:
    if what == "judged":
        change_budget(watches, accountant, "watches", epsilon=4.0, reason="as agreed", actor="owner")
    ask("pure", **KRR)
    ask("a", **LOCAL, delta0=1e-14)
    ask("d", randomizer="declared(epsilon=0.1, delta=1e-9)", reports=1)
    assert not audited(watches)
    sequence = {"certain loss": 4, "judged": 3, "set": 2}.get(what, 3)
    rewrite(watches, sequence, lambda body: forged(body, what))
    found = audited(watches)
    assert any(each.sequence == sequence and FORGERIES[what] in each.what for each in found), found
    assert not verify(watches, accountant, numbers="all").ok


def audited(store: Store) -> tuple[Any, ...]:
    return verify_bundle(make_bundle(store, ["watches"]).data, AUDITOR, numbers="all").findings


def forged(body: EntryBody, what: str) -> EntryBody:
    details: dict[str, Any] = dict(body.details)
    standing = dict(details["standing"])
    certain, slack = details["charge"]["account"]
    if what in ("slack", "certain loss", "negative"):
        wanted = {"slack": [certain, "0"], "certain loss": ["0", slack], "negative": [certain, "-" + slack]}
        details["charge"] = {**details["charge"], "account": wanted[what]}
        total = list(standing["charged"]["account"])
        standing["charged"] = {**standing["charged"], "account": total}
    if what == "total":
        standing["charged"] = {**standing["charged"], "account": ["0", "0"]}
    if what == "judged":
        chosen = {name: each for name, each in details["choice"].items() if name != "accounts_epsilon"}
        details["choice"] = standing["choice"] = chosen
    if what == "set":
        details["choice"] = standing["choice"] = {**details["choice"], "alternative": 10}
    return dataclasses.replace(body, details={**details, "standing": standing})
