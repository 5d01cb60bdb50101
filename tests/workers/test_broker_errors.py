"""Answers of a store in trouble are outages to the broker's client."""

from queue import Empty

import pytest
import redis
from kombu import Connection
from kombu.transport.redis import Channel
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from dicast.workers.broker.acknowledgement import batch_acks, reconnect_on_error_replies, survive_foreign_broadcasts


def test_a_refusal_is_a_lost_connection(redis_url):
    reconnect_on_error_replies()
    reconnect_on_error_replies()
    with Connection(redis_url.replace("unix://", "redis+socket://").split("?")[0]) as connection:
        errors = connection.connection_errors
        assert all(issubclass(refusal, errors) for refusal in (ReadOnlyError, OutOfMemoryError, redis.ConnectionError))
        assert errors.count(redis.ResponseError) == 1


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_task_may_outlive_the_channel_that_brought_it(redis_url, end, batched):
    reconnect_on_error_replies()
    with Connection(redis_url.replace("unix://", "redis+socket://").split("?")[0]) as connection:
        channel = connection.channel()
        if batched:
            batch_acks(channel)
        queue = connection.SimpleQueue("q", channel=channel)
        queue.put({"n": 1})
        message = queue.get(timeout=5)
        channel.do_restore = False
        channel.close()
        connection.collect()
        getattr(message, end)()


@pytest.mark.parametrize("error", [RecursionError(), TypeError("no message"), KeyError("exchange")])
def test_a_broadcast_that_is_none_ends_nobody(monkeypatch, caplog, error):
    receive_one(monkeypatch, error)(None, None)
    assert [record.event for record in caplog.records] == ["odd_broadcast"]


@pytest.mark.parametrize("error", [redis.ConnectionError("away"), ConnectionResetError(), Empty()])
def test_a_broker_that_is_away_is_no_odd_broadcast(monkeypatch, error):
    with pytest.raises(type(error)):
        receive_one(monkeypatch, error)(None, None)


def receive_one(monkeypatch, error):
    """kombu's reading of a broadcast, which fails like this, as it is made to be outlived."""

    def read(channel, client):
        raise error

    monkeypatch.setattr(Channel, "_receive_one", read)
    survive_foreign_broadcasts()
    return Channel._receive_one
