"""The processes that compute the statistics of finished jobs, forked from a server that has loaded the libraries.

The product starts one for each job with something to compute, and each would load scipy and pandas for two seconds of
CPU time: hundreds of times in the suite. What runs is the same program on the same folder, in a process of its own with
its own exit code. It is executed as ever with TEST_FORK=0, under variables that take effect while Python starts, and in
programs that no test has forked (tests.processes).
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = "dicast.app.reports.finishing"
ADDRESS = "TEST_STATISTICS_SOCKET"
LIBRARIES = (
    "pandas", "pyarrow.dataset", "pyarrow.parquet", "scipy.optimize", "scipy.stats", "sklearn.isotonic",
    "sklearn.metrics", "statsmodels.regression.linear_model", "statsmodels.stats.inter_rater",
    "statsmodels.stats.proportion", "dicast.app.analysis.assess", "dicast.app.reports.panel", PROGRAM,
)  # fmt: skip
EXECUTED_UNDER = ("LD_PRELOAD", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONIOENCODING", "PYTHONUTF8")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
NUMBER = struct.Struct("!q")

_execute = subprocess.run


def _run(address: str, command: Any, *args: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, but for the command that computes statistics."""
    environ = options.get("env") or {}
    forked = isinstance(command, list) and command[1:4] == ["-P", "-m", PROGRAM]
    if not forked or any(environ.get(name) for name in EXECUTED_UNDER):
        return _execute(command, *args, **options)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(options["input"])
        stdin.seek(0)
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(address)
            request = pickle.dumps((command[3:], dict(environ), str(Path.cwd())))
            files = [stdin.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(server, [NUMBER.pack(len(request))], files)
            server.sendall(request)
            pid = NUMBER.unpack(_receive(server, NUMBER.size))[0]
            server.settimeout(options["timeout"])
            try:
                code = NUMBER.unpack(_receive(server, NUMBER.size))[0]
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, options["timeout"]) from None
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read(), stderr.read())


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the server of the statistics' processes has gone")
        received += part
    return received


def fork_them() -> None:
    """Have this process, and those that are forked from it, fork the processes, if there is a server."""
    if address := os.environ.get(ADDRESS):
        subprocess.run = functools.partial(_run, address)  # type: ignore[assignment]


def serve() -> None:
    """Start the server for this process and those that it starts, until this one ends."""
    os.environ[ADDRESS] = tempfile.mkdtemp(prefix="dicast-statistics-") + "/s"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.environ[ADDRESS])
    listening.listen(64)
    # The write end of this pipe is open as long as this process lives, and the server reads the other one.
    here, _ = os.pipe()
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(listening.fileno()), str(here)], cwd=Path(__file__).parents[1],
        pass_fds=(listening.fileno(), here), env={**os.environ, **ONE_THREAD}, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    os.close(here)
    listening.close()


def main(arguments: Sequence[str]) -> None:
    """Fork a process for each request, once the libraries are loaded, which the first one does."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening, alive = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    while True:
        ready, _, _ = select.select([listening, alive], [], [])
        if alive in ready:
            break
        connection, _ = listening.accept()
        for name in LIBRARIES:
            importlib.import_module(name)
        if os.fork() == 0:
            listening.close()
            os.close(alive)
            _answer(connection)
        connection.close()
    address = Path(listening.getsockname())
    address.unlink()
    address.parent.rmdir()


def _answer(connection: socket.socket) -> NoReturn:
    """Run what a client asks for in a child of this process, and tell it the child's number and exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
    arguments, environ, folder = pickle.loads(_receive(connection, NUMBER.unpack(size)[0]))
    child = os.fork()
    if child == 0:
        connection.close()
        _become(arguments, environ, folder, files)
    try:
        connection.sendall(NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)


def _become(arguments: Sequence[str], environ: dict[str, str], folder: str, files: Sequence[int]) -> NoReturn:
    code: Any = 1
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.argv = list(arguments)
        sys.modules.pop(PROGRAM, None)  # it would not be run again
        runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
