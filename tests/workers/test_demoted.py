"""A primary becomes a replica, and the connections to it stay alive: whoever is refused asks the address anew."""

import asyncio

import pytest
from celery import Celery, states
from redis.exceptions import ReadOnlyError

from dicast.workers.runtime.loop_bridge import TaskGreenlet, close_loop_resources
from dicast.workers.store.connection import ASYNC_CONNECTIONS, LANES, connect, connect_async, connect_batching
from tests.e2e.servers import Pair


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path / "pair")
    yield pair
    pair.stop()


async def refused(act, most=ASYNC_CONNECTIONS):
    """How often until it is not refused any more."""
    for n in range(most):
        try:
            await act()
        except ReadOnlyError:
            continue
        return n
    raise AssertionError(f"refused {most} times")


async def test_callers_who_share_round_trips_find_the_successor(pair):
    client = connect_batching(pair.url)
    script = client.register_script("#!lua\nreturn redis.call('INCR', KEYS[1])")
    for n in range(1, 4):
        assert await script(keys=["n"]) == n
    pair.fail_over()
    assert await refused(lambda: script(keys=["n"])) <= LANES
    assert await refused(lambda: client.set("x", 1)) <= LANES
    assert pair.client(pair.primary).get("n") == "4"
    await client.aclose()


async def test_a_reader_stays_and_a_refused_one_leaves_with_its_neighbours_answered(pair):
    """Others' answers in the round trip are theirs, and what was refused was not done: nothing is sent twice."""
    client = connect_batching(pair.url)
    await client.set("x", 1)
    pair.demote()
    answers = await asyncio.gather(client.get("x"), client.incr("x"), client.get("x"), return_exceptions=True)
    assert [answers[0], answers[2]] == ["1", "1"]
    assert isinstance(answers[1], ReadOnlyError)
    assert await refused(lambda: client.incr("x")) <= LANES
    assert pair.client(pair.primary).get("x") == "2"
    await client.aclose()


async def test_clients_of_single_commands_find_the_successor_by_themselves(pair):
    client, blocking = connect_async(pair.url), connect(pair.url)
    assert (await client.incr("n"), blocking.incr("n")) == (1, 2)
    pair.fail_over()
    assert (await client.incr("n"), blocking.incr("n")) == (3, 4)
    await client.aclose()
    blocking.close()


async def test_pipelines_that_look_at_each_error_find_it_too(pair):
    client, blocking = connect_async(pair.url), connect(pair.url)
    await client.ping()
    blocking.ping()
    pair.fail_over()
    for found in (
        await client.pipeline(transaction=False).incr("n").execute(raise_on_error=False),
        blocking.pipeline(transaction=False).incr("n").execute(raise_on_error=False),
    ):
        assert isinstance(found[0], ReadOnlyError)
    assert await client.pipeline(transaction=False).incr("n").execute(raise_on_error=False) == [1]
    assert blocking.pipeline(transaction=False).incr("n").execute(raise_on_error=False) == [2]
    await client.aclose()
    blocking.close()


@pytest.mark.parametrize("in_greenlet", [True, False])
async def test_results_are_stored_at_the_successor(pair, in_greenlet):
    app = Celery("results", set_as_current=False)
    app.conf.update(
        result_backend=f"dicast.workers.runtime.result_backend:RedisBackend+{pair.url}",
        result_backend_always_retry=True,
        result_backend_base_sleep_between_retries_ms=1,
    )  # fmt: skip

    async def store(name):
        def write():
            app.backend.store_result(name, name, states.SUCCESS)

        await (TaskGreenlet(write) if in_greenlet else asyncio.to_thread(write))

    await store("before")
    pair.fail_over()
    await store("after")
    kept = pair.client(pair.primary)
    assert all(kept.exists(f"celery-task-meta-{name}") for name in ("before", "after"))
    await close_loop_resources()
    app.backend.client.close()
