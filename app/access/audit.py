"""The audit log: one line for each operation and each refusal, in the store, each sealing the one before.

A line's hash is an HMAC over the line and the hash before it, with a key that follows from DICAST_TOKEN_SECRET. Who can
write to the store and has not the secret can neither alter, remove, add nor reorder lines unseen, nor cut the end off:
the head, sealed likewise, tells how many there are. Two things a chain cannot tell: that the whole log was put back to
a state that it was once in, which is why each line's number and hash go into the process's log as well; and who wrote,
among those who have the secret. Without a secret the key is kept in the store, where nodes cannot reach it.

The newest `LINES_MAX` lines are kept. Of those that are dropped the last one's hash stays, sealed, as the anchor.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import TypeAdapter, ValidationError

from dicast.app.access.keys import AccessKeys
from dicast.app.access.secret import TokenSecret
from dicast.errors import DicastError
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.scripts import script_text

logger = logging.getLogger(__name__)

LINES_MAX = 100_000
DROP = 1_000
"""Lines that are dropped together, when there are so many more than `LINES_MAX`."""
PAGE = 1_000
WORD_CHARS = 200
DETAILS_BYTES = 2_000
TRIES = 1_000
"""Each failure means that another's line was added: under any load that a store bears, far fewer come to pass."""
STORE_KEY = "store"
"""Stands for the key that the store keeps, where a secret's fingerprint would."""
_HERE = Path(__file__).parent


class AuditError(DicastError, RuntimeError):
    """A line cannot be added."""

    problem = "audit"


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`at`: unix s by the store's clock. `key`: which secret sealed it; `previous`: the hash of the line before."""

    number: int
    at: float
    actor: str
    action: str
    object: str
    outcome: str
    details: dict[str, Any]
    key: str
    previous: str
    hash: str = ""


