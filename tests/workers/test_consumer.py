"""What the consumer lets in, without a connection."""

from collections import Counter
from types import SimpleNamespace

import orjson
import pytest
from celery import Celery
from kombu.message import Message
from redis.exceptions import ResponseError

from dicast.workers.admission.request import GatedUnit
from dicast.workers.broker.dead_letters import SIGNATURE, signature
from dicast.workers.runtime.consumer import AdmissionConsumer, PoolQueues, _GatedBucket

KEY = "k" * 32
app = Celery("consumer", set_as_current=False)


@app.task(name="gated")
def gated(): ...


@app.task(name="plain")
def plain(): ...


gated.gated = True


class Consumer(AdmissionConsumer):
    """Only its part that looks at messages."""

    def __init__(self, **gates):
        self.app, self.gates = app, {f"provider.{name}": gate for name, gate in gates.items()}
        self.task_consumer = SimpleNamespace(_queues={"control": None})
        self.connection_errors = (KeyError, OSError)  # kombu counts errors of lookups among them
        self._watchdog = SimpleNamespace(taken=Counter())
        self.aside, self.ended = [], []

    def _set_aside(self, message, reason):
        self.aside.append(reason)

    def _end_request(self, request, reason):
        self.ended.append((request.id, reason))


class Request:
    def __init__(self, pool):
        self.id, self.name, self.unit = "i", "gated", GatedUnit("j", "p", {}, pool=pool)
        self.delivery_info = {"routing_key": "provider.a"}


def message(task="gated", queue="provider.a", *, sign=True, body=b"[[], {}, null]", **headers):
    named = {"task": task, "id": "i", "dicast": {"job": "j"}, **headers}
    if sign:
        named[SIGNATURE] = signature(KEY, named, body)
    return Message(
        body, content_type="application/json", content_encoding="utf-8", headers=named,
        delivery_info={"routing_key": queue, "exchange": "dicast"}, properties={}, accept={"application/json"},
    )  # fmt: skip


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setattr(app, "message_key", KEY, raising=False)


@pytest.mark.parametrize(
    "task, routing_key, queue, reason",
    [
        ("gated", "provider.a", "provider.a", ""),
        ("gated", "provider.b", "provider.a", "misrouted"),
        ("gated", "control", None, "misrouted"),
        ("plain", "control", None, ""),
        ("plain", "provider.a", "provider.a", "misrouted"),
        ("plain", "elsewhere", None, "misrouted"),
    ],
)
def test_a_message_comes_by_the_queue_that_it_was_sent_to(key, task, routing_key, queue, reason):
    assert Consumer()._objection(message(task, routing_key), queue) == reason


@pytest.mark.parametrize("pool, ended", [("a", []), ("", []), ("b", [("i", "misrouted")])])
def test_a_signed_message_that_was_moved_takes_no_lease_of_another_pool(pool, ended):
    """Its header, which is signed, names the pool that will be called; the queue names the pool of the lease."""
    held = []
    consumer = Consumer(a=SimpleNamespace(pool="a", closed=False, hold=held.append))
    consumer._limit_task(Request(pool), _GatedBucket(consumer), 1)
    assert (consumer.ended, len(held)) == (ended, 0 if ended else 1)


def test_a_signature_counts_the_pool(key):
    headers = {"task": "gated", "id": "i", "dicast": {"job": "j", "pool": "a"}}
    signed = message(**headers)
    signed.headers["dicast"]["pool"] = "b"
    assert Consumer()._objection(signed, "provider.a") == "unsigned"
    assert Consumer()._objection(message(sign=False), "provider.a") == "unsigned"


def test_a_lone_surrogate_is_no_signature_and_ends_nobody(key):
    odd = message(sign=False)
    odd.headers |= {"dicast": {"project": "\ud800"}, SIGNATURE: "0" * 64}
    assert Consumer()._objection(odd, "provider.a") == "unsigned"
    with pytest.raises(TypeError):
        orjson.dumps(odd.headers)


@pytest.mark.parametrize("error", [KeyError("subtask"), ValueError("odd"), LookupError("zlib"), RecursionError()])
def test_what_celery_trips_over_is_set_aside(monkeypatch, error):
    """Not even what kombu would take for a lost connection, after which the same message would come again."""

    def handle(message):
        raise error

    monkeypatch.setattr(PoolQueues, "create_task_handler", lambda self: handle)
    consumer = Consumer()
    consumer.create_task_handler()(message(), queue="provider.a")
    assert (consumer.aside, consumer._watchdog.taken) == (["malformed"], {"provider.a": 1})


@pytest.mark.parametrize("error", [ConnectionResetError(), ResponseError("READONLY replica")])
def test_a_broker_that_is_away_is_no_fault_of_the_message(monkeypatch, error):
    def handle(message):
        raise error

    monkeypatch.setattr(PoolQueues, "create_task_handler", lambda self: handle)
    consumer = Consumer()
    with pytest.raises(type(error)):
        consumer.create_task_handler()(message(), queue="provider.a")
    assert consumer.aside == []
