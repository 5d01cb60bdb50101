"""Imported by workers under test (`celery -A app worker -I lab.chaos.strikes`): throws errors into its loops.

CHAOS_STRIKES   a folder. For a file `strike` in it, of one line "kind name", the exception is thrown where that task,
                thread or callback waits or is called next, and the file is taken away; `names` lists what there is

Nothing of this is in the product: a worker without this import cannot be struck.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from kombu.asynchronous import get_event_loop

from dicast.workers.runtime.pool import TaskPool

LOOK_EVERY_S = 0.02
OWN = "strikes"
CALLBACKS = ("loop callback", "hub timer", "hub callback", "pool callback")
"""Whatever is called once: on the event loop, by the hub's timer and the hub itself, and by the pool on the hub."""


class Struck(Exception):
    """What is thrown."""


def _raise() -> None:
    raise Struck("in a callback")


class Striker:
    """One worker's. `pool` is its execution pool."""

    def __init__(self, pool: TaskPool, folder: Path) -> None:
        self._pool, self._folder = pool, folder

    def run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            fresh = self._folder / "names.new"
            fresh.write_text(json.dumps({"pid": os.getpid(), **self._names()}))
            fresh.replace(self._folder / "names")
            with contextlib.suppress(FileNotFoundError):
                kind, _, name = (self._folder / "strike").read_text().partition(" ")
                if kind == "thread" and not any(thread.name == name for thread in threading.enumerate()):
                    continue  # it is being started again
                getattr(self, f"_strike_{kind}")(name)
                (self._folder / "strike").unlink()

    def _names(self) -> dict[str, list[str]]:
        with contextlib.suppress(RuntimeError):  # tasks that come and go while they are looked at
            tasks = [task.get_name() for task in asyncio.all_tasks(self._pool.loop)]
            threads = [thread.name for thread in threading.enumerate() if thread.name != OWN]
            return {"task": sorted(tasks), "thread": sorted(threads), "callback": list(CALLBACKS)}
        return {}

    def _strike_task(self, name: str) -> None:
        def strike() -> None:
            for task in asyncio.all_tasks():
                waits_for: Any = task
                while isinstance(waits_for, asyncio.Task):
                    waits_for = waits_for._fut_waiter
                if task.get_name() == name and waits_for is not None and not waits_for.done():
                    waits_for.set_exception(Struck(name))
                    return
            self._pool.loop.call_later(LOOK_EVERY_S, strike)  # it runs just now, or is being started again

        self._pool.loop.call_soon_threadsafe(strike)

    def _strike_thread(self, name: str) -> None:
        for thread in threading.enumerate():
            if thread.name == name:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))

    def _strike_callback(self, name: str) -> None:
        hub = get_event_loop()
        assert hub is not None
        match name:
            case "loop callback":
                self._pool.loop.call_soon_threadsafe(_raise)
            case "hub timer":
                hub.call_soon(hub.call_later, 0, _raise)
            case "hub callback":
                hub.call_soon(_raise)
            case "pool callback":
                self._pool.post(_raise)


if "CHAOS_STRIKES" in os.environ:
    start = TaskPool.on_start

    def on_start(pool: TaskPool) -> None:
        start(pool)
        striker = Striker(pool, Path(os.environ["CHAOS_STRIKES"]))
        threading.Thread(target=striker.run, name=OWN, daemon=True).start()

    TaskPool.on_start = on_start  # type: ignore[method-assign]
