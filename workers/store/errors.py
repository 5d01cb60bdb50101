"""Which errors of the store waiting can mend. Every loop and every patient caller asks this one function.

What passes: a connection that is refused, lost or silent, and a server that answers but will not do it now. What does
not: everything that the same command would meet again, as a fault of a script, a wrong type, or a forbidden command.
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
"""First words of a server's refusals that end by themselves, or when an operator has made room."""

_PASSING = (
    StoreConnectionError, StoreTimeoutError, InvalidResponse,
    ClusterDownError, NoScriptError, OutOfMemoryError, ReadOnlyError, TryAgainError,
)  # fmt: skip
"""redis-py's own classes of such errors."""

_CODE = re.compile(r"(?:Command # \d+ .* of pipeline caused error: )?([A-Z]+)\b", re.DOTALL)
"""A pipeline of redis-py puts words of its own before the server's."""


class NotReady(RedisError):
    """The store answers, but what was asked is not possible yet."""


def is_passing(error: BaseException) -> bool:
    """Whether the same command may succeed later. A refused login passes: until it is mended nothing can be written."""
    if isinstance(error, (*_PASSING, NotReady)):
        return True
    if isinstance(error, ResponseError):
        return code(error) in PASSING_CODES
    return isinstance(error, ConnectionError | TimeoutError)


def code(error: ResponseError) -> str:
    """The first word of a server's refusal, as 'WRONGTYPE'; 'ERR' where it has no other."""
    if error.status_code:
        return str(error.status_code)
    found = _CODE.match(str(error))
    return found[1] if found else "ERR"
