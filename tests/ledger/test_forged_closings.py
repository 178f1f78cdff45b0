"""How a round of a plan was closed is checked from the bundle alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import admit, register, settle
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.machine import Charge, Cost, Total
from shuffle_ledger.ledger.policies.numbers import spelled
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody, EntryKind, Spending, loss_digest
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.desk import open_as_usual, rewrite
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


def placed(
    kind: int | None, accounted: ShuffledRound, claims: tuple[int, ...], *, fits: tuple[int, ...], **more: Any
) -> Mapping[str, Any]:
    charge = spelled(Charge(kind=kind, claimed=0, units=1))
    total = spelled(Total(claims=claims, unplaced=int(kind is None)))
    return {"accounted": accounted.to_mapping(), "charge": charge, "total": total, "fits": fits, **more}


# Each says that its round stands in another slot, with claims and numbers that fit; some, that it fits it.
FORGERIES = {
    "keeps its slot": placed(0, LARGE, (1, 0, 0), fits=(1, 2)),
    "is accounted as its slot": placed(1, LARGE, (0, 1, 0), fits=(1, 2)),
    "keeps its slot and says that it fits it": placed(0, LARGE, (1, 0, 0), fits=(0, 1, 2)),
    "takes a dearer slot": placed(2, OTHER, (0, 0, 1), fits=(1, 2)),
    "takes a dearer slot and fits no other": placed(2, OTHER, (0, 0, 1), fits=(2,)),
    "leaves the plan": placed(None, SMALL, (0, 0, 0), fits=(1, 2), overspent=True),
    "leaves the plan and fits nothing": placed(None, SMALL, (0, 0, 0), fits=(), overspent=True),
    "keeps its slot for more reports": placed(0, LARGE, (1, 0, 0), fits=(1, 2), reports=9_999),
}
SAID = (
    "fits other slots than it does",
    "details.charge",
    "details.accounted",
)


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
        standing = {**details["standing"], "total": change.pop("total")}
        cost = spelled(Cost(fits=change.pop("fits")))
        kind = ShuffledRound.from_mapping(change["accounted"])
        certificate = accountant.certify({kind: 1}, delta=DELTA)
        loss = accountant.privacy_loss(kind).to_bytes()
        spent = Spending.from_certificate(certificate, delta=DELTA)
        details |= {**change, "cost": cost, "standing": standing, "privacy_loss": loss_digest(loss).hex()}
        return dataclasses.replace(body, details=details, spent=spent)

    rewrite(store, 3, forge)
    assert any(said in what for said in SAID for what in audited(store)), audited(store)
    assert not verify(store, accountant).ok


@pytest.mark.parametrize("slot", [3, 2**70])
def test_a_slot_that_the_plan_does_not_have_is_found_and_keeps_no_other_cohort_waiting(
    store: Store, accountant: Accountant, slot: int
) -> None:
    open_planned(store, accountant, plan={LARGE: 1, SMALL: 1, OTHER: 1})
    open_as_usual(store, "zebras", delta=DELTA)
    decide(store, accountant, "a", LARGE)

    def forge(body: EntryBody) -> EntryBody:
        charge = {**body.details["charge"], "kind": slot, "claimed": slot}
        return dataclasses.replace(body, details={**body.details, "charge": charge})

    rewrite(store, 2, forge)
    said = "details.charge"
    assert any(said in what for what in audited(store)), audited(store)
    found = {each.cohort: each for each in verify(store, accountant).cohorts}
    assert any(said in each.what for each in found["watches"].problems)
    assert found["zebras"].ok
    verify_oldest(store, accountant, enough=lambda: False)
    noted = {name: each.problem for name, each in store.verifications().items()}
    assert noted["watches"] is not None
    assert noted["zebras"] is None


def test_a_refusal_without_a_reason_is_found(store: Store, accountant: Accountant) -> None:
    """The budget admits the round, by the numbers of the entry: what is charged must not be left out."""
    open_as_usual(store, "watches")
    for name in ("a", "b"):
        decide(store, accountant, name, LARGE)
    before = store.entry("watches", 2).content()

    def forge(body: EntryBody) -> EntryBody:
        change = {"standing": before.details["standing"], "reason": None, "message": "no"}
        details = {**body.details, **change}
        return dataclasses.replace(body, kind=EntryKind.REFUSED, spent=before.spent, details=details)

    rewrite(store, 3, forge)
    assert any("refuses a round that the budget admits" in what for what in audited(store)), audited(store)
