"""A worker that can take work and cannot report it is suspended: it takes nothing more, and says so.

Each unit that it took would be called, paid for and lost, and taken from those who could have reported it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

FAILURES = 3
"""Reports that failed one after the other, each for a reason that waiting cannot mend."""


class Suspension:
    """One process's; any thread. `suspended` is called once, when it begins; it lasts until the process ends."""

    def __init__(self) -> None:
        self.reason = ""
        """Why this worker takes nothing more; '' while it does."""
        self.suspended: Callable[[], None] = lambda: None
        self._failures = 0

    def reported(self) -> None:
        """A report has arrived."""
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """A report could not be made, and will not be able to."""
        self._failures += 1
        if self._failures < FAILURES or self.reason:
            return
        self.reason = f"no report arrives: {error}"
        logger.critical("this worker takes no more units, %s", self.reason, extra={"event": "suspended"})
        self.suspended()
