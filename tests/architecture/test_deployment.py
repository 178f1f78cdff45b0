"""The image and the composition: against the compose specification's words, and against our own code."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from packaging.specifiers import SpecifierSet

from cli.main import main
from ledger.api.gate import OPEN_PATHS
from ledger.config import Settings
from workers.celery_app import TIME_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text("utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
SECRET = re.compile(r"PASS|KEY|TOKEN|SECRET")
SETTING = "SHUFFLE_LEDGER_"

TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
TRUE = {"const": True}
DURATION = {"type": "string", "pattern": r"^(\d+h)?(\d+m)?(\d+s)?$", "minLength": 2}
BYTES = {"type": "string", "pattern": r"^\d+[bkmgBKMG]$"}
NOTHING_ELSE = {"type": "object", "additionalProperties": False}


def of(**properties: object) -> dict[str, object]:
    """Return a schema for an object with these properties at most."""
    return NOTHING_ELSE | {"properties": properties}


def each(schema: object) -> dict[str, object]:
    """Return a schema for an object with any names and such values."""
    return {"type": "object", "additionalProperties": schema, "minProperties": 1}


LIMITS = of(cpus={"type": "string", "pattern": r"^\d+\.\d+$"}, memory=BYTES, pids={"type": "integer"})
HEALTH = of(
    test={"type": "array", "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}], "items": TEXT, "minItems": 2},
    disable=TRUE,
    interval=DURATION,
    timeout=DURATION,
    start_period=DURATION,
    retries={"type": "integer", "minimum": 1},
)
CONDITIONS = ["service_started", "service_healthy", "service_completed_successfully"]
SERVICE = of(
    image=TEXT,
    build=of(context=TEXT),
    command=TEXTS,
    hostname=TEXT,
    environment=each({"type": "string"}),
    init=TRUE,
    read_only=TRUE,
    tmpfs=TEXTS,
    cap_drop=TEXTS,
    security_opt=TEXTS,
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    stop_grace_period=DURATION,
    networks=TEXTS,
    logging=of(driver=TEXT, options=each(TEXT)),
    depends_on=each(of(condition={"enum": CONDITIONS})),
    healthcheck=HEALTH,
    deploy=of(replicas={"type": "integer", "minimum": 1}, resources=of(limits=LIMITS)),
    ports=TEXTS,
    volumes=TEXTS,
    shm_size=BYTES,
) | {"required": ["image", "networks", "logging", "healthcheck", "restart", "deploy"]}
# The part of the compose specification that is used here, in our words.
SPECIFICATION = of(
    name=TEXT,
    services=each(SERVICE),
    networks=each(of(internal=TRUE)),
    volumes=each(of()),
) | {"patternProperties": {"^x-": {}}, "required": ["services"]}


def test_every_key_is_one_of_the_specification() -> None:
    jsonschema.Draft202012Validator(SPECIFICATION).validate(COMPOSE)


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
        if "ports" not in service:
            assert service["networks"] == ["inside"], name
    assert COMPOSE["networks"]["inside"]["internal"]


def test_secrets_come_from_the_environment_and_have_no_default() -> None:
    seen = 0
    for name, service in SERVICES.items():
        for variable, value in service["environment"].items():
            if SECRET.search(variable) or "://" in value:
                assert re.search(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"
                seen += 1
    assert seen >= 10
    for variable, default in re.findall(r"\$\{(\w+):?-([^}]*)\}", COMPOSE_TEXT):
        assert not SECRET.search(variable), f"{variable} has the default {default}"


def _resolved(value: str) -> str:
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
        monkeypatch.setenv(variable, _resolved(value))
    settings = Settings()
    assert settings.database_url.startswith("postgresql+psycopg://")
    assert settings.broker_url is not None
    for url, server in ((settings.database_url, "postgres"), (settings.broker_url, "rabbitmq")):
        assert f"@{server}:" in url
    if settings.heartbeat_file is not None:
        assert str(settings.heartbeat_file) in " ".join(service["healthcheck"]["test"])
    if word == "serve":
        assert service["ports"][0].endswith(":8000")
        assert arguments[arguments.index("--port") + 1] == "8000"
    if word == "worker":
        # A task under way must be able to end by itself.
        assert int(service["stop_grace_period"].removesuffix("s")) >= TIME_LIMIT_SECONDS


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
    installs = re.findall(r"-m pip install ([^&\n]*)", DOCKERFILE)
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


def test_the_operations_page_names_commands_settings_and_alarms_that_exist() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
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
    source = "".join((ROOT / file).read_text("utf-8") for file in ("ledger/upkeep.py", "workers/dispatch.py"))
    for alarm in re.findall(r"^\| `([A-Z]+) ", page, flags=re.MULTILINE):
        assert f'"{alarm} ' in source, alarm
