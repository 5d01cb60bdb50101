"""A worker that can take work and cannot report it is suspended: it takes nothing more, and says so.

Each unit that it took would be called, paid for and lost, and taken from those who could have reported it. A worker
that an operator has cordoned takes nothing either, until that is taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

FAILURES = 3
"""Reports that failed one after the other, each for a reason that waiting cannot mend."""


class Suspension:
    """One process's; any thread. `suspended` is called when units that wait here are others' from now on. A fault lasts
    until the process ends, a cordon until it is taken back."""

    def __init__(self) -> None:
        self.reason = ""
        """Why this worker takes nothing more; '' while it does."""
        self.cordon = ""
        """The order of an operator's that forbids it to take units; '' if there is none."""
        self.suspended: Callable[[], None] = lambda: None
        self._failures = 0

    def may_begin(self) -> bool:
        """Whether a call may begin now."""
        return not self.cordon

    @property
    def takes_units(self) -> bool:
        """Whether units may be taken from the broker."""
        return not self.reason and not self.cordon

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
