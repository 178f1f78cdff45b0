"""Approximate rounds in a ledger: accounts of delta decide, are shown, given back, and checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, FilterSet, InvalidParameter, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    change_budget,
    open_cohort,
    quote,
    register_and_admit,
    set_quota,
    with_budgets,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.documents import document_of
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import Admitted, Outcome, Refused, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.desk import decided, rewrite

EPSILON, DELTA = 3.0, 1e-6
AUDITOR = Accountant()
database_url = sqlite_url  # an entry has the same bytes in every database
KRR: dict[str, Any] = {"randomizer": "krr(k=10, epsilon0=2)", "reports": 20_000}
LOCAL: dict[str, Any] = {"randomizer": "generic(epsilon0=1)", "reports": 20_000, "analysis": "clone"}


@pytest.fixture
def watches(store: Store) -> Store:
    """Return a ledger with an empty adaptive cohort, of which an eighth of delta is for such rounds."""
    opened = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", approximate_share=1 / 8, **opened)  # type: ignore[arg-type]  # as it says
    return store


def test_a_share_is_fixed_by_the_opening(watches: Store, accountant: Accountant) -> None:
    body = watches.entry("watches", 1).content()
    assert body.details["rules"]["approximate_share"] == 1 / 8
    wanted = FilterSet.for_budget(epsilon=EPSILON, delta=DELTA, approximate_share=1 / 8)
    assert body.details["rules"]["filters"] == wanted.to_mapping()
    window = Window(unit="day", epsilon=1.0, delta=1e-7)
    opened: dict[str, Any] = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA, "policy": "adaptive"}
    by: dict[str, Any] = {"name": "parts", "actor": "tester", **opened, "windows": (window,)}
    for share in (0.25, 0.25):  # the same again changes nothing
        open_cohort(watches, approximate_share=share, **by)
    for wrong in (0.0, -1.0, 0.95, float("nan")):
        with pytest.raises(InvalidParameter, match="approximate_share"):
            open_cohort(watches, approximate_share=wrong, **{**by, "name": "new"})
    planned = {**opened, "policy": "plan", "plan": {ShuffledRound(**KRR): 1}}
    with pytest.raises(InvalidValue, match="approximate_share"):
        open_cohort(watches, approximate_share=0.1, name="new", actor="a", **planned)
    set_quota(watches, "parts", team="ads", epsilon=1.0, reason="agreed", actor="ada")
    shuffled = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=20_000)
    wanted_round = with_budgets(watches, RoundRequest(round_id="r", cohort="parts", round=shuffled))
    register_and_admit(watches, accountant, wanted_round, actor="ada")
    parts = [cohort.name for cohort in watches.cohorts() if cohort.parent == "parts"]
    assert len(parts) == 2, "a day and a quota"
    for name in parts:
        assert watches.entry(name, 1).content().details["rules"]["approximate_share"] == 0.25
    assert verify(watches, accountant, numbers="all").ok


def test_a_share_that_the_accounts_do_not_have_is_found(watches: Store, accountant: Accountant) -> None:
    def forge(body: EntryBody) -> EntryBody:
        rules = {**body.details["rules"], "approximate_share": 0.25}
        standing = {**body.details["standing"], "rules": rules_digest(rules)}
        return dataclasses.replace(body, details={**body.details, "rules": rules, "standing": standing})

    rewrite(watches, 1, forge)
    assert "another share of delta than it says" in str(verify(watches, accountant))


def request(name: str, *, randomizer: str, **fields: Any) -> RoundRequest:
    described = ShuffledRound(randomizer=parse_randomizer(randomizer), **fields)
    return RoundRequest(round_id=name, cohort="watches", round=described, collected_on=None, use_case=None)


@pytest.fixture
def ask(watches: Store, accountant: Accountant) -> Callable[..., Outcome]:
    """Return a function that registers a round and decides it."""

    def ask(name: str, **fields: Any) -> Outcome:
        return decided(watches, accountant, request(name, **fields))

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


def test_approximate_rounds_need_a_share_of_delta(store: Store, accountant: Accountant) -> None:
    """The usual one holds few of them; pure rounds go on, and every report says what ended the others."""
    opened = {"population": 1000, "epsilon": 5.0, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)  # type: ignore[arg-type]  # as it says
    often: dict[str, Any] = {"randomizer": "generic(epsilon0=0.5)", "reports": 100, "delta0": 1e-12}
    first = decided(store, accountant, request("a1", **often))
    assert isinstance(first, Refused)
    assert first.reason == "delta_account_exhausted"
    assert "(rounds without a delta of their own add nothing to that)" in first.message
    wanted = ForecastWanted(round=request("other", **often).round)
    (kind,) = forecast(store, accountant, "watches", wanted, today=store.now().date()).kinds
    assert (kind.rounds_at_least, kind.limited_by) == (0, "delta_account")
    described: dict[str, Any] = {"randomizer": {"kind": "generic"}, "reports": 100, "delta0": 1e-12}
    with pytest.raises(InvalidParameter) as refused:
        calibrate_for(store, accountant, "watches", described, rounds=1)
    assert refused.value.field == "rounds"
    pure = request("pure", randomizer="krr(k=4, epsilon0=1)", reports=100)
    assert isinstance(decided(store, accountant, pure), Admitted)


@pytest.mark.slow
def test_a_budget_is_not_raised_beyond_what_local_deltas_cost(
    watches: Store, accountant: Accountant, ask: Ask
) -> None:
    ask("pure", **KRR)
    ask("a", **LOCAL, delta0=3e-14)
    change: dict[str, Any] = {"reason": "as agreed", "actor": "owner"}
    head = watches.view("watches").head_sequence
    with pytest.raises(Conflict, match="cannot be raised"):
        change_budget(watches, "watches", epsilon=5.0, **change)
    assert watches.view("watches").head_sequence == head
    at_three = used(watches, accountant)
    change_budget(watches, "watches", epsilon=4.0, **change)
    assert used(watches, accountant) == pytest.approx(at_three * 55.598 / 21.0855, rel=1e-4)
    change_budget(watches, "watches", epsilon=2.0, **change)
    assert used(watches, accountant) == pytest.approx(at_three * 55.598 / 21.0855, rel=1e-4)
    assert verify(watches, accountant, numbers="all").ok
    assert not audited(watches)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sequence"), [("slack", 3), ("certain", 4)])
def test_forged_accounts_are_found_from_the_bundle_alone(
    watches: Store, accountant: Accountant, ask: Ask, name: str, sequence: int
) -> None:
    ask("pure", **KRR)
    ask("a", **LOCAL, delta0=1e-14)
    ask("d", randomizer="declared(epsilon=0.1, delta=1e-9)", reports=1)
    assert not audited(watches)

    def forge(body: EntryBody) -> EntryBody:
        without = {
            place: {field: one for field, one in body.details[place].items() if field != name}
            for place in ("cost", "charge")
        }
        return dataclasses.replace(body, details={**body.details, **without})

    rewrite(watches, sequence, forge)
    found = audited(watches)
    assert any(each.sequence == sequence and "too small" in each.what for each in found), found
    assert not verify(watches, accountant, numbers="all").ok


def audited(store: Store) -> tuple[Any, ...]:
    return verify_bundle(make_bundle(store, ["watches"]).data, AUDITOR, numbers="all").findings


def test_a_refusal_for_slack_names_a_smaller_epsilon_that_admits_the_rounds(
    store: Store, accountant: Accountant
) -> None:
    def admitted(cohort: str, epsilon: float) -> tuple[int, str]:
        opened: dict[str, Any] = {
            "population": 10**5,
            "epsilon": epsilon,
            "delta": 1e-6,
            "policy": "adaptive",
        }
        open_cohort(store, name=cohort, actor="tester", **opened)
        for count in range(6):
            wanted = dataclasses.replace(
                request(f"{cohort} {count}", randomizer="generic(epsilon0=1)", reports=50_000, delta0=1e-14),
                cohort=cohort,
            )
            outcome = decided(store, accountant, wanted)
            if isinstance(outcome, Refused):
                return count, outcome.message
        return count + 1, ""

    few, message = admitted("large", 8.0)
    found = re.search(r"but with epsilon ([0-9.]+) or less", message)
    assert found is not None, message
    assert 0 < float(found[1]) < 8
    more, _ = admitted("smaller", float(found[1]))
    assert more > few
