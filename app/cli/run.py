"""`dicast run`, `validate`, `quote` and `jobs watch`: take a job from its file to its report.

`dicast certify` and `watch` run jobs of their own, to measure judges and to see whether they have changed.
`dicast validate` and `run --dry-run` show what a job would do, before anything is stored, started or paid for
(`show_plan`), and `dicast quote` what it would take (`quote_job`).
"""

from __future__ import annotations

import contextlib
import secrets
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson
from kombu.exceptions import OperationalError
from pydantic_core import to_json
from redis.exceptions import RedisError
from rich.console import Console
from rich.prompt import Prompt as RichPrompt
from rich.table import Table
from rich.text import Text, TextType

from dicast.app.analysis import MISSING, has_libraries
from dicast.app.application import Dicast, create_app
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.following import LOOK_EVERY_S, Action, Display, Interrupts, JobWatcher, display, follow
from dicast.app.cli.local_worker import EarlyWorker, local_changes
from dicast.app.cli.quality_gate import (
    QualityGateOptions,
    check_file,
    check_folder,
    check_quality_gate,
    hold_to_gate,
)
from dicast.app.cli.statistics import finished
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.concluding import counts_of
from dicast.app.domain.deadlines import instant_ms
from dicast.app.domain.item import ItemSource, RatingCounts
from dicast.app.domain.material import key_from
from dicast.app.domain.price import shown
from dicast.app.domain.probes import count_variants, variant_probes
from dicast.app.domain.quote import Quote, QuotedSum
from dicast.app.domain.refusals import JobRefused
from dicast.app.domain.report import Report
from dicast.app.domain.text import counted, printable
from dicast.app.ledger.client import JobLost, JobStatus, UnknownJob
from dicast.app.ledger.records import JobState
from dicast.app.operator import waiting
from dicast.app.operator.jobs import cancel, forget, send
from dicast.app.operator.prompts import ShownPrompt, first_unit
from dicast.app.operator.quotes import QUOTED_UNITS, NoQuote, pilot_job, quote_of, with_quote
from dicast.app.operator.store_checks import URL_SHAPES, understood
from dicast.app.reports.files import REPORT
from dicast.app.reports.folders import job_folder
from dicast.app.reports.opinion_cache import OpinionCache
from dicast.app.reports.terminal import print_conclusions
from dicast.app.submission import job_file
from dicast.app.submission.sampling import job_items
from dicast.app.submission.submit import Prepared, field_needing_libraries
from dicast.config.pools import PoolSpec
from dicast.config.settings import environment
from dicast.errors import Exit

if TYPE_CHECKING:
    from dicast.app.operator.stack import LocalStack

LOCAL_S = 30.0
"""Writing it takes a second or two, longer on a machine under full load."""
ELSEWHERE_S = 10.0
"""Workers on other machines may be configured to write no page."""
LOOK_S = 0.1
PAGE = "report.html"


