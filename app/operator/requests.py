"""Celery's requests for this application's tasks. The ledger decides what is revoked, not a worker's memory.

A worker that discarded a message because its id is in Celery's list (as after a restart with `--statedb`) would get it
again and again, since the ledger sends the messages of units that have not ended.
"""

from __future__ import annotations

from typing import Any

from celery.signals import task_revoked
from celery.worker.request import Request

from dicast.app.domain.opinion import ErrorKind
from dicast.app.pipeline.call_facts import TASK_END, NextSteps, TaskEnd
from dicast.app.pipeline.messages import EVALUATE
from dicast.workers.admission.request import AdmittedRequest, Lease
from dicast.workers.runtime.publishing import Dispatcher

_CUT: dict[str, Any] = {"terminated": True, "signum": None, "expired": False}
_CANCELLED = _CUT | {"terminated": False}


class _MonitoredRequest(Request):  # type: ignore[misc]
    """Reports to monitors from which queue the request came."""

    def __init__(self, *args: Any, eventer: Any = None, **options: Any) -> None:
        super().__init__(*args, eventer=eventer, **options)
        if isinstance(eventer, Dispatcher):
            eventer.comes(self)


class UnitRequest(_MonitoredRequest, AdmittedRequest):
    """The request of a unit. Terminating it cuts its call, or prevents one, and nothing else: other work for the unit
    (a claim, a result, the end of its page) is finished, and the ledger decides what is recorded.

    When it ends, it is reported to monitors and Celery's signals as revoked, unless its call had ended before.

    Celery's tracer takes every end for a success, since a chord counts units whatever their outcome. Monitors are sent
    what the ledger has: a unit that ended with an error as failed, and one that waits as retried. A unit that another
    worker is working on is reported by that worker.
    """

    _terminated = False
    _terminated_lease: Lease | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._task_end = self.request_dict[TASK_END] = TaskEnd()

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
        if type == "task-succeeded":
            if self._was_cut:
                type, fields = "task-revoked", _CUT
            elif self._task_end.steps is not None:
                type, fields = _end_event(self._task_end.steps, fields)
        if type:
            super().send_event(type, **fields)

    @property
    def _was_cut(self) -> bool:
        """Whether no call was made, or its answer was not waited for. Meaningful when the task has ended."""
        lease = self._terminated_lease
        return self._terminated and (lease is None or lease.outcome is None)


def _end_event(steps: NextSteps, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the event that reports a unit's end, with its fields; "" for no event. `fields` are those of a success."""
    if steps.retry:
        return "task-retried", {"exception": steps.summary, "traceback": ""}
    if not steps.counts:
        return "", {}
    if not steps.errors:
        return "task-succeeded", fields
    if set(steps.errors) == {ErrorKind.CANCELLED}:
        return "task-revoked", _CANCELLED
    return "task-failed", {"exception": steps.failure, "traceback": ""}


class ControlRequest(_MonitoredRequest):
    """The request of a control task. It may expire, but is never revoked, except for a job that was sent by name: that
    job is not in the ledger yet, and Celery revokes it."""

    def revoked(self) -> bool:
        if self.task.name == EVALUATE and not (self.args and isinstance(self.args[0], str)):
            return bool(super().revoked())
        if not self._already_revoked and self.expires and self.maybe_expire():
            self._announce_revoked("expired", False, None, True)
        return bool(self._already_revoked)
