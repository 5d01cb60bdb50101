"""What is known of pools and nodes as plain data, and which limit binds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dicast.app.application import Dicast
from dicast.app.cluster.snapshot import SharedState
from dicast.app.operator import pools
from dicast.workers.admission.leases import OpenLease
from dicast.workers.admission.pool_state import ModelHealth
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import RulesStatus
from tests.server.serving import installation
from tests.workers.test_pool_state import CALM


@pytest.fixture
def dicast(tmp_path: Path, redis_url: str) -> Dicast:
    return installation(tmp_path, redis_url)


def lease(name: str, pool: str, node: str) -> OpenLease:
    return OpenLease(
        lease=name, pool=pool, project="p", job="j", node=node, age_s=1.0, left_s=9.0, unit="", probe=False
    )


def test_everything_that_is_known_is_told_pool_by_pool_and_node_by_node(dicast: Dicast) -> None:
    one, two = (Node.for_this_process(name, limit=5, slots=5) for name in ("w1@h", "w2@h"))
    status = RulesStatus(5, 5, 0.0, 0.0, "start", 0)
    leases = [lease("a", "sim", one.id), lease("b", "sim", one.id), *(lease(f"c{n}", "gone", two.id) for n in range(7))]
    state = replace(CALM, pool="sim", slo=6, health={"m": ModelHealth(3.0, 4.0, 6.0)})
    told = pools.document(dicast, SharedState([state], [(one, status), (two, status)], leases))
    assert told["slo"] == 6
    assert [(pool["pool"], pool["live"]) for pool in told["pools"]] == [("sim", True), ("other", False)]
    assert [each["lease"] for each in told["pools"][0]["leases"]] == ["a", "b"]
    assert (told["pools"][0]["error_rate"], told["pools"][0]["latency_s"]) == (pytest.approx(0.25), 2.0)
    assert [(node["node"], node["host"], node["free"]) for node in told["nodes"]] == [
        ("w1@h", one.host, 3), ("w2@h", two.host, 0),
    ]  # fmt: skip
    assert told["summary"] == pools.summary([state]) and told["summary"]["ready"] == 1
    empty = pools.document(dicast, SharedState([], []))
    assert (empty["slo"], empty["nodes"], [pool["pool"] for pool in empty["pools"]]) == (None, [], ["other", "sim"])


def test_one_pool_is_looked_at_alone(dicast: Dicast) -> None:
    pools.change(dicast, "other", {"limit": 3})
    pools.change(dicast, "sim", {"limit": 4})
    assert sorted(state.pool for state in pools.read_state(dicast).pools) == ["other", "sim"]
    assert [state.pool for state in pools.read_state(dicast, "sim").pools] == ["sim"]


def test_a_cap_on_all_is_set_read_and_lifted(dicast: Dicast) -> None:
    assert pools.cap_of_all(dicast) is None
    pools.cap_all(dicast, 7)
    assert pools.cap_of_all(dicast) == 7
    pools.cap_all(dicast, None)
    assert pools.cap_of_all(dicast) is None


@pytest.mark.parametrize("changes, binds", [
    ({"override": {}}, None),
    ({"override": {"limit": 40}, "job_limit": 50}, None),
    ({"override": {"limit": 50}, "job_limit": 50}, None),
    ({"override": {"limit": 60}, "job_limit": 50}, "60 is set, and MAX_CONCURRENT_LLM_CALLS of the running job"),
    ({"override": {"ceiling": 60}, "job_limit": 50, "slo": 9}, "60 is set, and the SLO (9) binds"),
    ({"override": {"limit": 60, "ceiling": 70}, "job_limit": 65}, "70 is set, and MAX_CONCURRENT_LLM_CALLS of the ru"),
    ({"override": {"limit": 60}, "job_limit": None, "budget_cap": 4}, "60 is set, and the SLO's error budget (4)"),
])  # fmt: skip
def test_the_smallest_of_the_limits_below_what_is_set_binds(changes: dict[str, object], binds: str | None) -> None:
    bound = pools.bound(replace(CALM, **changes), {})
    assert bound is None if binds is None else bound is not None and bound.startswith(binds)


def test_an_override_of_a_project_stays_beside_those_of_others(dicast: Dicast) -> None:
    pools.change(dicast, "sim", {"weights": {"a": 2.0, "b": 3.0}})
    assert pools.change(dicast, "sim", {"weights": {"b": None, "c": 1.0}}).weights == {"a": 2.0, "c": 1.0}
    assert pools.in_force(pools.change(dicast, "sim", {"limit": 5})) == {"limit": 5, "weights": {"a": 2.0, "c": 1.0}}
