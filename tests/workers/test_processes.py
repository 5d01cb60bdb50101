"""A process is told from every other, whatever the clock does; only certainty is proof of its end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dicast.workers.system import processes
from dicast.workers.system.processes import Liveness, Process
from tests.e2e.cluster import until

LEADER_ENDS = """
import ctypes, os, threading
threading.Thread(target=input).start()
ctypes.CDLL(None).syscall(60, 0)  # exit: of this thread alone
"""


@pytest.fixture
def other():
    """A process that waits until it is told to end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_lives_becomes_a_zombie_and_is_gone(other):
    process = Process.find(other.pid)
    assert process.fate() is Liveness.ALIVE
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert process.fate() is Liveness.GONE, "a zombie"
    other.wait()
    assert process.fate() is Liveness.GONE


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of a system call")
def test_a_process_whose_first_thread_has_ended_lives_on():
    """It looks like a zombie, and has connections open."""
    other = subprocess.Popen([sys.executable, "-c", LEADER_ENDS], stdin=subprocess.PIPE)
    try:
        process = Process.find(other.pid)
        until(lambda: processes._stat(other.pid)[0] == "Z", "the first thread has ended")
        assert process.fate() is Liveness.ALIVE
    finally:
        other.kill()
        other.communicate()
    assert process.fate() is Liveness.GONE


def test_a_name_with_brackets_and_spaces_hides_no_field(other, tmp_path):
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to(sys.executable)
    process = subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE)
    known = Process.find(process.pid)
    assert Process.find(other.pid).started <= known.started
    assert known.fate() is Liveness.ALIVE
    process.kill()
    process.communicate()


def test_a_recycled_pid_is_another_process(other):
    process = Process.find(other.pid)
    assert process._replace(started=process.started - 1).fate() is Liveness.GONE


def test_of_another_boot_or_namespace_nothing_is_known(other):
    gone = Process.find(other.pid)._replace(pid=2**22 + 1)
    assert gone.fate() is Liveness.GONE
    assert gone._replace(boot="another").fate() is Liveness.UNKNOWN
    assert gone._replace(boot="").fate() is Liveness.UNKNOWN


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, ProcessLookupError])
def test_what_proc_hides_is_not_dead(other, monkeypatch, error):
    """`hidepid`, or a kernel that lets nobody look at others' processes."""
    process = Process.find(other.pid)

    def hidden(pid):
        raise error(pid)

    monkeypatch.setattr(processes, "_stat", hidden)
    assert process.fate() is Liveness.UNKNOWN

    def forbidden(pid, number):
        raise PermissionError

    with monkeypatch.context() as others:
        others.setattr(os, "kill", forbidden)
        assert process.fate() is Liveness.UNKNOWN
    other.kill()
    other.wait()
    assert process.fate() is Liveness.GONE


def test_without_proc_nothing_is_proof(other, monkeypatch, tmp_path):
    known = Process.find(other.pid)
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert Process.find(other.pid) is None
    assert Process.current() == (os.getpid(), "", 0)
    assert Process.current().fate() is Liveness.UNKNOWN
    assert known._replace(pid=2**22 + 1).fate() is Liveness.UNKNOWN


def test_anothers_proc_tells_of_other_processes(monkeypatch, tmp_path):
    """The host's, mounted into a container: its pids are not ours."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/stat").write_text(Path("/proc/self/stat").read_text().replace(str(os.getpid()), "7", 1))
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    assert processes.boot_id() == ""
