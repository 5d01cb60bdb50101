"""Puts unacknowledged messages back into their queues, many in one step.

kombu moves each by itself, in a transaction that conflicts with all concurrent ones, and that a store with full memory
rejects. A message goes behind those that wait, so that one that kills its workers does not hold up others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from dicast.workers.broker.message_faults import RETURNS
from dicast.workers.store.scripts import script_text
from dicast.workers.system import private

_REQUEUE = Path(__file__).parent / "requeue.lua"
TOGETHER = 200

logger = logging.getLogger(__name__)


def requeue(channel: Any, client: Any, tags: Sequence[str], *, lost: bool = False) -> int:
    """Put back messages from a Redis channel's key of unacknowledged ones; returns how many of them it still held.

    Each goes back at most once, however many processes do this concurrently. `lost` says that the worker that held them
    is gone, which is counted in the messages (`RETURNS`).
    """
    unacked, index = channel.unacked_key, channel.unacked_index_key
    queue_of = cache(partial(private.queue_of, channel))
    restore, restored = client.register_script(script_text(_REQUEUE)), 0
    for first in range(0, len(tags), TOGETHER):
        some, moves = tags[first : first + TOGETHER], []
        for tag, entry in zip(some, client.hmget(unacked, some), strict=True):
            if entry is None:
                continue
            try:
                exchange, routing_key, message = _redelivered(entry, lost)
                moves += [tag, queue_of(exchange, routing_key), message]
            except (ValueError, TypeError, KeyError) as error:
                client.hdel(unacked, tag)
                logger.error("the unacknowledged entry %r is no message: %r", tag, error,
                             extra={"event": "quarantined", "reason": "unreadable"})  # fmt: skip
        restored += restore(keys=[unacked, index], args=moves) if moves else 0
    return restored


def _redelivered(entry: bytes | str, lost: bool) -> tuple[str, str, str]:
    """Return exchange, routing key, and the message as it goes back. Its typed values stay as they are written."""
    message, exchange, routing_key = json.loads(entry)
    message["properties"]["delivery_info"]["redelivered"] = True
    headers = message["headers"]
    if lost and isinstance(headers, dict):
        before = headers.get(RETURNS)
        headers[RETURNS] = 1 + (before if isinstance(before, int) else 0)
    return exchange, routing_key, json.dumps(message)
