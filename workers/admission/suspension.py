"""Suspends a worker that cannot report results: it takes no more units, and logs that.

Each unit that it took would be called, paid for and lost, and taken from workers that could have reported it. A worker
that an operator has cordoned takes no units either, until it is uncordoned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

FAILURES = 3
"""The number of reports that must fail in a row, each for a reason that waiting cannot mend."""


class Suspension:
    """The suspension of one process; safe to use from any thread.

    `suspended` is called when the units that wait here should go to other workers. A fault lasts until the process
    ends, a cordon until it is taken back.
    """

    def __init__(self) -> None:
        self.reason = ""
        """Why this worker takes no more units; '' while it takes some."""
        self.cordon = ""
        """The operator's order that forbids it to take units; '' if there is none."""
        self.suspended: Callable[[], None] = lambda: None
        self._failures = 0

    def may_begin(self) -> bool:
        """Return whether a call may begin now."""
        return not self.cordon

    @property
    def takes_units(self) -> bool:
        """Whether units may be taken from the broker."""
        return not self.reason and not self.cordon

    def reported(self) -> None:
        """Note that a report has arrived."""
        self._failures = 0

    def failed(self, error: Exception) -> None:
        """Note that a report could not be made, and that retrying it will not help."""
        self._failures += 1
        if self._failures < FAILURES or self.reason:
            return
        self.reason = f"no report arrives: {error}"
        logger.critical("this worker takes no more units, %s", self.reason, extra={"event": "suspended"})
        self.suspended()
