"""Manifests, units and the compose file: valid, and every command, setting, port, path and metric in them exists."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml
from celery.bin.celery import celery as celery_command
from prometheus_client import CollectorRegistry

from dicast.app.application import CALL_GRACE_S, create_app
from dicast.app.cli.main import cli
from dicast.app.server.interface import create_server
from dicast.config.pools import Pools
from dicast.config.settings import DEFAULTS, Settings, describe
from tests.command import ROOT
from tests.test_metrics import registry
from tests.test_monitoring_files import Metrics
from tests.test_ops_files import SERVICES, filled

__all__ = ["registry"]

DEPLOY = ROOT / "config" / "deploy"
MANIFESTS = {
    f"{path.stem}/{document['kind']}": document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
}
"""By file and kind; where a file has several of a kind, the last."""
OF_KUBERNETES = {
    name: document for name, document in MANIFESTS.items() if document["kind"] not in {"ScaledObject", "Kustomization"}
}
PODS = {name: d["spec"]["template"]["spec"] for name, d in MANIFESTS.items() if d["kind"] == "Deployment"}
CONTAINERS = {name: pod["containers"][0] for name, pod in PODS.items()}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
COMMANDS: Any = typer.main.get_command(cli)
SETTINGS = {name for name, _, _ in describe()}
SECRETS = {"DICAST_REDIS_PASSWORD", "OPENAI_API_KEY", "DICAST_TOKEN_SECRET"}
VERSIONS = ("1.29", "1.37")

COUNT = {"type": "integer", "minimum": 0}
BEHAVIOUR = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
        "policies": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["type", "value", "periodSeconds"],
                "properties": {
                    "type": {"enum": ["Pods", "Percent"]},
                    "value": {"type": "integer", "minimum": 1},
                    "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
                },
            },
        },
    },
}
SCALED_OBJECT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object", "required": ["name", "namespace"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["scaleTargetRef", "triggers"],
            "properties": {
                "scaleTargetRef": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name"],
                    "properties": {name: {"type": "string"} for name in ("apiVersion", "kind", "name")},
                },
                "pollingInterval": COUNT,
                "cooldownPeriod": COUNT,
                "minReplicaCount": COUNT,
                "maxReplicaCount": COUNT,
                "fallback": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["failureThreshold", "replicas"],
                    "properties": {"failureThreshold": COUNT, "replicas": COUNT},
                },
                "advanced": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "horizontalPodAutoscalerConfig": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "behavior": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "properties": {"scaleUp": BEHAVIOUR, "scaleDown": BEHAVIOUR},
                                }
                            },
                        }
                    },
                },
                "triggers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["type", "metadata"],
                        "properties": {
                            "type": {"const": "prometheus"},
                            "metricType": {"enum": ["AverageValue", "Value"]},
                            "metadata": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["serverAddress", "query", "threshold"],
                                "properties": {
                                    "serverAddress": {"type": "string", "pattern": "^https?://"},
                                    "query": {"type": "string", "minLength": 1},
                                    "threshold": {"type": "string", "pattern": r"^\d+(\.\d+)?$"},
                                    "activationThreshold": {"type": "string", "pattern": r"^\d+(\.\d+)?$"},
                                    "ignoreNullValues": {"enum": ["true", "false"]},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What is used of KEDA's ScaledObject and its prometheus scaler, after https://keda.sh/docs/latest/reference/
scaledobject-spec/ and .../scalers/prometheus/."""


# ------------------------------------------------------------------ Kubernetes
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OF_KUBERNETES)
def test_a_manifest_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(OF_KUBERNETES[name], version, strict=True)


def test_a_mistake_in_a_manifest_is_seen() -> None:
    wrong = {**OF_KUBERNETES["server/Service"], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_the_scaled_object_is_one_of_keda_s() -> None:
    jsonschema.validate(MANIFESTS["keda/ScaledObject"], SCALED_OBJECT)
    wrong = yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())
    wrong["spec"]["triggers"][0]["metadata"]["threshold"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCALED_OBJECT)


def test_the_kustomization_names_all_but_the_autoscalers() -> None:
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    named = MANIFESTS["kustomization/Kustomization"]["resources"]
    assert set(named) == files - {"kustomization.yaml", "keda.yaml", "autoscaler.yaml"}


def test_everything_is_in_the_namespace() -> None:
    namespace = MANIFESTS["namespace/Namespace"]["metadata"]["name"]
    others = [d for d in MANIFESTS.values() if d["kind"] not in {"Namespace", "Kustomization"}]
    assert {d["metadata"]["namespace"] for d in others} == {namespace}


