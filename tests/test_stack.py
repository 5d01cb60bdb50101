"""What `dicast run --local` starts is ready, is all there is, and is gone afterwards, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis

from dicast.app.application import create_app
from dicast.app.operator import stack
from dicast.app.operator.stack import LocalStack, StackError
from dicast.config.settings import Settings, describe
from dicast.workers.broker.profiles import Broker, Names
from dicast.workers.store import embedded

ROOT = Path(__file__).parents[1]

STANDIN = """
import os, signal, sys, time
from celery import Celery
from dicast.workers.store.embedded import broker_url, ensure_running

role = "beat" if "beat" in sys.argv else "worker"
fault = os.environ.get("STANDIN", "")
if fault == f"{role} fails":
    sys.exit(f"the {role} fails on purpose")
if fault == f"{role} hangs":
    time.sleep(60)
state_dir = os.environ["DICAST_STATE_DIR"]
app = Celery("standin", broker=broker_url(os.environ["REDIS_URL"] or ensure_running(state_dir).url))
app.Beat = app.subclass_with_self("dicast.workers.runtime.beat_program:BeatProgram")
app.conf.update(worker_pool="threads", worker_concurrency=1, beat_schedule_filename=f"{state_dir}/schedule")
if fault == f"{role} will not leave":
    from celery.signals import worker_ready
    worker_ready.connect(lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN), weak=False)
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings of an empty state directory, in which `standin` is a Celery application."""
    (tmp_path / "standin.py").write_text(STANDIN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.delenv("STANDIN", raising=False)
    yield Settings.from_env({"DICAST_STATE_DIR": str(tmp_path / "state")})
    embedded.stop(tmp_path / "state")


def state_dir(settings):
    return Path(settings.state_dir)


def running(settings):
    """Every process that belongs to this state directory, by what it is."""
    found = {}
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        info = process.info
        words = info["cmdline"] or []
        if info["status"] == psutil.STATUS_ZOMBIE:
            continue
        if (info["environ"] or {}).get("DICAST_STATE_DIR") == settings.state_dir and "celery" in words:
            found["beat" if "beat" in words else "worker"] = info["pid"]
        elif any(settings.state_dir in word for word in words) and "valkey" in words[0]:
            found["store"] = info["pid"]
    return found


def test_all_parts_run_within_and_none_afterwards(settings):
    with LocalStack(settings, app="standin") as local:
        assert running(settings).keys() == {"worker", "beat", "store"}
        with redis.Redis.from_url(local.store_url) as store:
            assert store.ping()
        assert (state_dir(settings) / "logs" / "worker.log").stat().st_size > 0
    assert running(settings) == {}
    assert not (ROOT / "celerybeat.pid").exists()


def test_a_worker_that_dies_is_started_again_and_gone_afterwards(settings):
    with LocalStack(settings, app="standin"):
        before = running(settings)
        os.kill(before["worker"], signal.SIGKILL)
        end = time.monotonic() + 60
        while (now := running(settings).get("worker", before["worker"])) == before["worker"]:
            assert time.monotonic() < end, "not started again"
            time.sleep(0.05)
        assert now != before["worker"]
        assert running(settings)["beat"] == before["beat"]
    assert running(settings) == {}


def test_a_part_that_dies_again_and_again_is_given_up(tmp_path):
    mortal = stack._Process("mortal", [sys.executable, "-c", "print('born')"], dict(os.environ), tmp_path)
    for _ in range(stack.LIVES + 2):
        mortal._process.wait()
        mortal.revive()
    assert (tmp_path / "mortal.log").read_text() == "born\n" * (1 + stack.LIVES)
    mortal.stop()


def test_the_store_is_stopped_last_and_the_beat_first(settings, monkeypatch):
    order = []
    stop_store, stop_process = embedded.stop, stack._Process.stop
    monkeypatch.setattr(embedded, "stop", lambda folder: (order.append("store"), stop_store(folder)))
    monkeypatch.setattr(stack._Process, "stop", lambda self: (order.append(self.name), stop_process(self)))
    with LocalStack(settings, app="standin"):
        assert order == []
    assert order == ["beat", "worker", "store"]


def test_what_ran_before_is_used_and_left(settings):
    store = embedded.ensure_running(settings.state_dir)
    with LocalStack(settings, app="standin") as local:
        assert local.store_url == store.url
        assert running(settings)["store"] == store.pid
    assert running(settings) == {"store": store.pid}


def test_with_a_redis_url_no_store_is_started(settings, redis_url):
    given = Settings.from_env({**settings.environ(), "REDIS_URL": redis_url})
    with LocalStack(given, app="standin") as local:
        assert local.store_url == redis_url
        assert running(settings).keys() == {"worker", "beat"}
    with redis.Redis.from_url(redis_url) as store:
        assert store.ping()


def test_a_store_that_does_not_answer_ends_the_start(settings):
    given = Settings.from_env({**settings.environ(), "REDIS_URL": "redis://127.0.0.1:1/0"})
    with pytest.raises(redis.ConnectionError), LocalStack(given, app="standin"):
        pytest.fail("entered")
    assert running(settings) == {}


@pytest.mark.parametrize("part", ["worker", "beat"])
def test_a_part_that_fails_shows_its_log_and_takes_the_rest_down(settings, monkeypatch, part):
    monkeypatch.setenv("STANDIN", f"{part} fails")
    message = rf"(?s)the {part} ended with .*{part}\.log ends with:.*fails on purpose"
    with pytest.raises(StackError, match=message), LocalStack(settings, app="standin"):
        pytest.fail("entered")
    assert running(settings) == {}


def test_a_worker_that_never_gets_ready_ends_the_start(settings, monkeypatch):
    monkeypatch.setenv("STANDIN", "worker hangs")
    monkeypatch.setattr(stack, "READY_DEADLINE_S", 0.5)
    with pytest.raises(StackError, match=r"not ready after 0\.5 s"), LocalStack(settings, app="standin"):
        pytest.fail("entered")
    assert running(settings) == {}


def test_a_worker_that_answers_late_is_waited_for_longer(settings, monkeypatch):
    waits = []
    monkeypatch.setattr(stack, "_answers", lambda _client, _node, wait_s: waits.append(wait_s) or len(waits) > 40)
    with LocalStack(settings, app="standin"):
        assert waits[0] == 0.1
        assert waits == sorted(waits)
        assert waits[-1] == 1.0


@pytest.mark.parametrize("namespace", ["dicast", "blue"])
def test_pings_go_to_the_workers_of_the_own_namespace(settings, namespace):
    app = create_app({"REDIS_URL": "redis://127.0.0.1:1/0", "DICAST_NAMESPACE": namespace})
    pings = stack._ping_settings(Broker.for_urls("redis://127.0.0.1:1/0", None), Names(app.settings.broker_namespace))
    assert pings["control_exchange"] == app.conf.control_exchange


def test_a_worker_that_will_not_leave_is_killed(settings, monkeypatch):
    monkeypatch.setenv("STANDIN", "worker will not leave")
    monkeypatch.setattr(stack, "STOP_GRACE_S", 0.5)
    with LocalStack(settings, app="standin"):
        assert "worker" in running(settings)
    assert running(settings) == {}


def test_an_error_within_stops_everything_and_is_not_hidden(settings):
    with pytest.raises(ZeroDivisionError), LocalStack(settings, app="standin"):
        raise ZeroDivisionError
    assert running(settings) == {}


def test_a_second_one_on_the_same_state_directory_is_refused(settings):
    with LocalStack(settings, app="standin"):
        before = running(settings)
        with pytest.raises(StackError, match="another command has started Dicast"), LocalStack(settings, app="standin"):
            pytest.fail("entered")
        assert running(settings) == before


HOLDER = """
import select, sys
from dicast.app.operator.stack import LocalStack
from dicast.config.settings import Settings

