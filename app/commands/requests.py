"""Celery's requests of this application's tasks: what is revoked is decided by the ledger, not by a worker's memory.

A worker that discarded a message because its id is in Celery's list (as after a restart with `--statedb`) would get it
again and again, for the ledger sends what has no end.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from celery.worker.request import Request
from celery.worker.state import task_ready

from dicast.app.pipeline.messages import EVALUATE
from dicast.workers.admission.request import AdmittedRequest
from dicast.workers.runtime.task_events import Dispatcher


class _Told(Request):  # type: ignore[misc]
    """Monitors are told from which queue it came."""

    def __init__(self, *args: Any, eventer: Any = None, **options: Any) -> None:
        super().__init__(*args, eventer=eventer, **options)
        if isinstance(eventer, Dispatcher):
            eventer.comes(self)


class UnitRequest(_Told, AdmittedRequest):
    """A unit's. Terminating it cuts its call; what is recorded of it, and when its chord counts it, is the ledger's."""

    def revoked(self) -> bool:
        return bool(self._already_revoked)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        task_ready(self)
        self.send_event("task-revoked", terminated=terminated, signum=signum, expired=expired)
        self.acknowledge()
        self._already_revoked = True
        signals.task_revoked.send(
            self.task, request=self._context, terminated=terminated, signum=signum, expired=expired
        )


class ControlRequest(_Told):
    """Control work, which is worth nothing later when it has a time, and is never revoked. A job that was sent by name
    is not in the ledger yet, and so is Celery's to revoke."""

    def revoked(self) -> bool:
        if self.task.name == EVALUATE and not (self.args and isinstance(self.args[0], str)):
            return bool(super().revoked())
        if not self._already_revoked and self.expires and self.maybe_expire():
            self._announce_revoked("expired", False, None, True)
        return bool(self._already_revoked)
