"""Chains with closings by older rules: they hold, and what is closed from now on follows the present rules.

`chains` holds their bodies as numerical policy 20 wrote them: a settlement that put the truth in its slot's
place in the whole plan, and a void of policy `fixed` that gave back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant
from shuffle_ledger.accounting.certificate import is_known_policy
from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.decisions import settle, void
from shuffle_ledger.ledger.evidence.recomputation import Recomputation
from shuffle_ledger.ledger.recovery.restore_entries import recover
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.storage.rows import StoredHead
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.entries import GENESIS_DIGEST, EntryBody, LedgerEntry
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.verification.replay import Replay
from shuffle_ledger.ledger.verification.verifier import verify
from tests.conftest import sqlite_url

CHAINS = Path(__file__).parent / "chains"
CLOSED_BY = {"fixed_that_gave_back": "voided", "plan_that_changed": "settled"}  # by which rule they differ
database_url = sqlite_url  # an entry has the same bytes in every database


@pytest.fixture(params=list(CLOSED_BY))
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a chain."""
    return str(request.param)


@dataclass
class Kept:
    """A chain that was kept elsewhere."""

    bodies: list[EntryBody]

    @classmethod
    def read(cls, name: str) -> Kept:
        lines = (CHAINS / f"{name}.jsonl").read_bytes().splitlines()
        bodies = [EntryBody.from_bytes(line) for line in lines]
        assert [body.to_bytes() for body in bodies] == lines
        return cls(bodies)

    def cohorts(self) -> list[str]:
        return ["watches"]

    def entries_of(self, cohort: str, /) -> Iterator[LedgerEntry]:
        digest = GENESIS_DIGEST
        for body in self.bodies:
            entry = LedgerEntry.following(digest, body)
            digest = entry.digest
            yield entry

    def changed(self, which: Callable[[EntryBody], bool]) -> Kept:
        """Return the chain with the present numerical policy in some entries."""
        now = self.named(NUMERICAL_POLICY).bodies
        return Kept([new if which(body) else body for body, new in zip(self.bodies, now, strict=True)])

    def named(self, numerical_policy: str) -> Kept:
        """Return the chain with another numerical policy in all entries, wherever they name it."""
        old, new = f'"{self.bodies[0].numerical_policy}"', f'"{numerical_policy}"'
        lines = [body.to_bytes().replace(old.encode(), new.encode()) for body in self.bodies]
        return Kept([EntryBody.from_bytes(line) for line in lines])


def found_in(chain: Kept, accountant: Accountant) -> list[str]:
    replay = Replay(store=chain, cohort="watches")
    recomputation = Recomputation(accountant, "all", len(chain.bodies))
    for step in replay.steps():
        recomputation.see(step, replay.trail)
    recomputation.finish(lambda done, of: None)
    return [each.what for each in replay.problems] + [what for _, what in recomputation.problems]


@pytest.mark.slow
def test_a_chain_of_before_holds_with_every_number(accountant: Accountant, name: str) -> None:
    assert found_in(Kept.read(name), accountant) == []


def test_the_rules_of_before_are_those_of_all_policies_from_the_first_known_one_to_20(name: str) -> None:
    for number in range(100):
        policy = f"shuffle-ledger-numerics-{number}"
        if is_known_policy(policy):
            replay = Replay(store=Kept.read(name).named(policy), cohort="watches")
            list(replay.steps())
            assert bool(replay.problems) is (number > 20), policy


@pytest.mark.slow
def test_closings_that_follow_an_entry_of_now_are_judged_by_the_rules_of_now(
    accountant: Accountant, name: str
) -> None:
    chain, kind = Kept.read(name), CLOSED_BY[name]
    assert found_in(chain.changed(lambda body: body.kind == kind), accountant)
    # A forger who names older rules for a closing must name them from the beginning.
    assert found_in(chain.changed(lambda body: body.sequence == 1), accountant)


def test_a_cohort_of_before_goes_on_by_the_rules_of_now(
    store: Store, accountant: Accountant, name: str
) -> None:
    chain = Kept.read(name)
    *_, last = chain.entries_of("watches")
    head = StoredHead(cohort="watches", sequence=last.sequence, digest=last.digest)
    checkpoint = sign_standing(dataclasses.replace(store.standing(), heads=(head,)), SigningKey.generate())
    recover(store, checkpoint, chain, reason="kept elsewhere", actor="tester")
    before = budget(store, accountant, "watches")
    if before.policy == "fixed":
        void(store, accountant, "last", reason="never released", actor="tester")
        after = budget(store, accountant, "watches")
        assert after.epsilon_spent_upper == before.epsilon_spent_upper
    else:
        assert settle(store, accountant, "last", reports=15_000, actor="tester").overspent
        after = budget(store, accountant, "watches")
        assert after.epsilon_promised_upper == before.epsilon_promised_upper
    report = verify(store, accountant, numbers="all")
    assert report.ok, report
