"""The floor: the OpenAI SDK alone, as many calls open in one process, nothing else.

    python -m lab.bench.sdk_alone URL --open 1000 --calls 3000

Prints CPU ms a call, calls a second and memory, before and at its peak, as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time

import psutil
from openai import AsyncOpenAI, DefaultAioHttpClient

PROMPT = "Judge the following text by the rubric, and answer with a JSON object of score and argument. " * 15


async def run(url: str, calls: int, most_open: int) -> None:
    async with AsyncOpenAI(
        base_url=url, api_key="none", max_retries=0, http_client=DefaultAioHttpClient(timeout=60)
    ) as client:
        left = iter(range(calls))

        async def ask() -> None:
            for _ in left:
                await client.chat.completions.create(
                    model="simulated-judge", messages=[{"role": "user", "content": PROMPT}], max_tokens=400
                )

        await asyncio.gather(*(ask() for _ in range(most_open)))


def main() -> None:
    parse = argparse.ArgumentParser(prog="python -m lab.bench.sdk_alone", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("url")
    parse.add_argument("--open", type=int, default=1000)
    parse.add_argument("--calls", type=int, default=3000)
    arguments = parse.parse_args()
    idle_mb = psutil.Process().memory_info().rss / 1e6
    started, cpu = time.monotonic(), time.process_time()
    asyncio.run(run(arguments.url, arguments.calls, arguments.open))
    figures = {
        "calls_per_s": arguments.calls / (time.monotonic() - started),
        "cpu_ms": 1000 * (time.process_time() - cpu) / arguments.calls,
        "idle_mb": idle_mb,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
