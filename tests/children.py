"""Processes of this project's modules, split off from one that has loaded them already (`tests.nursery`)."""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.nursery import NUMBER

ROOT = Path(__file__).parents[1]
BEFORE_THE_FIRST_LINE = ("LD_", "PYTHON", "MALLOC_", "LC_", "LANG")
"""What an interpreter, or the system beneath it, reads before it runs anything: such a process is started anew."""

OWN = {"PYTHONPATH", "PYTHONUNBUFFERED"}
"""Of these, what is set here is not meant for children."""


@functools.cache
def _nursery() -> socket.socket:
    """Where this process asks for children. The nursery ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        environ = {name: value for name, value in os.environ.items() if name not in OWN}
        subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", str(theirs.fileno())], cwd=ROOT, env=environ,
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return ours


class Child(subprocess.Popen[Any]):
    """`python -m MODULE WORDS`, as `subprocess.Popen` would start it."""

    _waitpid_lock: Any
    _handle_exitstatus: Any

    def _execute_child(self, args: Sequence[Any], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any,
                       cwd: Any, env: Mapping[str, str] | None, startupinfo: Any, creationflags: Any, shell: Any,
                       p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
                       *more: Any) -> None:  # fmt: skip
        """The name and the place of the arguments are those of the standard library, from Python 3.11 on."""
        *_, new_session, _group = more
        _python, dash, module, *words = map(str, args)
        assert dash == "-m", args
        self._status, status = os.pipe()
        request = {
            "module": module, "words": [module, *words], "folder": str(cwd or Path.cwd()),
            "environ": dict(os.environ if env is None else env), "new_session": bool(new_session),
        }  # fmt: skip
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        try:
            socket.send_fds(_nursery(), [json.dumps(request).encode()], [*streams, status])
        finally:
            os.close(status)
        self.pid = self._number()
        self._child_created = True
        null = getattr(self, "_devnull", None)
        pipes = {
            given for given, other in ((p2cread, p2cwrite), (c2pwrite, c2pread), (errwrite, errread)) if other != -1
        }
        for descriptor in pipes if null is None else {*pipes, null}:
            os.close(descriptor)
        self._closed_child_pipe_fds = True

    def _number(self) -> int:
        packed = os.read(self._status, NUMBER.size)
        if len(packed) < NUMBER.size:
            raise ChildProcessError("the nursery has ended")
        number: int = NUMBER.unpack(packed)[0]
        return number

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        timeout_s = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._status], [], [], timeout_s)[0]:
            return 0, 0
        return self.pid, self._number()

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        """Called when the object is collected too, when nothing may be left to ask."""
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            except OSError:
                self.returncode = _deadstate
            finally:
                self._waitpid_lock.release()
        return self.returncode


def start(command: Sequence[Any], *, cwd: Any = None, env: Mapping[str, str] | None = None, **more: Any) -> Any:
    """`subprocess.Popen` of a `python -m` command, as a child where that makes no difference."""
    given = os.environ if env is None else env
    told = {name: value for name, value in given.items() if name.startswith(BEFORE_THE_FIRST_LINE)}
    same = all(name == "PYTHONPATH" or (name not in OWN and os.environ.get(name) == told[name]) for name in told)
    return (Child if same else subprocess.Popen)(command, cwd=cwd, env=env, **more)


def run(command: Sequence[Any], *, input: str = "", timeout: float = 60, **more: Any) -> Any:
    """`subprocess.run` of a `python -m` command, with its output captured as text."""
    pipe = subprocess.PIPE
    with start(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **more) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
