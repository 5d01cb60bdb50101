"""Celery's settings: queues, schedule, and the features of Celery that are switched off.

Flags such as `-c`, `-n` and `-Q` keep their meaning.

The schedule (`every`) follows the monotonic clock. Celery counts from the wall clock when an entry is due: a clock that
is put back by an hour keeps the beat silent for that hour, and so does a restart, since the scheduler keeps on disk
when it ran last. Entries that come every few seconds need neither a date nor a memory.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import schedule
from kombu import Exchange, Queue

from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE, GOVERNOR, HOUSEKEEPING
from dicast.config.pools import Pools
from dicast.config.settings import Settings
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.broker.profiles import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, MAX_CONNECTIONS, Broker, Names
from dicast.workers.nodes.reaper import own_unacked
from dicast.workers.store.keys import Keys

BEAT_EVERY_S = 1.0
TICK_EXPIRES_S = 10 * BEAT_EVERY_S
"""A tick expires after this time, in which further ticks have come, fewer than `BEAT_MESSAGES_MAX`. If a worker's clock
is further ahead of the beat's than this, ticks have expired when they arrive, and the workers do the housekeeping
themselves."""
BEAT_MESSAGES_MAX = 100


_BEGAN, _BEGAN_AT_S = datetime.now(UTC), time.monotonic()


def steady_now() -> datetime:
    """Return a date that advances with the monotonic clock. It ignores steps of the wall clock since this process
    began."""
    return _BEGAN + timedelta(seconds=time.monotonic() - _BEGAN_AT_S)


def every(seconds: float) -> Any:
    """Return a schedule for Celery's beat."""
    return schedule(seconds, nowfun=steady_now)


def celery_settings(settings: Settings, pools: Pools, names: Names, keys: Keys, broker: Broker) -> dict[str, Any]:
    """Return all of Celery's settings except the addresses of broker and store."""
    qualify = names.qualify
    # Results and the counts of chords are stored under this installation's keys.
    result_keys = {"global_keyprefix": keys.at("results") + ":"} if names.namespace else {}
    exchange = Exchange(qualify("dicast"), type="direct")
    queues = [*(QUEUE_PREFIX + name for name in pools.pools), CONTROL_QUEUE]
    arguments = dict.fromkeys(queues, broker.queue_arguments)
    arguments[BEAT_QUEUE] = broker.short_lived(TICK_EXPIRES_S, BEAT_MESSAGES_MAX)
    return {
        "result_backend_transport_options": result_keys,
        "control_exchange": qualify("celery"),
        "event_exchange": qualify("celeryev"),
        "event_queue_prefix": qualify("celeryev"),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "redis_max_connections": MAX_CONNECTIONS,
        "redis_socket_timeout": ANSWER_TIMEOUT_S,
        "redis_socket_connect_timeout": CONNECT_TIMEOUT_S,
        "result_backend_always_retry": True,
        "result_expires": 7 * 86_400,
        "worker_pool": "dicast.workers.runtime.pool:TaskPool",
        "worker_consumer": "dicast.workers.runtime.consumer:AdmissionConsumer",
        "worker_concurrency": settings.slots,
        "worker_prefetch_multiplier": 1,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_enable_prefetch_count_reduction": False,
        "worker_redirect_stdouts": False,
        # Flower enables them while it is connected, as `celery control enable_events` does.
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [
            # The alias is the plain name, by which code and `-Q` refer to a queue in every namespace.
            Queue(qualify(name), exchange, routing_key=qualify(name), queue_arguments=dict(queue_options), alias=name)
            for name, queue_options in arguments.items()
        ],
        "task_default_queue": qualify(CONTROL_QUEUE),
        "task_default_exchange": exchange.name,
        "task_default_routing_key": qualify(CONTROL_QUEUE),
        "task_create_missing_queues": False,
        "beat_schedule": {
            "housekeeping": {
                "task": HOUSEKEEPING,
                "schedule": every(BEAT_EVERY_S),
                "options": {"queue": BEAT_QUEUE, "expires": TICK_EXPIRES_S},
            },
            "governor": {
                "task": GOVERNOR,
                "schedule": every(BEAT_EVERY_S),
                "options": {"queue": BEAT_QUEUE, "expires": TICK_EXPIRES_S},
            },
        },
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_max_loop_interval": BEAT_EVERY_S,
    }


def transport_options_for(holder: str, broker: Broker, keys: Keys) -> dict[str, Any]:
    """Return the broker's transport options. Where the store is the broker, unacknowledged messages belong to
    `holder`."""
    unacked_options = own_unacked(keys, holder) if broker.is_store else {}
    return {**broker.settings["broker_transport_options"], **unacked_options}
