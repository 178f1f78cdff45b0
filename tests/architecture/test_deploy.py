"""`deploy/`: alert rules, dashboard, manifests and units, against our own alarms, metrics and commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import kubernetes_validate  # type: ignore[import-untyped]  # publishes no types
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shuffle_ledger.cli.main import main
from shuffle_ledger.ledger import telemetry
from shuffle_ledger.ledger.api.app import create_app
from shuffle_ledger.ledger.api.auth.middleware import OPEN_PATHS
from shuffle_ledger.ledger.api.auth.oidc_settings import OidcSettings
from shuffle_ledger.ledger.api.connections import SHUTDOWN_SECONDS
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.metrics import Metrics
from shuffle_ledger.ledger.health import ALARMS
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage.schema import initialise
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.workers.celery_app import TIME_LIMIT_SECONDS
from shuffle_ledger.workers.queues import QueueNames

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAY = DEPLOY / "kubernetes" / "overlays" / "example"
AUTOSCALED = DEPLOY / "kubernetes" / "overlays" / "autoscaled"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# Only where there is something to say: a broker, a schedule of checkpoints.
SOMETIMES = {"shuffle_ledger_workers", "shuffle_ledger_checkpoint_age_seconds"}
OF_PROMETHEUS = {"up"}
KUBERNETES = "1.33"  # whose schemas the manifests must fit
NAME = re.compile(r"\b(?:shuffle_ledger|process)_[a-z_]+|\bup\b")


def _documents() -> list[dict[str, Any]]:
    files = [*sorted(BASE.glob("*.yaml")), OVERLAY / "https-out.yaml", AUTOSCALED / "worker-autoscaler.yaml"]
    return [each for file in files for each in yaml.safe_load_all(file.read_text("utf-8"))]


PODS = {
    each["metadata"]["name"]: each["spec"]["template"]["spec"]
    for each in _documents()
    if each["kind"] in ("Deployment", "Job")
}


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the samples that a server offers."""
    url = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'ledger.db'}"
    initialise(url)
    with Store.connect(url) as store:
        app = create_app(Settings(broker_url=None), store, Dispatch(decide=lambda *_: pytest.fail("nothing")))
        metrics: Metrics = app.state.metrics
        metrics.observe(method="GET", route="/", status=500, seconds=0.1)
        metrics.observe_decision("admitted", 0.1)
        text = metrics.text().decode()
        metrics.close()
    families = list(text_string_to_metric_families(text))
    samples = {sample.name for family in families for sample in family.samples}
    # A family without samples yet has its name alone.
    empty = {family.name + "_total" * (family.type == "counter") for family in families}
    return samples | empty | SOMETIMES


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alarm_of_the_operations_page_has_a_rule_and_the_rules_a_test() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    documented = re.findall(r"^\| `([A-Z]+) ", page, flags=re.MULTILINE)
    assert sorted(documented) == sorted(ALARMS)
    asked = [word for rule in _rules() for word in re.findall(r'alarm="([A-Z]+)"', rule["expr"])]
    assert sorted(asked) == sorted(ALARMS)
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text("utf-8"))["tests"]
    tried = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert tried == {rule["alert"] for rule in _rules()}
    for rule in _rules():
        file, _, heading = rule["annotations"]["runbook"].partition("#")
        assert f"## {heading.capitalize()}" in (ROOT / file).read_text("utf-8")


def test_rules_and_dashboard_ask_for_metrics_that_exist(offered: set[str]) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) >= 15
    asked = {
        name for query in (*queries, *(rule["expr"] for rule in _rules())) for name in NAME.findall(query)
    }
    assert asked - OF_PROMETHEUS <= offered
    assert {panel["id"] for panel in dashboard["panels"]} == set(range(1, len(dashboard["panels"]) + 1))


