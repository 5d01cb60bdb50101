"""What the page of results consists of: the sections in order, their words and columns, the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import psutil

from lab.bench import headers, layers
from lab.bench.cases import CASES
from lab.bench.contenders import ALL
from lab.bench.report import Column, Goal, Section
from lab.bench.scale import SIZES
from lab.bench.single import SINGLE

STEADY = (
    Column("capacity_%", "capacity used, %", 1),
    Column("wall_s", "first to last call, s", -1),
    Column("whole_s", "to the result, s", -1),
    Column("refused", "429s", -1),
    Column("lost", "lost", -1),
    Column("peak_mb", "peak MB", -1),
    Column("cpu_ms", "CPU ms a call", -1),
)
COLUMNS = {
    "steady-900": STEADY,
    "steady-3000": STEADY,
    "headers-900": STEADY,
    "cut": STEADY,
    "kill": (
        Column("paid_twice", "answers paid twice", -1),
        Column("cut_off", "calls cut off"),
        Column("lost", "lost", -1),
        Column("refused", "429s", -1),
        Column("restart_s", "ready again after, s", -1),
        Column("after_kill_s", "kill to result, s", -1),
    ),
    "ceiling": (
        Column("calls_per_s", "calls a second", 1),
        Column("most_open", "most open"),
        Column("cpu_ms", "CPU ms a call", -1),
        Column("peak_mb", "peak MB", -1),
        Column("lost", "lost", -1),
    ),
}
PARTS = (
    Column("cpu_ms", "worker, CPU ms a call"),
    Column("store_cpu_ms", "store"),
    Column("beat_cpu_ms", "beat"),
    Column("client_cpu_ms", "client"),
    Column("peak_mb", "worker and client, peak MB"),
    Column("store_mb", "store"),
    Column("beat_mb", "beat"),
)

SDK = "openai-told"
GOALS = (
    *(
        Goal(
            f"steady-{calls}",
            contender,
            "capacity_%",
            f"{words} of {told}, times what the told SDK uses",
            bound,
            at_least=True,
            rival=SDK,
        )
        for calls, told, cold in ((900, "900 calls", 0.97), (3000, "3,000 calls", 0.99))
        for contender, words, bound in (
            ("dicast", "capacity used, cold,", cold),
            ("dicast-warm", "the same, warm,", 0.99),
        )
    ),
    Goal("steady-900", "dicast", "refused", "calls refused of 900, cold", 8),
    Goal("steady-900", "dicast-warm", "refused", "the same, warm", 4),
    Goal("steady-3000", "dicast", "refused", "calls refused of 3,000, cold", 29),
    Goal("steady-3000", "dicast-warm", "refused", "the same, warm", 14),
    Goal("steady-3000", "dicast", "lost", "calls lost of 3,000, cold", 0),
    Goal(
        "steady-3000",
        "dicast-warm",
        "cpu_ms",
        "worker's CPU over the SDK's own, 40 open, ms a call",
        3,
        rival=SDK,
        over=True,
    ),
    Goal("open", "dicast", "over SDK alone, ms/call", "the same with 1,000 open", 1),
    Goal(
        "ceiling",
        "dicast-told",
        "calls_per_s",
        "calls a second of one process, times the SDK's",
        0.85,
        at_least=True,
        rival=SDK,
    ),
    Goal("ceiling", "dicast-told", "calls_per_s", "times those of Inspect", 3, at_least=True, rival="inspect-told"),
    Goal("ceiling", "dicast-told", "calls_per_s", "times those of curator", 1.5, at_least=True, rival="curator-told"),
    Goal(
        "slots-workers",
        "dicast",
        "2 workers: times as fast",
        "two workers where slots bind, times one",
        1.8,
        at_least=True,
    ),
    Goal("slots-moved", "dicast", "p99, ms", "a slot that comes free on another worker, taken within, p99, ms", 10),
    Goal("open", "dicast", "peak MB before the report", "worker with 1,000 open calls, MB", 160),
    Goal("open-3000", "dicast", "peak MB before the report", "worker with 3,000 open calls, MB", 350),
    Goal("million", "dicast", "store over its base, MB", "1,000,000 units: store over its base, MB", 100),
    Goal("million", "dicast", "client's peak, MB", "client, MB", 150),
    Goal("million", "dicast", "worker's peak with the report, MB", "worker, with the report, MB", 250),
    Goal("million", "dicast", "slowest look at the progress, s", "slowest look at the progress, s", 2),
    Goal("million", "dicast", "cancel: last new call after, s", "last new call after a cancel, s", 2),
    Goal("million", "dicast", "second job: first result after, s", "first result of a second job, s", 5),
    Goal("batch-1", "dicast", "worker's peak with the report, MB", "50,000 units by batch: worker, MB", 250),
    Goal("batch-4", "dicast", "worker's peak with the report, MB", "200,000 units by batch: worker, MB", 250),
    Goal("start", "dicast", "first result after submission, ms", "first result of a job, idle worker, ms", 150),
    Goal("start", "dicast", "dicast --help, ms", "`dicast --help`, ms", 300),
    Goal("start", "dicast", "celery -A app worker, ready after, s", "`celery -A app worker` ready, s", 2),
    Goal("start", "dicast", "dicast run --local, first answer after, s", "`dicast run --local`: first answer, s", 1.5),
    Goal("start", "dicast", "import of the application, ms", "import of the application, ms", 300),
    Goal("counts", "dicast", "commands to the store", "commands to the store for a unit", 12),
)

SIZE_CASES = {f"size-{units}": f"{units:,} units" for units in SIZES}
SIZE_FIGURES = (
    "store over its base, MB", "worker's peak, MB", "client's peak, MB", "published ahead, units", "submission s",
    "units/s", "report s", "left in the store, MB",
)  # fmt: skip

HEAD = """\
# Benchmarks

