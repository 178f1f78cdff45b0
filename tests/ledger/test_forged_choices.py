"""Which filters were chosen, and what was counted, is checked from the bundle alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.decisions import admit, open_cohort, register
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.findings import Finding
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import EntryBody
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url
from tests.ledger.test_adaptive import rewrite
from tests.ledger.test_repetition import DELTA, EPSILON, HEAVY, MOST

AUDITOR = Accountant()  # another one than the ledger's
pytestmark = pytest.mark.usefixtures("remembered_second_opinions")
database_url = sqlite_url  # an entry has the same bytes in every database


@pytest.fixture
def watches(store: Store, accountant: Accountant, make_request: Callable[..., RoundRequest]) -> Store:
    """Return a ledger with an adaptive cohort of three rounds, the first of which chose to be counted."""
    opened = {"population": 10**6, "epsilon": EPSILON, "delta": DELTA, "policy": "adaptive"}
    open_cohort(store, name="watches", actor="tester", **opened)  # type: ignore[arg-type]  # as it says
    for number in range(3):
        register(store, make_request(f"r{number}", cohort="watches", **HEAVY), actor="tester")
        admit(store, accountant, f"r{number}")
    return store


FORGERIES = {
    "kind": "the round it is about",
    "other kind": "does not follow",
    "certified": "computed again",
    "more certified": "computed again",
    "units": "does not follow",
    "free": "too small",
    "set": "parameters choose",
    "none": "does not follow",
    "twice": "for the first round alone",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FORGERIES)
def test_forged_choices_are_found_from_the_bundle_alone(
    watches: Store, accountant: Accountant, what: str
) -> None:
    assert not audited(watches)
    sequence = 3 if what in ("other kind", "none", "twice", "units", "free") else 2
    rewrite(watches, sequence, lambda body: forged(body, what))
    found = audited(watches)
    assert any(each.sequence == sequence and FORGERIES[what] in each.what for each in found), found
    assert not verify(watches, accountant).ok


def audited(store: Store) -> tuple[Finding, ...]:
    return verify_bundle(make_bundle(store, ["watches"]).data, AUDITOR, numbers="all").findings


def forged(body: EntryBody, what: str) -> EntryBody:
    details: dict[str, Any] = dict(body.details)
    standing = dict(details["standing"])
    chosen = dict(standing["choice"])
    repetition = dict(chosen["repetition"])
    if what in ("kind", "other kind"):
        repetition["kind"] = {**repetition["kind"], "reports": 100}
    if what == "certified":
        repetition["certified"] = [[count, epsilon * 0.99] for count, epsilon in repetition["certified"]]
    if what == "more certified":
        repetition["certified"] = [*repetition["certified"], [MOST + 1, EPSILON]]
    chosen["repetition"] = repetition
    if what == "set":
        chosen = {"alternative": 0, "repetition": None}
        for mapping in (details, standing):
            part = "charge" if mapping is details else "charged"
            mapping[part] = {name: each for name, each in mapping[part].items() if name != "repetition"}
    standing["choice"] = chosen
    if what == "none":
        del standing["choice"]
    if what == "units":
        standing["charged"] = {**standing["charged"], "repetition": ["1"]}
    if what == "free":  # a round that is not counted
        details["charge"] = {**details["charge"], "repetition": ["0"]}
        standing["charged"] = {**standing["charged"], "repetition": ["1"]}
    if "choice" in details or what == "twice":
        details["choice"] = chosen
    return dataclasses.replace(body, details={**details, "standing": standing})
