"""Writes results to the ledger, and reads jobs and their items from it, while the store comes and goes.

Reads wait for an unavailable store (`retry_until_available`). Results are kept on disk meanwhile and tried again.

A result that the store has taken may be lost in a fail-over, if the replica had not received it yet. Results are
therefore remembered for a while after they were written, and written to the new server again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import orjson

from dicast.app import logs
from dicast.app.domain.item import Item
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Deferral, Due, JobRecord, Recorded, UnitResult
from dicast.app.reports.folders import folder_name, replacing
from dicast.app.tracing import NO_TRACES, Traces
from dicast.workers.admission.concurrency import Suspension
from dicast.workers.store.connection import is_passing
from dicast.workers.store.keys import encode
from dicast.workers.system.files import make_folder, try_lock

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_BYTES = 256 * 1024 * 1024
"""How much one process may keep here."""


class Spool:
    """One process's part of the machine's spool. Safe for any thread. The disk is not touched before it is needed.

        <state dir>/spool/<namespace>/<node>/lock            held by the living process
        <state dir>/spool/<namespace>/<node>/<number>.json   one write to the ledger, synced

    Answers are paid for. While the store is away, a process keeps its answers in memory and tries again; it also keeps
    them here, so that they outlive the process: another process on the machine stores entries without a living owner.
    The ledger decides by the fence whether an answer still counts. A disk that fails is reported as an error in the log
    and stops nothing.
    """

    def __init__(self, state_dir: str | Path, namespace: str, node: str, max_bytes: int = MAX_BYTES) -> None:
        self._root = Path(state_dir).resolve() / "spool" / folder_name(encode(namespace))
        self._folder, self._max_bytes = self._root / encode(node), max_bytes
        self._numbers = itertools.count()
        self._sizes: dict[Path, int] = {}
        self._abandoned: set[Path] = set()
        self._lock: int | None = None
        self._mutex = threading.Lock()
        self.failed_writes = 0

    def put(self, entry: bytes) -> Path | None:
        """Write one entry and return its path; the entry then survives a loss of power. Returns None, and logs an
        error, if the disk fails or this process keeps `MAX_BYTES` already."""
        try:
            path = self._place(len(entry))
            try:
                with replacing(path) as file:
                    file.write(entry)
            except OSError:
                self.drop(path)
                raise
        except OSError as error:
            self.failed_writes += 1
            logger.error(
                "an answer cannot be kept on disk while the store is away, it is safe only as long as this process "
                "lives: %s", error, extra={"event": "spool_refused", "refused": self.failed_writes},
            )  # fmt: skip
            return None
        return path

    def _place(self, size: int) -> Path:
        """Return the path of the next entry, and count its size from now on."""
        with self._mutex:  # two threads that open the folder would wait for each other's lock for ever
            if sum(self._sizes.values()) + size > self._max_bytes:
                raise OSError(f"{self._max_bytes} bytes are kept already")
            if self._lock is None:
                self._open()
            path = self._folder / f"{next(self._numbers):08d}.json"
            self._sizes[path] = size
            return path

    def drop(self, path: Path | None) -> None:
        """Remove an entry, which is stored, or cannot be stored by anybody."""
        if path is not None:
            with self._mutex:
                self._sizes.pop(path, None)
                self._abandoned.discard(path)
            path.unlink(missing_ok=True)

    def set_aside(self, path: Path) -> None:
        """Set aside an entry that cannot be read. It is kept for people, and not adopted again."""
        path.rename(path.with_suffix(".broken"))
        with self._mutex:
            self._abandoned.discard(path)

    def abandon(self, path: Path | None) -> None:
        """Abandon an entry whose task has ended without storing it. It may now be adopted like that of a dead
        process."""
        if path is not None:
            with self._mutex:
                self._abandoned.add(path)

    @contextlib.contextmanager
    def orphans(self, most: int) -> Iterator[list[tuple[Path, bytes]]]:
        """Yield entries of dead processes, and abandoned ones of this process, each owner's oldest first. An owner's
        entries are locked until the block ends; the caller drops those that it has stored."""
        with self._mutex:
            abandoned = sorted(self._abandoned)[:most]
        entries = [(path, path.read_bytes()) for path in abandoned]
        with contextlib.ExitStack() as inherited:
            for folder in sorted(self._root.glob("*/")) if self._root.exists() else []:
                if folder != self._folder and len(entries) < most and inherited.enter_context(_inherited(folder)):
                    others = sorted(folder.glob("*.json"))[: most - len(entries)]
                    entries += [(path, path.read_bytes()) for path in others]
            yield entries

    def _open(self) -> None:
        """Make the folder and lock it. Tries again if another process has adopted the new folder in between."""
        while self._lock is None:
            make_folder(self._folder, shared=False)
            with contextlib.suppress(FileNotFoundError):
                lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if _is_at(lock, self._folder / "lock"):
                    self._lock = lock
                else:
                    os.close(lock)

    def close(self) -> None:
        """Give the folder up. Entries that are still in it are adopted by another process."""
        with self._mutex:
            self._give_up()

    def _give_up(self) -> None:
        if self._lock is not None:
            if not any(self._folder.glob("*.json")):
                (self._folder / "lock").unlink()
                self._folder.rmdir()
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _inherited(folder: Path) -> Iterator[bool]:
    """Yield whether the folder's owner is dead and no other process has adopted the folder. If so, the caller holds the
    folder until the block ends, when it is removed if it is empty."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:  # just made, or just emptied by another heir
        yield False
        return
    try:
        if not try_lock(lock):
            yield False
            return
        yield True
        if not any(folder.glob("*.json")):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
    finally:
        os.close(lock)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


