"""How the page's server bears a job of a million opinions. `python -m lab.page --items 83334`

A job's folder is made as its workers would write it, with arguments of some 300 bytes each, all different. A server of
its own is then asked, one request after the other, for what the page shows, each question several times with other
values; told are the slowest answer to each, and the most memory that the server's process had. Making the job does not
count. Needs the embedded store.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from dicast.app.domain.opinion import Opinion, Usage
from dicast.app.domain.report import ReportAgent, ReportDimension, ReportHeader
from dicast.app.reports import files
from dicast.app.reports.folders import begin

JOB, INCARNATION = "large", "lab"
JUDGES, DIMENSIONS = ("strict", "kind", "sharp"), ("clear", "fair", "sound", "kind")
PAGE = 50_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [
    "the", "claim", "comes", "late", "figure", "supports", "no", "source", "names", "city", "council", "road", "shops",
    "air", "noise", "people", "cost",
]  # fmt: skip
TIMES = 5


def make(root: Path, items: int, seed: int) -> None:
    """The folder of a finished job of so many items."""
    begin(root, JOB, INCARNATION)
    found, page = _opinions(items, random.Random(seed)), 0
    while together := list(islice(found, PAGE)):
        files.write_page(root, JOB, INCARNATION, "0", page, together, [])
        page += 1
    header = ReportHeader(
        job_id=JOB, project="lab", status="completed", units=items * len(DIMENSIONS) * len(JUDGES), started=NOW,
        finished=NOW, wall_s=0.0, agents=[ReportAgent(name=name) for name in JUDGES],
        dimensions=[ReportDimension(id=name, scale_min=1, scale_max=5) for name in DIMENSIONS],
    )  # fmt: skip
    files.finish(root, JOB, INCARNATION, header)


def _opinions(items: int, rng: random.Random) -> Iterator[Opinion]:
    for item in range(items):
        good = rng.gauss(3, 1)
        for judge in JUDGES:
            for dimension in DIMENSIONS:
                yield Opinion.model_construct(
                    judge=judge, criterion_id=dimension, item_id=f"item-{item}", replicate=0,
                    score=max(1, min(5, round(rng.gauss(good, 0.7)))), argument=" ".join(rng.choices(WORDS, k=52)),
                    cited_evidence=["no source"], model="planted", usage=Usage(), latency_s=0.0, attempts=1,
                    metadata={},
                )  # fmt: skip


def questions(items: int, rng: random.Random) -> dict[str, list[str]]:
    """What the page asks for, by what a person sees."""
    at = f"/jobs/{JOB}"

    def some(path: str) -> list[str]:
        return [path.format(n=rng.randrange(items), offset=50 * rng.randrange(items // 50)) for _ in range(TIMES)]

    return {
        "report": some(f"{at}/report"),
        "distributions": some(f"{at}/scores"),
        "first page": some(f"{at}/items?limit=50"),
        "most disputed": some(f"{at}/items?sort=disagreement&descending=true"),
        "by score, far in": some(f"{at}/items?sort=score&dimension=fair&offset={{offset}}"),
        "one judge": [f"{at}/items?judge={judge}&sort=score&dimension=clear" for judge in JUDGES],
        "id search": some(f"{at}/items?search=item-{{n}}"),
        "argument search": [f"{at}/items?argument={quote(' '.join(rng.choices(WORDS, k=4)))}" for _ in range(TIMES)],
        "one item": some(f"{at}/item?id=item-{{n}}"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="How the page's server bears a large job.")
    parser.add_argument("--items", type=int, default=83_334, help="items, of 12 opinions each (83334)")
    parser.add_argument("--seed", type=int, default=1, help="where chance starts (1)")
    parser.add_argument("--folder", help="results folder in which the job stays, and is found again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as beside:
        root = Path(given.folder or beside)
        root.mkdir(parents=True, exist_ok=True)
        if not (root / JOB).exists():
            make(root, given.items, given.seed)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environ = {
            **os.environ, "DICAST_REQUIRE_AUTH": "false", "DICAST_RESULTS_DIR": str(root), "DICAST_STATE_DIR": beside,
            "DICAST_SERVER_RATE": "1000000",
        }  # fmt: skip
        server = subprocess.Popen([sys.executable, "-m", "dicast", "serve", "--port", str(port)], env=environ)
        try:
            _measure(f"http://127.0.0.1:{port}", server.pid, questions(given.items, random.Random(given.seed)))
        finally:
            server.terminate()
            server.wait()
            subprocess.run([sys.executable, "-m", "dicast", "stop"], env=environ, check=False)  # the embedded store
    return 0


def _measure(address: str, server: int, asked: dict[str, list[str]]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            _took(f"{address}/healthz")
            break
        except urllib.error.URLError:
            time.sleep(0.1)
    for name, paths in asked.items():
        times, work = list[float](), list[float]()
        for path in paths:
            before = _cpu(server)
            times.append(1000 * _took(address + path))
            work.append(1000 * (_cpu(server) - before))
        median = sorted(times)[len(times) // 2]
        told = f"slowest {max(times):5.0f} ms, median {median:5.0f} ms; CPU at most {max(work):4.0f} ms"
        sys.stdout.write(f"{name:18} {told}\n")
    status = Path(f"/proc/{server}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    sys.stdout.write(f"the server's memory: at most {peak / 1024:.0f} MB\n")


def _cpu(process: int) -> float:
    """Seconds that a process has computed: on a busy machine they tell more than the clock."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _took(url: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as reply:
        reply.read()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
