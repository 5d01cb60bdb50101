"""Commands that concern this machine: `dicast stop`, `serve`, `doctor`, `health`, `metrics`, `init`, `demo`,
`cache`.

`dicast stop` ends the processes that Dicast started on this machine and left running for others. `dicast doctor` prints
its findings as they are made; colour and exit code show the worst. `dicast metrics` prints one scrape of the store.
`dicast health` says whether the worker of this host works. `dicast init` makes a job file and a pools file to begin
with. `dicast demo` shows what Dicast does, from recorded judgements. `dicast cache` looks after the opinions that are
kept here to be used again.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from textwrap import TextWrapper

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from rich.text import Text

from dicast import config
from dicast.app import logs
from dicast.app.application import Dicast, create_app
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.local_worker import early_worker
from dicast.app.cli.run import RunOptions, application, run_job
from dicast.app.cluster import snapshot
from dicast.app.cluster.metrics import SharedCollector
from dicast.app.domain.deadlines import seconds
from dicast.app.domain.text import counted, printable
from dicast.app.operator.doctor import Finding, Severity, examine
from dicast.app.providers.local import running_local_model, stop_local_model
from dicast.app.reports.opinion_cache import OpinionCache
from dicast.app.submission.job_file import file_schema
from dicast.config.settings import DEFAULTS, environment
from dicast.errors import Exit
from dicast.workers.store import embedded


def stop_daemons(terminal: Terminal, *, force: bool) -> None:
    """Stop the embedded store and the local model of the state directory. The store's data stay on disk.

    Raises `Refused` while workers use that store, unless `force` is set.
    """
    dicast = application(terminal)
    state_dir = dicast.settings.state_dir
    stopped = []
    # The store first: if it is refused, nothing is stopped.
    if dicast.settings.redis_url is None and _stop_store(dicast, force=force):
        stopped.append("the embedded Valkey")
    if running_local_model(state_dir) is not None and stop_local_model(state_dir):
        stopped.append("the local model")
    terminal.say(f"Stopped {' and '.join(stopped)} of {state_dir}." if stopped else f"Nothing runs in {state_dir}.")


def _stop_store(dicast: Dicast, *, force: bool) -> bool:
    """Stop the embedded store, and return whether it was running. Only a running store knows which workers use it, so
    it is started for the check."""
    state_dir = dicast.settings.state_dir
    if not force and embedded.find_running(state_dir) and (nodes := [node.name for node in dicast.registry.alive()]):
        raise Refused(f"workers live on this store ({', '.join(nodes)}): stop them first, or use --force")
    return embedded.stop(state_dir)


def run_server(terminal: Terminal, host: str | None, port: int | None) -> None:
    """Serve HTTP until interrupted. Raises `SettingsError`, or `Refused` if the server's packages are not installed."""
    dicast = application(terminal)
    try:
        from dicast.app.server.interface import serve  # noqa: PLC0415  (needs the extra `server`)
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is missing: pip install -e '.[server]'") from None
    logs.configure(dicast.settings.log_level, dicast.secrets())
    settings = dicast.settings
    notify = terminal.say if terminal.err.is_terminal else None
    serve(
        dicast, settings.server_host if host is None else host, settings.server_port if port is None else port, notify
    )


MARKS = {
    Severity.OK: ("ok", "green"),
    Severity.INFO: ("info", "cyan"),
    Severity.WARNING: ("warning", "yellow"),
    Severity.ERROR: ("ERROR", "bold red"),
}
NEVER = 100_000
"""The line width when output goes to a file, so that no line is wrapped."""
MARK_WIDTH = max(len(mark) for mark, _ in MARKS.values())


