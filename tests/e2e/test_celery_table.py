"""Every row of the table of Celery's commands and options in docs/operations.md, tried with real workers.

A row without a check fails, and so does a check without a row, and a command or an option that no row names.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.bin import celery as celery_program
from celery.bin.worker import worker as worker_command
from celery.exceptions import TaskRevokedError
from celery.worker.control import Panel

from dicast.app.operator.remote_control import CommandRefused
from dicast.app.tasks import evaluate
from tests import processes
from tests.e2e.cluster import DEADLINE_S, ROOT, Cluster, Simulated, Worker, a_job, until
from tests.e2e.conftest import POOL
from tests.e2e.test_monitors import Monitor

DOC = (ROOT / "docs/operations.md").read_text()
TABLE = DOC[DOC.index("## Celery's commands") : DOC.index("## Pools' limits")]
ROWS = re.findall(r"^\| (`.*?) \| (.+) \|$", TABLE, re.MULTILINE)

CHECKS: dict[str, Callable[[Room], None]] = {}


class Room:
    """One installation with two workers: `w0` as it comes, `w1` with every option that is taken."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.provider = Simulated()
        self.c = Cluster(folder, redis_url, POOL.format(url=self.provider.base_url), LLM_CALL_TIMEOUT="100")
        self.c.app.store.flushdb()
        self.c.vouch()
        self.folder = folder
        self.c.worker("-Q", "dicast.control,dicast.beat,provider.sim")
        self.log, self.pidfile = folder / "file.log", folder / "w1.pid"
        command = [
            "-X", "provider.claude,dicast.beat", "-E", "-O", "fair", "--without-gossip", "--without-mingle",
            "--heartbeat-interval", "1", "--prefetch-multiplier", "3", "-I", "colorsys", "-l", "DEBUG",
            "-f", str(self.log), "--pidfile", str(self.pidfile), "-S", str(folder / "state.db"),
            "-s", str(folder / "schedule"), "--scheduler", "celery.beat:Scheduler", "-c", "3", "-P", "prefork", "-B",
            "--label", "region=eu", "--label", "disk=ssd",
        ]  # fmt: skip
        self.optioned = Worker(self.c.environ, "w1", folder / "w1.out", *command)
        self.c.workers.append(self.optioned)
        until(lambda: self.log.exists() and "ready." in self.log.read_text(), "the second worker is ready")
        self.names = [node.name for node in self.c.app.registry.alive()]

    def stop(self) -> None:
        self.c.stop()
        self.provider.stop()

    def host(self, number: int) -> str:
        return next(name for name in self.names if name.startswith(f"w{number}@"))

    def ask(self, command: str, worker: int = 0, **arguments: Any) -> Any:
        """A worker's reply. It is asked again where it has not heard the question, as one that has just begun."""
        control, host = self.c.app.control, [self.host(worker)]
        replies = until(
            lambda: control.broadcast(command, arguments, host, reply=True, timeout=20, limit=1), "it replies", 60
        )
        return replies[0].popitem()[1]

    def celery(self, *args: str, ok: bool = True, text: str | None = None) -> str:
        """What `celery -A app ...` says, all of it."""
        done = self.run("celery", "-A", "app", *args, text=text)
        assert (done.returncode == 0) is ok, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, *args: str, text: str | None = None) -> Any:
        return processes.run(args, self.c.environ, ROOT, text or "", DEADLINE_S)

    def program(self, code: str) -> Any:
        """What a program tells, or the last line of its error."""
        prelude = (
            "import json\nfrom datetime import timedelta\nfrom celery import signature\n"
            "from dicast.app.application import app\nfrom dicast.app.tasks import evaluate\n"
            f"job = lambda **more: {{**json.loads({json.dumps(json.dumps(a_job(agents=1, dimensions=1)))}), **more}}\n"
        )
        done = self.run("-c", prelude + code)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]

    def refused(self, option: str, *args: str) -> str:
        """With what words a worker with an option ends before it starts."""
        said = self.celery("worker", "-n", "refused@%h", *args, ok=False)
        assert f"{option} is refused" in said
        assert "Traceback" not in said
        return said

    def judged(self, **more: Any) -> dict[str, Any]:
        return self.c.report(self.c.submit(a_job(agents=1, dimensions=2, **more)))