@pytest.mark.system
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ],
)
def test_promtool_accepts_the_rules_and_each_alert_fires_and_ends(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool: Debian's package prometheus has it")
    place = DEPLOY / "prometheus"
    done = subprocess.run([promtool, *words], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout + done.stderr


def _arguments_exist(arguments: list[str]) -> None:
    command = main.get_command(click.Context(main), arguments[0])
    assert command is not None, arguments
    command.make_context(arguments[0], arguments[1:], parent=click.Context(main))


@pytest.mark.parametrize("name", PODS)
def test_pods_run_our_commands_with_our_settings_and_no_rights(name: str) -> None:
    (container,) = PODS[name]["containers"]
    _arguments_exist(list(container["args"]))
    for variable in container["env"]:
        assert variable["name"].removeprefix("SHUFFLE_LEDGER_").lower() in Settings.model_fields
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert PODS[name]["securityContext"]["runAsNonRoot"]
    assert PODS[name]["securityContext"]["runAsUser"] == 10001  # as in the Dockerfile
    assert not PODS[name]["automountServiceAccountToken"]
    assert "memory" in container["resources"]["limits"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in PODS[name]["volumes"]}
    if name in ("worker", "scheduler"):
        assert PODS[name]["terminationGracePeriodSeconds"] > TIME_LIMIT_SECONDS
        (beat,) = (each["value"] for each in container["env"] if each["name"].endswith("HEARTBEAT_FILE"))
        assert beat in container["livenessProbe"]["exec"]["command"][-1]


def test_servers_are_drained_before_they_end() -> None:
    (server,) = PODS["server"]["containers"]
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert server[probe]["httpGet"]["path"] in OPEN_PATHS
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text("utf-8"))
    literals = dict(each.split("=", 1) for each in kustomization["configMapGenerator"][0]["literals"])
    drain = float(literals["SHUFFLE_LEDGER_DRAIN_SECONDS"])
    ready = server["readinessProbe"]
    assert drain > ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    assert PODS["server"]["terminationGracePeriodSeconds"] > drain + SHUTDOWN_SECONDS
    for name in literals:
        assert name.removeprefix("SHUFFLE_LEDGER_").lower() in Settings.model_fields


def test_manifests_refer_to_each_other() -> None:
    found = _documents()
    (kustomization,) = (each for each in found if each["kind"] == "Kustomization")
    files = {file.name for file in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    chosen = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text("utf-8"))
    assert chosen["resources"] == ["../../base", "https-out.yaml"]
    deployments = {each["metadata"]["name"]: each for each in found if each["kind"] == "Deployment"}
    assert {each["name"] for each in chosen["replicas"]} <= set(deployments)
    assert deployments["scheduler"]["spec"]["replicas"] == 1
    images = {container["image"] for pod in PODS.values() for container in pod["containers"]}
    assert images == {each["name"] for each in chosen["images"]}
    for name, deployment in deployments.items():
        selected = deployment["spec"]["selector"]["matchLabels"]
        assert selected == deployment["spec"]["template"]["metadata"]["labels"], name
    budgets = [each for each in found if each["kind"] == "PodDisruptionBudget"]
    for budget in budgets:
        assert budget["spec"]["selector"] == deployments[budget["metadata"]["name"]]["spec"]["selector"]
    assert {each["metadata"]["name"] for each in budgets} == {"server", "worker"}


def test_the_autoscaler_follows_a_queue_that_servers_report(offered: set[str]) -> None:
    chosen = yaml.safe_load((AUTOSCALED / "kustomization.yaml").read_text("utf-8"))
    (scaler,) = (each for each in _documents() if each["kind"] == "HorizontalPodAutoscaler")
    assert chosen["resources"] == ["../example", "worker-autoscaler.yaml"]
    target = scaler["spec"]["scaleTargetRef"]
    (patched,) = (each["target"] for each in chosen["patches"])
    assert target["name"] == patched["name"] == "worker"
    assert target["kind"] == patched["kind"] == "Deployment"
    (budget,) = (
        each["spec"]["minAvailable"]
        for each in _documents()
        if each["kind"] == "PodDisruptionBudget" and each["metadata"]["name"] == "worker"
    )
    assert scaler["spec"]["minReplicas"] > budget  # else no node with a worker can be emptied
    (metric,) = (each["external"]["metric"] for each in scaler["spec"]["metrics"])
    assert metric["name"] in offered
    assert metric["selector"]["matchLabels"]["queue"] in QueueNames.__annotations__


@pytest.mark.system
def test_the_overlays_can_be_built() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        # `.ci/run` installs it, and allows no skip.
        pytest.skip("there is no kubectl: the overlays were not built")
    for overlay, replicas in ((OVERLAY, 4), (AUTOSCALED, None)):
        done = subprocess.run(
            [kubectl, "kustomize", str(overlay)], capture_output=True, text=True, check=True
        )
        (worker,) = (
            each
            for each in yaml.safe_load_all(done.stdout)
            if (each["kind"], each["metadata"]["name"]) == ("Deployment", "worker")
        )
        assert worker["spec"].get("replicas") == replicas


def test_sign_in_and_webhooks_reach_those_that_need_them_and_no_others() -> None:
    secrets = {
        name: [each["secretRef"] for each in pod["containers"][0]["envFrom"] if "secretRef" in each][1:]
        for name, pod in PODS.items()
    }
    optional = {
        "server": [{"name": "shuffle-ledger-sign-in", "optional": True}],
        "scheduler": [{"name": "shuffle-ledger-webhooks", "optional": True}],
    }
    assert secrets == {name: optional.get(name, []) for name in PODS}
    text = (OVERLAY / "kustomization.yaml").read_text("utf-8")
    assert all(f"`{each['name']}`" in text for found in optional.values() for each in found)
    (policy,) = yaml.safe_load_all((OVERLAY / "https-out.yaml").read_text("utf-8"))
    (chosen,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert set(chosen["values"]) == set(optional)


def test_the_example_of_an_environment_has_settings_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "systemd" / "environment.example").read_text("utf-8")
    lines = dict(line.split("=", 1) for line in re.findall(r"^#?([A-Z_]+=.+)$", text, flags=re.MULTILINE))
    for name, value in lines.items():
        monkeypatch.setenv(name, value)
        if not name.startswith("OTEL_"):
            assert name.removeprefix("SHUFFLE_LEDGER_").lower() in Settings.model_fields
    settings = Settings()
    assert OidcSettings.of(settings) is not None
    assert settings.webhook_key is not None
    telemetry.check()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_our_commands_with_our_settings(unit: Path) -> None:
    text = unit.read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=\S+/shuffle-ledger (.+)$", text, flags=re.MULTILINE)
    _arguments_exist(line.split())
    for name in re.findall(r"SHUFFLE_LEDGER_([A-Z_]+)", text):
        assert name.lower() in Settings.model_fields, name
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)
    needed = Settings.model_fields["drain_seconds"].default + SHUTDOWN_SECONDS
    assert int(stop) >= (needed if "serve" in line else TIME_LIMIT_SECONDS)


@pytest.mark.system
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_the_units(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze: Debian's package systemd has it")
    copy = tmp_path / unit.name  # with a program that is there
    copy.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text("utf-8")), "utf-8")
    done = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_manifests_are_what_kubernetes_takes() -> None:
    checked = [each for each in _documents() if each["kind"] != "Kustomization"]  # another program's
    assert len(checked) > 5
    for each in checked:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**each, "sepc": {}}, KUBERNETES, strict=True)