SPOOL_AFTER_S = 3.0
"""A result that the store has not taken after this time is also kept on disk. A busy event loop alone needs less."""
STORE_PAUSE_MAX_S = 2.0
REMEMBERED_S = 30.0
"""A replica that is further behind should not be made a master."""
REMEMBERED_MAX = 10_000


class _Entry(NamedTuple):
    at: float
    ref: PageRef
    write: Callable[[], Awaitable[Recorded | None]]


class Recorder:
    """Writes the outcomes of claims, on one event loop."""

    def __init__(
        self, ledger: Ledger, spool: Spool, suspension: Suspension | None = None, tracer: Traces = NO_TRACES
    ) -> None:
        self._ledger, self._spool, self._suspension = ledger, spool, suspension or Suspension()
        self._tracer = tracer
        self._stored: deque[_Entry] = deque(maxlen=REMEMBERED_MAX)

    async def store(self, ref: PageRef, counters: dict[str, int], results: Sequence[UnitResult]) -> Recorded:
        """Write results to the ledger, waiting for the store as long as necessary. Results that are not stored soon are
        also kept on disk. Raises errors that waiting cannot mend: the results are then lost, and a worker to which this
        happens repeatedly is suspended."""
        scored = sum(map(attrgetter("scored"), results))
        with self._tracer.child("record", results=len(results), scored=scored):
            write = partial(self._ledger.record, ref, counters, results)
            writing = asyncio.ensure_future(retry_until_available(write))
            spooled: Path | None = None
            try:
                if not (await asyncio.wait({writing}, timeout=SPOOL_AFTER_S))[0]:
                    spooled = await asyncio.to_thread(self._spool.put, _spool_entry(ref, counters, results))
                recorded = await asyncio.shield(writing)
            except asyncio.CancelledError:
                if writing.done():
                    self._spool.drop(spooled)
                else:
                    writing.cancel()
                    self._spool.abandon(spooled or self._spool.put(_spool_entry(ref, counters, results)))
                raise
            except Exception as error:
                self._spool.drop(spooled)  # another process could not store it either
                self._suspension.failed(error)
                raise
            self._spool.drop(spooled)
            self._suspension.reported()
            self._remember(ref, write)
            return recorded

    async def defer(
        self, ref: PageRef, counters: dict[str, int], deferrals: Sequence[Deferral], due: Sequence[Due]
    ) -> None:
        """Give units up until their messages come again. Waits for the store as long as necessary."""

        async def write() -> None:
            await self._ledger.defer(ref, counters, deferrals, due)

        with self._tracer.child("record", deferred=len(deferrals)):
            await retry_until_available(write)
        self._remember(ref, write)

    def _remember(self, ref: PageRef, write: Callable[[], Awaitable[Recorded | None]]) -> None:
        now = asyncio.get_running_loop().time()
        while self._stored and self._stored[0].at < now - REMEMBERED_S:
            self._stored.popleft()
        self._stored.append(_Entry(now, ref, write))

    async def recall(self) -> AsyncIterator[tuple[PageRef, Recorded]]:
        """Write again what the store took in the last `REMEMBERED_S`. Yields the answers for results that the store did
        not have, or that require next steps. The ledger decides by the fences what counts. Raises redis errors; the
        next call then writes everything again."""
        open_pages = set(await self._ledger.open_pages()) if self._stored else set()
        for _, ref, write in list(self._stored):
            recorded = await write() if ref in open_pages else None
            if recorded is not None and (recorded.news or recorded.plan or recorded.gather):
                yield ref, recorded

    async def store_spooled(self, entry: bytes) -> tuple[PageRef, Recorded]:
        """Write an entry that another process has left on disk. Raises redis errors, or ValueError if it is no entry of
        ours."""
        fields = orjson.loads(entry)
        ref = PageRef.parse(fields["page"])
        results = [UnitResult.read(*written) for written in fields["results"]]
        return ref, await self._ledger.record(ref, fields["counters"], results)


