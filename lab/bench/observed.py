"""What the provider's own log says of a run. Pure: entries in, figures out; times are seconds on its clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Entry = Mapping[str, Any]
BIN_S = 0.5


class Cap(NamedTuple):
    """Calls served at once: `first`, and from the `after`-th good answer on `then`."""

    first: int
    after: int | None = None
    then: int = 0


class Observed(NamedTuple):
    """`used_s` are seconds of calls served, `offered_s` what the cap allowed, from the first call to the last's end."""

    calls: int
    answered: int
    refused: int
    cut_off: int
    most_open: int
    wall_s: float
    used_s: float
    offered_s: float | None

    @property
    def capacity(self) -> float | None:
        """The share of what was offered that was used."""
        return self.used_s / self.offered_s if self.offered_s else None


def observe(entries: Sequence[Entry], cap: Cap | None = None) -> Observed:
    """Sum a log up. Calls still open count until the last end that is known; an empty log is an error."""
    start = min(entry["arrival"] for entry in entries)
    end = max(entry["end"] for entry in entries if entry["end"] is not None)
    statuses = [entry["status"] for entry in entries]
    return Observed(
        calls=len(entries),
        answered=statuses.count(200),
        refused=statuses.count(429) + statuses.count(529),
        cut_off=statuses.count(0),
        most_open=max(entry["open"] for entry in entries),
        wall_s=end - start,
        used_s=sum(_end(entry, end) - entry["arrival"] for entry in entries if entry["accepted"]),
        offered_s=None if cap is None else _offered_s(entries, cap, start, end),
    )


def curve(entries: Sequence[Entry]) -> list[float]:
    """Mean number of calls being served in each `BIN_S` from the first call on."""
    start = min(entry["arrival"] for entry in entries)
    end = max(entry["end"] for entry in entries if entry["end"] is not None)
    bins = [0.0] * (int((end - start) / BIN_S) + 1)
    for entry in entries:
        if entry["accepted"]:
            left, right = entry["arrival"] - start, _end(entry, end) - start
            for number in range(int(left / BIN_S), int(right / BIN_S) + 1):
                bins[number] += max(0.0, min(right, (number + 1) * BIN_S) - max(left, number * BIN_S)) / BIN_S
    return [round(value, 2) for value in bins]


def _end(entry: Entry, last: float) -> float:
    return float(last if entry["end"] is None else entry["end"])


def _offered_s(entries: Sequence[Entry], cap: Cap, start: float, end: float) -> float:
    good = sorted(entry["end"] for entry in entries if entry["status"] == 200)
    if cap.after is None or len(good) < cap.after:
        return cap.first * (end - start)
    cut = good[cap.after - 1]
    return float(cap.first * (cut - start) + cap.then * (end - cut))
