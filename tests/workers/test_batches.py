"""Callers that wait at the same time share round trips, and each gets its own answer or error."""

import asyncio

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.workers.store.connection import BATCH_MAX, Batches, connect_batching
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
    pack_commands = AbstractConnection.pack_commands

    def counted(connection, commands):
        trips.append(len(commands))
        return pack_commands(connection, commands)

    monkeypatch.setattr(AbstractConnection, "pack_commands", counted)
    assert await asyncio.gather(*[client.echo(str(n)) for n in range(500)]) == [str(n) for n in range(500)]
    assert sum(trips) == 500
    assert max(trips) <= BATCH_MAX
    assert len(trips) < 20


async def test_its_connection_is_kept(client, server):
    for n in range(20):
        assert await client.echo(str(n)) == str(n)
    others = [c for c in server.client.client_list() if c["cmd"] == "echo"]
    assert len(others) == 1


async def test_a_connection_that_was_closed_meanwhile_is_made_anew(client, server):
    assert await client.echo("before") == "before"
    server.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await client.echo("after") == "after"


async def test_an_answer_that_nobody_waits_for_is_not_the_next_ones(client, server):
    await client.ping()
    with server.frozen():
        given_up = asyncio.ensure_future(client.echo("a"))
        await asyncio.sleep(0.1)
        (lane,) = client._batches._lanes
        lane.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
    assert [await client.echo(text) for text in "bc"] == ["b", "c"]


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