@pytest.fixture(scope="module")
def room(tmp_path_factory, redis_server):
    made = Room(tmp_path_factory.mktemp("table"), f"{redis_server}?db=14")
    try:
        yield made
    finally:
        made.stop()


def row(*keys: str) -> Callable[[Callable[[Room], None]], Callable[[Room], None]]:
    def add(check: Callable[[Room], None]) -> Callable[[Room], None]:
        CHECKS.update(dict.fromkeys(keys, check))
        return check

    return add


def other_file(test: str) -> Callable[[Room], None]:
    """A row that a test of another file holds, which needs a cluster of its own."""

    def check(_: Room) -> None:
        file, name = test.split("::")
        assert f"def {name}(" in (Path(__file__).parent / file).read_text()

    return check


# ------------------------------------------------------------------------------------------------------------- worker
ELSEWHERE = {
    "`-c N`, `--concurrency N`": "test_worker_width.py::test_c_is_the_number_of_open_calls",
    "`--autoscale MAX,MIN`": "test_worker_width.py::test_a_pool_scales_between_two_numbers",
    "`autoscale MAX MIN`": "test_worker_width.py::test_a_pool_scales_between_two_numbers",
    "`pool_grow N`, `pool_shrink N`": "test_worker_width.py::test_a_pool_grows_and_shrinks_while_it_works",
    "`revoke ID...`": "test_revoking.py::test_a_revoked_unit_ends_as_cancelled_and_its_job_completes",
    "`revoke --terminate`, `terminate SIGNAL ID...`": "test_revoking.py::test_a_terminated_job_ends_at_once",
    "`add_consumer QUEUE`": "test_consumers.py::test_a_queue_that_a_worker_did_not_read_from_the_start",
    "`cancel_consumer QUEUE`": "test_consumers.py::test_a_pools_queue_is_read_no_more_and_again",
    "`active`": "test_consumers.py::test_what_is_active_is_told_with_its_process",
    "`purge`, `purge -Q`, `purge -X`": "test_revoking.py::test_what_is_purged_is_sent_again",
    "`-E`, `--task-events`": "test_monitors.py::test_a_monitor_sees_the_work_and_the_workers_and_nothing_else",
    "`link`, `link_error`, `chain`, `chord`, `group`": (
        "test_canvas.py::test_a_chord_is_joined_when_its_jobs_have_ended"
    ),
}
CHECKS |= {key: other_file(test) for key, test in ELSEWHERE.items()}


def refusal(key: str, option: str, *args: str) -> None:
    CHECKS[key] = lambda room: room.refused(option, *args) and None


@row("`--label K=V`")
def _(room):
    assert room.ask("cluster", 1)["labels"] == {"disk": "ssd", "region": "eu"}
    said = room.celery("worker", "-n", "refused@%h", "--label", "region", ok=False)
    assert "--label must be labels like region=eu" in said


refusal("`-c auto`", "-c auto", "-c", "auto")
refusal("`-P`, `--pool`", "--pool", "-P", "solo")
for flag, value in (
    ("--max-tasks-per-child", "3"), ("--max-memory-per-child", "3"), ("--pool-start-method", "spawn"),
    ("--time-limit", "3"), ("--soft-time-limit", "3"),
):  # fmt: skip
    refusal(f"`{flag}`", flag, flag, value)
refusal("`--disable-prefetch`", "--disable-prefetch", "--disable-prefetch")


@row("`--prefetch-multiplier`")
def _(room):
    assert room.ask("stats", 1)["prefetch_count"] == 3 * (3 + 4)
    assert room.ask("stats")["prefetch_count"] == 5 + 5


@row("`-O`, `--optimization`", "`-I`, `--include`", "`--without-gossip`, `--without-mingle`")
def _(room):
    assert "colorsys" in room.ask("conf", 1)["include"]
    assert room.optioned.process.poll() is None


@row("`-Q`, `--queues`", "`-X`, `--exclude-queues`", "`active_queues`")
def _(room):
    read = [sorted(queue["name"] for queue in room.ask("active_queues", n)) for n in (0, 1)]
    assert read == [["dicast.beat", "dicast.control", "provider.sim"], ["dicast.control", "provider.sim"]]


