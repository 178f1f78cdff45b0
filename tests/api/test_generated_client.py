"""A client that `openapi-python-client` makes of our description has every operation, and reads refusals."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Server

COMMAND = Path(sys.executable).with_name("openapi-python-client")
# Generators read JSON; a bundle is a ZIP archive, and a list of revoked permits a token.
LEFT_OUT = ("application/zip", "application/jwt")


@pytest.fixture
def generated(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package that was generated, and can be imported."""
    (tmp_path / "config.yml").write_text("post_hooks: []\n")  # this code is read by no person
    (tmp_path / "openapi.json").write_bytes(server.ask("GET", "/v1/openapi.json").content)
    order = [
        str(COMMAND),
        "generate",
        "--path",
        "openapi.json",
        "--output-path",
        "generated",
        "--meta",
        "none",
        "--config",
        "config.yml",
    ]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    warnings = [line for line in said.splitlines() if line.startswith(("WARNING", "Unable"))]
    assert [said.count(f"Unsupported content_type {each}") for each in LEFT_OUT] == [1, 1], said
    assert len(warnings) == len(LEFT_OUT), said
    monkeypatch.syspath_prepend(str(tmp_path))
    return "generated"


@pytest.mark.slow
def test_it_registers_rounds_and_reads_refusals(server: Server, generated: str) -> None:
    client = importlib.import_module(generated).AuthenticatedClient(
        base_url=server.url, token=server.tokens["registrar"]
    )
    models = importlib.import_module(f"{generated}.models")
    register = importlib.import_module(f"{generated}.api.rounds.rounds_register").sync
    asked: dict[str, Any] = {"cohort": "phones", "reports": 1000}

    def answer(name: str, epsilon0: float) -> Any:
        body = models.RegisterRound.from_dict(
            {**asked, "round_id": name, "randomizer": f"krr(k=2, epsilon0={epsilon0})"}
        )
        return register(client=client, body=body)

    admitted = answer("one", 0.5)
    assert isinstance(admitted, models.Admitted)
    assert admitted.to_dict() == server.register("one").json()
    refused = answer("two", 20.0)
    assert isinstance(refused, models.Refused)
    assert (refused.outcome, refused.reason, refused.cohort) == ("refused", "budget_exceeded", "phones")
    assert refused.epsilon_requested_upper > refused.epsilon_budget == 1.0
    told = server.register("two", randomizer="krr(k=2, epsilon0=20.0)").json()
    assert {**refused.to_dict(), "request_id": "test"} == told
    assert json.dumps(refused.to_dict())
