"""Nodes are cordoned, drained, removed and stolen from while units flow; told by the provider and the logs."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime

import pytest

from dicast.app.cluster.cluster import NodeBusy
from dicast.app.cluster.view import NodeStatus
from dicast.app.operator import waiting
from dicast.app.operator.jobs import cancel, resume
from dicast.app.operator.waiting import depth
from tests.e2e.cluster import a_job, until
from tests.e2e.servers import RabbitMQ, needs_rabbitmq
from tests.patience import Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def by_name(cluster, name):
    (found,) = [node for node in cluster.app.cluster.nodes() if node.name.startswith(f"{name}@")]
    return found


def granted(cluster, node):
    """When leases were granted to a node, Unix seconds, by its log."""
    return [
        datetime.fromisoformat(line["ts"]).timestamp()
        for line in cluster.logs()
        if line.get("event") == "acquired" and line.get("node") == node
    ]


def flows_on(cluster, job_id):
    before = cluster.done(job_id)
    until(lambda: cluster.done(job_id) > before + 20, "it flows again")


def test_after_its_acknowledgement_a_cordoned_node_begins_no_call(cluster):
    check_that_a_cordoned_node_begins_no_call(cluster)


@needs_rabbitmq
def test_a_cordoned_node_takes_nothing_from_rabbitmq(cluster, tmp_path):
    rabbitmq = RabbitMQ(tmp_path / "rabbitmq")
    try:
        check_that_a_cordoned_node_begins_no_call(cluster, rounds=1, DICAST_BROKER_URL=rabbitmq.url)
    finally:
        rabbitmq.stop()


def check_that_a_cordoned_node_begins_no_call(cluster, rounds=3, items=40, **settings):
    """The only node: what the provider sees after that would have begun after that."""
    c = cluster(
        "--latency", "0.05", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="20", DICAST_WINDOW_SECONDS="60", **settings
    )  # fmt: skip
    c.worker()
    job_id = c.submit(a_job(agents=1, items=items))
    until(lambda: c.done(job_id) > 10, "it flows")
    for _ in range(rounds):
        view = c.app.cluster.cordon("w0", by="test")
        at = c.app.store.time()
        assert view.status is NodeStatus.CORDONED, view.reason
        assert "not acknowledged" not in view.reason
        time.sleep(0.03)  # a request that was on its way arrives
        calls = c.provider.stats()["calls"]
        until(lambda: c.app.cluster.node("w0").open == 0, "open calls end")
        until(lambda: c.app.cluster.node("w0").held == 0, "what waited goes back")
        assert c.provider.stats()["calls"] == calls
        assert [t for t in granted(c, view.id) if t > at[0] + at[1] / 1e6] == []
        assert c.app.cluster.cordon("w0", by="test").status is NodeStatus.CORDONED, "twice is once"
        assert c.app.cluster.uncordon("w0", by="test").status is NodeStatus.ONLINE
        flows_on(c, job_id)
    report = c.report(job_id)
    assert report["scored"] == report["calls"] == c.provider.stats()["calls"] == 10 * items
    c.quiet()


def test_a_drained_node_ends_its_calls_and_another_does_the_rest(cluster):
    """None is made again; one whose deadline is short hands the rest back, and says how much that was."""
    c = cluster("--latency", "4", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="8", DICAST_WINDOW_SECONDS="60")
    first, _ = c.worker("-c", "4"), c.worker("-c", "4")
    job_id = c.submit(a_job(agents=1, items=6))
    # What is granted and has not begun when the order comes goes back.
    until(lambda: by_name(c, "w0").open == 4 and c.provider.stats()["open"] == 8, "it works")
    view = c.app.cluster.drain("w0", by="test", deadline_s=30)
    assert (view.status, view.available) == (NodeStatus.DRAINING, 0)
    c.provider.control(latency=0.1, answer=True)
    view = until(lambda: (v := by_name(c, "w0")).status is NodeStatus.CORDONED and v, "it is drained")
    assert view.reason == "drain by test: drained"
    assert until(lambda: by_name(c, "w0").held == 0, "it holds nothing") is True
    report = c.report(job_id)
    assert (report["scored"], report["calls"], c.provider.stats()["calls"]) == (60, 60, 60)

    c.app.cluster.uncordon("w0", by="test")
    until(lambda: by_name(c, "w0").status is NodeStatus.ONLINE, "it takes work again")
    c.provider.control(latency=5)
    job_id = c.submit(a_job(agents=1, dimensions=8))
    # The eighth may wait at the worker that is full.
    until(lambda: by_name(c, "w0").open == 4 and c.provider.stats()["open"] >= 7, "it works again")
    c.app.cluster.drain("w0", by="test", deadline_s=0)
    until(lambda: by_name(c, "w0").reason == "drain by test: drained, 4 calls cut at the deadline", "it says so")
    c.provider.control(latency=0.1, answer=True)
    assert c.report(job_id)["scored"] == 8
    assert first.process.poll() is None
    c.quiet()


def test_a_removed_node_ends_its_process_and_is_listed_no_more(cluster):
    c = cluster("--latency", "5", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="2", LLM_CALL_TIMEOUT="20")
    busy, idle = c.worker(), c.worker("-Q", "dicast.control,dicast.beat")
    job_id = c.submit(a_job(agents=1, dimensions=2))
    until(lambda: by_name(c, "w0").open == 2, "it is busy")
    with pytest.raises(NodeBusy, match="2 calls open"):
        c.app.cluster.remove("w0", by="test")
    assert by_name(c, "w0").status is NodeStatus.ONLINE
    c.app.cluster.remove("w1", by="test")
    assert idle.process.wait(20) == 0
    until(lambda: len(c.app.cluster.nodes()) == 1, "it is listed no more")
    c.app.cluster.remove("w0", by="test", force=True)
    assert busy.process.wait(20) == 0
    assert c.app.cluster.nodes() == []
    c.provider.control(latency=0.05)
    c.worker()
    assert c.report(job_id)["scored"] == 2
    c.quiet()
    assert not c.app.store.exists(c.app.keys.orders)


def test_a_node_that_fell_silent_is_offline_and_its_orders_wait_for_it(cluster):
    """A frozen process: it is given up, listed, and comes back under a new generation, cordoned as it was told."""
    c = cluster("--latency", "0.05", MAX_CONCURRENT_LLM_CALLS="4", DICAST_HEARTBEAT_TIMEOUT="3")
    frozen, _ = c.worker(), c.worker()
    before = by_name(c, "w0")
    os.kill(frozen.process.pid, signal.SIGSTOP)
    try:
        until(lambda: (v := by_name(c, "w0")).status is NodeStatus.OFFLINE and "silent" in v.reason, "it is offline")
        until(lambda: not c.app.registry.facts(before.id), "it is given up")
        assert c.app.cluster.cordon("w0", by="test").status is NodeStatus.OFFLINE
        job_id = c.submit(a_job(agents=1))
        assert c.report(job_id)["scored"] == 10
    finally:
        os.kill(frozen.process.pid, signal.SIGCONT)
    after = until(lambda: (v := by_name(c, "w0")).status is NodeStatus.CORDONED and v, "it is back, cordoned")
    until(lambda: "not acknowledged" not in by_name(c, "w0").reason, "it acknowledges")
    assert after.generation > before.generation
    assert c.app.cluster.uncordon("w0", by="test").status is NodeStatus.ONLINE


def held(cluster):
    return {node.name.partition("@")[0]: node.held for node in cluster.app.cluster.nodes()}


def check_that_waiting_work_moves(cluster, pools, steal):
    """All of a job waits at one node, for the pool's limit is low; another comes, which finds nothing in the queue."""
    c = cluster(
        "--latency", "6", "--sigma", "0", pools=pools, MAX_CONCURRENT_LLM_CALLS="40", DICAST_WINDOW_SECONDS="60",
        DICAST_STEAL=str(steal), LLM_CALL_TIMEOUT="60",
    )  # fmt: skip
    c.worker()
    idle = c.worker("-Q", "dicast.beat")
    job_id = c.submit(a_job(agents=1, dimensions=10, items=2))
    until(lambda: by_name(c, "w0").open == 2, "it has the leases that there are, and no other may be given any")
    until(lambda: held(c)["w0"] > 10 and not depth(c.app, "provider.sim"), "it holds the job")
    c.app.control.add_consumer("provider.sim", destination=[by_name(c, "w1").name], reply=True, timeout=20, limit=1)
    return c, job_id, idle


