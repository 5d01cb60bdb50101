"""Keys that follow from the installation's secret: one for each purpose, so that none of them tells another."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

from dicast.errors import DicastError

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
    """One secret of an installation, of `SECRET_BYTES` or more; raises `ValueError` for a shorter one."""

    value: bytes = field(repr=False)
    namespace: str

    def __post_init__(self) -> None:
        if len(self.value) < SECRET_BYTES:
            raise ValueError(f"a secret must have >= {SECRET_BYTES} bytes, got {len(self.value)}")

    @classmethod
    def all_of(cls, values: Iterable[str | None], namespace: str) -> tuple[TokenSecret, ...]:
        """Those that are set, in their order: the first signs, the others are accepted."""
        return tuple(cls(value.encode(), namespace) for value in values if value)

    @property
    def fingerprint(self) -> str:
        """Tells which secret it was, and nothing about it."""
        return self.key("fingerprint").hex()[:8]

    def key(self, purpose: str) -> bytes:
        """32 bytes for one purpose in this namespace."""
        return hmac.digest(self.value, f"dicast {purpose} {self.namespace}".encode(), hashlib.sha256)
