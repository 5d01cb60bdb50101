"""The Celery tasks: thin wrappers of the pipeline.

Messages carry ids; the ledger holds what they stand for.
Control tasks wait for the store: if they gave up, only the housekeeping would find their work, half a minute later.

evaluate            a job: its result is the job's report, its task id the job's id
deliver             an ended job's report, for what a canvas has follow it
judge_dimension     one unit, by a judge of a pool's queue
judge_batch         all dimensions of one agent and item in one call
gather_page         a page's chord body: its results leave the store for files
plan_lane           publishes the next pages of a lane
finish_job          the report
housekeeping        the beat's tick: due messages, dead nodes, stuck pages and jobs
govern              the beat's other tick: each pool's limits are decided on
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Task
from celery.exceptions import Ignore, TaskRevokedError
from redis.exceptions import RedisError

from dicast.app import logs
from dicast.app.application import app
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.text import printable
from dicast.app.ledger.client import JobLost, UnknownJob
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Ended, MessageId
from dicast.app.pipeline import calling_options, messages
from dicast.app.pipeline.call_facts import TASK_END
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE, is_away
from dicast.app.pipeline.record import retry_until_available
from dicast.workers.runtime.loop_bridge import off_loop

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from datetime import datetime

    from celery.result import AsyncResult

    from dicast.app.assembly import Services


def services() -> Services:
    """Return the parts of the running worker's loop. They are loaded with the first task: submitters need none of
    them."""
    from dicast.app.assembly import services as of_this_loop  # noqa: PLC0415

    return of_this_loop()


class Controlling(Task):  # type: ignore[misc]
    """A control task, which the ledger asks for and nobody revokes."""

    Request = "dicast.app.operator.requests:ControlRequest"


class Ticking(Controlling):
    """A task of the beat. These come twice a second and would flood a monitor, so they send no events."""

    send_events = False


class Evaluate(Controlling):
    """`evaluate.delay(job)` stores the job in the ledger and sends its id alone."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task in a worker. Raises TypeError if it is called as a function."""
        if self.request.called_directly:
            raise TypeError("evaluate is a task: evaluate.delay(job).get() gives the report, `dicast run` does it here")
        return self.run(*args, **kwargs)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Raise TypeError: a job needs workers and the store. `task_always_eager` is refused for the same reason."""
        raise TypeError(
            "evaluate cannot run eagerly: a job needs workers; use evaluate.delay(job), or `dicast run --local`"
        )

    def delay(self, job: EvaluationJob | Mapping[str, Any] | str) -> AsyncResult:
        """Submit a job and return at once; `.get()` of the answer waits for the report. See `apply_async`."""
        return self.apply_async((job,))

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, producer: Any = None, *,
        countdown: float | None = None, eta: datetime | None = None, expires: float | datetime | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Submit a job: an `EvaluationJob`, a dict of one, or the id of a job that is in the ledger already.

        The same job again is the same job. A job without an id gets `task_id` for one; the result can be waited for
        under both. `countdown` and `eta` let it start later, `expires` not at all if it has not been started by then;
        links, groups, chains and chords work as with any task, the report being the result.

        Before anything is sent it raises TypeError for what is no job, `InvalidJob`, `JobRefused` (both ValueErrors),
        `UnknownPool`, `UnknownJob`, `JobConflict` or `DatasetError`.
        """
        job = _only_job(*(args or ()), **(kwargs or {}))
        calling_options.check(options, {CONTROL_QUEUE, app.names.qualify(CONTROL_QUEUE)})  # before anything is stored
        wait_s = calling_options.delay_s(app, countdown, eta)
        expires_in_s = calling_options.expires_s(app, expires)
        # In a worker, as the next task of a chain, the store's client must not hold up the loop.
        job_id = off_loop(_submitted, job, task_id, wait_s, expires_in_s)
        continuation = calling_options.Continuation.taken_from(options, task_id, job_id)
        if continuation is not None:
            off_loop(app.ledger.continue_with, job_id, continuation.task_id, continuation.dumps())
        if not wait_s:
            super().apply_async((job_id,), {}, job_id, producer, argsrepr=f"({job_id!r},)", **options)
        return self.AsyncResult(task_id or job_id)


def _submitted(job: Any, task_id: str | None, wait_s: float, expires_in_s: float | None) -> str:
    """Submit a job, unless it is the id of one, and return its id."""
    if isinstance(job, str):
        app.ledger.status(job)  # or it would be waited for without end
        return job
    if task_id is not None:
        if isinstance(job, EvaluationJob):
            job = job if job.id is not None else job.model_copy(update={"id": task_id})
        elif job.get("id") is None:
            job = {**job, "id": task_id}
    return app.submit(job, start_in_s=wait_s, expires_in_s=expires_in_s)


def _only_job(*args: Any, **kwargs: Any) -> Any:
    """Return the one argument that `evaluate` takes. Raises TypeError for any other number or name."""
    takes = "evaluate takes one job: an EvaluationJob, a dict of one, or a submitted job's id"
    if len(args) + len(kwargs) != 1:
        names = "".join(f", {name}=" for name in kwargs)
        raise TypeError(f"{takes}; got {len(args) + len(kwargs)} arguments{names and f' ({names[2:]})'}")
    if kwargs and "job" not in kwargs:
        raise TypeError(f"{takes}; it is called job, not {next(iter(kwargs))}")
    job = args[0] if args else kwargs["job"]
    if not isinstance(job, str | Mapping | EvaluationJob):
        raise TypeError(f"{takes}; got {printable(repr(job), 60)}")
    return job


