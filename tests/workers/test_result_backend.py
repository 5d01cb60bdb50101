"""The result backend: Celery's results to the byte, by a way on which the loop never waits."""

import asyncio
import itertools
import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
from celery import Celery, states
from celery.result import allow_join_result
from redis.asyncio import UnixDomainSocketConnection as UnixConnection
from redis.asyncio.connection import AbstractConnection

import dicast.workers.runtime.result_backend
from dicast.workers.runtime.loop_bridge import TaskGreenlet, close_loop_resources
from dicast.workers.runtime.result_backend import RedisBackend
from dicast.workers.store.connection import BATCH_MAX, LANES
from tests.workers import pool_harness
from tests.workers.pool_harness import DEADLINE_S, ROOT, Server, running, until

broker, client, worker = pool_harness.broker, pool_harness.client, pool_harness.worker


def make_backend(socket, **settings):
    app = Celery("results", set_as_current=False)
    url = f"socket://{socket}?virtual_host=0"
    app.conf.update(result_backend=f"dicast.workers.runtime.result_backend:RedisBackend+{url}", **settings)
    return app.backend


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Ends the subscriptions of every backend that a test made. Celery makes one for each thread, too, whose results
    unsubscribe when they are collected, wherever that is: their server may have gone by then."""
    made = []
    construct = RedisBackend.__init__

    def noted(backend, *args, **kwargs):
        construct(backend, *args, **kwargs)
        made.append(backend)

    def forget():
        for backend in made:
            backend.result_consumer.subscribed_to.clear()
            backend.result_consumer.stop()

    monkeypatch.setattr(RedisBackend, "__init__", noted)
    yield forget
    forget()


@pytest.fixture
async def backend(broker):
    backend = make_backend(broker.socket)
    yield backend
    await close_loop_resources()
    backend.client.close()


@pytest.fixture
def own_server(forget):
    """One that may be stopped: nobody else's results lie there."""
    server = Server()
    yield server
    forget()
    server.remove()


def in_greenlet(function, *args, **kwargs):
    async def drive():
        return await TaskGreenlet(lambda: function(*args, **kwargs))

    return asyncio.create_task(drive())


# ---------------------------------------------------------------------- the same results as Celery's own backend
@pytest.fixture(scope="module")
def stock():
    """A worker with Celery's own backend."""
    with running(pool_harness.server(), "-c", "2", POOL_TEST_BACKEND="redis+socket") as stock:
        yield stock


def stored(broker, result):
    """What the server holds, without what differs from one run to the next."""
    meta = json.loads(broker.client.get(f"celery-task-meta-{result.id}").replace(result.id, "own-id"))
    return {name: value for name, value in meta.items() if name not in {"date_done", "traceback"}}


@pytest.mark.parametrize(
    "call",
    [("add", 1, 2), ("add_in_thread", 1, 2), ("fail", "no luck"), ("raise_oddly", "odd"), ("retry_in_vain",)],
    ids=lambda call: call[0],
)
def test_stored_as_by_celery(client, worker, stock, broker, call):
    results = [client.send(one, *call) for one in (worker, stock)]
    for result in results:
        until(result.ready, "done")
    ours, celerys = (stored(broker, result) for result in results)
    assert ours == celerys
    lifetimes = [broker.client.ttl(f"celery-task-meta-{result.id}") for result in results]
    assert all(590 < lifetime <= 600 for lifetime in lifetimes)


def test_any_client_waits_for_a_result(worker, broker):
    """Celery's own backend subscribes to the result: it must be published, too."""
    script = f"""
from celery import Celery
app = Celery(broker="redis+socket://{broker.socket}", backend="redis+socket://{broker.socket}")
print(app.send_task("tests.workers.pool_tasks.add", (20, 22), queue="{worker.queue}").get(timeout={DEADLINE_S}))
"""
    assert subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True, timeout=60) == "42\n"


def test_a_chord_leaves_what_celery_leaves(client, worker, stock, broker):
    def found():
        return set(broker.client.keys("celery-taskset-meta-*"))

    def left_by(one):
        """What there is once the chord's counters are gone, which may be after its body has ended."""
        before = found()
        header = [client.task("add", n, n) for n in range(3)]
        assert client.chord(one, header, client.task("total")).get() == 6
        until(lambda: len(found() - before) <= 1, "the counters are gone")
        return sorted(key.rsplit(".", 1)[-1] for key in found() - before)

    assert left_by(worker) == left_by(stock)


