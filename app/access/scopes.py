"""The scopes and claims of tokens, and the reasons for refusing one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dicast.errors import DicastError


class Scope(StrEnum):
    """What a token lets its holder do; none includes another."""

    NODE_REGISTER = "node:register"
    NODE_HEARTBEAT = "node:heartbeat"
    NODE_ADMIN = "node:admin"
    JOB_SUBMIT = "job:submit"
    JOB_READ = "job:read"
    POOL_ADMIN = "pool:admin"
    RATING_WRITE = "rating:write"


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of an accepted token. Times are unix seconds by the store's clock."""

    subject: str
    id: str
    scopes: frozenset[Scope]
    generation: int
    expires_at: float
    node: str = ""
    """The node that it is bound to: its id in a heartbeat token, its name in one for registering; '': any."""
    pools: frozenset[str] | None = None
    """Pools that a job of it may use; None: all."""
    labels: frozenset[str] | None = None
    """Labels, `name=value`, that a job of it may demand; None: all."""


Reason = Literal["missing", "malformed", "signature", "expired", "revoked", "scope", "node", "generation"]

WORDS: dict[Reason, str] = {
    "missing": "there is no token",
    "malformed": "this is no token of Dicast's",
    "signature": "the signature is not of this installation",
    "expired": "the token's time, or that of the key that signed it, is over",
    "revoked": "the token is revoked, or was never recorded",
    "scope": "the token is not for this",
    "node": "the token is for another node",
    "generation": "the tokens of this generation are all ended",
}


class TokenRejected(DicastError):
    """A token is refused. `subject` and `id` are set if the token's signature is valid, else ''. The message quotes
    nothing of the token."""

    problem = "token-refused"

    def __init__(self, reason: Reason, *, subject: str = "", id: str = "", needed: str = "") -> None:
        super().__init__(WORDS[reason] + (f": {needed} is needed" if needed else ""))
        self.reason, self.subject, self.id = reason, subject, id
