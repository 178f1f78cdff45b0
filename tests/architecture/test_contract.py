"""The names other people's scripts depend on."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from shuffle_ledger import accounting
from shuffle_ledger.cli.failures import ExitCode
from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger.settings import Settings

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
ROUND = {"randomizer", "reports", "sampled-from", "participation", "honest-fraction", "delta0", "analysis"}
COMMANDS: dict[str, set[str]] = {
    "amplify": ROUND | {"delta", "epsilon"},
    "compose": {"delta", "epsilon"},
    "init": set(),
    "cohort open": {"population", "epsilon", "delta", "policy"},
    "cohort list": set(),
    "cohort show": set(),
    "round quote": ROUND,
    "round register": ROUND | {"id"},
    "round settle": {"reports"},
    "round void": {"reason"},
    "round import": {"cohorts"},
    "budget": set(),
    "audit verify": {"against"},
    "serve": {"host", "port"},
    "token create": {"role", "cohort", "expires-in-days"},
    "token list": set(),
    "token revoke": set(),
    "worker": set(),
    "demo": set(),
}


def _command(path: str) -> click.Command:
    found: click.Command = main
    for word in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, f"no command {path}"
        found = inner
    return found


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_has_its_options_and_json(path: str) -> None:
    options = {option for parameter in _command(path).params for option in parameter.opts}
    assert {f"--{name}" for name in COMMANDS[path] | {"json"}} <= options
    assert _command(path).help


def test_every_command_there_is_answers_as_json() -> None:
    def leaves(command: click.Command) -> list[click.Command]:
        if not isinstance(command, click.Group):
            return [command]
        inner = [
            command.get_command(click.Context(command), name)
            for name in command.list_commands(click.Context(command))
        ]
        return [leaf for each in inner if each is not None for leaf in leaves(each)]

    for command in leaves(main):
        assert any("--json" in parameter.opts for parameter in command.params), command.name


def test_exit_codes_are_the_contracts() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "BAD_VALUE": 2,
        "REFUSED": 3,
        "NOT_FOUND": 4,
        "CONFLICT": 5,
        "NOT_VERIFIED": 6,
        "UNDECIDED": 7,
        "NOT_ALLOWED": 8,
    }


def test_the_distribution_and_its_program() -> None:
    assert PYPROJECT["project"]["name"] == "shuffle-ledger"
    assert PYPROJECT["project"]["scripts"] == {"shuffle-ledger": "shuffle_ledger.cli.main:main"}
    for name in ("ledger", "accounting", "migrations", "workers", "cli", "tests"):
        assert (ROOT / name).is_dir()


def test_one_version_is_named_everywhere() -> None:
    version = PYPROJECT["project"]["version"]
    for file, line in {
        "CITATION.cff": f"version: {version}",
        "deploy/kubernetes/overlays/example/kustomization.yaml": f'newTag: "{version}"',
    }.items():
        assert line in [each.strip() for each in (ROOT / file).read_text("utf-8").splitlines()], file
    headings = [each for each in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if each[:3] == "## "]
    assert next(each for each in headings if "Unreleased" not in each).startswith(f"## [{version}] - ")


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "BROKER_URL"):
        monkeypatch.delenv(f"SHUFFLE_LEDGER_{name}", raising=False)
    assert Settings().database_url == "sqlite:///shuffle-ledger.db"
    assert Settings().broker_url is None
    monkeypatch.setenv("SHUFFLE_LEDGER_BROKER_URL", "redis://localhost")
    assert Settings().broker_url == "redis://localhost"


@pytest.mark.parametrize(
    ("written", "mapping"),
    [
        ("generic(epsilon0=2)", {"kind": "generic", "epsilon0": 2.0}),
        ("krr(k=10, epsilon0=1.15)", {"kind": "krr", "k": 10, "epsilon0": 1.15}),
        ("blh(epsilon0=1, domain=64)", {"kind": "blh", "epsilon0": 1.0, "domain": 64}),
        ("rappor(epsilon0=4, domain=256)", {"kind": "rappor", "epsilon0": 4.0, "domain": 256}),
        ("oue(epsilon0=2, domain=64)", {"kind": "oue", "epsilon0": 2.0, "domain": 64}),
        ("hadamard(epsilon0=2, domain=64)", {"kind": "hadamard", "epsilon0": 2.0, "domain": 64}),
    ],
)
def test_randomizers_are_written_as_calls_and_as_json(written: str, mapping: dict[str, object]) -> None:
    randomizer = accounting.parse_randomizer(written)
    assert randomizer.to_mapping() == mapping
    assert accounting.parse_randomizer(mapping) == randomizer
    assert accounting.parse_randomizer(randomizer.describe()) == randomizer
