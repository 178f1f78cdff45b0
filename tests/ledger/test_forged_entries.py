"""Evidence forged by its owner: changed bodies, chains linked anew, heads signed anew by the right key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant
from shuffle_ledger.ledger.decisions import decide, register, settle
from shuffle_ledger.ledger.evidence.bundle import BundleMade, make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.policies.numbers import spelled
from shuffle_ledger.ledger.policies.registry import policy_of
from shuffle_ledger.ledger.storage.rows import EntryDraft
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.clerk import decided, open_as_usual, trust_any_clock
from tests.ledger.test_bundles import forged

MakeRequest = Callable[..., RoundRequest]
AUDITOR = Accountant()  # another one than the ledger's
POLICY = "shuffle-ledger-numerics-"
database_url = sqlite_url  # an entry has the same bytes in every database


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def settled(store: Store, accountant: Accountant, make_request: MakeRequest, key: SigningKey) -> BundleMade:
    """Return the evidence of a round of 60,000 reports of which 100 arrived: entry 3 is its settlement."""
    open_as_usual(store, "phones")
    decided(store, accountant, make_request("a", reports=60_000))
    settle(store, accountant, "a", reports=100, actor="tester")
    return make_bundle(store, ["phones"], signing_key=key)


def found(data: bytes, numbers: str = "none") -> list[tuple[int | None, str]]:
    report = verify_bundle(data, AUDITOR, numbers=numbers)  # type: ignore[arg-type]  # one of the three
    assert report.signature == "valid"
    return [(each.sequence, each.what) for each in report.findings]


def accounted_as_if_complete(sequence: int, body: dict[str, Any]) -> None:
    """Charge 100 reports as the 59,473 that were reserved; every other number fits."""
    if sequence == 3:
        before = body["details"]["accounted_before"]
        assert before["reports"] == 59_473
        body["details"].update(accounted=before, privacy_loss=LOSS[0], overspent=False)
        body["spent"] = SPENT[0]
    elif sequence == 2:
        LOSS[:], SPENT[:] = [body["details"]["privacy_loss"]], [body["spent"]]


LOSS: list[Any] = []
SPENT: list[Any] = []


@pytest.mark.slow
def test_a_settlement_is_charged_for_its_reports(settled: BundleMade, key: SigningKey) -> None:
    assert found(settled.data, "all") == []
    lie = forged(settled.data, accounted_as_if_complete, signer=key)
    assert (3, "details.accounted.reports does not follow from the entries before it") in found(lie)


@pytest.mark.parametrize("reports", [0, 100.0, None])
def test_a_settlement_has_a_number_of_reports(settled: BundleMade, key: SigningKey, reports: object) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        accounted_as_if_complete(sequence, body)
        if sequence == 3:
            body["details"]["reports"] = reports

    assert [sequence for sequence, _ in found(forged(settled.data, change, signer=key))] == [3]


@pytest.mark.parametrize("name", [f"{POLICY}26", f"{POLICY}020", 7])
def test_a_foreign_numerical_policy_switches_no_check_off(
    settled: BundleMade, key: SigningKey, name: object
) -> None:
    """Neither the slot of what was declared, nor that of what was settled; and it is a finding by itself."""

    def change(sequence: int, body: dict[str, Any]) -> None:
        body["numerical_policy"] = name
        accounted_as_if_complete(sequence, body)
        if sequence == 2:
            body["details"]["request"]["round"]["reports"] = 500

    answer = found(forged(settled.data, change, signer=key))
    assert {sequence for sequence, _ in answer} == {1, 2, 3}
    if isinstance(name, str):
        assert (2, "details.accounted.reports does not follow from the entries before it") in answer
        assert (3, "details.accounted.reports does not follow from the entries before it") in answer


def later(moment: str, hours: int) -> str:
    changed = datetime.fromisoformat(moment) + timedelta(hours=hours)
    return changed.isoformat(timespec="microseconds")


def test_time_never_goes_backwards(settled: BundleMade, key: SigningKey) -> None:
    def recorded(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 3:
            body["recorded_at"] = later(body["recorded_at"], -1)

    def registered(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 2:
            body["details"]["registered_at"] = later(body["recorded_at"], 1)

    for change, place in ((recorded, 3), (registered, 2)):
        ((sequence, what),) = found(forged(settled.data, change, signer=key))
        assert (sequence, "time goes backwards" in what) == (place, True)


def test_a_clock_that_is_set_back_sets_no_entry_back(
    store: Store, accountant: Accountant, make_request: MakeRequest
) -> None:
    """The database's clock, an hour behind from the second round on: entries keep the last known moment."""
    open_as_usual(store, "phones")
    register(store, make_request("a"), actor="tester")
    trust_any_clock(store)
    views = store.view_of_round("a")
    assert isinstance(views, list)
    view = views[0]
    assert view.round is not None
    early = dataclasses.replace(view, at=view.at - timedelta(hours=1))
    draft = decide.drafts(store, accountant, [early], [view.round], make_request("a"))[0]
    entry = store.append(early, draft)
    assert entry.content().recorded_at >= view.round.registered_at
    after = store.view("phones")
    rebudgeted = policy_of(store, after).rebudgeted(after, 2.0)
    changed = EntryDraft(
        kind=EntryKind.BUDGET_CHANGED,
        round_id=None,
        actor="tester",
        numerical_policy=NUMERICAL_POLICY,
        spent=rebudgeted.spent,
        details={"reason": "as agreed", "epsilon_before": 1.0, **rebudgeted.details},
        epsilon_budget=2.0,
    )
    store.append(dataclasses.replace(after, at=after.at - timedelta(hours=1)), changed)
    assert verify(store, accountant).ok


@pytest.mark.parametrize("version", [1.0, 2])
def test_no_other_value_passes_for_the_version(settled: BundleMade, key: SigningKey, version: object) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 2:
            body["version"] = version

    assert (2, "the body cannot be read: an entry body of an unknown version") in found(
        forged(settled.data, change, signer=key)
    )


def test_a_sequence_is_a_whole_number(settled: BundleMade, key: SigningKey) -> None:
    def change(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 2:
            body["sequence"] = 2.0

    assert (2, "its sequence is no whole number") in found(forged(settled.data, change, signer=key))


@pytest.mark.parametrize("is_honest", [True, False])
def test_a_promise_that_stays_above_a_smaller_budget_is_found(
    store: Store, accountant: Accountant, make_request: MakeRequest, *, is_honest: bool
) -> None:
    """Statements say that the budget is what is promised."""
    open_as_usual(store, "phones")
    decided(store, accountant, make_request("a"))
    view = store.view("phones")
    policy = policy_of(store, view)
    lowered = policy.rebudgeted(view, 0.9)
    stated = dict(lowered.details["standing"])
    if not is_honest:
        stated["limits"] = {**stated["limits"], "promise": spelled(policy.limits.promise)}
    draft = EntryDraft(
        kind=EntryKind.BUDGET_CHANGED,
        round_id=None,
        actor="tester",
        numerical_policy=NUMERICAL_POLICY,
        spent=lowered.spent,
        details={"reason": "less", "epsilon_before": 1.0, "standing": stated},
        epsilon_budget=0.9,
    )
    store.append(view, draft)
    assert verify(store, accountant).ok == is_honest
