"""Every metric: from where it comes, and that it is documented."""

from __future__ import annotations

import asyncio
import ctypes
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import ConnectionError as StoreAway

from dicast.app.cluster.metrics import Demand, MetricsServer, ProcessMetrics, SharedCollector, read_scrape
from dicast.app.cluster.snapshot import SharedState
from dicast.app.ledger.batches import BatchRecord, BatchStage, BatchStore, LaneRef, new_batch
from dicast.app.ledger.work import LedgerWork
from dicast.workers.admission.pool_state import BudgetState, ModelHealth
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import LimitCause, RulesStatus
from dicast.workers.policy.wanted import Wanted
from dicast.workers.store.connection import connect_async
from dicast.workers.store.keys import Keys
from tests.command import ROOT, Dicast
from tests.workers.test_pool_state import CALM

STATE = replace(
    CALM, pool="openai:eu", slo=9, breaker="half_open", refused={"limit": 7}, statuses={200: 90, 429: 3},
    budgets={"requests": BudgetState(5.0, 60.0, 600.0)}, health={"m": ModelHealth(3.0, 4.0, 6.0)}, input_tokens=1000,
    output_tokens=10, assigned=4, zombies=2, budget_cap=7,
)  # fmt: skip
NODE = Node.for_this_process("w@h", limit=1, slots=9)
LANE = LaneRef("j", "n", 0)
BATCHES = [
    BatchRecord(
        "@a", LANE, "openai:eu", "m", BatchStage.SENT, 400, 8000, formed_at=100.0, state="running", done=90, failed=10
    ),
    BatchRecord("@b", LANE, "openai:eu", "m", BatchStage.SENT, 100, 1000, formed_at=700.0, state="running"),
    BatchRecord("@c", LANE, "openai:eu", "small", BatchStage.SEALED, 5, 50, formed_at=900.0),
]
DEMAND = Demand(
    LedgerWork(2, 50, 8, []),
    Wanted(3, {"openai:eu": 8}, {"openai:eu": 2}, {"openai:eu": 38}),
    1,
    {"openai:eu": 0},
    {"unsigned": 5},
    batches=BATCHES,
    now=1000.0,
)
SHARED = SharedState([STATE], [(NODE, RulesStatus(9, 4, 0.25, 390.0, "CPU 390 %", 12, cause=LimitCause.CPU_HIGH))])


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(SharedCollector(lambda: (SHARED, DEMAND)))
    process = ProcessMetrics(registry)
    process.assigned("p", "m", 0.42)
    process.adopted(accepted=False)
    return registry


def names(text: str) -> Iterator[str]:
    for family in text_string_to_metric_families(text):
        yield family.name + ("_total" if family.type == "counter" else "")


def test_every_metric_is_documented_and_the_other_way_round(registry: CollectorRegistry) -> None:
    served = {name for name in names(generate_latest(registry).decode()) if not name.endswith("_created")}
    section = Path(ROOT / "docs/operations.md").read_text().partition("\n## Metrics\n")[2]
    assert set(re.findall(r"^\| `(dicast_\w+)` \|", section, re.MULTILINE)) == served


@pytest.mark.parametrize(
    "name, labels, value",
    [
        ("dicast_store_up", {}, 1),
        ("dicast_pool_limit", {}, 8),
        ("dicast_pool_open", {}, 4),
        ("dicast_pool_load", {}, 1.0),
        ("dicast_pool_refused_total", {"reason": "limit"}, 7),
        ("dicast_pool_answers_total", {"status": "429"}, 3),
        ("dicast_pool_rate_limited_total", {}, 3),
        ("dicast_pool_breaker", {"state": "half_open"}, 1),
        ("dicast_pool_breaker", {"state": "closed"}, 0),
        ("dicast_pool_tokens_total", {"direction": "output"}, 10),
        ("dicast_pool_success_rate", {"model": "m"}, 0.8),
        ("dicast_pool_latency_seconds", {"model": "m"}, 2.0),
        ("dicast_pool_availability", {"state": "offline"}, 1),
        ("dicast_pool_availability", {"state": "ready"}, 0),
        ("dicast_pool_error_budget_cap", {}, 7),
        ("dicast_pool_wanted_workers", {}, 2),
        ("dicast_pool_waiting_calls", {}, 38),
        ("dicast_pool_nodes", {}, 0),
        ("dicast_wanted_workers", {}, 3),
        ("dicast_living_workers", {}, 1),
        ("dicast_unended_jobs", {}, 2),
        ("dicast_running_jobs_units", {}, 50),
        ("dicast_running_jobs_done_units", {}, 8),
        ("dicast_dead_letters_total", {"reason": "unsigned"}, 5),
        ("dicast_node_stuck", {}, 0),
        ("dicast_pool_error_rate", {}, 0.25),
        ("dicast_budget_level", {"budget": "requests"}, 5),
        ("dicast_slo_limit", {}, 9),
        ("dicast_parallelism_level", {"reason": "CPU"}, 4),
        ("dicast_node_cpu_percent", {}, 390),
        ("dicast_assignments_total", {"pool": "p", "model": "m"}, 1),
        ("dicast_assignment_score_sum", {}, 0.42),
        ("dicast_batches", {"state": "running"}, 2),
        ("dicast_batches", {"state": "sealed"}, 1),
        ("dicast_batch_age_seconds", {"state": "running"}, 900),
        ("dicast_batch_age_seconds", {"state": "sealed"}, 100),
        ("dicast_batch_queued_requests", {"model": "m"}, 400),
        ("dicast_batch_queued_tokens", {"model": "m"}, 7000),
        ("dicast_batch_queued_tokens", {"model": "small"}, 50),
    ],
)
def test_values_and_labels(registry: CollectorRegistry, name: str, labels: dict[str, str], value: float) -> None:
    if name.startswith(("dicast_pool", "dicast_budget", "dicast_batch")):
        labels = {"pool": "openai:eu", **labels}
    if name.startswith(("dicast_parallelism", "dicast_node")):
        labels = {"node": "w@h", "host": NODE.host, **labels}
    assert registry.get_sample_value(name, labels) == pytest.approx(value)