_LINE = TypeAdapter(AuditLine)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What a check of the log found."""

    lines: int
    """Lines that were checked."""
    first: int
    """Number of the first line held; those before are dropped."""
    broken: int | None = None
    """Number of the first line that is not as it was written."""
    problem: str = ""
    weak: int = 0
    """Lines at the beginning that are sealed by the key that the store keeps, from before there was a secret."""

    @property
    def whole(self) -> bool:
        return not self.problem


class _Head(NamedTuple):
    number: int
    hash: str
    seal: str
    trimmed: int
    anchor: str
    anchor_seal: str
    held: int
    """Lines in the list."""


class Audit:
    """The audit log of one installation. Threads and processes may share it. `all_secrets`: the first seals, the others
    are known too. `clock` gives unix s instead of the store's."""

    def __init__(
        self, client: StoreClient, namespace: str, all_secrets: Iterable[TokenSecret] = (),
        clock: Callable[[], float] | None = None, lines_max: int = LINES_MAX,
    ) -> None:  # fmt: skip
        self._redis, self._keys, self._clock, self._lines_max = client, AccessKeys(namespace), clock, lines_max
        self._secrets = {secret.fingerprint: secret.key("audit") for secret in all_secrets}
        self._lock = threading.Lock()
        self._append = client.register_script(script_text(_HERE / "append_line.lua"))
        self._trim = client.register_script(script_text(_HERE / "trim_audit.lua"))

    def record(
        self, actor: str, action: str, object: str, outcome: str, details: Mapping[str, Any] | None = None
    ) -> AuditLine:
        """Add a line; it is in the store on return. Long words are cut, long details left out. Give no secrets."""
        with self._lock:  # the threads of a process need not race with each other
            for _ in range(TRIES):
                line, held = self._try(actor, action, object, outcome, details or {})
                if held:
                    break
            else:
                raise AuditError(f"the audit log took no line in {TRIES} tries: others wrote each time")
            if held > self._lines_max + DROP:
                self._drop()
        logger.info(
            "%s %s %s: %s", line.actor, line.action, line.object, line.outcome,
            extra={"event": "audit", "audit_number": line.number, "audit_hash": line.hash},
        )  # fmt: skip
        return line

    def lines(self, newest: int | None = None) -> Iterator[AuditLine]:
        """Lines that can be read, oldest first; only the `newest` so many."""
        start = 0 if newest is None else max(0, self._redis.llen(self._keys.audit) - newest)
        for text in self._texts(start):
            line = _read(text)
            if line is not None:
                yield line

    def verify(self) -> AuditFinding:
        """Check the chain from its beginning, and name the first line that is broken. Lines that are added meanwhile
        are not looked at."""
        while True:
            head = self._head()
            finding = self._checked(head)
            if self._head().trimmed == head.trimmed:  # else lines were dropped while they were read
                return finding

    def _checked(self, head: _Head) -> AuditFinding:
        first, number, previous, weak, strong = head.trimmed + 1, head.trimmed, head.anchor, 0, False
        if head.trimmed and not self._sealed(head.anchor_seal, "anchor", head.trimmed, head.anchor):
            return AuditFinding(0, first, number, "the seal of the lines that were dropped is not good")
        for text in self._texts(0, head.number - head.trimmed):
            line = _read(text)
            problem = self._broken(line, number + 1, previous, strong)
            if line is None or problem:
                return AuditFinding(number - head.trimmed, first, number + 1, problem, weak)
            number, previous = line.number, line.hash
            strong = strong or line.key != STORE_KEY
            weak += line.key == STORE_KEY and bool(self._secrets)
        lines = number - head.trimmed
        if number != head.number or previous != head.hash or head.held != lines:
            here = head.trimmed + head.held
            return AuditFinding(lines, first, min(number, here) + 1, _CUT.format(head.number, here), weak)
        if head.number and not self._sealed(head.seal, "head", head.number, head.hash):
            return AuditFinding(lines, first, number, "the head's seal is not good: lines may be gone after it", weak)
        return AuditFinding(lines, first, weak=weak)

    def _try(
        self, actor: str, action: str, object: str, outcome: str, details: Mapping[str, Any]
    ) -> tuple[AuditLine, int]:
        head, now = self._head_and_time()
        fingerprint, key = self._own_key()
        line = AuditLine(
            head.number + 1, now, _word(actor), _word(action), _word(object), _word(outcome), _small(details),
            fingerprint, head.hash,
        )  # fmt: skip
        line = AuditLine(**{**asdict(line), "hash": _hash(key, line)})
        k, seal = self._keys, _seal(key, fingerprint, "head", line.number, line.hash)
        held = self._append(
            keys=[k.audit, k.audit_head], args=[head.number, head.hash, orjson.dumps(line), line.hash, seal]
        )
        return line, int(held)

    def _drop(self) -> None:
        head = self._head()
        text = self._redis.lindex(self._keys.audit, DROP - 1)
        line = _read(text or "")
        if line is None:
            return  # somebody else drops them, or they are broken, which `verify` is to find
        fingerprint, key = self._own_key()
        seal = _seal(key, fingerprint, "anchor", head.trimmed + DROP, line.hash)
        self._trim(keys=[self._keys.audit, self._keys.audit_head], args=[head.trimmed, DROP, line.hash, seal])

    def _texts(self, start: int, most: int | None = None) -> Iterator[str]:
        end = None if most is None else start + most
        while end is None or start < end:
            page = self._redis.lrange(self._keys.audit, start, min(start + PAGE, end or start + PAGE) - 1)
            yield from page
            start += len(page)
            if not page:
                return

    def _broken(self, line: AuditLine | None, number: int, previous: str, strong: bool) -> str:
        if line is None:
            return "it is altered: it cannot be read as it was written"
        if line.number != number:
            return f"it has the number {line.number}: lines are removed, added or reordered"
        if line.previous != previous:
            return "it does not follow the line before: lines are altered, removed or reordered"
        if line.key == STORE_KEY and strong:
            return "it is sealed without the secret, after lines that are sealed with it"
        key = self._key(line.key)
        if key is None:
            return f"it is sealed with a secret that is not known here (fingerprint {line.key[:16]})"
        if not hmac.compare_digest(_hash(key, line), line.hash):
            return "it is altered"
        return ""

    def _own_key(self) -> tuple[str, bytes]:
        for fingerprint, key in self._secrets.items():
            return fingerprint, key
        return STORE_KEY, self._kept_key()

    def _key(self, fingerprint: str) -> bytes | None:
        return self._kept_key() if fingerprint == STORE_KEY else self._secrets.get(fingerprint)

    def _kept_key(self) -> bytes:
        name = self._keys.audit_key
        self._redis.set(name, secrets.token_hex(32), nx=True)
        return str(self._redis.get(name)).encode()

    def _sealed(self, seal: str, what: str, number: int, hash: str) -> bool:
        fingerprint, _, _ = seal.partition(".")
        key = self._key(fingerprint)
        return key is not None and hmac.compare_digest(_seal(key, fingerprint, what, number, hash), seal)

    def _head(self) -> _Head:
        return self._head_and_time()[0]

    def _head_and_time(self) -> tuple[_Head, float]:
        pipe = self._redis.pipeline()
        pipe.hmget(self._keys.audit_head, *_HEAD).llen(self._keys.audit).time()
        (count, hash, seal, trimmed, anchor, anchor_seal), held, (seconds, micros) = pipe.execute()
        head = _Head(int(count or 0), hash or "", seal or "", int(trimmed or 0), anchor or "", anchor_seal or "", held)
        return head, self._clock() if self._clock is not None else seconds + micros / 1e6


_HEAD = ("count", "hash", "seal", "trimmed", "anchor", "anchor_seal")
_CUT = "the log has {} lines by its head, and {} are here: the end is cut off, or altered"


def _read(text: str) -> AuditLine | None:
    """None for what was never written so."""
    try:
        line = _LINE.validate_json(text)
    except ValidationError:
        return None
    return line if orjson.dumps(line).decode() == text else None


def _hash(key: bytes, line: AuditLine) -> str:
    fields = {name: value for name, value in asdict(line).items() if name != "hash"}
    return hmac.new(key, orjson.dumps(fields, option=orjson.OPT_SORT_KEYS), hashlib.sha256).hexdigest()


def _seal(key: bytes, fingerprint: str, what: str, number: int, hash: str) -> str:
    return f"{fingerprint}.{hmac.new(key, f'{what}|{number}|{hash}'.encode(), hashlib.sha256).hexdigest()}"


def _word(given: str) -> str:
    text = str(given).encode(errors="replace").decode()
    return text if len(text) <= WORD_CHARS else text[: WORD_CHARS - 1] + "…"


def _small(details: Mapping[str, Any]) -> dict[str, Any]:
    try:
        packed = orjson.dumps(dict(details), default=str, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:  # whole numbers of more than 64 bits, text that is no Unicode
        return {"left_out": str(error)}
    if len(packed) > DETAILS_BYTES:
        return {"left_out": f"{len(packed)} bytes"}
    plain: dict[str, Any] = orjson.loads(packed)
    return plain
