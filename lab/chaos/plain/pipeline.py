"""A chord of one task a unit, with what Celery and redis-py offer against faults: late acknowledgements, a short
visibility timeout, retries with backoff of calls, tasks, messages, results and store commands, health checks of
connections; besides, a semaphore in Redis that expires, and answers kept there so that a task that comes again does not
pay again.

celery -A lab.chaos.plain.pipeline worker -P threads -c 10
"""

from __future__ import annotations

import json
import os
import time
import uuid
from typing import Any

import openai
import redis
from celery import Celery, chord
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

LIMIT = 10
CALL_TIMEOUT_S = 6.0
STORE = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

app = Celery("plain", broker=STORE, backend=STORE)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "visibility_timeout": 60,
        "socket_timeout": 10,
        "socket_keepalive": True,
        "health_check_interval": 10,
        "retry_on_timeout": True,
    },
    redis_socket_timeout=10.0,
    redis_socket_keepalive=True,
    redis_retry_on_timeout=True,
    redis_backend_health_check_interval=10,
    result_backend_always_retry=True,
    result_expires=86_400,
    task_publish_retry_policy={"max_retries": 10, "interval_max": 1.0},
)

_store = redis.Redis.from_url(
    STORE, decode_responses=True, socket_timeout=10, health_check_interval=10,
    retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), 8),
    retry_on_error=[redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError],
)  # fmt: skip
_RETRIED: dict[str, Any] = {
    "autoretry_for": (redis.RedisError,), "retry_backoff": True, "retry_backoff_max": 10, "max_retries": None,
}  # fmt: skip
"""A store that is away longer than the client tries costs no task: it comes again."""
_take = _store.register_script(
    "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1]) "
    "if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end "
    "redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4]) return 1"
)
_client = openai.OpenAI(
    api_key=os.environ.get("CHAOS_KEY", "none"),
    base_url=os.environ.get("PROVIDER_URL", "http://127.0.0.1:1/v1"),
    timeout=CALL_TIMEOUT_S,
    max_retries=0,
)


@app.task(bind=True, **_RETRIED)
def judge(self: Any, job: str, unit: str, prompt: str, attempts: int = 0) -> dict[str, Any]:
    """One unit; what cannot be had is an error in the report, for an exception would spoil the chord."""
    if kept := _store.hget(f"done:{job}", unit):
        return dict(json.loads(kept))
    slot = uuid.uuid4().hex
    now = time.time()
    if not _take(keys=["slots"], args=[now, LIMIT, now + CALL_TIMEOUT_S + 5, slot]):
        raise self.retry(countdown=0.3)
    try:
        answer = _client.chat.completions.create(
            model="simulated-judge", messages=[{"role": "user", "content": prompt}], max_tokens=200
        )
        result = {"unit": unit, "answer": answer.choices[0].message.content}
    except openai.OpenAIError as error:
        if attempts < 8:
            raise self.retry(args=(job, unit, prompt, attempts + 1), countdown=min(4.0, 0.2 * 2**attempts)) from error
        result = {"unit": unit, "error": str(error)}
    finally:
        _store.zrem("slots", slot)
    _store.hset(f"done:{job}", unit, json.dumps(result))
    return result


@app.task(**_RETRIED)
def gather(results: list[dict[str, Any]], job: str) -> int:
    _store.hset(f"report:{job}", mapping={r["unit"]: r.get("error", "") for r in results})
    return len(results)


def submit(job: str, units: list[tuple[str, str]]) -> None:
    chord([judge.s(job, unit, prompt) for unit, prompt in units])(gather.s(job))
