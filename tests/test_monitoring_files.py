"""Dashboard, scrape configuration and rules: each expression parses, and names only metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from dicast.app.access.scopes import Scope
from dicast.config.settings import DEFAULTS, describe
from tests.command import ROOT
from tests.test_documents import anchors
from tests.test_metrics import registry

__all__ = ["registry"]

FOLDER = ROOT / "config" / "monitoring"
RULES = yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_THE_SCRAPE = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
ALERTS = [rule for group in RULES for rule in group["rules"] if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for group in RULES for rule in group["rules"] if "record" in rule}
EXPRESSIONS = [
    *((name, expression) for name, expression in RECORDED.items()),
    *((rule["alert"], rule["expr"]) for rule in ALERTS),
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
]

Labels = frozenset[str] | None
"""Of a vector; None of a number."""


class Metrics:
    """What may be named: metrics of the code and of recording rules, with their labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.labels: dict[str, frozenset[str]] = {}
        samples: Iterator[Sample] = (sample for family in registry.collect() for sample in family.samples)
        for sample in samples:
            known = self.labels.get(sample.name, frozenset())
            self.labels[sample.name] = known | frozenset(sample.labels) | OF_THE_SCRAPE
        for name, expression in RECORDED.items():
            self.labels[name] = self.of(expression) or frozenset()

    def of(self, expression: str) -> Labels:
        """The labels of an expression's result; an AssertionError names what is not there."""
        return self._of(promql.parse(plain(expression)))

    def _of(self, node: Any) -> Labels:
        if isinstance(node, promql.VectorSelector):
            assert node.name in self.labels, f"there is no metric {node.name}"
            found = self.labels[node.name]
            asked = {matcher.name for matcher in node.matchers.matchers}
            assert asked <= found, f"{node.name} has no {asked - found}"
            return found
        if isinstance(node, promql.MatrixSelector):
            return self._of(node.vector_selector)
        if isinstance(node, promql.AggregateExpr):
            inner, by = self._of(node.expr) or frozenset(), frozenset(node.modifier.labels if node.modifier else ())
            assert by <= inner, f"{node.prettify()}: no {by - inner}"
            return by
        if isinstance(node, promql.Call):
            of_args = [self._of(argument) for argument in node.args]
            return frozenset() if node.func.name == "absent" else next((a for a in of_args if a is not None), None)
        if isinstance(node, promql.BinaryExpr):
            return self._of_both(node)
        if isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
            return self._of(node.expr)
        assert isinstance(node, promql.NumberLiteral), node
        return None

    def _of_both(self, node: Any) -> Labels:
        left, right = self._of(node.lhs), self._of(node.rhs)
        if left is None or right is None:
            return right if left is None else left
        if node.modifier and node.modifier.matching:
            on = frozenset(node.modifier.matching.labels)
            assert on <= left & right, f"{node.prettify()}: no {on - (left & right)} on both sides"
        else:
            assert left == right, f"{node.prettify()} never matches: {left} and {right}"
        return left


def plain(expression: str) -> str:
    """Without Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$pool", ".*")


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


@pytest.mark.parametrize("name, expression", EXPRESSIONS)
def test_what_an_expression_names_exists(metrics: Metrics, name: str, expression: str) -> None:
    assert metrics.of(expression) is not None


@pytest.mark.parametrize(
    "expression, said",
    [
        ("max by (pool) (dicast_pool_opened)", "no metric dicast_pool_opened"),
        ('dicast_pool_open{model="m"}', "dicast_pool_open has no {'model'}"),
        ("max by (model) (dicast_pool_open)", "no frozenset({'model'})"),
        ("dicast_pool_open > on (node) dicast_node_stuck", "no frozenset({'node'}) on both sides"),
        ("dicast_pool_open / dicast_pool_success_rate", "never matches"),
    ],
)
def test_a_mistake_is_seen(metrics: Metrics, expression: str, said: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(said)):
        metrics.of(expression)


def test_an_expression_that_is_none_is_seen(metrics: Metrics) -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        metrics.of("sum by (pool (dicast_pool_open)")


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_has_a_runbook_and_tells_of_labels_that_it_has(metrics: Metrics, alert: dict[str, Any]) -> None:
    assert re.fullmatch("Dicast([A-Z][a-z]+)+", alert["alert"])
    assert alert["labels"]["severity"] in {"critical", "warning"}
    file, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert file == "docs/monitoring.md" and anchor in anchors(ROOT / file)
    told = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert told <= (metrics.of(alert["expr"]) or frozenset())
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[mh]", alert.get("for", "0m"))


def test_names_of_alerts_and_groups_are_used_once() -> None:
    names = [rule["alert"] for rule in ALERTS] + [group["name"] for group in RULES]
    assert len(names) == len(set(names))


def test_every_alert_has_its_line_in_the_document() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    assert set(re.findall(r"\bDicast[A-Z][A-Za-z]+\b", text)) == {rule["alert"] for rule in ALERTS}


def test_the_troubles_that_are_to_be_heard_of_have_an_alert() -> None:
    heard = {rule["alert"] for rule in ALERTS}
    assert heard >= {
        "DicastPoolDown", "DicastRateLimitStorm", "DicastStoreAway", "DicastNoWorkerForPool", "DicastNodeStuck",
        "DicastAssignmentsConcentrated", "DicastErrorBudgetBurnsFast", "DicastDeadLetters",
    }  # fmt: skip


# ------------------------------------------------------------------ the dashboard
def test_legends_name_labels_that_their_series_have(metrics: Metrics) -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named <= (metrics.of(target["expr"]) or frozenset()), panel["title"]


def test_variables_ask_for_labels_that_exist_and_are_all_used(metrics: Metrics) -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    for name in ("job", "pool"):
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["definition"])
        assert asked and asked[2] in metrics.labels[asked[1]]
    text = json.dumps(PANELS)
    used = set(re.findall(r"\$\{?([a-z]+)", text.replace("$__rate_interval", "")))
    assert used == variables.keys()


def test_panels_have_a_place_of_their_own() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine


# ------------------------------------------------------------------ the scrape configuration
def test_the_scrape_configuration_names_files_ports_and_settings_that_exist() -> None:
    text = (FOLDER / "prometheus.yaml").read_text()
    config = yaml.safe_load(text)
    assert config.keys() == {"global", "rule_files", "scrape_configs"}
    assert [file for file in config["rule_files"] if not (FOLDER / file).exists()] == []
    workers, server = config["scrape_configs"]
    assert _port(workers) == 9540 and "::9540" in (ROOT / "docker-compose.yml").read_text()
    assert _port(server) == DEFAULTS.server_port
    assert server["relabel_configs"] == [{"target_label": "job", "replacement": workers["job_name"]}]
    assert set(re.findall(r"DICAST_\w+", text)) <= {name for name, _, _ in describe()}
    (scope,) = re.findall(r"scope (\S+)\n", text)
    assert scope in set(Scope)


def _port(scrape: dict[str, Any]) -> int:
    ((target,),) = [config["targets"] for config in scrape["static_configs"]]
    return int(target.rpartition(":")[2])
