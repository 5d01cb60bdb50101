"""How a browser bears the page: the first view of a large job, and a tab's memory while a job runs.

`python -m lab.tab --items 20000 --minutes 60`

A finished job's folder is made as its workers would write it; how long its view, its items and one item take until they
are drawn is measured several times, each in a new tab. Then a job runs, as far as store and results tell, at
`UNITS_PER_S` with failures, and its view stays open; the tab's memory is that of its renderer process
(proportional set size) and of JavaScript's heap after a collection. Needs the embedded store and Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from dicast.app.application import Dicast, create_app
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion, Usage
from dicast.app.reports.files import write_page
from dicast.app.reports.folders import begin
from lab.page import DIMENSIONS, JOB, JUDGES, WORDS, make
from lab.pictures import browser, dicast, serving

TIMES = 5
UNITS_PER_S = 996
"""Of 83 items: a little less than a thousand."""
FAILED_SHARE = 0.01
RUNNING = "running"
VIEWS = {
    "job": (f"#/jobs/{JOB}", ".verdict"),
    "items": (f"#/jobs/{JOB}/items?sort=disagreement&descending=true", ".items tbody tr"),
    "item": (f"#/jobs/{JOB}/item?id=item-77", ".opinions li"),
}


def main() -> int:
    """Measure and print all."""
    parser = argparse.ArgumentParser(description="How a browser bears the page of a large job.")
    parser.add_argument(
        "--items", type=int, default=20_000, help="items of the finished job, of 12 opinions each (20000)"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the running job is watched (60)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root / "results", given.items, 1)
        os.environ |= {
            "DICAST_RESULTS_DIR": str(root / "results"), "DICAST_STATE_DIR": str(root / "state"),
            "DICAST_SERVER_RATE": "1000000", "DICAST_REQUIRE_AUTH": "false",
        }  # fmt: skip
        try:
            with serving(root) as address, browser() as chromium:
                for name, (view, wait) in VIEWS.items():
                    seconds = sorted(_first_view(chromium, address + view, wait) for _ in range(TIMES))
                    _say(f"{name:8} first view {median(seconds):.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f})")
                _watch(chromium, address, create_app(os.environ), given.minutes)
        finally:
            dicast(root, "stop").wait()  # the embedded store
    return 0


def _first_view(chromium: Any, address: str, wait: str) -> float:
    """Return the seconds until a view is drawn in a new tab, with nothing cached."""
    context = chromium.new_context()
    page = context.new_page()
    began = time.monotonic()
    page.goto(address)
    page.wait_for_selector(wait)
    seconds = time.monotonic() - began
    context.close()
    return seconds


def _watch(chromium: Any, address: str, application: Dicast, minutes: float) -> None:
    """Print the memory of a tab that shows a running job, at the beginning, in between, and at the end."""
    page = chromium.new_page()
    session = page.context.new_cdp_session(page)
    seconds = round(60 * minutes)
    units = _running(application, seconds)
    next(units)
    page.goto(f"{address}#/jobs/{RUNNING}")
    began, looks = time.monotonic(), {5, *range(0, seconds + 1, max(1, seconds // 6)), seconds} - {0}
    for second, done in enumerate(units, 1):
        time.sleep(max(0.0, began + second - time.monotonic()))
        if second in looks:
            session.send("HeapProfiler.collectGarbage")
            heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
            shown = page.locator(".figures").inner_text().split("\n")[1]
            _say(f"{second:5} s {done:9,} units done ({shown}): {_renderer(chromium):4.0f} MB, heap {heap:3.0f} MB")


def _running(application: Dicast, seconds: int) -> Iterator[int]:
    """Submit a job, and take it forward by a second at each step; yields the units done."""
    of_item = len(JUDGES) * len(DIMENSIONS)
    items = max(1, seconds * UNITS_PER_S // of_item + 1000)
    path = Path(application.settings.results_dir).parent / "items.jsonl"
    with path.open("w", encoding="utf-8") as lines:
        lines.writelines(
            json.dumps({"id": f"item-{n}", "text": "a text", "metadata": {"system": f"bot {n % 4}"}}) + "\n"
            for n in range(items)
        )
    application.submit({
        "id": RUNNING, "items": str(path), "groups": ["system"], "agents": [{"name": name} for name in JUDGES],
        "dimensions": [{"id": name, "instructions": "?", "scale": {"min": 1, "max": 5}} for name in DIMENSIONS],
    })  # fmt: skip
    layout = application.ledger.layout(RUNNING)
    begin(application.settings.results_dir, RUNNING, layout.incarnation)
    opinions, done, failed = _opinions(items, random.Random(2)), 0, 0
    yield done
    for page in range(seconds):
        group = list(islice(opinions, UNITS_PER_S))
        errors = [_error(opinion) for opinion in group if opinion.score is None]
        write_page(application.settings.results_dir, RUNNING, layout.incarnation, "0", page, group, errors)
        done, failed = done + len(group), failed + len(errors)
        counters = {"done": done, "scored": done - failed, "failed": failed, "calls": done + failed}
        fields = {"state": "running", "started_ms": 1, **counters, "tokens_in": 210 * done, "tokens_out": 60 * done}
        application.store.hset(application.keys.at("job", RUNNING), mapping=fields)
        yield done


def _opinions(items: int, rng: random.Random) -> Iterator[Opinion]:
    for item in range(items):
        for judge in JUDGES:
            for dimension in DIMENSIONS:
                yield Opinion(
                    judge=judge, criterion_id=dimension, item_id=f"item-{item}", replicate=0,
                    score=None if rng.random() < FAILED_SHARE else rng.randint(1, 5),
                    argument=" ".join(rng.choices(WORDS, k=20)), model="planted", usage=Usage(),
                    metadata={"system": f"bot {item % 4}"},
                )  # fmt: skip


def _error(opinion: Opinion) -> EvaluationError:
    return EvaluationError(
        judge=opinion.judge, criterion_id=opinion.criterion_id, item_id=opinion.item_id, replicate=0,
        kind=ErrorKind.TIMEOUT, message="no answer within 60 s", attempts=3,
    )  # fmt: skip


def _renderer(chromium: Any) -> float:
    """Return the MB of the browser's largest renderer process, what it shares with others counted in part."""
    processes = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    return max(_memory(process["id"]) for process in processes if process["type"] == "renderer")


def _memory(process: int) -> float:
    fields: Sequence[str] = Path(f"/proc/{process}/smaps_rollup").read_text().split()
    return int(fields[fields.index("Pss:") + 1]) / 1024


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
