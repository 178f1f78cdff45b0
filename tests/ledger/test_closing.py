"""A closed cohort admits nothing any more, and still records what turned out otherwise."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    close_cohort,
    correct,
    open_cohort,
    record_incident,
    register,
    register_and_admit,
    set_quota,
    settle,
    void,
)
from shuffle_ledger.ledger.decisions.quotas import quotas_of
from shuffle_ledger.ledger.errors import Conflict
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.reports.budgets import budget
from shuffle_ledger.ledger.reports.calibrations import calibrate_for
from shuffle_ledger.ledger.reports.forecasts import forecast, joint_forecast
from shuffle_ledger.ledger.reports.listing import shown_cohort
from shuffle_ledger.ledger.reports.promises import listed_cohorts
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import Admitted, Refused, ReleaseTimes, RoundRequest
from shuffle_ledger.ledger.values.schedules import ForecastWanted
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.releases import after_opening
from tests.ledger.test_bundles import EXAMPLE, forged

KEY = SigningKey.generate()
OPENED: dict[str, Any] = {"population": 1000, "epsilon": 2.0, "delta": 1e-6, "policy": "adaptive"}
WINDOWS: dict[str, dict[str, Any]] = {
    "life": {},
    "life and weeks": {"windows": [Window(unit="week", epsilon=1.0, delta=1e-7)]},
    "weeks alone": {
        "windows": [Window(unit="week", epsilon=1.0, delta=1e-7)],
        "epsilon": None,
        "delta": None,
    },
}


def asked(name: str, cohort: str = "phones") -> RoundRequest:
    one = ShuffledRound(randomizer=parse_randomizer("krr(k=4, epsilon0=0.5)"), reports=900)
    return RoundRequest(round_id=name, cohort=cohort, round=one)


@pytest.mark.parametrize("budgets", WINDOWS)
def test_nothing_is_admitted_and_all_else_is_recorded(
    store: Store, accountant: Accountant, budgets: str, tmp_path: Path
) -> None:
    open_cohort(store, name="phones", actor="ada", **(OPENED | WINDOWS[budgets]))
    for name in ("settled", "voided", "corrected"):
        assert isinstance(register_and_admit(store, accountant, asked(name), actor="ada")[0], Admitted)
    register(store, asked("waits"), actor="ada")
    closed = close_cohort(store, "phones", reason="withdrawn", actor="bob")
    assert closed == close_cohort(store, "phones", reason="again", actor="eve") == store.cohort("phones")
    assert closed.status == "closed"
    for outcome in (
        admit(store, accountant, "waits"),
        register_and_admit(store, accountant, asked("new"), actor="ada")[0],
    ):
        assert isinstance(outcome, Refused)
        assert outcome.reason == "cohort_closed"
        assert "it is closed" in outcome.message
    again = register_and_admit(store, accountant, asked("settled"), actor="ada")[0]
    assert isinstance(again, Admitted), "what was admitted before may still be released"
    settle(store, accountant, "settled", reports=800, actor="ada")
    void(store, accountant, "voided", reason="cancelled", actor="ada")
    correct(store, accountant, "corrected", {"reports": 700}, reason="a log", actor="eve")
    with pytest.raises(Conflict, match="not opened again"):
        open_cohort(store, name="phones", actor="ada", **(OPENED | {"population": 9}))
    with pytest.raises(Conflict):
        change_budget(store, "phones", epsilon=3.0, reason="more", actor="bob")
    assert store.cohort("phones").status == "closed"
    stated = make_statement(store, accountant, ["phones"], made_at=datetime.now(UTC))
    assert stated.cohorts[0].status == "closed"
    assert verify(store, accountant, numbers="all").ok
    names = [each.name for each in store.cohorts()]
    data = make_bundle(store, names, signing_key=KEY).data
    assert verify_bundle(data, accountant).ok
    path = tmp_path / "made.zip"
    path.write_bytes(data)
    command = [sys.executable, str(EXAMPLE), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_a_closed_cohort_may_still_turn_out_overspent(store: Store, accountant: Accountant) -> None:
    open_cohort(store, name="phones", actor="ada", **OPENED)
    close_cohort(store, "phones", reason="withdrawn", actor="bob")
    told: dict[str, Any] = {"described": None, "reason": "a script", "actor": "eve"}
    record_incident(store, accountant, "phones", round_id="i", released=ReleaseTimes(), **told)
    assert store.cohort("phones").status == "overspent"
    with pytest.raises(Conflict, match="admits nothing anyway"):
        close_cohort(store, "phones", reason="withdrawn", actor="bob")
    refused = register_and_admit(store, accountant, asked("new"), actor="ada")[0]
    assert isinstance(refused, Refused)
    assert refused.reason == "cohort_overspent"
    assert verify(store, accountant).ok


def test_a_round_that_a_closed_cohort_admits_is_found(store: Store, accountant: Accountant) -> None:
    open_cohort(store, name="phones", actor="ada", **OPENED)
    register_and_admit(store, accountant, asked("a"), actor="ada")
    close_cohort(store, "phones", reason="withdrawn", actor="bob")
    register_and_admit(store, accountant, asked("b"), actor="ada")
    data = make_bundle(store, ["phones"], signing_key=KEY).data
    assert verify_bundle(data, accountant).ok

    def reopen(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 4:
            body["details"]["reason"] = "budget_exceeded"

    found = verify_bundle(forged(data, reopen, signer=KEY), accountant).findings
    assert any(each.sequence == 4 and "reason" in each.what for each in found)


def test_a_second_closing_is_found(store: Store, accountant: Accountant, tmp_path: Path) -> None:
    open_cohort(store, name="phones", actor="ada", **OPENED)
    close_cohort(store, "phones", reason="withdrawn", actor="bob")
    register_and_admit(store, accountant, asked("b"), actor="ada")
    first = canonical.decode(store.entry("phones", 2).body)

    def close_again(sequence: int, body: dict[str, Any]) -> None:
        if sequence == 3:
            own = {"sequence": 3, "recorded_at": body["recorded_at"]}
            body |= first | own

    path = tmp_path / "forged.zip"
    path.write_bytes(forged(make_bundle(store, ["phones"], signing_key=KEY).data, close_again, signer=KEY))
    found = verify_bundle(path.read_bytes(), accountant).findings
    assert any("it closes a cohort that is not open" in each.what for each in found)
    command = [sys.executable, str(EXAMPLE), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "entry 3: it closes a part, or what is not open" in ran.stdout


def test_a_part_is_closed_with_its_cohort(store: Store, accountant: Accountant) -> None:
    open_cohort(store, name="phones", actor="ada", **(OPENED | WINDOWS["life and weeks"]))
    register_and_admit(store, accountant, asked("a"), actor="ada")
    (period,) = [each.name for each in store.cohorts() if each.period is not None]
    with pytest.raises(Conflict, match="close that one"):
        close_cohort(store, period, reason="withdrawn", actor="bob")
    assert [entry.kind for entry in store.entries_of(period)][-1] != EntryKind.CLOSED
    assert {each.status for each in budget(store, accountant, "phones").promises} == {"open"}
    close_cohort(store, "phones", reason="the study is over", actor="bob")
    (listed,) = listed_cohorts(store, [store.cohort("phones")], datetime.now(UTC).date())
    assert {each.status for each in listed.promises} == {"closed"}
    for name in ("phones", period):
        told = budget(store, accountant, name)
        assert {(each.status, each.epsilon_remaining) for each in told.promises} == {("closed", 0.0)}
        assert {(each.status, each.epsilon_remaining) for each in told.windows} <= {("closed", 0.0)}
        (stated,) = make_statement(store, accountant, [name], made_at=datetime.now(UTC)).cohorts
        for found in (told, shown_cohort(store, name), stated):
            assert found.status == "closed"
            assert found.closure is not None
            assert (found.closure.closed_by, found.closure.reason) == ("bob", "the study is over")
    assert verify(store, accountant).ok


@pytest.mark.parametrize(
    ("life", "week", "expected"),
    [(9.0, 0.01, ["closed", "overspent"]), (0.01, 9.0, ["overspent", "closed"])],
    ids=["a week", "the life"],
)
def test_what_breaks_one_budget_of_a_closed_cohort_leaves_the_others_closed(
    store: Store, accountant: Accountant, life: float, week: float, expected: list[str]
) -> None:
    weeks = {"windows": [Window(unit="week", epsilon=week, delta=1e-6)]}
    open_cohort(store, name="phones", actor="ada", **(OPENED | {"epsilon": life} | weeks))
    close_cohort(store, "phones", reason="withdrawn", actor="bob")
    described = asked("i").round
    today = datetime.now(UTC).date()
    released = after_opening(store.cohort("phones"))
    told: dict[str, Any] = {"released": released, "reason": "a script", "actor": "eve", "collected_on": today}
    record_incident(store, accountant, "phones", round_id="i", described=described, **told)
    for day in (today, today + timedelta(days=14)):  # no chain is open for the later week
        (listed,) = listed_cohorts(store, [store.cohort("phones")], day)
        shown = budget(store, accountant, "phones", on=day)
        now = expected if day == today else [expected[0], "closed"]
        assert [one.status for one in listed.promises] == [one.status for one in shown.promises] == now
        assert {one.epsilon_remaining for one in listed.promises} == {0.0}
    (period,) = [each.name for each in store.cohorts() if each.period is not None]
    assert budget(store, accountant, period).status == expected[1]


def test_nothing_fits_into_a_part_of_a_closed_cohort(store: Store, accountant: Accountant) -> None:
    weeks = WINDOWS["life and weeks"]
    open_cohort(store, name="phones", actor="ada", **(OPENED | weeks))
    register_and_admit(store, accountant, asked("a"), actor="ada")
    set_quota(store, "phones", team="maps", epsilon=1.0, reason="theirs", actor="ada")
    parts = [each.name for each in store.cohorts() if each.parent is not None]
    assert len(parts) == 2
    today, wanted = datetime.now(UTC).date(), ForecastWanted(round=asked("b").round)
    assert all(
        forecast(store, accountant, name, wanted, today=today).kinds[0].rounds_at_least for name in parts
    )
    close_cohort(store, "phones", reason="the study is over", actor="bob")
    for name in parts:
        told = forecast(store, accountant, name, wanted, today=today)
        assert told.status == "closed"
        assert [(one.rounds_at_least, one.limited_by) for one in told.kinds] == [(0, "cohort_closed")]
        assert not any(one.rounds_at_least for one in budget(store, accountant, name).fits)
        with pytest.raises(Conflict, match="is closed: it admits no rounds"):
            calibrate_for(store, accountant, name, {"randomizer": {"kind": "krr", "k": 4}, "reports": 900})
    of_all = joint_forecast(store, accountant, ["phones"], wanted, today=today, team="maps")
    assert {one.status for one in of_all.budgets} == {"closed"}
    assert [one.epsilon_remaining for one in quotas_of(store, "phones")] == [0.0]
