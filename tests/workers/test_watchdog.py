import pytest
from celery.worker import state as worker_state

from dicast.workers.broker.fetch import STUCK_LOOKS, StoreQueueLengths, Watchdog
from dicast.workers.store.connection import connect_async


@pytest.fixture
async def client(redis_url):
    client = connect_async(redis_url)
    yield client
    await client.aclose()


async def test_only_the_queue_with_work_that_is_not_taken_is_stuck(client, monkeypatch, caplog):
    monkeypatch.setattr(worker_state, "should_stop", None)
    reconnects = []
    room = {"full": False, "empty": True, "waiting": True, "moving": True}
    watchdog = Watchdog(lambda: room, lambda: reconnects.append(1))
    for name in ("full", "waiting", "moving"):
        await client.lpush(name, "m")
    for looks in range(1, STUCK_LOOKS + 1):
        assert watchdog.stuck == ""
        watchdog.taken["moving"] = looks
        await watchdog.check(StoreQueueLengths(client))
    assert (reconnects, watchdog.stuck) == ([1], "waiting")
    for looks in range(STUCK_LOOKS):
        assert worker_state.should_stop is None
        watchdog.taken["moving"] = -looks
        await watchdog.check(StoreQueueLengths(client))
    assert (reconnects, worker_state.should_stop) == ([1], 1)
    told = [(record.event, getattr(record, "remedy", "")) for record in caplog.records]
    assert told == [("no_progress", "reconnect"), ("no_progress", "restart"), ("worker_ends", "")]
    watchdog.taken["waiting"] = 1
    await watchdog.check(StoreQueueLengths(client))
    assert watchdog.stuck == ""


async def test_a_queue_that_cannot_be_asked_for_does_not_hide_the_others(client):
    """What is stuck is published as one text: the beacon's thread reads no dictionary that another one changes."""
    await client.set("odd", "no list")
    await client.lpush("waiting", "m")
    watchdog = Watchdog(lambda: {"odd": True, "waiting": True}, lambda: None)
    for _ in range(STUCK_LOOKS):
        await watchdog.check(StoreQueueLengths(client))
    assert watchdog.stuck == "waiting"
    assert isinstance(vars(watchdog)["stuck"], str)
