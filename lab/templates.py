"""Templates as no sane author writes them: whether each ends in time, and whether the server lives meanwhile.

    python -m lab.templates                     # 10,000 templates, rendered
    python -m lab.templates --serve             # ... and submitted to a real `dicast serve`, whose /healthz is asked

The grammar is what the language allows and a little more: lists that share their entries, loops in loops, every filter
on every value, comparisons, slices, numbers too large, texts too strange. Where a template breaks a bound, its seed is
told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dicast.app.domain.item import Item
from dicast.app.domain.material import TemplateError
from dicast.app.domain.template import FILTERS
from dicast.app.submission.rendering import MEMORY_BYTES, MEMORY_FACTOR, Renderer

WITHIN_S = 1.0
LISTS = "{% set l = [text] %}" + "{% set l = [l, l, l, l, l, l, l, l] %}" * 12 + "{{ l }}{{ text }}"
"""8^12 texts in 450 characters."""
NONCE = "0123456789abcdef"
_CONSTANTS = (
    "0", "-0", "1", "-1", "0.1", "1e308", "9" * 40, "true", "none", "''", "'a'", "'\\n> END'", "'\U0001f600'",
    "'\\u2028SCALE: 1..2'", "[]", "[[]]", "()",
)  # fmt: skip
_ODD = (
    "1e999", "-1e999", "9" * 5000, "0x" + "f" * 3000, "'\\ud800'", "'\\x00'", "(1 * 10)", "(2 ** 9)", "text.upper()",
    "(text | center(10))", "self", "undefined_name", "loop", "loop.index",
)  # fmt: skip
_FIELDS = (
    "text", "prompt", "id", "metadata", "metadata.tags", "metadata.n", "metadata.deep", "metadata.x", "images",
    "metadata.absent", "text.__class__", "metadata['tags'][0]",
)  # fmt: skip
ITEMS = (
    Item(id="small", text="A text.\nOf two lines \U0001f600.", prompt="Why?",
         metadata={"tags": ["a", "b"] * 10, "n": 2**62, "deep": [[[["x"] * 9] * 9] * 9] * 9, "x": float("inf")}),
    Item(id="large", text="Ein Text über \u4e2d\u6587. " * 9_000, prompt="",
         metadata={"tags": list(range(3000)), "n": -1, "deep": {"a": {"b": [None, True]}}, "x": 0.5}),
)  # fmt: skip


class Grammar:
    """One template from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = [f"v{number}" for number in range(6)]

    def template(self) -> str:
        lines = [self._statement(3) for _ in range(self._random.randint(1, 6))]
        if self._random.random() < 0.4:
            lines.insert(self._random.randrange(len(lines) + 1), self._shared())
        if self._random.random() < 0.02:
            lines.append(self._random.choice(["\ud800", "\x00", "{{", "{% for %}", "\nSCALE: 1..3", NONCE]))
        known = "".join(f"{{% set v{number} = {self._value(-1)} %}}" for number in range(6))
        return known + "".join(lines) + "{{ text }}"

    def _shared(self) -> str:
        """A list of lists of lists that are one and the same, and something done to all of it."""
        name = self._name()
        width, depth = self._random.randint(1, 12), self._random.randint(1, 40)
        made = f"{{% set {name} = [{self._value(1)}] %}}"
        made += f"{{% set {name} = [{', '.join([name] * width)}] %}}" * depth
        other = self._random.choice([name, self._value(2), "text"])
        return made + self._random.choice([
            f"{{{{ {name} }}}}", f"{{{{ {name} | {self._filter(1)} }}}}", f"{{{{ {name} ~ {other} }}}}",
            f"{{{{ {name} + {other} }}}}", f"{{% if {name} {self._sign()} {other} %}}x{{% endif %}}",
            f"{{% for a in {name} %}}{{% for b in {other} %}}{{{{ a }}}}{{% endfor %}}{{% endfor %}}",
            f"{{{{ metadata[{name}] }}}}", f"{{{{ {other} | replace({name}, {name}) }}}}",
            f"{{{{ {name} | join({name} | join) }}}}",
        ])  # fmt: skip

    def _statement(self, depth: int) -> str:
        kind = self._random.randrange(8 if depth else 4)
        if kind < 3:
            return f"{{{{ {self._value(depth)} }}}}"
        if kind == 3:
            value = self._value(depth)
            return f"{{% set {self._name()} = {value} %}}"
        if kind == 4:
            return f"{{% if {self._value(depth)} %}}{self._statement(depth - 1)}{{% else %}}x{{% endif %}}"
        if kind == 5:
            return "Words.\n" * self._random.randint(1, 5)
        inner = "".join(self._statement(depth - 1) for _ in range(self._random.randint(1, 3)))
        return f"{{% for {self._name()} in {self._value(depth)} %}}{inner}{{% endfor %}}"

    def _value(self, depth: int) -> str:
        if self._random.random() < 0.002:
            return self._random.choice(_ODD)
        if depth <= 0 or self._random.random() < 0.25:
            return self._random.choice([*_CONSTANTS, *_FIELDS, *self._names * 3] if depth >= 0 else _FIELDS[:4])
        one, other = self._value(depth - 1), self._value(depth - 1)
        return self._random.choice([
            f"({one} | {self._filter(depth)})", f"({one} | {self._filter(depth)} | {self._filter(depth)})",
            f"({one} ~ {other})", f"({one} + {other})", f"({one} - {other})", f"(-{one})",
            f"({one} {self._sign()} {other})", f"[{', '.join([one] * self._random.randint(1, 20))}]",
            f"[{one}, {other}]", f"({one}, {other})", f"{one}[{other}]", f"{one}[:{self._random.randint(-9, 99)}]",
            f"{one}[::-1]", f"({one} if {other} else {one})", f"(not {one})", f"({one} is defined)",
            f"({one} and {other})", f"{one}.x",
        ])  # fmt: skip

    def _filter(self, depth: int) -> str:
        name = self._random.choice(list(FILTERS))
        if name == "replace":
            return f"replace({self._value(depth - 1)}, {self._value(depth - 1)})"
        return f"{name}({self._value(depth - 1)})" if name in ("join", "default") else name

    def _sign(self) -> str:
        return self._random.choice(["==", "!=", "<", ">=", "in", "not in"])

    def _name(self) -> str:
        return self._random.choice(self._names)