Dicast alone, and beside what people would choose instead. `make bench-peers` installs the others, each in an
environment of its own; `make bench` measures; `make bench BENCH=--docs` also writes this page. Figures are medians,
with the range in brackets.
"""
ABOUT = """\
## How it is measured

**The task** is the same for all: a number of chat completions, each with the words and the JSON schema that Dicast
sends for one unit (DeepEval writes its own prompt, of about the same length). The provider is the simulated one, over
HTTP on loopback, in a process of its own; calls, refusals and capacity are its own count. *Capacity used* is the share
of what its cap allowed between the first call and the end of the last. *Lost* are units without a score at the end. CPU
time is counted from the moment when a contender is ready and its imports are done (a Dicast worker is ready before its
SDKs are loaded, so for a cold worker their loading counts). Memory is the most that its processes ever held. *Load* is
the machine's load average at the end of a run: the higher it is, the more of the cores other programs used.

**Dicast** runs as the README starts it: `celery -A app worker`, beat and the embedded Valkey, a ceiling of 100, and
nothing said about the provider. *Cold* means that it has never seen the provider, *warm* that a job of 900 units, not
measured, ran before, and its HTML report is written. Its CPU column is the worker's, without the process that writes
the HTML report afterwards; store, beat and client have a table of their own. **Told** means that the contender is given
the provider's true limit; *default* and *a semaphore of 100* mean that it is not, like Dicast.

**Left out**: providers beyond the machine, TLS, answers longer than a judge's, and contenders on several machines. The
SDK is measured with aiohttp, which the others use, and with the transport that it brings; *headers-900* is the same
task with headers as OpenAI sends them. *Two workers where slots bind* have a core's time left, as the row of that case
says (`slots-workers`): on two cores that provider, store and bench share, two workers that each fill a core cannot be
measured. Both cases count the *cores in use*, by whatever program, while two workers run: where they come near to the
*cores of the machine*, the machine binds, and the ratio says nothing of the workers.

