"""Whether a worker makes progress: not whether it answers pings, but whether it takes the work that waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

CHECK_EVERY_S = 5.0
STUCK_LOOKS = 6
"""A queue is stuck after this many checks in a row (30 s) at which work waited, there was room for it, and nothing was
taken. Checks are counted instead of time, so that a process that was frozen is not taken for a stuck one."""


class Remedy(Enum):
    NONE = "none"
    RECONNECT = "reconnect"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """The progress of one queue: messages taken so far, checks without progress, and whether the worker reconnected
    since."""

    taken: int = 0
    looks: int = 0
    reconnected: bool = False

    @property
    def stuck(self) -> bool:
        return self.looks >= STUCK_LOOKS or self.reconnected


def check_progress(before: QueueProgress, *, taken: int, waiting: bool, room: bool) -> tuple[QueueProgress, Remedy]:
    """Check one queue: `taken` messages so far, whether messages are `waiting`, and whether there is `room` for them.

    Rules, first match wins: something was taken, or nothing waits -> all is well; no room -> not the queue's fault,
    nothing changes; too few checks -> wait; first time -> a new connection; still no progress -> restart the worker.
    """
    if taken != before.taken or not waiting:
        return QueueProgress(taken), Remedy.NONE
    if not room:
        return before, Remedy.NONE
    after = replace(before, looks=before.looks + 1)
    if after.looks < STUCK_LOOKS:
        return after, Remedy.NONE
    if before.reconnected:
        return after, Remedy.RESTART
    return QueueProgress(taken, 0, reconnected=True), Remedy.RECONNECT
