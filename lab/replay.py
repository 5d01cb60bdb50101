"""Replays structured logs and proves from them that the limit held.

    python -m lab.replay --limit N LOG...

Proved, over all files merged by time (several nodes, `.gz` too), is that

* acquired minus released was never above the limit and never below zero, nor did a line tell of more `active_slots`;
* every lease was given back in the end, but for those of calls that were cut: these count until their deadlines;
* every retry (a 429 or another failure) was followed by the outcome of its unit: a line "judged", "failed" or
  "corrupt" (an answer came, and is told of) with the same job and unit, or the cancellation of its job.

Leases are told apart by `lease` where lines have it; so a lease seen to end before it starts (two nodes' lines in one
millisecond) counts as none, instead of opening a gap that hides another. At equal times, what one file tells keeps
its order, and of different files the releases come first. A line "node_lost" gives back all leases of its `node`. A
line "released" with a `reason` tells that others have ended the lease of its `node`, which is dead, or tells of it
once more when it comes back: that counts for nothing then, and neither does the end of what nobody has told the
beginning of. Between machines, `--skew-s` says how far their clocks may lie apart: a call then counts only while it
was certainly open.

Units are told apart by `job` and `unit`, or without these by agent, dimension and item. A line without a time takes
that of the line before it. Lines that cannot be read are counted and named; they are no violation, but what they held
is not proved. Memory grows with the calls and retries that are open at once, not with the length of the log.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from dicast.app.domain.text import printable

MAX_LINE_BYTES = 1_000_000
MAX_NAMED = 20
REORDER_S = 1.0
"""Threads of one process may write this much out of order."""
NODE_LOST_S = 1.0
"""A node may be found dead so long after its death, or at once: its calls count as ended so much before, and what it
tells of itself in between counts for nothing."""
_OUTCOMES = frozenset({"judged", "failed", "corrupt"})


class LogPlace(NamedTuple):
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Event(NamedTuple):
    """One line that tells of an event. Ordered by time, and within a file by place."""

    time_s: float
    place: LogPlace
    name: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Notes:
    """The first few of possibly many remarks, and how many there were."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: LogPlace, text: str) -> None:
        self.count += 1
        if len(self.first) < MAX_NAMED:
            self.first.append(f"{printable(str(place))} {printable(text, 300)}")


