"""Quotas: a team's rounds are charged to them too, and they refuse by themselves; nothing else changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer, share_of_budget
from shuffle_ledger.ledger.decisions import (
    admit_together,
    change_budget,
    price,
    quotas_of,
    quote,
    register_and_admit,
    set_quota,
)
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.reports.forecasts import forecast
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    RefusalReason,
    Refused,
    RoundRequest,
)
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.desk import AnyDesk

pytestmark = pytest.mark.policies

KRR = ShuffledRound(randomizer=parse_randomizer("krr(k=10, epsilon0=2)"), reports=10_000)
WEEK = Window(unit="week", epsilon=0.4, delta=1e-6)
ADS = "phones@team=ads"


class Desk(AnyDesk):
    """A ledger with the cohort "phones", and short words for what is done to it."""

    def __init__(self, store: Store, accountant: Accountant, **changes: Any) -> None:
        super().__init__(store, accountant)
        self.open("phones", **changes)

    def allow(self, team: str, epsilon: float, cohort: str = "phones") -> None:
        values: dict[str, Any] = {"team": team, "epsilon": epsilon, "reason": "agreed", "actor": "ada"}
        set_quota(self.store, cohort, **values)

    def ask(self, team: str | None = None, **changes: Any) -> Outcome:
        values: dict[str, Any] = {"round_id": self.new_name(), "cohort": "phones", "round": KRR}
        request = RoundRequest(team=team, **{**values, **changes})
        return self.decide(request)

    def admitted(self, team: str | None = None, most: int = 60, **changes: Any) -> int:
        """Return how many rounds are admitted one after the other."""
        for count in range(most):
            if isinstance(self.ask(team, **changes), Refused):
                return count
        return most


@pytest.fixture
def desk(store: Store, accountant: Accountant) -> Desk:
    return Desk(store, accountant)


def test_a_team_has_what_a_budget_of_its_quota_has_and_others_the_rest(desk: Desk) -> None:
    change_budget(desk.store, "phones", epsilon=0.4, reason="less", actor="ada")
    desk.allow("ads", 0.2)
    desk.open("alone", epsilon=0.2)
    desk.open("whole", epsilon=0.4)
    most, whole = desk.admitted(cohort="alone"), desk.admitted(cohort="whole")
    assert desk.admitted("ads") == most < whole
    refused = desk.ask("ads")
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.REFUSED_ELSEWHERE
    assert [each.cohort for each in refused.refused_by] == [ADS]
    assert "the quota of team ads" in str(quote_of(desk, "ads").message)
    assert desk.admitted("maps") == whole - most, "a team without a quota has what is left of the cohort's"
    (reading,) = quotas_of(desk.store, "phones")
    assert (reading.team, reading.budget, reading.epsilon, reading.rounds) == ("ads", ADS, 0.2, most)
    assert reading.epsilon_used_upper <= 0.2
    assert reading.share == pytest.approx(share_of_budget(0.2, whole=0.4, delta=1e-6))
    desk.check()


def quote_of(desk: Desk, team: str) -> Any:
    request = RoundRequest(round_id="asked", cohort="phones", round=KRR, team=team)
    return price(desk.store, desk.accountant, request)


def test_shares_of_the_design_add_up() -> None:
    shares = [share_of_budget(one, whole=1.0, delta=1e-6) for one in (0.6889, 0.5543, 0.4752, 0.2912)]
    assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 4, 1 / 10], rel=1e-3)


def test_a_quota_changes_what_a_team_may_and_nothing_that_is_decided(desk: Desk) -> None:
    first = desk.ask("ads", round_id="before")
    assert isinstance(first, Admitted)
    desk.allow("ads", 0.2)
    assert desk.ask("ads", round_id="before") == first, "it was registered before there was a quota"
    assert first.audience == ()
    one = desk.ask("ads", round_id="one")
    assert isinstance(one, Admitted)
    assert [member.cohort for member in one.audience] == ["phones", ADS]
    assert desk.ask(round_id="one") == one, "whose it is, is known"
    with pytest.raises(Conflict, match="team: stored ads, given maps"):
        desk.ask("maps", round_id="one")
    with pytest.raises(Conflict, match="other content"):
        desk.ask("ads", round_id="one", round=ShuffledRound(randomizer=KRR.randomizer, reports=9_000))
    desk.allow("ads", 0.01)
    assert isinstance(desk.ask("ads"), Refused)
    assert desk.store.cohort(ADS).status == "open"
    desk.allow("ads", 0.2)
    assert isinstance(desk.ask("ads"), Admitted)
    desk.check()


@pytest.mark.slow
def test_settling_voiding_and_correcting_reach_the_quota_which_is_never_overspent(desk: Desk) -> None:
    desk.allow("ads", 0.2)
    for name in ("a", "b"):
        assert isinstance(desk.ask("ads", round_id=name), Admitted)
    desk.void("b")
    assert quotas_of(desk.store, "phones")[0].rounds == 1
    before = quotas_of(desk.store, "phones")[0].epsilon_used_upper
    desk.settle("a", 5_000)
    assert quotas_of(desk.store, "phones")[0].epsilon_used_upper > before
    told = desk.correct("a", reports=900)
    assert not told.overspent
    (reading,) = quotas_of(desk.store, "phones")
    assert reading.epsilon_used_upper > reading.epsilon == 0.2
    assert reading.epsilon_remaining == 0
    assert desk.store.cohort(ADS).status == desk.store.cohort("phones").status == "open"
    assert isinstance(desk.ask("ads"), Refused)
    assert isinstance(desk.ask(), Admitted), "only the team has to wait"
    desk.allow("ads", 0.9)
    assert isinstance(desk.ask("ads"), Admitted)
    desk.check()
    found = {
        one.cohort: one
        for one in verify_bundle(make_bundle(desk.store, ["phones", ADS]).data, desk.accountant).cohorts
    }
    assert found[ADS].promise_kept
    assert found["phones"].promise_kept


def test_a_round_that_was_refused_and_released_all_the_same_counts_in_the_quota(desk: Desk) -> None:
    desk.allow("ads", 0.02)
    assert isinstance(desk.ask("ads", round_id="leaked"), Refused)
    found = desk.incident("leaked", KRR, "phones", after=desk.store.now())
    assert [member.cohort for member in found.audience] == ["phones", ADS]
    assert not found.overspent
    assert quotas_of(desk.store, "phones")[0].rounds == 1
    desk.check()


@pytest.mark.slow
def test_windows_audiences_and_quotas_are_charged_together(store: Store, accountant: Accountant) -> None:
    desk = Desk(store, accountant, windows=[WEEK])
    desk.open("tablets")
    desk.allow("ads", 0.3)
    desk.allow("ads", 0.5, cohort="tablets")
    answer = desk.ask("ads", audience=("phones", "tablets"))
    assert isinstance(answer, Admitted)
    week = f"phones@{datetime.now(UTC):%G-W%V}"
    assert [member.cohort for member in answer.audience] == [
        "phones",
        week,
        ADS,
        "tablets",
        "tablets@team=ads",
    ]
    record = desk.store.round("round-0")
    request = RoundRequest.from_bytes(record.content)
    assert (request.team, request.windows, request.quotas) == ("ads", (week,), (ADS, "tablets@team=ads"))
    desk.check()


def test_a_quota_has_the_same_rules_where_its_budget_is_changed_as_that_of_a_cohort(desk: Desk) -> None:
    desk.allow("ads", 0.2)
    values: dict[str, Any] = {"reason": "more", "actor": "eve"}
    with pytest.raises(InvalidValue, match="the cohort's own budget"):
        change_budget(desk.store, ADS, epsilon=1.5, **values)
    assert change_budget(desk.store, ADS, epsilon=0.9, **values).epsilon_budget == 0.9
    desk.check()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"team": "@"}, "letters, digits"),
        ({"team": "x" * 61}, "letters, digits"),
        ({"epsilon": 1.5}, "the cohort's own budget"),
        ({"epsilon": float("nan")}, "finite number above 0"),
        ({"epsilon": 1e308}, "the cohort's own budget"),
        ({"reason": ""}, "reason"),
        ({"cohort": ADS}, "of which this is a part"),
    ],
)
def test_bad_quotas_are_refused(desk: Desk, changes: dict[str, Any], match: str) -> None:
    desk.allow("ads", 0.2)
    values = {"cohort": "phones", "team": "maps", "epsilon": 0.2, "reason": "why", **changes}
    with pytest.raises(InvalidValue, match=match):
        set_quota(desk.store, actor="ada", **values)
    assert [each.team for each in quotas_of(desk.store, "phones")] == ["ads"]


def test_a_cohort_whose_name_leaves_no_room_for_a_quota_has_none(desk: Desk) -> None:
    name = "n" * 195
    desk.open(name)
    assert isinstance(desk.ask("ads", cohort=name), Admitted)
    with pytest.raises(InvalidValue, match="at most 0 characters"):
        desk.allow("ads", 0.2, cohort=name)
    desk.check()


def test_a_quota_is_no_cohort_and_promises_nothing(desk: Desk) -> None:
    desk.allow("ads", 0.2)
    with pytest.raises(NotFound):
        desk.allow("ads", 0.2, cohort="nowhere")
    with pytest.raises(InvalidValue, match="a quota of one of its teams"):
        desk.ask(cohort=ADS)
    with pytest.raises(InvalidValue, match="without @"):
        desk.open("phones@team=maps")
    with pytest.raises(InvalidValue, match="a quota promises nothing"):
        make_statement(desk.store, desk.accountant, [ADS], made_at=datetime.now(UTC))
    assert [cohort.name for cohort in desk.store.cohorts(parts=False)] == ["phones"]
    assert desk.store.population(["phones", ADS]) == 100_000


def test_forecasts_and_quotes_of_a_quota_agree_with_what_is_admitted(desk: Desk) -> None:
    desk.allow("ads", 0.15)
    today = datetime.now(UTC).date()
    (kind,) = forecast(desk.store, desk.accountant, ADS, ForecastWanted(round=KRR), today=today).kinds
    assert desk.admitted("ads") >= kind.rounds_at_least > 0
    assert quote_of(desk, "ads").would_be == "refused"
    assert quote_of(desk, "maps").would_be == "admitted"
    named = RoundRequest(round_id="round-0", cohort="phones", round=KRR)
    assert quote(desk.store, desk.accountant, named).would_be == "admitted"


def test_many_together_are_decided_as_one_after_the_other(desk: Desk) -> None:
    desk.allow("ads", 0.1)
    desk.ask("ads")
    names = [f"together-{number}" for number in range(20)]
    left = [RoundRequest(round_id=name, cohort="phones", round=KRR, team="ads") for name in names]
    outcomes: list[Outcome] = []
    while left:
        some = admit_together(desk.store, desk.accountant, left, actor="ada")
        outcomes += some or [register_and_admit(desk.store, desk.accountant, left[0], actor="ada")[0]]
        left = left[max(len(some), 1) :]
    count = sum(isinstance(each, Admitted) for each in outcomes)
    desk.open("alone", epsilon=0.1)
    assert count + 1 == desk.admitted(cohort="alone")
    desk.check()


@pytest.mark.slow
def test_a_crowd_of_teams_leaves_every_chain_within_its_budget(desk: Desk) -> None:
    desk.allow("ads", 0.12)
    desk.allow("maps", 0.15)
    desk.ask("ads")

    def crowd(number: int) -> None:
        for turn in range(6):
            desk.ask(("ads", "maps", None)[(number + turn) % 3], round_id=f"{number}-{turn}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(crowd, range(6)))
    for name in ("phones", ADS, "phones@team=maps"):
        view = desk.store.view(name)
        assert view.spent.epsilon_upper <= view.cohort.epsilon_budget
    desk.check()


def test_a_cohort_budget_may_change_under_its_quotas(desk: Desk) -> None:
    desk.allow("ads", 0.5)
    values: dict[str, Any] = {"reason": "less", "actor": "ada"}
    change_budget(desk.store, "phones", epsilon=0.1, **values)
    desk.open("alone", epsilon=0.1)
    assert desk.admitted("ads") == desk.admitted(cohort="alone")
    desk.check()
