"""Joint rounds against an independent model: a ledger in which every cohort is asked by itself.

There a round is registered in each of its cohorts only if each of them would admit it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    correct,
    open_cohort,
    quote,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.verification.verifier import verify


def krr(epsilon0: float, reports: int) -> ShuffledRound:
    return ShuffledRound(
        randomizer=parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0}), reports=reports
    )


KINDS = (krr(2.0, 20_000), krr(2.0, 5_000), krr(1.0, 1_000))
NARROW: Mapping[str, Any] = {"epsilon": 0.2, "delta": 1e-6, "policy": "adaptive"}
COHORTS: Mapping[str, Mapping[str, Any]] = {
    "a": {"epsilon": 0.5, "delta": 1e-6, "policy": "adaptive"},
    "b": NARROW,
    "c": {"epsilon": 1.0, "delta": 1e-6, "policy": "plan", "plan": {KINDS[0]: 2, KINDS[1]: 1}},
    "d": {"epsilon": 0.3, "delta": 1e-9, "policy": "adaptive"},
}
ACTS = ("ask", "ask", "ask", "settle", "void", "correct")
MOVES = st.lists(
    st.tuples(
        st.sampled_from(ACTS),
        st.sets(st.sampled_from(sorted(COHORTS)), min_size=1),
        st.integers(0, len(KINDS) - 1),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=9,
)


class Ledgers:
    """The ledger, and the model's: one round there is a round of the same name in each cohort."""

    def __init__(self, folder: Path, template: Path, accountant: Accountant) -> None:
        self.accountant = accountant
        self.stores = []
        for name in ("ours", "model"):
            shutil.copy(template, folder / name)
            self.stores.append(Store.connect(f"sqlite:///{folder / name}"))
        self.admitted: list[tuple[str, tuple[str, ...]]] = []
        for store in self.stores:
            for name, opened in COHORTS.items():
                open_cohort(store, accountant=accountant, name=name, population=10**6, actor="ada", **opened)

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def ask(self, name: str, audience: tuple[str, ...], described: ShuffledRound) -> None:
        ours, model = self.stores
        joint = audience if len(audience) > 1 else ()
        request = RoundRequest(round_id=name, cohort=audience[0], audience=joint, round=described)
        outcome = register_and_admit(ours, self.accountant, request, actor="ada")[0]
        singles = [
            RoundRequest(round_id=f"{name} of {cohort}", cohort=cohort, round=described)
            for cohort in audience
        ]
        would_be = {quote(model, self.accountant, single).would_be for single in singles}
        assert isinstance(outcome, Admitted) == (would_be == {"admitted"})
        if isinstance(outcome, Admitted):
            for single in singles:
                answer = register_and_admit(model, self.accountant, single, actor="ada")[0]
                assert isinstance(answer, Admitted)
            self.admitted.append((name, audience))

    def tell(self, act: str, which: int, kind: ShuffledRound) -> None:
        """Settle, void or correct one of the admitted rounds: in the model in each cohort by itself."""
        if not self.admitted:
            return
        name, audience = self.admitted[which % len(self.admitted)]
        pairs = [(self.stores[0], name), *((self.stores[1], f"{name} of {cohort}") for cohort in audience)]
        for store, round_id in pairs:
            if act == "settle":
                settle(store, self.accountant, round_id, reports=kind.reports, actor="ada")
            elif act == "void":
                void(store, self.accountant, round_id, reason="cancelled", actor="ada")
            else:
                changes = {"reports": kind.reports}
                correct(store, self.accountant, round_id, changes, reason=f"log {which}", actor="ada")
        if act in ("settle", "void"):
            self.admitted.remove((name, audience))

    def compare(self) -> None:
        for name in COHORTS:
            ours, model = (store.view(name) for store in self.stores)
            assert (ours.spent, ours.held, ours.cohort.status) == (
                model.spent,
                model.held,
                model.cohort.status,
            )
            assert ours.details.get("standing") == model.details.get("standing")


@pytest.fixture
def made(sqlite_template: Path, accountant: Accountant, tmp_path: Path) -> Iterator[Any]:
    opened: list[Ledgers] = []

    def make() -> Ledgers:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        opened.append(Ledgers(folder, sqlite_template, accountant))
        return opened[-1]

    yield make
    for ledgers in opened:
        ledgers.close()


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(moves=MOVES)
def test_a_round_is_admitted_if_and_only_if_every_cohort_would(made: Any, moves: list[Any]) -> None:
    ledgers = made()
    for number, (act, names, kind, which) in enumerate(moves):
        if act == "ask":
            ledgers.ask(f"round-{number}", tuple(sorted(names)), KINDS[kind])
        else:
            ledgers.tell(act, which, KINDS[kind])
        ledgers.compare()
    assert verify(ledgers.stores[0], ledgers.accountant).ok
