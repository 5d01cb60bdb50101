"""Records what the provider has seen. Tests and benchmarks rely on this, not on what the callers report."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

import orjson


class CallMeter:
    """Calls open and being served over time, beside the capacity offered. Times are seconds on one steady clock."""

    def __init__(self) -> None:
        self.open = 0
        self.serving = 0
        self.reset()

    def reset(self) -> None:
        """Forget the past; what is open stays open."""
        self.most_open = self.open
        self.most_serving = self.serving
        self.used_s = 0.0
        self.offered_s = 0.0
        self._cap = 0
        self._at: float | None = None

    def arrive(self, now: float, cap: int | None) -> None:
        self.advance(now, cap)
        self.open += 1
        self.most_open = max(self.most_open, self.open)

    def serve(self) -> None:
        """Count the call that has just arrived as accepted."""
        self.serving += 1
        self.most_serving = max(self.most_serving, self.serving)

    def leave(self, now: float, cap: int | None, *, served: bool) -> None:
        self.advance(now, cap)
        self.open -= 1
        self.serving -= served

    def advance(self, now: float, cap: int | None) -> None:
        """Add up what was used and offered since the last change; without a cap nothing is offered."""
        if self._at is not None and self._cap:
            self.used_s += self.serving * (now - self._at)
            self.offered_s += self._cap * (now - self._at)
        self._at, self._cap = now, cap or 0


class CallRecord:
    """Counters, and a bounded log of every request, also written to a file as one JSON object a line."""

    def __init__(self, size: int, path: str | None) -> None:
        self._size = size
        self._file = None if path is None else Path(path).open("ab", buffering=0)  # noqa: SIM115  closed by close()
        self.reset()

    def reset(self) -> None:
        self.entries: deque[dict[str, Any]] = deque(maxlen=self._size)
        self.statuses: Counter[int] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.calls = 0
        self.accepted = 0

    def begin(self, entry: dict[str, Any]) -> None:
        self.calls += 1
        entry["number"] = self.calls
        self.entries.append(entry)

    def end(self, entry: dict[str, Any]) -> None:
        """Record that a request has ended. Status 0: the caller hung up before an answer."""
        self.statuses[entry["status"]] += 1
        if self._file:
            self._file.write(orjson.dumps(entry) + b"\n")

    def counts(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "accepted": self.accepted,
            "by_status": {str(status): count for status, count in sorted(self.statuses.items())},
            "refusals": dict(self.refusals),
            "faults": dict(self.faults),
            "tokens": {kind: self.tokens[kind] for kind in ("input", "output", "charged")},
        }

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None
