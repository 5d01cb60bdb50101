"""Idempotency keys of submissions: the same key with the same request is the same job and the same answer.

The store records which job a key stands for before the job is stored. So submissions that race, even at several
servers, or that are repeated after a crash, submit one job; and the ledger accepts the same job only once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from dicast.app.server.errors import InvalidRequest, KeyReused
from dicast.app.server.keys import ServerKeys
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text

KEPT_S = 86_400
KEY_CHARS = 200


class IdempotencyKeys:
    """The keys of one installation; each subject has its own."""

    def __init__(self, client: StoreClient, keys: ServerKeys) -> None:
        self._redis, self._keys = client, keys
        self._hold = client.register_script(script_text(Path(__file__).with_name("hold.lua")))

    def find_answer(self, subject: str, key: str, request: str) -> dict[str, Any] | None:
        """Return the former answer to this request under this key, if there is one. Raises `KeyReused`,
        `InvalidRequest`."""
        stored_request, stored_answer = self._redis.hmget(self._record(subject, key), "request", "answer")
        if stored_request is not None and stored_request != request:
            raise _reused(key)
        return orjson.loads(stored_answer) if stored_answer else None

    def hold(self, subject: str, key: str, request: str, job: str) -> str:
        """Return the job that this request submits: `job`, or the one that it submitted before. Raises `KeyReused`."""
        verdict, held_job = self._hold(keys=[self._record(subject, key)], args=[request, job, 1000 * KEPT_S])
        if verdict == "other":
            raise _reused(key)
        return str(held_job)

    def keep_answer(self, subject: str, key: str, response: dict[str, Any]) -> None:
        """Keep the answer for as long as the key is kept."""
        record = self._record(subject, key)
        if self._redis.exists(record):  # its time may have ended
            self._redis.hset(record, "answer", orjson.dumps(response))
            self._redis.expire(record, KEPT_S, nx=True)

    def _record(self, subject: str, key: str) -> str:
        if not 1 <= len(key) <= KEY_CHARS or not (key.isascii() and key.isprintable()):
            raise InvalidRequest(f"Idempotency-Key must be 1 to {KEY_CHARS} printable ASCII characters")
        return self._keys.idempotency(subject, key)


def _reused(key: str) -> KeyReused:
    return KeyReused(f"Idempotency-Key {key!r} came before with another request; choose another key")
