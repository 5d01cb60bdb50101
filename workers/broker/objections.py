"""Checks whether a message is accepted: signed if it must be, well formed, and read from the queue that it was sent
to."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from dicast.workers.broker.message_faults import body_fault, fault
from dicast.workers.broker.signing import is_signed


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
