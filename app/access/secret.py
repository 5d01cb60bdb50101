"""Keys derived from the installation's secret: one for each purpose, so that none of them reveals another."""

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
        """Return the secrets that are set, in order: the first signs, the others are accepted."""
        return tuple(cls(value.encode(), namespace) for value in values if value)

    @property
    def fingerprint(self) -> str:
        """An identifier of the secret that reveals nothing about it."""
        return self.key("fingerprint").hex()[:8]

    def key(self, purpose: str) -> bytes:
        """Return the key for one purpose in this namespace: 32 bytes."""
        return hmac.digest(self.value, f"dicast {purpose} {self.namespace}".encode(), hashlib.sha256)
