"""Rounds that were collected on more days, or from more cohorts, than their registration says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event

from shuffle_ledger.accounting import Accountant, ShuffledRound, fits, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    Collected,
    correct,
    correct_everywhere,
    elsewhere,
    record_incident,
    register_and_admit,
    request_of,
    settle,
)
from shuffle_ledger.ledger.decisions.courses import described_now
from shuffle_ledger.ledger.decisions.outcomes import round_record
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, Corrected, Refused
from tests.ledger.test_windows import DAY, KRR, WEEK, Desk, a_monday

MONDAY = a_monday()
THIS, NEXT = f"phones@{MONDAY:%G-W%V}", f"phones@{MONDAY + 7 * DAY:%G-W%V}"


@pytest.fixture
def desk(sqlite_url: str, accountant: Accountant) -> Iterator[Desk]:
    with Store.connect(sqlite_url) as store:
        yield opened(Desk(store, accountant))


@pytest.fixture
def each_desk(store: Store, accountant: Accountant) -> Desk:
    return opened(Desk(store, accountant))


def opened(found: Desk) -> Desk:
    found.open("phones", WEEK)
    found.open("tablets")
    found.open("watches", WEEK, population=1_000)
    assert isinstance(found.ask(MONDAY, round_id="one"), Admitted)
    return found


def tell(
    desk: Desk,
    changes: dict[str, object] | None = None,
    name: str = "one",
    reason: str = "devices were offline",
    **collected: Any,
) -> Corrected:
    told: dict[str, Any] = {"reason": reason, "actor": "ada"}
    where = Collected(**collected)
    return correct_everywhere(desk.store, desk.accountant, name, changes or {}, collected=where, **told)


def spent(desk: Desk, chain: str) -> float:
    return desk.store.view(chain).spent.epsilon_upper


@pytest.mark.slow
def test_on_later_days_the_next_week_is_charged_and_nothing_else(each_desk: Desk) -> None:
    desk = each_desk
    before = {name: spent(desk, name) for name in ("phones", THIS)}
    answers = [tell(desk, until=MONDAY + 8 * DAY) for _ in range(2)]
    assert answers[0] == answers[1], "the same again changes nothing"
    assert [member.cohort for member in answers[0].elsewhere] == [NEXT]
    assert (answers[0].changed, answers[0].overspent) == (False, False)
    assert {name: spent(desk, name) for name in before} == before
    assert spent(desk, NEXT) == spent(desk, THIS)
    assert desk.store.view(NEXT).spent.rounds == 1
    incident = round_record(desk.store, f"one+{NEXT}").incident
    assert incident is not None
    assert incident.released.after is not None, "its admission permitted the release"
    assert tell(desk, on=MONDAY - 7 * DAY).elsewhere[0].cohort == f"phones@{MONDAY - 7 * DAY:%G-W%V}"
    desk.check()
    found = verify_bundle(make_bundle(desk.store, desk.names()).data, desk.accountant)
    assert all(each.ok for each in found.cohorts)


def test_fewer_days_and_cohorts_that_know_it_change_nothing(desk: Desk) -> None:
    for collected in ({"on": MONDAY, "until": MONDAY}, {"cohorts": ("phones",)}, {"until": MONDAY + 6 * DAY}):
        assert tell(desk, **collected).elsewhere == ()
    assert [desk.store.view(name).spent.rounds for name in ("phones", THIS)] == [1, 1]
    desk.check()


def test_another_cohort_is_charged_with_its_windows_and_not_more_often_than_told(desk: Desk) -> None:
    answer = tell(desk, cohorts=("tablets", "watches"))
    chains = [member.cohort for member in answer.elsewhere]
    assert chains == ["tablets", "watches", f"watches@{MONDAY:%G-W%V}"]
    assert spent(desk, "tablets") == spent(desk, "phones")
    (kind,) = desk.store.view("watches").held
    assert kind.reports <= 1_000, "a cohort of 1,000 users is charged for a round of that many"
    assert spent(desk, "watches") > spent(desk, "tablets")
    desk.check()
    assert tell(desk, cohorts=("tablets", "watches")) == answer


def test_what_is_told_is_the_corrected_round(desk: Desk) -> None:
    answer = tell(desk, {"reports": 5_000}, cohorts=("tablets",))
    assert answer.changed
    assert desk.store.view("tablets").held == desk.store.view("phones").held
    settled = desk.ask(MONDAY - 7 * DAY + 7 * DAY, round_id="two")
    assert isinstance(settled, Admitted)
    correct(desk.store, desk.accountant, "two", {"reports": 4_000}, reason="a log", actor="ada")
    tell(desk, name="two", cohorts=("tablets",))
    assert desk.store.view("tablets").held == desk.store.view("phones").held
    desk.check()


def test_a_single_report_of_each_user_is_told_everywhere(desk: Desk) -> None:
    """It is the one field that a round's form leaves out: the other cohort kept several reports."""
    tell(desk, {"reports_per_user": 2}, cohorts=("tablets",))
    declared = parse_randomizer("declared(epsilon=0.1, delta=1e-10)")  # takes a single report alone
    changes: dict[str, object] = {"reports_per_user": 1, "reports": 1, "randomizer": declared.to_mapping()}
    tell(desk, changes, cohorts=("tablets",), reason="a sum")
    first, other = (round_record(desk.store, name).told[-1] for name in ("one", "one+tablets"))
    assert isinstance(first, Corrected)
    assert isinstance(other, Corrected)
    assert first.round == other.round
    desk.check()


