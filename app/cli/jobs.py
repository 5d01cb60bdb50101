"""`dicast jobs list|show|cancel|resume|delete|export`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import orjson
from rich.prompt import Confirm
from rich.table import Table
from rich.text import Text

from dicast.app.access.audit import operator
from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.run import application, show_report
from dicast.app.domain.report import Report
from dicast.app.domain.text import printable
from dicast.app.ledger.client import JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator import waiting
from dicast.app.operator.jobs import cancel, delete, filed_report, outcome_of_cancel, results_of, resume
from dicast.app.reports.terminal import print_heat_map
from dicast.errors import Exit

STATES = {JobState.COMPLETED: "green", JobState.CANCELLED: "yellow", JobState.LOST: "red"}


def list_jobs(terminal: Terminal, newest: int, *, json: bool) -> None:
    statuses = list(application(terminal).existing_ledger.jobs(newest))
    if json:
        _print_json(terminal, [_plain(status, report=False) for status in statuses])
        return
    if not statuses:
        terminal.say("There are no jobs.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    rows = [
        (
            Text(status.id),
            Text(printable(status.project, 30), no_wrap=True, overflow="ellipsis"),
            Text(status.state, style=STATES.get(status.state, "cyan")),
            Text(f"{status.done:,} of {status.units:,}"),
            Text(f"{status.counters['failed']:,}", style="red" if status.counters["failed"] else "dim"),
            Text(_since(status.created_ms)),
        )
        for status in statuses
    ]
    for n, title in enumerate(("job", "project", "state", "done", "failed", "since")):
        # What does not fit costs the project's name, and never an id that somebody wants to copy.
        shrinks = title == "project"
        least = None if shrinks else max(len(title), *(row[n].cell_len for row in rows))
        table.add_column(title, no_wrap=not shrinks, min_width=least, justify="right" if n > 2 else "left")
    for row in rows:
        table.add_row(*row)
    terminal.out.print(table)


def show_job(terminal: Terminal, job_id: str, *, json: bool) -> None:
    """Show a job. One that is past its retention in the store is shown from its files, if they are here. Raises
    `UnknownJob`."""
    dicast = application(terminal)
    try:
        status = dicast.existing_ledger.status(job_id)
    except UnknownJob as unknown:
        filed = filed_report(dicast, unknown)
        document = {"id": job_id, "state": filed.status, "report": filed.model_dump(mode="json")}
    else:
        status = replace(status, waits_for=waiting.reason(dicast, status))
        document = _plain(status, report=True)
        if document["report"] is None and not json:
            _show_running(terminal, dicast, status)
            return
    if json:
        _print_json(terminal, document)
    else:
        report = Report.model_validate(document["report"])
        show_report(terminal, report, json=False)
        print_heat_map(report, terminal.out)


def cancel_job(terminal: Terminal, job_id: str) -> None:
    dicast = application(terminal)
    before = cancel(dicast, job_id)
    dicast.record(operator(), "job.cancel", job_id, outcome_of_cancel(before), {"before": before})
    if before in (JobState.SUBMITTED, JobState.RUNNING):
        terminal.say(f"Cancelled: job {job_id} makes no new calls; open ones end and count.")
    elif before is JobState.FINISHING and (why := dicast.ledger.status(job_id).why):
        terminal.say(f"Given up: job {job_id} ends with what can be read of its results ({why}).")
    else:
        terminal.say(f"Nothing to do: job {job_id} was {before} already.")


def resume_job(terminal: Terminal, job_id: str) -> None:
    dicast = application(terminal)
    resumed = resume(dicast, job_id)
    dicast.record(operator(), "job.resume", job_id, "done" if resumed else "nothing to do")
    if resumed:
        terminal.say(f"Resumed: what has no score is judged again.\n  dicast jobs watch {job_id}")
    else:
        terminal.say(f"Nothing to do: every unit of job {job_id} has its score.")


def delete_job(terminal: Terminal, job_id: str, *, yes: bool) -> Exit:
    """Delete an ended job's record and files, once the person at the terminal has confirmed it, or with `yes`. Raises
    `UnknownJob`, `JobNotEnded`, `BadJobId`, `Refused`, OSError."""
    dicast = application(terminal)
    if not yes:
        if not (sys.stdin.isatty() and terminal.err.is_terminal):
            raise Refused(f"job {job_id} was not deleted: nobody can confirm it here; pass --yes")
        terminal.say(f"Job {job_id}: its record, its results and people's ratings of it are deleted for good.")
        if not Confirm.ask("Delete it?", default=False, console=terminal.err):
            terminal.say("Nothing was deleted.")
            return Exit.INTERRUPTED
    earlier = delete(dicast, job_id)
    dicast.record(operator(), "job.delete", job_id, "done")
    terminal.say(f"Deleted: job {job_id}, its record and its files.")
    if earlier:
        places = ", ".join(map(str, earlier))
        terminal.say(f"Results of earlier jobs of this id, and files that were uploaded for it, stay: {places}")
    return Exit.OK


def export_job(
    terminal: Terminal, job_id: str, format: Literal["csv", "jsonl", "parquet"], to: str, *, panel: bool = False
) -> None:
    """Write the opinions, or the `panel`'s scores. Raises `UnknownJob`, `JobNotEnded`, `ResultsAway` or OSError."""
    from dicast.app.reports.exports import export  # noqa: PLC0415  (takes long to load)

    report, root = results_of(application(terminal), job_id)
    if panel:
        from dicast.app.reports.folders import job_folder  # noqa: PLC0415
        from dicast.app.reports.panel import export_panel  # noqa: PLC0415

        count = export_panel(job_folder(root, job_id), report, format, Path(to))
        terminal.say(f"{count:,} scores of the panel in {to}")
        return
    export(root, job_id, format, to)
    terminal.say(f"{report.scored + report.failed:,} opinions in {to}")


def _show_running(terminal: Terminal, dicast: Dicast, status: JobStatus) -> None:
    calls = dicast.ledger.open_calls().get(f"j:{status.id}", 0)
    rows = {
        "job": status.id,
        "project": printable(status.project),
        "state": status.state,
        "units": f"{status.done:,} of {status.units:,} done, {status.counters['failed']:,} failed"
        + (f", {status.counters['spared']:,} spared" if status.counters["spared"] else ""),
        **({"question": printable(status.answered, 600)} if status.answered else {}),
        "calls": f"{calls:,} open"
        + (f" of {status.limit:,}" if status.limit else "")
        + f", {status.counters['calls']:,} made, {status.counters['retries']:,} retries, "
        f"{status.counters['requeues']:,} requeues",
        **({"why": "the store was emptied, or lost its last writes"} if status.state is JobState.LOST else {}),
        **({"why": printable(status.why)} if status.why else {}),
        **({"waits": printable(status.waits_for, 400)} if status.waits_for is not None else {}),
        "submitted": f"{_local(status.created_ms):%Y-%m-%d %H:%M:%S}",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in rows.items():
        table.add_row(Text(name, style="dim"), Text(text))
    terminal.out.print(table)


def _plain(status: JobStatus, *, report: bool) -> dict[str, Any]:
    fields = {**asdict(status), "done": status.done}
    if not report:
        del fields["report"]
    return fields


def _print_json(terminal: Terminal, value: Any) -> None:
    terminal.emit(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _since(ms: int) -> str:
    """Format a time of today as the time of day, any other as the day."""
    then = _local(ms)
    return f"{then:%H:%M}" if then.date() == datetime.now(then.tzinfo).date() else f"{then:%d %b}"


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000).astimezone()
