"""Cohorts opened by the rules that policy `adaptive` had before: they hold, and go on.

`chains` holds the bodies of such chains as they were written: with one set of filters, with a menu of sets,
and with a sliding reserve; in the last one charges pay for a round's local delta. None has accounts of delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, FilterMenu
from shuffle_ledger.ledger.decisions import admit, change_budget, open_cohort, register, settle, void
from shuffle_ledger.ledger.evidence.recomputation import Recomputation
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import GENESIS_DIGEST, EntryBody, LedgerEntry
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.verification.replay import Replay
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url

CHAINS = Path(__file__).parent / "chains"
database_url = sqlite_url  # an entry has the same bytes in every database


@pytest.fixture(params=["one_set_of_filters", "menu_of_filters", "sliding_reserve"])
def lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Return the bodies of a chain."""
    return (CHAINS / f"{request.param}.jsonl").read_bytes().splitlines()


@pytest.fixture
def bodies(lines: list[bytes]) -> list[EntryBody]:
    """Return the same, read."""
    return [EntryBody.from_bytes(line) for line in lines]


@dataclass
class Kept:
    """The chain as it was written."""

    lines: list[bytes]

    def entries_of(self, cohort: str) -> Iterator[LedgerEntry]:
        digest = GENESIS_DIGEST
        for line in self.lines:
            entry = LedgerEntry.following(digest, EntryBody.from_bytes(line))
            assert (entry.body, entry.cohort) == (line, cohort)
            digest = entry.digest
            yield entry


@pytest.mark.slow
def test_a_chain_of_before_holds_with_every_number(accountant: Accountant, lines: list[bytes]) -> None:
    replay = Replay(store=Kept(lines), cohort="watches")
    recomputation = Recomputation(accountant, "all", len(lines))
    for step in replay.steps():
        recomputation.see(step, replay.trail)
    checks = recomputation.finish(lambda done, of: None)
    assert (replay.problems, recomputation.problems) == ([], [])
    assert len(checks) == len(lines)
    assert replay.trail.filters is not None
    assert replay.trail.filters.total.account == ()
    assert replay.trail.delta_accounts() is None


def shape(value: Any) -> Any:
    """Returns the structure of a value, without its numbers and times."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [shape(each) for each in value]
    return type(value)


def test_a_cohort_of_before_goes_on_writing_what_it_wrote(
    store: Store, accountant: Accountant, monkeypatch: pytest.MonkeyPatch, bodies: list[EntryBody]
) -> None:
    rules = FilterMenu.from_mapping(bodies[0].details["rules"])
    with monkeypatch.context() as before:
        before.setattr(FilterMenu, "for_budget", lambda **_: rules)
        opened: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": "adaptive"}
        open_cohort(store, name="watches", actor="tester", **opened)
    asked = {body.round_id: body for body in bodies if "request" in body.details}

    def decide(name: str) -> None:
        register(
            store, RoundRequest.from_bytes(canonical.encode(asked[name].details["request"])), actor="tester"
        )
        admit(store, accountant, name)

    steps: list[Callable[[], object]] = [
        lambda: decide("heavy"),
        lambda: decide("regular"),
        lambda: decide("hopeless"),
        lambda: settle(store, accountant, "regular", reports=9_000, actor="tester"),
        lambda: void(store, accountant, "heavy", reason="never released", actor="tester"),
        lambda: change_budget(store, accountant, "watches", epsilon=0.8, reason="as agreed", actor="owner"),
        lambda: decide("after"),
    ]
    for step in steps:
        step()
    made = [entry.content() for entry in store.entries_of("watches")]
    for now, then in zip(made, bodies, strict=True):
        assert (now.kind, now.round_id) == (then.kind, then.round_id)
        assert shape(now.details) == shape(then.details)
    assert made[0].details == bodies[0].details
    assert verify(store, accountant, numbers="all").ok
