"""The image and the composition: against the compose specification's schema, and against our own code."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest
import yaml
from packaging.specifiers import SpecifierSet

from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.api.auth.oidc_settings import OidcSettings
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.workers.celery_app import TIME_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
SECRET = re.compile(r"PASS|KEY|TOKEN|SECRET")
SETTING = "SHUFFLE_LEDGER_"
# What services get only if it is set, and a value that fits.
PASSED_ON = {
    "SHUFFLE_LEDGER_OIDC_ISSUER": "https://login.example",
    "SHUFFLE_LEDGER_OIDC_AUDIENCE": "ledger",
    "SHUFFLE_LEDGER_OIDC_ROLES_CLAIM": "groups",
    "SHUFFLE_LEDGER_OIDC_ROLES": '{"bosses": "admin"}',
    "SHUFFLE_LEDGER_WEBHOOK_KEY": "s" * 32,
}

# Formats that the specification's schema does not check: it accepts any text there.
DURATION = re.compile(r"(\d+h)?(\d+m)?(\d+s)?")
RESTARTS = {"no", "always", "on-failure", "unless-stopped"}


def schema_says(text: str, directory: Path) -> str:
    """Return what the specification's own schema says about a composition."""
    file = directory / "docker-compose.yml"
    file.write_text(text, "utf-8")
    program = Path(sys.executable).with_name("check-jsonschema")
    command: list[str | Path] = [
        program,
        "--builtin-schema",
        "vendor.compose-spec",
        "--output-format",
        "json",
        file,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == (said["status"] == "ok"), done.stderr
    return "; ".join(f"{each['path']}: {each['message']}" for each in said.get("errors", []))


@pytest.mark.slow
def test_the_composition_is_one_of_the_specification(tmp_path: Path) -> None:
    assert schema_says(COMPOSE_TEXT, tmp_path) == ""
    mistake = COMPOSE_TEXT.replace("depends_on:", "depend_on:", 1)
    assert "depend_on" in schema_says(mistake, tmp_path)
    for name, service in SERVICES.items():
        durations = [service.get("stop_grace_period", "10s")]
        durations += [
            service["healthcheck"].get(key, "1s") for key in ("interval", "timeout", "start_period")
        ]
        assert all(each and DURATION.fullmatch(each) for each in durations), name
        assert service["restart"] in RESTARTS, name
        assert {"logging", "deploy"} <= set(service), name


def test_what_services_refer_to_exists() -> None:
    for name, service in SERVICES.items():
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], name
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[needed]["healthcheck"], name
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[needed]["restart"] == "no", name
    assert {name for name in SERVICES if name.startswith("server")} == {"server-1", "server-2"}


def test_nothing_listens_beyond_this_machine_and_everything_is_limited() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        if "ports" not in service and name != "scheduler":  # which sends webhooks
            assert service["networks"] == ["inside"], name
    assert COMPOSE["networks"]["inside"]["internal"]


def test_secrets_come_from_the_environment_and_have_no_default() -> None:
    seen = 0
    for name, service in SERVICES.items():
        for variable, value in service["environment"].items():
            if variable in PASSED_ON:
                assert value is None, f"{name}: {variable}"
            elif SECRET.search(variable) or "://" in value:
                assert re.search(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
                seen += 1
    assert seen >= 10
    for variable, default in re.findall(r"\$\{(\w+):?-([^}]*)\}", COMPOSE_TEXT):
        assert not SECRET.search(variable), f"{variable} has the default {default}"


def _resolved(variable: str, value: str | None) -> str:
    if value is None:
        return PASSED_ON[variable]
    return re.sub(r"\$\{\w+:\?[^}]+\}", "s" * 32, value)


@pytest.mark.parametrize("name", OURS)
def test_commands_and_settings_are_those_of_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = OURS[name]
    word, *arguments = service["command"]
    command = main.get_command(click.Context(main), word)
    assert command is not None
    command.make_context(word, list(arguments), parent=click.Context(main))
    for variable, value in service["environment"].items():
        assert variable.startswith(SETTING)
        assert variable.removeprefix(SETTING).lower() in Settings.model_fields, variable
        monkeypatch.setenv(variable, _resolved(variable, value))
    settings = Settings()
    assert settings.database_url.startswith("postgresql+psycopg://")
    assert settings.broker_url is not None
    for url, server in ((settings.database_url, "postgres"), (settings.broker_url, "rabbitmq")):
        assert f"@{server}:" in url
    if settings.heartbeat_file is not None:
        assert str(settings.heartbeat_file) in " ".join(service["healthcheck"]["test"])
    if word == "serve":
        assert OidcSettings.of(settings) is not None
        assert service["ports"][0].endswith(":8000")
        assert arguments[arguments.index("--port") + 1] == "8000"
    if word == "worker":
        # A task under way must be able to end by itself.
        assert int(service["stop_grace_period"].removesuffix("s")) >= TIME_LIMIT_SECONDS


def test_sign_in_and_webhooks_reach_those_that_need_them_and_no_others() -> None:
    sign_in = {name for name in PASSED_ON if "_OIDC_" in name}
    assert sign_in == {SETTING + name.upper() for name in Settings.model_fields if name.startswith("oidc_")}
    for name, service in OURS.items():
        found = PASSED_ON.keys() & service["environment"].keys()
        key = {"SHUFFLE_LEDGER_WEBHOOK_KEY"} if name in ("migrate", "scheduler") else set()
        assert found == (sign_in if name.startswith("server") else key), name
        reaches_out = name.startswith("server") or name == "scheduler"
        assert ("outside" in service["networks"]) == reaches_out, name


def test_there_is_exactly_one_scheduler_and_workers_leave_upkeep_to_it() -> None:
    words = [service["command"][0] for service in OURS.values()]
    assert words.count("scheduler") == 1
    assert SERVICES["scheduler"]["deploy"].get("replicas", 1) == 1
    assert all("--no-sweep" in each["command"] for each in OURS.values() if each["command"][0] == "worker")


def test_the_image_is_built_from_the_lock_and_does_not_run_as_root() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (base,) = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, flags=re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert stages == ["python:${PYTHON}"] * 2
    assert base.split("-")[0] in SpecifierSet(project["requires-python"])
    installs = re.findall(r"-m pip(?: --python \S+)? install ([^&\n]*)", DOCKERFILE)
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE) == ["10001:10001"]
    (entry,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', DOCKERFILE, flags=re.MULTILINE)
    assert entry in project["scripts"]
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE):
        *sources, _ = shlex.split(line)
        for source in sources:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in (ROOT / ".dockerignore").read_text("utf-8").replace("*.txt", ""), source
    copied = re.findall(r"^COPY (\w+)/ ", DOCKERFILE, flags=re.MULTILINE)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    assert set(wheel["targets"]["wheel"]["packages"]) <= set(copied)


