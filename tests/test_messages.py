"""What the pipeline asks of the broker."""

import contextlib

from kombu.exceptions import BatchPublishError, OperationalError

from dicast.app.application import create_app
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import MessageId
from dicast.app.pipeline.messages import Messages
from dicast.workers.admission.request import HEADER, QueuedUnits
from dicast.workers.broker import fetch
from dicast.workers.broker.fetch import DeclaredQueueLengths, StoreQueueLengths
from dicast.workers.store.connection import connect_async

JUDGE = "dicast.judge_dimension"
POOLS = '[pools.sim]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:1/v1"\n'


async def test_a_queue_is_empty_before_its_first_message_and_after_its_last(tmp_path, redis_url):
    """Redis drops an empty list, so a queue without messages cannot be told from one that was never there."""
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    messages = Messages(app, None, None)
    assert await messages.queues_empty({"sim"})
    app.send_task("dicast.judge_dimension", queue="provider.sim")
    assert not await messages.queues_empty({"sim"})
    app.store.delete("provider.sim")
    assert await messages.queues_empty({"sim"})
    app.close()


async def test_what_waits_in_a_queue_is_counted_by_project_and_stays_there(tmp_path, redis_url, monkeypatch):
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})

    async def look() -> QueuedUnits:
        async with contextlib.aclosing(connect_async(redis_url)) as client:
            messages = await StoreQueueLengths(client).peek("provider.sim")
        return QueuedUnits.from_headers(messages.headers, messages.others)

    for project in ("a", "b", "a"):
        app.send_task(JUDGE, queue="provider.sim", headers={HEADER: {"job": "j", "project": project}})
    app.send_task("foreign", queue="provider.sim")
    app.store.rpush("provider.sim", "no message")
    assert await look() == await look() == QueuedUnits({"a": 2, "b": 1}, 2)
    monkeypatch.setattr(fetch, "READ_MOST", 3)
    assert await look() == QueuedUnits({"a": 1, "b": 1}, 3), "those that are next, and how many others there are"
    app.store.delete("provider.sim")
    app.close()


async def test_a_broker_that_shows_no_message_tells_how_many_are_not_known(monkeypatch):
    lengths = DeclaredQueueLengths(None)
    monkeypatch.setattr(lengths, "_waiting", lambda queue: 7)
    messages = await lengths.peek("provider.sim")
    assert QueuedUnits.from_headers(messages.headers, messages.others) == QueuedUnits({}, 7)


async def test_a_message_waits_for_a_broker_that_is_away(tmp_path, redis_url, monkeypatch):
    """What is given up here waits for the sweeper, up to a minute."""
    monkeypatch.setattr("dicast.app.pipeline.messages.BROKER_PAUSE_S", 0.0)
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    troubles = [OperationalError("away"), BatchPublishError("uncertain"), ConnectionResetError(), AttributeError()]
    send = app.send_task

    def send_task(*args, **options):
        if troubles:
            raise troubles.pop()
        return send(*args, **options)

    monkeypatch.setattr(app, "send_task", send_task)
    await Messages(app, None, None).plan("j", "i", 0)
    assert app.store.llen("dicast.control") == 1
    app.store.delete("dicast.control")
    app.close()


JOB = {
    "id": "j",
    "items": [{"id": "a", "text": "t"}, {"id": "b", "text": "t"}],
    "agents": [{"name": "judge", "pool": "sim"}],
    "dimensions": [{"id": "clear", "instructions": "Is it clear?"}],
}


async def test_a_message_tells_the_ledger_of_which_page_it_is(tmp_path, redis_url):
    """By that alone a lost message is found while others wait in its queue."""
    (tmp_path / "pools.toml").write_text(POOLS)
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(tmp_path / "pools.toml")})
    client = connect_async(redis_url)
    ledger = Ledger(client, app.keys, "node", claim_ms=60_000, calls_max=9)
    await ledger.start(app.submit(JOB), 5)
    job = await ledger.job("j")
    lost, later = PageRef("j", job.incarnation, 0, 0), PageRef("j", job.incarnation, 0, 1)
    for ref in (lost, later):
        await ledger.open_page(ref, ref.page, 1, "" if ref is later else "more", 1, {})
        await ledger.published(ref)
    app.store.hincrby(ledger.keys.page(later), "opened_ms", 1)

    class Pools:
        def model(self, _):
            return "m"

        async def choose(self, *_):
            return {}

    await Messages(app, Pools(), Pools()).resend(job, later, MessageId(1))
    assert [await ledger.find_lost(lost, 1, queue_empty=False, queues=["provider.sim"]) for _ in range(2)] == [0, 1]
    await client.aclose()
    app.close()
