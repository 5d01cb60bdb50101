"""Which work no living node may take, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.app.cluster.cluster import unsatisfied
from dicast.app.cluster.view import NodeStatus, view
from dicast.config.pools import Pools
from dicast.workers.nodes.registry import Node, Sighting

POOLS = Pools.parse("""
default = "sim"
[pools.sim]
provider = "simulated"
[pools.far]
provider = "openai"
model = "m"
labels = { region = "far", disk = "ssd" }
""").pools.values()
WAIT = "the units of pool far wait, for no living node takes them: "


def a_node(name="w", status=NodeStatus.ONLINE, **facts):
    sighting = Sighting(Node.for_this_process(name, limit=1, slots=1), heard_s_ago=0.0)
    facts = {"pools": ["sim"], "version": "1", "labels": {"disk": "ssd"}, **facts}
    return replace(view(sighting, 0), status=status, **facts)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([a_node()], {"far": WAIT + "w lacks the label region=far"}),
        ([a_node(labels={})], {"far": WAIT + "w lacks the label disk=ssd, region=far"}),
        ([a_node(missing_keys=["far"])], {"far": WAIT + "w has no OPENAI_API_KEY"}),
        ([a_node(labels={"region": "far", "disk": "ssd"})], {"far": WAIT + "none reads its queue"}),
        ([a_node(), a_node("v", NodeStatus.CORDONED, pools=["far"])], {"far": WAIT + "cordoned is v"}),
        ([a_node(), a_node("v", NodeStatus.DEGRADED, pools=["far"])], {}),
        ([a_node(), a_node("v", NodeStatus.OFFLINE, pools=["far"])], {"far": WAIT + "w lacks the label region=far"}),
        ([a_node(), a_node("of another version", version="")], {}),
        ([a_node(status=NodeStatus.OFFLINE)], {}),
        ([], {}),
        (
            [a_node(str(n)) for n in range(5)],
            {"far": WAIT + ", ".join(f"{n} lacks the label region=far" for n in range(3)) + " and 2 more"},
        ),
    ],
)
def test_what_is_said(nodes, said):
    assert unsatisfied(POOLS, nodes) == said
