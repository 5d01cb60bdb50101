"""The keys of the HTTP interface in the store, outside the prefix that nodes may access."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from dicast.workers.store.keys import encode


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Keys of one installation, under the same hash tag as all others (`dicast.workers.store.keys`)."""

    namespace: str

    def at(self, *parts: str) -> str:
        return ":".join([f"{{{encode(self.namespace)}}}.http", *map(encode, parts)])

    def rate(self, kind: str, whose: str) -> str:
        """hash level, at: what is left of a token's or an address's requests; expires once it is full again"""
        return self.at("rate", kind, whose)

    def idempotency(self, subject: str, key: str) -> str:
        """hash request, job, answer: what became of a submission under this key of this subject; expires"""
        return self.at("idempotency", hashlib.sha256(f"{len(subject)} {subject} {key}".encode()).hexdigest())