**At a glance** compares with the SDK round by round: median and range are those of each round's ratio or difference.
`make bench BENCH='--only CASE'` measures the row of a case again.
"""
FOOT = """\
## Goals missed, and their floors

**Capacity of a short run.** A run ends in a tail, in which too few calls are left to fill 40 places. That tail is what
the OpenAI SDK and aiohttp lack to 100 %, although they are told the cap. Dicast is not told. A cold worker pays for
finding it: the first half second of its curve, and some refusals. And between an answer and the next call a slot is
empty while a lease and a claim, which make the call safe, are fetched from the store. *Dicast alone: slots* shows for
how long; for longer calls this matters less.

**Memory.** *Dicast alone: resting* shows what a worker's imports alone hold: mostly Celery, and its command line with
Flower. *Dicast alone: open* shows what the SDK alone takes for as many open calls.

**Calls a second, CPU time.** One process has one core. *Dicast alone: layers* shows what Celery, lease, claim and
record take of it besides the SDK. More processes share the work if there are cores for them.

## How to read this

One machine does everything here: provider and contender share its cores, and with calls of half a second CPU time
matters more than with longer ones. The machine itself shares a host, whose speed changes from run to run (see the
ranges of *CPU ms a call*), so compare figures of one case only. A limit that is told is right only as long as nobody
else uses the account; the quota cut shows what happens otherwise. The raw figures of every run are in
[benchmarks.json](benchmarks.json).
"""


def machine() -> str:
    """CPU, cores, memory, kernel, Python."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cores, memory = os.cpu_count(), psutil.virtual_memory().total / 2**30
    return (
        f"{model[1] if model else platform.machine()}, {cores} cores, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}"
    )


def commit() -> str:
    """Of Dicast, at which it is measured."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()


def _sizes() -> Section:
    about = "From submission to report, the items in a file, a call for ten units, answered at once."
    command = f"make bench BENCH='--only {','.join(SIZE_CASES)}'"
    columns = tuple(Column(figure, figure) for figure in SIZE_FIGURES)
    return Section("", "Dicast alone: a job's size", about, command, {"dicast": ""}, columns, rows=SIZE_CASES)


def _headers() -> Section:
    about = (
        "Calls of 0.5 s on average, served by one worker, cold; what the headers tell of does not bind but in the last "
        "two. The first line is what the others should come to."
    )
    columns = (
        Column("capacity_%", "capacity used, %", 1),
        Column("quota_%", "of the windows' quota, %", 1),
        Column("wall_s", "first to last call, s", -1),
        Column("refused_%", "refused, %", -1),
    )
    command = "make bench BENCH='--only headers'"
    return Section("", "Dicast alone: what headers tell", about, command, {"dicast": ""}, columns, rows=headers.LABELS)


def sections() -> list[Section]:
    """Peers first, then what only Dicast can be asked."""
    pages = []
    for case in CASES.values():
        labels = {name: ALL[name].label for name in case.who}
        command = f"make bench BENCH='--only {case.name}'"
        plot = f"benchmarks-{case.name}.svg"
        pages.append(Section(case.name, case.title, case.about, command, labels, COLUMNS[case.name], plot))
        mine = {name: label for name, label in labels.items() if name.startswith("dicast")}
        if case.name in ("steady-900", "ceiling"):
            about = "The same runs: what else of the machine Dicast takes."
            pages.append(Section(case.name, f"{case.title}: Dicast's parts", about, command, mine, PARTS))
    pages += [_sizes(), _headers()]
    for name, measure in SINGLE.items():
        if name in SIZE_CASES or name in headers.LABELS:
            continue
        about = (measure.__doc__ or "").strip().partition("\n")[0]
        command = f"make bench BENCH='--only {name}'"
        plot = layers.PICTURE if name == "layers" else ""
        pages.append(Section(name, f"Dicast alone: {name}", about, command, {"dicast": "Dicast"}, (), plot))
    return pages
