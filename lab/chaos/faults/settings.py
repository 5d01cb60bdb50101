"""What an operator changes while work is under way: pools, limits, a disk that is full, an id that comes again."""

from __future__ import annotations

import time

from dicast.app.ledger.records import JobState
from lab.chaos.catalogue import fault
from lab.chaos.installation import POOLS
from lab.chaos.runs import Run
from tests.e2e.cluster import Cluster, Simulated, until

EXTRA = """
[pools.extra]
provider = "simulated"
base_url = "http://127.0.0.1:{port}/v1"
dialect = "openai"
api_key_env = "CHAOS_KEY"
"""

OTHER = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
"""


def _restart_all(run: Run, pools: str = POOLS, **settings: str) -> None:
    """All workers stop politely and come again with other settings."""
    for victim in (before := list(run.place.workers)):
        victim.process.terminate()
    for victim in before:
        victim.stop()
    born = [run.place.start_worker(wait=False, pools=pools, **settings) for _ in before]
    for worker in born:
        until(worker.ready, "a worker is ready")


@fault(weight=3)
def limit_changed(run: Run) -> None:
    """All workers are restarted with a limit of 4, and back 2 s later."""
    run.await_moment()
    _restart_all(run, MAX_CONCURRENT_LLM_CALLS="4")
    run.pause(2)
    _restart_all(run)


@fault(weight=2)
def pool_new(run: Run) -> None:
    """All workers are restarted with a pool more, and back 2 s later."""
    run.await_moment()
    _restart_all(run, POOLS + EXTRA)
    run.pause(2)
    _restart_all(run)


@fault(weight=3, rejects=True)
def pool_gone(run: Run) -> None:
    """All workers are restarted without the job's pool: the job ends nevertheless, its units recorded as rejected."""
    run.await_moment()
    _restart_all(run, POOLS.replace("[pools.sim]", "[pools.other]").replace('default = "sim"', 'default = "other"'))
    try:
        until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends without its pool", 60)
    finally:
        _restart_all(run)


@fault(weight=3, deadline_s=60)
def disk_full(run: Run) -> None:
    """For 3 to 8 s neither results nor answers can be written, and for some of them the store is away."""
    run.await_moment()
    run.place.fill_disk(True)
    run.pause(run.chance.uniform(1, 3))
    run.place.link.set(hold=["up", "down"])
    run.pause(run.chance.uniform(1, 4))
    run.place.link.set()
    run.pause(1)
    run.place.fill_disk(False)


@fault(weight=3, forgets=True, loose_log=True, deadline_s=60)
def same_id_after_flush(run: Run) -> None:
    """FLUSHALL, and when the job is recorded as lost its id is used again with other items."""
    run.await_moment()
    run.strike()
    run.place.store.client.flushall()

    def is_lost() -> bool:
        status = run.status()
        return status is not None and status.state in (JobState.LOST, JobState.COMPLETED)

    until(is_lost, "the job is told as lost", 30)
    run.job["items"] = [{**item, "id": f"other-{n}"} for n, item in enumerate(run.job["items"][1:])]
    run.place.provider.control(reset=True)
    run.place.cluster.submit(run.job)


@fault(weight=2, deadline_s=60)
def two_installations(run: Run) -> None:
    """A worker of another namespace, with a provider of its own, does a job of the same id on the same store."""
    folder = run.place.folder / f"other-{run.seed}-{time.monotonic_ns()}"
    folder.mkdir()
    provider = Simulated("--latency", "0.1")
    pools = OTHER.format(url=provider.base_url)
    other = Cluster(folder, run.place.store.url, pools, DICAST_NAMESPACE="other")
    try:
        other.worker("-I", "lab.chaos.hooks")
        run.await_moment()
        items = [{"id": f"other-{n}", "text": "Another text."} for n in range(10)]
        agents = [{**agent, "persona": ""} for agent in run.job["agents"]]
        job_id = other.submit({**run.job, "items": items, "agents": agents})
        report = other.report(job_id, 60)
        assert report["scored"] == report["units"], report
        assert {o["item_id"] for o in other.opinions(job_id)} == {item["id"] for item in items}
    finally:
        other.stop()
        provider.stop()
