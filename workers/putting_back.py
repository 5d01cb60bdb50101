"""Unacknowledged messages on their way back to their queues, in one step for many.

kombu moves each by itself, in a transaction that all others who move one disturb, and a store whose memory is full
refuses it. A message goes behind those that wait: one that kills its workers then stands in front of nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from workers.store.scripts import script_text

_RESTORE = Path(__file__).parent / "store" / "restore.lua"
TOGETHER = 200


def put_back(channel: Any, client: Any, tags: Sequence[str]) -> int:
    """Put messages back that a Redis channel's key of unacknowledged ones holds; returns how many it still held. Each
    goes back at most once, however many are at it together."""
    unacked, index = channel.unacked_key, channel.unacked_index_key
    queue_of = cache(lambda exchange, key: next(iter(channel._lookup(exchange, key)), key))
    restore, restored = client.register_script(script_text(_RESTORE)), 0
    for first in range(0, len(tags), TOGETHER):
        some, moves = tags[first : first + TOGETHER], []
        for tag, entry in zip(some, client.hmget(unacked, some), strict=True):
            if entry is not None:
                message, exchange, routing_key = loads(bytes_to_str(entry))
                message["properties"]["delivery_info"]["redelivered"] = True
                moves += [tag, queue_of(exchange, routing_key), dumps(message)]
        restored += restore(keys=[unacked, index], args=moves) if moves else 0
    return restored
