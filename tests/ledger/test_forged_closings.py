"""How a round of a plan or of policy `fixed` was closed is checked from the bundle alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, slot_for
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle, void
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, Spending, loss_digest
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.test_adaptive import rewrite
from tests.ledger.test_plans import DELTA, krr, open_planned

AUDITOR = Accountant()  # another one than the ledger's
LARGE, SMALL, OTHER = krr(1.0, 10_000), krr(1.0, 9_000), krr(2.0, 8_000)
database_url = sqlite_url  # an entry has the same bytes in every database


def decide(store: Store, accountant: Accountant, name: str, declared: ShuffledRound) -> None:
    register(store, RoundRequest(round_id=name, cohort="watches", round=declared), actor="tester")
    admit(store, accountant, name)


def audited(store: Store) -> list[str]:
    bundle = make_bundle(store, ["watches"]).data
    return [each.what for each in verify_bundle(bundle, AUDITOR, numbers="all").findings]


def placed(slot: int | None, accounted: ShuffledRound, claimed: list[int], **more: Any) -> Mapping[str, Any]:
    return {"slot": slot, "accounted": accounted.to_mapping(), "claimed": claimed, **more}


FORGERIES = {
    "keeps its slot": placed(0, LARGE, [1, 0, 0]),
    "takes a dearer slot": placed(2, OTHER, [0, 0, 1]),
    "leaves the plan": placed(None, SMALL, [0, 0, 0], unplaced=1, overspent=True),
    "keeps its slot for more reports": placed(0, LARGE, [1, 0, 0], reports=9_999),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FORGERIES)
def test_a_settlement_in_another_slot_than_its_reports_name_is_found(
    store: Store, accountant: Accountant, how: str
) -> None:
    open_planned(store, accountant, plan={LARGE: 1, SMALL: 1, OTHER: 1})
    decide(store, accountant, "a", LARGE)
    settle(store, accountant, "a", reports=9_000, actor="tester")
    assert audited(store) == []

    def forge(body: EntryBody) -> EntryBody:
        details, change = dict(body.details), dict(FORGERIES[how])
        standing = {**details["standing"], "claimed": change.pop("claimed")}
        if "unplaced" in change:
            standing["unplaced"] = change.pop("unplaced")
        kind = ShuffledRound.from_mapping(change["accounted"])
        certificate = accountant.certify({kind: 1}, delta=DELTA)
        loss = accountant.privacy_loss(kind).to_bytes()
        spent = Spending.from_certificate(certificate, delta=DELTA)
        details |= {**change, "standing": standing, "privacy_loss": loss_digest(loss).hex()}
        return dataclasses.replace(body, details=details, spent=spent)

    rewrite(store, 3, forge)
    assert any("slot of the plan that its reports name" in what for what in audited(store)), audited(store)
    assert not verify(store, accountant).ok


@pytest.mark.parametrize("slot", [3, 2**70])
def test_a_slot_that_the_plan_does_not_have_is_found_and_keeps_no_other_cohort_waiting(
    store: Store, accountant: Accountant, slot: int
) -> None:
    open_planned(store, accountant, plan={LARGE: 1, SMALL: 1, OTHER: 1})
    open_cohort(
        store, name="zebras", population=10**6, epsilon=1.0, delta=DELTA, policy="adaptive", actor="tester"
    )
    decide(store, accountant, "a", LARGE)

    def forge(body: EntryBody) -> EntryBody:
        return dataclasses.replace(body, details={**body.details, "slot": slot})

    rewrite(store, 2, forge)
    said = "a slot that the plan does not have"
    assert any(said in what for what in audited(store)), audited(store)
    found = {each.cohort: each for each in verify(store, accountant).cohorts}
    assert any(said in each.what for each in found["watches"].problems)
    assert found["zebras"].ok
    verify_oldest(store, accountant, enough=lambda: False)
    noted = {name: each.problem for name, each in store.verifications().items()}
    assert noted["watches"] is not None
    assert noted["zebras"] is None


@pytest.mark.slow
def test_an_uncovered_round_that_is_not_counted_is_found(store: Store, accountant: Accountant) -> None:
    open_planned(store, accountant, plan={LARGE: 1})
    decide(store, accountant, "a", LARGE)
    assert settle(store, accountant, "a", reports=5_000, actor="tester").overspent
    assert audited(store) == []
    (found,) = verify_bundle(make_bundle(store, ["watches"]).data, AUDITOR).cohorts
    assert found.promise_kept is False, "within the budget, but not covered by the plan"

    def forge(body: EntryBody) -> EntryBody:
        standing = {name: each for name, each in body.details["standing"].items() if name != "unplaced"}
        return dataclasses.replace(body, details={**body.details, "standing": standing, "overspent": False})

    rewrite(store, 3, forge)
    assert any("plan's slots" in what for what in audited(store))


@pytest.mark.slow
def test_a_void_of_policy_fixed_that_gives_back_is_found(store: Store, accountant: Accountant) -> None:
    open_cohort(
        store, name="watches", population=10**6, epsilon=1.0, delta=DELTA, policy="fixed", actor="tester"
    )
    for name in ("a", "b"):
        decide(store, accountant, name, LARGE)
    both, one = (accountant.certify({slot_for(LARGE): count}, delta=DELTA) for count in (2, 1))
    void(store, accountant, "b", reason="never released", actor="tester")
    assert budget(store, accountant, "watches").epsilon_spent_upper == both.epsilon_upper
    assert audited(store) == []
    rewrite(
        store, 4, lambda body: dataclasses.replace(body, spent=Spending.from_certificate(one, delta=DELTA))
    )
    (found,) = verify(store, accountant).cohorts
    assert any(each.sequence == 4 and "2 are held" in each.what for each in found.problems)


@pytest.mark.slow
def test_a_fixed_cohort_without_outputs_is_empty_again(store: Store, accountant: Accountant) -> None:
    open_cohort(
        store, name="watches", population=10**6, epsilon=1.0, delta=DELTA, policy="fixed", actor="tester"
    )
    for name in ("a", "b"):
        decide(store, accountant, name, LARGE)
    void(store, accountant, "a", reason="never released", actor="tester")
    assert budget(store, accountant, "watches").epsilon_spent_upper > 0
    void(store, accountant, "b", reason="never released", actor="tester")
    assert budget(store, accountant, "watches").epsilon_spent_upper == 0
    decide(store, accountant, "c", SMALL)
    settle(store, accountant, "c", reports=9_000, actor="tester")
    decide(store, accountant, "d", SMALL)
    void(store, accountant, "d", reason="never released", actor="tester")
    assert budget(store, accountant, "watches").epsilon_spent_upper > 0, "c was released"
    assert audited(store) == []
    report = verify(store, accountant, numbers="all")
    assert report.ok, report


def test_a_fixed_cohort_whose_rounds_are_all_voided_verifies(store: Store, accountant: Accountant) -> None:
    """The ledger itself states that nothing is spent then; a void before the last one must not."""
    open_cohort(
        store, name="watches", population=10_000, epsilon=3.0, delta=DELTA, policy="fixed", actor="tester"
    )
    names = ("first", "second")
    for name in names:
        decide(store, accountant, name, LARGE)
    for name in names:
        void(store, accountant, name, reason="nothing was released", actor="tester")
    assert budget(store, accountant, "watches").epsilon_spent_upper == 0.0
    assert verify(store, accountant, numbers="all").ok
    assert audited(store) == []
