import pytest
from celery.worker import state as worker_state

from workers.depths import StoreDepths
from workers.policy.progress import STUCK_LOOKS
from workers.store.connection import connect_async
from workers.watchdog import Watchdog


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
        await watchdog.look(StoreDepths(client))
    assert (reconnects, watchdog.stuck) == ([1], "waiting")
    for looks in range(STUCK_LOOKS):
        assert worker_state.should_stop is None
        watchdog.taken["moving"] = -looks
        await watchdog.look(StoreDepths(client))
    assert (reconnects, worker_state.should_stop) == ([1], 1)
    assert [record.remedy for record in caplog.records] == ["reconnect", "restart"]
    watchdog.taken["waiting"] = 1
    await watchdog.look(StoreDepths(client))
    assert watchdog.stuck == ""
