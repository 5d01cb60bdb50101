"""One store to a state directory, whoever asks for it, however it ended the last time."""

import itertools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import psutil
import pytest
import redis
from celery import Celery
from kombu import Connection

from dicast.workers.store import daemon, embedded
from dicast.workers.store.embedded import DaemonError, backend_url, broker_url, ensure_running, stop
from dicast.workers.system.processes import Process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state_dir(tmp_path):
    yield tmp_path
    stop(tmp_path)


def client(store):
    return redis.Redis.from_url(store.url, decode_responses=True)


def record(state_dir):
    return json.loads((state_dir / "store" / "valkey.json").read_text())


def python(code, *args):
    """Run `code` in a process of its own, and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_first_caller_starts_it_and_others_find_it(state_dir):
    first = ensure_running(state_dir)
    again = ensure_running(str(state_dir))
    assert (first.started_by_us, again.started_by_us) == (True, False)
    assert (first.url, first.pid) == (again.url, again.pid)
    assert psutil.pid_exists(first.pid)


def test_it_keeps_a_log_never_evicts_and_opens_no_port(state_dir):
    store = ensure_running(state_dir)
    with client(store) as c:
        settings = c.config_get("append*", "maxmemory-policy", "port", "save", "unixsocketperm")
    assert (
        settings.items()
        >= {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "save": "",
            "unixsocketperm": "700",
        }.items()
    )
    assert psutil.Process(store.pid).net_connections("inet") == []
    assert (state_dir / "store").stat().st_mode & 0o077 == 0


def test_it_outlives_its_starter(state_dir):
    code = "import sys; from dicast.workers.store.embedded import *; print(ensure_running(sys.argv[1]).pid)"
    pid = int(python(code, state_dir))
    found = ensure_running(state_dir)
    assert (found.pid, found.started_by_us) == (pid, False)
    assert os.getsid(pid) == pid, "a terminal's Ctrl-C must not reach it"


def test_many_start_it_at_once(state_dir):
    """Threads here, and processes beside them: one of them starts it, all of them get the same one."""
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor as T\n"
        "from dicast.workers.store.embedded import *\n"
        "for s in T(4).map(lambda _: ensure_running(sys.argv[1]), range(4)): print(s.pid, int(s.started_by_us))"
    )
    barrier = Barrier(4)

    def process(_):
        barrier.wait(timeout=30)
        return python(code, state_dir)

    with ThreadPoolExecutor(4) as threads:
        rows = [line.split() for out in threads.map(process, range(4)) for line in out.splitlines()]
    assert len(rows) == 16
    assert len({pid for pid, _ in rows}) == 1
    assert sum(int(started) for _, started in rows) == 1


@pytest.mark.parametrize("end", ["stop", "kill -9"])
def test_data_survive(state_dir, end):
    store = ensure_running(state_dir)
    with client(store) as c:
        c.set("opinion", "8")
    if end == "stop":
        assert stop(state_dir)
    else:
        server = psutil.Process(store.pid)
        server.kill()
        server.wait(timeout=10)
        assert record(state_dir)["pid"] == store.pid, "a stale record is part of this test"
    again = ensure_running(state_dir)
    assert again.started_by_us
    assert again.pid != store.pid
    with client(again) as c:
        assert c.get("opinion") == "8"


def test_stop_tells_whether_one_ran_and_leaves_nothing_running(state_dir):
    assert not stop(state_dir)
    process = Process.find(ensure_running(state_dir).pid)
    assert daemon.alive(process)
    assert stop(state_dir)
    assert not daemon.alive(process)
    assert not stop(state_dir)
    assert "Valkey is now ready to exit" in (state_dir / "store" / "valkey.log").read_text()


def test_a_stranger_with_its_pid_is_neither_waited_for_nor_killed(state_dir):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (state_dir / "store").mkdir(mode=0o700)
        known = Process.find(stranger.pid)
        other = json.dumps(known._replace(started=known.started - 1)._asdict())
        (state_dir / "store" / "valkey.json").write_text(other)
        assert not stop(state_dir)
        (state_dir / "store" / "valkey.json").write_text(other)
        store = ensure_running(state_dir)
        assert store.started_by_us
        assert store.pid != stranger.pid
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_one_without_a_record_is_found_and_can_be_stopped(state_dir):
    """Its starter was killed before it could write the record."""
    store = ensure_running(state_dir)
    process = Process.find(store.pid)
    (state_dir / "store" / "valkey.json").unlink()
    assert ensure_running(state_dir).pid == store.pid
    assert stop(state_dir)
    assert not daemon.alive(process)


def test_a_record_of_another_form_is_nobodys(state_dir):
    """As it was written when start times were told by the wall clock: whether it runs is decided by asking it."""
    store = ensure_running(state_dir)
    (state_dir / "store" / "valkey.json").write_text(json.dumps({"pid": store.pid, "started": 1700000000.25}))
    assert ensure_running(state_dir).pid == store.pid
    assert stop(state_dir)


def test_a_damaged_record_is_named(state_dir):
    (state_dir / "store").mkdir(mode=0o700)
    (state_dir / "store" / "valkey.json").write_text("{")
    with pytest.raises(DaemonError, match=r"valkey\.json is damaged"):
        ensure_running(state_dir)
    (state_dir / "store" / "valkey.json").unlink()


def test_a_server_that_cannot_start_shows_its_log(state_dir):
    folder = state_dir / "store" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("not a manifest\n")
    with pytest.raises(DaemonError, match=r"(?s)ended as soon as it was started.*valkey\.log ends with:.*manifest"):
        ensure_running(state_dir)


def test_a_frozen_one_is_waited_for_then_killed(state_dir, monkeypatch):
    store = ensure_running(state_dir)
    os.kill(store.pid, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "PROBE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(embedded, "START_DEADLINE_S", 0.1)
    with pytest.raises(DaemonError, match="running but does not answer"):
        ensure_running(state_dir)
    monkeypatch.setattr(embedded, "STOP_GRACE_S", 0.1)
    assert stop(state_dir)
    monkeypatch.undo()
    assert ensure_running(state_dir).pid != store.pid


def test_one_that_ends_while_it_is_waited_for_is_replaced(state_dir, monkeypatch):
    store = ensure_running(state_dir)
    os.kill(store.pid, signal.SIGSTOP)
    monkeypatch.setattr(embedded, "PROBE_TIMEOUT_S", 0.05)
    probe, asked = embedded._probe, itertools.count(1)

    def asked_thrice(socket):
        if next(asked) == 3:  # before and after the lock, and then as long as it lives
            os.kill(store.pid, signal.SIGKILL)
        return probe(socket)

    monkeypatch.setattr(embedded, "_probe", asked_thrice)
    found = ensure_running(state_dir)
    assert found.started_by_us
    assert client(found).ping()


def test_a_lock_that_is_never_released_ends_the_wait(state_dir, monkeypatch):
    monkeypatch.setattr(embedded, "START_DEADLINE_S", 0.1)
    lock = embedded._daemon(state_dir.resolve() / "store")._locked(float("inf"))
    with lock, pytest.raises(DaemonError, match=r"has held .*valkey\.lock for too long"):
        ensure_running(state_dir)


@pytest.mark.parametrize("name", ["a b", "ü", "x" * 120])
def test_any_state_directory_will_do(tmp_path, name):
    state_dir = tmp_path / name
    try:
        store = ensure_running(state_dir)
        with client(store) as c:
            assert c.ping()
            assert c.config_get("dir")["dir"] == str(state_dir.resolve() / "store")
        with Connection(broker_url(store.url)) as broker:
            assert broker.default_channel.client.ping()
    finally:
        stop(state_dir)


def test_a_short_folder_that_others_can_reach_is_refused(tmp_path, monkeypatch):
    short = tmp_path / "short"
    short.mkdir()
    monkeypatch.setattr(embedded, "SHORT_FOLDERS", short)
    state_dir = tmp_path / ("x" * 120)
    socket = embedded._socket(state_dir / "store")
    socket.parent.mkdir(mode=0o755)
    with pytest.raises(DaemonError, match="open to others"):
        ensure_running(state_dir)


@pytest.mark.parametrize(
    "url, broker, backend",
    [
        ("redis://:pw@h:6379/1", "redis://:pw@h:6379/1", "redis://:pw@h:6379/1"),
        ("rediss://h/0", "rediss://h/0?ssl_cert_reqs=required", "rediss://h/0?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("unix:///a/s?db=3", "redis+socket:///a/s?virtual_host=3", "socket:///a/s?virtual_host=3"),
        ("unix:///a%20b/s", "redis+socket:///a%20b/s?virtual_host=0", "socket:///a%20b/s?virtual_host=0"),
        ("unix://:p%2Fw@/s", "redis+socket://:p%2Fw@/s?virtual_host=0", "socket://:p%2Fw@/s?virtual_host=0"),
        (
            "sentinel://:pw@a:1;sentinel://b/2?master=m",
            "sentinel://:pw@a:1/2;sentinel://:pw@b:26379/2",
            "sentinel://:pw@a:1;sentinel://b/2?master=m",
        ),
        ("unix:///s?password=p/w&db=1", "redis+socket://:p%2Fw@/s?virtual_host=1", "socket://:p%2Fw@/s?virtual_host=1"),
    ],
)
def test_urls(url, broker, backend):
    assert (broker_url(url), backend_url(url)) == (broker, backend)


def test_a_foreign_url_is_refused():
    with pytest.raises(ValueError, match="must begin with redis://, rediss://, unix:// or sentinel://, got amqp://"):
        broker_url("amqp://h")


@pytest.mark.parametrize("password", ["", "p/w:@ü"])
def test_round_trip_through_kombu_and_celery(state_dir, password):
    """The same message and result, seen by redis-py in the database that the URL names."""
    store = ensure_running(state_dir)
    url = store.url.replace("db=0", "db=3")
    with client(store) as c:
        c.config_set("requirepass", password)
    if password:
        url += "&password=" + "p%2Fw%3A%40%C3%BC"
    try:
        with Connection(broker_url(url)) as connection, connection.SimpleQueue("q") as queue:
            queue.put({"unit": 1})
            message = queue.get(timeout=5)
            assert message.payload == {"unit": 1}
            message.ack()
        for prefix in ("celery.backends.redis:RedisBackend+", "dicast.workers.runtime.result_backend:RedisBackend+"):
            app = Celery(broker=broker_url(url), backend=prefix + backend_url(url), set_as_current=False)
            app.backend.store_result("id-1", {"score": 7}, "SUCCESS")
            assert app.AsyncResult("id-1").get(timeout=5) == {"score": 7}
            app.close()
        with redis.Redis.from_url(url) as c:
            assert c.exists("celery-task-meta-id-1")
    finally:
        with redis.Redis.from_url(url) as c:
            c.config_set("requirepass", "")
