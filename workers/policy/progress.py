"""Is a worker getting on? Answering pings proves nothing: what counts is whether it takes the work that waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

LOOK_EVERY_S = 5.0
STUCK_LOOKS = 6
"""Looks in a row, 30 s, at which work waited, there was room for it, and nothing was taken. They are counted instead of
the time between, so that a process that was frozen is not taken for a stuck one."""


class Remedy(Enum):
    NONE = "none"
    RECONNECT = "reconnect"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue as a worker saw it: messages taken so far, looks without progress, and whether it reconnected since."""

    taken: int = 0
    looks: int = 0
    reconnected: bool = False

    @property
    def stuck(self) -> bool:
        return self.looks >= STUCK_LOOKS or self.reconnected


def look(before: QueueProgress, *, taken: int, waiting: bool, room: bool) -> tuple[QueueProgress, Remedy]:
    """One look at one queue: `taken` messages so far, whether messages are `waiting`, and whether there is `room`.

    Rules, first match wins: something was taken, or nothing waits -> all is well; no room -> not the queue's fault,
    nothing changes; too few looks -> wait; first time -> a new connection; still no progress -> restart the worker.
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
