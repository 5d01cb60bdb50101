"""`dicast jobs list|show|cancel|resume|delete|export`, and `dicast batches list|show|cancel`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date, datetime
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
from dicast.app.domain.deadlines import RoadChange
from dicast.app.domain.price import shown
from dicast.app.domain.report import Report
from dicast.app.domain.text import counted, printable
from dicast.app.ledger.batches import BatchRecord
from dicast.app.ledger.client import JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator import waiting
from dicast.app.operator.jobs import cancel, delete, filed_report, outcome_of_cancel, results_of, resume
from dicast.app.operator.spending import Spend, budget_standings, spend_csv, spend_keys, spend_lines, summed
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


def show_spending(terminal: Terminal, by: str, since: str, *, csv: bool, json: bool) -> None:
    """Print what calls have cost, and where budgets stand. Raises `WrongSpendKey`, `Refused`."""
    keys = spend_keys(by)
    try:
        date.fromisoformat(since or "2026-01-01")
    except ValueError:
        raise Refused(f"--since: a day as in 2026-11-24 is wanted, got {since!r}") from None
    dicast = application(terminal)
    sums, standings = summed(spend_lines(dicast, since), keys), budget_standings(dicast)
    if csv:
        terminal.emit(spend_csv(sums, keys).rstrip("\n"))
        return
    if json:
        document = {
            "spend": [total.model_dump(mode="json", exclude_none=True) for total in sums],
            "budgets": [standing.model_dump(mode="json") for standing in standings],
        }
        _print_json(terminal, document)
        return
    if not sums and not standings:
        terminal.say("No call has been made.")
        return
    if sums:
        terminal.out.print(_spending(sums, keys))
    for standing in standings:
        terminal.out.print(Text(standing.sentence()), soft_wrap=True)


def _spending(sums: Sequence[Spend], keys: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for key in keys:
        table.add_column(key, overflow="fold")
    for title in ("calls", "tokens in", "out", "spent", "unknown, at most"):
        table.add_column(title, justify="right", no_wrap=True)
    for total in sums:
        spent = shown(total.spent, total.currency) if total.currency else "unpriced"
        unknown = shown(total.unknown, total.currency) if total.unknown else ""
        names = [Text(printable(getattr(total, key), 60)) for key in keys]
        table.add_row(*names, f"{total.calls:,}", f"{total.input_tokens:,}", f"{total.output_tokens:,}", spent, unknown)
    return table


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


def resume_job(
    terminal: Terminal, job_id: str, *, max_cost: str | None = None, max_tokens: int | None = None,
    max_calls: int | None = None,
) -> None:  # fmt: skip
    dicast = application(terminal)
    resumed = resume(dicast, job_id, max_cost=max_cost, max_tokens=max_tokens, max_calls=max_calls)
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
    from dicast.app.reports.collecting import export  # noqa: PLC0415  (takes long to load)

    report, root = results_of(application(terminal), job_id)
    if panel:
        from dicast.app.reports.folders import job_folder  # noqa: PLC0415
        from dicast.app.reports.panel import export_panel  # noqa: PLC0415

        count = export_panel(job_folder(root, job_id), report, format, Path(to))
        terminal.say(f"{count:,} scores of the panel in {to}")
        return
    export(root, job_id, format, to)
    terminal.say(f"{report.scored + report.failed:,} opinions in {to}")


def show_batches(terminal: Terminal, *, over: bool, json: bool) -> None:
    """List the batches at providers, and with `over` also the last ones that are over."""
    ledger = application(terminal).existing_ledger
    batches, ended = ledger.batches(), ledger.batches_over() if over else []
    if json:
        _print_json(terminal, [*map(_plain_batch, batches), *ended])
        return
    if not batches and not ended:
        terminal.say("There are no batches.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("batch", "job", "pool", "model", "requests", "since", "state"):
        table.add_column(title, no_wrap=title in ("batch", "job"), justify="right" if title == "requests" else "left")
    for batch in batches:
        since = _since(round(1000 * (batch.sent_at or batch.formed_at)))
        row = (batch.name, batch.lane.job, batch.pool, batch.model, f"{batch.requests:,}", since, batch.progress)
        table.add_row(*(Text(printable(text, 80)) for text in row))
    for entry in ended:
        since = _since(round(1000 * entry["over_at"]))
        names = (entry["name"], entry["job"], entry["pool"], entry["model"], f"{entry['requests']:,}", since)
        table.add_row(*(Text(printable(text, 80), style="dim") for text in (*names, f"over: {entry['end']}")))
    terminal.out.print(table)


def show_batch(terminal: Terminal, name: str, *, json: bool) -> Exit:
    """Show a batch, also one of the last that are over."""
    ledger = application(terminal).existing_ledger
    present = next((batch for batch in ledger.batches() if batch.name == name), None)
    document = _plain_batch(present) if present is not None else None
    document = document or next((entry for entry in ledger.batches_over() if entry["name"] == name), None)
    if document is None:
        terminal.say(f"There is no batch {name!r}; dicast batches list --all shows them.")
        return Exit.REFUSED
    if json:
        _print_json(terminal, document)
        return Exit.OK
    table = Table.grid(padding=(0, 2, 0, 0))
    for key, value in document.items():
        if value not in ("", 0, 0.0, None, []):
            text = f"{_local(round(1000 * value)):%Y-%m-%d %H:%M:%S}" if key.endswith(("_at", "_since")) else str(value)
            table.add_row(Text(key.replace("_", " "), style="dim"), Text(printable(text, 400)))
    terminal.out.print(table)
    return Exit.OK


def cancel_one_batch(terminal: Terminal, name: str) -> Exit:
    dicast = application(terminal)
    if not dicast.ledger.cancel_batch(name):
        terminal.say(f"There is no batch {name!r}; dicast batches list shows them.")
        return Exit.REFUSED
    dicast.record(operator(), "batch.cancel", name, "done")
    terminal.say(f"Batch {name} is being cancelled: what was done of it counts.")
    return Exit.OK


def _plain_batch(batch: BatchRecord) -> dict[str, Any]:
    fields = asdict(batch)
    lane = fields.pop("lane")
    del fields["turn"]
    return {**fields, "job": lane[0], "lane": lane[2], "progress": batch.progress}


def _show_running(terminal: Terminal, dicast: Dicast, status: JobStatus) -> None:
    calls = dicast.ledger.open_calls().get(f"j:{status.id}", 0)
    changes = dicast.ledger.went_online(status.id)
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
        **({"road": printable(_road(status, changes), 600)} if changes else {}),
        **({"cost": status.money} if status.money else {}),
        **({"why": "the store was emptied, or lost its last writes"} if status.state is JobState.LOST else {}),
        **({"why": printable(status.why)} if status.why else {}),
        **({"waits": printable(status.waits_for, 400)} if status.waits_for is not None else {}),
        "submitted": f"{_local(status.created_ms):%Y-%m-%d %H:%M:%S}",
    }
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in rows.items():
        table.add_row(Text(name, style="dim"), Text(text))
    terminal.out.print(table)


def _road(status: JobStatus, changes: Sequence[RoadChange]) -> str:
    moved = status.counters["moved_online"]
    reasons = [change.reason for change in changes]
    return "; ".join([*reasons, f"{counted(moved, 'unit')} taken out of a batch"] if moved else reasons)


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
