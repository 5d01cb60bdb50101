"""Counts the messages that wait in the pools' queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from dicast.workers.admission.request import HEADER, QUEUE_PREFIX, SENT
from dicast.workers.store.connection import StoreClient


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting messages by pool, without pools that have none; and how long the next one has waited, None if that is
    not known."""

    units: dict[str, int]
    oldest_s: float | None = None


def waiting_units(app: Any, pools: Iterable[str], store: StoreClient, *, in_store: bool) -> Waiting:
    """Ask the broker how many messages wait. Raises its errors."""
    return _in_store(app, pools, store) if in_store else Waiting(_declared(app, pools))


def _in_store(app: Any, pools: Iterable[str], store: StoreClient) -> Waiting:
    names = list(pools)
    pipe = store.pipeline(transaction=False)
    for pool in names:
        queue = app.amqp.queues[QUEUE_PREFIX + pool].name
        pipe.llen(queue)
        pipe.lindex(queue, -1)
    pipe.time()
    *replies, time = pipe.execute()
    counts = {pool: count for pool, count in zip(names, replies[::2], strict=True) if count}
    sent = [at for message in replies[1::2] if message and (at := _sent_at(message)) is not None]
    return Waiting(counts, max(0.0, time[0] + time[1] / 1e6 - min(sent)) if sent else None)


def _sent_at(message: str) -> float | None:
    try:
        at = orjson.loads(message)["headers"][HEADER][SENT]
    except (ValueError, TypeError, KeyError):
        return None
    return float(at) if isinstance(at, int | float) else None


def _declared(app: Any, pools: Iterable[str]) -> dict[str, int]:
    counts = {}
    with app.connection_for_read() as connection:
        for pool in pools:
            channel = connection.channel()
            try:
                queue = app.amqp.queues[QUEUE_PREFIX + pool](channel)
                counts[pool] = int(queue.queue_declare(passive=True).message_count)
            except connection.channel_errors:  # nobody has declared it yet, and the channel is closed over that
                continue
            finally:
                channel.close()
    return {pool: count for pool, count in counts.items() if count}
