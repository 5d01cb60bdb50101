"""Ends pages and jobs: moves results from the store to files, and completes a job exactly once.

Files are written before the ledger is, and writing a page or a report twice gives the same files. A process that dies
in between therefore loses nothing: another one repeats the step.

A page that no disk takes lies in the store until its file is written, and its job waits for that. A job that is given
up, or cancelled, ends all the same: its pages are set aside in the store, which keeps them as long as the job's record.
They are written before the job's files are put together, or before it goes on when it is resumed, whichever is first.

`Announcer` and `ProgressReports` report a job's end and its progress to whoever waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson
from celery import Celery

from dicast.app import logs
from dicast.app.analysis import NoLibraries
from dicast.app.domain.cost import JobMoney, read_books
from dicast.app.domain.fingerprints import prompt_digest, template_digest
from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.plan import pieces
from dicast.app.domain.probes import measures
from dicast.app.domain.quote import Quote
from dicast.app.domain.report import BookedHeader, Report, ReportAgent, ReportDimension, ReportHeader
from dicast.app.ledger.client import JobLost
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Ended, FinishFailed, JobRecord, JobStanding, JobState
from dicast.app.pipeline.call_facts import Models, Stops, opinion_of
from dicast.app.pipeline.calling_options import Continuation
from dicast.app.pipeline.job_faults import DISK_TRIES, TRIES, files_trouble
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.messages import CONTROL_QUEUE, is_away
from dicast.app.pipeline.question import JobQuestions, can_answer
from dicast.app.pipeline.record import ITEMS_TOGETHER, ItemsGone, retry_until_available, stored_items
from dicast.app.reports import files
from dicast.app.reports.certificates import write_lock
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import own_folder
from dicast.app.reports.stored_items import keeps_ratings, set_aside, write_items
from dicast.app.tracing import NO_TRACES, Traces

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETENTION_S = 7 * 86_400
"""How long a job's record is kept after its end."""


class Announces(Protocol):
    """See `dicast.app.pipeline.gather.Announcer`."""

    def announce(self, job_id: str, end: Ended, continuations: Mapping[str, str]) -> None:
        """Announce the end of a job and send its continuations, by task id. Blocks; may be called twice."""


class Cancels(Protocol):
    """See `dicast.app.pipeline.job_faults.JobFaults`."""

    async def cancel(self, job_id: str, why: str) -> None:
        """Cancel the job with this reason, if it still exists."""


class WritesHtml(Protocol):
    """See `dicast.app.reports.html.beside.HtmlWriter`."""

    def write(self, folder: Path) -> None:
        """Have the page of the finished job in a folder written soon. Returns at once and raises nothing."""
        ...


@dataclass(frozen=True, slots=True)
class GatherResult:
    """What has to be done next: `finish` the job, `plan` the lane, and plan the `later` lanes: those of later stages,
    or all lanes of a job that asks a question."""

    finish: bool = False
    plan: bool = False
    later: Sequence[int] = ()

    def lanes(self, lane: int) -> list[int]:
        """Return the lanes to be planned now that a page of `lane` is gathered."""
        return [*([lane] if self.plan else []), *self.later]


@dataclass(frozen=True, slots=True)
class Extras:
    """What is made of a job's results beside its files. Without `html`, no HTML report is written; without `kept`, no
    opinion is kept for later jobs."""

    html: WritesHtml | None = None
    kept: KeptOpinions | None = None