class Books:
    """What the events so far add up to. Feed events in order, then `close`."""

    def __init__(self, limit: int, skew_s: float = 0.0) -> None:
        self.limit = limit
        self._patience_s = 2 * REORDER_S + skew_s
        self.violations = Notes()
        self.calls = self.peak = self.retries = self.rate_limited = 0
        self._open: dict[str, tuple[LogPlace, str]] = {}
        self._lost: dict[str, tuple[float, set[str]]] = {}
        self._early: dict[str, Event] = {}
        self._ended: set[str] = set()
        self._cut: set[str] = set()
        self._nameless: list[LogPlace] = []
        self._retried: dict[tuple[str, ...], tuple[LogPlace, int | None]] = {}

    @property
    def open_calls(self) -> int:
        return len(self._open) + len(self._nameless)

    def feed(self, event: Event) -> None:
        match event.name:
            case "acquired":
                self._acquired(event)
            case "released":
                self._released(event)
            case "cut":
                self._cut.add(str(event.fields.get("lease")))
            case "node_lost":
                node = str(event.fields.get("node"))
                leases = {lease for lease, (_, holder) in self._open.items() if holder == node}
                for lease in leases:
                    del self._open[lease]
                _, before = self._lost.get(node, (0.0, set()))
                self._lost[node] = (event.time_s + self._patience_s + NODE_LOST_S, before | leases)
            case "retry":
                status = event.fields.get("status_code")
                self.retries += 1
                self.rate_limited += status == 429
                self._retried[_unit(event.fields)] = (event.place, status)
            case "job_completed" if event.fields.get("status") == "cancelled":
                job = str(event.fields.get("job"))
                for unit in [unit for unit in self._retried if unit[0] == job]:
                    del self._retried[unit]
            case name if name in _OUTCOMES:
                self._retried.pop(_unit(event.fields), None)
        self._forget_early(event.time_s)

    def close(self) -> None:
        """The log has ended: nothing may be left open."""
        self._forget_early(float("inf"))
        for lease, (place, _) in self._open.items():
            if lease in self._cut:  # it counts until its deadline, which may be later than the log
                continue
            self.violations.add(place, f"lease {lease} was never released")
        for place in self._nameless:
            self.violations.add(place, "this call was never released")
        for unit, (place, status) in self._retried.items():
            self.violations.add(place, f"retry after {status} of unit {' '.join(unit)} has no outcome")

    def _acquired(self, event: Event) -> None:
        self.calls += 1
        lease = event.fields.get("lease")
        until_s, leases = self._lost.get(str(event.fields.get("node")), (0.0, set()))
        if lease is not None and event.time_s <= until_s:
            leases.add(str(lease))
        elif lease is None:
            self._nameless.append(event.place)
        elif (end := self._early.pop(str(lease), None)) is not None:
            if end.place.file == event.place.file and end.place.line < event.place.line:
                self.violations.add(event.place, f"lease {lease} was released before, at {end.place}")
            return
        elif str(lease) in self._open:
            self.violations.add(event.place, f"lease {lease} was acquired again, first at {self._open[str(lease)][0]}")
        else:
            self._open[str(lease)] = (event.place, str(event.fields.get("node")))
        self.peak = max(self.peak, self.open_calls)
        told = event.fields.get("active_slots")
        if self.open_calls > self.limit:
            self.violations.add(event.place, f"{self.open_calls} calls open, the limit is {self.limit}")
        elif isinstance(told, int) and told > self.limit:
            self.violations.add(event.place, f"tells of {told} active slots, the limit is {self.limit}")

    def _released(self, event: Event) -> None:
        lease = event.fields.get("lease")
        self._cut.discard(str(lease))
        _, leases = self._lost.get(str(event.fields.get("node")), (0.0, set()))
        if lease is not None and event.fields.get("reason"):
            if self._open.pop(str(lease), None) is not None or lease in leases:
                self._ended.add(str(lease))
            leases.discard(str(lease))
        elif lease in self._ended:
            self._ended.discard(str(lease))
        elif lease in leases:
            leases.discard(str(lease))
        elif lease is not None:
            if self._open.pop(str(lease), None) is None:
                self._early[str(lease)] = event
        elif self._nameless:
            self._nameless.pop()
        else:
            self.violations.add(event.place, "released more than was acquired")

    def _forget_early(self, now_s: float) -> None:
        while self._early:
            lease, event = next(iter(self._early.items()))
            if event.time_s + self._patience_s >= now_s:
                return
            del self._early[lease]
            self.violations.add(event.place, f"lease {lease} was released but not acquired, or twice")


def _unit(fields: dict[str, Any]) -> tuple[str, ...]:
    names = ("job", "unit") if "unit" in fields else ("job", "agent", "dimension", "item", "replicate")
    return tuple(str(fields.get(name, "")) for name in names)


@dataclass(slots=True)
class LogReading:
    """What was read, and what could not be."""

    files: int = 0
    lines: int = 0
    events: int = 0
    broken: Notes = field(default_factory=Notes)


def events_of(path: Path, reading: LogReading, skew_s: float) -> Iterator[Event]:
    """The events of one file, in order of time; raises OSError when it cannot be opened."""
    waiting: list[tuple[float, int, Event]] = []
    reading.files += 1
    newest = float("-inf")
    for event in _shifted(_read(path, reading), skew_s):
        heapq.heappush(waiting, (event.time_s, event.place.line, event))
        newest = max(newest, event.time_s)
        while waiting[0][0] < newest - (REORDER_S + NODE_LOST_S + skew_s):
            yield heapq.heappop(waiting)[-1]
    while waiting:
        yield heapq.heappop(waiting)[-1]


def _shifted(events: Iterable[Event], skew_s: float) -> Iterator[Event]:
    """Ends of calls move to the earliest moment at which they may have happened."""
    for event in events:
        if event.name == "node_lost":
            yield event._replace(time_s=event.time_s - NODE_LOST_S - skew_s)
        elif event.name == "released" and "lease" in event.fields:
            yield event._replace(time_s=event.time_s - skew_s)
        else:
            yield event


