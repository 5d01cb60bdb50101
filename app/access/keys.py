"""Keys of access control: names in the store, outside the prefix that nodes may access, and keys that sign."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from dicast.errors import DicastError
from dicast.workers.store.keys import encode


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Keys of one installation, under the same hash tag as all others (`dicast.workers.store.keys`)."""

    namespace: str

    def at(self, name: str, part: str = "") -> str:
        return f"{{{encode(self.namespace)}}}.access:{name}{part and ':' + part}"

    @property
    def tokens(self) -> str:
        """hash token id -> its record, JSON (`IssuedToken`)"""
        return self.at("tokens")

    @property
    def token_ends(self) -> str:
        """zset token id -> unix s until when its record is kept"""
        return self.at("token_ends")

    @property
    def revoked(self) -> str:
        """hash token id -> unix s when it was revoked"""
        return self.at("revoked")

    @property
    def generations(self) -> str:
        """hash node -> how often its tokens were all ended; '' -> those of everybody"""
        return self.at("generations")

    @property
    def signing(self) -> str:
        """hash: 'current' -> number of the key that signs; an older number -> unix s until when it is accepted"""
        return self.at("signing")

    def audit(self, part: str = "") -> str:
        """list: the lines of a part of the audit log, oldest first, JSON; '': of operators' orders"""
        return self.at("audit", part)

    def audit_head(self, part: str = "") -> str:
        """hash count, hash, seal: the last line's number and hash; displaced: how many lines ever; trimmed, anchor,
        anchor_seal: of the last line that an earlier version dropped"""
        return self.at("audit_head", part)

    def audit_displacing(self, part: str = "") -> str:
        """string: there while a process displaces lines of this part"""
        return self.at("audit_displacing", part)

    def audit_shorter(self, part: str, name: str) -> str:
        """list: what is to stand in a part's place when lines are displaced; `name` is one process's, for one time"""
        return self.at("audit_shorter", f"{part}:{name}")

    @property
    def audit_counts(self) -> str:
        """hash minute, part, group, kind -> what the audit log only counts, until the minute is over"""
        return self.at("audit_counts")

    @property
    def audit_key(self) -> str:
        """string: the secret that seals the audit log where the operator gives none"""
        return self.at("audit_key")

    @property
    def master_mark(self) -> str:
        """string: written before users are looked at or set, which only a master lets one do"""
        return self.at("master_mark")

    @property
    def store_users(self) -> str:
        """hash node -> its user of the store, JSON (`UserRecord`)"""
        return self.at("store_users")


SECRET_BYTES = 32


class SecretMissing(DicastError):
    """Something needs the installation's secret, and none is set."""

    problem = "wrong-setting"

    def __init__(self) -> None:
        super().__init__(
            f"DICAST_TOKEN_SECRET is not set: tokens are signed with it. It must have >= {SECRET_BYTES} bytes, the "
            "same for every server and every command: python -c 'import secrets; print(secrets.token_urlsafe(48))'"
        )


@dataclass(frozen=True, slots=True)
class TokenSecret:
    """One secret of an installation, of `SECRET_BYTES` or more; raises `ValueError` for a shorter one.

    Each purpose has a key of its own, derived from the secret, so that none of them reveals another.
    """

    value: bytes = field(repr=False)
    namespace: str

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise ValueError(f"a secret must have >= {SECRET_BYTES} bytes, got {len(self.value)}")

    @classmethod
    def all_of(cls, values: Iterable[str | None], namespace: str) -> tuple[TokenSecret, ...]:
        """Return the secrets that are set, in order: the first signs, the others are accepted."""
        return tuple(cls(value.encode(), namespace) for value in values if value)

    @property
    def fingerprint(self) -> str:
        """An identifier of the secret that reveals nothing about it."""
        return self.key("fingerprint").hex()[:8]

    def key(self, purpose: str) -> bytes:
        """Return the key for one purpose in this namespace: 32 bytes."""
        return hmac.digest(self.value, f"dicast {purpose} {self.namespace}".encode(), hashlib.sha256)