class Gatherer:
    """Gathers pages and finishes jobs on one event loop."""

    def __init__(
        self, ledger: Ledger, results_dir: str, models: Models, stops: Stops, announcer: Announces, faults: Cancels,
        extras: Extras | None = None, tracer: Traces = NO_TRACES,
    ) -> None:  # fmt: skip
        self._tracer, self._extras = tracer, extras or Extras()
        self._ledger, self._results_dir = ledger, results_dir
        self._models, self._stops, self._announcer = models, stops, announcer
        self._faults = faults
        self._unwritten = UnwrittenPages(ledger, results_dir)
        self._finishing: set[str] = set()
        self._questions = JobQuestions(ledger)

    async def gather(self, ref: PageRef) -> GatherResult:
        """Move a page whose units have all ended to its files. Does nothing for a page that has open units, was
        gathered before, or belongs to an earlier job of this id."""
        job = await self._ledger.job(ref.job) if self._tracer is not NO_TRACES else None
        with self._tracer.span("gather page", job.traceparent if job else "", job=ref.job, page=ref.place):
            return await self._gather(ref)

    async def _gather(self, ref: PageRef) -> GatherResult:
        stages = await self._ledger.lane_stages(ref)
        page = await self._ledger.take_page(ref) if stages else None
        if page is None:
            return GatherResult()
        unwritten: Mapping[int, str] | None = {}
        if page:
            unwritten = await self._write_or_keep(ref, page)
        if unwritten is None:
            return GatherResult()
        if page:
            await self._keep(ref.job, page)
        finish, plan = await self._ledger.close_page(ref, len(stages), unwritten)
        if finish:
            return GatherResult(finish=True)
        if await self._ledger.has_open_question(ref.job):  # all lanes wait for each other's pages
            return GatherResult(later=range(len(stages)))
        return GatherResult(False, plan, [lane for lane, stage in enumerate(stages) if stage > stages[ref.lane]])

    async def _write_or_keep(self, ref: PageRef, page: dict[int, str]) -> Mapping[int, str] | None:
        """Write a page; return what the store has to keep because no disk takes it ({} if it is written), or None if it
        is to be tried again.

        An error that lasts is shown to those who watch the job. After an hour for the disk, or five tries for anything
        else, the job is cancelled with that reason. The pages of a cancelled job wait for no disk: the store keeps them
        until the job is finished or resumed.
        """
        try:
            await asyncio.to_thread(self._write, ref, page)
        except Exception as error:  # whatever it is, its job must end
            if is_away(error):
                raise
            if not await self._record_unwritten(ref, error):
                return None
            if isinstance(error, OSError):
                return page
        else:
            return {}
        try:
            await asyncio.to_thread(self._write, ref, page, salvage=True)
        except Exception:  # whatever hinders it, the page stays in the store until the job is resumed
            logger.exception("page %s is kept in the store", ref, extra={"job": ref.job})
            return page
        return {}

    async def _keep(self, job_id: str, page: Mapping[int, str]) -> None:
        """Keep the opinions of a page for later jobs, if its job asks for it."""
        if self._extras.kept is None or not any('"question":' in text for text in page.values()):
            return
        job = await self._ledger.job(job_id)
        if job is not None:
            now_ms, replace = await self._ledger.wall_ms(), job.spec.cache == "refresh"
            await asyncio.to_thread(self._extras.kept.keep, page, now_ms, replace=replace)

    async def _record_unwritten(self, ref: PageRef, error: Exception) -> bool:
        """Record that a page could not be written; return whether it is given up, and with it the job."""
        why, attempt = files_trouble(error), self._ledger.attempt()
        over_ms = self._ledger.intervals.disk_ms if isinstance(error, OSError) else 0
        failed = await retry_until_available(lambda: self._ledger.gather_failed(ref.job, why, TRIES, over_ms, attempt))
        logged_error = None if isinstance(error, OSError) else error
        where = "is kept in the store" if failed.given_up else "cannot be written"
        logger.error(
            "page %s %s: %s", ref, where, why, exc_info=logged_error, extra={"event": "gather_failed", "job": ref.job}
        )
        if failed.given_up and failed.state is JobState.RUNNING:
            await self._faults.cancel(ref.job, why)
        return failed.given_up

    def _write(self, ref: PageRef, page: dict[int, str], *, salvage: bool = False) -> None:
        opinions, errors = results_of(page, salvage=salvage)
        files.write_page(self._results_dir, ref.job, ref.incarnation, str(ref.lane), ref.page, opinions, errors)

    async def finish(self, job_id: str) -> bool:
        """Write the report and complete the job; return True from the one call that completes it.

        An error that prevents this is shown to those who watch the job. If it persists, or somebody cancels the job
        meanwhile, the job ends as cancelled, with that reason and with the results that can be read. Raises errors that
        may pass by themselves, and those of a job that is not being finished or has been given up.
        """
        given_up = False
        while job_id not in self._finishing and await self._ledger.claim_finish(job_id):
            self._finishing.add(job_id)
            try:
                return await self._finish(job_id)
            except Exception as error:  # whatever it is, its job must end
                if is_away(error) or given_up:
                    raise
                failed = await self._record_failure(job_id, error)
                if not failed.finishing:
                    raise
                given_up = failed.given_up
                if not given_up:
                    return False
            finally:
                self._finishing.discard(job_id)
        return False

    async def _record_failure(self, job_id: str, error: Exception) -> FinishFailed:
        """Record that a job could not be finished. The answer tells whether the job is now given up, and so to be
        finished without the step that fails."""
        why, attempt = files_trouble(error), self._ledger.attempt()
        tries = DISK_TRIES if isinstance(error, OSError | NoLibraries) else TRIES
        failed = await retry_until_available(lambda: self._ledger.finish_failed(job_id, why, tries, TRIES, attempt))
        outcome = "is given up" if failed.given_up else "cannot be finished"
        event = "job_given_up" if failed.given_up else "finish_failed"
        logged_error = None if isinstance(error, OSError) else error
        logger.error(
            "job %s %s: %s", job_id, outcome, why, exc_info=logged_error, extra={"event": event, "job": job_id}
        )
        return failed

    async def _finish(self, job_id: str) -> bool:
        job = await self._ledger.job(job_id)
        record = await self._ledger.progress(job_id)
        if job is None or "outcome" not in record:  # the store has lost the job since the claim
            return False
        if "salvage" in record:
            report, keep_items = await self._salvage(job, record)
        else:
            header = await self._header(job, record)
            await self._keep_items(job)
            try:
                await self._write_kept(job, record)
                report, keep_items = await asyncio.to_thread(self._write_files, job, record, header), False
            except files.RunChanged:  # another has ended the job meanwhile, and it was resumed
                return False
        text, attempt = report.model_dump_json().encode(), self._ledger.attempt()
        completed = await retry_until_available(
            lambda: self._ledger.complete(job_id, job.incarnation, text, RETENTION_S, attempt, keep_items=keep_items)
        )
        if completed:
            logs.job_completed(job=job_id, status=report.status, scored=report.scored, failed=report.failed)
            if self._extras.html is not None:
                self._extras.html.write(own_folder(self._results_dir, job.id, job.incarnation))
        await self.announce(job_id)
        return completed

    async def _salvage(self, job: JobRecord, record: Mapping[str, str]) -> tuple[Report, bool]:
        """Build as much as possible of the report of a job that is given up, and tell whether its items are to stay in
        the store. Raises errors that may pass by themselves; logs all others, since nothing more can be done for the
        job."""

        async def attempt(step: Callable[[], Awaitable[T]]) -> T | None:
            try:
                return await step()
            except Exception as error:  # whatever it is, its job must end
                if is_away(error):
                    raise
                logger.exception("job %s is finished without the step that failed", job.id, extra={"job": job.id})
                return None

        items_kept = await attempt(lambda: self._keep_items(job))
        header = await attempt(lambda: self._header(job, record)) or await self._header(job, record, with_answer=False)
        report = None
        if await attempt(lambda: self._write_kept(job, record)):  # else they would be missing in a report that is there
            report = await attempt(lambda: asyncio.to_thread(self._write_files, job, record, header, salvage=True))
        if report is None:
            unfiled = files.UnfiledReport(self._results_dir, header)
            await attempt(lambda: self._unwritten.count(job, unfiled))
            was_read = await attempt(lambda: asyncio.to_thread(unfiled.add_folder, job.incarnation))
            report = unfiled.build(None if was_read else _counts(record))
        return report, not items_kept

    async def _header(self, job: JobRecord, record: Mapping[str, str], *, with_answer: bool = True) -> ReportHeader:
        """Return the report's header for a job that ends now. Unless `with_answer`, the answer to its question is
        left out."""
        started_ms = int(record.get("started_ms", record["created_ms"]))
        finished_ms = await self._ledger.wall_ms()
        cancelled = record["outcome"] == "cancelled"
        # A cancelled job does not wait for a worker that can answer its question.
        job_answer = (
            await self._questions.report_answer(job) if with_answer and (can_answer() or not cancelled) else None
        )
        unpublished, saved = _unpublished(job, record)
        return BookedHeader(
            job_id=job.id,
            project=job.spec.project,
            status="cancelled" if cancelled else "completed",
            units=job.units,
            unpublished=unpublished,
            answer=job_answer.model_copy(update={"calls_saved": saved}) if job_answer is not None else None,
            started=_instant(started_ms),
            finished=_instant(finished_ms),
            wall_s=max(0, finished_ms - started_ms) / 1000,
            calls=int(record.get("calls", 0)),
            retries=int(record.get("retries", 0)),
            requeues=int(record.get("requeues", 0)),
            timeouts=int(record.get("timeouts", 0)),
            calls_without_answer=int(record.get("calls_without_answer", 0)),
            possible_double_charges=int(record.get("possible_double_charges", 0)),
            moved_online=int(record.get("moved_online", 0)),
            went_online=await self._ledger.went_online(job),
            calls_unreported=_calls_without_report(record),
            reason=record.get("why") if cancelled else None,
            stopped=list((await self._stops.stops(job)).values()),
            dropped=await self._stops.dropped(job),
            agents=[self._agent(job, number) for number in range(len(job.spec.agents))],
            dimensions=[ReportDimension.from_dimension(d, job.spec.panel_of(d)) for d in job.spec.dimensions],
            keep=[*job.spec.keep, *measures(job.spec.probes)],
            probes=list(job.spec.probes),
            groups=list(job.spec.groups),
            cluster=job.spec.cluster,
            these=list(job.spec.these),
            rated=job.spec.ratings is not None,
            panelled=job.spec.panelled,
            gate=job.spec.gate,
            prompt=prompt_digest(job.spec),
            template=template_digest(job.spec),
            calibration=job.spec.calibration,
            books=read_books(record, [agent.name for agent in job.spec.agents], job.places),
            standing=JobMoney.from_record(record, job.places),
            orders=("both" if job.spec.both_orders else "given") if job.spec.compares else None,
            quote=Quote.model_validate_json(record["quote"]) if "quote" in record else None,
        )

    def _write_files(
        self, job: JobRecord, record: Mapping[str, str], header: ReportHeader, *, salvage: bool = False
    ) -> Report:
        """Write the job's files. Return its report, with the panel's scores and the statistics that it asks for."""
        place = self._results_dir, job.id, job.incarnation
        if job.resumed and "started_ms" not in record:  # cancelled before it went on: it only has its earlier results
            set_aside(*place, waits=lambda: True, run=job.resumed)
        rated = header.rated or keeps_ratings(*place)  # a resumed job has those that were added, too
        header = header.model_copy(update={"rated": rated})
        report = files.finish(*place, header, job.resumed, salvage=salvage)
        write_lock(own_folder(*place), report, job.spec, job.fingerprint)
        return keep_computed(own_folder(*place), report)

    def _agent(self, job: JobRecord, number: int) -> ReportAgent:
        agent, roads = job.spec.agents[number], [lane.road for lane in job.lanes if number in lane.agents]
        models, chief = map(self._models.model, agent.choices), agent.name == job.spec.chief
        return ReportAgent.from_agent(agent, models, chief=chief, road=roads[0] if roads else "online")

    async def _keep_items(self, job: JobRecord) -> bool:
        """Write items that were submitted with the job to a file. They leave the store with the job, and are needed to
        resume it or to read its results. Returns True."""
        if isinstance(job.spec.items, list) and await self._ledger.item_count(job.id):
            with contextlib.suppress(ItemsGone):  # others have ended the job meanwhile, and kept them
                pages = pieces(await stored_items(self._ledger, job.id), ITEMS_TOGETHER)
                await asyncio.to_thread(write_items, self._results_dir, job.id, job.incarnation, pages)
        return True

    async def _write_kept(self, job: JobRecord, record: Mapping[str, str]) -> bool:
        """Write the pages that the store has kept because no disk took them. Returns True."""
        begun = "started_ms" in record  # else they are of the run before
        await self._unwritten.write(job, job.resumed if begun else job.resumed - 1)
        return True

    async def announce(self, job_id: str) -> None:
        """Announce the job's end to whoever waits for it, send its continuations, and remove it from the outbox."""
        record = await self._ledger.progress(job_id)
        if not record:
            await self._ledger.announced(job_id)
            return
        end = Ended.from_record(record)
        if end is None:  # submitted again, or resumed
            return
        continuations = await self._ledger.continuations(job_id)
        await asyncio.to_thread(self._announcer.announce, job_id, end, continuations)
        await self._ledger.announced(job_id, list(continuations))


