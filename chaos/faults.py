"""The catalogue. A fault spoils at a seeded moment and heals again; `rows` names what it stands for."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable

import redis

from chaos import messages
from chaos.points import POINT_ROWS
from chaos.runs import Fault, Run
from tests.e2e.cluster import ROOT, until

CATALOGUE: dict[str, Fault] = {}


def fault(rows: str, **facts: object) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Enter a function into the catalogue under its own name."""

    def enter(inject: Callable[[Run], None]) -> Callable[[Run], None]:
        CATALOGUE[inject.__name__] = Fault(inject.__name__, rows, inject, **facts)  # type: ignore[arg-type]
        return inject

    return enter


@fault("none", weight=3)
def nothing(run: Run) -> None:
    """The control: whatever this one finds is the harness's mistake or a plain bug."""


# ---------------------------------------------------------------------------------------------------- workers
@fault("A1 A4", weight=10)
def kill_worker(run: Run) -> None:
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    run.strike()
    run.place.kill(victim)


@fault("A9", weight=6)
def kill_all_workers(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.kill(*run.place.workers)
    run.pause(run.chance.uniform(0, 1))
    run.place.heal()


@fault("A12 A13", weight=5, loose_log=True, deadline_s=45)
def freeze_worker(run: Run) -> None:
    """Longer than its beacon lasts, in shortened clocks: its work is taken over, and its late results are refused."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers).process
    run.strike()
    run.place.freeze(victim)
    run.pause(run.chance.choice([1.0, 4.0, 10.0, 14.0]))
    run.place.thaw(victim)


@fault("A10", weight=5)
def stop_politely(run: Run) -> None:
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    victim.process.terminate()
    until(lambda: victim.process.poll() is not None, "the worker has stopped", 15)
    assert victim.process.returncode == 0, f"exit code {victim.process.returncode}"


@fault("A10", weight=2)
def stop_then_kill(run: Run) -> None:
    """A deploy with too short a grace."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    victim.process.terminate()
    run.pause(run.chance.uniform(0, 0.6))
    run.strike()
    run.place.kill(victim)


@fault("A11", weight=2)
def rolling_restart(run: Run) -> None:
    for victim in list(run.place.workers):
        run.await_moment()
        victim.stop()
        run.place.start_worker()


def _kill_point(point: str) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        workers = run.place.workers
        run.place.arm(point, 1 if "page" in point or "complete" in point else run.chance.randint(1, 6))

        def over() -> bool:
            status = run.status()
            return any(w.process.poll() is not None for w in workers) or (status is not None and status.state.ended)

        with contextlib.suppress(TimeoutError):
            until(over, "a worker dies", 15)
        if run.place.disarm():
            return
        until(lambda: any(w.process.poll() is not None for w in workers), "the worker that struck is dead")
        run.strikes.append(run.place.struck_at())
        run.place.kill(*(w for w in workers if w.process.poll() is not None))

    inject.__name__ = "kill_" + point.replace("-", "_")
    return inject


for _point, _row in POINT_ROWS.items():
    fault(_row, weight=3, deadline_s=40)(_kill_point(_point))


# ---------------------------------------------------------------------------------------------------- store
@fault("B1 B14", weight=8)
def restart_store(run: Run) -> None:
    """kill -9, and back after 2 s with a log that is at most a second old."""
    run.await_moment()
    run.strike()
    run.place.store.kill()
    run.pause(2)
    run.place.store.start()
    run.strike()


@fault("B17", weight=2)
def truncate_store(run: Run) -> None:
    """The log's end is lost with the power."""
    run.await_moment()
    run.strike()
    run.place.store.kill()
    logs = sorted((run.place.store.folder / "appendonlydir").glob("*.incr.aof"))
    with logs[-1].open("ab") as file:
        file.truncate(max(0, file.tell() - 100))
    run.place.store.start()
    run.strike()


@fault("B3", weight=3, forgets=True, loose_log=True, deadline_s=60)
def flush_store(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.store.client.flushall()


@fault("B14", weight=4)
def flush_scripts(run: Run) -> None:
    for _ in range(run.chance.randint(1, 4)):
        run.await_moment()
        run.place.store.client.script_flush()


@fault("B6", weight=4)
def store_read_only(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.store.client.replicaof("127.0.0.1", 1)
    run.pause(run.chance.uniform(1, 4))
    run.place.store.client.replicaof("NO", "ONE")
    run.strike()


@fault("B7", weight=4)
def store_full(run: Run) -> None:
    run.await_moment()
    run.strike()
    client = run.place.store.client
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 1000)
    run.pause(run.chance.uniform(1, 4))
    client.config_set("maxmemory", 0)
    run.strike()


@fault("B15 B11", weight=4)
def kill_clients(run: Run) -> None:
    for _ in range(run.chance.randint(1, 5)):
        run.await_moment()
        run.strike()
        run.place.store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@fault("B10 B14", weight=3)
def store_stalls(run: Run) -> None:
    """It takes connections and answers nobody for a while."""
    run.await_moment()
    run.strike()
    run.place.store.process.send_signal(signal.SIGSTOP)
    run.pause(run.chance.uniform(0.5, 5))
    run.place.store.process.send_signal(signal.SIGCONT)
    run.strike()


@fault("B16", weight=2)
def store_out_of_connections(run: Run) -> None:
    run.await_moment()
    run.strike()
    client = run.place.store.client
    before = client.config_get("maxclients")["maxclients"]
    client.config_set("maxclients", max(5, int(client.info("clients")["connected_clients"]) - 5))
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    run.pause(run.chance.uniform(1, 3))
    client.config_set("maxclients", before)
    run.strike()


# ---------------------------------------------------------------------------------------------------- network
@fault("B9", weight=4)
def store_late_200_ms(run: Run) -> None:
    run.await_moment()
    run.place.link.set(delay_s=0.1)
    run.pause(run.chance.uniform(2, 5))
    run.place.link.set()


@fault("B10", weight=3)
def store_late_3_s(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.link.set(delay_s=1.5)
    run.pause(run.chance.uniform(4, 7))
    run.place.link.set()
    run.strike()


@fault("B11", weight=8)
def reset_connections(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.link.set(reset=True)
    run.pause(3)
    run.place.link.set()
    run.strike()


@fault("B12", weight=4, loose_log=True, deadline_s=45)
def black_hole(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.link.set(hold=["up", "down"])
    run.pause(run.chance.choice([2.0, 6.0, 12.0]))
    run.place.link.set(cut=run.chance.random() < 0.5)
    run.strike()


@fault("B13 F2", weight=4, loose_log=True, deadline_s=45)
def one_way_cut(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.link.set(hold=[run.chance.choice(["up", "down"])])
    run.pause(run.chance.choice([2.0, 6.0, 12.0]))
    run.place.link.set(cut=run.chance.random() < 0.5)
    run.strike()


# ---------------------------------------------------------------------------------------------------- messages
@fault("B18", weight=4)
def double_messages(run: Run) -> None:
    run.await_moment()
    messages.double(run)


@fault("B19", weight=2, deadline_s=75)
def lose_messages(run: Run) -> None:
    run.await_moment()
    messages.lose(run)


@fault("B20", weight=3)
def reverse_messages(run: Run) -> None:
    run.await_moment()
    messages.reverse(run)


@fault("B21", weight=3)
def replay_messages(run: Run) -> None:
    """Messages of the running job come once more after its end."""
    run.await_moment()
    saved = messages.copies(run)
    until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", 30)
    messages.put(run, saved)


@fault("B22 G11", weight=3)
def broken_messages(run: Run) -> None:
    run.await_moment()
    messages.put_broken(run)


# ---------------------------------------------------------------------------------------------------- callers, beat
@fault("E9", weight=6, cancels=True)
def cancel(run: Run) -> None:
    run.await_moment()
    with contextlib.suppress(redis.RedisError):
        run.place.cluster.app.ledger.cancel(run.job_id)


@fault("C1", weight=3)
def kill_beat(run: Run) -> None:
    run.await_moment()
    beat = run.place.beat
    beat.kill()
    beat.wait()
    kill_worker(run)


@fault("C2", weight=2)
def two_beats(run: Run) -> None:
    run.place.start_beat()
    kill_worker(run)


@fault("C3", weight=2)
def freeze_beat(run: Run) -> None:
    beat = run.place.beat
    run.place.freeze(beat)
    kill_worker(run)
    run.pause(2)
    run.place.thaw(beat)


@fault("B25 E8", weight=3)
def kill_submitter(run: Run) -> None:
    """Another process submits a job, is killed, and the same job is submitted again: it is whole, and one."""
    place, other = run.place, {**run.job, "id": run.job_id + "-b"}
    program = f"from app.celery import app\nprint('go', flush=True)\napp.submit({other!r})\n"
    submitter = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE,
        env={**place.cluster.environ, "REDIS_URL": place.store.url},
    )  # fmt: skip
    assert submitter.stdout is not None
    submitter.stdout.readline()
    run.pause(run.chance.uniform(0, 0.08))
    submitter.kill()
    submitter.wait()
    submitter.stdout.close()
    until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends", 30)
    place.provider.control(reset=True)
    run.job["id"] = other["id"]
    place.cluster.submit(other)


# ---------------------------------------------------------------------------------------------------- provider
def _misbehave(run: Run, seconds: float, **how: object) -> None:
    run.await_moment()
    run.place.provider.control(**how)
    run.pause(seconds)
    run.place.provider.control(noise_429=0.0, fail_5xx=0.0, overload_529=0.0, faults={}, retry_after_value=None)


@fault("D1 C10", weight=5, bad_answers=True, deadline_s=60)
def burst_of_429(run: Run) -> None:
    _misbehave(run, 2, noise_429=run.chance.choice([0.3, 1.0]), retry_after_value="1")


@fault("D2 D3", weight=3, bad_answers=True, deadline_s=60)
def odd_retry_after(run: Run) -> None:
    value = run.chance.choice(["-5", "", "soon", "nan", "1e400", "Wed, 21 Oct 2015 07:28:00 GMT", "0.5, 0.5"])
    _misbehave(run, 1, noise_429=0.5, retry_after_value=value)


@fault("D4", weight=4, bad_answers=True, deadline_s=60)
def burst_of_529(run: Run) -> None:
    _misbehave(run, 2, overload_529=run.chance.choice([0.3, 1.0]))


@fault("D4", weight=4, bad_answers=True, deadline_s=60)
def burst_of_5xx(run: Run) -> None:
    _misbehave(run, 2, fail_5xx=run.chance.choice([0.3, 1.0]))


def _answers(fault_name: str, share: float = 0.3, seconds: float = 2.0) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        _misbehave(run, seconds, faults={fault_name: share}, drip_interval=0.5, huge_bytes=20_000_000)

    inject.__name__ = f"answers_{fault_name}"
    return inject


for _kind, _rows in {
    "hang": "D6", "drip": "D7", "huge": "D8", "bomb": "D9", "cut": "D10", "invalid_json": "D12", "html": "D17",
    "out_of_range": "D13", "wrong_type": "D13", "null": "D13", "missing": "D14", "duplicate": "D14",
    "unknown": "D14", "chatter": "D16", "wrong_nonce": "D22",
}.items():  # fmt: skip
    fault(_rows, weight=2, bad_answers=True, deadline_s=60)(_answers(_kind))


@fault("D24", weight=3, bad_answers=True, deadline_s=60)
def provider_refuses(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.provider_link.set(refuse=True)
    run.pause(run.chance.uniform(1, 3))
    run.place.provider_link.set()


@fault("D6 D24", weight=3, bad_answers=True, deadline_s=60)
def provider_black_hole(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.provider_link.set(hold=["up", "down"])
    run.pause(run.chance.uniform(1, 5))
    run.place.provider_link.set(cut=True)
    run.strike()


@fault("D10", weight=3, bad_answers=True, deadline_s=60)
def provider_resets(run: Run) -> None:
    run.await_moment()
    run.strike()
    run.place.provider_link.set(reset=True)
    run.pause(run.chance.uniform(0.3, 1.5))
    run.place.provider_link.set()
