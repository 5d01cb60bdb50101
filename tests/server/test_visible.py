"""What a bound token sees of open calls and of the shared state, to the last case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dicast.app.access.scopes import Claims
from dicast.app.cluster.cluster import ClusterStatus
from dicast.app.cluster.snapshot import SharedState
from dicast.app.cluster.view import NodeStatus
from dicast.app.ledger.client import UnknownJob
from dicast.app.server.bounds import cluster_status, visible_leases, visible_state
from dicast.workers.admission.leases import OpenLease

POOLS = {"own": ["a"], "both": ["a", "b"], "foreign": ["b"]}


def parts(asked: list[str] | None = None) -> Any:
    def pools(job: str) -> list[str]:
        (asked if asked is not None else []).append(job)
        if job not in POOLS:
            raise UnknownJob(job)
        return POOLS[job]

    return SimpleNamespace(dicast=SimpleNamespace(ledger=SimpleNamespace(pools=pools)))


def claims(pools: set[str] | None = None, node: str = "") -> Claims:
    return Claims("s", "id", frozenset(), 1, 0.0, node, None if pools is None else frozenset(pools))


def lease(job: str, pool: str) -> OpenLease:
    return OpenLease(f"{job}-{pool}", pool, "default", job, "n", 1.0, 1.0, probe=False)


LEASES = [lease("own", "a"), lease("both", "a"), lease("both", "b"), lease("foreign", "b"), lease("gone", "a")]


def seen(of: Claims, asked: list[str] | None = None) -> list[str]:
    return [found.lease for found in visible_leases(parts(asked), of, LEASES)]


def test_leases_of_unknown_jobs_are_seen_by_tokens_for_all_pools_alone() -> None:
    assert seen(claims({"a"})) == ["own-a"]
    assert seen(claims({"a", "b"})) == ["own-a", "both-a", "both-b", "foreign-b"]
    assert seen(claims(set())) == []
    assert seen(claims(None, "n")) == [found.lease for found in LEASES]


def test_the_ledger_is_asked_once_for_each_job_that_matters() -> None:
    """Not of jobs in other pools, and of none for a token for all."""
    asked: list[str] = []
    seen(claims({"a"}), asked)
    assert sorted(asked) == ["both", "gone", "own"]
    asked.clear()
    seen(claims(None), asked)
    assert asked == []


def test_a_bound_token_is_told_of_its_own_pools_alone_that_nobody_serves_them() -> None:
    whole = ClusterStatus(
        installation="i", nodes=[], by_status={}, capacity=0, available=0, open=0, waiting={"a": 3, "b": 4},
        oldest_wait_s=5.0, unsatisfied=["both"],
    )  # fmt: skip
    unserved = {"a": "why", "b": "why"}
    cluster = SimpleNamespace(status=lambda: whole, unsatisfied=lambda: unserved, nodes=lambda status=None: [])
    installation: Any = SimpleNamespace(dicast=SimpleNamespace(cluster=cluster))
    assert cluster_status(installation, claims()) is whole
    bound = cluster_status(installation, claims({"a"}))
    assert (bound.waiting, bound.oldest_wait_s) == ({"a": 3}, None)
    assert bound.unsatisfied == ["the units of pool a wait, for no living node takes them"]
    assert cluster_status(installation, claims({"a", "b"})).oldest_wait_s == 5.0


def test_the_state_is_seen_whole_only_by_a_token_without_bounds() -> None:
    pools: list[Any] = [SimpleNamespace(pool="a"), SimpleNamespace(pool="b")]
    nodes: list[Any] = [
        (SimpleNamespace(id="1", name="one", pools=["a"]), NodeStatus.ONLINE),
        (SimpleNamespace(id="2", name="two", pools=["b"]), NodeStatus.ONLINE),
    ]
    shared = SharedState(pools=pools, nodes=nodes, leases=LEASES)
    assert visible_state(parts(), claims(), shared) is shared
    bound = visible_state(parts(), claims({"a"}), shared)
    assert ([p.pool for p in bound.pools], [node.id for node, _ in bound.nodes]) == (["a"], ["1"])
    assert [found.lease for found in bound.leases] == ["own-a"]
    for name in ("2", "two"):
        of_node = visible_state(parts(), claims(None, name), shared)
        assert ([p.pool for p in of_node.pools], [node.id for node, _ in of_node.nodes]) == (["a", "b"], ["2"])
        assert of_node.leases == LEASES
    assert visible_state(parts(), claims({"a"}, "two"), shared).nodes == []
