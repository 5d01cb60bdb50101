"""What the pipeline asks of the broker."""

import pytest
from kombu.exceptions import OperationalError

from app.celery import create_app
from app.domain.job import Item
from app.ledger.keys import PageRef
from app.ledger.ledger import Ledger
from app.ledger.records import Token
from app.messages import Messages
from app.planning import PageMessages
from tests.workers.pool_harness import Server
from workers.store.connection import connect_async

POOLS = '[pools.sim]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:1/v1"\n'


async def test_a_queue_is_empty_before_its_first_message_and_after_its_last(tmp_path, redis_url):
    """Redis drops an empty list, so a queue without messages cannot be told from one that was never there."""
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    messages = Messages(app, lambda _: "m", lambda *_: {})
    assert await messages.queues_empty({"sim"})
    app.send_task("dicast.judge_dimension", queue="provider.sim")
    assert not await messages.queues_empty({"sim"})
    app.store.delete("provider.sim")
    assert await messages.queues_empty({"sim"})
    app.close()


async def test_a_message_waits_for_a_broker_that_is_away(tmp_path, redis_url, monkeypatch):
    """What is given up here waits for the sweeper, up to a minute."""
    monkeypatch.setattr("app.messages.BROKER_PAUSE_S", 0.0)
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    send, troubles = app.send_task, [OperationalError("away"), ConnectionResetError(), AttributeError()]

    def send_task(*args, **options):
        if troubles:
            raise troubles.pop()
        return send(*args, **options)

    monkeypatch.setattr(app, "send_task", send_task)
    await Messages(app, lambda _: "m", lambda *_: {}).plan("j", 0)
    assert app.store.llen("dicast.control") == 1
    app.store.delete("dicast.control")
    app.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.remove()


async def test_a_page_is_sent_again_when_its_batch_met_a_broker_that_went_away(server, tmp_path, monkeypatch):
    monkeypatch.setattr("app.messages.BROKER_PAUSE_S", 0.0)
    (tmp_path / "pools.toml").write_text(POOLS)
    url = f"unix://{server.socket}"
    app = create_app({"REDIS_URL": url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    dimensions = [{"id": f"d{n}", "instructions": "good?"} for n in range(2)]
    job_id = app.submit(
        {"items": [{"id": "i", "text": "t"}], "agents": [{"name": "a", "pool": "sim"}], "dimensions": dimensions}
    )
    store = connect_async(url)
    job = await Ledger(store, app.keys, "n", claim_ms=1000, calls_max=9).job(job_id)
    await store.aclose()
    backend, attempts = type(app.backend), []
    set_size = backend.set_chord_size

    def set_chord_size(*args):
        """The broker goes away when the batch is under way, and is back at the second attempt."""
        attempts.append(args)
        if len(attempts) == 2:
            server.start()
        set_size(*args)
        if len(attempts) == 1:
            server.stop()

    monkeypatch.setattr(backend, "set_chord_size", set_chord_size)
    page = PageMessages(PageRef(job_id, 0, 0), job.lanes[0], [Token(0), Token(1)], {0: Item(id="i", text="t")})

    async def choose(*_):
        return {}

    await Messages(app, lambda _: "m", choose).page(job, page)
    assert len(attempts) == 2
    assert app.store.llen("provider.sim") == 2
    app.close()
