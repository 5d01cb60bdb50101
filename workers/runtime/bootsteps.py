"""Worker boot steps: the node's beacon, from before the first message until after the last call."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from dicast.workers.nodes.beacon import Beacon, IdleDuties
from dicast.workers.system.allocator import share_one_arena


class NodeStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Announces the node. It is the first step to start and the last to stop."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._beacon: Beacon | None = None

    def include(self, worker: Any) -> None:
        """Insert this step first. Celery orders steps that do not require each other arbitrarily, and a node that left
        before its pool has drained would free the leases of calls that are still open."""
        worker.steps.insert(0, self)

    def start(self, worker: Any) -> None:
        share_one_arena()  # before there are threads that might have made more
        app = worker.app
        app.registry.announce(app.node, app.width.sample())
        self._beacon = Beacon(
            app.registry_maker(),
            app.node,
            app.width.sample,
            lambda: getattr(worker.consumer, "duties", None) or IdleDuties(),
        )
        worker.wake_beacon = self._beacon.wake
        self._beacon.start()

    def stop(self, worker: Any) -> None:
        if self._beacon is not None:
            self._beacon.stop()

    terminate = stop
