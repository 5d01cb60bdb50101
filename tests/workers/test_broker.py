"""What Celery is told of each broker."""

import pytest

from dicast.workers.broker.profiles import Broker, result_backend

SENTINELS = "sentinel://:pw@a:1;sentinel://b:2/0?master=m&sentinel_password=t&ssl=true"


def test_the_store_as_broker():
    broker = Broker.for_urls("redis://h/1")
    assert (broker.is_store, broker.settings["broker_url"], dict(broker.queue_arguments)) == (True, "redis://h/1", {})
    assert broker.short_lived(10, 100) == {}
    assert result_backend("redis://h/1") == "dicast.workers.runtime.result_backend:RedisBackend+redis://h/1"


def test_a_watched_store_as_broker():
    settings = Broker.for_urls(SENTINELS).settings
    assert settings["broker_url"] == "sentinel://:pw@a:1/0;sentinel://:pw@b:2/0"
    options = settings["broker_transport_options"]
    assert (options["master_name"], options["sentinel_kwargs"]["password"]) == ("m", "t")
    assert settings["broker_use_ssl"] == {"ssl_cert_reqs": "required"}
    assert result_backend(SENTINELS) == f"dicast.workers.runtime.result_backend:SentinelBackend+{SENTINELS}"


def test_rabbitmq():
    broker = Broker.for_urls("redis://h/1", "amqp://u:p@a//;amqp://u:p@b//")
    assert not broker.is_store
    assert broker.settings["broker_transport_options"] == {"confirm_publish": True}, "what the store wants is no option"
    assert broker.queue_arguments["x-queue-type"] == "quorum"
    assert broker.short_lived(10, 100) == {**broker.queue_arguments, "x-message-ttl": 10_000, "x-max-length": 100}


@pytest.mark.parametrize(
    "store, rabbitmq", [("amqp://h", None), ("redis://h", "redis://h"), ("redis://h", "amqp://a;b")]
)
def test_addresses_of_the_wrong_kind(store, rabbitmq):
    with pytest.raises(ValueError, match="must begin with"):
        Broker.for_urls(store, rabbitmq)