@row("`-n`, `--hostname`", "`status`", "`-t`, `-d`, `-j` of `control`, `inspect`, `status`")
def _(room):
    assert "2 nodes online" in room.celery("status", "-t", "5")
    told = json.loads(room.celery("inspect", "-j", "-t", "5", "-d", room.host(1), "ping").strip().splitlines()[-1])
    assert told == {room.host(1): {"ok": "pong"}}


@row("`-B`, `--beat`", "`-s`, `--schedule-filename`", "`--scheduler`")
def _(room):
    before = room.ask("stats")["total"].get("dicast.housekeeping", 0)
    until(lambda: room.ask("stats")["total"].get("dicast.housekeeping", 0) > before, "ticks are taken")
    assert not list(room.folder.glob("schedule*"))


@row("`-S`, `--statedb`", "`revoked`")
def _(room):
    assert "as of other tasks: tasks {'nobody'} flagged as revoked" in str(room.ask("revoke", 1, task_id=["nobody"]))
    assert room.ask("revoked", 1) == ["nobody"]
    assert list(room.folder.glob("state.db*"))
    job_id = room.c.submit(a_job(agents=1, dimensions=1, id="revoked-by-all"))
    room.c.app.control.revoke(job_id)
    assert job_id not in room.ask("revoked", 1)


@row("`--purge`, `--discard`")
def _(room):
    """With no other worker there to take them."""
    said = room.celery("worker", "--purge", "--help")
    assert "--discard" in said
    environ = {**room.c.environ, "DICAST_NAMESPACE": "purged", "DICAST_STATE_DIR": str(room.folder / "purged")}
    app = Cluster(room.folder, room.c.environ["REDIS_URL"], (room.folder / "pools.toml").read_text(),
                  DICAST_NAMESPACE="purged")  # fmt: skip
    job_id = app.submit(a_job(agents=1, dimensions=1))
    worker = Worker(environ, "purging", room.folder / "purging.log", "--purge")
    app.workers.append(worker)
    try:
        until(worker.ready, "it is ready")
        assert "purge: Erased 1 message from the queue" in worker.log.read_text()

        def swept():
            app.app.store.hincrby(app.app.keys.clock, "now", 20_000)
            return app.app.ledger.status(job_id).state.ended

        until(swept, "the sweeper has found it")
        assert app.report(job_id)["scored"] == 1
    finally:
        app.stop()


@row("`-l`, `--loglevel`", "`-f`, `--logfile`")
def _(room):
    lines = [json.loads(line) for line in room.log.read_text().splitlines()]
    assert {"DEBUG", "INFO"} <= {line["level"] for line in lines}
    assert not [line for line in (room.folder / "w1.out").read_text().splitlines() if line.startswith("{")]


@row(
    "`-D`, `--detach`, `--pidfile`, `--uid`, `--gid`, `--umask`, `--executable`",
    "`multi start`, `multi stop`, `multi restart`, `multi show`",
)
def _(room):
    assert int(room.pidfile.read_text()) == room.optioned.process.pid
    places = [f"--pidfile={room.folder}/%n.pid", f"--logfile={room.folder}/%n.log"]
    assert "worker" in room.celery("multi", "show", "m1", "-c", "2", *places)
    room.celery("multi", "start", "m1", "-c", "2", "--umask=0", *places)
    pidfile, log = room.folder / "m1.pid", room.folder / "m1.log"
    try:
        until(lambda: log.exists() and "ready." in log.read_text(), "it is ready", 30)
        assert any(node.name.startswith("m1@") and node.slots == 2 for node in room.c.app.registry.alive())
    finally:
        pid = int(pidfile.read_text())
        room.celery("multi", "stop", "m1", *places)
        try:
            until(lambda: not Path(f"/proc/{pid}").exists(), "it has stopped", 30)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise


@row("`--without-heartbeat`, `--heartbeat-interval`")
def _(room):
    mute = Worker(room.c.environ, "mute", room.folder / "mute.log", "-Q", "dicast.control", "--without-heartbeat")
    try:
        until(mute.ready, "it is ready")
        with Monitor(room.c) as monitor:
            until(lambda: room.host(1) in monitor.state.workers, "the other one beats")
            assert monitor.state.workers[room.host(1)].freq == 1
            until(lambda: monitor.types.count("worker-heartbeat") > 5, "they beat on")
            assert not [name for name in monitor.state.workers if name.startswith("mute@")]
        assert [node for node in room.c.app.registry.alive() if node.name.startswith("mute@")]
    finally:
        mute.stop()


