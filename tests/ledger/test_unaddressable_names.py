"""Names that no address can contain: refused wherever they would be new, verified where they are old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant
from shuffle_ledger.ledger.decisions import (
    admission,
    admit,
    open_cohort,
    register,
    register_and_admit,
    settle,
)
from shuffle_ledger.ledger.decisions.incidents import record_incident
from shuffle_ledger.ledger.decisions.steps import NewRoundRequest
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Cohort, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify

NAMES = (".", "..")
COHORT: dict[str, Any] = {"population": 10_000, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}


@pytest.mark.parametrize("name", NAMES)
def test_no_cohort_is_opened_and_no_round_registered_under_such_a_name(
    phones: Store, accountant: Accountant, make_request: Callable[..., RoundRequest], name: str
) -> None:
    with pytest.raises(InvalidValue, match=r"name: got '\.+', expected a name other than"):
        open_cohort(phones, name=name, actor="tester", **COHORT)
    asked = make_request(name)
    with pytest.raises(InvalidValue, match="round_id"):
        register(phones, asked, actor="tester")
    with pytest.raises(InvalidValue, match="round_id"):
        register_and_admit(phones, accountant, asked, actor="tester")
    with pytest.raises(InvalidValue, match="round_id"):
        admission.admit_at_once(phones, accountant, asked, actor="tester")
    with pytest.raises(InvalidValue, match="round_id"):
        record_incident(
            phones, accountant, "phones", round_id=name, described=None, reason="lost", actor="tester"
        )
    assert [cohort.name for cohort in phones.cohorts()] == ["phones"]
    assert list(phones.rounds_of("phones")) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_ledger_that_has_such_names_goes_on_and_verifies(
    store: Store,
    accountant: Accountant,
    make_request: Callable[..., RoundRequest],
    name: str,
) -> None:
    """What an earlier release let in is not taken back: entries are for ever."""
    cohort = Cohort(name=name, population=10_000, epsilon_budget=1.0, delta_budget=1e-9, policy="adaptive")
    opening = registry.policy_for(cohort).opening()
    store.open_cohort(cohort, actor="tester", numerical_policy=NUMERICAL_POLICY, rules=opening)
    store.insert_round(make_request(name, cohort=name), actor="tester")
    assert isinstance(admit(store, accountant, name), Admitted)
    register(store, make_request("later", cohort=name), actor="tester")
    assert isinstance(admit(store, accountant, "later"), Admitted)
    settle(store, accountant, name, reports=900, actor="tester")
    report = verify(store, accountant, numbers="all")
    assert report.ok, report
    assert [found.cohort for found in report.cohorts] == [name]
    assert NewRoundRequest.of(make_request("x", cohort=name), actor="t").request.cohort == name