def _unpublished(job: JobRecord, record: Mapping[str, str]) -> tuple[int, int]:
    """Count the units that were not published because the job's question was answered, and the calls that they would
    have taken."""
    units = calls = 0
    for number, lane in enumerate(job.lanes):
        stopped = record.get(f"stopped:{number}")
        if stopped:
            units_left = job.items * lane.units_per_item - orjson.loads(stopped)["position"]
            units, calls = units + units_left, calls + units_left // lane.stride
    return units, calls


def _counts(record: Mapping[str, str]) -> dict[str, int]:
    """Return what the ledger has counted of a job's units, by the names of the report's fields."""
    names = {name: name for name in ("scored", "failed", "spared")}
    names |= {"input_tokens": "tokens_in", "output_tokens": "tokens_out"}
    return {name: int(record.get(counter, 0)) for name, counter in names.items()}


def _calls_without_report(record: Mapping[str, str]) -> int:
    """Count the calls that may have been made and whose end was never reported (app/ledger/late.lua). A batch counts as
    one call; a claim that was stored without its attempt counts as a call of its own."""
    calls = set()
    for field, claims in record.items():
        if field.startswith("late:"):
            for claim in filter(None, claims.split(",")):
                _, _, attempt = [*claim.split(":", 2), claim][:3]
                calls.add((field, attempt) if attempt else None)
    return len(calls - {None})


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class Announcer:
    """Reports a job's end to the result backend and to monitors, and sends the tasks that follow it. `node` is this
    worker's name."""

    def __init__(self, app: Celery, node: str) -> None:
        self._app, self._node = app, node

    def announce(self, job_id: str, end: Ended, continuations: Mapping[str, str]) -> None:
        """Announce the end of a job and send its continuations, by task id. Blocks; may be called twice."""
        if end.lost:
            self._app.backend.mark_as_failure(job_id, JobLost(job_id))
            event = "task-failed"
            fields: dict[str, Any] = {"exception": repr(JobLost(job_id)), "traceback": ""}
        elif end.revoked:
            self._app.backend.mark_as_revoked(job_id, end.revoked)
            event, fields = "task-revoked", {"terminated": False, "signum": None, "expired": end.revoked == "expired"}
        else:
            self._app.backend.mark_as_done(job_id, end.report)
            event, fields = "task-succeeded", {"result": f"<report of {job_id}>", "runtime": end.report["wall_s"]}
        # Sent under this worker's name: a monitor lists every name that it receives as a worker.
        routing = {"exchange": self._app.names.qualify("dicast"), "routing_key": self._app.names.qualify(CONTROL_QUEUE)}
        with self._app.events.default_dispatcher(hostname=self._node) as events:
            events.send(event, uuid=job_id, **routing, **fields)
        for task_id, text in continuations.items():
            Continuation.parse(task_id, text).send(self._app, job_id, CONTROL_QUEUE)