# ------------------------------------------------------------------------------------------------------------- control
@row("`revoke_by_stamped_headers`")
def _(room):
    assert "by their ids" in room.ask("revoke_by_stamped_headers", headers={"a": ["b"]})["error"]
    with pytest.raises(CommandRefused, match="by their ids"):
        room.c.app.control.revoke_by_stamped_headers({"a": "b"})


@row("`rate_limit TASK RATE`")
def _(room):
    assert "dicast governor set" in room.celery("control", "rate_limit", "dicast.judge_dimension", "5/s")
    with pytest.raises(CommandRefused, match="--rpm"):
        room.c.app.control.rate_limit("dicast.judge_dimension", "5/s")
    assert room.ask("rate_limit", task_name="nobodys", rate_limit="5/s") == {"error": "unknown task"}


@row("`time_limit TASK SOFT HARD`")
def _(room):
    assert "LLM_CALL_TIMEOUT" in room.celery("control", "time_limit", "dicast.evaluate", "3", "5")
    with pytest.raises(CommandRefused, match="LLM_CALL_TIMEOUT"):
        room.c.app.control.time_limit("dicast.judge_dimension", soft=1)


@row("`cordon`", "`uncordon`", "`drain [SECONDS]`", "`cluster`")
def _(room):
    assert "cordoned" in room.celery("control", "-t", "10", "-d", room.host(1), "cordon")
    assert room.ask("cluster", 1)["status"] == "cordoned"
    assert room.ask("cluster")["status"] == "online"
    assert room.ask("uncordon", 1) == {"ok": "online"}
    assert room.ask("drain", 1, deadline=5) == {"ok": "cordoned: drain by celery control drain: drained"}
    assert room.ask("drain", 1, deadline=-5)["error"].startswith("deadline_s must be from 0 to")
    assert room.ask("uncordon", 1) == {"ok": "online"}


@row("`pool_restart`")
def _(room):
    assert "start it again" in room.ask("pool_restart")["error"]
    with pytest.raises(CommandRefused, match="start it again"):
        room.c.app.control.pool_restart()


@row("`shutdown`")
def _(room):
    worker = Worker(room.c.environ, "ends", room.folder / "ends.log", "-Q", "dicast.control")
    try:
        until(worker.ready, "it is ready")
        name = next(node.name for node in room.c.app.registry.alive() if node.name.startswith("ends@"))
        until(lambda: room.c.app.control.ping([name], timeout=1.0), "it hears")
        room.c.app.control.shutdown([name])
        assert worker.process.wait(20) == 0
    finally:
        worker.stop()


@row("`enable_events`, `disable_events`, `heartbeat`")
def _(room):
    assert room.ask("enable_events") == {"ok": "task events enabled"}
    assert room.ask("disable_events") == {"ok": "task events disabled"}
    assert room.ask("heartbeat") is None


@row("`election`")
def _(room):
    assert "in the store" in room.ask("election", id="1", topic="t")["error"]


# ------------------------------------------------------------------------------------------------------------- inspect
@row("`reserved`", "`query_task ID...`")
def _(room):
    room.provider.control(latency=1.5)
    job_id = room.c.submit(a_job(agents=1, dimensions=30))
    held = until(lambda: room.ask("reserved"), "units wait at a gate")
    found = room.ask("query_task", ids=[held[0]["id"]])
    assert not found or next(iter(found.values()))[0] in ("reserved", "active")
    assert room.ask("query_task", ids=["nobody"]) == {}
    room.provider.control(latency=0.05)
    assert room.c.report(job_id)["scored"] == 30


@row("`scheduled`", "`call dicast.evaluate -a '[JOB]'`", "`result ID`")
def _(room):
    job = json.dumps([a_job(agents=1, dimensions=1)])
    name = room.celery("call", "dicast.evaluate", "-a", job, "--countdown", "8").strip()
    waiting = until(lambda: room.ask("scheduled", 0) + room.ask("scheduled", 1), "it waits for its time")
    assert [entry["request"]["id"] for entry in waiting] == [name]
    assert "'scored': 1" in room.celery("result", name)
    said = room.celery("call", "dicast.evaluate", "-a", job, "--queue", "provider.sim", ok=False)
    assert "evaluate takes no queue but dicast.control" in said


