"""Where a worker's CPU goes: py-spy's samples of the threads that hold the interpreter, by layer.

A sample belongs to the layer that owns its innermost owned frame: what a library does counts for whoever called it.
The stacks are left in .bench/layers.folded (for speedscope.app or flamegraph.pl), and drawn beside it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from lab.bench import flame
from lab.bench.pipeline import Figures, Machine, cpu_s
from tests.e2e.cluster import a_job

KEPT = Path(__file__).parents[2] / ".bench"
PICTURE = "benchmarks-layers.svg"
RATE_HZ = 200
OTHER = "event loop and interpreter"
OWNERS = {
    "provider SDK and HTTP": ("app/providers/", "openai/", "httpx2/", "aiohttp/"),
    "prompts, answers, decisions": (
        "app/pipeline/judge.py",
        "app/pipeline/judge.py",
        "app/pipeline/call.py",
        "app/pipeline/outcomes.py",
        "app/pipeline/call_facts.py",
        "app/domain/",
        "app/tasks.py",
        "app/assembly.py",
    ),
    "ledger": ("app/ledger/", "app/pipeline/record.py"),
    "gate and governor": ("workers/admission/", "workers/policy/"),
    "commands to the store": ("workers/store/", "redis/"),
    "logs": ("app/logs.py", "app/application.py", "logging/"),
    "planning, publishing, files": (
        "app/pipeline/plan.py",
        "app/pipeline/messages.py",
        "app/pipeline/gather.py",
        "app/reports/",
    ),
    "messages taken and acknowledged": (
        "workers/broker/fetch.py",
        "workers/broker/acknowledgement.py",
        "workers/runtime/consumer.py",
    ),
    "execution pool": ("workers/",),
    "Celery and kombu": ("celery/", "kombu/", "vine/", "billiard/"),
}


def layers(limit: int = 1000, calls: int = 3000, latency_s: float = 3.0) -> Figures:
    """The worker's CPU ms a call by layer, 1,000 calls open, from a profile that costs it some speed."""
    wide = {"MAX_CONCURRENT_LLM_CALLS": str(limit), "DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE": str(limit)}
    with Machine("--latency", str(latency_s), **wide) as m:
        worker = m.worker()
        time.sleep(2.0)  # its SDKs are loaded after it is ready
        profile = _Profile(worker)
        before = cpu_s(worker)
        job_id = m.cluster.submit(a_job(agents=10, dimensions=30, items=calls // 300, pool="wide"))
        m.cluster.report(job_id, 300)
        cpu_ms = 1000 * (cpu_s(worker) - before) / calls
        stacks = profile.stacks()
    shares = by_layer(stacks)
    flame.draw(flame.tree(stacks, layer_of), list(OWNERS), KEPT / PICTURE)
    return {"CPU ms/call": cpu_ms, **{layer: cpu_ms * share for layer, share in shares.items()}}


def by_layer(stacks: Iterable[tuple[Sequence[str], int]]) -> dict[str, float]:
    """The share of each layer, the greatest first; they sum to 1."""
    found: Counter[str] = Counter()
    for frames, samples in stacks:
        owners = [layer for frame in frames if (layer := layer_of(frame)) is not None]
        found[owners[-1] if owners else OTHER] += samples
    return {layer: samples / found.total() for layer, samples in found.most_common()}


def layer_of(frame: str) -> str | None:
    """Of a frame as py-spy writes it, `function (path:line)`, with the path as it is imported."""
    path = frame.rpartition("(")[2].removeprefix("dicast/")
    return next((layer for layer, paths in OWNERS.items() if path.startswith(paths)), None)


class _Profile:
    """Samples one process until its stacks are asked for."""

    def __init__(self, process: psutil.Process) -> None:
        KEPT.mkdir(exist_ok=True)
        self._folded = KEPT / "layers.folded"
        self._spy = subprocess.Popen(
            [Path(sys.executable).parent / "py-spy", "record", "--gil", "--function", "--format", "raw",
             "--rate", str(RATE_HZ), "--duration", "600", "--output", self._folded, "--pid", str(process.pid)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def stacks(self) -> list[tuple[list[str], int]]:
        """Frames from the outermost inwards, and how often they were seen; raises `RuntimeError`."""
        self._spy.send_signal(signal.SIGINT)
        said, _ = self._spy.communicate(timeout=60)
        if self._spy.returncode:
            raise RuntimeError(f"py-spy: {said}")
        lines = (line.rpartition(" ") for line in self._folded.read_text().splitlines())
        return [(frames.split(";"), int(samples)) for frames, _, samples in lines]
