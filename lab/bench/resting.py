"""What a worker that does nothing yet holds in memory, by what brought it: `python -m lab.bench.resting`."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping

import psutil

Figures = Mapping[str, float]

SDK = "OpenAI's SDK, where a pool's calls go through it"
WITHOUT_SDK = "in all, without the SDK"
STEPS: Mapping[str, tuple[str, ...]] = {
    "Python": (),
    "Celery's worker, Redis client": ("celery.apps.worker", "celery.worker.consumer", "redis.asyncio"),
    "Celery's command line with Flower and a REPL": ("celery.bin.celery",),
    "HTTP, pydantic": ("aiohttp", "httpx2", "pydantic"),
    "Dicast": (
        "dicast.app.celery",
        "dicast.app.tasks",
        "dicast.app.assembly",
        "dicast.app.providers.openai",
        "dicast.workers.runtime.consumer",
    ),
    SDK: ("openai", "openai.types.chat"),
}
"""In the order in which they are imported: what two of them need is the first one's."""


def resting() -> Figures:
    """What a worker's imports alone hold in memory, MB, in their order; nothing that runs in it can be smaller."""
    found: dict[str, float] = json.loads(subprocess.check_output([sys.executable, "-m", "lab.bench.resting"]))
    return {**found, WITHOUT_SDK: sum(found.values()) - found[SDK]}


def main() -> None:
    held, found = 0.0, {}
    for step, modules in STEPS.items():
        for module in modules:
            importlib.import_module(module)
        rss = psutil.Process().memory_info().rss / 1e6
        found[step], held = rss - held, rss
    print(json.dumps(found))


if __name__ == "__main__":
    main()