@row("`registered`")
def _(room):
    assert [task.split()[0] for task in room.ask("registered") if "judge" in task] == [
        "dicast.judge_batch", "dicast.judge_dimension",
    ]  # fmt: skip


@row("`stats`")
def _(room):
    pool = room.ask("stats", 1)["pool"]
    assert (pool["max-concurrency"], pool["slots"]) == (3, 7)
    assert pool["max-loop-lag-ms"] >= 0


@row("`conf`, `report`", "`report`")
def _(room):
    environ = {
        "REDIS_URL": "sentinel://u:hunter2secret@a:1?master=m&sentinel_password=hunter3secret",
        "DICAST_POOLS_FILE": room.c.environ["DICAST_POOLS_FILE"],
    }
    code = (
        "from types import SimpleNamespace as N; from dicast.app.operator import remote_control as r\n"
        f"from dicast.app.application import create_app\n"
        f"a = create_app({environ!r}); print(r.conf(N(app=a)), a.bugreport())"
    )
    said = room.run("-c", code)
    assert said.returncode == 0, said.stderr
    assert "sentinel_kwargs" in said.stdout
    assert "hunter" not in said.stdout
    assert room.ask("conf")["worker_prefetch_multiplier"] == 1
    assert "software -> celery" in room.ask("report")["ok"]
    assert "software -> celery" in room.celery("report")


@row("`ping`, `clock`, `memsample`, `memdump`")
def _(room):
    assert room.ask("ping") == {"ok": "pong"}
    assert room.ask("clock")["clock"] > 0
    assert room.ask("memsample")
    assert room.ask("memdump") is not None


@row("`objgraph`")
def _(room):
    assert "ImportError" in room.ask("objgraph")["error"]


# --------------------------------------------------------------------------------------------------------------- others
@row("`list bindings`")
def _(room):
    assert re.search(r"provider.sim +dicast +provider.sim", room.celery("list", "bindings"))


@row("`events --dump`, `events -c`, `events`")
def _(room):
    output = room.folder / "events.out"
    with output.open("w") as file:
        command = ["celery", "-A", "app", "events", "--dump"]
        dump = processes.start(command, room.c.environ, ROOT, file.fileno(), file.fileno())
    try:
        until(lambda: f"{room.host(1)} [" in output.read_text() and "heartbeat" in output.read_text(), "it beats")
    finally:
        dump.terminate()
        dump.wait(20)


@row("`graph bootsteps`, `graph workers`")
def _(room):
    assert "digraph" in room.celery("graph", "bootsteps")
    assert room.host(1) in room.celery("graph", "workers")


@row("`beat`")
def _(room):
    log = room.folder / "beat.log"
    command = ["celery", "-A", "app", "beat", "--pidfile=", "-l", "DEBUG", "-f", str(log)]
    beat = processes.start([*command, "-s", str(room.folder / "beats")], room.c.environ, ROOT, 1, 2)
    try:
        until(lambda: log.exists() and "governor" in log.read_text(), "it ticks")
    finally:
        beat.terminate()
        beat.wait(20)
    assert not list(room.folder.glob("beats*"))


@row("`amqp`, `shell`, `logtool`, `upgrade`, `migrate`")
def _(room):
    assert "dicast" in room.celery("shell", "--python", text="print(app.main)\n")
    for command in ("amqp", "logtool", "upgrade", "migrate"):
        assert "Usage" in room.celery(command, "--help")


# ---------------------------------------------------------------------------------------------------- calling options
@row("`task_id`")
def _(room):
    report = room.program('r = evaluate.apply_async((job(),), task_id="mine"); print(json.dumps(r.get(timeout=60)))')
    assert report["job_id"] == "mine"


@row("`countdown`, `eta`")
def _(room):
    room.program("""
later = app.now() + timedelta(seconds=1)
print(json.dumps(evaluate.apply_async((job(id="soon"),), eta=later).get(timeout=60)))
""")
    status = room.c.app.ledger.status("soon")
    assert status.started_ms >= status.created_ms + 900


@row("`expires`")
def _(room):
    told = room.program('evaluate.apply_async((job(id="too-late"),), expires=-1).get(timeout=60)')
    assert told == "celery.exceptions.TaskRevokedError: expired"