def _spool_entry(ref: PageRef, counters: dict[str, int], results: Sequence[UnitResult]) -> bytes:
    fields = [[p, fence, payload.decode(), scored, *board] for p, fence, payload, scored, *board in results]
    return orjson.dumps({"page": str(ref), "counters": counters, "results": fields})


async def retry_until_available(operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat an operation until the store is available, and return its result. All ledger verbs may be repeated. Raises
    errors that waiting cannot mend at once."""
    pause_s = 0.05
    while True:
        try:
            return await operation()
        except Exception as error:  # errors of many libraries; `is_passing` tells which may pass
            if not is_passing(error):
                raise
            logs.store_away(error)
            await asyncio.sleep(pause_s)
            pause_s = min(STORE_PAUSE_MAX_S, pause_s * 2)


JOBS_KEPT = 64
"""How many jobs are cached; the oldest are dropped."""

Key = tuple[str, str]


class Jobs(Protocol):
    """See `dicast.app.ledger.ledger.Ledger`."""

    async def job(self, job: str) -> JobRecord | None: ...


class JobCache:
    """Caches jobs for one event loop. Waits for the store while it is unavailable."""

    def __init__(self, ledger: Jobs) -> None:
        self._ledger = ledger
        self._jobs: dict[Key, JobRecord] = {}
        self._reading: dict[Key, asyncio.Future[JobRecord | None]] = {}

    async def get(self, job_id: str, incarnation: str) -> JobRecord | None:
        """Return the job as it was when it was first read, or None if another job has its id now; None is never cached.
        Raises errors that waiting cannot mend."""
        key = job_id, incarnation
        job = self._jobs.get(key)
        if job is not None:
            return job
        # A job's first units come by the hundred: the first one starts the reading, the others wait for it.
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.ensure_future(self._keep(key))
        return await asyncio.shield(reading)

    async def _keep(self, key: Key) -> JobRecord | None:
        try:
            job = await retry_until_available(lambda: self._ledger.job(key[0]))
        finally:
            del self._reading[key]
        if job is None or job.incarnation != key[1]:
            return None
        self._jobs[key] = job
        if len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return job


ITEMS_TOGETHER = 500


class ItemsGone(LookupError):
    """A job's items have left the store."""


async def stored_items(ledger: Ledger, job_id: str) -> Iterator[Item]:
    """Return an iterator over the items in the store. It is consumed in a thread, while the event loop that called this
    reads the items. The iterator raises `ItemsGone` if the job ends meanwhile."""
    count, loop = await ledger.item_count(job_id), asyncio.get_running_loop()

    def items() -> Iterator[Item]:
        first = 0
        while first < count:
            reading = ledger.items_within(job_id, range(first, min(first + ITEMS_TOGETHER, count)))
            page = asyncio.run_coroutine_threadsafe(reading, loop).result()
            if not page:
                raise ItemsGone
            yield from page
            first += len(page)

    return items()
