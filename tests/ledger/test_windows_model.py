"""Windows against an independent model: a ledger in which every budget is a cohort that is asked by itself.

The model knows the calendar from its own arithmetic. Weeks of rounds, late settlements, voids, corrections
and incidents must leave the same spending, holdings, standing and status in every chain.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    correct,
    open_cohort,
    quote,
    record_incident,
    register_and_admit,
    settle,
    void,
)
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify

DAY = timedelta(days=1)
KINDS = tuple(
    ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=reports)
    for reports in (20_000, 5_000, 1_000)
)
Budget = tuple[float, float]
# Of the last one, only its windows refuse: the model has no cohort for its life.
LIVES: Mapping[str, Budget] = {"a": (0.5, 1e-6), "b": (1.0, 1e-6), "c": (0.7, 1e-9), "d": (0.01, 1e-6)}
WINDOWS: Mapping[str, tuple[Window, ...]] = {
    "a": (Window(unit="week", epsilon=0.15, delta=1e-7),),
    "b": (
        Window(unit="day", sliding=3, epsilon=0.2, delta=1e-6),
        Window(unit="month", epsilon=0.4, delta=1e-6),
    ),
    "c": (),
    "d": (Window(unit="week", epsilon=0.1, delta=1e-7),),
}


def scopes_of(cohort: str, first: date, last: date) -> dict[str, Budget]:
    """Return the model's cohorts for a round, with their budgets: by enumeration of days, not by our code."""
    days = [first + n * DAY for n in range((last - first).days + 1)]
    found = {cohort: LIVES[cohort]} if cohort != "d" else {}
    if cohort == "d":
        found |= {f"d week {(day - date(1970, 1, 5)).days // 7}": (0.1, 1e-7) for day in days}
    if cohort == "a":
        found |= {f"a week {(day - date(1970, 1, 5)).days // 7}": (0.15, 1e-7) for day in days}
    if cohort == "b":
        found |= {f"b month {day:%Y-%m}": (0.4, 1e-6) for day in days}
        found |= {f"b run {day - n * DAY}": (0.2, 1e-6) for day in days for n in range(3)}
    return found