@row("`priority`", "`time_limit`, `soft_time_limit`", "`queue`, `exchange`, `routing_key`", "`serializer`")
def _(room):
    job = a_job(agents=1, dimensions=1)
    for option in (
        {"priority": 3}, {"time_limit": 3}, {"soft_time_limit": 3}, {"exchange": "x"}, {"routing_key": "x"},
        {"queue": "provider.sim"}, {"serializer": "pickle"},
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"evaluate takes no {next(iter(option))}"):
            evaluate.apply_async((job,), **option)
        with pytest.raises(TypeError, match=f"evaluate takes no {next(iter(option))}"):
            room.c.app.send_task("dicast.evaluate", args=(job,), **option)
    report = room.program("""
print(json.dumps(evaluate.apply_async((job(),), queue="dicast.control").get(timeout=60)))
""")
    assert report["scored"] == 1


@row(
    "`compression`, `headers`, `shadow`, `retry`, `retry_policy`, `connection`, `producer`, `reply_to`",
    "`ignore_result`", "`add_to_parent`",
)  # fmt: skip
def _(room):
    report = room.program("""
with app.connection_for_write() as connection:
    r = evaluate.apply_async((job(),), compression="gzip", headers={"x": "y"}, shadow="other", retry=True,
                             retry_policy={"max_retries": 1}, connection=connection, add_to_parent=False,
                             reply_to="nobody", ignore_result=True)
    print(json.dumps(app.AsyncResult(r.id).get(timeout=60)))
""")
    assert report["scored"] == 1


@row("`apply()`, `task_always_eager`, `evaluate(job)`")
def _(room):
    assert "cannot run eagerly" in room.program("evaluate.apply((job(),))")
    assert "evaluate is a task" in room.program("evaluate(job())")


@row("`AsyncResult.get`, `.ready`, `.then`, `.forget`")
def _(room):
    said = room.program("""
r = evaluate.delay(job())
first = r.get(timeout=60)["scored"]
told = []
r.then(lambda done: told.append(done.id))
state, ready = r.state, r.ready()
r.forget()
print(json.dumps([first, state, ready, told == [r.id], app.AsyncResult(r.id).state]))
""")
    assert said == [1, "SUCCESS", True, True, "PENDING"]


@row("`AsyncResult.state`, `.info`")
def _(room):
    said = room.program("""
r = evaluate.delay(job())
before = r.state
r.get(timeout=60)
print(json.dumps([before in ("PENDING", "PROGRESS", "SUCCESS"), r.state, r.info["scored"]]))
""")
    assert said == [True, "SUCCESS", 1]


@row("`AsyncResult.children`, `.collect`, `.iterdeps`")
def _(room):
    said = room.program("""
r = evaluate.delay(job())
r.get(timeout=60)
print(json.dumps([r.children or [], [report["scored"] for _, report in r.collect()], len(list(r.iterdeps()))]))
""")
    assert said == [[], [1], 1]


@row("`AsyncResult.revoke`")
def _(room):
    room.provider.control(latency=30)
    job_id = room.c.submit(a_job(agents=1, dimensions=1))
    until(lambda: room.provider.stats()["open"] > 0, "it is being called")
    result = room.c.app.AsyncResult(job_id)
    result.revoke(terminate=True)
    room.provider.control(latency=0.05)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)


# --------------------------------------------------------------------------------------------------------- the table
def _ids(checks: dict[str, Callable[[Room], None]]) -> list[str]:
    """Of each check its rows."""
    distinct = dict.fromkeys(checks.values())
    return ["; ".join(key for key, other in checks.items() if other is check) for check in distinct]


def test_every_row_has_a_check_and_every_check_a_row():
    assert len(ROWS) > 50
    assert {key for key, _ in ROWS} == set(CHECKS)
    assert len(ROWS) == len({key for key, _ in ROWS})


def test_every_command_and_option_of_celery_has_a_row():
    words = set(re.findall(r"[-\w]+", " ".join(key for key, _ in ROWS)))
    options = {name for param in worker_command.params for name in param.opts if name.startswith("--")}
    said_otherwise = {"--events", "--schedule", "--workdir"}
    assert options - words <= said_otherwise
    assert {name for name, about in Panel.meta.items() if about.visible} <= words
    assert set(celery_program.celery.commands) - {"worker", "control", "inspect", "flower"} <= words


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("check", dict.fromkeys(CHECKS.values()), ids=_ids(CHECKS))
def test_what_rows_say(room, check):
    check(room)
