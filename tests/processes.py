"""Processes of this project's programs, forked from a server that has loaded their modules.

A test that starts `celery -A app worker` means the worker, not two seconds of imports by Python, and the suite starts
hundreds. What runs is the same program in a process of its own, with the environment, folder, files and signals that it
is given. Programs that a variable has loaded in another way (LD_PRELOAD, PYTHONPATH) are executed as ever, as are all
with TEST_FORK=0 and those that no test starts.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import cast

ROOT = Path(__file__).parents[1]
AT_LOADING = {
    "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "", "PYTHONDEVMODE": "", "PYTHONIOENCODING": "", "PYTHONUTF8": "",
    "LANG": "", "LC_ALL": "", "LD_PRELOAD": "",
}  # fmt: skip
"""Variables that take effect while Python starts, and what amounts to not setting them."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.preloaded"])


def _run(ready: Connection, files: Sequence[Connection], arguments: Sequence[str], environ: Mapping[str, str],
         folder: Path) -> None:  # fmt: skip
    """Become the process that Python would be, and run the module or the program."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
        file.close()
    sys.stdin = os.fdopen(0, closefd=False)
    sys.path.insert(0, str(folder))
    sys.argv = list(arguments)
    ready.send(None)
    ready.close()
    try:
        _run_main(arguments)
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves them out


def _run_main(arguments: Sequence[str]) -> None:
    if arguments[0] == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        return
    if not hasattr(sys.modules.get(arguments[0]), "__path__"):
        sys.modules.pop(arguments[0], None)  # it would not be loaded again
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


class Forked:
    """A process that runs `python -m ARGUMENTS` or `python -c CODE ARGUMENTS`, the leader of a session.

    It is a `Popen` as far as tests need one.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, *files: int) -> None:
        """Start it with these numbers of open files as its standard input, output and errors."""
        self.args = arguments
        begun, ready = multiprocessing.Pipe(duplex=False)
        ends = [Connection(os.dup(number)) for number in files]
        self._process = _server.Process(target=_run, args=(ready, ends, arguments, dict(environ), folder))
        self._process.start()
        for end in (ready, *ends):
            end.close()
        with begun:
            begun.recv()
        self.pid = cast(int, self._process.pid)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, cast(float, timeout))
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[bytes]


def _loads_alike(environ: Mapping[str, str]) -> bool:
    """Return whether a test asks for a program that would load the modules that the server has."""
    if "PYTEST_CURRENT_TEST" not in os.environ or os.environ.get("TEST_FORK") == "0":
        return False
    return all(environ.get(name, unset) == os.environ.get(name, unset) for name, unset in AT_LOADING.items())


def _as_options(arguments: Sequence[str]) -> Sequence[str]:
    return arguments if arguments[0] == "-c" else ["-m", *arguments]


def start(arguments: Sequence[str], environ: Mapping[str, str], folder: Path, output: int, errors: int) -> Process:
    """Start `python -m ARGUMENTS`, or `python -c CODE ARGUMENTS`, in a session of its own, with nothing to read."""
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        if _loads_alike(environ):
            return Forked(arguments, environ, folder, nothing.fileno(), output, errors)
        return subprocess.Popen(
            [sys.executable, *_as_options(arguments)], env=environ, cwd=folder, stdin=nothing, stdout=output,
            stderr=errors, start_new_session=True,
        )  # fmt: skip


def run(
    arguments: Sequence[str], environ: Mapping[str, str], folder: Path, stdin: str = "", timeout: float = 180
) -> subprocess.CompletedProcess[str]:
    """Run `python -m ARGUMENTS`, or `python -c CODE ARGUMENTS`, to its end, and return what it wrote."""
    if not _loads_alike(environ):
        return subprocess.run(
            [sys.executable, *_as_options(arguments)], env=environ, cwd=folder, input=stdin, capture_output=True,
            text=True, check=False, timeout=timeout,
        )  # fmt: skip
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        process = Forked(arguments, environ, folder, given.fileno(), out.fileno(), err.fileno())
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())
