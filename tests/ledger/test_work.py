"""What is left of unended jobs, and what it is worth in workers, on a real store without any worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dicast.app.application import Dicast, create_app
from dicast.app.domain.deadlines import RoadChange
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.work import unended_work
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect_async

POOLS = "".join(f'[pools.{name}]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:1/v1"\n' for name in "pq")


@pytest.fixture
def app(tmp_path: Path, redis_url: str) -> Dicast:
    (tmp_path / "pools.toml").write_text(f'default = "p"\n{POOLS}')
    return create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})


def a_job(items: int, *agents: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": f"i{n}", "text": "t"} for n in range(items)],
        "agents": list(agents) or [{"name": "a", "pool": "p"}],
        "dimensions": [{"id": "x", "instructions": "?"}, {"id": "y", "instructions": "?"}],
        **more,
    }


def calls(app: Dicast) -> dict[tuple[str, ...], int]:
    return {item.pools: item.calls for item in unended_work(app.store, app.keys).calls}


async def test_calls_left_are_those_of_open_units_and_of_what_is_not_planned_yet(app: Dicast, redis_url: str) -> None:
    both = {"name": "b", "deployments": [{"pool": "p"}, {"pool": "q"}]}
    assert unended_work(app.store, app.keys) == (0, 0, 0, [])
    app.submit(a_job(10, {"name": "a", "pool": "p"}, both, id="j", replicates=3))
    assert calls(app) == {("p",): 60, ("p", "q"): 60}
    async with connect_async(redis_url) as client:
        ledger = Ledger(client, app.keys, "node", claim_ms=60_000, calls_max=9)
        await ledger.start("j", 5)
        job = await ledger.job("j")
        assert job is not None
        await ledger.open_page(PageRef("j", job.incarnation, 0, 0), 0, 12, '{"position": 12, "source": null}', 1, {})
        assert calls(app) == {("p",): 60, ("p", "q"): 60}, "published, and not ended"
        app.store.hincrby(ledger.keys.job("j"), "open:0", -5)
        assert calls(app) == {("p",): 55, ("p", "q"): 60}
        await ledger.open_page(PageRef("j", job.incarnation, 1, 0), 0, 60, "", 1, {})
        assert calls(app) == {("p",): 55, ("p", "q"): 60}, "nothing of it is left to plan"
    found = unended_work(app.store, app.keys)
    assert (found.unended, found.units, found.done) == (1, 120, 0)
    app.ledger.cancel("j")
    found = unended_work(app.store, app.keys)
    assert (found.unended, found.calls) == (1, []), "what is open ends, and nothing else is called"


async def test_workers_are_of_no_use_to_a_lane_that_goes_by_batches(app: Dicast, redis_url: str) -> None:
    app.submit(a_job(10, id="batch", road="batch"))
    app.submit(a_job(10, id="auto", road="auto"))
    assert calls(app) == {}
    async with connect_async(redis_url) as client:
        ledger = Ledger(client, app.keys, "node", claim_ms=60_000, calls_max=9)
        job = await ledger.job("auto")
        assert job is not None and await ledger.calls_left(job, "p") == 20
        await ledger.go_online(job, 0, RoadChange(pool="p", message="late"))
        assert [change.reason for change in await ledger.went_online(job)] == ["pool 'p' was asked online: late"]
        assert app.ledger.went_online("auto") == await ledger.went_online(job)
    assert calls(app) == {("p",): 20}


def test_a_batch_is_one_call(app: Dicast, redis_url: str) -> None:
    batched = create_app({**app.environ, "BATCHING_ENABLED": "true"})
    batched.submit(a_job(10, id="j"))
    assert calls(batched) == {("p",): 10}


def test_what_is_scraped_wants_workers_by_the_width_of_those_that_live(app: Dicast) -> None:
    """No limit has been decided yet: MAX_CONCURRENT_LLM_CALLS binds, and the slots that a worker would have."""
    narrow = create_app({**app.environ, "MAX_CONCURRENT_LLM_CALLS": "40", "DICAST_WORKER_SLOTS": "10"})

    def seen() -> tuple[int, int]:
        _, demand = narrow.scrape()
        return demand.wanted_workers.workers, demand.living

    assert seen() == (0, 0)
    narrow.submit(a_job(8, id="small"))
    assert seen() == (2, 0)
    narrow.submit(a_job(800, id="large"))
    assert seen() == (4, 0)
    node = Node.for_this_process("w@h", limit=40, slots=10)
    Registry(narrow.store, narrow.keys).announce(node, RulesStatus(20, 20, 0.0, 0.0, "start", 0))
    assert seen() == (2, 1)
    _, demand = narrow.scrape()
    assert (demand.work.unended, demand.work.units, demand.work.done) == (2, 0, 0), "none of them runs yet"
