"""Publishing from task greenlets leaves the loop free and takes no connection while it waits."""

import asyncio

import pytest
from celery import Celery, group
from kombu.exceptions import OperationalError

from dicast.workers.runtime.loop_bridge import TaskGreenlet, close_loop_resources
from dicast.workers.runtime.publishing import AMQP
from tests.workers.pool_harness import DEADLINE_S, Server, unique


@pytest.fixture
async def server():
    server = Server()
    yield server
    await close_loop_resources()
    server.remove()


@pytest.fixture
def app(server):
    app = Celery("publishing", amqp="dicast.workers.runtime.publishing:AMQP", set_as_current=False)
    app.conf.update(broker_url=f"redis+socket://{server.socket}", broker_pool_limit=1, task_ignore_result=True)

    @app.task(name="named", shared=False)
    def named(*args): ...

    yield app
    app.close()


def in_greenlet(function):
    async def drive():
        return await TaskGreenlet(function)

    return asyncio.create_task(drive())


async def test_the_loop_turns_while_the_broker_does_not_answer(app, server):
    queue = unique("q")
    await in_greenlet(lambda: app.send_task("named", queue=queue))
    with server.frozen():
        sending = [in_greenlet(lambda n=n: app.send_task("named", (n,), queue=queue)) for n in range(20)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not any(task.done() for task in sending)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*sending)  # through the only connection that the pool has
    assert server.client.llen(queue) == 21


async def test_groups_and_links_are_sent(app, server):
    queue = unique("q")
    named = app.tasks["named"]
    await in_greenlet(lambda: group(named.s(n) for n in range(3)).apply_async(queue=queue))
    assert server.client.llen(queue) == 3
    await in_greenlet(lambda: app.amqp._retry_publish(named.s(1).apply_async, queue=queue))
    assert server.client.llen(queue) == 4
    await in_greenlet(lambda: named.apply_async((), countdown=60, queue=queue))
    assert server.client.llen(queue) == 5


async def test_what_asks_the_pool_for_a_producer_can_publish(app, server):
    queue = unique("q")

    def publish():
        with app.amqp.producer_pool.acquire(block=True) as producer:
            producer.publish({"some": "thing"}, routing_key=queue)

    await in_greenlet(publish)
    assert server.client.llen(queue) == 1


async def test_a_broker_that_is_away_is_told_of(app, server):
    app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_max": 0}
    server.stop()
    try:
        with pytest.raises(OperationalError):
            await in_greenlet(lambda: app.send_task("named", retry=False))
    finally:
        server.start()


async def test_elsewhere_it_is_celerys_own(app):
    assert type(app.amqp) is AMQP
    assert app.amqp.producer_pool is app.producer_pool
    with app.producer_or_acquire() as producer:
        assert type(producer).__module__ == "kombu.messaging"