def test_what_a_later_correction_or_settlement_does_not_reach_is_named(each_desk: Desk) -> None:
    """The further cohort keeps what it was told, and what it was charged for may be too little now."""
    desk, today = each_desk, datetime.now(UTC).date()
    later, next_week = today + 7 * DAY, f"phones@{today + 7 * DAY:%G-W%V}"
    weaker: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 0.5}}
    stronger: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 3.0}}
    assert isinstance(desk.ask(today, round_id="now"), Admitted)
    assert isinstance(desk.ask(today, round_id="known"), Admitted)
    assert isinstance(desk.ask(today, round_id="now+phones", cohort="tablets"), Admitted)
    told: dict[str, Any] = {"name": "now"}
    assert tell(desk, **told, cohorts=("tablets",), until=later).not_told == ()
    assert tell(desk, stronger, **told, reason="a log").not_told == (next_week, "tablets")
    assert tell(desk, **told, cohorts=("tablets",), reason="there, too").not_told == (next_week,)
    assert tell(desk, **told, until=later, reason="then, too").not_told == ()
    assert tell(desk, weaker, **told, reason="less").not_told == (), "they are charged for more than it is"

    def settled() -> tuple[str, ...]:
        return settle(desk.store, desk.accountant, "now", reports=700, actor="ada").not_told

    assert [settled() for _ in range(2)] == [(next_week, "tablets")] * 2
    tell(desk, **told, cohorts=("tablets",), until=later, reason="the settlement")
    assert settled() == ()
    leak: dict[str, Any] = {"described": None, "reason": "a leak", "actor": "ada"}
    record_incident(
        desk.store, desk.accountant, "watches", round_id="known+watches", collected_on=today, **leak
    )
    assert tell(desk, stronger, name="known").not_told == (), "data in the clear cost no less"
    desk.check()


def test_the_rate_of_a_further_cohort_is_stated_where_each_was_sampled_by_itself(desk: Desk) -> None:
    """A correction charged that cohort at the largest rate of the others, which may be below its own."""
    desk.open("laptops")
    strata = {"laptops": [5_000, 50_000], "phones": [5_000, 100_000]}
    request = request_of(sorted(strata), KRR, round_id="strata", stratified=strata, collected_on=MONDAY)
    assert isinstance(register_and_admit(desk.store, desk.accountant, request, actor="ada")[0], Admitted)
    before = {each: desk.store.view(each).head_sequence for each in desk.names()}
    stronger: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 1.5}}
    for changes in ({}, stronger):
        with pytest.raises(InvalidValue, match=r"sampled_from: .* with a further cohort"):
            tell(desk, changes, name="strata", cohorts=("tablets",))
    assert {each: desk.store.view(each).head_sequence for each in desk.names()} == before
    tell(desk, {"sampled_from": 20_000}, name="strata", cohorts=("tablets",))
    assert desk.store.view("tablets").held == desk.store.view("laptops").held
    tell(desk, name="strata", until=MONDAY + 7 * DAY)  # the same cohorts, at the same rates
    tell(desk, {"sampled_from": None}, name="strata", cohorts=("tablets",))
    (kind,) = desk.store.view("tablets").held
    assert kind.sampled_from is None
    desk.check()


