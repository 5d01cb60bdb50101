"""Callers that wait at the same time share round trips, and each gets its own answer or error."""

import asyncio

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.workers.store.batches import BATCH_MAX, Batches
from dicast.workers.store.connection import connect_batching
from tests.workers.pool_harness import DEADLINE_S, Server


@pytest.fixture
def server():
    server = Server()
    yield server
    server.remove()


@pytest.fixture
async def client(server):
    client = connect_batching(f"unix://{server.socket}?db=0")
    yield client
    await client.aclose()


async def test_each_gets_its_own_answer_in_few_round_trips(client, monkeypatch):
    trips = []
    execute = redis.asyncio.client.Pipeline.execute

    async def counted(pipeline, *args, **kwargs):
        trips.append(len(pipeline.command_stack))
        return await execute(pipeline, *args, **kwargs)

    monkeypatch.setattr(redis.asyncio.client.Pipeline, "execute", counted)
    assert await asyncio.gather(*[client.echo(str(n)) for n in range(500)]) == [str(n) for n in range(500)]
    assert sum(trips) == 500
    assert max(trips) <= BATCH_MAX
    assert len(trips) < 20


async def test_an_error_is_its_callers_alone(client):
    await client.set("text", "a")
    answers = await asyncio.gather(client.get("text"), client.incr("text"), client.get("text"), return_exceptions=True)
    assert [answers[0], answers[2]] == ["a", "a"]
    assert isinstance(answers[1], ResponseError)


async def test_scripts_survive_a_flush_of_the_script_cache(client):
    script = client.register_script("return ARGV[1]")
    assert await script(args=["before"]) == "before"
    await client.script_flush()
    assert await asyncio.gather(*[script(args=[str(n)]) for n in range(50)]) == [str(n) for n in range(50)]


async def test_a_server_that_is_gone_is_told_to_everybody(client, server):
    await client.ping()
    server.stop()
    try:
        answers = await asyncio.gather(*[client.get("x") for _ in range(10)], return_exceptions=True)
    finally:
        server.start()
    assert all(isinstance(answer, StoreConnectionError) for answer in answers)


async def test_one_lane_serves_callers_that_come_as_it_ends(client, server):
    plain = redis.asyncio.Redis(unix_socket_path=str(server.socket))
    batches = Batches(plain, lanes=1)
    async with asyncio.timeout(DEADLINE_S):
        for n in range(5):
            assert await batches.send([(("ECHO", str(n)), {})]) == [str(n).encode()]
    await plain.aclose()


async def test_a_caller_that_gives_up_holds_nobody(client):
    async with asyncio.timeout(DEADLINE_S):
        given_up = [asyncio.ensure_future(client.echo("x")) for _ in range(5)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        assert await client.echo("y") == "y"


async def test_a_lane_that_fails_leaves_nobody_waiting(client, monkeypatch, caplog):
    """Whatever happens between two round trips."""
    faults = [KeyError("odd")]
    serve = Batches._empty

    async def empty(batches):
        if faults:
            raise faults.pop()
        await serve(batches)

    monkeypatch.setattr(Batches, "_empty", empty)
    assert await asyncio.wait_for(client.echo("a"), DEADLINE_S) == "a"
    assert [(record.event, record.loop) for record in caplog.records] == [("loop_failed", "store-lane")]