LOW = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
limit = 2
adaptive = false
"""


def test_waiting_work_is_stolen_on_demand(cluster):
    c, job_id, _ = check_that_waiting_work_moves(cluster, LOW, steal=False)
    until(lambda: by_name(c, "w1").pools == ["sim"], "it reads the queue")
    watch = Stopwatch()
    found = c.app.cluster.steal(by="test")
    assert found.moves == [(by_name(c, "w0").id, by_name(c, "w1").id, 3)]
    until(lambda: held(c)["w1"] >= 2, "it has moved")
    assert watch.s < 15
    assert c.app.cluster.steal(by="test").total == 0, "nobody is idle any more"
    c.provider.control(latency=0.02, answer=True)
    report = c.report(job_id)
    assert (report["scored"], report["calls"]) == (20, 20)
    c.quiet()


def test_waiting_work_is_stolen_by_the_housekeeping(cluster):
    c, job_id, idle = check_that_waiting_work_moves(cluster, LOW, steal=True)
    watch = Stopwatch()
    until(lambda: held(c)["w1"] >= 2, "it has moved")
    assert watch.s < 30  # a look a second
    c.provider.control(latency=0.02, answer=True)
    report = c.report(job_id)
    assert (report["scored"], report["calls"]) == (20, 20)
    assert '"acquired"' in idle.log.read_text()


def test_what_a_full_node_holds_goes_to_one_with_a_free_slot(cluster):
    c = cluster("--latency", "30", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="40", LLM_CALL_TIMEOUT="60")
    c.worker("-c", "1")
    job_id = c.submit(a_job(agents=1, dimensions=2))
    until(lambda: held(c) == {"w0": 1} and by_name(c, "w0").open == 1, "its only slot is taken")
    c.worker("-c", "1")
    until(lambda: c.provider.stats()["accepted"] == 2, "the other call has begun")
    assert not c.done(job_id), "while the first was open"
    c.provider.control(latency=0.02, answer=True)
    assert c.report(job_id)["calls"] == 2


def check_that_a_full_node_hands_on_what_it_holds(c):
    """Without a beat, and while nobody may stand in for one: what waits at a full worker is handed on by the worker."""
    c.app.store.set(c.app.keys.beat, f"a beat that is away|{10**15}")
    c.worker("-c", "2")
    job_id = c.submit(a_job(agents=1, dimensions=4))
    until(lambda: by_name(c, "w0").open == 2 and held(c) == {"w0": 1}, "its slots are taken")
    until(lambda: depth(c.app, "provider.sim") == 1, "the fourth is in the queue")
    c.worker("-c", "2")
    ready = time.monotonic()
    until(lambda: c.provider.stats()["accepted"] == 4, "all calls are open")
    took_s = time.monotonic() - ready
    assert not c.done(job_id), "and none has ended"
    c.provider.control(latency=0.02, answer=True)
    report = c.report(job_id)
    assert (report["scored"], report["calls"], c.provider.stats()["calls"]) == (4, 4, 4)
    gave = [line for line in c.logs() if line.get("event") == "gave_back"]
    assert sum(sum(line["units"].values()) for line in gave) == 1
    c.quiet()
    return took_s


def test_a_full_node_hands_on_what_it_holds_though_no_beat_ticks(cluster):
    """It waited for up to a call's time."""
    c = cluster("--latency", "30", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="40", LLM_CALL_TIMEOUT="60")
    assert check_that_a_full_node_hands_on_what_it_holds(c) < 10, "about two seconds, on a machine that is not busy"