class StoresProgress(Protocol):
    """See `dicast.workers.runtime.result_backend.RedisBackend`."""

    def store_progress(self, task_id: str, info: Mapping[str, Any]) -> bool:
        """Store a running task's state. Blocks; changes nothing if the task's end is stored."""
        ...


class ProgressReports:
    """Stores the progress of running jobs as the state of their tasks: `AsyncResult.state` is PROGRESS, and `.info` has
    the counts of units. A job that has not changed since this process last stored it is skipped. Not safe to share
    between event loops."""

    def __init__(self, ledger: Ledger, backend: StoresProgress) -> None:
        self._ledger, self._backend = ledger, backend
        self._stored: dict[str, JobStanding] = {}

    async def store(self, jobs: Sequence[str] | None = None) -> None:
        """Store the progress of these jobs; with None, of all jobs that have not ended. Raises redis errors."""
        names = list(await self._ledger.unfinished() if jobs is None else jobs)
        standings = dict(zip(names, await self._ledger.standings(names), strict=True)) if names else {}
        if jobs is None:
            self._stored = {job: standing for job, standing in self._stored.items() if job in standings}
        for job, standing in standings.items():
            if standing is not None and self._stored.get(job) != standing:
                for task_id in {job, *await self._ledger.continuations(job)}:  # a canvas waits under its own task id
                    await asyncio.to_thread(self._backend.store_progress, task_id, standing._asdict())
                self._stored[job] = standing


