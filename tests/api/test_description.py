"""The published description is true: generated requests find nothing else, and its examples work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.api.reference import description, reference
from shuffle_ledger.ledger.roles import Role
from tests.api.conftest import Server

ROOT = Path(__file__).parents[2]
GENERATED_MAX = 1  # of each operation, in each phase
# An administrator may ask everything. For the others it is tried that their answers, which are refusals or
# show less, are as described; and those of calculators, by a reader.
PHASES = {role: "examples,coverage,stateful" if role == Role.ADMIN else "examples,fuzzing" for role in Role}
AUDITING = {
    "/v1/verification": "VerifyChains",
    "/v1/standing": "LedgerStanding",
    "/v1/statements": "MakeStatement",
    "/v1/bundles": "MakeBundle",
}
CALCULATORS = {
    "/v1/amplify": "AmplifyRound",
    "/v1/compose": "ComposeRounds",
    "/v1/calibrate": "CalibrateRounds",
}
ANSWER_SECONDS_MAX = 60  # a calibration takes seconds, and more on a busy machine
SEED = 20210209  # the same requests every time; another seed is another test
KINDS = 2  # of randomizers, in the schema that bodies with a round share
# Patterns of names list letters of many scripts, which the generator reads slowly. It gets the first range.
SCRIPTS = re.compile(r"(\\u[0-9a-f]{4}-\\u[0-9a-f]{4})(?:\\u[0-9a-f]{4}-\\u[0-9a-f]{4})+")


def made_smaller(published: dict[str, Any]) -> str:
    """Return the description with fewer kinds of randomizers, and fewer letters in names."""
    for schema in published["components"]["schemas"].values():
        kinds = schema.get("properties", {}).get("randomizer", {})
        if "oneOf" in kinds:
            kinds["oneOf"] = kinds["oneOf"][:KINDS]
    return SCRIPTS.sub(r"\1", json.dumps(published))


@pytest.mark.system
@pytest.mark.parametrize("role", Role)
def test_generated_requests_find_nothing(server: Server, tmp_path: Path, role: Role) -> None:
    published = server.ask("GET", "/v1/openapi.json").json()
    (tmp_path / "openapi.json").write_text(made_smaller(published))
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", "openapi.json"]
    command += ["--url", server.url]
    command += ["--header", f"Authorization: Bearer {server.tokens[role]}", "--checks", "all"]
    command += [
        "--phases",
        PHASES[role],
        "--max-examples",
        str(GENERATED_MAX),
        "--seed",
        str(SEED),
        "--continue-on-failure",
        "--no-color",
        "--request-timeout",
        str(ANSWER_SECONDS_MAX),
        "--max-response-time",
        str(ANSWER_SECONDS_MAX),
    ]
    if role != Role.READER:  # what calculators answer depends on no role, and takes most of the time
        command += ["--exclude-path-regex", f"^({'|'.join(CALCULATORS)})$"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-8000:]


def test_no_operation_is_open_to_strangers_but_health_and_what_gates_read(server: Server) -> None:
    published: dict[str, Any] = server.ask("GET", "/v1/openapi.json").json()
    assert len(published["paths"]) >= 13
    for path, operations in published["paths"].items():
        for method, operation in operations.items():
            answer = server.http.request(method, path.replace("{", "").replace("}", ""))
            if operation["security"] == []:
                assert path in OPEN_PATHS
                # This server has no key to sign the list of revoked permits with.
                assert answer.status_code == (409 if path == "/v1/permits/revoked" else 200)
            else:
                assert answer.status_code == 401, f"{method} {path}"


@pytest.mark.slow
def test_the_examples_work_as_printed(server: Server) -> None:
    published = server.ask("GET", "/v1/openapi.json").json()
    bodies = {
        name: schema["examples"][0]
        for name, schema in published["components"]["schemas"].items()
        if "examples" in schema and name not in ("RoundParameters", "PlannedRound")
    }
    assert set(bodies) == {
        "OpenCohort",
        "RegisterRound",
        "RehearseRounds",
        "QuoteRounds",
        "QuoteForAll",
        "ForecastRounds",
        "ForecastForAll",
        "SettleRound",
        "VoidRound",
        "IssuePermit",
        "SettleByReceipt",
        "CorrectRound",
        "RecordIncident",
        "ChangeBudget",
        "CloseCohort",
        "SetQuota",
        *CALCULATORS.values(),
        "VerifyChains",
        "LedgerStanding",
        "MakeStatement",
        "MakeBundle",
    }
    opened = server.ask("POST", "/v1/cohorts", json=bodies["OpenCohort"])
    assert opened.status_code == 201
    cohort = bodies["OpenCohort"]["name"]
    changed = server.ask("PUT", f"/v1/cohorts/{cohort}/budget", json=bodies["ChangeBudget"])
    assert changed.status_code == 200
    with_ceiling = {**bodies["OpenCohort"], "name": "study", "ceiling": 3.0}
    assert server.ask("POST", "/v1/cohorts", json=with_ceiling).status_code == 201
    quoted = server.ask("POST", f"/v1/cohorts/{cohort}/quote", json=bodies["QuoteRounds"])
    assert quoted.status_code == 200
    assert quoted.json()["rounds_admitted"] == 1
    priced = server.ask("POST", "/v1/quote", json=bodies["QuoteForAll"])
    assert (priced.status_code, priced.json()["would_be"]) == (200, "admitted")
    rehearsed = server.ask("POST", "/v1/rehearsal", json=bodies["RehearseRounds"])
    assert (rehearsed.status_code, rehearsed.json()[0]["would_be"]) == (200, "admitted")
    foreseen = server.ask("POST", f"/v1/cohorts/{cohort}/forecast", json=bodies["ForecastRounds"])
    assert foreseen.status_code == 200
    assert foreseen.json()["kinds"][0]["reaches_until"] is True
    together = server.ask("POST", "/v1/forecast", json=bodies["ForecastForAll"])
    assert (together.status_code, together.json()["limited_by"]) == (200, cohort)
    registered = server.ask("POST", "/v1/rounds", json=bodies["RegisterRound"])
    assert registered.status_code == 201
    settled = server.ask("POST", registered.headers["Location"] + "/settle", json=bodies["SettleRound"])
    assert settled.status_code == 200
    second = server.ask("POST", "/v1/rounds", json={**bodies["RegisterRound"], "round_id": "second"})
    voided = server.ask("POST", second.headers["Location"] + "/void", json=bodies["VoidRound"])
    assert voided.status_code == 200
    corrections = registered.headers["Location"] + "/corrections"
    corrected = server.ask("POST", corrections, json=bodies["CorrectRound"])
    assert corrected.status_code == 200
    told = server.ask("POST", f"/v1/cohorts/{cohort}/incidents", json=bodies["RecordIncident"])
    assert told.status_code == 200
    for path, name in CALCULATORS.items():
        assert server.ask("POST", path, bearer="reader", json=bodies[name]).status_code == 200
    for path, name in AUDITING.items():
        assert server.ask("POST", path, bearer="auditor", json=bodies[name]).status_code == 200


@pytest.mark.slow
def test_links_lead_to_operations_that_take_what_was_named() -> None:
    every = [operation for operations in description()["paths"].values() for operation in operations.values()]
    takes = {
        operation["operationId"]: {parameter["name"] for parameter in operation.get("parameters", ())}
        for operation in every
    }
    assert len(takes) == len(every), "each operation has a name of its own"
    linked = [
        (status, link)
        for operation in every
        for status, answer in operation["responses"].items()
        for link in answer.get("links", {}).values()
    ]
    assert {"201", "202", "409"} == {status for status, _ in linked}
    for _, link in linked:
        assert set(link["parameters"]) <= takes[link["operationId"]]


def test_the_reference_in_the_docs_is_the_published_one() -> None:
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == reference(description()), (
        "run: python -m shuffle_ledger.ledger.api.reference > docs/api.md"
    )