@dataclass
class Findings:
    """What came of the templates. `slowest` is in seconds of CPU time, and of a server that of all its processes;
    `peak_bytes` is the largest address space of a process that renders."""

    templates: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    peak_bytes: int = 0
    broken: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"{self.templates} templates; slowest {self.slowest[0]:.2f} s (seed {self.slowest[1]}), " + (
            f"largest {self.peak_bytes / 2**20:.0f} MiB"
        )
        yield ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common(12))
        yield from self.broken


def rendered_all(seeds: range) -> Findings:
    """Render each seed's template on both items. One that takes more than `WITHIN_S` of CPU time, meets an outer bound
    or is answered otherwise than by lines or a `TemplateError` is `broken`."""
    found, renderer = Findings(), Renderer()
    for seed in seeds:
        source, item = Grammar(seed).template(), ITEMS[seed % len(ITEMS)]
        found.templates += 1
        before = _cpu_s(renderer.pid)
        try:
            renderer.lines(source, item, NONCE)
            outcome = "rendered"
        except TemplateError as error:
            outcome = _kind(str(error))
        after = _cpu_s(renderer.pid)
        took = after - before if after >= before else after
        found.outcomes[outcome] += 1
        found.slowest = max(found.slowest, (took, seed))
        found.peak_bytes = max(found.peak_bytes, _peak_bytes(renderer.pid))
        if took > WITHIN_S or "took more than" in outcome or "ended" in outcome:
            found.broken.append(f"seed {seed}: {outcome}, {took:.2f} s")
    if found.peak_bytes > MEMORY_BYTES + MEMORY_FACTOR * max(item.text_bytes for item in ITEMS):
        found.broken.append(f"{found.peak_bytes} bytes of memory")
    renderer.close()
    return found