def _read(path: Path, reading: LogReading) -> Iterator[Event]:
    time_s = 0.0
    number = 0
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        lines = _lines(gzip.GzipFile(fileobj=raw) if packed else raw)
        while True:
            number += 1
            place = LogPlace(str(path), number)
            try:
                line = next(lines)
            except StopIteration:
                return
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                reading.broken.add(place, f"the archive is damaged from here on: {error}")
                return
            reading.lines += 1
            if not line.strip():
                continue
            fields = _fields(line)
            if fields is None:
                reading.broken.add(place, "is no event")
                continue
            reading.events += 1
            time_s = _seconds(fields.get("ts"), time_s)
            yield Event(time_s, place, fields["event"], fields)


def _lines(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    """Lines; of one that is too long only a beginning, which is still too long."""
    while line := file.readline(MAX_LINE_BYTES + 1):
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = file.readline(MAX_LINE_BYTES + 1)
        yield line


def _fields(line: bytes) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(line) if len(line) <= MAX_LINE_BYTES else None
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) and isinstance(fields.get("event"), str) else None


def _seconds(ts: object, before_s: float) -> float:
    if isinstance(ts, str):
        try:
            return datetime.fromisoformat(ts).timestamp()
        except ValueError:
            return before_s
    return before_s


@dataclass(frozen=True, slots=True)
class ReplayResult:
    reading: LogReading
    books: Books

    @property
    def proved(self) -> bool:
        """Whether the log shows calls, and no violation."""
        return self.books.calls > 0 and not self.books.violations.count

    def __str__(self) -> str:
        reading, books = self.reading, self.books
        lines = [
            f"{reading.files} file(s), {reading.lines} lines, {reading.events} events, {books.calls} calls, "
            f"{books.retries} retries ({books.rate_limited} after 429)"
        ]
        if reading.broken.count:
            lines.append(f"not readable, so not proved: {reading.broken.count} line(s)")
            lines += [f"  {note}" for note in reading.broken.first]
        if books.violations.count:
            lines.append(f"VIOLATED: {books.violations.count} time(s)")
            lines += [f"  {note}" for note in books.violations.first]
        elif not books.calls:
            lines.append("NOTHING PROVED: no call was acquired in these logs")
        else:
            lines.append(
                f"HOLDS: at most {books.peak} calls open of {books.limit} allowed, all released, every retry resolved"
            )
        return "\n".join(lines)


def replay(paths: Sequence[Path], limit: int, skew_s: float = 0.0) -> ReplayResult:
    """Replay the logs against `limit`; a file named twice is read once. Raises OSError when one cannot be opened."""
    reading, books = LogReading(), Books(limit, skew_s)
    files = dict.fromkeys(path.resolve(strict=True) for path in paths)
    streams = [events_of(path, reading, skew_s) for path in files]
    for event in heapq.merge(*streams, key=lambda event: (event.time_s, event.name != "released")):
        books.feed(event)
    books.close()
    return ReplayResult(reading, books)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: proved; 1: violated; 2: nothing proved, or a file could not be read."""
    parser = argparse.ArgumentParser("python -m lab.replay", description="Prove from logs that the limit held.")
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="JSON lines, of any node; .gz too")
    parser.add_argument("--limit", type=int, required=True, help="most calls that may have been open at once")
    parser.add_argument("--skew-s", type=float, default=0.0, help="how far the machines' clocks may lie apart, s")
    arguments = parser.parse_args(argv)
    if arguments.limit < 1 or not 0 <= arguments.skew_s < 3600:
        parser.error("--limit must be >= 1, and --skew-s between 0 and 3600")
    try:
        verdict = replay(arguments.logs, arguments.limit, arguments.skew_s)
    except OSError as error:
        sys.stderr.write(f"{printable(str(error))}\n")
        return 2
    sys.stdout.write(f"{verdict}\n")
    if verdict.books.violations.count:
        return 1
    return 0 if verdict.proved else 2


if __name__ == "__main__":
    sys.exit(main())
