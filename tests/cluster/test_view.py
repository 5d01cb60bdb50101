"""What a node's status is, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dicast.app.cluster.view import NodeStatus, status_of, view
from dicast.workers.nodes.registry import Node, Order, OrderKind, Sighting, Vitals

NODE = Node.for_this_process("w@h", limit=1, slots=4, version="1")
CORDON, DRAIN, REMOVE = (Order(kind[0], kind, "ann") for kind in OrderKind)


def seen(order=None, *, heard_s_ago=0.5, **facts):
    acknowledged = order.id if order else ""
    return Sighting(replace(NODE, **{"order_seen": acknowledged, **facts}), 2, 1.0, heard_s_ago, "silent", order)


@pytest.mark.parametrize(
    ("sighting", "open_calls", "expected"),
    [
        (seen(), 0, (NodeStatus.ONLINE, "")),
        (seen(missing_keys=("b",)), 0, (NodeStatus.ONLINE, "no key for b")),
        (seen(stuck="gate a: full"), 3, (NodeStatus.DEGRADED, "gate a: full")),
        (seen(CORDON), 0, (NodeStatus.CORDONED, "cordon by ann")),
        (seen(CORDON, stuck="gate a: full"), 1, (NodeStatus.CORDONED, "cordon by ann: 1 call open")),
        (seen(CORDON, order_seen=""), 0, (NodeStatus.CORDONED, "cordon by ann, not acknowledged yet")),
        (seen(DRAIN), 2, (NodeStatus.DRAINING, "drain by ann: 2 calls open")),
        (seen(DRAIN), 0, (NodeStatus.CORDONED, "drain by ann: drained")),
        (seen(REMOVE), 0, (NodeStatus.DRAINING, "remove by ann: 0 calls open, then it stops")),
        (seen(heard_s_ago=None), 0, (NodeStatus.OFFLINE, "silent")),
        (seen(CORDON, heard_s_ago=None), 1, (NodeStatus.OFFLINE, "silent; 1 call of it count until their deadlines")),
    ],
)
def test_the_first_that_holds(sighting, open_calls, expected):
    assert status_of(sighting, open_calls) == expected


@pytest.mark.parametrize(
    ("sighting", "open_calls", "acknowledged", "cut"),
    [
        (seen(), 0, True, 0),
        (seen(CORDON), 0, True, 0),
        (seen(CORDON, order_seen=""), 0, False, 0),
        (seen(CORDON, order_seen="", heard_s_ago=None), 0, True, 0),
        (seen(DRAIN), 0, True, 2),
        (seen(DRAIN), 1, True, 0),
        (seen(DRAIN, order_seen=""), 0, False, 2),
        (seen(DRAIN, heard_s_ago=None), 0, True, 0),
        (seen(REMOVE), 0, True, 0),
    ],
)
def test_how_an_order_went_is_told_in_fields_too(sighting, open_calls, acknowledged, cut):
    told = view(replace(sighting, vitals=Vitals(cut=2)), open_calls)
    assert (told.acknowledged, told.cut) == (acknowledged, cut)
    if sighting.heard_s_ago is not None:
        assert acknowledged is ("not acknowledged" not in told.reason)
        assert bool(cut) is ("cut at the deadline" in told.reason)


def test_a_node_that_takes_nothing_has_nothing_available():
    told = {"vitals": Vitals(open=1, available=3)}
    assert view(replace(seen(), **told), 1).available == 3
    for other in (seen(CORDON), seen(DRAIN), seen(heard_s_ago=None)):
        assert view(replace(other, **told), 1).available == 0
