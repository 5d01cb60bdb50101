"""The file of kept opinions, by which the same question is not paid for twice (app/pipeline/kept_opinions.py has the
keys).

It is a SQLite database with a write-ahead log, which several processes of one machine share; it must not lie on a
network file system. A process that is killed leaves whole entries or none.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dicast.errors import DicastError

FILE = "opinions.sqlite3"
KEY_BYTES = 32
WAIT_S = 30.0
"""How long a process waits for others that are writing. SQLite has no queue for them, so that one of several may wait
for long on a busy machine."""
KEYS_TOGETHER = 500
PRUNED_SHARE = 0.1
"""The share of the entries that goes, oldest first, when the file has reached its bound."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS opinions (
    key BLOB PRIMARY KEY, kept_ms INTEGER NOT NULL, judge TEXT NOT NULL, model TEXT NOT NULL, opinion BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS opinions_by_age ON opinions (kept_ms);
"""


class CacheError(DicastError):
    """The cache's file cannot be used, or an export cannot be read."""

    problem = "cache-error"


class KeptOpinion(BaseModel):
    """The part of an `Opinion` that belongs to its question and not to its job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge: str
    model: str
    system_fingerprint: str | None = None
    pool: str = ""
    score: int | float
    answer_score: int | None = None
    answers: list[bool | None] | None = None
    attained: tuple[float, float] | None = None
    argument: str
    dissent: str | None = None
    cited_evidence: list[str] = []


class Entry(BaseModel):
    """A line of an export: the key in hexadecimal digits, when the opinion was kept (Unix time in ms), and itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str = Field(pattern=f"^[0-9a-f]{{{2 * KEY_BYTES}}}$")
    kept_ms: int = Field(ge=0, le=10**14)
    opinion: KeptOpinion


class CacheStats(NamedTuple):
    """What the file holds: entries, by judge as well, its size in bytes, and the ages of the oldest and the newest
    entry, as Unix time in ms (None without any)."""

    entries: int
    bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    judges: Mapping[str, int]


