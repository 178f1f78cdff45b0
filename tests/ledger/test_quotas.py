"""Quotas: a team's rounds are charged to them too, and they refuse by themselves; nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shuffle_ledger.accounting import share_of_budget
from shuffle_ledger.ledger.decisions import change_budget, price, quotas_of, set_quota
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.values.requests import Admitted, Quote, RefusalReason
from tests.ledger.clerk import Clerk, krr

pytestmark = pytest.mark.policies
ADS = "phones@team=ads"


@pytest.fixture
def phones(clerk: Clerk) -> Clerk:
    """Return a ledger with the cohort "phones"."""
    clerk.open()
    return clerk


def priced(clerk: Clerk, team: str) -> Quote:
    """Return what the answer to a team's next round would be."""
    return price(clerk.store, clerk.accountant, clerk.request(team=team))


def test_a_team_has_what_a_budget_of_its_quota_has_and_others_the_rest(phones: Clerk) -> None:
    phones.change(0.4)
    phones.quota("ads", 0.2)
    phones.open("alone", epsilon=0.2)
    phones.open("whole", epsilon=0.4)
    most, whole = phones.fill(None, "alone"), phones.fill(None, "whole")
    assert phones.fill(team="ads") == most < whole
    refused = phones.refusal(team="ads")
    assert refused.reason is RefusalReason.REFUSED_ELSEWHERE
    assert [each.cohort for each in refused.refused_by] == [ADS]
    assert "the quota of team ads" in str(priced(phones, "ads").message)
    assert phones.fill(team="maps") == whole - most, "a team without a quota has what is left of the cohort's"
    (reading,) = quotas_of(phones.store, "phones")
    assert (reading.team, reading.budget, reading.epsilon, reading.rounds) == ("ads", ADS, 0.2, most)
    assert reading.epsilon_used_upper <= 0.2
    assert reading.share == pytest.approx(share_of_budget(0.2, whole=0.4, delta=1e-6))
    phones.check()


def test_a_quota_changes_what_a_team_may_and_nothing_that_is_decided(phones: Clerk) -> None:
    first = phones.ask(team="ads", name="before")
    assert isinstance(first, Admitted)
    phones.quota("ads", 0.2)
    assert phones.ask(team="ads", name="before") == first, "it was registered before there was a quota"
    assert first.audience == ()
    one = phones.ask(team="ads", name="one")
    assert isinstance(one, Admitted)
    assert [member.cohort for member in one.audience] == ["phones", ADS]
    assert phones.ask(name="one") == one, "whose it is, is known"
    with pytest.raises(Conflict, match="team: stored ads, given maps"):
        phones.ask(team="maps", name="one")
    with pytest.raises(Conflict, match="other content"):
        phones.ask(krr(9_000), team="ads", name="one")
    phones.quota("ads", 0.01)
    assert not phones.admits(team="ads")
    assert phones.status(ADS) == "open"
    phones.quota("ads", 0.2)
    assert phones.admits(team="ads")
    phones.check()


@pytest.mark.slow
def test_settling_voiding_and_correcting_reach_the_quota_which_is_never_overspent(phones: Clerk) -> None:
    phones.quota("ads", 0.2)
    for name in ("a", "b"):
        assert phones.admits(team="ads", name=name)
    phones.void("b")
    assert quotas_of(phones.store, "phones")[0].rounds == 1
    before = quotas_of(phones.store, "phones")[0].epsilon_used_upper
    phones.settle("a", 5_000)
    assert quotas_of(phones.store, "phones")[0].epsilon_used_upper > before
    assert not phones.correct("a", reports=900).overspent
    (reading,) = quotas_of(phones.store, "phones")
    assert reading.epsilon_used_upper > reading.epsilon == 0.2
    assert reading.epsilon_remaining == 0
    assert phones.status(ADS) == phones.status() == "open"
    assert not phones.admits(team="ads")
    assert phones.admits(), "only the team has to wait"
    phones.quota("ads", 0.9)
    assert phones.admits(team="ads")
    phones.audit()


def test_a_quota_has_the_same_rules_where_its_budget_is_changed_as_that_of_a_cohort(phones: Clerk) -> None:
    phones.quota("ads", 0.2)
    values: dict[str, Any] = {"reason": "more", "actor": "eve"}
    with pytest.raises(InvalidValue, match="the cohort's own budget"):
        change_budget(phones.store, ADS, epsilon=1.5, **values)
    assert change_budget(phones.store, ADS, epsilon=0.9, **values).epsilon_budget == 0.9
    phones.check()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"team": "@"}, "letters, digits"),
        ({"team": "x" * 61}, "letters, digits"),
        ({"epsilon": 1.5}, "the cohort's own budget"),
        ({"epsilon": float("nan")}, "finite number above 0"),
        ({"reason": ""}, "reason"),
        ({"cohort": ADS}, "of which this is a part"),
    ],
)
def test_bad_quotas_are_refused(phones: Clerk, changes: dict[str, Any], match: str) -> None:
    phones.quota("ads", 0.2)
    values = {"cohort": "phones", "team": "maps", "epsilon": 0.2, "reason": "why", **changes}
    with pytest.raises(InvalidValue, match=match):
        set_quota(phones.store, actor="ada", **values)
    assert [each.team for each in quotas_of(phones.store, "phones")] == ["ads"]


def test_a_cohort_whose_name_leaves_no_room_for_a_quota_has_none(clerk: Clerk) -> None:
    name = "n" * 195
    clerk.open(name)
    assert clerk.admits(None, name, team="ads")
    with pytest.raises(InvalidValue, match="at most 0 characters"):
        clerk.quota("ads", 0.2, cohort=name)
    clerk.check()


def test_a_quota_is_no_cohort_and_promises_nothing(phones: Clerk) -> None:
    phones.quota("ads", 0.2)
    with pytest.raises(NotFound):
        phones.quota("ads", 0.2, cohort="nowhere")
    with pytest.raises(InvalidValue, match="a quota of one of its teams"):
        phones.ask(None, ADS)
    with pytest.raises(InvalidValue, match="without @"):
        phones.open("phones@team=maps")
    with pytest.raises(InvalidValue, match="a quota promises nothing"):
        phones.statement(ADS)
    assert [cohort.name for cohort in phones.store.cohorts(parts=False)] == ["phones"]
    assert phones.store.population(["phones", ADS]) == 100_000


def test_forecasts_and_quotes_of_a_quota_agree_with_what_is_admitted(phones: Clerk) -> None:
    phones.quota("ads", 0.15)
    (kind,) = phones.forecast(ADS).kinds
    assert phones.fill(team="ads") >= kind.rounds_at_least > 0
    assert priced(phones, "ads").would_be == "refused"
    assert priced(phones, "maps").would_be == "admitted"
    assert phones.quote(phones.request(name="round-0")).would_be == "admitted"


@pytest.mark.slow
def test_a_crowd_of_teams_leaves_every_chain_within_its_budget(phones: Clerk) -> None:
    phones.quota("ads", 0.12)
    phones.quota("maps", 0.15)
    phones.ask(team="ads")

    def crowd(number: int) -> None:
        for turn in range(6):
            phones.ask(team=("ads", "maps", None)[(number + turn) % 3], name=f"{number}-{turn}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(crowd, range(6)))
    for name in ("phones", ADS, "phones@team=maps"):
        view = phones.store.view(name)
        assert view.spent.epsilon_upper <= view.cohort.epsilon_budget
    phones.check()
