"""A `celery beat` that reliably ends on SIGTERM.

Celery's own handler raises `SystemExit` wherever the program is. Python drops exceptions raised in a finalizer or in a
callback of a weak reference, and the beat would go on for ever. Here its loop is stopped as well.
"""

from __future__ import annotations

from signal import SIGINT, SIGTERM
from types import FrameType

from celery.apps.beat import Beat as CeleryBeat
from celery.beat import Service
from celery.platforms import signals


class BeatProgram(CeleryBeat):  # type: ignore[misc]
    """The first SIGTERM or SIGINT ends it within `beat_max_loop_interval`; a second one ends the process at once."""

    def install_sync_handler(self, service: Service) -> None:
        def leave(_number: int, _frame: FrameType | None) -> None:
            signals.reset(SIGTERM, SIGINT)
            service.stop()
            raise SystemExit  # ends a wait for the broker, or the sleep between two ticks

        signals.update({SIGTERM: leave, SIGINT: leave})
