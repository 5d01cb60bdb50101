"""The work that no message asks for: due messages, dead nodes, stuck pages and jobs.

Every worker publishes due messages, several times a second. The rest is done at the beat's ticks; where no beat runs,
the workers do it themselves, one at a time. Every step may be taken twice and by several workers at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar

from dicast.app.ledger.ledger import Ledger
from dicast.app.pipeline.dead_nodes import DeadNodes
from dicast.app.pipeline.due import DueMessages
from dicast.app.pipeline.messages import is_away
from dicast.app.pipeline.recovery import Adoption, Recovery
from dicast.app.pipeline.sweep import Sweeper
from dicast.app.pipeline.unserved import MissingPools

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Governing(Protocol):
    async def govern(self) -> None:
        """Have the governor decide on every pool's limits."""


class Nodes(Protocol):
    """See `dicast.app.cluster.cluster.Cluster`."""

    def hand_on(self) -> None:
        """Return messages that wait at busy nodes to their queues, for idle nodes. Blocks."""


class Reports(Protocol):
    """See `dicast.app.pipeline.announce.ProgressReports`."""

    async def store(self) -> None:
        """Store the progress of all running jobs."""


class Beat:
    """The work of the beat's ticks, whoever does it. Without `nodes`, messages that wait at busy nodes stay there;
    without `progress`, the progress of jobs is not stored."""

    def __init__(
        self, ledger: Ledger, adoption: Adoption, dead_nodes: DeadNodes, sweeper: Sweeper, pools: Governing,
        nodes: Nodes | None = None, progress: Reports | None = None,
    ) -> None:  # fmt: skip
        self._ledger, self._adoption, self._dead_nodes = ledger, adoption, dead_nodes
        self._sweeper, self._pools, self._nodes, self._progress = sweeper, pools, nodes, progress

    async def tick(self) -> None:
        """Do the work of one housekeeping tick."""
        await self._ledger.led(self._ledger.intervals.beat_silent_ms)
        await _survive_outage(self._adoption.adopt)  # before other nodes get these units and call again
        await _survive_outage(self._dead_nodes.deregister)
        await _survive_outage(self._spread)
        await self._sweeper.sweep()
        if self._progress is not None:
            await _survive_outage(self._progress.store)

    async def _spread(self) -> None:
        if self._nodes is not None:
            await asyncio.to_thread(self._nodes.hand_on)

    async def govern(self) -> None:
        """Do the work of one governor tick."""
        await self._pools.govern()

    async def stand_in(self) -> None:
        """Do the work of both ticks if no beat has ticked for a while and no other worker has taken its place."""
        if await _survive_outage(self._ledger.lead, self._ledger.intervals.beat_silent_ms):
            await _survive_outage(self.tick)
            await _survive_outage(self.govern)


class Housekeeper:
    """One worker's part of the housekeeping."""

    def __init__(
        self,
        due: DueMessages,
        adoption: Adoption,
        recovery: Recovery,
        missing_pools: MissingPools,
        beat: Beat,
        due_every_s: float,
    ) -> None:
        self._due, self._adoption, self._recovery = due, adoption, recovery
        self._missing_pools, self._beat, self._due_every_s = missing_pools, beat, due_every_s

    async def run(self) -> None:
        """Publish what is due and stand in for a missing beat, until cancelled."""
        rounds_per_check = max(1, round(1 / self._due_every_s))
        while True:
            for _ in range(rounds_per_check):
                await asyncio.sleep(self._due_every_s)
                await _survive_outage(self._due.publish)
            await _survive_outage(self._adoption.adopt)
            await _survive_outage(self._recovery.remember)
            await _survive_outage(self._missing_pools.announce_pools)
            await self._beat.stand_in()


async def _survive_outage(step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """Run one step and log its errors, so that an unavailable store or broker does not end the housekeeper: the step is
    tried again in the next round."""
    try:
        return await step(*args, **kwargs)
    except Exception as error:
        if is_away(error):
            logger.warning("housekeeping waits for the store or the broker: %s", error)
        else:  # a fault of this program must not keep the other steps from being taken
            logger.exception("housekeeping could not %s", step.__name__)
    return None