def test_selectors_find_their_pods_and_autoscalers_their_workers() -> None:
    labels = {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"]
        for d in MANIFESTS.values()
        if d["kind"] == "Deployment"
    }
    for document in MANIFESTS.values():
        selector = document.get("spec", {}).get("selector")
        if selector is not None:
            assert selector.get("matchLabels", selector) == labels[document["metadata"]["name"]]
    for name in ("keda/ScaledObject", "autoscaler/HorizontalPodAutoscaler"):
        assert MANIFESTS[name]["spec"]["scaleTargetRef"]["name"] == "dicast-worker"
    assert "replicas" not in MANIFESTS["worker/Deployment"]["spec"], "it would undo what an autoscaler has set"
    assert MANIFESTS["beat/Deployment"]["spec"]["replicas"] == 1


def test_autoscalers_go_by_a_metric_that_there_is(registry: CollectorRegistry) -> None:
    (trigger,) = MANIFESTS["keda/ScaledObject"]["spec"]["triggers"]
    assert Metrics(registry).of(trigger["metadata"]["query"]) == frozenset()
    (metric,) = MANIFESTS["autoscaler/HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] in Metrics(registry).labels
    assert MANIFESTS["keda/ScaledObject"]["spec"]["minReplicaCount"] == 0


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pod_is_restricted(name: str) -> None:
    pod, container = PODS[name], CONTAINERS[name]
    assert len(pod["containers"]) == 1
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def settings_of(name: str) -> dict[str, str]:
    """The environment of a container, with a stand-in for each secret."""
    given = dict(MANIFESTS_OF_SETTINGS)
    for variable in CONTAINERS[name]["env"]:
        given[variable["name"]] = variable.get("value", "a stand-in for a secret, 32 characters or more")
    return given


MANIFESTS_OF_SETTINGS: dict[str, str] = next(
    document["data"]
    for document in yaml.safe_load_all((DEPLOY / "kubernetes" / "settings.yaml").read_text())
    if document["metadata"]["name"] == "dicast"
)


@pytest.mark.parametrize("name", CONTAINERS)
def test_settings_are_known_accepted_and_kept_where_a_volume_is(name: str) -> None:
    given = settings_of(name)
    assert given.keys() <= SETTINGS
    settings = Settings.from_env(given)
    places = [mount["mountPath"] for mount in CONTAINERS[name]["volumeMounts"]]
    for path in (settings.results_dir, settings.state_dir, settings.upload_dir, settings.pools_file):
        assert any(Path(path).is_relative_to(place) for place in places), path


@pytest.mark.parametrize("name", CONTAINERS)
def test_secrets_come_by_reference_and_the_document_makes_them(name: str) -> None:
    text = (ROOT / "docs" / "deployment.md").read_text()
    for variable in CONTAINERS[name]["env"]:
        assert ("valueFrom" in variable) is (variable["name"] in SECRETS), variable["name"]
        if "valueFrom" in variable:
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference["name"] == "dicast" and f"--from-literal={reference['key']}=" in text
    assert not SECRETS & MANIFESTS_OF_SETTINGS.keys()


def test_the_pools_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "pools.toml"
    path.write_text(MANIFESTS["settings/ConfigMap"]["data"]["pools.toml"])
    assert Pools.load(path).default == "openai"


def test_ports_and_paths_are_those_that_are_served(tmp_path: Path) -> None:
    worker, server = CONTAINERS["worker/Deployment"], CONTAINERS["server/Deployment"]
    (metrics,), (http,) = worker["ports"], server["ports"]
    assert metrics["containerPort"] == Settings.from_env(settings_of("worker/Deployment")).metrics_port
    assert http["containerPort"] == Settings.from_env(settings_of("server/Deployment")).server_port
    annotations = MANIFESTS["worker/Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(metrics["containerPort"])
    (port,) = MANIFESTS["server/Service"]["spec"]["ports"]
    assert port["targetPort"] == http["name"]
    for container in CONTAINERS.values():
        for probe in ("livenessProbe", "readinessProbe"):
            given = container.get(probe, {})
            for asked in (given[kind] for kind in ("httpGet", "tcpSocket") if kind in given):
                assert asked["port"] in {port["name"] for port in container["ports"]}
    app = create_app({"DICAST_STATE_DIR": str(tmp_path), "REDIS_URL": "redis://127.0.0.1:1/0"})
    routes = create_server(app).openapi()["paths"].keys()
    assert {server[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} <= routes


def drain() -> list[str]:
    shell, option, script = CONTAINERS["worker/Deployment"]["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c") and script.startswith("exec ")
    return shlex.split(script.removeprefix("exec "))


def test_a_worker_has_time_to_let_its_calls_end_and_then_to_stop() -> None:
    call_s = Settings.from_env(settings_of("worker/Deployment")).llm_call_timeout + CALL_GRACE_S
    deadline_s = int(drain()[drain().index("--deadline") + 1])
    assert deadline_s > call_s, "or a drain would cut calls, which are made again"
    assert PODS["worker/Deployment"]["terminationGracePeriodSeconds"] >= deadline_s + 60
    assert MANIFESTS["worker/PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


# ------------------------------------------------------------------ commands
def is_known(words: list[str]) -> bool:
    """Whether a command line is one of Celery's or Dicast's with options that it has."""
    program, *rest = words
    command: Any = {"celery": celery_command, "dicast": COMMANDS}[Path(program).name]
    try:
        while True:
            _, rest, _ = command.make_parser(command.context_class(command)).parse_args(rest)
            if not hasattr(command, "commands"):
                return True
            command, rest = command.commands[rest[0]], rest[1:]
    except (click.UsageError, typer.exceptions.TyperException, LookupError):
        return False


def commands_of_containers() -> Iterator[tuple[str, list[str]]]:
    for name, container in CONTAINERS.items():
        yield name, container["command"]
        for probe in ("livenessProbe", "readinessProbe"):
            if "exec" in container.get(probe, {}):
                yield f"{name} {probe}", container[probe]["exec"]["command"]


@pytest.mark.parametrize("name, words", list(commands_of_containers()))
def test_a_container_runs_a_command_that_there_is(name: str, words: list[str]) -> None:
    assert is_known(words)


@pytest.mark.parametrize(
    "line", ["dicast healthy", "dicast health --beet", "celery -A dicast works", "dicast cluster x"]
)
def test_a_command_that_there_is_not_is_seen(line: str) -> None:
    assert not is_known(line.split())


def test_a_worker_is_drained_before_it_is_stopped() -> None:
    program, group, verb, node, *_ = drain()
    assert (program, group, verb, node) == ("dicast", "cluster", "drain", "celery@$HOSTNAME")
    assert is_known(drain())


# ------------------------------------------------------------------ systemd
def parsed(unit: Path) -> dict[str, dict[str, list[str]]]:
    """Sections and keys of a unit; a key may stand several times."""
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, separator, value = line.partition("=")
            assert separator, line
            section.setdefault(key, []).append(value)
    return found


by_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


@by_unit
def test_a_unit_runs_a_command_that_there_is_with_settings_that_there_are(unit: Path) -> None:
    service = parsed(unit)["Service"]
    (command,) = service["ExecStart"]
    assert is_known(shlex.split(command.replace("%%", "%")))
    given = dict(pair.split("=", 1) for pair in service["Environment"])
    assert given.keys() <= SETTINGS
    kept = ["/etc/dicast", *(f"/var/lib/{name}" for name in service["StateDirectory"][0].split())]
    for name, path in given.items():
        assert path in kept or str(Path(path).parent) == "/etc/dicast", name


@by_unit
def test_a_unit_is_hardened_and_comes_back(unit: Path) -> None:
    service = parsed(unit)["Service"]
    assert service["User"] == ["dicast"]
    for key, value in {
        "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
        "PrivateTmp": "yes", "PrivateDevices": "yes", "RestrictNamespaces": "yes", "RestrictSUIDSGID": "yes",
        "SystemCallFilter": "@system-service", "Restart": "on-failure",
    }.items():  # fmt: skip
        assert service[key] == [value], key
    needs_s = DEFAULTS.llm_call_timeout + CALL_GRACE_S if "worker" in unit.name else 0
    assert int(service["TimeoutStopSec"][0]) > needs_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@by_unit
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is here in place of the installed one."""
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"/opt/dicast/bin/\w+", sys.executable, unit.read_text()))
    run = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("ProtectSystem=strict", "ProtectSistem=strict"))
    again = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "ProtectSistem" in again.stderr


# ------------------------------------------------------------------ compose
KEYS_OF_A_SERVICE = {
    "build", "image", "restart", "env_file", "environment", "volumes", "depends_on", "command", "deploy", "ports",
    "healthcheck", "stop_grace_period",
}  # fmt: skip
"""Of the compose specification, those that are used."""


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_the_form_that_compose_takes(name: str) -> None:
    service, compose = SERVICES[name], yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert service.keys() <= KEYS_OF_A_SERVICE
    assert all(isinstance(value, str) for value in service["environment"].values()), "a bare yes or 1 is no text"
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert source.startswith(".") or source in compose["volumes"]
    for other, how in service.get("depends_on", {}).items():
        assert other in SERVICES and how == {"condition": "service_healthy"}
    assert service["healthcheck"].keys() <= {"test", "interval", "timeout", "start_period", "retries"}


def test_compose_runs_two_workers_and_the_server() -> None:
    assert SERVICES["worker"]["deploy"] == {"replicas": 2}
    server = {name: filled(value) for name, value in SERVICES["server"]["environment"].items()}
    settings = Settings.from_env(server)
    assert SERVICES["server"]["ports"] == [f"127.0.0.1:{settings.server_port}:{settings.server_port}"]
    assert settings.require_auth
    grace_s = int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > DEFAULTS.llm_call_timeout + CALL_GRACE_S
    for service in ("worker", "beat", "server"):
        assert is_known(shlex.split(SERVICES[service]["command"]))
