"""Whether the units that wait for a pool are the last ones. Pure: time is an argument."""

from __future__ import annotations

ROUNDS = 3
"""So many of the pool's limits are done in about the time after which a refused unit may be called again, where a call
takes half a second; of slower calls others are open that long anyway."""
LONGEST_S = 2.0
"""A queue that has been short for so long since it was last long is filled as it is emptied, or by many small jobs: the
limit has to grow for these, too."""


class QueueEnd:
    """One gate's. No limit is tried out with a queue's last units, for whichever is refused ends after all others."""

    def __init__(self) -> None:
        self._near_since: float | None = None

    def is_near(self, waiting: int, limit: int, now: float) -> bool:
        """Of so many units that wait, here and in the queue, under this limit (0: not known yet); `now` in seconds."""
        if waiting >= ROUNDS * limit:
            self._near_since = None
            return False
        if self._near_since is None:
            self._near_since = now
        return now < self._near_since + LONGEST_S
