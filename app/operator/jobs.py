"""The operations on a job, the same for the command line, asyncio programs and the HTTP interface."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from dicast.app.domain.price import cap_fields, checked_amount
from dicast.app.ledger.client import UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE, FINISH_JOB
from dicast.errors import DicastError

if TYPE_CHECKING:
    from dicast.app.application import Dicast
    from dicast.app.domain.report import Report


ANNOUNCED_IN_S, LOOK_S = 5.0, 0.05


class JobNotEnded(DicastError):
    """The operation needs a job that has ended; the message names its state."""

    problem = "job-not-ended"

    def __init__(self, job: str, state: str, what: str) -> None:
        super().__init__(f"job {job} is {state}; {what} when it has ended")


class BadJobId(DicastError, ValueError):
    """The id is no valid job id."""

    problem = "bad-job-id"


class ReportDamaged(DicastError):
    """The report among the files cannot be read."""

    problem = "report-damaged"


def send(dicast: Dicast, job_id: str) -> Exception | None:
    """Send a stored job's message. An error that keeps it from being sent is returned; the housekeeping then finds
    the job a little later."""
    try:
        dicast.send_task(EVALUATE, args=(job_id,), task_id=job_id, queue=CONTROL_QUEUE)
    except (OperationalError, RedisError) as error:
        return error
    return None


def cancel(dicast: Dicast, job_id: str) -> JobState:
    """Make no new calls for a job, and return its state before. Raises `UnknownJob`."""
    before, finish = dicast.existing_ledger.cancel(job_id)
    if finish:
        dicast.send_task(FINISH_JOB, args=(job_id,), queue=CONTROL_QUEUE)
    return before


def outcome_of_cancel(before: JobState) -> str:
    """Return the outcome, for the audit log, of cancelling a job that was in this state."""
    return "done" if before in (JobState.SUBMITTED, JobState.RUNNING) else "nothing to do"


class NoSuchCap(DicastError, ValueError):
    """A job that is resumed has no such cap, or its new one is no cap."""

    problem = "invalid-job"


def resume(
    dicast: Dicast, job_id: str, *, max_cost: str | None = None, max_tokens: int | None = None,
    max_calls: int | None = None,
) -> bool:  # fmt: skip
    """Have the units of an ended job that have no score judged. Returns False if every unit has its score. A cap that
    it has may be another one from now on.

    Raises `UnknownJob`, `JobNotEnded` or `NoSuchCap`.
    """
    try:
        caps = cap_fields(max_cost and checked_amount(max_cost), max_tokens, max_calls)
    except ValueError as error:
        raise NoSuchCap(f"max_cost {error}") from None
    if caps:
        spec, _ = dicast.existing_ledger.submitted_job(job_id)
        if missing := [name for name in caps if getattr(spec, name) is None]:
            raise NoSuchCap(f"job {job_id} was submitted without {missing[0]}, so its items are in their own order")
    status = dicast.existing_ledger.status(job_id)
    if status.state is JobState.COMPLETED and not status.counters["failed"] and status.done == status.units:
        return False
    before = dicast.ledger.resume(job_id, caps)
    if before not in (JobState.COMPLETED, JobState.CANCELLED):
        raise JobNotEnded(job_id, before, "a job can be resumed")
    dicast.backend.forget(job_id)  # those who wait for it now wait for the new report
    dicast.send_task(EVALUATE, args=(job_id,), task_id=job_id, queue=CONTROL_QUEUE)
    return True


def forget(dicast: Dicast, job_id: str) -> None:
    """Make the ledger forget an ended job, so that its id can be used for judging it anew. Its files stay until the
    later job begins, which moves them aside. Raises `UnknownJob` or `JobNotEnded`."""
    if not _delete_record(dicast, job_id, "it can be judged anew"):
        raise UnknownJob(job_id)


def _delete_record(dicast: Dicast, job_id: str, what: str = "it can be deleted") -> str:
    """Make the ledger forget an ended job. Returns its state before, '' if the ledger has no such job. Raises
    `JobNotEnded`."""
    until = time.monotonic() + ANNOUNCED_IN_S
    while (state := dicast.existing_ledger.delete(job_id)) == "unannounced":
        if time.monotonic() > until:
            raise JobNotEnded(job_id, "not announced yet to those who wait for it", what)
        time.sleep(LOOK_S)
    if state and not JobState(state).ended:
        raise JobNotEnded(job_id, state, what)
    if state:
        dicast.backend.forget(job_id)  # a later job of this id must not be answered with its result
    return state


def delete(dicast: Dicast, job_id: str) -> list[Path]:
    """Delete an ended job: its record in the ledger, its result, and its files with people's ratings, images and
    reports.

    Files of earlier jobs of the id that were moved aside stay, and are returned; so do uploads, which other jobs may
    use. The function may be killed and called again. Raises `UnknownJob`, `BadJobId` or `JobNotEnded`, OSError.
    """
    from dicast.app.reports.folders import earlier_folders, remove  # noqa: PLC0415

    try:
        recorded = bool(_delete_record(dicast, job_id))
        removed = remove(
            dicast.settings.results_dir, job_id, lambda: dicast.existing_ledger.incarnation(job_id) is None
        )
        if not recorded and not removed:
            raise UnknownJob(job_id)
        return earlier_folders(dicast.settings.results_dir, job_id)
    except ValueError as error:
        raise BadJobId(str(error)) from None


def filed_report(dicast: Dicast, unknown: UnknownJob) -> Report:
    """Return the report of a job that the ledger does not have, from the files. Raises `unknown` if there is none,
    `BadJobId` or `ReportDamaged`."""
    from pydantic import ValidationError  # noqa: PLC0415

    from dicast.app.reports.files import NoResults, read_report  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.folders import job_folder  # noqa: PLC0415

    try:
        return read_report(dicast.settings.results_dir, unknown.job)
    except NoResults:
        raise unknown from None
    except ValidationError:
        folder = job_folder(dicast.settings.results_dir, unknown.job)
        raise ReportDamaged(f"the ledger holds no job {unknown.job!r}, and the report in {folder} is damaged") from None
    except ValueError as error:
        raise BadJobId(str(error)) from None


def results_of(dicast: Dicast, job_id: str) -> tuple[Report, Path]:
    """Return a finished job's report, and the results folder with its files as seen from here.

    Raises `UnknownJob`, `BadJobId`, `JobNotEnded`, `ResultsAway` or `ReportDamaged`.
    """
    from dicast.app.domain.report import Report  # noqa: PLC0415
    from dicast.app.reports.collecting import results_root  # noqa: PLC0415  (takes long to load)

    try:
        status = dicast.existing_ledger.status(job_id)
    except UnknownJob as unknown:
        return filed_report(dicast, unknown), Path(dicast.settings.results_dir)
    if status.report is None:
        raise JobNotEnded(job_id, status.state, "there is something to export")
    report = Report.model_validate(status.report)
    return report, results_root(report, dicast.settings.results_dir)