def test_health_checks_ask_what_the_server_answers_without_a_token() -> None:
    asked = set(re.findall(r"http://127\.0\.0\.1:8000(/\w+)", DOCKERFILE + COMPOSE_TEXT))
    assert asked == {"/readyz"}
    assert asked <= OPEN_PATHS
    (check,) = re.findall(r"HEALTHCHECK .*?CMD (\[.+\])", DOCKERFILE)
    # The image and the composition state the same check.
    for name in ("server-1", "server-2"):
        assert SERVICES[name]["healthcheck"]["test"] == ["CMD", *json.loads(check)]


class _Answer(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        """Answer the one question with the status of the moment."""
        self.send_response(self.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("status", [200, 503, None])
def test_the_servers_health_check_tells_ready_from_not_ready(status: int | None) -> None:
    with HTTPServer(("127.0.0.1", 0), type("Answer", (_Answer,), {"status": status})) as server:
        port = server.server_port
        listening = Thread(target=server.serve_forever if status else server.server_close, daemon=True)
        listening.start()
        kind, python, *words = SERVICES["server-1"]["healthcheck"]["test"]
        assert (kind, python) == ("CMD", "python")
        command = [sys.executable, *(word.replace(":8000/", f":{port}/") for word in words)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert (done.returncode == 0) == (status == 200), done.stderr
        if status:
            server.shutdown()
        listening.join()


@pytest.mark.parametrize("name", ["worker", "scheduler"])
def test_the_workers_health_check_tells_a_beating_heart_from_a_stopped_one(name: str, tmp_path: Path) -> None:
    kind, command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    heartbeat = tmp_path / "heartbeat"
    command = command.replace(SERVICES[name]["environment"][SETTING + "HEARTBEAT_FILE"], str(heartbeat))

    def beats() -> bool:
        return subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False).returncode == 0

    assert not beats()
    heartbeat.touch()
    assert beats()
    long_ago = time.time() - 180
    os.utime(heartbeat, (long_ago, long_ago))
    assert not beats()


def test_the_operations_pages_name_commands_settings_and_alarms_that_exist() -> None:
    names = ("operations.md", "operations-reference.md")
    page = "\n".join((ROOT / "docs" / name).read_text("utf-8") for name in names)
    lines = set(re.findall(r"(?:shuffle-ledger|run --rm migrate) ((?:[a-z]+ ?)+)", page))
    assert len(lines) >= 12
    for line in lines:
        found: click.Command = main
        for word in line.split():
            if not isinstance(found, click.Group):
                break  # an argument
            inner = found.get_command(click.Context(found), word)
            assert inner is not None, line
            found = inner
    for name in re.findall(SETTING + r"([A-Z_]+)", page):
        assert name.lower() in Settings.model_fields, name
    source = "".join((ROOT / file).read_text("utf-8") for file in ("ledger/health.py", "workers/dispatch.py"))
    for alarm in re.findall(r"^\| `([A-Z]+) ", page, flags=re.MULTILINE):
        assert f'"{alarm} ' in source, alarm
