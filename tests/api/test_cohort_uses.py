"""A server's memory of all cohorts is true at every moment, and read again only where entries were added."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.access import AccessToken, issue
from shuffle_ledger.ledger.api import cohort_uses as module
from shuffle_ledger.ledger.api.cohort_uses import CohortUses
from shuffle_ledger.ledger.decisions import open_cohort, record_incident, register_and_admit, set_quota
from shuffle_ledger.ledger.decisions.windows import placed
from shuffle_ledger.ledger.reports.listing import CohortUse, HeadCount, head_counts
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import CohortStatus, RoundRequest
from shuffle_ledger.ledger.values.windows import Window
from tests.api.conftest import listed

SHARES = (0.1, 0.5, 1.0)
KIND = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=1)"), reports=20_000)
LARGE = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=9)"), reports=2)


def token(store: Store, *cohorts: str) -> AccessToken:
    """Return a reader's token, limited to some cohorts if they are named."""
    return issue(store, name="ada", role="reader", actor="x", cohorts=cohorts or None).issued


def opened(store: Store, name: str) -> None:
    open_cohort(store, name=name, population=100_000, epsilon=1.0, delta=1e-6, policy="adaptive", actor="x")


def everything(uses: CohortUses, bearer: AccessToken) -> tuple[Any, ...]:
    return uses.totals(worst_max=3, shares=SHARES), uses.urgent(bearer, after="", limit=4)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Collection[str] | None]:
    """Return which heads were read, in order; None stands for all of them."""
    found: list[Collection[str] | None] = []

    def counted(store: Store, *, only: Collection[str] | None = None) -> list[HeadCount]:
        found.append(only)
        return head_counts(store, only=only)

    monkeypatch.setattr(module, "head_counts", counted)
    return found


@pytest.mark.slow
def test_what_was_followed_is_what_is_read_anew(any_store: Store) -> None:
    """Whatever happens, in any order."""
    accountant, chance = Accountant(precision=4e-3), random.Random(7)  # noqa: S311 - the same each time
    names = [f"c{number}" for number in range(6)]
    followed, bearer = CohortUses(any_store), token(any_store)
    refused: dict[str, int] = {}
    for number in range(30):
        for _ in range(chance.randrange(1, 4)):
            name = chance.choice(names)
            if not any_store.cohorts(only=[name]):
                opened(any_store, name)
            kind = LARGE if chance.random() < 0.3 else KIND
            request = RoundRequest(round_id=f"r{number}-{chance.random()}", cohort=name, round=kind)
            register_and_admit(any_store, accountant, request, actor="x")
        if number == 10:
            set_quota(any_store, cohort=name, team="ads", epsilon=0.5, reason="why", actor="x")
        if number == 20:
            record_incident(
                any_store, accountant, "c0", round_id="told", described=LARGE, reason="why", actor="x"
            )
        assert everything(followed, bearer) == everything(CohortUses(any_store), bearer)
        refused |= followed.take_refused()
    assert followed.urgent(bearer, after="", limit=9).alarming["overspent"] == ("c0",)
    assert refused == CohortUses(any_store).take_refused() != {}


