"""The embedded store ends by itself when nobody uses it, and never under anybody who does."""

import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis

from dicast.workers.store import embedded, watcher
from dicast.workers.store.embedded import ensure_running, find_running, has_data, leave, stop
from tests.patience import Stopwatch

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0
SOON_S = 0.2

USER = """
import sys
import redis
from dicast.workers.store.embedded import ensure_running
store = ensure_running(sys.argv[1], idle_s=float(sys.argv[2]))
with redis.Redis.from_url(store.url) as client:
    client.incr("commands")
print(store.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def state_dir(tmp_path):
    yield tmp_path
    stop(tmp_path)


def user(state_dir, idle_s):
    """Another process that uses the store and has it until it is told a line; with the store's pid."""
    command = [sys.executable, "-c", USER, str(state_dir), str(idle_s)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, psutil.Process(int(process.stdout.readline()))


def leaves(process):
    process.communicate("\n", timeout=DEADLINE_S)


def watchers(state_dir):
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(word.endswith("watcher.py") for word in process.info["cmdline"] or [])
        and any(str(state_dir) in word for word in process.info["cmdline"])
    ]


def wait_until(holds):
    watch = Stopwatch()
    while not holds():
        assert watch.s < DEADLINE_S, "it does not come about"
        time.sleep(0.01)


def log(state_dir):
    return (state_dir / "store" / "valkey.log").read_text()


def value(store):
    with redis.Redis.from_url(store.url) as client:
        return int(client.get("commands"))


# ------------------------------------------------------------------ with its own watcher
def test_it_ends_when_its_last_user_has_gone_and_loses_nothing(state_dir):
    process, server = user(state_dir, SOON_S)
    (watching,) = watchers(state_dir)
    leaves(process)
    server.wait(timeout=DEADLINE_S)
    watching.wait(timeout=DEADLINE_S)
    assert "Calling fsync() on the AOF file" in log(state_dir)
    assert f"nobody has used the store for {SOON_S} s" in log(state_dir)
    again = ensure_running(state_dir)
    assert again.started_by_us
    assert value(again) == 1


def test_many_users_that_come_as_it_ends_all_get_a_store(state_dir):
    """It is idle at once: it ends again and again while they come, and none meets an error."""

    def comes(_):
        for _ in range(3):
            leaves(user(state_dir, 0.01)[0])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(comes, range(2)))
    assert value(ensure_running(state_dir)) == 6


def test_a_killed_watcher_is_replaced_by_the_next_user(state_dir):
    first, server = user(state_dir, SOON_S)
    (killed,) = watchers(state_dir)
    killed.kill()
    wait_until(lambda: not watchers(state_dir))
    leaves(first)
    second, same = user(state_dir, SOON_S)
    assert same == server
    assert len(watchers(state_dir)) == 1
    leaves(second)
    server.wait(timeout=DEADLINE_S)


def test_a_store_has_one_watcher_and_a_stopped_one_has_none(state_dir):
    for _ in range(3):
        ensure_running(state_dir)
    assert len(watchers(state_dir)) == 1
    assert stop(state_dir)
    wait_until(lambda: not watchers(state_dir))
    assert ensure_running(state_dir).started_by_us
    wait_until(lambda: len(watchers(state_dir)) == 1)


def test_a_store_that_died_and_was_started_again_is_watched(state_dir):
    process, server = user(state_dir, SOON_S)
    os.kill(server.pid, signal.SIGKILL)
    server.wait(timeout=DEADLINE_S)
    another, successor = user(state_dir, SOON_S)
    assert successor != server
    leaves(process)
    leaves(another)
    successor.wait(timeout=DEADLINE_S)


def test_with_zero_it_is_not_watched(state_dir):
    ensure_running(state_dir, idle_s=0)
    assert watchers(state_dir) == []