@needs_rabbitmq
def test_a_full_node_hands_on_what_it_holds_from_rabbitmq(cluster, tmp_path):
    rabbitmq = RabbitMQ(tmp_path / "rabbitmq")
    try:
        c = cluster(
            "--latency", "30", "--sigma", "0", MAX_CONCURRENT_LLM_CALLS="40", LLM_CALL_TIMEOUT="60",
            DICAST_BROKER_URL=rabbitmq.url,
        )  # fmt: skip
        assert check_that_a_full_node_hands_on_what_it_holds(c) < 12
    finally:
        rabbitmq.stop()


TWO_REGIONS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
[pools.eu]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
labels = {{ region = "eu" }}
"""


def test_a_job_that_waits_for_a_label_ends_when_it_is_cancelled(cluster):
    """It was still being cancelled half an hour later, with a worker and a beat running."""
    c = cluster("--latency", "0.02", pools=TWO_REGIONS)
    c.worker()
    job_id = c.submit(a_job(agents=1, pool="eu"))
    until(lambda: depth(c.app, "provider.eu") == 10, "its units wait where nobody takes them")
    cancel(c.app, job_id)
    report = c.report(job_id)
    assert (report["status"], report["scored"], c.provider.stats()["calls"]) == ("cancelled", 0, 0)
    assert resume(c.app, job_id)
    c.worker(DICAST_NODE_LABELS="region=eu")
    until(lambda: c.app.ledger.status(job_id).state == "completed", "it goes on where the label is")
    report = c.report(job_id)
    assert (report["scored"], report["calls"], c.provider.stats()["calls"]) == (10, 10, 10)
    c.quiet()


def test_only_nodes_with_its_labels_take_a_pools_units(cluster):
    c = cluster("--latency", "0.02", pools=TWO_REGIONS, DICAST_NODE_LABELS="disk=ssd")
    c.worker("--label", "region=us")
    assert by_name(c, "w0").labels == {"disk": "ssd", "region": "us"}
    until(lambda: by_name(c, "w0").pools == ["sim"], "it reads its queue")
    job_id, other = c.submit(a_job(agents=1, pool="eu")), c.submit(a_job(agents=1))
    assert c.report(other)["scored"] == 10
    why = until(lambda: waiting.reason(c.app, c.app.ledger.status(job_id)), "it is said what it waits for")
    assert why == (
        f"the units of pool eu wait, for no living node takes them: {by_name(c, 'w0').name} lacks the label region=eu"
    )
    assert c.app.cluster.status().unsatisfied == [why]
    assert c.provider.stats()["calls"] == 10
    job = a_job(agents=1, items=10)
    job["agents"][0] = {"name": "judge", "deployments": [{"pool": "sim"}, {"pool": "eu"}]}
    assert c.report(c.submit(job), 30)["calls"] == 100, "what may go elsewhere does not wait for it"
    c.worker("--label", "region=eu", "--label", "gpu=none", DICAST_NODE_ROLES="eu")
    until(lambda: by_name(c, "w1").pools == ["eu"], "it reads its queue")
    assert c.report(job_id)["scored"] == 10
    assert {line["node"][:2] for line in c.logs() if line["event"] == "acquired" and line["job"] == job_id} == {"w1"}
    assert by_name(c, "w1").queues == ["provider.eu"], "a role is all that it reads"
