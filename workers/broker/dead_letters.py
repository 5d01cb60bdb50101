"""Checks messages before they are handled (signed, well formed, in their own queue), and sets others aside.

kombu ends the worker on the first message that is not its own JSON, after taking it from the queue. Here messages are
checked before kombu reads them.

Task messages may be signed, so that only holders of a shared secret can write them: HMAC-SHA256 over the body and what
names the task. So whoever can write to the broker cannot have arbitrary tasks run. They can have a signed message run
again; the ledger guarantees that every task here may be repeated without harm.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from base64 import b64decode
from collections.abc import Callable, Container, Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import Any

import orjson
from celery.app.task import Context
from kombu.exceptions import ContentDisallowed, DecodeError
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


BODY_MAX_BYTES = 1_000_000
"""Messages carry ids only; the largest have some thousand bytes."""
TEXT_MAX = 10_000
SECONDS_MAX = 10 * 365 * 86_400.0
ETA_MAX = timedelta(days=1)
"""A message that waits for its time waits in a worker."""
RETURNS = "dicast-returns"
"""The header that counts the workers that were lost while they held the message."""
RETURNS_MAX = 5
REDELIVERIES = "x-delivery-count"
"""RabbitMQ's own header that counts redeliveries, whatever the reason."""
REDELIVERIES_MAX = 19
"""After one more, RabbitMQ drops the message silently (workers/broker/profiles.py)."""

COMES_BACK = "comes back"

_TEXTS = ("root_id", "parent_id", "group", "shadow", "argsrepr", "kwargsrepr")
CALLBACKS_MAX = 100
"""The most callbacks of one kind, since each of them is another message."""
_SENT = frozenset({
    "eta", "expires", "group", "group_index", "id", "ignore_result", "origin", "parent_id", "replaced_task_nesting",
    "retries", "root_id", "shadow", "stamped_headers", "stamps", "timelimit",
})  # fmt: skip
_OWN = frozenset(dir(Context)) - _SENT
"""Headers become attributes of the task's `request`, so none may replace an attribute that Celery does not send as a
header. A text of 200,000 characters as `errbacks` would become 200,000 messages."""


def fault(headers: Any, properties: Mapping[str, Any]) -> str:
    """Return why no request may be made of a message with these headers and properties; '' if one may.

    Anybody may be able to write into a queue. Celery trusts the types of its own protocol. A time limit of three
    numbers, a stamp that is a list or a lone surrogate in an id would raise where a request is started, announced or
    stored, in a loop that serves all messages.
    """
    if not isinstance(headers, dict) or not isinstance(headers.get("task"), str):
        return "no task message"
    if not _OWN.isdisjoint(headers):
        return "malformed"
    try:
        orjson.dumps(headers)
    except TypeError:  # lone surrogates, integers of more than 64 bits, what is no JSON
        return "malformed"
    get = headers.get
    if not _is_text(get("id")) or not get("id") or not all(get(name) is None or _is_text(get(name)) for name in _TEXTS):
        return "malformed"
    if (limits := get("timelimit")) is not None and not _are_limits(limits):
        return "malformed"
    if (eta := get("eta")) is not None and not _is_near(eta):
        return "malformed"
    well = (
        _is_count(get("retries"))
        and _is_count(get("group_index"))
        and _is_count(get("replaced_task_nesting"))
        and isinstance(get("ignore_result"), bool | None)
        and isinstance(get("stamps"), dict | None)
        and _are_texts(get("stamped_headers"))
        and _is_count(properties.get("priority"))
        and all(properties.get(name) is None or _is_text(properties[name]) for name in ("correlation_id", "reply_to"))
    )
    if not well:
        return "malformed"
    returns, redeliveries = get(RETURNS), get(REDELIVERIES)
    if returns is not None and (not isinstance(returns, int) or returns >= RETURNS_MAX):
        return COMES_BACK
    if redeliveries is not None and (not isinstance(redeliveries, int) or redeliveries >= REDELIVERIES_MAX):
        return COMES_BACK
    return ""


