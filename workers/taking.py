"""Messages taken from a queue several at a time, noted as unacknowledged in the same step.

    take_in_batches(channel, gate.room, quarantine.add)       # a channel of `batch_acks`

kombu pops one message in each turn of its hub and notes it in a transaction over a client made for it. Here the pop
only wakes; one script takes what there is room for. What is no message at all is set aside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from workers.quarantine import read_message
from workers.store.scripts import script_text

Refuse = Callable[[str, str, bytes], None]

_TAKE = script_text(Path(__file__).parent / "store" / "take.lua")


def take_in_batches(channel: Any, room: Callable[[], int], refuse: Refuse) -> None:
    """Let a Redis channel take at most `room()` messages at once, and none while that is 0.

    `refuse(queue, reason, message)` is called for what cannot be read.
    """
    client = channel._create_client()
    take = client.register_script(_TAKE)
    channel.qos.can_consume = lambda: room() > 0
    channel.handlers["BRPOP"] = partial(_read, channel, take, room, refuse)


def _read(channel: Any, take: Any, room: Callable[[], int], refuse: Refuse) -> bool:
    popped = _popped(channel)
    if not popped:
        raise Empty
    key, first = popped
    queue = key.decode().rsplit(channel.sep, 1)[0]
    keys = [key, channel.unacked_key, channel.unacked_index_key]
    for raw in take(keys=keys, args=[time.time(), first, max(0, room() - 1)]):
        payload = read_message(raw)
        if payload is None:
            refuse(queue, "unreadable", raw)
            continue
        channel.qos.noted.add(payload["properties"]["delivery_tag"])
        channel.connection._deliver(payload, queue)
    return True


def _popped(channel: Any) -> Any:
    """What the pending pop has brought: the key of a queue and a message, or nothing."""
    try:
        return channel.client.parse_response(channel.client.connection, "BRPOP")
    except channel.connection_errors:
        channel.client.connection.disconnect()  # so that the next pop connects anew
        raise
    finally:
        channel._in_poll = None
        channel._flush_brpop_reauth()
