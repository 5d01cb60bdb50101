"""Messages taken from a queue several at a time, noted as unacknowledged in the same step.

    fetch_in_batches(channel, gate.room, dead_letters.add, in_hand)       # a channel of `batch_acks`

kombu pops one message in each turn of its hub and notes it in a transaction over a client made for it. Here the pop
only wakes the worker; one script takes as many messages as there is room for. Data that is no message is set aside.

A message that was popped and could not be noted, because the server went away in between, is nowhere but in this
process: it stays in `in_hand`, and the next channel puts it back. So does what a pop has brought over a connection that
nobody is going to read any more, once another one has been found broken (`read_pops`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from redis.exceptions import RedisError

from dicast.workers.broker.dead_letters import read_message
from dicast.workers.store.scripts import script_text
from dicast.workers.system import private

logger = logging.getLogger(__name__)

Refuse = Callable[[str, str, bytes], None]
InHand = list[tuple[bytes, bytes]]
"""The keys of queues and messages that were popped from them."""

_FETCH = Path(__file__).parent / "fetch.lua"


def _open() -> bool:
    return False


def fetch_in_batches(
    channel: Any, room: Callable[[], int], refuse: Refuse, in_hand: InHand, closed: Callable[[], bool] = _open
) -> None:
    """Have a Redis channel take at most `room()` messages at once, and none while that is 0.

    While it is `closed()`, the result of a pending pop is read all the same, so that the message can go back: kombu
    would leave it unread in the socket. `refuse(queue, reason, message)` is called for data that cannot be read.
    `in_hand` outlives the channel. If a message was noted and only the answer was lost, it is delivered twice.
    """
    client = private.new_client(channel)
    while in_hand:
        client.rpush(*in_hand[-1])
        logger.warning("a message popped from %s before the broker went away is put back", in_hand.pop()[0].decode())
    take = client.register_script(script_text(_FETCH))
    channel.qos.can_consume = lambda: room() > 0 or (closed() and private.waits_for_pop(channel))
    channel.handlers["BRPOP"] = partial(_read, channel, take, room, refuse, in_hand)


def read_pops(channels: Iterable[Any], in_hand: InHand) -> None:
    """Read the results of pending pops of Redis channels that have arrived already, without waiting."""
    for channel in channels:
        if private.waits_for_pop(channel):
            with contextlib.suppress(*channel.connection_errors, RedisError):
                if channel.client.connection.can_read(timeout=0) and (popped := _popped(channel)):
                    in_hand.append(tuple(popped))


def _read(channel: Any, take: Any, room: Callable[[], int], refuse: Refuse, in_hand: InHand) -> bool:
    popped = _popped(channel)
    if not popped:
        raise Empty
    key, first = popped
    queue = key.decode().rsplit(channel.sep, 1)[0]
    keys = [key, channel.unacked_key, channel.unacked_index_key]
    in_hand.append((key, first))
    taken = take(keys=keys, args=[time.time(), first, max(0, room() - 1)])
    in_hand.remove((key, first))
    for raw, tag in zip(taken[::2], taken[1::2], strict=True):
        payload = read_message(raw)
        if payload is None:
            refuse(queue, "unreadable", raw)
            if tag:
                channel.qos.delete([tag])
            continue
        channel.qos.noted.add(payload["properties"]["delivery_tag"])
        private.deliver(channel, payload, queue)
    return True


def _popped(channel: Any) -> Any:
    """Return the result of the pending pop: the key of a queue and a message, or nothing."""
    try:
        return channel.client.parse_response(channel.client.connection, "BRPOP")
    except channel.connection_errors:
        channel.client.connection.disconnect()  # so that the next pop connects anew
        raise
    finally:
        private.end_pop(channel)