@pytest.mark.slow
def test_only_heads_of_cohorts_that_moved_are_read(
    any_store: Store, asked: list[Collection[str] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    uses, bearer, accountant = CohortUses(any_store), token(any_store), Accountant(precision=4e-3)
    everything(uses, bearer)
    opened(any_store, "a")
    everything(uses, bearer)
    request = RoundRequest(round_id="r", cohort="phones", round=KIND)
    register_and_admit(any_store, accountant, request, actor="x")
    everything(uses, bearer)
    assert asked == [None, {"a"}, {"phones"}]
    monkeypatch.setattr(module, "MOVED_MAX", 1)
    for name in ("b", "c"):
        opened(any_store, name)
    found = uses.urgent(bearer, after="", limit=9)
    assert set(found.names) == {"a", "b", "c", "phones", "secret"}
    assert asked[3:] == [None]  # more entries than are followed


def test_a_database_that_was_put_back_is_read_whole(
    any_store: Store, asked: list[Collection[str] | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    uses, bearer = CohortUses(any_store), token(any_store)
    with monkeypatch.context() as before:  # there were more entries, which are gone
        before.setattr(module, "cursor_now", lambda _store: "999-0123456789abcdef")
        assert uses.urgent(bearer, after="", limit=9).names == ("phones", "secret")
    uses.totals(worst_max=3, shares=SHARES)
    assert asked == [None, None]
    uses.totals(worst_max=3, shares=SHARES)
    assert asked == [None, None]


def test_the_most_urgent_cohorts_are_first_for_those_who_see_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Overspent and frozen ones, then those that used the larger part of their budgets, then by name."""
    statuses: dict[str, CohortStatus] = {
        **dict.fromkeys(("a", "a@b", "half", "most", "part@1"), "open"), "lost": "frozen", "over": "overspent"
    }  # fmt: skip
    spent = {"half": 0.5, "most": 0.9, "over": 0.1}
    counts = [
        HeadCount(
            cohort=name, sequence=1, admitted=0, refused=0, status=status, is_part=name.startswith("part")
        )
        for name, status in statuses.items()
    ]
    made = {
        name: CohortUse(
            cohort=name, status="open", epsilon_budget=1.0, delta_budget=1e-6, epsilon_spent_upper=share
        )
        for name, share in spent.items()
    }
    uses = CohortUses(store)
    monkeypatch.setattr(module, "head_counts", lambda _store: counts)
    monkeypatch.setattr(module, "cohort_uses", lambda _store, only: made)
    monkeypatch.setattr(module, "FIRST_SEQUENCE", 0)
    monkeypatch.setattr(module, "moved_since", lambda *_, **__: (set(), None))
    found = uses.urgent(token(store), after="", limit=4)
    assert (found.names, found.more) == (("over", "lost", "most", "half"), True)
    assert found.alarming == {"overspent": ("over",), "frozen": ("lost",)}
    assert uses.urgent(token(store), after="half", limit=4).names == ("a", "a@b")
    limited = uses.urgent(token(store, "a", "over", "part"), after="most", limit=9)
    assert (limited.names, limited.more) == (("over", "a", "a@b"), False)
    assert limited.alarming == {"overspent": ("over",), "frozen": ()}
    assert not uses.urgent(token(store, "nothing"), after="", limit=9).any


def test_a_cohort_of_periods_is_as_urgent_as_the_worst_of_todays(store: Store) -> None:
    """When the period ends, it counts no more."""
    year = Window.from_text("per=year,epsilon=1,delta=1e-6")
    day, accountant, bearer = datetime.now(UTC).date(), Accountant(precision=4e-3), token(store)
    opened(store, "life")
    budgets: Any = {"epsilon": None, "delta": None, "windows": [year], "policy": "adaptive"}
    open_cohort(store, name="years", population=100_000, actor="x", **budgets)
    uses = CohortUses(store, today=lambda: day)
    asked = RoundRequest(round_id="r", cohort="years", round=KIND, collected_on=day)
    in_its_year = placed(asked, store.cohorts(only=["years"]))
    register_and_admit(store, accountant, in_its_year, actor="x")
    register_and_admit(store, accountant, replace(asked, round_id="s", cohort="life"), actor="x")
    shares = [one.promises[0].used_share for one in listed(store)]
    assert 0 < shares[0] == shares[-1] < 1  # so that names decide
    assert uses.urgent(bearer, after="", limit=2).names == ("life", "years")
    told: Any = {"round_id": "i", "described": LARGE, "reason": "lost", "actor": "x"}
    record_incident(store, accountant, "years", collected_on=day, **told)
    assert uses.urgent(bearer, after="", limit=2).names == ("years", "life")
    day = date(day.year + 1, 1, 1)
    assert uses.urgent(bearer, after="", limit=9).names == ("life", "phones", "secret", "years")
