"""Cohorts in the order of urgency, for the tokens that see them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.access import AccessToken, issue
from shuffle_ledger.ledger.decisions import open_cohort, record_incident, register_and_admit, set_quota
from shuffle_ledger.ledger.decisions.windows import placed
from shuffle_ledger.ledger.reports import urgency
from shuffle_ledger.ledger.reports.listing import round_counts
from shuffle_ledger.ledger.reports.urgency import urgent, used_at_least
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from tests.api.conftest import listed

TODAY = datetime.now(UTC).date()
KIND = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=20_000)
LARGE = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=9)"), reports=2)


def token(store: Store, *cohorts: str) -> AccessToken:
    """Return a reader's token, limited to some cohorts if they are named."""
    return issue(store, name="ada", role="reader", actor="x", cohorts=cohorts or None).issued


def opened(store: Store, name: str) -> None:
    open_cohort(store, name=name, population=100_000, epsilon=1.0, delta=1e-6, policy="adaptive", actor="x")


def test_the_most_urgent_cohorts_are_first_for_those_who_see_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overspent and frozen ones, then those that used the larger part of their budgets, then by name."""
    told = {
        "a": ("open", 0.0, None),
        "a@b": ("open", 0.0, None),
        "done": ("closed", 0.5, None),
        "half": ("open", 0.5, None),
        "lost": ("frozen", 0.0, None),
        "most": ("open", 0.1, 0.9),
        "Over": ("overspent", 0.1, None),
        "year": ("open", 0.1, math.inf),  # whose budget of this year is overspent
    }
    monkeypatch.setattr(urgency, "known_cohorts", lambda *_: [(name, *each) for name, each in told.items()])
    everyone = token(store)
    found = urgent(store, everyone, TODAY, after="", limit=5)
    assert (found.names, found.more) == (("year", "Over", "lost", "most", "done"), True)
    assert found.alarming == {"overspent": ("Over", "year"), "frozen": ("lost",)}
    assert urgent(store, everyone, TODAY, after="half", limit=4).names == ("a", "a@b")
    assert urgent(store, everyone, TODAY, after="no such", limit=1).names == ("year",)
    assert urgent(store, everyone, TODAY, after="", limit=9, search="o").names == (
        "Over",
        "lost",
        "most",
        "done",
    )
    assert urgent(store, everyone, TODAY, after="done", limit=2, by_name=True).names == ("half", "lost")
    limited = urgent(store, token(store, "a", "Over", "part"), TODAY, after="most", limit=9)
    assert (limited.names, limited.more) == (("Over", "a", "a@b"), False)
    assert limited.alarming == {"overspent": ("Over",), "frozen": ()}
    assert not urgent(store, token(store, "nothing"), TODAY, after="", limit=9).any


def test_a_cohort_of_periods_is_as_urgent_as_the_worst_of_todays(any_store: Store) -> None:
    """When the period ends, it counts no more; parts are not listed by themselves."""
    store, accountant, bearer = any_store, Accountant(precision=4e-3), token(any_store)
    year = Window.from_text("per=year,epsilon=1,delta=1e-6")
    opened(store, "life")
    budgets: Any = {"epsilon": None, "delta": None, "windows": [year], "policy": "adaptive"}
    open_cohort(store, name="years", population=100_000, actor="x", **budgets)
    set_quota(store, cohort="life", team="ads", epsilon=0.5, reason="why", actor="x")
    asked = RoundRequest(round_id="r", cohort="years", round=KIND, collected_on=TODAY)
    in_its_year = placed(asked, store.cohorts(only=["years"]))
    register_and_admit(store, accountant, in_its_year, actor="x")
    register_and_admit(store, accountant, replace(asked, round_id="s", cohort="life"), actor="x")
    shares = [one.promises[0].used_share for one in listed(store)]
    assert 0 < shares[0] == shares[-1] < 1  # so that names decide
    assert urgent(store, bearer, TODAY, after="", limit=2).names == ("life", "years")
    assert round_counts(store) == (2, 0), "a round that is charged to a period, too, counts once"
    assert used_at_least(store, TODAY, shares=(shares[0], 1.0)) == {shares[0]: 2, 1.0: 0}
    told: Any = {"round_id": "i", "described": LARGE, "reason": "lost", "actor": "x"}
    record_incident(store, accountant, "years", collected_on=TODAY, **told)
    assert urgent(store, bearer, TODAY, after="", limit=2).names == ("years", "life")
    over = date(TODAY.year + 1, 1, 1)
    assert urgent(store, bearer, over, after="", limit=9).names == ("life", "phones", "secret", "years")
