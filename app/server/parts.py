"""The objects that the routes use: made once for each server, and found from a request.

Several servers may serve one installation, so idempotency keys and the rates of requests are in the store, under keys
outside the prefix that nodes may access (`ServerKeys`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import anyio
import orjson
from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from dicast.app.access.audit import Audit
from dicast.app.access.membership import Membership
from dicast.app.access.scopes import Claims
from dicast.app.access.tokens import Tokens
from dicast.app.application import Dicast
from dicast.app.cluster.snapshot import SharedState, read_shared
from dicast.app.datasets.tables import ENDINGS
from dicast.app.operator.interim import RunningJobs
from dicast.app.reports.browse import Browser
from dicast.app.reports.folders import sync_folder
from dicast.app.server.errors import FileNotAllowed, FolderFull, InvalidRequest, KeyReused, TooManyStreams
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import encode
from dicast.workers.store.scripts import script_text
from dicast.workers.system.files import create, make_folder, open_or_create, try_lock


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


KEPT_S = 86_400
KEY_CHARS = 200


class IdempotencyKeys:
    """The keys of one installation; each subject has its own.

    The same key with the same request is the same job and the same answer. The store records which job a key stands for
    before the job is stored. So submissions that race, even at several servers, or that are repeated after a crash,
    submit one job; and the ledger accepts the same job only once.
    """

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


class RequestRate(NamedTuple):
    """A rate: it allows at most `burst` requests at once, and `per_s` per second in the long run."""

    burst: float
    per_s: float

    @classmethod
    def of_minute(cls, requests: int) -> RequestRate:
        """Return a rate of so many requests a minute, a sixth of which may come at once."""
        return cls(max(1.0, requests / 6), requests / 60)

    def times(self, factor: float) -> RequestRate:
        """Return this rate multiplied by `factor`."""
        return RequestRate(self.burst * factor, self.per_s * factor)


class Taken(NamedTuple):
    """The result of a request: `wait_s` until one is accepted, 0 if this one was; `first` says that it is the first
    refusal since one was accepted."""

    wait_s: float
    first: bool


class Rates:
    """The buckets of one installation.

    They say how many requests a token and an address may make.
    """

    def __init__(self, client: StoreClient, keys: ServerKeys) -> None:
        self._keys = keys
        self._take = client.register_script(script_text(Path(__file__).with_name("take.lua")))

    def take(self, kind: str, whose: str, rate: RequestRate, now_ms: int | None = None) -> Taken:
        """Count one request of a token or an address. Raises redis errors."""
        wait_ms, first = self._take(
            keys=[self._keys.rate(kind, whose)], args=["" if now_ms is None else now_ms, rate.burst, rate.per_s]
        )
        return Taken(int(wait_ms) / 1000, bool(first))


PIECE_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
"""How much is reserved ahead, if there is room: the folder is scanned once for each such piece."""
AHEAD_SHARE = 16
"""At most this fraction of the remaining room (one part in so many) is reserved ahead."""
LOCK_S = 20.0


@dataclass(frozen=True, slots=True)
class Upload:
    """A file in the folder. `path` is what a job names: `items: {path: ...}`."""

    path: str
    bytes: int
    sha256: str
    is_new: bool = True
    """Whether there was no such file before."""


class Uploads:
    """The folder of uploads. `file_bytes` bounds one file, `folder_bytes` all of them.

    It is the only folder whose files a job submitted over HTTP may name. Files are named after their content, so that
    the same file is stored once, and no name leads anywhere else. Workers read them, so all machines must share the
    folder, as they share the results.
    """

    def __init__(self, folder: Path, file_bytes: int, folder_bytes: int) -> None:
        self._folder, self.file_bytes, self._folder_bytes = folder.absolute(), file_bytes, folder_bytes

    @property
    def folder(self) -> Path:
        """The path of the folder, with symbolic links resolved."""
        return self._folder.resolve()

    def find(self, name: str) -> Path:
        """Return the file that a job names, as an absolute path without symbolic links.

        Raises `FileNotAllowed` for anything that is not a file in the folder; the message does not reveal whether such
        a file exists elsewhere.
        """
        root = self.folder
        try:
            path = (root / name).resolve(strict=True)
            inside = path.is_relative_to(root) and path.relative_to(root).parts[:1] not in ((), ("..",))
            regular = stat.S_ISREG(path.stat().st_mode)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead round in a circle
            inside = regular = False
        if not inside or not regular or path.name.startswith("."):
            raise FileNotAllowed(f"items.path: there is no uploaded file {name[:200]!r}; POST /uploads gives a path")
        return path

    async def take(self, body: AsyncIterator[bytes], ending: str, announced: int = 0) -> Upload:
        """Store a body as it arrives, completely or not at all; `announced` is its announced size in bytes. Raises
        `InvalidRequest`, `FolderFull`, OSError."""
        if ending not in ENDINGS:
            raise InvalidRequest(f"query.ending: must be one of {', '.join(ENDINGS)}, got {ending[:20]!r}")
        digest, size, piece = hashlib.sha256(), 0, bytearray()
        reserved = await run_in_threadpool(_Reserved, self.folder, self._folder_bytes)
        try:
            await run_in_threadpool(reserved.reserve, announced)
            async for chunk in body:
                size += len(chunk)
                piece += chunk
                if len(piece) >= PIECE_BYTES:
                    await run_in_threadpool(reserved.write, digest, bytes(piece))
                    piece.clear()
            await run_in_threadpool(reserved.write, digest, bytes(piece))
            if size == 0:
                raise InvalidRequest("body: the file is empty")
            name = f"{digest.hexdigest()}{ending}"
            is_new = await run_in_threadpool(reserved.keep, name)
        finally:
            await run_in_threadpool(reserved.discard)
        return Upload(name, size, digest.hexdigest(), is_new)


class _Reserved:
    """A file that is being written. Each byte is written only once the folder has room for it, including what others
    write at the same time, in any process.

    The file is as long as what is reserved for it, and locked by its writer. If the writer dies, the kernel drops the
    lock, and the next writer removes the file.
    """

    def __init__(self, folder: Path, folder_bytes: int) -> None:
        self._folder, self._folder_bytes = folder, folder_bytes
        make_folder(folder)
        self._path = folder / f".{uuid.uuid4().hex}.tmp"
        with self._alone():
            self._file = create(self._path)
            try_lock(self._file)
        self._written = self._length = 0

    def write(self, digest: hashlib._Hash, piece: bytes) -> None:
        """Append a piece and add it to the digest. Raises `FolderFull`, OSError."""
        self.reserve(self._written + len(piece))
        digest.update(piece)
        self._file.write(piece)
        self._written += len(piece)

    def keep(self, name: str) -> bool:
        """Truncate the file to what was written and move it to its place; returns whether there was no such file.

        Raises `FolderFull`, OSError."""
        self._file.flush()
        self._file.truncate(self._written)
        os.fsync(self._file.fileno())
        path = self._folder / name
        with self._alone():  # whoever scans the folder meanwhile might see the file under neither name
            is_new = not path.exists()
            self._path.replace(path)
        sync_folder(self._folder)
        return is_new

    def discard(self) -> None:
        """Remove the file unless it was kept."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def reserve(self, size: int) -> None:
        """Reserve room for so many bytes in all, and for some more if there is plenty, so that the folder is rarely
        scanned. Raises `FolderFull`, OSError."""
        if size <= self._length:
            return
        with self._alone():
            room = self._folder_bytes - self._others()
            if size > room:
                raise FolderFull("the uploads' folder has no room for this file")
            self._length = size + min(AHEAD_BYTES, (room - size) // AHEAD_SHARE)
            self._file.truncate(self._length)

    def _others(self) -> int:
        """Return the size of all other files, including what is reserved."""
        total = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") and entry.name.endswith(".tmp") and _is_orphan(Path(entry.path)):
                    Path(entry.path).unlink(missing_ok=True)
                elif entry.name != self._path.name:
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
        return total

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the folder's lock, across all processes that share it. Raises `FolderFull` if that takes too long."""
        end_s = time.monotonic() + LOCK_S
        with open_or_create(self._folder / ".lock") as lock:
            while not try_lock(lock):
                if time.monotonic() > end_s:
                    raise FolderFull("the uploads' folder is in use by others; try again")
                time.sleep(0.01)
            yield


def _is_orphan(path: Path) -> bool:
    """Return whether the file's writer is gone."""
    try:
        with path.open("rb+") as file:
            return try_lock(file)
    except OSError:  # it is gone, or another user's
        return False


STREAMS_MAX = 256
STREAMS_SHARE = 32
"""The most streams of one subject."""
AT_ONCE = 16
"""The most requests of one subject that are served at once; there are 40 threads."""
SHARED_S = 1.0
ADDRESS_FACTOR = 4
"""The factor by which an address may make more requests than a token: several users may share one."""


class Streams:
    """Counts the open event streams of this server, and refuses more than it can serve, or than a subject's share."""

    def __init__(self, most: int = STREAMS_MAX, share: int = STREAMS_SHARE) -> None:
        self._most, self._share, self._open, self._lock = most, share, Counter[str](), threading.Lock()

    @contextmanager
    def open_stream(self, subject: str) -> Iterator[None]:
        """Count one stream of a subject inside the context. Raises `TooManyStreams`."""
        with self._lock:
            if self._open.total() >= self._most:
                raise TooManyStreams(f"{self._most} event streams are open here, and no more are taken")
            if self._open[subject] >= self._share:
                raise TooManyStreams(f"{self._share} event streams of {subject} are open here, and no more are taken")
            self._open[subject] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[subject] -= 1
                self._open += Counter()  # forgets who has none


class RequestTurns:
    """Limits how many requests of a subject are served at once: else slow requests of one subject could take all
    threads, and everybody else's would wait."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self._most, self._limiters, self._users = most, dict[str, anyio.CapacityLimiter](), Counter[str]()

    @asynccontextmanager
    async def take_turn(self, subject: str) -> AsyncIterator[None]:
        """Wait for a turn of a subject, and hold it inside the context. Only on the server's loop."""
        limiter = self._limiters.setdefault(subject, anyio.CapacityLimiter(self._most))
        self._users[subject] += 1
        try:
            async with limiter:
                yield
        finally:
            self._users[subject] -= 1
            if not self._users[subject]:
                del self._users[subject], self._limiters[subject]


class RecentState:
    """The shared state, cached for `SHARED_S`: any number of event streams read it as often as one."""

    def __init__(self, read: Callable[[], SharedState], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock, self._lock = read, clock, threading.Lock()
        self._snapshot: tuple[float, SharedState] | None = None

    def __call__(self) -> SharedState:
        """Return the state, at most `SHARED_S` old. Raises redis errors."""
        with self._lock:
            if self._snapshot is None or self._clock() - self._snapshot[0] > SHARED_S:
                self._snapshot = self._clock(), self._read()
            return self._snapshot[1]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one server. Without `require_auth` every caller may do everything; only on a loopback address.
    `tokens` and `members` are None if no secret is set. `hosts` are the names under which it may be reached; None:
    any."""

    dicast: Dicast
    tokens: Tokens | None
    members: Membership | None
    audit: Audit
    rates: Rates
    keys: IdempotencyKeys
    uploads: Uploads
    rate: RequestRate
    address_rate: RequestRate
    require_auth: bool
    hosts: frozenset[str] | None
    secrets: tuple[str, ...]
    recent_state: RecentState
    streams: Streams = field(default_factory=Streams)
    turns: RequestTurns = field(default_factory=RequestTurns)
    browser: Browser = field(default_factory=Browser)
    running: RunningJobs = field(default_factory=RunningJobs)

    @classmethod
    def for_server(cls, dicast: Dicast, hosts: frozenset[str] | None) -> Parts:
        """Return the parts of a server of this installation."""
        settings = dicast.settings
        keys = ServerKeys(settings.namespace)
        return cls(
            dicast=dicast,
            tokens=dicast.tokens if dicast.token_secrets else None,
            members=dicast.membership if dicast.token_secrets else None,
            audit=dicast.audit,
            rates=Rates(dicast.store, keys),
            keys=IdempotencyKeys(dicast.store, keys),
            uploads=Uploads(Path(settings.upload_dir), settings.upload_max_bytes, settings.upload_folder_bytes),
            rate=RequestRate.of_minute(settings.server_rate),
            address_rate=RequestRate.of_minute(ADDRESS_FACTOR * settings.server_rate),
            require_auth=settings.require_auth,
            hosts=hosts,
            secrets=tuple(dicast.secrets()),
            recent_state=RecentState(lambda: read_shared(dicast.store_url, dicast.keys)),
        )

    def masked(self, text: str) -> str:
        """Return a text with all secrets masked, and without the folder of the uploads."""
        text = text.replace(f"{self.uploads.folder}/", "")
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text

    def record(
        self, claims: Claims, action: str, object: str, outcome: str = "done", details: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line to the audit log, under the subject of these claims."""
        self.audit.record(claims.subject, action, object, outcome, {"token": claims.id, **(details or {})})


def parts_of(request: Request) -> Parts:
    """Return the parts of the server that answers this request."""
    parts: Parts = request.app.state.parts
    return parts


async def _given_parts(request: Request) -> Parts:  # a plain function would wait for a thread
    return parts_of(request)


GivenParts = Annotated[Parts, Depends(_given_parts)]