async def _record_trouble(job_id: str, error: Exception) -> None:
    """Record why a job cannot be started. If that fails too, it is only logged, and is no result of the job."""
    try:
        await retry_until_available(lambda: services().faults.note(job_id, error))
    except Exception:  # the record is for people; the job is tried again without it, too
        logger.exception("what keeps job %s from going on is not on record", job_id, extra={"job": job_id})


@app.task(base=Evaluate, bind=True, name=messages.EVALUATE, queue=CONTROL_QUEUE)
async def evaluate(self: Any, job: EvaluationJob | Mapping[str, Any] | str) -> dict[str, Any]:
    """Judge a job: items x agents x dimensions x replicates.

        report = evaluate.delay(job).get()

    `job` is an `EvaluationJob`, a dict of one (docs/data-model.md), or the id of a job that was submitted. The result
    is the report, as a dict; `dicast.load_opinions` reads the opinions. In a worker, where this runs, `job` is the id:
    the task starts the job, and its result is stored when the job completes.
    """
    if not isinstance(job, str):  # sent by name, as by `celery call` or by a program without Dicast
        self.apply_async((job,), task_id=self.request.id)
        raise Ignore
    try:
        await retry_until_available(lambda: services().starter.start(job))
    except UnknownJob:
        raise
    except Exception as error:
        # A failure would be the job's result, though the housekeeping starts it again, or gives it up with the reason.
        if is_away(error):
            logs.store_away(error, job=job)
        else:
            logger.exception("job %s cannot be started", job, extra={"job": job})
            await _record_trouble(job, error)
    else:
        with contextlib.suppress(RedisError, OSError):  # the housekeeping tells it a little later
            await services().progress.store([job])
    raise Ignore  # its result is stored when the job completes


@app.task(base=Controlling, name=calling_options.DELIVER, queue=CONTROL_QUEUE)
async def deliver(job_id: str) -> dict[str, Any]:
    """Return an ended job's report as this task's result, for the rest of a canvas. Raises `JobLost`, or Celery's
    `TaskRevokedError`."""
    end = Ended.from_record(await retry_until_available(lambda: services().ledger.progress(job_id)))
    if end is None or end.lost:
        raise JobLost(job_id)
    if end.revoked:
        raise TaskRevokedError(end.revoked)
    return dict(end.report)


async def _judge(self: Any, ref: PageRef, token: str, deployment: int) -> str:
    service = services()
    came_back = (self.request.get("delivery_info") or {}).get("redelivered")
    outcome = await service.judge.judge(
        ref, MessageId.parse(token), self.request.get("lease"), deployment, came_back=bool(came_back)
    )
    if (end := self.request.get(TASK_END)) is not None:
        end.steps = outcome
    if outcome.follow_ups:
        job = await service.jobs.get(ref.job, ref.incarnation)
        assert job is not None
        service.messages.join_chord(self, job, ref, outcome.follow_ups, deployment)
    if outcome.plan:
        await service.messages.plan(ref.job, ref.incarnation, ref.lane)
    if outcome.gather:
        await service.messages.gather(ref)
    if not outcome.counts:
        # Its message comes again, and counts then. Celery's Ignore says the same, at the price of a traceback.
        self.request.chord = None
    return outcome.summary


class Gated(Task):  # type: ignore[misc]
    """A task that enters the execution pool through its pool's admission gate."""

    gated = True
    Request = "dicast.app.operator.requests:UnitRequest"
    acks_late = True
    ignore_result = True


@app.task(base=Gated, bind=True, name=messages.JUDGE_DIMENSION)
async def judge_dimension(
    self: Any, job_id: str, incarnation: str, lane: int, page: int, token: str, deployment: int = 0
) -> str:
    return await _judge(self, PageRef(job_id, incarnation, lane, page), token, deployment)


@app.task(base=Gated, bind=True, name=messages.JUDGE_BATCH)
async def judge_batch(
    self: Any, job_id: str, incarnation: str, lane: int, page: int, token: str, deployment: int = 0
) -> str:
    return await _judge(self, PageRef(job_id, incarnation, lane, page), token, deployment)


@app.task(base=Controlling, name=messages.GATHER_PAGE, queue=CONTROL_QUEUE, ignore_result=True)
async def gather_page(job_id: str, incarnation: str, lane: int, page: int) -> None:
    ref = PageRef(job_id, incarnation, lane, page)
    gathered = await retry_until_available(lambda: services().gatherer.gather(ref))
    for planned in gathered.lanes(lane):
        await retry_until_available(partial(services().lanes.plan, job_id, incarnation, planned))
    if gathered.finish:
        await services().messages.finish(job_id)


@app.task(base=Controlling, name=messages.PLAN_LANE, queue=CONTROL_QUEUE, ignore_result=True)
async def plan_lane(job_id: str, incarnation: str, lane: int) -> None:
    await retry_until_available(lambda: services().lanes.plan(job_id, incarnation, lane))


@app.task(base=Controlling, name=messages.FINISH_JOB, queue=CONTROL_QUEUE, ignore_result=True)
async def finish_job(job_id: str) -> None:
    await retry_until_available(lambda: services().gatherer.finish(job_id))


@app.task(base=Ticking, name=messages.HOUSEKEEPING, queue=BEAT_QUEUE, ignore_result=True)
async def housekeeping() -> None:
    await services().beat.tick()


@app.task(base=Ticking, name=messages.GOVERNOR, queue=BEAT_QUEUE, ignore_result=True)
async def govern() -> None:
    await services().beat.govern()