PageResults = tuple[list[Opinion], list[EvaluationError]]


def results_of(page: Mapping[int, str], *, salvage: bool = False) -> PageResults:
    """Return the opinions and errors of a page, in the order of its positions. With `salvage`, those that cannot be
    read are left out, and logged: their units are judged again when the job is resumed."""
    opinions, errors = [], []
    for position, text in sorted(page.items()):
        try:
            result = orjson.loads(text)
            opinion = opinion_of(result)
            error = EvaluationError.model_construct(**result["error"]) if "error" in result else None
        except (ValueError, TypeError, KeyError):
            if not salvage:
                raise
            logger.exception("the result at position %d cannot be read, and is left out", position)
            continue
        opinions.append(opinion)
        errors += [] if error is None else [error]
    return opinions, errors


class UnwrittenPages:
    """Writes the pages of a job that the store has kept for it."""

    def __init__(self, ledger: Ledger, results_dir: str) -> None:
        self._ledger, self._results_dir = ledger, results_dir

    async def write(self, job: JobRecord, run: int) -> None:
        """Write all pages that are kept, and have the store forget them. They belong to the `run`-th run of the job;
        once a later one has begun in its folder, they are there. May be interrupted and repeated. Raises OSError, and
        errors of the store."""
        for ref in await self._ledger.kept_pages(job.id, job.incarnation):
            page = await self._ledger.kept_page(ref)
            if page is not None:
                await asyncio.to_thread(self._write, ref, page, run)
                await self._ledger.forget_kept(ref)

    async def count(self, job: JobRecord, report: files.UnfiledReport) -> None:
        """Add all pages that are kept to a report. Raises errors of the store."""
        for ref in await self._ledger.kept_pages(job.id, job.incarnation):
            page = await self._ledger.kept_page(ref)
            if page is not None:
                await asyncio.to_thread(report.add, *results_of(page, salvage=True))

    def _write(self, ref: PageRef, page: Mapping[int, str], run: int) -> None:
        opinions, errors = results_of(page, salvage=True)
        place = self._results_dir, ref.job, ref.incarnation, str(ref.lane), ref.page
        try:
            files.write_kept_page(*place, opinions, errors, run=run)
        except files.RunChanged:
            logger.info("page %s was written by another process before the job went on", ref)