def submitted_all(seeds: range, first: Sequence[str] = ()) -> Findings:
    """Submit a job with each of the `first` templates, and each seed's, to a server whose /healthz is asked."""
    found, longest_s = Findings(), 0.0
    with _server() as (url, process), _watched(url) as waits:
        asked = chain(((-1, source) for source in first), ((seed, Grammar(seed).template()) for seed in seeds))
        for seed, source in asked:
            found.templates += 1
            began, before = time.monotonic(), _cpu_of_all_s(process.pid)
            status = _submitted(url, source)
            longest_s = max(longest_s, time.monotonic() - began)
            found.outcomes[f"answered {status}"] += 1
            took = _cpu_of_all_s(process.pid) - before
            found.slowest = max(found.slowest, (took, seed))
            found.peak_bytes = max([found.peak_bytes, *map(_peak_bytes, _children(process.pid))])
            if status >= 500 or took > WITHIN_S:
                found.broken.append(f"seed {seed}: answered {status}, {took:.2f} s")
        found.outcomes["looks at /healthz"] = len(waits)
        found.outcomes[f"longest answer {longest_s:.2f} s"] = 1
        worst = max(waits)
        if worst > WITHIN_S:
            found.broken.append(f"/healthz took {worst:.2f} s")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)
        found.outcomes[f"SIGTERM heeded in {time.monotonic() - began:.1f} s, worst /healthz {worst:.3f} s"] = 1
    return found


def _submitted(url: str, source: str) -> int:
    item = ITEMS[0].model_dump(exclude_none=True, include={"id", "text", "prompt", "metadata"})
    item["metadata"].pop("x")
    job = {
        "items": [item], "agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "?"}],
        "template": source,
    }  # fmt: skip
    request = urllib.request.Request(f"{url}/jobs", json.dumps(job).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


@contextmanager
def _server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        pools = Path(folder) / "pools.toml"
        pools.write_text('default = "sim"\n[pools.sim]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:9/v1"\n')
        environ = {
            **os.environ, "DICAST_STATE_DIR": f"{folder}/state", "DICAST_RESULTS_DIR": f"{folder}/results",
            "DICAST_UPLOAD_DIR": f"{folder}/uploads", "DICAST_POOLS_FILE": str(pools), "DICAST_REQUIRE_AUTH": "false",
            "DICAST_SERVER_RATE": "1000000",
        }  # fmt: skip
        command = [sys.executable, "-m", "dicast", "serve", "--port", str(port)]
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 60
            while _healthz(f"http://127.0.0.1:{port}") is None:
                assert process.poll() is None and time.monotonic() < end, "the server does not start"
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}", process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            subprocess.run([sys.executable, "-m", "dicast", "stop"], env=environ, check=False, capture_output=True)


@contextmanager
def _watched(url: str) -> Iterator[list[float]]:
    """How long each answer of /healthz took, while this is open."""
    waits: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            began = time.monotonic()
            answered = _healthz(url)
            waits.append(time.monotonic() - began if answered is not None else float("inf"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def _healthz(url: str) -> int | None:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=10) as reply:
            return int(reply.status)
    except OSError:
        return None


def _kind(message: str) -> str:
    """A message without what is this template's own."""
    words = message.partition(": ")[2] or message
    return " ".join(words.split("'")[0].split()[:6])


def _cpu_s(pid: int | None) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/children"))
        return [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:
        return []


def _cpu_of_all_s(pid: int) -> float:
    """Of a process and its children; one that ends takes its time with it."""
    return sum(map(_cpu_s, [pid, *_children(pid)]))


def _peak_bytes(pid: int | None) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    peak = next((line for line in status.splitlines() if line.startswith("VmPeak")), "VmPeak: 0 kB")
    return int(peak.split()[1]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    found = submitted_all(seeds) if options.serve else rendered_all(seeds)
    print("\n".join(found.lines()))
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
