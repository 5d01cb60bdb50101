"""Which errors of the store are temporary. Every loop and every caller that retries uses this one function.

Temporary are: a connection that is refused, lost or silent, and a server that answers but cannot execute the command
now. Permanent are all errors that the same command would meet again: a fault in a script, a wrong type, a forbidden
command.
"""

from __future__ import annotations

import re

from redis.exceptions import (
    ClusterDownError,
    InvalidResponse,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import TimeoutError as StoreTimeoutError

PASSING_CODES = frozenset({
    "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOSCRIPT", "OOM", "READONLY", "TRYAGAIN",
})  # fmt: skip
"""First words of error answers that end by themselves, or when an operator has made room."""

_PASSING = (
    StoreConnectionError, StoreTimeoutError, InvalidResponse,
    ClusterDownError, NoScriptError, OutOfMemoryError, ReadOnlyError, TryAgainError,
)  # fmt: skip
"""redis-py's own classes of such errors."""

_CODE = re.compile(r"(?:Command # \d+ .* of pipeline caused error: )?([A-Z]+)\b", re.DOTALL)
"""A pipeline of redis-py puts a prefix of its own before the server's message."""


class NotReady(RedisError):
    """The store answers, but cannot do what was requested yet."""


def is_passing(error: BaseException) -> bool:
    """Return whether the same command may succeed later. A rejected login counts as temporary: until it is fixed
    nothing can be written."""
    if isinstance(error, (*_PASSING, NotReady)):
        return True
    if isinstance(error, ResponseError):
        return code(error) in PASSING_CODES
    return isinstance(error, ConnectionError | TimeoutError)


def code(error: ResponseError) -> str:
    """Return the first word of a server's error answer, such as 'WRONGTYPE'; 'ERR' if it has no other."""
    if error.status_code:
        return str(error.status_code)
    match = _CODE.match(str(error))
    return match[1] if match else "ERR"
