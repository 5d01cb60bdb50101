"""What monitors get from a real server: the metrics that autoscalers go by, and what a fleet is rolled up from."""

from __future__ import annotations

import asyncio

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from dicast.app.application import Dicast
from dicast.app.operator.fleet import FleetMember, ask
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import RulesStatus
from tests.server.serving import JOB


def test_wanted_workers_are_told_while_no_worker_lives(dicast: Dicast, http: httpx2.Client) -> None:
    def value(name: str) -> float:
        (family,) = [f for f in text_string_to_metric_families(http.get("/metrics").text) if f.name == name]
        return family.samples[0].value

    assert (value("dicast_wanted_workers"), value("dicast_living_workers")) == (0, 0)
    dicast.submit(JOB)
    assert (value("dicast_wanted_workers"), value("dicast_living_workers")) == (1, 0)
    assert value("dicast_pool_nodes") == 0
    node = Node.for_this_process("w@h", limit=5, slots=5, version="0", pools=("sim",))
    dicast.registry.announce(node, RulesStatus(5, 5, 0.0, 0.0, "start", 0))
    assert value("dicast_pool_nodes") == 1


def test_a_fleet_understands_a_server(dicast: Dicast, address: str, token: str) -> None:
    node = Node.for_this_process("w@h", limit=5, slots=5, version="0", pools=("sim",))
    dicast.registry.announce(node, RulesStatus(5, 5, 0.0, 0.0, "start", 0))
    with_token, without = asyncio.run(ask([FleetMember("a", address, token), FleetMember("b", address)], 10.0))
    assert with_token.trouble == "" and with_token.status is not None
    assert (with_token.status.installation, [n.name for n in with_token.status.nodes]) == ("dicast", ["w@h"])
    assert with_token.status.by_status["online"] == 1
    assert without.status is None and without.trouble.startswith("it refuses the token (401)")
