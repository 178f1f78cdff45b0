"""The first commands of `docs/http.md`, against a server."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from shuffle_ledger.cli.main import main
from tests.api.conftest import Server

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8000"


def test_the_five_minutes_of_the_page_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    section = PAGE.partition("## Five minutes\n")[2].partition("\n## ")[0].replace("\\\n", " ")
    orders = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", section, flags=re.MULTILINE)]
    token = server.tokens["admin"]
    requests = [order for order in orders if order[0] == "curl"]
    for _, _, header, url, _, body in requests:
        name, _, value = header.replace("$TOKEN", token).partition(": ")
        answer = httpx.post(
            url.replace(ADDRESS, server.url), headers={name: value}, json=json.loads(body), timeout=60
        )
        assert answer.status_code == 201, answer.text
    assert len(requests) == 2
    settings = {"SHUFFLE_LEDGER_SERVER": server.url, "SHUFFLE_LEDGER_TOKEN": token}
    assert [word.partition("=")[0] for word in next(each for each in orders if each[0] == "export")[1:]] == [
        *settings
    ]
    local = {"SHUFFLE_LEDGER_DATABASE_URL": f"sqlite:///{tmp_path / 'other.db'}"}
    for order in (each[1:] for each in orders if each[0] == "shuffle-ledger" and each[1] != "serve"):
        environment = settings if order[0] == "budget" else local
        done = CliRunner(env=environment).invoke(main, order)
        assert done.exit_code == 0, done.output
        if order[0] == "token":
            assert "Keep this token now: it is not shown again." in PAGE
            assert "Keep this token now: it is not shown again." in done.stdout
    assert f"Serving {ADDRESS}" in PAGE