class OpinionCache:
    """The file of kept opinions in a folder. Its methods block, may be called from any thread, and raise `CacheError`.

    The file is made with the first entry: looking into one that does not exist finds nothing.
    """

    def __init__(self, folder: str | Path, *, most_bytes: int) -> None:
        self.path, self._most_bytes = Path(folder) / FILE, most_bytes
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def find(self, keys: Iterable[bytes], *, since_ms: int = 0) -> dict[bytes, Entry]:
        """Return the entries of these keys that were kept at `since_ms` or later."""
        entries: dict[bytes, Entry] = {}
        distinct = list(dict.fromkeys(keys))
        with self._open(writes=False) as connection:
            for start in range(0, len(distinct), KEYS_TOGETHER) if connection is not None else ():
                chunk = distinct[start : start + KEYS_TOGETHER]
                marks = ",".join("?" * len(chunk))
                query = f"SELECT key, kept_ms, opinion FROM opinions WHERE key IN ({marks}) AND kept_ms >= ?"  # noqa: S608
                for key, kept_ms, text in connection.execute(query, [*chunk, since_ms]):
                    with contextlib.suppress(ValidationError):  # an entry that cannot be read is none
                        opinion = KeptOpinion.model_validate_json(text)
                        entries[key] = Entry.model_construct(key=key.hex(), kept_ms=kept_ms, opinion=opinion)
        return entries

    def add(self, entries: Iterable[Entry], *, replace: bool = False) -> int:
        """Keep entries and return how many were new. Of an entry that is there the earlier stays, unless `replace`."""
        verb = "REPLACE" if replace else "IGNORE"
        rows = ((bytes.fromhex(e.key), e.kept_ms, e.opinion.judge, e.opinion.model, _text(e.opinion)) for e in entries)
        with self._open(writes=True) as connection:
            before = connection.total_changes
            with connection:
                connection.executemany(f"INSERT OR {verb} INTO opinions VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608
            added: int = connection.total_changes - before
            if added and _size(connection) > self._most_bytes:
                self._make_room(connection)
            return added

    def prune(self, *, before_ms: int) -> int:
        """Remove the entries that were kept before this instant and give their space back; return how many."""
        with self._open(writes=True, makes=False) as connection:
            if connection is None:
                return 0
            with connection:
                removed: int = connection.execute("DELETE FROM opinions WHERE kept_ms < ?", [before_ms]).rowcount
            connection.execute("VACUUM")
            return removed

    def stats(self) -> CacheStats:
        """Count what the file holds."""
        with self._open(writes=False) as connection:
            if connection is None:
                return CacheStats(0, 0, None, None, {})
            entries, oldest, newest = connection.execute(
                "SELECT count(*), min(kept_ms), max(kept_ms) FROM opinions"
            ).fetchone()
            judges = connection.execute("SELECT judge, count(*) FROM opinions GROUP BY judge ORDER BY 2 DESC, 1")
            return CacheStats(entries, _size(connection), oldest, newest, dict(judges.fetchall()))

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, in the order of their keys."""
        after = b""
        while True:
            with self._open(writes=False) as connection:
                rows = (
                    []
                    if connection is None
                    else connection.execute(
                        "SELECT key, kept_ms, opinion FROM opinions WHERE key > ? ORDER BY key LIMIT ?",
                        [after, KEYS_TOGETHER],
                    ).fetchall()
                )
            for key, kept_ms, text in rows:
                with contextlib.suppress(ValidationError):
                    yield Entry(key=key.hex(), kept_ms=kept_ms, opinion=KeptOpinion.model_validate_json(text))
            if not rows:
                return
            after = rows[-1][0]

    def export(self) -> Iterator[bytes]:
        """Yield a line of JSON for each entry."""
        for entry in self.entries():
            yield orjson.dumps(entry.model_dump(mode="json", exclude_defaults=True), option=orjson.OPT_APPEND_NEWLINE)

    def add_export(self, path: str | Path) -> int:
        """Add the entries of an exported file, all or none, and return how many were new. Raises OSError if the file
        cannot be read."""
        with Path(path).open("rb") as file:
            return self.add(_read_export(file, path))

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest entries; the space is used for the next ones."""
        count = connection.execute("SELECT count(*) FROM opinions").fetchone()[0]
        removed = max(1, int(PRUNED_SHARE * count))
        with connection:
            connection.execute(
                "DELETE FROM opinions WHERE key IN (SELECT key FROM opinions ORDER BY kept_ms LIMIT ?)", [removed]
            )

    @contextlib.contextmanager
    def _open(self, *, writes: bool, makes: bool = True) -> Iterator[Any]:
        """Yield the connection; None if there is no file and it need not be made."""
        with self._lock:
            try:
                if self._connection is None and ((writes and makes) or self.path.exists()):
                    self._connection = _connect(self.path)
                yield self._connection
            except (sqlite3.Error, OSError) as error:
                raise CacheError(f"the cache of opinions {self.path}: {error}") from None


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=WAIT_S, check_same_thread=False)
    path.chmod(0o600)  # it holds what judges say of the items
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.executescript(_SCHEMA)
    return connection


def _size(connection: sqlite3.Connection) -> int:
    """Return how many bytes of the file are in use."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _text(opinion: KeptOpinion) -> bytes:
    return opinion.model_dump_json(exclude_defaults=True).encode()


def _read_export(lines: Iterable[bytes], path: str | Path) -> Iterator[Entry]:
    """Yield the entries of an export. Raises `CacheError`, which names the line."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield Entry.model_validate_json(line)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                field = ".".join(map(str, first["loc"]))
                raise CacheError(
                    f"{path}: line {number} is no opinion of a cache: {field + ': ' if field else ''}{first['msg']}"
                ) from None
