"""How a round of a plan was closed is checked from the bundle alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import admit, open_cohort, register, settle
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.health import verify_oldest
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
