"""Detects that the units waiting for a pool are the last ones. Pure: time is an argument."""

from __future__ import annotations

ROUNDS = 3
"""The end of a queue is near when fewer units wait than `ROUNDS` times the limit. With calls of half a second these
take about as long as a rate-limited unit waits for its next attempt; with slower calls, others are open that long
anyway."""
LONGEST_S = 2.0
"""A queue that stays short for longer than this is filled as fast as it is emptied, or by many small jobs. The limit
has to grow for these, too."""


class QueueEnd:
    """The end of one gate's queue. No higher limit is tried with a queue's last units, since a refused one would end
    after all others."""

    def __init__(self) -> None:
        self._near_since: float | None = None

    def is_near(self, waiting: int, limit: int, now: float) -> bool:
        """Return whether the end is near, with `waiting` units here and in the queue under `limit` (0: not known yet);
        `now` is in seconds."""
        if waiting >= ROUNDS * limit:
            self._near_since = None
            return False
        if self._near_since is None:
            self._near_since = now
        return now < self._near_since + LONGEST_S
