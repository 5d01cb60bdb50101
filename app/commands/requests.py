"""Celery's requests of this application's tasks: what is revoked is decided by the ledger, not by a worker's memory.

A worker that discarded a message because its id is in Celery's list (as after a restart with `--statedb`) would get it
again and again, for the ledger sends what has no end.
"""

from __future__ import annotations

from typing import Any

from celery.signals import task_revoked
from celery.worker.request import Request

from dicast.app.pipeline.messages import EVALUATE
from dicast.workers.admission.request import AdmittedRequest, Lease
from dicast.workers.runtime.task_events import Dispatcher

_CUT: dict[str, Any] = {"terminated": True, "signum": None, "expired": False}


class _Told(Request):  # type: ignore[misc]
    """Monitors are told from which queue it came."""

    def __init__(self, *args: Any, eventer: Any = None, **options: Any) -> None:
        super().__init__(*args, eventer=eventer, **options)
        if isinstance(eventer, Dispatcher):
            eventer.comes(self)


class UnitRequest(_Told, AdmittedRequest):
    """A unit's. Terminating it ends its call, or lets none begin, and nothing else: what it has in hand besides (a
    claim, a result, the end of its page) is finished, and what is recorded of it is the ledger's.

    When it ends, monitors and Celery's signals are told that it was revoked, unless its call had ended before.
    """

    _terminated = False
    _terminated_lease: Lease | None = None

    def revoked(self) -> bool:
        return False

    def terminate(self, pool: Any, signal: Any = None) -> None:
        self._terminated, self._terminated_lease = True, self.lease
        if self.lease is not None:
            self.lease.forbid()

    def acknowledge(self) -> None:
        first = not self.acknowledged
        super().acknowledge()
        if first and self._was_cut:
            task_revoked.send(self.task, request=self._context, **_CUT)

    def send_event(self, type: str, **fields: Any) -> None:
        if self._was_cut and type == "task-succeeded":
            type, fields = "task-revoked", _CUT
        super().send_event(type, **fields)

    @property
    def _was_cut(self) -> bool:
        """Whether no call was made, or its answer not waited for. Asked when the task is over."""
        lease = self._terminated_lease
        return self._terminated and (lease is None or lease.outcome is None)


class ControlRequest(_Told):
    """Control work, which is worth nothing later when it has a time, and is never revoked. A job that was sent by name
    is not in the ledger yet, and so is Celery's to revoke."""

    def revoked(self) -> bool:
        if self.task.name == EVALUATE and not (self.args and isinstance(self.args[0], str)):
            return bool(super().revoked())
        if not self._already_revoked and self.expires and self.maybe_expire():
            self._announce_revoked("expired", False, None, True)
        return bool(self._already_revoked)
