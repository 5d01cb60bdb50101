"""Membership of nodes that joined over HTTP: their tokens and store users.

A member has a heartbeat token, bound to its id, and a user of the store; both end together. To put one out ends its
tokens first and its user then, so that whatever it is doing meanwhile ends with an answer that refuses it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from dicast.app.access.scopes import Claims, Scope, TokenRejected
from dicast.app.access.store_users import StoreCredentials, StoreUsers
from dicast.app.access.tokens import LEEWAY_S, SUBJECT_CHARS, IssuedToken, TokenError, Tokens

HEARTBEAT_TTL_S = 3600.0
"""How long a node can go on while no server answers: its user ends with its token."""
RENEW_AT = 2 / 3
"""A token of which less than this share is left is renewed with the next heartbeat."""
_NAME = re.compile(r"[^\s/#?%]{1,120}")


@dataclass(frozen=True, slots=True)
class NewMember:
    """A node that has just joined, and what it gets. `expires_in_s` counts from now, so that the node's clock does not
    matter."""

    node: str
    heartbeat_token: str = field(repr=False)
    expires_in_s: float
    store: StoreCredentials

    def as_response(self, heartbeat_s: float) -> dict[str, Any]:
        """Return the answer to a registration, as `dicast.app.cluster.joining.Registration` reads it."""
        return {
            "node": self.node, "store_url": self.store.url, "heartbeat_token": self.heartbeat_token,
            "expires_in_s": self.expires_in_s, "heartbeat_s": heartbeat_s,
        }  # fmt: skip


class Membership:
    """Lets nodes join and expels them; safe for several servers at once."""

    def __init__(self, tokens: Tokens, users: StoreUsers, ttl_s: float = HEARTBEAT_TTL_S) -> None:
        self._tokens, self._users, self._ttl_s = tokens, users, ttl_s

    def join(self, claims: Claims, name: str, *, was: str = "", old_token: str | None = None) -> NewMember:
        """Let a node with this name join, by a token for registering. It gets a new id, or keeps the id `was` if it
        shows that one's heartbeat token. Raises `TokenRejected`, `TokenError`, `StoreUsersUnavailable`."""
        if not _NAME.fullmatch(name) or not name.isprintable():
            raise TokenError(f"name must be 1 to 120 printable characters without space, / # ? %, got {name[:40]!r}")
        if claims.node not in ("", name):
            raise TokenRejected("node", subject=claims.subject, id=claims.id)
        node = f"{quote(name, safe='@')}#{secrets.token_hex(4)}"
        if was and was.rpartition("#")[0] == quote(name, safe="@") and self._is_same_node(was, old_token):
            node = was
        token, until = self._issue(claims, node)
        credentials = self._users.create(node, until=until, generation=self._tokens.generation(node))
        try:
            self._tokens.verify(token, Scope.NODE_HEARTBEAT, node=node)
        except TokenRejected:  # its token was revoked in between, before there was a user to delete
            self._users.delete(node)
            raise
        return NewMember(node, token, self._ttl_s, credentials)

    def renewed(self, claims: Claims) -> tuple[str, float] | None:
        """Return a newer heartbeat token and how long it is valid, s, if the one that was shown is old enough. The
        older one stays valid. Raises `TokenRejected` if it, or the token with which the node joined, is revoked."""
        if claims.expires_at - self._tokens.now() > RENEW_AT * self._ttl_s:
            return None
        parent = self._tokens.parent(claims.id)
        token, until = self._issue(claims, claims.node, parent)
        if not self._users.extend(claims.node, until):
            raise TokenRejected("revoked", subject=claims.subject, id=claims.id)
        return token, self._ttl_s

    def expel(self, node: str) -> int:
        """End a node's tokens and its user, or those of all nodes of a name; returns how many connections were closed.
        Holds on return: it can do nothing any more, unless it joins anew with another token."""
        closed, name = 0, quote(node, safe="@")
        self._tokens.revoke_node(node)
        for member_id in [id for id in self._users.nodes() if id.rpartition("#")[0] == name]:
            closed += self.expel(member_id)
        return closed + self._users.delete(node)

    def leave(self, node: str) -> None:
        """Revoke the tokens and the user of a node that has ended by itself."""
        self.expel(node)

    def revoke(self, id: str) -> Sequence[IssuedToken]:
        """End a token, and every node that joined with it, or whose token it is; returns all tokens that ended."""
        ended = self._tokens.revoke(id)
        for node in sorted({token.node for token in ended if Scope.NODE_HEARTBEAT in token.scopes}):
            self.expel(node)  # a node may have newer tokens than these
        return ended

    def revoke_all(self) -> int:
        """End every token and every node's user; returns how many nodes there were."""
        self._tokens.revoke_node("")
        nodes = self._users.nodes()
        for node in nodes:
            self._tokens.revoke_node(node)  # so that its status says why it is unreachable
            self._users.delete(node)
        return len(nodes)

    def reconcile(self) -> tuple[int, int]:
        """Make the store's users match the records; see `StoreUsers.reconcile`."""
        return self._users.reconcile()

    def _is_same_node(self, node: str, token: str | None) -> bool:
        try:
            self._tokens.verify(token, Scope.NODE_HEARTBEAT, node=node)
        except TokenRejected:
            return False
        return True

    def _issue(self, claims: Claims, node: str, parent: str | None = None) -> tuple[str, float]:
        """Return a heartbeat token, and until when its store user is valid: as long as the token may be accepted."""
        token = self._tokens.issue(
            claims.subject[:SUBJECT_CHARS], [Scope.NODE_HEARTBEAT], ttl_s=self._ttl_s, node=node,
            parent=claims.id if parent is None else parent,
        )  # fmt: skip
        return token, self._tokens.now() + self._ttl_s + LEEWAY_S