def test_two_who_correct_a_round_at_once_tell_further_cohorts_both_things(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The further cohort was told what the round had been before the other correction, and charged less."""
    stronger: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 3.0}}
    told: dict[str, Any] = {"cohorts": ("tablets",)}

    def second(*words: Any, **more: Any) -> Corrected:
        monkeypatch.setattr(elsewhere, "correct", correct)
        tell(desk, stronger, reason="another log", **told)  # it began later and ends earlier
        return correct(*words, **more)

    monkeypatch.setattr(elsewhere, "correct", second)
    tell(desk, {"reports": 500}, **told)
    first, other = (round_record(desk.store, name).told[-1] for name in ("one", "one+tablets"))
    assert isinstance(first, Corrected)
    assert isinstance(other, Corrected)
    assert first.round == other.round
    assert first.round.reports == 500
    assert spent(desk, "tablets") >= spent(desk, "phones")
    desk.check()


def test_who_tells_a_further_cohort_last_tells_it_what_the_round_is_then(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    stronger: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 3.0}}
    told: dict[str, Any] = {"cohorts": ("tablets",)}
    tell(desk, **told)

    def second(*words: Any, **more: Any) -> Any:
        # The correction is recorded, and the further cohort does not know of it yet.
        monkeypatch.setattr(elsewhere, "record_incident", record_incident)
        tell(desk, stronger, reason="another log", **told)
        return record_incident(*words, **more)

    monkeypatch.setattr(elsewhere, "record_incident", second)
    tell(desk, {"reports": 500}, **told)
    first, other = (round_record(desk.store, name).told[-1] for name in ("one", "one+tablets"))
    assert isinstance(first, Corrected)
    assert isinstance(other, Corrected)
    assert first.round == other.round
    assert spent(desk, "tablets") >= spent(desk, "phones")
    desk.check()


def test_the_rate_of_a_further_cohort_is_stated_where_the_others_were_sampled_together(desk: Desk) -> None:
    """Its users are none of those whom the sample was drawn from: they may have been asked for certain."""
    sampled = ShuffledRound(
        randomizer=parse_randomizer("krr(k=2, epsilon0=1)"), reports=100, sampled_from=1_000
    )
    assert isinstance(desk.ask(MONDAY, round_id="sample", round=sampled), Admitted)
    before = {each: desk.store.view(each).head_sequence for each in desk.names()}
    differing: list[dict[str, object]] = [{}, {"honest_fraction": 0.9}, {"reports": 90}]
    for changes in differing:
        with pytest.raises(InvalidValue, match=r"sampled_from: .* with a further cohort"):
            tell(desk, changes, name="sample", cohorts=("tablets",))
    assert {each: desk.store.view(each).head_sequence for each in desk.names()} == before
    tell(desk, {"sampled_from": None}, name="sample", cohorts=("tablets",))
    (kind,) = desk.store.view("tablets").held
    assert kind.sampled_from is None
    tell(desk, name="sample", until=MONDAY + 7 * DAY, reason="the same cohort, on another day")
    desk.check()


def test_a_rate_that_another_person_tells_meanwhile_is_not_taken_for_that_of_a_further_cohort(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate was asked for where the round was sampled, and the round became sampled after that."""
    sampled: dict[str, object] = {"sampled_from": 100_000}

    def second(*words: Any, **more: Any) -> Corrected:
        monkeypatch.setattr(elsewhere, "correct", correct)
        correct(desk.store, desk.accountant, "one", sampled, reason="a sample", actor="bob")
        return correct(*words, **more)

    monkeypatch.setattr(elsewhere, "correct", second)
    tell(desk, cohorts=("tablets",))
    (kind,) = desk.store.view("tablets").held
    assert kind.sampled_from is None
    tell(desk, sampled, cohorts=("tablets",), reason="theirs, too")

    def third(*words: Any, **more: Any) -> Corrected:
        monkeypatch.setattr(elsewhere, "correct", correct)
        tell(desk, {"sampled_from": 90_000}, cohorts=("tablets",), reason="a log")
        return correct(*words, **more)

    tell(desk, {"sampled_from": None}, cohorts=("tablets",), reason="none")
    monkeypatch.setattr(elsewhere, "correct", third)
    tell(desk, cohorts=("tablets",), reason="who stated no rate")
    first, other = (round_record(desk.store, name).told[-1] for name in ("one", "one+tablets"))
    assert isinstance(first, Corrected)
    assert isinstance(other, Corrected)
    assert first.round == other.round, "somebody told the further cohort this rate"
    desk.check()


@pytest.mark.parametrize("stated", [None, 90_000])
def test_a_rate_that_was_stated_for_a_further_cohort_is_not_replaced_by_one_that_was_not(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, stated: int | None
) -> None:
    def then_another(*words: Any, **more: Any) -> Corrected:
        monkeypatch.setattr(elsewhere, "correct", correct)
        answer = correct(*words, **more)
        larger: dict[str, object] = {"sampled_from": 100_000}
        correct(desk.store, desk.accountant, "one", larger, reason="a larger sample", actor="bob")
        return answer

    monkeypatch.setattr(elsewhere, "correct", then_another)
    tell(desk, {"sampled_from": stated}, cohorts=("tablets",))
    (kind,) = desk.store.view("tablets").held
    assert kind.sampled_from is None
    desk.check()


def test_what_is_told_in_the_words_of_the_incident_is_told_after_another_correction(desk: Desk) -> None:
    """The incident itself was found to say the same, and its correction in between stayed charged."""
    desk.open("laptops", policy="fixed", epsilon=9.0, delta=1e-6)
    values = ("declared(epsilon=0.5, delta=0)", "declared(epsilon=0.01, delta=9e-7)")
    one, two = ({"randomizer": parse_randomizer(each).to_mapping(), "reports": 1} for each in values)
    for changes, reason in ((one, "a bug"), (two, "a log"), (one, "a bug")):
        answers = [tell(desk, changes, cohorts=("laptops",), reason=reason) for _ in range(2)]
        assert answers[0] == answers[1]
    (kind,) = desk.store.view("laptops").held
    assert fits(described_now(round_record(desk.store, "one")), kind)
    assert spent(desk, "laptops") >= 0.49, "what the round is charged that was told last"
    desk.check()


@pytest.mark.parametrize("said_later", [False, True])
def test_a_round_of_before_is_not_said_to_be_later_if_the_clock_was_set_back(
    desk: Desk, *, said_later: bool
) -> None:
    """Its chain kept the moment that was ahead, so it seemed to come after the opening of the other."""
    ahead = _clock_of(desk)
    ahead.append(DAY)
    assert isinstance(desk.ask(MONDAY + DAY), Admitted)
    ahead.append(0 * DAY)
    assert isinstance(desk.ask(MONDAY + DAY, round_id="two"), Admitted)
    desk.open("laptops")  # perhaps after the output of "two"
    ahead.append(said_later * 2 * DAY)
    answers = [tell(desk, name="two", cohorts=("laptops", "tablets")) for _ in range(2)]
    assert answers[0] == answers[1]
    assert {member.cohort: member.overspent for member in answers[0].elsewhere} == {
        "laptops": True,
        "tablets": False,
    }
    desk.check()


def test_a_round_of_later_is_said_to_be_later_though_the_clock_was_set_back(desk: Desk) -> None:
    ahead = _clock_of(desk)
    desk.open("laptops")
    assert isinstance(desk.ask(cohort="laptops"), Admitted)
    ahead.append(DAY)
    assert isinstance(desk.ask(MONDAY + DAY, round_id="two"), Admitted)
    ahead.append(0 * DAY)
    answers = [tell(desk, name="two", cohorts=("laptops",)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert [member.overspent for member in answers[0].elsewhere] == [False]
    desk.check()


def _clock_of(desk: Desk) -> list[timedelta]:
    """Return by how much SQLite's clock is ahead of the true one: the last of these."""
    ahead = [timedelta()]

    def clock(form: str, _moment: str) -> str:
        return (datetime.now(UTC) + ahead[-1]).strftime(form.replace("%f", "%S.%f"))[:-3]

    def put_clock(connection: Any, *_: object) -> None:
        connection.create_function("strftime", 2, clock)

    event.listen(desk.store.engine, "checkout", put_clock)
    return ahead


def test_a_week_that_has_no_room_left_is_overspent_and_the_cohort_is_not(desk: Desk) -> None:
    desk.admitted(MONDAY + 7 * DAY)
    answer = tell(desk, {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 3.0}}, until=MONDAY + 7 * DAY)
    assert answer.overspent
    assert {member.cohort for member in answer.elsewhere if member.overspent} == {NEXT}
    assert desk.store.cohort("phones").status == "open"
    desk.check()


@pytest.mark.parametrize(
    ("name", "collected", "error", "match"),
    [
        ("one", {"cohorts": ("nobody",)}, NotFound, "nobody"),
        ("one", {"cohorts": (THIS,)}, InvalidValue, "of which this is a part"),
        ("one", {"until": MONDAY + 40 * DAY}, InvalidValue, "in at most 2 UTC weeks"),
        ("absent", {"until": MONDAY + 8 * DAY}, NotFound, "absent"),
        ("no days", {"until": MONDAY}, InvalidValue, "first day of collection"),
        ("no days", {"cohorts": ("phones",)}, InvalidValue, "first day of collection"),
        ("no days", {"cohorts": ("phones",), "on": MONDAY}, InvalidValue, "is today by the ledger's clock"),
        ("refused", {"until": MONDAY + 8 * DAY}, Conflict, "only a round that was admitted"),
        ("sampled", {"cohorts": ("tablets",)}, InvalidValue, "sampled_from: .* with a further cohort"),
        ("sampled again", {"cohorts": ("watches",)}, InvalidValue, "record an incident there"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_half_told(
    desk: Desk, name: str, collected: dict[str, Any], error: type[Exception], match: str
) -> None:
    assert isinstance(desk.ask(round_id="no days", cohort="tablets"), Admitted)
    desk.ask(
        MONDAY,
        round_id="refused",
        round=ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=9)"), reports=50),
    )
    sampled = ShuffledRound(
        randomizer=KRR.randomizer, reports=10_000, sampled_from=90_000, honest_fraction=0.9
    )
    assert isinstance(desk.ask(MONDAY, round_id="sampled", round=sampled), Admitted)
    before = {each: desk.store.view(each).head_sequence for each in desk.names()}
    rate: dict[str, object] = {"sampled_from": 90_000} if name == "sampled again" else {}
    with pytest.raises(error, match=match):
        tell(desk, rate, name=name.removesuffix(" again"), **collected)
    assert {each: desk.store.view(each).head_sequence for each in desk.names()} == before


def test_users_with_several_reports_are_told_to_a_cohort_smaller_than_their_sample(desk: Desk) -> None:
    """A correction was recorded, and could never be told to the further cohort."""
    several = ShuffledRound(
        randomizer=KRR.randomizer, reports=80_000, sampled_from=90_000, reports_per_user=2
    )
    assert isinstance(desk.ask(MONDAY, round_id="several", round=several), Admitted)
    tell(desk, name="several", cohorts=("watches",))
    (kind,) = desk.store.view("watches").held
    assert (kind.reports_per_user, kind.sampled_from) == (2, None)
    assert kind.reports <= 2_000
    desk.check()


@pytest.mark.parametrize(("reports", "sampled_from"), [(10, 100), (1, 100), (99, 100), (2, 7)])
def test_a_sample_is_told_to_a_cohort_of_a_few_users(desk: Desk, reports: int, sampled_from: int) -> None:
    """A correction was recorded, and could never be told: no cohort of one user has a sample of ten."""
    for name, population in (("many", 100), ("one user", 1), ("three users", 3)):
        desk.open(name, population=population, epsilon=9.0)
    sampled = ShuffledRound(randomizer=KRR.randomizer, reports=reports, sampled_from=sampled_from)
    assert isinstance(desk.ask(round_id="sample", cohort="many", round=sampled), Admitted)
    rate: dict[str, object] = {"sampled_from": sampled_from}
    answer = tell(desk, rate, name="sample", cohorts=("one user", "three users"))
    assert len(answer.elsewhere) == 2
    for name, population in (("one user", 1), ("three users", 3)):
        (kind,) = desk.store.view(name).held
        assert fits(sampled, kind)
        assert kind.reports <= (kind.sampled_from or 0) <= population
    desk.check()


def test_a_name_that_is_taken_is_found_before_anything_is_recorded(desk: Desk) -> None:
    """The correction was recorded, and the further cohort never told."""
    assert isinstance(desk.ask(MONDAY, round_id="one+tablets", cohort="tablets"), Admitted)
    before = {each: desk.store.view(each).head_sequence for each in desk.names()}
    with pytest.raises(Conflict, match="this identifier cannot be used"):
        tell(desk, {"reports": 5_000}, cohorts=("tablets",))
    assert {each: desk.store.view(each).head_sequence for each in desk.names()} == before


@pytest.mark.parametrize("is_long", [True, False])
def test_names_of_further_days_of_a_further_cohort_are_looked_at_before_anything_is_recorded(
    desk: Desk, is_long: bool
) -> None:
    """The correction was recorded, and the week of the further cohort could never be told."""
    name = "x" * 190 if is_long else "two"
    assert isinstance(desk.ask(MONDAY, round_id=name, cohort="tablets"), Admitted)
    tell(desk, name=name, cohorts=("watches",))
    if not is_long:
        week = f"two+watches@{MONDAY + 7 * DAY:%G-W%V}"
        assert isinstance(desk.ask(MONDAY, round_id=week, cohort="tablets"), Admitted)
    before = {each: desk.store.view(each).head_sequence for each in desk.names()}
    with pytest.raises((Conflict, InvalidValue), match=r"cannot be used|200"):
        tell(desk, {"reports": 5_000}, name=name, cohorts=("watches",), until=MONDAY + 8 * DAY)
    assert {each: desk.store.view(each).head_sequence for each in desk.names()} == before


def test_a_name_that_is_taken_at_this_moment_tells_no_other_cohort(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of several cohorts took the name of the incident, which was then recorded in all of them."""
    too_much = ShuffledRound(randomizer=parse_randomizer("krr(k=2, epsilon0=9)"), reports=50)
    joint = request_of(("laptops", "tablets"), too_much, round_id="one+tablets")
    desk.open("laptops")

    def second(*words: Any, **more: Any) -> Any:
        assert isinstance(desk.decide(joint), Refused)
        return record_incident(*words, **more)

    monkeypatch.setattr(elsewhere, "record_incident", second)
    with pytest.raises(Conflict, match="cannot be used"):
        tell(desk, cohorts=("tablets",))
    assert spent(desk, "laptops") == spent(desk, "tablets") == 0.0
    desk.check()


@pytest.mark.slow
def test_what_is_told_again_is_told_on_its_new_days_and_with_its_new_truth(desk: Desk) -> None:
    watches_next = f"watches@{MONDAY + 7 * DAY:%G-W%V}"
    tell(desk, cohorts=("watches",))
    later = tell(desk, cohorts=("watches",), until=MONDAY + 8 * DAY)
    assert watches_next in {member.cohort for member in later.elsewhere}, "the reason is the same as before"
    assert spent(desk, watches_next) > 0
    assert tell(desk, cohorts=("watches",), until=MONDAY + 8 * DAY) == later

    before = {name: spent(desk, name) for name in (NEXT, "watches", watches_next)}
    stronger: dict[str, object] = {"randomizer": {"kind": "krr", "k": 10, "epsilon0": 3.0}}
    where: dict[str, Any] = {"cohorts": ("watches",), "until": MONDAY + 8 * DAY}
    worse = [tell(desk, stronger, reason="a log", **where) for _ in range(2)]
    assert worse[0] == worse[1]
    assert all(spent(desk, name) > known for name, known in before.items())
    assert tell(desk, until=MONDAY + 7 * DAY, reason="another log").elsewhere, "and told once more"
    desk.check()
    found = verify_bundle(make_bundle(desk.store, desk.names()).data, desk.accountant)
    assert all(each.ok for each in found.cohorts)


def test_an_incident_is_not_told_again_with_days_that_nothing_charges(desk: Desk) -> None:
    told: dict[str, Any] = {"round_id": "leak", "described": KRR, "reason": "a bug", "actor": "ada"}
    past = MONDAY - 14 * DAY
    first = record_incident(desk.store, desk.accountant, "phones", collected_on=past, **told)
    assert record_incident(desk.store, desk.accountant, "phones", collected_on=past, **told) == first
    with pytest.raises(Conflict, match="then correct its days"):
        record_incident(desk.store, desk.accountant, "phones", collected_on=MONDAY - 7 * DAY, **told)


def test_a_correction_needs_a_change_or_a_place(desk: Desk) -> None:
    with pytest.raises(InvalidValue, match="at least one other field"):
        tell(desk)