def wait_for_page(
    folder: Path,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait up to so many seconds until the page is at least as new as the report in the folder. Return whether it is.

    The page is the HTML report beside a job's results, which a worker writes after the job has ended.
    """
    until = clock() + seconds
    while not _current(folder):
        if clock() >= until:
            return False
        pause(LOOK_S)
    return True


def _current(folder: Path) -> bool:
    try:
        return (folder / PAGE).stat().st_mtime_ns >= (folder / REPORT).stat().st_mtime_ns
    except OSError:
        return False


def print_page_path(terminal: Terminal, folder: Path, job_id: str) -> None:
    """Say where the page is, or how to write it."""
    if (folder / PAGE).exists():
        terminal.say(f"Report in {folder / PAGE}")
    else:
        terminal.say(f"{PAGE} is not written yet: `dicast report {job_id} -o FILE` makes it", "dim")


def show_plan(terminal: Terminal, dicast: Dicast, ready: Prepared, *, json: bool) -> None:
    """Show counts, judges, known obstacles, and the whole prompt of the first call. Raises `JobRefused` for a job
    that would end before its first call."""
    end = ready.job.finish_by
    if isinstance(end, str) and instant_ms(end) <= 1000 * time.time():
        raise JobRefused(f"finish_by: {end} has passed")
    first = first_unit(dicast, ready, _nonce_key(dicast))
    remarks = notes(dicast, ready)
    quote = _short_quote(dicast, ready, pools=False)
    if json:
        document = _plan_document(dicast, ready, first, remarks)
        document["quote"] = quote.model_dump(mode="json") if quote is not None else None
        terminal.emit(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return
    job = ready.job
    counts = (
        _item_counts(ready), counted(len(job.agents), "agent", "agents"),
        counted(len(job.dimensions), "dimension", "dimensions"), counted(job.replicates, "replicate", "replicates"),
        *(["2 orders"] if job.both_orders else []),
    )  # fmt: skip
    units, calls = counted(ready.units, "unit", "units"), counted(ready.calls, "call", "calls")
    out = terminal.out
    out.print(f"{' x '.join(counts)} = {units}, {calls}", soft_wrap=True)
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_row(Text("items", style="dim"), Text(f"{_items(ready)}, {ready.text_bytes:,} bytes of text"))
    if ready.variants:
        rows.add_row(Text("probes", style="dim"), Text(_probes(ready)))
    if ready.ratings is not None:
        rows.add_row(Text("ratings", style="dim"), Text(_ratings(ready.ratings)))
    for agent in job.agents:
        rows.add_row(Text(printable(agent.name, 40), style="dim"), Text(", or ".join(_places(dicast, agent.choices))))
    if quote is not None:
        rows.add_row(Text("quote", style="dim"), Text(f"{_quote_sentence(quote)}; {quote.source_sentence()}"))
    out.print(rows)
    for note in remarks:
        terminal.say(note, "yellow")
    dimension_ids = printable(", ".join(first.dimensions))
    heading = f"\nThe first call: item {printable(first.item)}, agent {printable(first.agent)}, {dimension_ids}"
    out.print(Text(heading, "bold"), soft_wrap=True)
    for title, text in (("system", first.prompt.system), ("user", first.prompt.user)):
        out.print(Text(f"--- {title}", "dim"))
        for line in text.splitlines():
            out.print(Text(printable(line)), soft_wrap=True)
    if first.prompt.schema is not None:
        out.print(Text("--- the answer's schema", "dim"))
        out.print(Text(orjson.dumps(first.prompt.schema).decode()), soft_wrap=True)
    code = "" if _nonce_key(dicast) else " The code at the material's end will be another."
    terminal.say(f"Nothing was submitted.{code}", "dim")


def _short_quote(dicast: Dicast, ready: Prepared, *, pools: bool) -> Quote | None:
    """Return a job's quote, None for a job that is not quoted. What the cache has is counted of no large job."""
    try:
        return quote_of(dicast, ready, most_looked_up=QUOTED_UNITS, pools=pools)
    except NoQuote:
        return None


def _quote_sentence(quote: Quote) -> str:
    parts = quote.calls_sentence(), quote.money_sentence(), quote.time.sentence() if quote.time is not None else ""
    return "; ".join(filter(None, parts))


def show_quote(terminal: Terminal, quote: Quote, *, json: bool) -> None:
    """Show what a job would take: calls, tokens, money by judge, dimension and probe, and minutes."""
    if json:
        terminal.emit(quote.model_dump_json(indent=2))
        return
    out = terminal.out
    out.print(Text(quote.calls_sentence()), soft_wrap=True)
    tokens = f"{quote.input_tokens:,} tokens in, {quote.output_tokens:,} out: {quote.source_sentence()}"
    out.print(Text(tokens), soft_wrap=True)
    if quote.source == "texts":
        terminal.say("`--pilot 30` makes up to 30 calls, and knows better.", "dim")
    if quote.lines and quote.units:
        out.print(_quoted_lines(quote))
    for total in quote.sums:
        out.print(Text(f"{total.sentence()}{_other_services(total)}", "bold"), soft_wrap=True)
    if quote.unpriced:
        out.print(Text(f"unpriced, and in no sum: {', '.join(quote.unpriced)}", "yellow"), soft_wrap=True)
    if quote.confidence is not None and quote.sums:
        out.print(Text(f"An interval in parentheses is one of {100 * quote.confidence:g} %.", "dim"), soft_wrap=True)
    unknown = "how long it takes is not known: no call of its pools has told" if quote.units else ""
    out.print(Text(quote.time.sentence() if quote.time is not None else unknown), soft_wrap=True)
    for note in quote.notes:
        terminal.say(note, "yellow")


def _quoted_lines(quote: Quote) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "", "calls", "tokens in", "tokens out", "cost"):
        table.add_column(name, justify="right" if name else "left")
    for line in quote.lines:
        cost = line.cost.sentence() if line.cost is not None else "unpriced"
        table.add_row(
            line.kind, Text(printable(line.name, 40)), f"{line.calls:,.0f}", f"{line.input_tokens:,}",
            f"{line.output_tokens:,}", cost,
        )  # fmt: skip
    return table


