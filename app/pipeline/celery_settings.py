"""Celery's settings: its queues, its schedule, and what of Celery's own is switched off; flags like `-c`, `-n` and `-Q`
still mean what Celery says."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue

from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE, GOVERNOR, HOUSEKEEPING
from dicast.config.pools import Pools
from dicast.config.settings import Settings
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.broker.names import Names
from dicast.workers.broker.profiles import ANSWER_TIMEOUT_S, CONNECT_TIMEOUT_S, MAX_CONNECTIONS, Broker
from dicast.workers.nodes.reaper import own_unacked
from dicast.workers.runtime.steady_schedule import every
from dicast.workers.store.keys import Keys

BEAT_EVERY_S = 1.0
HOUSEKEEPING_WORTH_S = 10 * BEAT_EVERY_S
"""After so long another tick has come, and `BEAT_MESSAGES_MAX` is more than come in that time. To a worker whose clock
is further ahead of the beat's, its ticks are over when they come: the workers then keep house themselves."""
BEAT_MESSAGES_MAX = 100


def celery_settings(settings: Settings, pools: Pools, names: Names, keys: Keys, broker: Broker) -> dict[str, Any]:
    """All but the addresses of broker and store."""
    named = names.of
    # Results and chords' counts lie under this installation's keys.
    result_keys = {"global_keyprefix": keys.at("results") + ":"} if names.namespace else {}
    exchange = Exchange(named("dicast"), type="direct")
    queues = [*(QUEUE_PREFIX + name for name in pools.pools), CONTROL_QUEUE]
    arguments = dict.fromkeys(queues, broker.queue_arguments)
    arguments[BEAT_QUEUE] = broker.short_lived(HOUSEKEEPING_WORTH_S, BEAT_MESSAGES_MAX)
    return {
        "result_backend_transport_options": result_keys,
        "control_exchange": named("celery"),
        "event_exchange": named("celeryev"),
        "event_queue_prefix": named("celeryev"),
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
        # Flower asks for them while it watches, as `celery control enable_events` does; nobody else pays for them.
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_queues": [
            # By its plain name it is known here, and as `-Q`, in every namespace.
            Queue(named(name), exchange, routing_key=named(name), queue_arguments=dict(given), alias=name)
            for name, given in arguments.items()
        ],
        "task_default_queue": named(CONTROL_QUEUE),
        "task_default_exchange": exchange.name,
        "task_default_routing_key": named(CONTROL_QUEUE),
        "task_create_missing_queues": False,
        "beat_schedule": {
            "housekeeping": {
                "task": HOUSEKEEPING,
                "schedule": every(BEAT_EVERY_S),
                "options": {"queue": BEAT_QUEUE, "expires": HOUSEKEEPING_WORTH_S},
            },
            "governor": {
                "task": GOVERNOR,
                "schedule": every(BEAT_EVERY_S),
                "options": {"queue": BEAT_QUEUE, "expires": HOUSEKEEPING_WORTH_S},
            },
        },
        "beat_scheduler": "celery.beat:Scheduler",
        "beat_max_loop_interval": BEAT_EVERY_S,
    }


def held_by(holder: str, broker: Broker, keys: Keys) -> dict[str, Any]:
    """The broker's transport options; where that is the store, messages that are not acknowledged are `holder`'s."""
    own = own_unacked(keys, holder) if broker.is_store else {}
    return {**broker.settings["broker_transport_options"], **own}
