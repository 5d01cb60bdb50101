"""The installation's secret, from which every nonce is derived (app/domain/nonce.py).

It is `DICAST_NONCE_KEY` if that is set, else `DICAST_MESSAGE_KEY`, which all processes share anyway, else a random key
in the store, made once by the first process that needs it. Only the first two outlive the store.
"""

from __future__ import annotations

import hmac
import secrets

from dicast.config.settings import Settings
from dicast.workers.store.connection import AsyncStoreClient
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch

KEY_BYTES = 32


class NonceKey:
    """Reads the secret for one event loop. A key from the store is read again when the store has a new epoch."""

    def __init__(self, client: AsyncStoreClient, keys: Keys, settings: Settings, epoch: Epoch) -> None:
        self._redis, self._at, self._epoch = client, keys.nonce_key, epoch
        self._configured = configured_key(settings, keys.namespace)
        self._stored = (-1, b"")

    async def get(self) -> bytes:
        """Return the secret, which is the same for all processes of the installation. Raises redis errors."""
        if self._configured is not None:
            return self._configured
        epoch = self._epoch.number
        if self._stored[0] != epoch:
            while (key := await self._redis.get(self._at)) is None:
                await self._redis.set(self._at, secrets.token_hex(KEY_BYTES), nx=True)
            self._stored = epoch, bytes.fromhex(key)
        return self._stored[1]


def configured_key(settings: Settings, namespace: str) -> bytes | None:
    """Derive the key from the operator's settings, or return None if they have no secret. Two installations that share
    a secret have different keys."""
    secret = settings.nonce_key or settings.message_key
    if secret is None:
        return None
    return hmac.digest(secret.encode(), b"dicast nonces of " + namespace.encode(), "sha256")
