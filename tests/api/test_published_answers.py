"""Every operation answers about a ledger with everything in it as the published description says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.reference import description
from shuffle_ledger.ledger.values.requests import Pending
from tests.api import published
from tests.api.conftest import ROUND, Server

TODAY = datetime.now(UTC).date()
DAYS = {"collected_on": TODAY.isoformat(), "collected_until": (TODAY + timedelta(days=1)).isoformat()}
OPENED: dict[str, Any] = {"population": 100_000, "epsilon": 1.0, "delta": 1e-6}
WINDOWS = [
    {"calendar": "week", "epsilon": 0.5, "delta": 1e-7},
    {"rolling": 7, "bucket": "day", "epsilon": 0.6, "delta": 1e-7, "local_budget": 5.0},
]
WHY = {"reason": "agreed"}
# Answered by other tests: it takes a broker to answer before a decision, and a statement in the background.
ELSEWHERE = {
    "operations_show_metrics",
    # tests/api/test_permits.py: this server signs no permits
    *("permits_issue", "permits_settle_by_receipt", "permits_keys", "permits_revoked"),
}


def _open_everything(server: Server) -> None:
    for name, more in (
        ("watches", {"windows": WINDOWS, "labels": {"device": "watch"}, "local_budget": 50.0}),
        ("tablets", {"windows": WINDOWS[:1], "labels": {"device": "tablet"}, "rounds_per_user": 9}),
        ("study", {"ceiling": 3.0}),
        ("planned", {"policy": "plan", "plan": [{**ROUND, "count": 2}]}),
    ):
        assert server.ask("POST", "/v1/cohorts", json={"name": name, **OPENED, **more}).status_code == 201
    # A cohort need not have a budget of its life: there its epsilon is null.
    without_life = {"name": "yearly", "population": 100_000, "windows": WINDOWS}
    assert server.ask("POST", "/v1/cohorts", json=without_life).status_code == 201
    for name in ("watches", "tablets"):
        set_to = {"epsilon": 0.5, **WHY}
        assert server.ask("PUT", f"/v1/cohorts/{name}/quotas/maps", json=set_to).status_code == 200


def _decide_everything(server: Server) -> None:
    server.issue("maps", "registrar", team="maps")
    both = {**ROUND, **DAYS, "audience": ["tablets", "watches"]}
    for name in ("settled", "voided", "corrected"):
        answer = server.ask("POST", "/v1/rounds", bearer="maps", json={"round_id": name, **both})
        assert answer.status_code == 201, answer.text
    assert server.ask("POST", "/v1/rounds/settled/settle", json={"reports": 999}).status_code == 200
    assert server.ask("POST", "/v1/rounds/voided/void", json=WHY).status_code == 200
    told = {**WHY, "reports": 990}
    assert server.ask("POST", "/v1/rounds/corrected/corrections", json=told).status_code == 200
    large = {**both, "randomizer": "krr(k=2, epsilon0=6)", "round_id": "refused"}
    assert server.ask("POST", "/v1/rounds", json=large).status_code == 409
    assert (
        server.ask(
            "POST", "/v1/rounds", json={"round_id": "planned", "cohort": "planned", **ROUND}
        ).status_code
        == 201
    )
    yearly = {**ROUND, **DAYS, "cohort": "yearly"}
    for name, more, status in (
        ("weekly", {}, 201),
        ("weekly-refused", {"randomizer": large["randomizer"]}, 409),
    ):
        assert (
            server.ask("POST", "/v1/rounds", json={**yearly, **more, "round_id": name}).status_code == status
        )
    assert server.ask("POST", "/v1/rounds/weekly/corrections", json=told).status_code == 200
    leak = {"round": ROUND, **WHY, "round_id": "leak", "collected_on": DAYS["collected_on"]}
    assert server.ask("POST", "/v1/cohorts/watches/incidents", json=leak).status_code == 200
    raised = {"epsilon": 2.0, **WHY}
    assert server.ask("PUT", "/v1/cohorts/phones/budget", json=raised).status_code == 200
    assert server.ask("PUT", "/v1/cohorts/study/budget", json=raised).status_code == 200
    assert server.ask("POST", "/v1/cohorts/study/close", json=WHY).status_code == 200


def _read_everything(server: Server) -> None:
    for cohort in ("watches", "tablets", "study", "planned", "phones", "yearly"):
        for what in ("", "/budget", "/quotas", "/entries"):
            assert server.ask("GET", f"/v1/cohorts/{cohort}{what}").status_code == 200
    for path in (
        "cohorts",
        "rounds",
        "events",
        "heads",
        "healthz",
        "readyz",
        "health",
        "audience?select=device%3Dwatch",
    ):
        assert server.ask("GET", f"/v1/{path}").status_code == 200, path
    for name in ("settled", "voided", "corrected", "refused", "planned", "leak"):
        assert server.ask("GET", f"/v1/rounds/{name}").status_code == 200, name


def _compute_everything(server: Server) -> None:
    both = {**ROUND, **DAYS, "audience": ["tablets", "watches"]}
    schemas = description()["components"]["schemas"]
    for path, body in {
        "/v1/quote": both,
        "/v1/rehearsal": {"rounds": [both], "opening": [schemas["OpenCohort"]["examples"][0]]},
        "/v1/forecast": {"round": ROUND, "audience": ["tablets", "watches"]},
        "/v1/cohorts/watches/quote": {"rounds": [ROUND], "fits": True},
        "/v1/cohorts/watches/forecast": {"round": ROUND, "every": "week"},
        "/v1/amplify": schemas["AmplifyRound"]["examples"][0],
        "/v1/compose": schemas["ComposeRounds"]["examples"][0],
        "/v1/calibrate": schemas["CalibrateRounds"]["examples"][0],
        "/v1/cohorts/yearly/verification": {},
        "/v1/verification": {"cohort": "watches"},
        "/v1/standing": {},
        "/v1/statements": {"cohorts": ["watches"]},
        "/v1/bundles": {},
    }.items():
        answer = server.ask("POST", path, json=body)
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.slow
def test_every_operation_answers_as_published_with_windows_labels_quotas_and_several_cohorts(
    server: Server,
) -> None:
    before = published.SEEN.copy()
    _open_everything(server)
    _decide_everything(server)
    _read_everything(server)
    _compute_everything(server)
    answered = {name for name, status in published.SEEN - before if status < 300}
    operations = {each["operationId"] for found in description()["paths"].values() for each in found.values()}
    assert operations - answered <= ELSEWHERE | {"rounds_retry"}


def test_an_answer_before_the_decision_and_a_problem_with_members_are_as_published(serve: Any) -> None:
    server: Server = serve(Dispatch(decide=lambda _accountant, name: Pending(round_id=name, cohort="phones")))
    assert server.register("a").status_code in (201, 202)
    assert server.register("a", reports=7).json()["differences"]
    unusual = {"name": "odd", **OPENED, "epsilon": 100.0}
    assert server.ask("POST", "/v1/cohorts", json=unusual).json()["warnings"]
    beyond = {"name": "planned", **OPENED, "epsilon": 0.01, "policy": "plan", "plan": [{**ROUND, "count": 9}]}
    assert server.ask("POST", "/v1/cohorts", json=beyond).json()["epsilon_upper"] > 0.01


@pytest.mark.parametrize(
    ("window", "fits"),
    [
        (WINDOWS[0], True),
        (WINDOWS[1], True),
        ({"unit": "week", "sliding": None, "epsilon": 0.5, "delta": 1e-7, "local_budget": None}, False),
        ({"rolling": 7, "epsilon": 0.5, "delta": 1e-7}, False),
    ],
)
def test_the_schema_of_windows_takes_what_is_answered_and_no_other_spelling(window: Any, fits: bool) -> None:
    assert published.fits("WindowBudget", window) is fits