def body_fault(message: Any) -> str:
    """Return why no task can be called with a message's body; '' if one can."""
    if len(message.body or "") > BODY_MAX_BYTES:
        return "too large"
    try:
        body = message.payload
        orjson.dumps(body)
    except ContentDisallowed:
        return "invalid task"
    except DecodeError:
        return "undecodable"
    except Exception:  # noqa: BLE001  (an encoding that is none of text, a depth that no reader has, ...)
        return "malformed"
    if not isinstance(body, list) or len(body) != 3:
        return "malformed"
    args, kwargs, embed = body
    well = isinstance(args, list) and isinstance(kwargs, dict) and isinstance(embed, dict | None) and _embeds(embed)
    return "" if well else "malformed"


def _embeds(embed: dict[str, Any] | None) -> bool:
    """Return whether callbacks, errbacks and chain are lists of signatures, and the chord is a signature."""
    if not embed:
        return True
    if not embed.keys() <= {"callbacks", "errbacks", "chain", "chord"}:
        return False
    lists = (embed.get(name) for name in ("callbacks", "errbacks", "chain"))
    chord = embed.get("chord")
    return (chord is None or _is_signature(chord)) and all(
        some is None or (isinstance(some, list) and len(some) <= CALLBACKS_MAX and all(map(_is_signature, some)))
        for some in lists
    )


def _is_signature(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("task"), str)
        and isinstance(value.get("args", []), list | None)
        and isinstance(value.get("kwargs", {}), dict | None)
        and isinstance(value.get("options", {}), dict | None)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_MAX


def _are_texts(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_text, value)))


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and 0 <= value < 2**31)


def _are_limits(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_limit, value))


def _is_limit(value: Any) -> bool:
    return value is None or (
        isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and 0 <= value <= SECONDS_MAX
    )


def _is_near(value: Any) -> bool:
    """Return whether the value is a time, and at most `ETA_MAX` away."""
    if isinstance(value, datetime):
        time = value
    else:
        try:
            time = datetime.fromisoformat(value)
        except (TypeError, ValueError):
            return False
    try:
        return (time if time.tzinfo else time.replace(tzinfo=UTC)) <= datetime.now(UTC) + ETA_MAX
    except OverflowError:
        return False


SIGNATURE = "dicast-signature"
_SIGNED = ("task", "id", "group", "retries", "eta", "expires", "timelimit", "dicast")


def signature(key: str, headers: Mapping[str, Any], body: str | bytes) -> str:
    """Return the signature of a message, with `body` as it is transmitted."""
    signed_headers = orjson.dumps(
        {name: headers.get(name) for name in _SIGNED}, option=orjson.OPT_SORT_KEYS, default=str
    )
    text = body.encode() if isinstance(body, str) else bytes(body)
    return hmac.digest(key.encode(), b"%d:%b%b" % (len(signed_headers), signed_headers, text), "sha256").hex()


def is_signed(key: str, headers: Mapping[str, Any], body: str | bytes) -> bool:
    """Return whether a holder of the key wrote the message, in constant time for wrong signatures."""
    claimed = headers.get(SIGNATURE)
    try:
        return isinstance(claimed, str) and hmac.compare_digest(
            signature(key, headers, body).encode(), claimed.encode()
        )
    except (TypeError, ValueError):  # what cannot be written down again, as lone surrogates, nobody has signed
        return False


def objection(app: Any, message: Any, queue: str | None, common: Container[str]) -> str:
    """Return why a message is set aside instead of handled; '' if it is accepted.

    `queue` is the gated queue that it was read from, None for one of the `common` queues. A message moved to another
    queue would have its pool called under another pool's lease.
    """
    key: str | None = getattr(app, "message_key", None)
    if key and not is_signed(key, message.headers or {}, message.body or ""):
        return "unsigned"
    if reason := fault(message.headers, message.properties or {}):
        return reason
    task = app.tasks.get(message.headers["task"])
    place = message.delivery_info["routing_key"]
    if task is not None and (place != queue if getattr(task, "gated", False) else place not in common):
        return "misrouted"
    return body_fault(message)


def raw(body: Any) -> bytes | str:
    """Return a message's body in a form that can be stored."""
    return body if isinstance(body, bytes | str) else repr(body)
