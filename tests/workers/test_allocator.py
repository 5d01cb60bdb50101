"""Threads allocate from one arena of malloc, as malloc itself tells."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

THREADS = """
import ctypes, sys, threading
from dicast.workers.system.host import share_one_arena
if sys.argv[1] == "one": share_one_arena()
ready = threading.Barrier(5)
def hold(): kept = [bytes(10_000) for _ in range(10)]; ready.wait(10); ready.wait(10)
threads = [threading.Thread(target=hold) for _ in range(4)]
for thread in threads: thread.start()
ready.wait(10)
ctypes.CDLL(None).malloc_stats()
ready.wait(10)
"""


def arenas(given: str, **environ: str) -> int:
    command = [sys.executable, "-c", THREADS, given]
    run = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True, timeout=60)
    return run.stderr.count("Arena")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")
def test_threads_share_an_arena_unless_the_operator_says_otherwise() -> None:
    assert arenas("one") == 1
    assert arenas("as they come") > 1
    assert arenas("one", MALLOC_ARENA_MAX="3") == 3


@pytest.mark.parametrize("given, found", [({}, "system"), ({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}, "mimalloc")])
def test_arrow_allocates_there_too_unless_the_operator_says_otherwise(given: dict[str, str], found: str) -> None:
    program = """
from dicast.workers.system.host import share_one_arena
share_one_arena()
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""
    environ = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"} | given
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == found
