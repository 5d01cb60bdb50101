"""Answers of a store in trouble are outages to the broker's client."""

import pytest
import redis
from kombu import Connection
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from workers.acknowledgement import batch_acks
from workers.refusals import reconnect_when_refused


def test_a_refusal_is_a_lost_connection(redis_url):
    reconnect_when_refused()
    reconnect_when_refused()
    with Connection(redis_url.replace("unix://", "redis+socket://").split("?")[0]) as connection:
        errors = connection.connection_errors
        assert all(issubclass(refusal, errors) for refusal in (ReadOnlyError, OutOfMemoryError, redis.ConnectionError))
        assert errors.count(redis.ResponseError) == 1


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_task_may_outlive_the_channel_that_brought_it(redis_url, end, batched):
    reconnect_when_refused()
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