with LocalStack(Settings.from_env({"DICAST_STATE_DIR": sys.argv[1]}), app="standin"):
    print("up", flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:  # a signal just before one long wait would be heeded after it
        continue
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_to_the_owner_stops_everything(settings, number, code):
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLDER, settings.state_dir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert owner.stdout.readline() == "up\n"
        assert len(running(settings)) == 3
        owner.send_signal(number)
        assert owner.wait(timeout=30) == code
    finally:
        owner.kill()
        owner.communicate()
    assert running(settings) == {}


FINALIZER = """
import contextlib, sys, time
from dicast.app.cli.following import Interrupts
from dicast.app.operator.stack import LocalStack
from dicast.config.settings import Settings

class Slow:
    def __del__(self):
        print("up", flush=True)
        time.sleep(0.5)

caller = Interrupts() if sys.argv[2] == "dicast run" else contextlib.nullcontext()
with caller, LocalStack(Settings.from_env({"DICAST_STATE_DIR": sys.argv[1]}), app="standin"):
    Slow()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("caller", "number", "code"),
    [
        ("a program", signal.SIGTERM, 128 + signal.SIGTERM),
        ("a program", signal.SIGINT, -signal.SIGINT),
        ("dicast run", signal.SIGTERM, -signal.SIGINT),
        ("dicast run", signal.SIGHUP, -signal.SIGINT),
    ],
)
def test_a_signal_that_python_drops_stops_everything(settings, caller, number, code):
    """As it does with what the signal's handler raises in a finalizer."""
    command = [sys.executable, "-c", FINALIZER, settings.state_dir, caller]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert owner.stdout.readline() == "up\n"
        owner.send_signal(number)
        assert owner.wait(timeout=50) == code
    finally:
        owner.kill()
        owner.communicate()
    assert running(settings) == {}


def test_a_signal_during_the_start_stops_what_was_started(settings, monkeypatch):
    monkeypatch.setenv("STANDIN", "worker hangs")
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, settings.state_dir], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while running(settings).keys() != {"worker", "beat", "store"}:
            assert time.monotonic() < end, "it does not start"
            time.sleep(0.02)
        owner.terminate()
        assert owner.wait(timeout=60) == 128 + signal.SIGTERM
    finally:
        owner.kill()
        owner.wait()
    assert running(settings) == {}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"BATCHING_ENABLED": "true", "LLM_CALL_TIMEOUT": "0.5", "REDIS_URL": "redis://h/1", "OPENAI_API_KEY": "k"},
        {"MAX_CONCURRENT_LLM_CALLS": "7", "DICAST_RESULTS_DIR": "a b/ü"},
    ],
)
def test_the_children_read_the_same_settings(environ):
    settings = Settings.from_env(environ)
    assert Settings.from_env(settings.environ()) == settings
    assert len(settings.environ()) == len(describe())