def test_a_watcher_that_cannot_be_started_is_told_of(state_dir, monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", str(state_dir / "nothing"))
    store = ensure_running(state_dir)
    with redis.Redis.from_url(store.url) as client:
        assert client.ping()
    assert "will not end by itself" in caplog.text


# ------------------------------------------------------------------ who comes as it ends
def test_who_comes_while_it_ends_waits_and_starts_it_again(state_dir):
    """The test is the watcher, at the moment at which it has decided."""
    process, server = user(state_dir, 0)
    leaves(process)
    with (state_dir / "store" / "holders.lock").open("ab") as holders:
        assert watcher.locked(holders)
        came = threading.Event()

        def come():
            came.set()
            return ensure_running(state_dir)

        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(come)
            assert came.wait(DEADLINE_S)
            assert not coming.done()
            watcher.Store(str(state_dir / "store" / "valkey.sock")).shut_down()
            assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
            fcntl.flock(holders, fcntl.LOCK_UN)
            store = coming.result(DEADLINE_S)
    assert store.started_by_us
    assert value(store) == 1


def test_a_hold_that_is_never_given_back_ends_the_wait(state_dir, monkeypatch):
    stop(state_dir)
    (state_dir / "store").mkdir(mode=0o700)
    monkeypatch.setattr(embedded, "START_DEADLINE_S", 0.1)
    with (state_dir / "store" / "holders.lock").open("ab") as holders:
        assert watcher.locked(holders)
        with pytest.raises(embedded.DaemonError, match=r"has held .*holders\.lock for too long"):
            ensure_running(state_dir)


def test_leaving_stops_what_nobody_else_holds(state_dir):
    assert not leave(state_dir)
    ensure_running(state_dir)
    process, server = user(state_dir, 300)
    assert not leave(state_dir)
    assert server.is_running()
    leaves(process)
    assert leave(state_dir)
    assert find_running(state_dir) is None


# ------------------------------------------------------------------ the watcher's decisions
class Watched:
    """A store with nobody who watches it, and what a watcher of it needs. Its clock moves on by `step_s` whenever it
    is read, and calls `at_look` with the number of the reading first."""

    def __init__(self, state_dir, step_s=1000.0):
        self.store = ensure_running(state_dir, idle_s=0)
        embedded._release(state_dir.resolve() / "store")
        self.folder, self.step_s = state_dir / "store", step_s
        self.readings = itertools.count(1)
        self.at_look = lambda number: None
        self.holders = (self.folder / "holders.lock").open("ab")
        self.lock = (self.folder / "watcher.lock").open("ab")
        assert watcher.locked(self.lock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holders.close()
        self.lock.close()

    def clock(self):
        number = next(self.readings)
        self.at_look(number)
        return number * self.step_s

    def watch(self, idle_s=0.01):
        return watcher.watch(str(self.folder / "valkey.sock"), self.holders, self.lock, idle_s, self.clock)

    def alive(self):
        with redis.Redis.from_url(self.store.url) as client:
            return client.ping()


def test_a_store_that_somebody_holds_is_in_use(state_dir):
    """Though the holder is not connected, and a long time passes."""
    with Watched(state_dir) as watched, (watched.folder / "holders.lock").open("ab") as hold:
        fcntl.flock(hold, fcntl.LOCK_SH)
        lived = []

        def at_look(number):
            if number == 6:
                lived.append(watched.alive())
                fcntl.flock(hold, fcntl.LOCK_UN)

        watched.at_look = at_look
        assert watched.watch()
        assert lived == [True]
    assert find_running(state_dir) is None


def test_a_store_to_which_somebody_is_connected_is_in_use(state_dir):
    """As with a client of another program, which does not hold it."""
    with Watched(state_dir) as watched:
        client = redis.Redis.from_url(watched.store.url, single_connection_client=True)
        lived = [client.ping()]

        def at_look(number):
            if number == 8:
                lived.append(client.ping())
                client.close()

        watched.at_look = at_look
        assert watched.watch()
        assert lived == [True, True]


def test_somebody_who_has_come_and_gone_since_the_last_look_has_used_it(state_dir):
    with Watched(state_dir) as watched:
        lived = []

        def at_look(number):
            if number < 8:
                lived.append(watched.alive())

        watched.at_look = at_look
        assert watched.watch()
        assert lived == [True] * 7


def test_a_store_is_not_idle_before_its_time(state_dir):
    """Where the clock goes slower it is looked at more often."""
    with Watched(state_dir, step_s=1.0) as watched:
        assert watched.watch(idle_s=0.2) is True
        few = next(watched.readings)
    with Watched(state_dir, step_s=0.01) as watched:
        assert watched.watch(idle_s=0.2) is True
        assert next(watched.readings) > few + 10


def test_a_frozen_store_is_not_idle(state_dir, monkeypatch, capsys):
    monkeypatch.setattr(watcher, "ANSWER_TIMEOUT_S", 0.05)
    with Watched(state_dir) as watched:

        def at_look(number):
            if number == 1:
                os.kill(watched.store.pid, signal.SIGSTOP)
            if number == 4:
                os.kill(watched.store.pid, signal.SIGCONT)

        watched.at_look = at_look
        assert watched.watch()
        assert "cannot be asked whether it is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "trouble", [{"aof_last_write_status": "err"}, {"aof_buffer_length": "7"}, {"aof_last_write_status": None}]
)
def test_what_has_not_reached_the_disk_is_not_given_up(trouble):
    good = {"aof_last_write_status": "ok", "aof_buffer_length": "0"}
    assert watcher.has_lost_nothing(good)
    assert not watcher.has_lost_nothing({name: v for name, v in {**good, **trouble}.items() if v is not None})


def test_a_store_whose_log_cannot_be_written_goes_on_until_it_can(state_dir, monkeypatch):
    with Watched(state_dir) as watched:
        answers, asked = iter([False] * 3 + [True]), []

        def reaches(info):
            asked.append(watched.alive())
            return next(answers)

        monkeypatch.setattr(watcher, "has_lost_nothing", reaches)
        assert watched.watch()
        assert asked == [True] * 4


def test_a_refusal_to_end_is_no_end(state_dir):
    """A connection that was opened before there was a password cannot shut it down without one."""
    with Watched(state_dir) as watched:
        store = watcher.Store(str(watched.folder / "valkey.sock"))
        with redis.Redis.from_url(watched.store.url) as client:
            client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-shutdown"])
            with pytest.raises(OSError, match="NOPERM"):
                store.shut_down()
            store.close()
            assert client.ping()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_next_store_can_be_watched_when_a_watch_is_over(state_dir, is_stopped):
    """And where the watch has ended the store, nobody could have started the next one meanwhile."""
    with Watched(state_dir) as watched:
        if is_stopped:
            stop(state_dir)
        assert watched.watch() is not is_stopped
        with (watched.folder / "watcher.lock").open("ab") as another:
            assert watcher.locked(another)
        with (watched.folder / "holders.lock").open("ab") as hold:
            assert watcher.locked(hold) is is_stopped


def test_a_watch_goes_on_with_the_store_that_another_has_started(state_dir):
    """Its starter saw that the store is watched, and started no watcher."""
    with Watched(state_dir) as watched:

        def at_look(number):
            if number == 2:
                os.kill(watched.store.pid, signal.SIGKILL)
                assert ensure_running(state_dir).started_by_us
                assert watchers(state_dir) == []
                embedded._release(state_dir.resolve() / "store")

        watched.at_look = at_look
        assert watched.watch() is True
    assert find_running(state_dir) is None


# ------------------------------------------------------------------ what it costs
def test_a_watcher_is_small_and_does_next_to_nothing(state_dir):
    process, server = user(state_dir, 0.5)
    try:
        (watching,) = watchers(state_dir)
        assert watching.memory_info().rss < 16 * 2**20
        before = watching.cpu_times().user
        wait_until(lambda: watching.num_ctx_switches().voluntary > 20)
        assert watching.cpu_times().user - before < 0.1
        assert server.is_running()
    finally:
        leaves(process)


def test_data_are_told_from_none(state_dir):
    assert not has_data(state_dir)
    assert find_running(state_dir) is None
    assert not (state_dir / "store").exists()
    store = ensure_running(state_dir)
    assert has_data(state_dir)
    found = find_running(state_dir)
    assert (found.pid, found.url) == (store.pid, store.url)
    stop(state_dir)
    assert has_data(state_dir)
    assert find_running(state_dir) is None
