"""Jobs by the batch APIs of a simulated provider: half the price, nothing lost, nothing paid for twice."""

from __future__ import annotations

import contextlib
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dicast.app.ledger.work import read_purses
from dicast.app.operator.jobs import cancel, resume
from tests.e2e.cluster import Cluster, Simulated, a_job, until
from tests.e2e.holding import STEPS, HoldingProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
price = {{ input = 2, output = 8, batch = 0.5 }}
[pools.claude]
provider = "simulated"
base_url = "{url}"
dialect = "anthropic"
price = {{ input = 2, output = 8, batch = 0.5 }}
"""
UNITS = 200
PAUSES = {"CHAOS_BATCHES": "0.1", "CHAOS_TICKS": "1"}
"""Workers wait a tenth of the time before a batch is formed, looked at and tried again, and for a beat that does not
tick. What is asserted does not depend on it; a job that goes through without a fault is run with the product's own."""


def invoice(cluster: Cluster) -> dict[str, Any]:
    return cluster.provider.invoice()


@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_a_job_by_batch_costs_half(cluster: Any, pool: str) -> None:
    c = cluster("--price", "2/8", "--batch-time", "2", pools=POOLS)
    c.worker()
    jobs = {
        road: a_job(agents=1, dimensions=2, items=UNITS // 2, pool=pool, road=road, id=road)
        for road in ("online", "batch")
    }
    reports, bills = {}, {}
    for road, job in jobs.items():
        before = invoice(c)
        reports[road] = c.report(c.submit(job), 120)
        bills[road] = int(invoice(c)["pico"]) - int(before["pico"])
    assert reports["batch"]["scored"] == reports["online"]["scored"] == UNITS
    assert bills["batch"] * 2 == bills["online"]
    c.quiet()


ROUNDS = int(os.environ.get("BATCH_KILLS", "1"))
"""How often a worker is killed at each step."""
ANY_STEP = [("sim", step) for step in STEPS] + [("claude", step) for step in ("after create", "during the download")]


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("pool, step", ANY_STEP)
def test_a_worker_is_killed_at_any_step(tmp_path: Path, redis_url: str, pool: str, step: str, number: int) -> None:
    """Another worker goes on. By the provider's own invoice nothing is paid for twice, and no batch is left behind."""
    with contextlib.ExitStack() as parts:
        provider = Simulated("--price", "2/8", "--batch-time", "1")
        parts.callback(provider.stop)
        proxy = HoldingProxy(provider.base_url, step)
        parts.callback(proxy.stop)
        c = Cluster(tmp_path, redis_url, POOLS.format(url=proxy.url), DICAST_BATCH_LISTED="1", **PAUSES)
        parts.callback(c.stop)
        c.provider = provider
        c.app.store.flushdb()
        c.vouch()
        first = c.worker()
        job_id = c.submit(a_job(agents=1, dimensions=2, items=75, pool=pool, road="batch"))
        assert proxy.held.wait(60), step
        first.kill()
        c.workers.remove(first)
        c.worker()
        report = c.report(job_id, 120)
        bill, batches = invoice(c), provider.stats()["batches"]["states"]
        assert (report["scored"], report["failed"]) == (150, 0)
        assert (bill["roads"]["batch"]["requests"], bill["repeated"]) == (150, 0)
        assert sum(batches.values()) == 1, "no batch is left behind"
        assert c.app.ledger.batches() == []
        doubted = 150 if step in ("before upload", "after upload", "before create") else 0
        assert report["possible_double_charges"] == doubted


def test_auto_goes_by_batches_where_there_is_time(cluster: Any) -> None:
    c = cluster("--price", "2/8", "--batch-time", "1", pools=POOLS, **PAUSES)
    c.worker()
    reports = {
        end: c.report(c.submit(a_job(agents=1, dimensions=2, items=20, road="auto", id=name, **more)))
        for end, name, more in (("", "free", {}), ("10m", "bound", {"finish_by": "10m"}))
    }
    assert [report["scored"] for report in reports.values()] == [40, 40]
    assert [report["agents"][0]["road"] for report in reports.values()] == ["auto", "auto"]
    assert [len(report["went_online"]) for report in reports.values()] == [0, 1]
    roads = invoice(c)["roads"]
    assert (roads["batch"]["requests"], roads["online"]["requests"]) == (40, 40)
    assert 2 * roads["batch"]["pico"] == roads["online"]["pico"]
    c.quiet()


def test_units_of_a_late_batch_are_moved_online_by_a_worker(cluster: Any) -> None:
    """By the invoice, each is paid for once; the books tell what each road cost."""
    settings = {
        "DICAST_BATCH_TURNAROUND": "2", "DICAST_BATCH_CANCELLING": "1", "MAX_CONCURRENT_LLM_CALLS": "20", **PAUSES,
    }  # fmt: skip
    c = cluster("--price", "2/8", "--batch-time", "60", "--batch-cancelling", "1", pools=POOLS, **settings)
    c.worker()
    other = [{"id": "other", "instructions": "Is it short?"}]
    c.report(c.submit({**a_job(agents=1, items=3), "dimensions": other}))  # calls are known to be fast
    before = invoice(c)["pico"]
    job_id = c.submit(a_job(agents=1, dimensions=2, items=50, road="auto", finish_by=75, id="moved"))
    report = c.report(job_id, 100)
    bill = invoice(c)
    batch, online = bill["roads"]["batch"]["requests"], bill["roads"]["online"]["requests"] - 3
    assert (report["scored"], batch + online, bill["repeated"]) == (100, 100, 0)
    assert 0 < batch < 100 and report["moved_online"] == online
    assert Decimal(report["cost"]["sums"][0]["spent"]) * 10**12 == bill["pico"] - before
    assert any(line.get("event") == "went_online" for line in c.logs())
    c.quiet()


def test_the_slow_service_costs_half_and_is_named(cluster: Any) -> None:
    c = cluster("--price", "2/8", pools=POOLS)
    c.worker()
    report = c.report(c.submit(a_job(agents=1, dimensions=2, items=5, road="flex")))
    bill = invoice(c)
    assert (report["scored"], report["agents"][0]["road"]) == (10, "flex")
    assert bill["roads"]["flex"]["requests"] == 10 and "online" not in bill["roads"]
    c.quiet()


@pytest.mark.parametrize("asked", ["flex", "priority"])
def test_calls_that_the_usual_service_answers_cost_its_price(cluster: Any, asked: str) -> None:
    """What they asked for would cost half, or twice as much; the provider's own invoice decides, and the cap holds."""
    pools = POOLS.replace("batch = 0.5", "batch = 0.5, flex = 0.5, priority = 2")
    c = cluster("--price", "2/8", "--tier-default", "0.5", pools=pools)
    c.worker()
    job = {**a_job(agents=1, dimensions=2, items=20), "max_cost": "0.05"}
    if asked == "flex":
        job["road"] = "flex"
    else:
        job["agents"][0]["service_tier"] = asked
    report = c.report(c.submit(job))
    bill = invoice(c)
    assert min(bill["roads"][road]["requests"] for road in (asked, "online")) > 0
    assert Decimal(report["cost"]["sums"][0]["spent"]) * 10**12 == bill["pico"] <= Decimal("0.05") * 10**12
    c.quiet()


def test_a_cancelled_job_keeps_what_its_batch_has_done_and_goes_on_later(cluster: Any) -> None:
    c = cluster("--price", "2/8", "--batch-time", "30", "--batch-cancelling", "1", pools=POOLS, **PAUSES,
                CHAOS_CLOCKS="0.2")  # fmt: skip
    c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=2, items=100, road="batch"))
    until(lambda: any(batch.done for batch in c.app.ledger.batches()), "the first requests are answered")
    cancel(c.app, job_id)
    cancelled = c.report(job_id)
    bill = invoice(c)["roads"]["batch"]["requests"]
    assert cancelled["status"] == "cancelled"
    assert 0 < cancelled["scored"] == bill < 200
    c.provider.control(batch_time=1)
    assert resume(c.app, job_id)
    report = until(lambda: (c.report(job_id)["status"] == "completed") and c.report(job_id), "it goes on")
    assert report["scored"] == 200
    assert (invoice(c)["roads"]["batch"]["requests"], invoice(c)["repeated"]) == (200, 0)
    c.quiet()


