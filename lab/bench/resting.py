"""What a worker that does nothing yet holds in memory, by what brought it: `python -m lab.bench.resting`."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping

import psutil

Figures = Mapping[str, float]

STEPS: Mapping[str, tuple[str, ...]] = {
    "Python": (),
    "Celery's worker, Redis client": ("celery.apps.worker", "celery.worker.consumer", "redis.asyncio"),
    "Celery's command line with Flower and a REPL": ("celery.bin.celery",),
    "OpenAI SDK, aiohttp": ("aiohttp", "openai", "openai.types.chat"),
    "Dicast": (
        "dicast.app.celery",
        "dicast.app.tasks",
        "dicast.app.assembly",
        "dicast.app.providers.registry",
        "dicast.workers.runtime.consumer",
    ),
}
"""In the order in which they are imported: what two of them need is the first one's."""


def resting() -> Figures:
    """What a worker's imports alone hold in memory, MB, in their order; nothing that runs in it can be smaller."""
    found: dict[str, float] = json.loads(subprocess.check_output([sys.executable, "-m", "lab.bench.resting"]))
    return {**found, "in all": sum(found.values())}


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
