"""A rehearsal of rounds says the same as the decisions about them afterwards, in every kind of budget."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger.decisions import (
    close_cohort,
    open_cohort,
    open_many,
    register_and_admit,
    set_quota,
)
from shuffle_ledger.ledger.decisions.quoting import rehearse
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Cohort, Outcome, Quote, RoundRequest
from shuffle_ledger.ledger.values.windows import Window

pytestmark = pytest.mark.policies

PRECISION = 1e-2
WEEK = Window(unit="week", epsilon=0.12, delta=1e-7)
DAYS = Window(unit="day", sliding=3, epsilon=0.1, delta=1e-7, local_budget=5.0)
# Open before the rehearsal, with what they are opened with.
OPEN: dict[str, dict[str, Any]] = {
    "life": {"epsilon": 0.2, "delta": 1e-7},
    "windows": {"epsilon": 0.3, "delta": 1e-7, "windows": (WEEK, DAYS)},
    "week": {"windows": (WEEK,)},
    "users": {"epsilon": 0.1, "delta": 1e-7, "rounds_per_user": 2},
    "local": {"epsilon": 9.0, "delta": 1e-7, "local_budget": 3.0, "approximate_share": 0.1},
}
# Opened by what is rehearsed.
NEW = [
    Cohort(name="new", population=10**6, epsilon_budget=0.1, delta_budget=1e-7, policy="adaptive"),
    Cohort(
        name="new-days",
        population=10**6,
        epsilon_budget=0.2,
        delta_budget=1e-7,
        policy="adaptive",
        windows=(DAYS, WEEK),
    ),
]
KINDS = [
    ShuffledRound.from_mapping({"randomizer": randomizer, **more})
    for randomizer, more in (
        ("krr(k=4, epsilon0=1)", {"reports": 9_000}),
        ("krr(k=4, epsilon0=2)", {"reports": 20_000}),
        ("krr(k=4, epsilon0=1)", {"reports": 3_011, "reports_per_user": 3}),
        ("generic(epsilon0=1)", {"reports": 9_000, "delta0": 1e-14}),
    )
]
SMALL = KINDS[0]
ROUNDS = st.tuples(
    st.sets(st.sampled_from([*OPEN, "planned", *(cohort.name for cohort in NEW)]), min_size=1, max_size=3),
    st.sampled_from(KINDS),
    st.sampled_from([None, "maps"]),
    st.integers(0, 9),  # days until the collection begins
    st.integers(0, 2),  # days until it ends
)
Round = tuple[set[str], ShuffledRound, str | None, int, int]


def asked(rounds: Sequence[Round], today: date, name: str) -> list[RoundRequest]:
    requests = []
    for number, (names, kind, team, begins, lasts) in enumerate(rounds):
        first = today + timedelta(days=begins)
        requests.append(
            RoundRequest(
                round_id=f"{name}-{number}",
                cohort=min(names),
                audience=tuple(sorted(names)) if len(names) > 1 else (),
                round=kind,
                team=team,
                collected_on=first,
                collected_until=first + timedelta(days=lasts) if lasts else None,
            )
        )
    return requests


def opened(store: Store, accountant: Accountant) -> None:
    usual: dict[str, Any] = {"population": 10**6, "policy": "adaptive", "actor": "ada"}
    for name, more in OPEN.items():
        open_cohort(store, name=name, **{**usual, **more})
    plan: dict[str, Any] = {"policy": "plan", "plan": {SMALL: 3}, "accountant": accountant}
    open_cohort(store, name="planned", epsilon=9.0, delta=1e-7, **{**usual, **plan})
    for name in ("life", "windows"):
        set_quota(store, name, team="maps", epsilon=0.09, reason="a part", actor="ada")


def agrees(quote: Quote, outcome: Outcome) -> None:
    assert quote.would_be == ("admitted" if isinstance(outcome, Admitted) else "refused"), outcome
    assert quote.epsilon_remaining == outcome.epsilon_remaining
    if isinstance(outcome, Admitted):
        if not outcome.audience:
            assert quote.accounted == outcome.accounted
            assert quote.epsilon_requested_upper == outcome.epsilon_spent_upper
        return
    assert (quote.reason, quote.message) == (outcome.reason, outcome.message)
    assert quote.refused_by == outcome.refused_by
    if not outcome.refused_by:
        assert quote.epsilon_requested_upper == outcome.epsilon_requested_upper
        assert quote.epsilon_spent_upper == outcome.epsilon_spent_upper


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    before=st.lists(ROUNDS, max_size=4),
    closed=st.sampled_from([None, "users", "week"]),
    then=st.lists(ROUNDS, min_size=3, max_size=14),
)
def test_a_rehearsal_says_what_is_then_decided_and_writes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    before: list[Round],
    closed: str | None,
    then: list[Round],
) -> None:
    folder, accountant = tmp_path_factory.mktemp("rehearsal"), Accountant(precision=PRECISION)
    shutil.copy(sqlite_template, folder / "ledger.db")
    with Store.connect(f"sqlite:///{folder / 'ledger.db'}") as store:
        opened(store, accountant)
        today = store.view("life").now.date()
        known = [one for one in before if not one[0] & {cohort.name for cohort in NEW}]
        for request in asked(known, today, "before"):
            register_and_admit(store, accountant, request, actor="ada")
        if closed is not None:
            close_cohort(store, closed, reason="not needed", actor="ada")
        requests, heads = asked(then, today, "then"), store.heads()
        quotes = list(rehearse(store, accountant, requests, NEW))
        assert store.heads() == heads
        open_many(store, NEW, actor="ada")
        for quote, request in zip(quotes, requests, strict=True):
            agrees(quote, register_and_admit(store, accountant, request, actor="ada")[0])
