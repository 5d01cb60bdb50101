"""What a unit costs in things that can be counted: commands, bytes, keys, function calls. No clock is looked at.

One job of `UNITS` units, each a call of its own. `commands` watches a real worker at it; `parts` takes the pipeline's
parts one by one, in this process, on a real store.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import celery.backends.redis
import orjson
import redis
from celery.result import denied_join_result

from dicast.app.application import Dicast, create_app
from dicast.app.domain.opinion import Usage
from dicast.app.domain.panel import Deployment
from dicast.app.domain.retry import RetryPolicy
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import MessageId
from dicast.app.ledger.troubles import StopStore
from dicast.app.pipeline.call import ProviderCaller
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.images import StoredImages
from dicast.app.pipeline.judge import Claimer, Judge
from dicast.app.pipeline.messages import Messages
from dicast.app.pipeline.outcomes import Outcomes
from dicast.app.pipeline.plan import Lookahead, Planner
from dicast.app.pipeline.pool_trouble import FailFast
from dicast.app.pipeline.record import JobCache, Recorder, Spool
from dicast.app.pipeline.recovery import DeadNodes
from dicast.app.providers.base import ChatReply, ChatRequest
from dicast.app.providers.simulated import nonce_of
from dicast.app.submission.rendering import AsyncRenderer
from dicast.workers.admission.pool_state import PoolCondition
from dicast.workers.admission.request import HEADER, QUEUE_PREFIX, GatedUnit, Lease
from dicast.workers.nodes.registry import Node, Registry
from dicast.workers.runtime.result_backend import CHORD_PART
from dicast.workers.store.connection import connect_async
from dicast.workers.store.scripts import script_text
from lab.bench.pipeline import Machine
from tests.e2e.cluster import ROOT, a_job, until

Counts = dict[str, float]

UNITS = 600
LIMIT = 50
IDLE_S = 2.0
POOL = "wide"
OURS = ("app", "workers", "config")
CELERYS = {
    "chord part": CHORD_PART,
    "chord claim": celery.backends.redis.CHORD_CLAIM_EXTEND_LUA,
    "chord cleanup": celery.backends.redis.CHORD_CLEANUP_LUA,
}


# ---------------------------------------------------------------------------------------------------- commands
def commands() -> Counts:
    """Commands to the store for each unit by kind, of worker and client; what scripts do is a figure of its own.

    What a worker asks while it has nothing to do is taken off, by the time that the job took.
    """
    with Machine("--latency", "0", MAX_CONCURRENT_LLM_CALLS=str(LIMIT)) as m:
        m.worker()
        job_key = m.cluster.app.ledger._keys.job("counted")
        with _monitored(m.redis) as idle:
            time.sleep(IDLE_S)
        with _monitored(m.redis) as busy:
            started = time.monotonic()
            m.cluster.submit(_job() | {"id": "counted"})
            watcher = redis.Redis(connection_pool=m.redis.connection_pool)
            until(lambda: watcher.eval(_STATE, 1, job_key) == "completed", "the job is done")
            took_s = time.monotonic() - started
        assert m.cluster.report("counted")["scored"] == UNITS
    per_unit = {kind: (n - idle[kind] * took_s / IDLE_S) / UNITS for kind, n in busy.items() if kind != _WATCHING}
    return {f"commands: {kind}": max(0.0, n) for kind, n in per_unit.items()}


_STATE = "return redis.call('HGET', KEYS[1], 'state')"
_WATCHING = "EVAL"
IN_SCRIPTS = "within scripts"


@contextmanager
def _monitored(client: redis.Redis) -> Iterator[Counter[str]]:
    """Counts the commands that a server gets until the block ends."""
    counted: Counter[str] = Counter()
    names = _script_names()
    with redis.Redis(connection_pool=client.connection_pool).monitor() as monitor:  # type: ignore[no-untyped-call]

        def listen() -> None:
            for seen in monitor.listen():
                verb, _, rest = seen["command"].partition(" ")
                if (verb, rest) == ("ECHO", _END):
                    return
                if seen["client_type"] == "lua":
                    counted[IN_SCRIPTS] += 1
                else:
                    script = rest.partition(" ")[0]
                    counted[names.get(script, script[:8]) if verb.upper() == "EVALSHA" else verb.upper()] += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield counted
        finally:
            client.echo(_END)
            thread.join()


_END = "dicast-counted"


def _script_names() -> dict[str, str]:
    paths = [path for part in OURS for path in (ROOT / part).rglob("*.lua")]
    texts = {path.stem: script_text(path) for path in paths} | CELERYS
    return {hashlib.sha1(text.encode()).hexdigest(): f"{name}.lua" for name, text in texts.items()}


# ---------------------------------------------------------------------------------------------------- parts
def parts(redis_url: str) -> Counts:
    """Bytes, keys and function calls for each unit; the database is empty before, and is not after."""
    with tempfile.TemporaryDirectory(prefix="dicast-count-") as folder:
        return asyncio.run(_parts(redis_url, Path(folder)))


async def _parts(redis_url: str, folder: Path) -> Counts:
    (folder / "pools.toml").write_text(f'default = "{POOL}"\n[pools.{POOL}]\nprovider = "simulated"\n')
    app = create_app(
        {"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(folder / "pools.toml"), "DICAST_STATE_DIR": str(folder)}
    )
    node = Node.for_this_process("counting@here", limit=LIMIT, slots=LIMIT)
    Registry(app.store, app.keys).announce(node)
    client = connect_async(redis_url)
    asking = FailFast(StopStore(client, app.keys), _Pools(), fail_fast=20, recheck_s=60.0)
    desk = _Desk(app, Ledger(client, app.keys, node.id, claim_ms=600_000, calls_max=9), asking, folder)
    await desk.job("warm-up")  # what is loaded, compiled or remembered with the first unit counts for none
    counts = await desk.job("counted")
    await client.aclose()
    app.close()
    return counts


class _Quiet:
    """All pools are up, no job has stopped, nothing is to be chosen, nobody has died, and nobody waits."""

    async def read(self, pools: Iterable[str]) -> dict[str, PoolCondition]:
        return dict.fromkeys(pools, PoolCondition(0.0, None, 0.0))

    async def choose(self, *_: Any) -> dict[MessageId, Any]:
        return {}

    def reap(self) -> int:
        return 0

    def announce(self, *_: Any) -> None: ...
    async def cancel(self, *_: Any) -> None: ...


class _Desk:
    """The pipeline's parts, without a worker around them."""

    def __init__(self, app: Dicast, ledger: Ledger, asking: FailFast, folder: Path) -> None:
        self._app, self._ledger = app, ledger
        pools, quiet = _Pools(), _Quiet()
        self._messages = Messages(app, pools, quiet)
        self._planner = Planner(ledger, pools, asking, Lookahead(seconds=5.0, page_max=500), str(folder))
        policy = RetryPolicy(initial_s=1.0, max_s=60.0, max_attempts=3, requeue_budget=5, retry_after_max_s=300.0)
        recorder = Recorder(ledger, Spool(folder, "counting", "here"))
        settler = Outcomes(ledger, recorder, policy, asking, quiet, pools)
        claimer = Claimer(ledger, recorder, DeadNodes(ledger, quiet))
        asker = ProviderCaller(pools, _Secret(), StoredImages(str(folder)), AsyncRenderer())
        self._judge = Judge(JobCache(ledger), claimer, asking, pools, asker, settler)
        self._gatherer = Gatherer(ledger, str(folder), pools, asking, quiet, quiet)

    async def job(self, name: str) -> Counts:
        """Plan, publish, judge and gather a job's first window."""
        store, counts = self._app.store, Counts()
        await self._ledger.start(self._app.submit(_job() | {"id": name}), LIMIT)
        job = await self._ledger.job(name)
        assert job is not None
        before = store.dbsize()
        with denied_join_result(), _calls() as made:  # a worker subscribes to no results of what it publishes
            await self._planner.plan(job, 0, self._messages)
        raw = store.lrange(QUEUE_PREFIX + POOL, 0, -1)
        units = len(raw)
        pages = [PageRef(name, job.incarnation, 0, page) for page in range(units // LIMIT)]
        counts["function calls: planning and publishing"] = made[""] / units
        counts["bytes: message"] = sum(map(len, raw)) / units
        counts["keys: with units open"] = (store.dbsize() - before) / units
        counts["bytes: ledger, unit open"] = self._size(pages) / units

        store.delete(QUEUE_PREFIX + POOL)
        with _calls() as made:
            for message in map(orjson.loads, raw):
                await self._message(message["headers"], pages)
        counts["function calls: judging"] = made["ours"] / units
        counts["bytes: ledger, unit done"] = self._size(pages) / units

        with _calls() as made:
            for ref in pages:
                await self._gatherer.gather(ref)
        counts["function calls: gathering"] = made["ours"] / units
        counts["keys: page gathered"] = sum(store.exists(self._ledger.keys.page(ref)) for ref in pages)
        return counts

    async def _message(self, headers: dict[str, Any], pages: list[PageRef]) -> None:
        unit = GatedUnit.from_header(headers[HEADER])
        _, page, token = unit.labels["unit"].split(".")
        lease = Lease(lambda _: None, lambda call: call(), "lease", unit, asyncio.get_running_loop().time() + 600.0)
        outcome = await self._judge.judge(pages[int(page)], MessageId.parse(token), lease)
        assert outcome.counts

    def _size(self, pages: list[PageRef]) -> int:
        return sum(self._app.store.memory_usage(self._ledger.keys.page(ref), samples=0) for ref in pages)


class _Secret:
    async def get(self) -> bytes:
        return b"counting"


class _Provider:
    """Answers at once, in this process."""

    structured_output = True
    nonce_in_schema = False
    caches = False
    _OPINION: ClassVar = {"argument": "It says why, and how. " * 8, "cited_evidence": ["A text"], "score": 7}

    async def complete(self, request: ChatRequest) -> ChatReply:
        text = orjson.dumps({"nonce": nonce_of(request.user), **self._OPINION}).decode()
        return ChatReply(text, request.model, Usage(input_tokens=300, output_tokens=60), structured=True)

    async def close(self) -> None:
        """There is nothing to close."""


class _Pools:
    """One pool, which answers at once."""

    def model(self, deployment: Deployment) -> str:
        return deployment.model or "simulated-judge"

    def provider(self, _: str) -> _Provider:
        return _Provider()

    def call_timeout_s(self, _: str) -> float:
        return 60.0

    async def limit(self, _: str) -> int:
        return LIMIT


@contextmanager
def _calls() -> Iterator[Counter[str]]:
    """Counts calls of Python functions, in this thread and the loop's helpers: all, and of this program's own."""
    loop, helpers = asyncio.get_running_loop(), ThreadPoolExecutor(1)  # a new thread: one that runs cannot be told
    loop.set_default_executor(helpers)
    counted: Counter[str] = Counter()
    ours = f"{ROOT}/dicast/"

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            counted[""] += 1
            if frame.f_code.co_filename.startswith(ours):
                counted["ours"] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield counted
    finally:
        helpers.shutdown()
        sys.setprofile(None)
        threading.setprofile(None)
        loop.set_default_executor(ThreadPoolExecutor(1))


def _job() -> dict[str, Any]:
    return a_job(agents=1, dimensions=10, items=UNITS // 10, pool=POOL)
