"""Finds faults in a message before Celery makes a request of it: anybody may be able to write into a queue.

Celery trusts the types of its own protocol. A time limit of three numbers, a stamp that is a list or a lone surrogate
in an id would raise where a request is started, announced or stored, in a loop that serves all messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

import orjson
from celery.app.task import Context
from kombu.exceptions import ContentDisallowed, DecodeError

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
    """Return why no request may be made of a message with these headers and properties; '' if one may."""
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
