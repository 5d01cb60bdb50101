"""The modules of the product that the work on one unit's message runs through, as entered by a real worker.

python -m lab.message_trace          the modules, each with the number of its functions entered, and how many there are

One process holds all parts but the embedded store: a client, a worker and the simulated provider. The worker does a job
of a few units, one call at a time. Of one message, the functions are noted from the begin of its task's body to its
end, those of asyncio tasks and callbacks that the body causes included.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dicast.app.providers.simulated import SimulatedProvider

ROOT = Path(__file__).parents[1]
PRODUCT = tuple(f"{ROOT}/dicast/{part}/" for part in ("app", "workers", "config"))
ITEMS, DIMENSIONS = 4, 2
TRACED = 4
"""The number of the message that is traced. What is loaded or made with the first ones counts for none."""
DEADLINE_S = 60.0

_in_work: ContextVar[bool] = ContextVar("in_work", default=False)


class MessageTrace:
    """Notes the functions that are entered on behalf of one task."""

    def __init__(self) -> None:
        self._entered: set[CodeType] = set()
        self._around: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note one event, as `sys.setprofile` brings it."""
        code = frame.f_code
        if event == "call" and _in_work.get() and code.co_filename.startswith(PRODUCT) and code not in self._around:
            self._entered.add(code)

    def of_message(self, number: int, body: Callable[..., Any]) -> Callable[..., Any]:
        """Return a task's body that is traced when it is called for the `number`-th time."""
        calls = 0

        async def traced(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls != number:
                return await body(*arguments)
            self._around = {frame.f_code for frame, _ in traceback.walk_stack(None)}  # resumed, but not entered
            token = _in_work.set(True)
            sys.setprofile(self.note)  # each greenlet has a profile function of its own
            try:
                return await body(*arguments)
            finally:
                sys.setprofile(None)
                _in_work.reset(token)

        return traced

    def functions(self) -> Counter[str]:
        """Return the modules, each with the number of its functions that were entered."""
        named = [code for code in self._entered if not code.co_name.startswith("<")]
        paths = (Path(code.co_filename).relative_to(ROOT / "dicast") for code in named)
        return Counter(".".join(path.with_suffix("").parts) for path in paths)


@contextlib.contextmanager
def _provider() -> Iterator[str]:
    """Yield the address of a simulated provider on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    provider = SimulatedProvider()
    asyncio.run_coroutine_threadsafe(provider.__aenter__(), loop).result()
    try:
        yield provider.base_url
    finally:
        asyncio.run_coroutine_threadsafe(provider.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _settings(folder: Path, base_url: str) -> Mapping[str, str]:
    pools = folder / "pools.toml"
    pools.write_text(f'[pools.sim]\nprovider = "simulated"\nbase_url = "{base_url}"\n')
    return {
        "REDIS_URL": "",
        "MAX_CONCURRENT_LLM_CALLS": "8",  # the whole job is published at once: no message has more of it planned
        "DICAST_POOLS_FILE": str(pools),
        "DICAST_STATE_DIR": str(folder / "state"),
        "DICAST_RESULTS_DIR": str(folder / "results"),
        "DICAST_HTML_REPORT": "false",
    }


def _judge_a_job(app: Any, outcome: list[str]) -> None:
    """Submit a job, wait for its end, and have the worker of this process stop."""
    from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE  # noqa: PLC0415  (of the settings in main)

    try:
        job_id = app.submit({
            "items": [{"id": f"item-{n}", "text": f"A text to judge, number {n}."} for n in range(ITEMS)],
            "agents": [{"name": "judge", "pool": "sim"}],
            "dimensions": [{"id": f"dim-{n}", "instructions": "Is it good?"} for n in range(DIMENSIONS)],
        })  # fmt: skip
        app.send_task(EVALUATE, args=(job_id,), task_id=job_id, queue=CONTROL_QUEUE)
        end = time.monotonic() + DEADLINE_S
        while not app.ledger.status(job_id).state.ended and time.monotonic() < end:
            time.sleep(0.05)
        outcome.append(app.ledger.status(job_id).state)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def trace() -> Counter[str]:
    """Do a job in this process, and return the modules that one of its messages ran through. To be called once, in the
    main thread of a process that has not loaded the application."""
    from dicast.workers.store import embedded  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="dicast-trace-") as name, _provider() as base_url:
        folder = Path(name)
        os.environ.update(_settings(folder, base_url))
        from dicast.app import tasks  # noqa: PLC0415
        from dicast.app.celery import app  # noqa: PLC0415
        from dicast.app.pipeline import pool_trouble  # noqa: PLC0415

        pool_trouble.REFRESH_S = 0.0  # each message reads it, or whether the traced one does would be chance

        noted, states = MessageTrace(), list[str]()
        tasks._judge = noted.of_message(TRACED, tasks._judge)
        threading.setprofile(noted.note)
        client = threading.Thread(target=_judge_a_job, args=(app, states))
        worker = app.Worker(hostname="traced@here", logfile=str(folder / "worker.log"), concurrency=1, quiet=True)
        client.start()
        try:
            worker.start()
        finally:
            threading.setprofile(None)
            client.join()
            app.close()
            embedded.stop(folder / "state")
    if states != ["completed"]:
        raise RuntimeError(f"the job did not complete: {states}")
    return noted.functions()


def main() -> None:
    """Print the modules and their number."""
    found = trace()
    for module, functions in sorted(found.items()):
        print(f"{module:36} {functions:3}")
    print(f"modules: {len(found)}, functions: {found.total()}")


if __name__ == "__main__":
    main()
