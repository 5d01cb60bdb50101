"""Counts what trips the breaker of the default engine: consecutive failures."""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.policy.events import Done


@dataclass(slots=True)
class Failures:
    """Consecutive failures. `since` is the send time of the first in the row; only an answer to a later call ends
    it."""

    row: int = 0
    since: float | None = None

    def count(self, event: Done, at_floor: bool) -> int:
        """Count one outcome; returns the row's length. Refusals count only at the floor, where nothing is left to
        cut."""
        if event.failed or (event.was_refused and at_floor):
            self.row += 1
            self.since = event.sent_at if self.since is None else min(self.since, event.sent_at)
        elif not event.was_refused and (self.since is None or event.sent_at > self.since):
            self.row, self.since = 0, None
        return self.row
