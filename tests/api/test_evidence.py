"""What outsiders can check with what the API gives them: the chain, its heads, the numbers, the metrics."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shuffle_ledger.accounting import NUMERICAL_POLICY
from shuffle_ledger.ledger.reports.budgets import heads
from shuffle_ledger.ledger.values.documents import document_of
from tests.api.conftest import Server
from tests.api.test_rounds import TOO_MUCH


def _digest(entry: dict[str, object]) -> str:
    """The digest as docs/http.md tells an outsider to compute it, in nothing but the standard library."""
    digest = hashlib.sha256()
    parts = (
        b"shuffle-ledger/entry/1",
        str(entry["cohort"]).encode(),
        int(str(entry["sequence"])).to_bytes(8, "big"),
        bytes.fromhex(str(entry["previous_digest"])),
        str(entry["canonical"]).encode(),
    )
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


@pytest.mark.slow
def test_an_outsider_can_check_the_chain(server: Server) -> None:
    for number in range(5):
        server.register(f"round {number}", use_case="é")
    server.register("large", **TOO_MUCH)
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = server.ask("GET", f"/v1/cohorts/phones/entries?after={after}&limit=2", bearer="auditor").json()
        assert 1 <= len(page["entries"]) <= 2
        found += page["entries"]
        after = page["after"]
    assert [entry["sequence"] for entry in found] == list(range(1, 8))
    previous = "00" * 32
    for entry in found:
        assert entry["previous_digest"] == previous
        previous = _digest(entry)
        assert entry["digest"] == previous
        assert json.loads(entry["canonical"])["kind"] == entry["kind"] == entry["body"]["kind"]
    published = server.ask("GET", "/v1/heads", bearer="auditor").json()
    assert published == document_of(heads(server.store))
    assert {head["cohort"]: head["digest"] for head in published["heads"]}["phones"] == previous


@pytest.mark.slow
def test_metrics_say_what_the_ledger_says(server: Server) -> None:
    server.register("a")
    server.register("large", **TOO_MUCH)
    server.ask("GET", "/v1/cohorts/phones/budget")
    server.ask("GET", "/v1/no/such")
    server.ask("GET", "/v1/metrics", bearer="reader")
    answer = server.ask("GET", "/v1/metrics", bearer="reader")  # what was counted is not counted twice
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["shuffle_ledger_rounds_admitted_total", ()] == 1
    assert samples["shuffle_ledger_refusals_total", ()] == 1
    assert samples["shuffle_ledger_rounds_refused_total", (("reason", "budget_exceeded"),)] == 1
    assert samples["shuffle_ledger_decision_seconds_count", (("outcome", "admitted"),)] == 1
    assert samples["shuffle_ledger_decision_seconds_count", (("outcome", "refused"),)] == 1
    assert samples["process_resident_memory_bytes", ()] > 0
    build = next(dict(labels) for name, labels in samples if name == "shuffle_ledger_build_info")
    assert build["numerical_policy"] == NUMERICAL_POLICY
    named = {dict(labels)["cohort"] for name, labels in samples if "cohort" in dict(labels)}
    assert named == {"phones"}  # nothing was done in the other one
    used = samples["shuffle_ledger_budget_used_ratio", (("cohort", "phones"),)]
    assert used == server.ask("GET", "/v1/cohorts/phones/budget").json()["epsilon_spent_upper"]
    assert samples["shuffle_ledger_rounds_pending", ()] == 0
    assert samples["shuffle_ledger_task_lag_seconds", ()] == 0
    assert samples["shuffle_ledger_cohorts_broken", ()] == 0
    assert samples["shuffle_ledger_cohorts_unverified", ()] == 0
    count = "shuffle_ledger_http_request_seconds_count"
    routes = {dict(labels).get("route") for name, labels in samples if name == count}
    assert routes == {"/v1/rounds", "/v1/cohorts/{cohort}/budget", "/v1/metrics", "-"}