def _other_services(total: QuotedSum) -> str:
    """Return what other kinds of service would cost, as far as prices tell."""
    others = [
        f"{name} {shown(amount, total.currency)}"
        for name in ("online", "batch", "flex", "cached")
        if (amount := getattr(total, name)) is not None and amount != total.expected
    ]
    return f"; {', '.join(others)}" if others else ""


def notes(dicast: Dicast, ready: Prepared) -> list[str]:
    """Return what one should know before this job starts."""
    names = dict.fromkeys(place.pool for agent in ready.job.agents for place in agent.choices)
    specs = {spec.name: spec for spec in map(dicast.pools.get, names)}.values()
    most = dicast.settings.max_concurrent_llm_calls
    remarks = list(ready.warnings)
    remarks += [f"pool {spec.name}: {cut}" for spec in specs if (cut := spec.cut_to(most)) is not None]
    remarks += [
        f"pool {spec.name}: {spec.api_key_env} is not set here; its workers need it"
        for spec in specs
        if _is_missing_key(dicast, spec)
    ]
    if (field := field_needing_libraries(ready.job)) and not has_libraries():
        remarks.append(f"{field}: {MISSING}; its workers need them")
    return remarks


def missing_key(dicast: Dicast, ready: Prepared) -> str | None:
    """Return why a worker of this machine could not call one of the job's agents, None if it could call all of them."""
    for agent in ready.job.agents:
        specs = [dicast.pools.get(place.pool) for place in agent.choices]
        if all(_is_missing_key(dicast, spec) for spec in specs):
            return f"agents: {agent.name!r} needs pool {specs[0].name}, and {specs[0].api_key_env} is not set"
    return None


def _is_missing_key(dicast: Dicast, spec: PoolSpec) -> bool:
    return bool(spec.api_key_env) and not dicast.environ.get(spec.api_key_env or "")


def _nonce_key(dicast: Dicast) -> bytes | None:
    return key_from(dicast.settings.nonce_secret, dicast.keys.namespace)


def _items(ready: Prepared) -> str:
    source = ready.job.items
    return printable(Path(source.path).name, 60) if isinstance(source, ItemSource) else "in the job"


def _item_counts(ready: Prepared) -> str:
    items = counted(ready.base_items, "item", "items")
    return f"({items} + {counted(ready.variants, 'variant', 'variants')})" if ready.variants else items


def _probes(ready: Prepared) -> str:
    """Describe the variants that are judged for probes, and their calls."""
    variants = ", ".join(
        f"{probe.probe} {counted(count_variants([probe], ready.base_items), 'variant', 'variants')}"
        for probe in variant_probes(ready.job.probes)
    )
    return f"{variants}; {counted(ready.probe_calls, 'call', 'calls')} of the {ready.calls:,} are for them"


def _ratings(counts: RatingCounts) -> str:
    raters = printable(", ".join(counts.raters), 100)
    return (
        f"{counted(counts.ratings, 'rating', 'ratings')} of {counted(counts.items, 'item', 'items')} by "
        f"{counted(len(counts.raters), 'rater', 'raters')} ({raters}); no judge is shown any"
    )


def _places(dicast: Dicast, choices: Any) -> list[str]:
    specs = [(dicast.pools.get(place.pool), place.model) for place in choices]
    return [f"pool {spec.name}, {printable(model or spec.model, 60)}" for spec, model in specs]


