"""Faults of worker processes: killed, frozen, stopped, restarted, and killed at a place of their way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from lab.chaos.catalogue import fault
from lab.chaos.points import POINTS
from lab.chaos.runs import Run
from tests.e2e.cluster import until


@fault(weight=10)
def kill_worker(run: Run) -> None:
    """kill -9 of one of two workers."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    run.strike()
    run.place.kill(victim)


@fault(weight=6)
def kill_all_workers(run: Run) -> None:
    """kill -9 of all workers, and new ones up to a second later."""
    run.await_moment()
    run.strike()
    run.place.kill(*run.place.workers)
    run.pause(run.chance.uniform(0, 1))
    run.place.heal()


@fault(weight=5, loose_log=True, deadline_s=45)
def freeze_worker(run: Run) -> None:
    """For 1 to 14 s; after 8 its work is taken over, and its late results are refused."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers).process
    run.strike()
    run.place.freeze(victim)
    run.pause(run.chance.choice([1.0, 4.0, 10.0, 14.0]))
    run.place.thaw(victim)


@fault(weight=5)
def stop_politely(run: Run) -> None:
    """SIGTERM to a worker: it ends with code 0 and leaves nothing behind."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    victim.process.terminate()
    until(lambda: victim.process.poll() is not None, "the worker has stopped", 15)
    assert victim.process.returncode == 0, f"exit code {victim.process.returncode}"


@fault(weight=2)
def stop_then_kill(run: Run) -> None:
    """SIGTERM, then SIGKILL: a deploy that does not wait long enough."""
    run.await_moment()
    victim = run.chance.choice(run.place.workers)
    victim.process.terminate()
    run.pause(run.chance.uniform(0, 0.6))
    run.strike()
    run.place.kill(victim)


@fault(weight=2)
def rolling_restart(run: Run) -> None:
    """One worker after the other is stopped and started anew."""
    for victim in list(run.place.workers):
        run.await_moment()
        victim.stop()
        run.place.start_worker()


def _kill_point(point: str, what: str) -> Callable[[Run], None]:
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

    inject.__name__, inject.__doc__ = "kill_" + point.replace("-", "_"), f"A worker kills itself {what}."
    return inject


for _point, _what in POINTS.items():
    fault(weight=3, deadline_s=40)(_kill_point(_point, _what))