async def test_batches_in_the_store_are_counted_until_they_are_over(redis_url: str) -> None:
    keys = Keys("dicast-metrics")

    async def sample(name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        scraped = await asyncio.to_thread(read_scrape, redis_url, keys, 9, 9)
        registry.register(SharedCollector(lambda: scraped))
        return registry.get_sample_value(name, {"pool": "p", **labels})

    async with connect_async(redis_url) as client:
        store = BatchStore(client, keys, "node")
        began = time.time() - 3600
        forming, sealed = [await store.begin(new_batch(LANE, "p", "m", began)) for _ in range(2)]
        sent = await store.rest(sealed, 0, stage=BatchStage.SENT, requests=10, tokens=500, state="running")
        assert (
            await sample("dicast_batches", state="running") == await sample("dicast_batches", state="collecting") == 1
        )
        age = await sample("dicast_batch_age_seconds", state="running")
        assert age is not None and 3600 <= age < 3700
        assert await sample("dicast_batch_queued_requests", model="m") == 10
        sent = await store.rest(sent, 0, state="finalizing", done=7, failed=1)
        assert await sample("dicast_batches", state="running") is None
        assert await sample("dicast_batches", state="finalizing") == 1
        assert await sample("dicast_batch_queued_requests", model="m") == 2
        assert await sample("dicast_batch_queued_tokens", model="m") == 100
        for batch in (forming, sent):
            await store.drop(batch)
        assert await sample("dicast_batches", state="finalizing") is None


def test_a_store_that_is_away_leaves_what_the_process_counts() -> None:
    def away() -> tuple[SharedState, Demand]:
        raise StoreAway("gone")

    registry = CollectorRegistry()
    registry.register(SharedCollector(away))
    ProcessMetrics(registry).assigned("p", "m", 0.5)
    assert registry.get_sample_value("dicast_store_up") == 0
    assert registry.get_sample_value("dicast_assignments_total", {"pool": "p", "model": "m"}) == 1
    assert registry.get_sample_value("dicast_pool_limit", {"pool": "openai:eu"}) is None


def test_metrics_are_served_until_the_end_and_a_taken_port_costs_nothing_else(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server, second = (MetricsServer(registry, "127.0.0.1", port) for _ in range(2))
    server.start()
    second.start()
    assert f"metrics cannot be served at 127.0.0.1:{port}: Address already in use" in caplog.text
    second.stop()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        assert b'dicast_pool_limit{pool="openai:eu"} 8.0' in reply.read()
    server.stop()
    server.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


def test_a_keeper_that_fails_leaves_one_server_on_the_same_port(registry: CollectorRegistry) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = MetricsServer(registry, "127.0.0.1", port)
    server.start()
    serving, keeper = (_thread(name) for name in ("metrics-server", "metrics"))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(keeper.ident or 0), ctypes.py_object(RuntimeError))
    end = time.monotonic() + 10
    while serving in threading.enumerate():  # is_alive() is wrong after a join that an exception ended
        assert time.monotonic() < end
        time.sleep(0.01)
    _thread("metrics-server")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        assert reply.status == 200
    server.stop()


def _thread(name: str) -> threading.Thread:
    """The one thread of that name, once there is one."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = [thread for thread in threading.enumerate() if thread.name == name]
        if len(found) == 1:
            return found[0]
        time.sleep(0.01)
    raise TimeoutError(f"no thread, or several, named {name}")


def test_the_command_prints_one_scrape(at_once: Dicast) -> None:
    at_once("governor", "set", "--pool", "sim", "--limit", "7")
    run = at_once("metrics")
    assert run.returncode == 0
    assert 'dicast_pool_limit{pool="sim"} 7.0' in run.stdout.splitlines()
    assert "dicast_store_up 1.0" in run.stdout