def _plan_document(dicast: Dicast, ready: Prepared, first: ShownPrompt, remarks: list[str]) -> dict[str, Any]:
    job = ready.job
    return {
        "items": ready.items, "agents": len(job.agents), "dimensions": len(job.dimensions),
        "replicates": job.replicates, "orders": 2 if job.both_orders else 1, "units": ready.units, "calls": ready.calls,
        "variants": ready.variants, "probe_calls": ready.probe_calls, "text_bytes": ready.text_bytes,
        "ratings": asdict(ready.ratings) if ready.ratings is not None else None,
        "judges": {agent.name: _places(dicast, agent.choices) for agent in job.agents},
        "notes": remarks,
        "first_call": {
            "item": first.item, "agent": first.agent, "dimensions": first.dimensions, "system": first.prompt.system,
            "user": first.prompt.user, "schema": first.prompt.schema, "max_tokens": first.prompt.max_tokens,
        },
    }  # fmt: skip


NO_WORKER = """no worker is alive, so nothing was submitted
celery -A dicast worker      starts one, in another terminal
dicast run --local ...    starts all that is needed, for this one run
dicast run --detach ...   submits now; the job waits for a worker"""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run` and `watch`. If `on_interrupt` is None, the person is asked, if somebody is at the
    terminal. A `quiet` run shows no report."""

    json: bool = False
    out: str | None = None
    on_interrupt: str | None = None
    local: bool = False
    detach: bool = False
    dry_run: bool = False
    new: bool = False
    quiet: bool = False
    cassette: str | None = None
    yes: bool = False
    gate: QualityGateOptions = QualityGateOptions({})


def run_job(
    terminal: Terminal, path: str, project: str | None, assignments: list[str], options: RunOptions,
    early: EarlyWorker | None = None,
) -> Exit:  # fmt: skip
    """Submit the job in a file and follow it; `early` is a worker for `--local`."""
    if options.local and (options.detach or options.on_interrupt == Action.DETACH):
        raise Refused("with --local the worker stops when the command does, so the job cannot go on detached")
    if options.detach and options.gate.asks:
        raise Refused("--detach does not wait for results: check the gate with `dicast gate ID` when the job has ended")
    if options.detach and options.out is not None:
        raise Refused("--detach does not wait for results: fetch them with `dicast jobs watch ID --out DIR`")
    return _run_document(terminal, _document(path, project, assignments), options, early)


def _run_document(
    terminal: Terminal, document: dict[str, Any], options: RunOptions, early: EarlyWorker | None = None
) -> Exit:
    if options.cassette is not None:
        document["cache"] = "only"
    with Interrupts() as interrupts:
        job_id = None
        try:
            # Whatever can be checked without a store is checked before anything is started.
            dicast = application(terminal, local_changes(options.out) if options.local else {})
            ready = dicast.prepared(document)
            check_quality_gate(options.gate, ready.job)
            if options.out is not None:
                check_folder("--out", Path(options.out), create_later=True)
            if options.dry_run:
                show_plan(terminal, dicast, ready, json=options.json)
                return Exit.OK
            if options.cassette is not None:
                with OpinionCache(dicast.settings.state_dir, most_bytes=dicast.settings.cache_bytes) as cache:
                    cache.add_export(options.cassette)
            makes_calls = ready.job.cache != "only"
            if (
                options.local
                and makes_calls
                and dicast.settings.redis_url is None
                and (why := missing_key(dicast, ready))
            ):
                raise Refused(f"{why}; with --local there are no other workers that could have it")
            job_id = ready.id
            if options.out is not None:
                Path(options.out).mkdir(parents=True, exist_ok=True)
            for note in notes(dicast, ready):
                terminal.say(note, "yellow")
            if options.local:
                return _run_local(terminal, dicast, ready, options, interrupts, early)
            return _run(terminal, dicast, ready, options, interrupts)
        except KeyboardInterrupt:
            hint = f" If job {job_id} was submitted already, `dicast jobs show {job_id}` tells." if job_id else ""
            terminal.say(f"Interrupted.{hint}")
            return Exit.INTERRUPTED


def validate_job(terminal: Terminal, path: str, project: str | None, assignments: list[str], *, json: bool) -> None:
    """Check a job's file and everything that it names, and show what it would do."""
    dicast = application(terminal)
    show_plan(terminal, dicast, dicast.prepared(_document(path, project, assignments)), json=json)


def _document(path: str, project: str | None, assignments: list[str]) -> dict[str, Any]:
    document = job_file.load_job(path)
    for assignment in assignments:
        job_file.override(document, assignment)
    if project is not None:
        document["project"] = project
    return document


def watch_job(terminal: Terminal, job_id: str, options: RunOptions) -> Exit:
    """Follow a job that was submitted before."""
    dicast = application(terminal)
    dicast.existing_ledger.status(job_id)
    with Interrupts() as interrupts:
        return _follow_job(terminal, dicast, job_id, options, interrupts)


def application(terminal: Terminal, changes: Mapping[str, str] | None = None) -> Dicast:
    """Return the application for this environment, and make its secrets known to the terminal. Raises
    `SettingsError`."""
    dicast = create_app({**environment(), **(changes or {})})
    terminal.secrets = dicast.secrets()
    if dicast.settings.redis_url and not understood(dicast.settings.redis_url):
        raise Refused(f"REDIS_URL cannot be understood; it looks like {URL_SHAPES}")
    return dicast


def _run_local(
    terminal: Terminal, dicast: Dicast, ready: Prepared, options: RunOptions, interrupts: Interrupts,
    early: EarlyWorker | None,
) -> Exit:  # fmt: skip
    with _local_stack(terminal, dicast, ready, early) as local:
        try:
            return _run(terminal, dicast, ready, options, interrupts)
        finally:
            if interrupts.presses:  # somebody who interrupts does not want to wait for the worker's calls
                local.hasten()


def _local_stack(terminal: Terminal, dicast: Dicast, ready: Prepared, early: EarlyWorker | None) -> LocalStack:
    """Return what is started for a job with `--local`, and say so."""
    from dicast.app.operator.stack import LocalStack  # noqa: PLC0415

    places = [place for agent in ready.job.agents for place in agent.choices]
    model = any(dicast.pools.get(place.pool).provider == "local" for place in places)
    parts = "store, worker, beat and local model" if model else "store, worker and beat"
    terminal.say(f"Starting {parts} (logs in {dicast.settings.state_dir}/logs) ...", "dim")
    return LocalStack(dicast.settings, model=model, early=early)


def _run(terminal: Terminal, dicast: Dicast, ready: Prepared, options: RunOptions, interrupts: Interrupts) -> Exit:
    if not options.detach and not dicast.living_nodes():
        raise Refused(NO_WORKER)
    if options.new or _state(dicast, ready.id) is None:
        quote = _short_quote(dicast, ready, pools=True)
        if quote is not None and not _is_confirmed(terminal, dicast, quote, options):
            raise Refused("nothing was submitted")
        ready = with_quote(dicast, ready, quote)
    if options.new:
        with contextlib.suppress(UnknownJob):
            forget(dicast, ready.id)
    before = _state(dicast, ready.id)
    job_id = dicast.submit(ready)
    if before is not None and before.state.ended and before.state is not JobState.LOST:
        return _judged_before(terminal, dicast, before, options)
    if (error := send(dicast, job_id)) is not None:
        terminal.say(f"Job {job_id} is stored, but its message could not be sent ({error}); a worker will find it.")
    if options.detach:
        terminal.emit(orjson.dumps({"job_id": job_id}).decode() if options.json else job_id)
        done = "Submitted." if before is None else f"Submitted before: it is {before.state}."
        terminal.say(f"{done} See how it goes:\n  dicast jobs watch {job_id}")
        return Exit.OK
    return _follow_job(terminal, dicast, job_id, options, interrupts)


def _is_confirmed(terminal: Terminal, dicast: Dicast, quote: Quote, options: RunOptions) -> bool:
    """Return whether a job that is to cost so much may be submitted. Above the bound its quote is shown, and a person
    at the terminal is asked; a script goes on."""
    bound = dicast.settings.confirm_above
    if not bound or all(total.expected <= bound for total in quote.sums):
        return True
    terminal.say(f"{_quote_sentence(quote)}; {quote.source_sentence()}", "yellow")
    if options.yes or not _is_attended(terminal):
        return True
    try:
        return _Question.ask("Submit it?", choices=["y", "n"], default="n", console=terminal.err) == "y"
    except EOFError:
        return False


def quote_job(
    terminal: Terminal, path: str, project: str | None, assignments: list[str], *, pilot: int | None, local: bool,
    json: bool,
) -> None:  # fmt: skip
    """Show what a job would take, after a pilot of up to `pilot` calls if that is wanted."""
    if local and pilot is None:
        raise Refused("--local starts a worker for a pilot: say --pilot 30, too")
    dicast = application(terminal)
    ready = dicast.prepared(_document(path, project, assignments))
    with contextlib.ExitStack() as stack:
        if pilot is not None:
            _make_pilot(terminal, dicast, ready, pilot, RunOptions(json=json, local=local), stack)
        quote = quote_of(dicast, ready)
    show_quote(terminal, quote, json=json)
    if pilot is not None and quote.source != "pilot" and quote.units:
        raise Refused("the pilot has no results that could be read here: every judge must have scored an item")


def _make_pilot(
    terminal: Terminal, dicast: Dicast, ready: Prepared, calls: int, options: RunOptions, stack: contextlib.ExitStack
) -> None:  # fmt: skip
    """Have a job's pilot judged, unless it was before. What is started for it runs until `stack` is left."""
    pilot = dicast.prepared(pilot_job(ready, calls))
    if (job_folder(dicast.settings.results_dir, pilot.id) / REPORT).exists():
        terminal.say(f"The pilot {pilot.id} was made before: nothing is called for it.", "dim")
        return
    with Interrupts() as interrupts:
        if options.local:
            stack.enter_context(_local_stack(terminal, dicast, pilot, None))
        elif not dicast.living_nodes():
            raise Refused(NO_WORKER.partition("\n")[0] + "; --local starts all that a pilot needs")
        job_id = dicast.submit(pilot)
        send(dicast, job_id)
        terminal.say(f"A pilot of {counted(pilot.calls, 'call')} is judged as job {job_id}.", "dim")
        if _followed(terminal, dicast, job_id, options, interrupts) is None:
            raise Refused(f"the pilot was interrupted; `dicast jobs watch {job_id}` follows it")


def _state(dicast: Dicast, job_id: str) -> JobStatus | None:
    """Return the status of an existing job with this id, which is the same job or conflicts with it. None if there is
    none."""
    try:
        status = dicast.ledger.status(job_id)
    except UnknownJob:
        return None
    return None if status.state is JobState.LOST else status


def _judged_before(terminal: Terminal, dicast: Dicast, status: JobStatus, options: RunOptions) -> Exit:
    """Show the report of a job that has ended, or with `--detach` only its id. Nothing is called."""
    ended = datetime.fromtimestamp((status.finished_ms or status.created_ms) / 1000).astimezone()
    terminal.say(
        f"Job {status.id} was judged before and ended {status.state} on {ended:%Y-%m-%d at %H:%M:%S}: nothing was "
        "called.\n  dicast run --new ...       judges it anew\n"
        f"  dicast jobs resume {status.id}  judges again what has no score",
        "yellow",
    )
    if options.detach:
        terminal.emit(orjson.dumps({"job_id": status.id}).decode() if options.json else status.id)
        return Exit.OK
    return _report_end(terminal, dicast, status, options)


def _followed(
    terminal: Terminal, dicast: Dicast, job_id: str, options: RunOptions, interrupts: Interrupts
) -> JobStatus | None:  # fmt: skip
    """Return the status of a job when it has ended; None if whoever watched it left. Raises `JobLost`."""
    progress = display(terminal, quiet=options.json)
    with contextlib.ExitStack() as stack:
        stack.enter_context(interrupts.hold())
        watcher = JobWatcher(dicast.ledger, dicast.registry, job_id, partial(waiting.reason, dicast))
        watching = stack.enter_context(watcher)
        stack.callback(progress.pause)
        status = follow(
            watching,
            interrupts,
            show=progress.show,
            ask=lambda: _ask(terminal, progress, options, interrupts),
            cancel=lambda: _cancel_job(terminal, dicast, job_id),
            alone=lambda: interrupts.ordered or not _is_attended(terminal),
        )
    if status is not None and status.state is JobState.LOST:
        raise JobLost(job_id)
    return status


def _follow_job(terminal: Terminal, dicast: Dicast, job_id: str, options: RunOptions, interrupts: Interrupts) -> Exit:
    status = _followed(terminal, dicast, job_id, options, interrupts)
    if status is None:
        if options.local:
            terminal.say("Stopping at once. What is open is lost, and the job stays cancelled.")
        else:
            terminal.say(f"Detached. The job goes on:\n  dicast jobs watch {job_id}\n  dicast jobs cancel {job_id}")
        return Exit.INTERRUPTED
    return _report_end(terminal, dicast, status, options)


def _ask(terminal: Terminal, progress: Display, options: RunOptions, interrupts: Interrupts) -> Action:
    leave = Action.CANCEL if options.local else Action.DETACH
    if options.on_interrupt is not None:
        return Action(options.on_interrupt)
    if interrupts.ordered or not _is_attended(terminal):
        return leave
    progress.pause()
    answers = {"c": Action.CANCEL, "k": Action.KEEP}
    if options.local:
        terminal.say("Interrupted. Cancel the job (its worker stops with it), or keep watching?")
    else:
        answers["d"] = Action.DETACH
        terminal.say("Interrupted. Detach (the job goes on), cancel it, or keep watching?")
    with interrupts.let_raise():
        try:
            choice = _Question.ask("Answer", choices=sorted(answers), default="k", console=terminal.err)
        except (KeyboardInterrupt, EOFError):
            terminal.err.print()
            return leave
    return answers[choice]


def _is_attended(terminal: Terminal) -> bool:
    return sys.stdin.isatty() and terminal.err.is_terminal


class _Question(RichPrompt):
    """A prompt that an interrupt ends at any time."""

    @classmethod
    def get_input(cls, console: Console, prompt: TextType, password: bool, stream: TextIO | None = None) -> str:
        console.print(prompt, end="")
        # A signal that comes just before `input` begins to read would be heeded with the next key only.
        while not select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
            continue
        return super().get_input(console, "", password, stream)


def _cancel_job(terminal: Terminal, dicast: Dicast, job_id: str) -> bool:
    """Cancel the job. Return whether the ledger has recorded it."""
    try:
        cancel(dicast, job_id)
    except (RedisError, OperationalError, OSError) as error:
        terminal.say(f"The job could not be cancelled, for the store does not answer: {error}", "red")
        return False
    terminal.say("Cancelling: no new calls; open ones end and count. Ctrl-C again leaves at once.")
    return True


def _report_end(terminal: Terminal, dicast: Dicast, status: JobStatus, options: RunOptions) -> Exit:
    """Print the report of an ended job, fetch its files if that was asked, and return the exit code."""
    from dicast.app.reports.collecting import ResultsAway, collect, results_root  # noqa: PLC0415  (takes long to load)

    report = Report.model_validate(status.report)
    note, code = None, Exit.OK
    waits = dicast.settings.html_report and report.status == "completed" and (options.local or options.out is not None)
    try:
        if waits:
            root = results_root(report, dicast.settings.results_dir)
            wait_for_page(job_folder(root, report.job_id), LOCAL_S if options.local else ELSEWHERE_S)
        if options.out is not None:
            report = collect(report, dicast.settings.results_dir, options.out)
        else:
            results_root(report, dicast.settings.results_dir)
    except (ResultsAway, OSError) as error:
        note = str(error)
        code = Exit.FAILED if options.out is not None else Exit.OK
    if not options.quiet:
        show_report(terminal, report, json=options.json)
    if note is not None:
        terminal.say(note, "yellow")
    elif waits:
        print_page_path(terminal, Path(report.files.directory), report.job_id)
    if report.status == "cancelled":
        return Exit.INTERRUPTED
    if report.failed:
        made = counted(counts_of(report).made, "judgement")
        terminal.say(f"{report.failed:,} of {made} have no score; errors.jsonl tells why", "red")
        code = Exit.FAILED
    gate = options.gate.gate(report.gate)
    if not gate.has_conditions:
        return code
    root = results_root(report, options.out or dicast.settings.results_dir)
    gate_exit = hold_to_gate(
        terminal,
        job_folder(root, report.job_id),
        report,
        gate,
        options.gate,
        console=terminal.err if options.json else None,
    )
    tolerated = gate.max_errors is not None and code is Exit.FAILED and note is None
    return gate_exit if gate_exit is not Exit.OK or tolerated else code


def show_report(terminal: Terminal, report: Report, *, json: bool) -> None:
    if json:
        terminal.emit(report.model_dump_json(indent=2))
    else:
        print_conclusions(report, terminal.out)


def certify_judges(
    terminal: Terminal, path: str, out: str, *, replicates: int, anchors: int, days: float, local: bool, json: bool
) -> Exit:
    """Judge the job in a file several times over, with probes, and write the certificate of its judges. Raises
    `NoCertificate`, `Refused`."""
    from dicast.app.reports.certificates import certify, write_certificate  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_certificate  # noqa: PLC0415

    check_file("--out", out)
    document = _document(path, None, [])
    run_document = {
        **document,
        "id": _new_id("certify"),
        "replicates": max(replicates, int(document.get("replicates", 1))),
        "cache": "off",
    }
    for field in ("gate", "question"):
        run_document.pop(field, None)
    job = application(terminal).prepared(dict(run_document)).job
    judged_items = (item.without(job.rating_columns) for item in job_items(job))
    items = list(arrangement_of(job).expanded(judged_items))
    if all(item.kind == "text" for item in items):  # of which alone there are variants
        more_probes = ["injection", *(["verbosity"] if document.get("ratings") is not None else [])]
        own_probes = [probe for probe in document.get("probes", []) if isinstance(probe, str | dict)]
        names = {probe if isinstance(probe, str) else probe.get("probe") for probe in own_probes}
        run_document["probes"] = [*own_probes, *(name for name in more_probes if name not in names)]
    code = _run_document(terminal, dict(run_document), RunOptions(local=local, quiet=True))
    if code is Exit.INTERRUPTED:
        return code
    run = finished(run_document["id"])
    now = datetime.now(UTC)
    certificate = certify(run.folder, run.report, document, items, issued=now, days=days, most=anchors)
    write_certificate(certificate, Path(out))
    if json:
        terminal.emit(certificate.model_dump_json(indent=2))
    else:
        print_certificate(certificate, terminal.out)
    return code


def watch_judges(terminal: Terminal, path: str, size: int, *, look: bool, local: bool, json: bool) -> Exit:
    """Judge the next anchors of a certificate, unless one only wants to `look`, and say whether a judge has changed.
    Raises `NoCertificate`, `Refused`, OSError."""
    from dicast.app.reports import certificates  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_drift  # noqa: PLC0415

    file, now = Path(path), datetime.now(UTC)
    certificate = certificates.read_certificate(file)
    objections = [f"it has expired on {certificate.expires:%Y-%m-%d}"] if now >= certificate.expires else []
    if not look and not objections:
        anchors = certificates.anchors_due(certificate, certificates.read_judgements(file), size)
        items, job_id = [anchor.item for anchor in anchors], _new_id("watch")
        document = {**certificate.document, "id": job_id, "items": items, "replicates": 1, "cache": "off"}
        code = _run_document(terminal, document, RunOptions(local=local, quiet=True))
        if code is Exit.INTERRUPTED:
            return code
        run = finished(job_id)
        objections = certificate.objections(run.report, certificates.answering(run.folder), now)
        certificates.add_judgements(file, certificates.judgements_of(run.folder, run.report, now))
    drifts = certificates.find_drift(certificate, certificates.read_judgements(file))
    changed = any(drift.changed for drift in drifts)
    if json:
        terminal.emit(to_json({"objections": objections, "drifts": drifts}, indent=2).decode())
    else:
        print_drift(drifts, objections, terminal.out)
    return Exit.GATE_FAILED if changed else Exit.GATE_UNTOLD if objections else Exit.OK


def _new_id(purpose: str) -> str:
    return f"{purpose}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