class Ledgers:
    """The ledger, and the model's: one round there is a round of the same name in each budget."""

    def __init__(self, folder: Path, template: Path, accountant: Accountant) -> None:
        self.accountant = accountant
        for name in ("ours", "model"):
            shutil.copy(template, folder / name)
        self.ours, self.model = (Store.connect(f"sqlite:///{folder / name}") for name in ("ours", "model"))
        for name, (epsilon, delta) in LIVES.items():
            self._open(self.ours, name, epsilon, delta, WINDOWS[name])
        self.admitted: dict[str, list[str]] = {}  # by the round, the model's budgets

    def _open(
        self, store: Store, name: str, epsilon: float, delta: float, windows: tuple[Window, ...] = ()
    ) -> None:
        values: dict[str, Any] = {
            "population": 10**6,
            "policy": "adaptive",
            "actor": "ada",
            "windows": windows,
        }
        budget: dict[str, Any] = (
            {"epsilon": epsilon, "delta": delta} if name != "d" or store is self.model else {}
        )
        open_cohort(store, name=name, **budget, **values)

    def _scopes(self, audience: tuple[str, ...], first: date, last: date) -> list[str]:
        found: dict[str, Budget] = {}
        for cohort in audience:
            found |= scopes_of(cohort, first, last)
        for name, budget in found.items():
            self._open(self.model, name, *budget)
        return sorted(found)

    def ask(self, name: str, audience: tuple[str, ...], kind: ShuffledRound, first: date, last: date) -> bool:
        joint = audience if len(audience) > 1 else ()
        days: dict[str, Any] = {"collected_on": first, "collected_until": last if last > first else None}
        request = RoundRequest(round_id=name, cohort=audience[0], audience=joint, round=kind, **days)
        outcome = register_and_admit(self.ours, self.accountant, request, actor="ada")[0]
        scopes = self._scopes(audience, first, last)
        singles = [RoundRequest(round_id=f"{name} of {each}", cohort=each, round=kind) for each in scopes]
        would_be = {quote(self.model, self.accountant, single).would_be for single in singles}
        assert isinstance(outcome, Admitted) == (would_be == {"admitted"}), outcome
        if isinstance(outcome, Admitted):
            for single in singles:
                answer = register_and_admit(self.model, self.accountant, single, actor="ada")[0]
                assert isinstance(answer, Admitted)
            self.admitted[name] = scopes
        return isinstance(outcome, Admitted)

    def tell(self, act: str, name: str, reports: int) -> None:
        """Settle, void or correct a round: in the model in each budget by itself."""
        scopes = self.admitted[name]
        for store, round_id in [(self.ours, name), *((self.model, f"{name} of {each}") for each in scopes)]:
            if act == "settle":
                settle(store, self.accountant, round_id, reports=reports, actor="ada")
            elif act == "void":
                void(store, self.accountant, round_id, reason="cancelled", actor="ada")
            else:
                correct(store, self.accountant, round_id, {"reports": reports}, reason="log", actor="ada")

    def leak(self, name: str, cohort: str, kind: ShuffledRound, day: date) -> None:
        told: dict[str, Any] = {"described": kind, "reason": "a script", "actor": "eve"}
        record_incident(self.ours, self.accountant, cohort, round_id=name, collected_on=day, **told)
        for each in self._scopes((cohort,), day, day):
            record_incident(self.model, self.accountant, each, round_id=f"{name} of {each}", **told)

    def compare(self) -> None:
        """Compare every chain of ours with that of its budget in the model."""
        for cohort in self.ours.cohorts():
            period = cohort.period
            name = cohort.name
            if period is not None and period.kind == "week":
                name = f"{period.cohort} week {(period.first - date(1970, 1, 5)).days // 7}"
            elif period is not None and period.kind == "month":
                name = f"{period.cohort} month {period.first:%Y-%m}"
            elif period is not None:
                name = f"{period.cohort} run {period.first}"
            if name == "d":
                assert cohort.status == "open"
                continue
            if name in LIVES and not self.model.cohorts(only=[name]):
                continue
            ours, model = self.ours.view(cohort.name), self.model.view(name)
            assert (ours.spent, ours.held) == (model.spent, model.held), cohort.name
            assert ours.cohort.status == model.cohort.status, cohort.name
            assert ours.details["standing"]["total"] == model.details["standing"]["total"], cohort.name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_every_budget_is_as_if_it_were_asked_by_itself(
    sqlite_template: Path, tmp_path: Path, accountant: Accountant, seed: int
) -> None:
    draw = random.Random(seed)  # noqa: S311 - draws of a test
    ledgers = Ledgers(tmp_path, sqlite_template, accountant)
    today = datetime.now(UTC).date()
    outcomes = []
    for number in range(45):
        first = today + draw.randrange(24) * DAY
        last = first + draw.choice((0, 0, 0, 1, 2)) * DAY
        audience = tuple(sorted(draw.sample(sorted(LIVES), draw.choice((1, 1, 2, 3)))))
        outcomes.append(ledgers.ask(f"round-{number}", audience, draw.choice(KINDS), first, last))
        if draw.random() < 0.3 and ledgers.admitted:
            name = draw.choice(sorted(ledgers.admitted))
            record = RoundRequest.from_bytes(ledgers.ours.round(name).content)
            acts = ["correct", "void"] + ["settle"] * (record.days is not None and record.days[0] <= today)
            act = draw.choice(acts)
            ledgers.tell(act, name, draw.choice((800, 4_000, 30_000)))
            if act != "correct":
                del ledgers.admitted[name]
            else:
                ledgers.admitted.pop(name)  # once is enough: the same correction again is no correction
        if number in (20, 40):
            ledgers.leak(f"leak-{number}", draw.choice(("a", "b")), KINDS[2], today - draw.randrange(9) * DAY)
    ledgers.compare()
    assert {True, False} == set(outcomes)
    assert verify(ledgers.ours, accountant).ok
    ledgers.ours.close()
    ledgers.model.close()