# ---------------------------------------------------------------------- the loop goes on
async def test_the_loop_turns_while_the_store_does_not_answer(own_server):
    backend = make_backend(own_server.socket)
    await in_greenlet(backend.store_result, "warm", 1, states.SUCCESS)
    with own_server.frozen():
        storing = [in_greenlet(backend.store_result, f"frozen-{n}", n, states.SUCCESS) for n in range(300)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not any(task.done() for task in storing)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*storing)
    assert await in_greenlet(lambda: [backend.get_result(f"frozen-{n}") for n in (0, 299)]) == [0, 299]
    await close_loop_resources()


async def test_the_loop_turns_while_a_nested_chord_is_joined(own_server):
    """Celery polls and sleeps by the second there."""
    # Published elsewhere, for Celery tells an outcome to one result of an id only, in each process.
    backend, client = make_backend(own_server.socket), make_backend(own_server.socket)
    inner = client.app.GroupResult("inner", [client.app.AsyncResult("one"), client.app.AsyncResult("two")])
    client.save_group("outer", client.app.GroupResult("outer", [client.app.AsyncResult("three"), inner]))
    for number, name in enumerate(["one", "two", "three"], start=1):
        backend.store_result(name, number, states.SUCCESS)

    def join():
        outer = backend.restore_group("outer")
        outer.on_ready()
        with allow_join_result():
            return outer.join_native(timeout=DEADLINE_S)

    joining, turns = in_greenlet(join), [time.monotonic()]
    while not joining.done():
        await asyncio.sleep(0.01)
        turns.append(time.monotonic())
    assert await joining == [3, [1, 2]]
    assert max(after - before for before, after in itertools.pairwise(turns)) < 0.5
    await close_loop_resources()


async def test_a_result_that_comes_while_it_is_begun_to_be_waited_for_is_joined(backend):
    outcomes = {"one": 1, "two": 2}
    for name, value in outcomes.items():
        backend.store_result(name, value, states.SUCCESS)

    class Racing(dict):
        """The others' thread is quicker: a result is known before anybody waits for it."""

        def __setitem__(self, result, bucket):
            result._maybe_set_cache(backend.get_task_meta(result.id))

    results = [backend.app.AsyncResult(name) for name in outcomes]
    backend.result_consumer.buckets = Racing()
    with allow_join_result():
        assert backend.app.GroupResult("group", results).join_native(timeout=DEADLINE_S) == [1, 2]


async def test_a_result_that_another_waiter_was_told_is_joined(backend):
    """As where nothing waits for it any more when the group is called ready, which a chord's header is at once."""
    backend.store_result("one", 1, states.SUCCESS)
    backend.result_consumer.on_state_change = lambda meta, message: None
    group = backend.app.GroupResult("group", [backend.app.AsyncResult("one")])
    group.on_ready()
    with allow_join_result():
        assert group.join_native(timeout=DEADLINE_S) == [1]


async def test_tasks_that_end_together_share_round_trips(backend, monkeypatch):
    trips = []
    pack_commands = AbstractConnection.pack_commands

    def counted(connection, commands):
        trips.append(len(commands))
        return pack_commands(connection, commands)

    monkeypatch.setattr(AbstractConnection, "pack_commands", counted)
    connections = len(backend.client.client_list())
    await asyncio.gather(*[in_greenlet(backend.store_result, f"together-{n}", n, states.SUCCESS) for n in range(1000)])
    assert sum(trips) == 3000  # GET, SETEX, PUBLISH, as Celery does
    assert max(trips) <= 2 * BATCH_MAX
    assert len(trips) <= 100
    assert len(backend.client.client_list()) <= connections + LANES