FAULTS = {
    "create_lost": 0.3, "create_dropped": 0.15, "upload_lost": 0.15, "get_lost": 0.15, "list_lost": 0.15,
    "results_lost": 0.15, "results_cut": 0.25, "batches_5xx": 0.05,
}  # fmt: skip


@pytest.mark.timeout(500)
@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_answers_of_the_batch_api_get_lost(cluster: Any, pool: str) -> None:
    """What was created is found, and what was not is created; nothing is billed twice. A unit has three attempts: of
    120, one in a thousand runs fails by the errors alone."""
    c = cluster("--price", "2/8", "--batch-time", "1", "--batch-errors", "0.02", pools=POOLS, DICAST_BATCH_LISTED="0.4",
                **PAUSES)  # fmt: skip
    c.provider.control(faults=FAULTS)
    c.worker()
    report = c.report(c.submit(a_job(agents=1, dimensions=2, items=60, pool=pool, road="batch")), 400)
    assert (report["scored"], report["failed"]) == (120, 0)
    bill = invoice(c)
    assert (bill["roads"]["batch"]["requests"], bill["repeated"]) == (120, 0)
    c.quiet()


@pytest.mark.timeout(500)
@pytest.mark.parametrize("pool", ["sim", "claude"])
def test_the_books_are_the_invoice(cluster: Any, pool: str) -> None:
    """To the last pico, for a job with requests that fail for nothing, answers that are paid for and no use, and lost
    answers of the batch API."""
    c = cluster("--price", "2/8", "--batch-time", "1", "--batch-errors", "0.1", pools=POOLS, DICAST_BATCH_LISTED="0.4",
                **PAUSES)  # fmt: skip
    c.provider.control(faults={"out_of_range": 0.1, **FAULTS})
    c.worker()
    report = c.report(c.submit(a_job(agents=1, dimensions=2, items=60, pool=pool, road="batch")), 400)
    bill, [spent] = invoice(c), report["cost"]["sums"]
    billed = bill["roads"]["batch"]["requests"]
    assert report["calls"] > billed > 120, "answers of no use are paid for, and requests that failed are not"
    assert (Decimal(spent["spent"]) * 10**12, Decimal(spent["unknown"])) == (bill["pico"], 0)
    [purse] = [purse for purse in read_purses(c.app.store, c.app.keys) if purse.kind == "pool"]
    assert (purse.purses["total"].spent, purse.reserved) == (bill["pico"], 0), "and so are those of the pool"
    c.quiet()
