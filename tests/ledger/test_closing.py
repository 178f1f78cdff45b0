"""A closed cohort admits nothing any more, and still records what turned out otherwise."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.ledger.decisions import admit, close_cohort, register
from shuffle_ledger.ledger.decisions.quotas import quotas_of
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.reports.forecasts import joint_forecast
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, Refused
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from tests.conftest import sqlite_url
from tests.ledger.clerk import Clerk, krr, today
from tests.ledger.test_bundles import by_the_example, forged

database_url = sqlite_url  # the rules are the same in every database
KEY = SigningKey.generate()
ONE = krr(900, 0.5, k=4)
WEEKS: dict[str, Any] = {"windows": [Window(unit="week", epsilon=1.0, delta=1e-7)]}


@pytest.fixture(autouse=True)
def small(clerk: Clerk) -> None:
    """Have cohorts of a thousand users."""
    clerk.usual |= {"population": 1000, "epsilon": 2.0}


@pytest.mark.parametrize("budgets", [{}, WEEKS | {"epsilon": None, "delta": None}], ids=["life", "weeks"])
def test_nothing_is_admitted_and_all_else_is_recorded(
    clerk: Clerk, budgets: dict[str, Any], tmp_path: Path
) -> None:
    clerk.open(**budgets)
    for name in ("settled", "voided", "corrected"):
        assert clerk.admits(ONE, name=name)
    register(clerk.store, clerk.request(ONE, name="waits"), actor="ada")
    closed = close_cohort(clerk.store, "phones", reason="withdrawn", actor="bob")
    again = close_cohort(clerk.store, "phones", reason="again", actor="eve")
    assert closed == again == clerk.store.cohort("phones")
    assert closed.status == "closed"
    for outcome in (admit(clerk.store, clerk.accountant, "waits"), clerk.ask(ONE)):
        assert isinstance(outcome, Refused)
        assert outcome.reason == "cohort_closed"
        assert "it is closed" in outcome.message
    asked = clerk.ask(ONE, name="settled")
    assert isinstance(asked, Admitted), "what was admitted before may still be released"
    clerk.settle("settled", 800)
    clerk.void("voided")
    clerk.correct("corrected", reports=700)
    with pytest.raises(Conflict, match="not opened again"):
        clerk.open(**budgets | {"population": 9})
    with pytest.raises(Conflict):
        clerk.change(3.0)
    assert clerk.status() == clerk.statement().cohorts[0].status == "closed"
    clerk.audit()
    made = make_bundle(clerk.store, clerk.names(), signing_key=KEY)
    assert not by_the_example(made.data, tmp_path / "made.zip")


def test_a_closed_cohort_may_still_turn_out_overspent(clerk: Clerk) -> None:
    clerk.open()
    clerk.close()
    clerk.incident("i", None)
    assert clerk.status() == "overspent"
    with pytest.raises(Conflict, match="admits nothing anyway"):
        clerk.close()
    assert clerk.refusal(ONE).reason == "cohort_overspent"
    clerk.check()


def test_a_second_closing_is_found(clerk: Clerk, tmp_path: Path) -> None:
    clerk.open()
    clerk.close()
    clerk.ask(ONE)
    first = canonical.decode(clerk.store.entry("phones", 2).body)

    def close_again(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 3:
            body |= first | {"sequence": 3, "recorded_at": body["recorded_at"]}

    data = forged(make_bundle(clerk.store, ["phones"], signing_key=KEY).data, close_again, signer=KEY)
    found = verify_bundle(data, clerk.accountant).findings
    assert any("it closes a cohort that is not open" in each.what for each in found)
    said = by_the_example(data, tmp_path / "forged.zip")
    assert "entry 3: it closes a part, or what is not open" in said


def test_a_part_is_closed_with_its_cohort(clerk: Clerk) -> None:
    clerk.open(**WEEKS)
    clerk.ask(ONE)
    (period,) = [each.name for each in clerk.store.cohorts() if each.period is not None]
    with pytest.raises(Conflict, match="close that one"):
        clerk.close(period)
    assert clerk.kinds(period)[-1] != EntryKind.CLOSED
    assert {each.status for each in clerk.budget().promises} == {"open"}
    clerk.close()
    (listed,) = listed_cohorts(clerk.store, [clerk.store.cohort("phones")], today())
    assert {each.status for each in listed.promises} == {"closed"}
    for name in ("phones", period):
        found = clerk.budget(name)
        assert {(each.status, each.epsilon_remaining) for each in found.promises} == {("closed", 0.0)}
        assert {(each.status, each.epsilon_remaining) for each in found.windows} <= {("closed", 0.0)}
        (stated,) = clerk.statement(name).cohorts
        for shown in (found, shown_cohort(clerk.store, name), stated):
            assert shown.status == "closed"
            assert shown.closure is not None
            assert (shown.closure.closed_by, shown.closure.reason) == ("bob", "withdrawn")
    clerk.check()


@pytest.mark.parametrize(
    ("life", "week", "expected"),
    [(9.0, 0.01, ["closed", "overspent"]), (0.01, 9.0, ["overspent", "closed"])],
    ids=["a week", "the life"],
)
def test_what_breaks_one_budget_of_a_closed_cohort_leaves_the_others_closed(
    clerk: Clerk, life: float, week: float, expected: list[str]
) -> None:
    clerk.open(epsilon=life, windows=[Window(unit="week", epsilon=week, delta=1e-6)])
    clerk.close()
    clerk.incident("i", ONE, on=today(), after=clerk.later())
    for day in (today(), today() + timedelta(days=14)):  # no chain is open for the later week
        (listed,) = listed_cohorts(clerk.store, [clerk.store.cohort("phones")], day)
        shown = clerk.budget(on=day)
        now = expected if day == today() else [expected[0], "closed"]
        assert [one.status for one in listed.promises] == [one.status for one in shown.promises] == now
        assert {one.epsilon_remaining for one in listed.promises} == {0.0}
    (period,) = [each.name for each in clerk.store.cohorts() if each.period is not None]
    assert clerk.budget(period).status == expected[1]


def test_nothing_fits_into_a_part_of_a_closed_cohort(clerk: Clerk) -> None:
    clerk.open(**WEEKS)
    clerk.ask(ONE)
    clerk.quota("maps", 1.0)
    parts = [each.name for each in clerk.store.cohorts() if each.parent is not None]
    assert len(parts) == 2
    assert all(clerk.forecast(name, round=ONE).kinds[0].rounds_at_least for name in parts)
    clerk.close()
    for name in parts:
        found = clerk.forecast(name, round=ONE)
        assert found.status == "closed"
        assert [(one.rounds_at_least, one.limited_by) for one in found.kinds] == [(0, "cohort_closed")]
        assert not any(one.rounds_at_least for one in clerk.budget(name).fits)
        with pytest.raises(Conflict, match="is closed: it admits no rounds"):
            clerk.calibrate(krr(900), name)
    wanted = ForecastWanted(round=ONE)
    of_all = joint_forecast(clerk.store, clerk.accountant, ["phones"], wanted, today=today(), team="maps")
    assert {one.status for one in of_all.budgets} == {"closed"}
    assert [one.epsilon_remaining for one in quotas_of(clerk.store, "phones")] == [0.0]