async def test_a_server_that_comes_back_in_time_is_not_missed(own_server, monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.result_backend, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(dicast.workers.runtime.result_backend, "RETRIES", 500)
    backend = make_backend(own_server.socket)
    await in_greenlet(backend.store_result, "before", 1, states.SUCCESS)
    own_server.stop()
    storing = in_greenlet(backend.store_result, "meanwhile", 2, states.SUCCESS)
    await asyncio.to_thread(own_server.start)
    async with asyncio.timeout(DEADLINE_S):
        await storing
    assert await in_greenlet(backend.get_result, "meanwhile") == 2
    await close_loop_resources()


async def test_a_server_that_stays_away_is_told_of(monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.result_backend, "RETRIES", 1)
    backend = make_backend("/nowhere/socket")
    storing = [in_greenlet(backend.store_result, f"never-{n}", n, states.SUCCESS) for n in range(10)]
    async with asyncio.timeout(DEADLINE_S):
        errors = await asyncio.gather(*storing, return_exceptions=True)
    assert all(isinstance(error, redis.ConnectionError) for error in errors)
    await close_loop_resources()


async def test_celerys_own_retries_do_not_hold_the_loop(monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.result_backend, "RETRIES", 0)
    backend = make_backend(
        "/nowhere/socket",
        result_backend_always_retry=True,
        result_backend_max_retries=1,
        result_backend_base_sleep_between_retries_ms=3_600_000,
        result_backend_max_sleep_between_retries_ms=7_200_000,
    )
    sleeping = asyncio.Event()
    sleep = asyncio.sleep

    async def noted(delay):
        sleeping.set()
        await sleep(delay)

    monkeypatch.setattr(dicast.workers.runtime.result_backend.asyncio, "sleep", noted)
    storing = in_greenlet(backend.store_result, "never", 1, states.SUCCESS)
    async with asyncio.timeout(DEADLINE_S):
        await sleeping.wait()
    storing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await storing
    await close_loop_resources()


async def test_waits_between_writes_do_not_hold_the_loop(backend):
    """`ensure` would sleep an hour in the thread if `on_connection_error` left that to it."""
    waiting = in_greenlet(backend.on_connection_error, 3, OSError("away"), iter([3600.0]), 1)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert backend.on_connection_error(3, OSError("away"), iter([0.5]), 1) == 0.5


# ---------------------------------------------------------------------- callers do not disturb each other
async def test_an_error_reaches_its_caller_only(backend):
    await in_greenlet(lambda: backend.client.set("a-text", "not a number"))

    def good(n):
        return backend.client.set(f"fine-{n}", n)

    calls = [in_greenlet(good, n) for n in range(5)]
    bad = in_greenlet(lambda: backend.client.incr("a-text"))
    calls += [in_greenlet(good, n) for n in range(5, 10)]
    with pytest.raises(redis.ResponseError, match="not an integer"):
        await bad
    assert await asyncio.gather(*calls) == [True] * 10


async def test_a_cancelled_caller_leaves_the_others_their_replies(backend):
    calls = [in_greenlet(lambda n=n: backend.client.echo(str(n))) for n in range(10)]
    await asyncio.sleep(0)
    calls[3].cancel()
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(replies.pop(3), asyncio.CancelledError)
    assert replies == [str(n).encode() for n in range(10) if n != 3]


async def test_pipelines_reply_in_order_and_raise_the_first_error(backend):
    def pipeline():
        with backend.client.pipeline() as pipe:
            return pipe.set("p", 1).incr("p").get("p").execute()

    assert await in_greenlet(pipeline) == [True, 2, b"2"]

    def failing():
        with backend.client.pipeline() as pipe:
            pipe.set("p", "text").incr("p").execute()

    with pytest.raises(redis.ResponseError):
        await in_greenlet(failing)


async def test_scripts_are_loaded_again_when_the_server_forgot_them(backend):
    script = backend.client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    backend.client.delete("scripted")
    assert await in_greenlet(lambda: script(["scripted"], [2], client=backend.client)) == 2
    backend.client.script_flush()
    assert await in_greenlet(lambda: script(["scripted"], [3], client=backend.client)) == 5


# ---------------------------------------------------------------------- elsewhere it is Celery's
async def test_outside_of_greenlets_the_client_is_the_ordinary_one(backend):
    ordinary = backend.client
    assert type(ordinary) is redis.Redis
    assert await in_greenlet(lambda: backend.client is not ordinary)
    assert await asyncio.to_thread(lambda: backend.client is ordinary)
    backend.store_result("outside", 5, states.SUCCESS)
    assert backend.get_result("outside") == 5


async def test_a_task_does_not_subscribe_to_the_results_of_what_it_publishes(backend):
    """Another thread's chord join may have allowed that for the whole process."""
    await in_greenlet(backend.on_task_call, None, "a-child")
    assert backend.result_consumer.subscribed_to == set()


@pytest.mark.parametrize(
    ("url", "connection_class", "wanted"),
    [
        ("redis://:secret@host:6380/3", redis.asyncio.Connection, {"port": 6380, "db": 3, "password": "secret"}),
        ("rediss://host/1?ssl_cert_reqs=none", redis.asyncio.SSLConnection, {"host": "host", "db": 1}),
        ("socket:///run/redis?virtual_host=2", UnixConnection, {"path": "/run/redis", "db": 2}),
    ],
)  # fmt: skip
async def test_both_ways_lead_to_the_same_server(url, connection_class, wanted):
    app = Celery("results", set_as_current=False)
    app.conf.result_backend = f"dicast.workers.runtime.result_backend:RedisBackend+{url}"
    app.conf.redis_socket_timeout = 7.0
    assert isinstance(app.backend, RedisBackend)
    loop_pool = (await in_greenlet(lambda: app.backend.client)).batches._client.connection_pool
    assert issubclass(loop_pool.connection_class, connection_class)
    for pool in (loop_pool, app.backend.client.connection_pool):
        made = {**pool.connection_kwargs}
        assert {name: made[name] for name in wanted} == wanted
        assert made["socket_timeout"] == 7.0
    await close_loop_resources()


async def test_one_backend_serves_several_loops(broker, backend):
    await in_greenlet(backend.store_result, "first loop", 1, states.SUCCESS)
    seen = []

    async def second():
        seen.append(await TaskGreenlet(lambda: backend.get_result("first loop")))
        await close_loop_resources()

    thread = threading.Thread(target=asyncio.run, args=(second(),))
    thread.start()
    await asyncio.to_thread(thread.join, DEADLINE_S)
    assert seen == [1]


# ---------------------------------------------------------------------- commands whose answers are lost
@pytest.fixture
def repeated(backend):
    """Every command of this backend outside greenlets is obeyed twice, and answered the second time."""
    once = backend.client.execute_command

    def twice(*args, **options):
        once(*args, **options)
        return once(*args, **options)

    backend.client.execute_command = twice
    return backend


def a_member(group, number, body):
    return SimpleNamespace(id=f"{group}.{number}", group=group, group_index=number, chord=body)


def test_a_chord_whose_answers_are_lost_sends_its_body_once(repeated, monkeypatch):
    sent, body = [], repeated.app.signature("body")
    monkeypatch.setattr(repeated.app.amqp, "_retry_publish", lambda _, results: sent.append(results))
    members = [a_member("lost-answers", n, body) for n in range(3)]
    repeated.set_chord_size("lost-answers", 3)
    for member in (members[0], *members):  # the first comes again, too
        assert sent == []
        repeated.on_chord_part_return(member, states.SUCCESS, member.id)
    assert sent == [["lost-answers.0", "lost-answers.1", "lost-answers.2"]]
    repeated.on_chord_part_return(members[1], states.SUCCESS, "again")
    assert len(sent) == 1


def test_a_member_is_added_to_a_chord_once(repeated, monkeypatch):
    sent, body = [], repeated.app.signature("body")
    monkeypatch.setattr(repeated.app.amqp, "_retry_publish", lambda _, results: sent.append(results))
    repeated.set_chord_size("grown", 1)
    for _ in range(2):  # its sender's message came twice
        repeated.add_to_chord("grown", repeated.app.AsyncResult("grown.1"))
    repeated.on_chord_part_return(a_member("grown", 0, body), states.SUCCESS, 0)
    assert sent == []
    repeated.on_chord_part_return(a_member("grown", 1, body), states.SUCCESS, 1)
    assert len(sent) == 1


# ---------------------------------------------------------------------- progress
@pytest.mark.parametrize("end", [None, states.SUCCESS, states.FAILURE, states.REVOKED])
async def test_progress_is_stored_until_the_end_is(backend, end):
    name = f"progress-{end}"
    assert backend.store_progress(name, {"done": 1, "total": 4})
    if end is not None:
        backend.store_result(name, "over" if end == states.SUCCESS else ValueError("over"), end)
    assert backend.store_progress(name, {"done": 2, "total": 4}) is (end is None)
    result = backend.app.AsyncResult(name)
    assert result.state == (end or "PROGRESS")
    if end is None:
        assert result.info == {"done": 2, "total": 4}
        assert not result.ready()
        assert 0 < backend.client.ttl(backend.get_key_for_task(name)) <= backend.expires


async def test_whoever_waits_hears_of_progress_and_waits_on(backend):
    result, heard = backend.app.AsyncResult("waited for"), []
    backend.store_progress(result.id, {"done": 0})

    def ends(meta):
        heard.append(meta["status"])
        if meta["status"] == "PROGRESS" and meta["result"]["done"] == 1:
            backend.store_result(result.id, "the report", states.SUCCESS)

    def get():
        threading.Timer(0.2, backend.store_progress, [result.id, {"done": 1}]).start()
        return result.get(timeout=DEADLINE_S, on_message=ends)

    assert await asyncio.to_thread(get) == "the report"
    assert heard[-1] == "SUCCESS" and "PROGRESS" in heard