def show_findings(terminal: Terminal, *, call: bool, json: bool) -> Exit:
    """Print the findings. Returns `Exit.FAILED` if any of them is an error."""
    findings: list[Finding] = []
    for finding in examine(environment(), call=call):
        findings.append(finding)
        if not json:
            _show(terminal, finding)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    if json:
        document = {"ok": not errors, "findings": [asdict(finding) for finding in findings]}
        terminal.emit(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        counts = f"{counted(errors, 'error', 'errors')}, {counted(warnings, 'warning', 'warnings')}"
        terminal.out.print(f"\n{counts}" if errors or warnings else "\nAll is well.")
    return Exit.FAILED if errors else Exit.OK


def _show(terminal: Terminal, finding: Finding) -> None:
    mark, style = MARKS[finding.severity]
    out = terminal.out
    margin = " " * (MARK_WIDTH + 2)
    layout = TextWrapper(
        width=out.width if out.is_terminal else NEVER, break_on_hyphens=False, initial_indent=margin,
        subsequent_indent=margin,
    )  # fmt: skip
    text = layout.fill(f"{finding.area}: {finding.message}")
    out.print(Text.assemble((mark.ljust(len(margin)), style), text.removeprefix(margin)), soft_wrap=True)
    if finding.advice:
        out.print(Text(layout.fill(finding.advice), style="italic"), soft_wrap=True)


def show_metrics(terminal: Terminal) -> None:
    """Print the metrics. Raises redis errors: without the store there is nothing to print."""
    dicast = application(terminal)
    snapshot = dicast.scrape()
    registry = CollectorRegistry()
    registry.register(SharedCollector(lambda: snapshot))
    terminal.emit(generate_latest(registry).decode().rstrip("\n"))


STARTER = Path(config.__file__).parent
SCHEMA = "job.schema.json"
"""The file in which the starter's first line has an editor look."""


def make_files(terminal: Terminal, folder: str) -> None:
    """Write `job.yaml`, its schema for editors, and `config/pools.toml` into a folder. Existing files stay as they are.

    Raises `Refused` if both exist, OSError.
    """
    root = Path(folder)
    templates = {"job.yaml": STARTER / "jobs" / "starter.yaml", DEFAULTS.pools_file: STARTER / "pools.toml"}
    new = {name: source for name, source in templates.items() if not (root / name).exists()}
    if not new:
        raise Refused(f"{' and '.join(templates)} are in {root.resolve()} already; nothing was changed")
    for name, source in new.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
        terminal.say(f"Wrote {target}")
    if "job.yaml" in new and not (root / SCHEMA).exists():
        show_schema(terminal, str(root / SCHEMA))
    for name in templates.keys() - new.keys():
        terminal.say(f"Left {root / name} as it is")
    job = root / "job.yaml"
    terminal.say(f"Next:\n  dicast validate {job}\n  dicast run --local {job}")


def show_schema(terminal: Terminal, output: str | None) -> None:
    """Print the JSON Schema of a job's file, or write it to a file. Raises OSError."""
    text = orjson.dumps(file_schema(), option=orjson.OPT_INDENT_2).decode()
    if output is None:
        terminal.emit(text)
    else:
        Path(output).write_text(f"{text}\n", encoding="utf-8")
        terminal.say(f"Schema in {output}")


DEMO = STARTER / "demo"


def run_demo(terminal: Terminal, folder: str) -> Exit:
    """Copy the demo's files into a folder, unless they are there, and run its job there from recorded judgements. Uses
    a store of its own, whatever the settings say; an `.env` has later commands in the folder use it, too. Raises
    OSError."""
    root = Path(folder).resolve()
    root.mkdir(parents=True, exist_ok=True)
    for source in sorted(DEMO.iterdir()):
        if not (root / source.name).exists():
            (root / source.name).write_bytes(source.read_bytes())
    places = {"DICAST_POOLS_FILE": "pools.toml", "DICAST_STATE_DIR": ".dicast", "DICAST_RESULTS_DIR": "results"}
    if not (root / ".env").exists():
        lines = ["# Read by every `dicast` command that is given in this folder."]
        text = "\n".join([*lines, *(f"{name}={place}" for name, place in places.items())])
        (root / ".env").write_text(f"{text}\n", encoding="utf-8")
    os.environ.update({name: str(root / place) for name, place in places.items()})
    os.environ.update({"REDIS_URL": "", "DICAST_BROKER_URL": "", "DICAST_SERVER_URL": "", "DICAST_NAMESPACE": "dicast"})
    terminal.say("Three invented help desks, judged by three invented judges. No model is called.", "dim")
    options = RunOptions(local=True, cassette=str(root / "judgements.jsonl"))
    with early_worker(None) as early:
        code = run_job(terminal, str(root / "job.yaml"), None, [], options, early)
    if code is Exit.OK:
        terminal.say(
            f"Look at {root}: job.yaml is the job, ratings.csv what people said.\n"
            "Next: change the job there and run it again, or `dicast init` with your own texts and judges."
        )
    return code


BEAT_SILENT_S = 30.0


def check_health(*, beat: bool = False) -> Exit:
    """Print one line about the worker, or the beat, of this host, and return the exit code. Raises `SettingsError` or
    redis errors, which mean that it is unhealthy, too."""
    dicast = create_app(environment())
    if beat:
        age_s = snapshot.age_s(dicast.settings.state_dir)
        line = "no beat of this host is heard" if age_s is None else f"the beat sent its last tick {age_s:.0f} s ago"
        sys.stdout.write(f"{line}\n")
        return Exit.OK if age_s is not None and age_s < BEAT_SILENT_S else Exit.FAILED
    local_nodes = [node for node in dicast.living_nodes() if node.host == socket.gethostname()]
    stuck = [f"{node.name} takes no work: {node.stuck}" for node in local_nodes if node.stuck]
    sys.stdout.write(
        ("; ".join(stuck) or (f"{len(local_nodes)} well" if local_nodes else "no worker of this host is heard")) + "\n"
    )
    return Exit.OK if local_nodes and not stuck else Exit.FAILED


def opinion_cache(terminal: Terminal) -> OpinionCache:
    """Return this machine's cache of opinions."""
    settings = application(terminal).settings
    return OpinionCache(settings.state_dir, most_bytes=settings.cache_bytes)


def show_cache(terminal: Terminal, *, json: bool) -> None:
    """Print what the cache holds."""
    with opinion_cache(terminal) as cache:
        stats = cache.stats()
    if json:
        terminal.emit(orjson.dumps(stats._asdict(), option=orjson.OPT_INDENT_2).decode())
        return
    if not stats.entries:
        terminal.say(f"{cache.path} keeps no opinions. A job with `cache: use` keeps its own.")
        return
    ages = " to ".join(_day(ms) for ms in dict.fromkeys((stats.oldest_ms, stats.newest_ms)))
    terminal.out.print(
        Text(f"{counted(stats.entries, 'opinion')} of {ages}, {stats.bytes / 1e6:,.1f} MB, in {cache.path}"),
        soft_wrap=True,
    )
    for judge, count in stats.judges.items():
        terminal.out.print(Text(f"  {count:>9,}  {printable(judge, 60)}"))


def _day(ms: int | None) -> str:
    return datetime.fromtimestamp((ms or 0) / 1000, UTC).strftime("%Y-%m-%d")


def prune_cache(terminal: Terminal, older_than: str) -> None:
    """Remove old opinions. Raises `Refused` if the age is no duration."""
    try:
        age_s = seconds(older_than)
    except ValueError as error:
        raise Refused(f"--older-than {older_than}: {error}") from None
    with opinion_cache(terminal) as cache:
        removed = cache.prune(before_ms=round(1000 * (time.time() - age_s)))
    terminal.say(f"Removed {counted(removed, 'opinion')} from {cache.path}.")


def export_cache(terminal: Terminal, to: str) -> None:
    """Write all kept opinions to a new file, JSON Lines. Raises `Refused` if there is one already, OSError."""
    target, written = Path(to), 0
    with opinion_cache(terminal) as cache, target.open("xb") as file:
        for line in cache.export():
            written += file.write(line) > 0
    terminal.say(f"Wrote {counted(written, 'opinion')} to {target}.")


def import_cache(terminal: Terminal, path: str) -> None:
    """Add the opinions of an export. Those that are kept already stay. Raises `CacheError`, OSError."""
    with opinion_cache(terminal) as cache:
        added = cache.add_export(path)
    terminal.say(f"Added {counted(added, 'opinion')}.")
