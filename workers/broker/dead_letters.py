"""Dead letters: messages that no task can be made of are set aside and counted.

kombu ends the worker on the first message that is not its own JSON, after taking it from the queue. Here messages are
checked before kombu reads them.
"""

from __future__ import annotations

import logging
import secrets
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from redis.exceptions import RedisError

from dicast.workers.broker.fast_json import loads
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import script_text

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
RAW_MAX_BYTES = 4_000_000
KEPT = 1000
MAX_BYTES = 10_000
"""How much of each message is kept."""


class DeadLetters:
    """The store's list of messages that were set aside, newest first, and their counts by reason."""

    def __init__(self, client: StoreClient, keys: Keys) -> None:
        self._redis, self._keys = client, keys
        self._set_aside = client.register_script(script_text(HERE / "dead_letter.lua"))

    def add(self, queue: str, reason: str, message: bytes | str) -> None:
        """Set a message aside. Its content is kept only in the store and not logged, since it may be anything."""
        queue = queue.encode("utf-8", "backslashreplace").decode()
        text = message if isinstance(message, str) else message.decode("utf-8", "backslashreplace")
        text = text.encode("utf-8", "backslashreplace")[:MAX_BYTES].decode("utf-8", "ignore")
        logger.error("a message in %s was set aside: %s", queue, reason,
                     extra={"event": "quarantined", "queue": queue, "reason": reason})  # fmt: skip
        entry = {"queue": queue, "reason": reason, "message": text, "id": secrets.token_hex(8)}
        try:
            keys = [self._keys.refused_messages, self._keys.dead_letters]
            self._set_aside(keys=keys, args=[reason, orjson.dumps(entry), KEPT])
        except (RedisError, OSError) as error:
            logger.error("the message could not be stored: %s", error)

    def counts(self) -> dict[str, int]:
        return {reason: int(n) for reason, n in self._redis.hgetall(self._keys.refused_messages).items()}


def check_before_reading(channel: Any, refuse: Callable[[str, str, bytes], None]) -> None:
    """Have `refuse(queue, reason, message)` called for messages from a Redis channel that kombu could not read."""
    client = channel.client
    read = client.parse_response

    def parse_response(connection: Any, command_name: str, **options: Any) -> Any:
        reply = read(connection, command_name, **options)
        if command_name != "BRPOP" or not reply or read_message(reply[1]) is not None:
            return reply
        refuse(reply[0].decode("utf-8", "backslashreplace"), "unreadable", reply[1])
        return None

    client.parse_response = parse_response


def read_message(raw: bytes) -> dict[str, Any] | None:
    """Parse what kombu makes a message of; None if kombu could not."""
    try:
        payload = loads(raw)
    except Exception:  # noqa: BLE001  (also whatever kombu makes of typed values, as {"__type__": "decimal"})
        return None
    if len(raw) > RAW_MAX_BYTES or not isinstance(payload, dict) or not isinstance(payload.get("body"), str):
        return None
    properties = payload.get("properties")
    if not isinstance(payload.get("headers"), dict) or not isinstance(properties, dict):
        return None
    delivery = properties.get("delivery_info")
    whole = (
        isinstance(properties.get("delivery_tag"), str)
        and properties["delivery_tag"] != ""
        and isinstance(delivery, dict)
        and isinstance(delivery.get("routing_key"), str)
        and isinstance(delivery.get("exchange"), str)
        and "compression" not in payload["headers"]  # nobody here compresses, and what it unpacks to may be anything
        and isinstance(payload.get("content-type"), str | None)
        and isinstance(payload.get("content-encoding"), str | None)
        and _are_encodable(properties["delivery_tag"], delivery["routing_key"], delivery["exchange"])
        and _is_encoded(payload["body"], properties.get("body_encoding"))
    )
    return payload if whole else None


def _are_encodable(*texts: str) -> bool:
    """Return whether these texts can be names in the store; lone surrogates cannot."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_encoded(body: str, encoding: Any) -> bool:
    """Return whether kombu can decode a body."""
    try:
        if encoding == "base64":
            b64decode(body)
        body.encode()
    except ValueError:
        return False
    return encoding in (None, "base64")
