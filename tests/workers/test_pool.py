"""The execution pool in real workers, under a real broker."""

import signal

import pytest
from celery import chord, group
from celery.exceptions import ChordError, SoftTimeLimitExceeded, TaskRevokedError, TimeLimitExceeded

from tests.patience import Stopwatch
from tests.workers import pool_harness
from tests.workers.pool_harness import DEADLINE_S, Client, Server, running, unique, until

broker, client, worker = pool_harness.broker, pool_harness.client, pool_harness.worker


# ---------------------------------------------------------------------- ordinary tasks
@pytest.mark.parametrize("name", ["add", "add_in_thread"])
def test_both_kinds_of_tasks_give_results(client, worker, name):
    assert client.send(worker, name, 2, 3).get() == 5


def test_a_task_keeps_its_identity_while_others_run_between_its_steps(client, worker):
    shades = [f"shade {n}" for n in range(20)]
    results = [client.send(worker, "who_am_i", shade) for shade in shades]
    for shade, result in zip(shades, results, strict=True):
        assert result.get() == [result.id, shade, "execution-pool-loop", "deep"]


def test_a_body_can_call_another_task_as_a_function(client, worker):
    assert client.send(worker, "call_other_as_function").get() == 42


@pytest.mark.parametrize(("name", "runs"), [("retry_by_hand", 2), ("retry_by_itself", 2)])
def test_retries(client, worker, name, runs):
    assert client.send(worker, name).get() == runs


def test_retries_end(client, worker):
    with pytest.raises(LookupError, match="gone"):
        client.send(worker, "retry_in_vain").get()


@pytest.mark.parametrize(("fails", "hook"), [(False, "on_success"), (True, "on_failure")])
def test_hooks_of_tasks_may_await(client, worker, broker, fails, hook):
    result = client.send(worker, "hooked", fails)
    assert broker.hear(f"hook:{result.id}") == hook


def test_a_message_is_acknowledged_when_its_task_has_ended(client, worker, broker):
    name = unique()
    result = client.send(worker, "meet", name)
    broker.hear(f"{name}:started")
    until(lambda: worker.unacknowledged() == 1, "those before are acknowledged")
    broker.tell(f"{name}:go")
    assert result.get() == name
    until(lambda: worker.unacknowledged() == 0, "acknowledged")


def test_an_idle_worker_acknowledges_at_once(client, worker):
    """Were the hub not woken, each would wait for its next timer, up to a second."""
    watch = Stopwatch()
    for n in range(40):
        assert client.send(worker, "add", n, n).get() == 2 * n
        until(lambda: worker.unacknowledged() == 0, "acknowledged")
    assert watch.s < 15


def test_a_message_is_acknowledged_when_its_task_starts_if_it_wants_so(client, worker, broker):
    name = unique()
    result = client.send(worker, "meet_early", name)
    broker.hear(f"{name}:started")
    until(lambda: worker.unacknowledged() == 0, "acknowledged")
    broker.tell(f"{name}:go")
    assert result.get() == name


# ---------------------------------------------------------------------- what else tasks raise
def test_a_child_of_a_body_that_exits_fails_its_task_only(client, worker):
    with pytest.raises(Exception, match="child"):
        client.send(worker, "exit_in_child").get()
    assert client.send(worker, "add", 1, 1).get() == 2


@pytest.mark.parametrize(
    ("kind", "recorded"),
    [("exit", "SystemExit(3)"), ("interrupt", "KeyboardInterrupt()"), ("odd", "Odd('odd')"),
     ("generator", "GeneratorExit()"), ("cancelled", "CancelledError"), ("value", "plain")],
)  # fmt: skip
def test_a_body_that_raises_anything_has_failed(client, worker, broker, kind, recorded):
    result = client.send(worker, "raise_oddly", kind)
    error = result.get(propagate=False)
    assert type(error).__name__ == ("ValueError" if kind == "value" else "TaskAborted")
    assert recorded in str(error)
    assert broker.hear(f"failed:{result.id}") == type(error).__name__
    until(lambda: worker.unacknowledged() == 0, "acknowledged")


def test_a_thread_that_exits_has_failed(client, worker):
    with pytest.raises(Exception, match=r"SystemExit\(3\)"):
        client.send(worker, "exit_in_thread").get()
    until(lambda: worker.unacknowledged() == 0, "acknowledged")


def test_ignore_acknowledges_and_leaves_no_outcome(client, worker):
    result = client.send(worker, "raise_oddly", "ignore")
    assert client.send(worker, "add", 1, 1).get() == 2
    until(lambda: worker.unacknowledged() == 0, "acknowledged")
    assert result.state == "STARTED"


def test_reject_drops_the_message(client, worker):
    result = client.send(worker, "raise_oddly", "reject")
    until(lambda: result.state == "FAILURE", "recorded")
    until(lambda: worker.unacknowledged() == worker.waiting_messages() == 0, "dropped")


def test_reject_with_requeue_runs_the_task_again(client, worker):
    assert client.send(worker, "reject_first", unique()).get() == "second run"


# ---------------------------------------------------------------------- limits and revocation
@pytest.mark.parametrize("catch", [True, False])
def test_soft_time_limit(client, worker, broker, catch):
    result = client.send(worker, "soft_limited", unique(), catch, soft_time_limit=0.2)
    if catch:
        assert result.get() == "cleaned up"
    else:
        with pytest.raises(SoftTimeLimitExceeded):
            result.get()


def test_soft_time_limit_ends_a_task_group(client, worker, broker):
    name = unique()
    result = client.send(worker, "soft_limited_group", name, soft_time_limit=0.2)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get()
    assert [broker.hear(f"{name}:child"), broker.hear(f"{name}:child")] == ["ended"] * 2


def test_hard_time_limit(client, worker, broker):
    name = unique()
    result = client.send(worker, "meet", name, time_limit=0.2)
    with pytest.raises(TimeLimitExceeded):
        result.get()
    assert broker.hear(f"{name}:ended") == "cancelled"
    assert broker.hear(f"failed:{result.id}") == "TimeLimitExceeded"
    until(lambda: worker.unacknowledged() == 0, "acknowledged")


def test_a_body_that_swallows_its_cancellation_cannot_undo_the_hard_limit(client, worker, broker):
    name = unique()
    result = client.send(worker, "swallow_cancellation", name, time_limit=0.2)
    assert broker.hear(f"{name}:ended") == "swallowed"
    until(lambda: not running_tasks(client, worker), "the slot is free")
    assert result.state == "FAILURE"
    assert isinstance(result.result, TimeLimitExceeded)


def running_tasks(client: Client, worker) -> int:
    return client.inspect(worker).stats()[worker.node]["pool"]["running"]


def test_revoke_terminates_a_running_task(client, worker, broker):
    name = unique()
    result = client.send(worker, "meet", name)
    broker.hear(f"{name}:started")
    result.revoke(terminate=True)
    assert broker.hear(f"{name}:ended") == "cancelled"
    with pytest.raises(TaskRevokedError):
        result.get()
    until(lambda: worker.unacknowledged() == 0, "acknowledged")


def test_revoke_terminates_a_task_that_waits_for_a_slot(client, worker, broker):
    first, second = unique(), unique()
    results = [client.send(worker, "meet", first) for _ in range(8)]
    for _ in results:
        broker.hear(f"{first}:started")
    waiting = client.send(worker, "meet", second)
    until(lambda: client.inspect(worker).stats()[worker.node]["pool"]["waiting"] == 1, "received")
    waiting.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        waiting.get()
    until(lambda: worker.unacknowledged() == 8, "acknowledged")
    broker.tell(f"{first}:go", 8)
    assert [result.get() for result in results] == [first] * 8
    assert broker.silent(f"{second}:started")


# ---------------------------------------------------------------------- chords
@pytest.mark.parametrize("body", ["total", "total_in_thread"])
def test_chord_of_both_kinds(client, worker, body):
    header = [client.task("add", n, 1) for n in range(10)] + [client.task("add_in_thread", n, 1) for n in range(10)]
    assert client.chord(worker, header, client.task(body)).get() == 2 * sum(range(1, 11))


def test_chord_with_a_failure(client, worker):
    header = [client.task("add", 1, 1), client.task("fail", "no luck")]
    with pytest.raises(ChordError, match="no luck"):
        client.chord(worker, header, client.task("total")).get()


def test_chord_whose_header_holds_groups(client, worker):
    inner = group([client.task("add", 1, 1, queue=worker.queue), client.task("add", 2, 2, queue=worker.queue)])
    header = group([client.task("add", 0, 1, queue=worker.queue), inner], app=client.app)
    body = client.task("nested_total", queue=worker.queue)
    assert chord(header, body, app=client.app).apply_async().get() == 7


def test_header_tasks_may_replace_themselves_and_add_siblings(client, worker):
    header = [client.task("replace_me", 1), client.task("replace_with_group", 2), client.task("add_sibling", 3)]
    # 1 + 100;  (2 + 1) + (2 + 2);  3 and 3 + 1000
    assert client.chord(worker, header, client.task("total")).get() == 101 + 7 + 1006


def test_chain_and_callbacks(client, worker):
    first = client.task("add", 1, 1, queue=worker.queue)
    chain = first | client.task("add", 10, queue=worker.queue) | client.task("add_in_thread", 100, queue=worker.queue)
    assert chain.apply_async().get() == 112


# ---------------------------------------------------------------------- slots
def test_slots_bound_what_runs(client, broker):
    with running(broker, "-c", "3") as worker:
        name = unique()
        results = [client.send(worker, "meet", name) for _ in range(7)]
        for _ in range(3):
            broker.hear(f"{name}:started")

        def pool():
            return client.inspect(worker).stats()[worker.node]["pool"]

        until(lambda: pool()["waiting"] == 4, "all received")
        assert pool()["running"] == 3
        assert broker.silent(f"{name}:started")

        broker.tell(f"{name}:go")
        broker.hear(f"{name}:started")
        client.app.control.pool_grow(2, destination=[worker.node])
        broker.hear(f"{name}:started")
        broker.hear(f"{name}:started")
        assert pool()["max-concurrency"] == 5

        client.app.control.pool_shrink(4, destination=[worker.node], reply=True, timeout=20, limit=1)
        broker.tell(f"{name}:go", 6)
        assert [result.get() for result in results] == [name] * 7

        for _ in range(2):
            client.send(worker, "meet", name)
        broker.hear(f"{name}:started")
        until(lambda: (pool()["running"], pool()["waiting"]) == (1, 1), "one slot is left")
        broker.tell(f"{name}:go", 2)
        assert worker.stop() == 0


def test_threads_do_not_hold_up_the_loop(client, worker, broker):
    name = unique()
    results = [client.send(worker, "meet_in_thread", name) for _ in range(4)]
    for _ in results:
        broker.hear(f"{name}:started")
    assert client.send(worker, "add", 1, 2).get() == 3
    broker.tell(f"{name}:go", 4)
    assert [result.get() for result in results] == [name] * 4


# ---------------------------------------------------------------------- what others see
def test_inspect(client, worker, broker):
    name = unique()
    result = client.send(worker, "meet", name)
    broker.hear(f"{name}:started")
    inspect = client.inspect(worker)
    (active,) = until(lambda: inspect.active()[worker.node], "accepted")
    assert active["id"] == result.id
    assert inspect.stats()[worker.node]["pool"]["implementation"] == "dicast.workers.runtime.pool:TaskPool"
    broker.tell(f"{name}:go")
    result.get()
    until(lambda: not inspect.active()[worker.node], "ended")


def test_events(client, worker):
    seen: dict[str, list[str]] = {}

    def note(event):
        seen.setdefault(event.get("uuid"), []).append(event["type"])

    with client.app.connection_for_read() as connection:
        receiver = client.app.events.Receiver(connection, handlers={"*": note})
        consuming = receiver.consume(limit=None, timeout=DEADLINE_S, wakeup=False)
        until(lambda: next(consuming) or seen, "a heartbeat: the subscription stands")
        good, bad = client.send(worker, "add", 1, 1), client.send(worker, "fail", "seen")
        ends = {"task-succeeded", "task-failed"}
        until(lambda: next(consuming) or ends <= {types[-1] for types in seen.values()}, "both ends")
        consuming.close()
    assert seen[good.id] == ["task-received", "task-started", "task-succeeded"]
    assert seen[bad.id] == ["task-received", "task-started", "task-failed"]


# ---------------------------------------------------------------------- shutdown
def test_warm_shutdown_finishes_what_runs_and_leaves_the_rest(client, broker):
    with running(broker, "-c", "2", "-l", "DEBUG") as worker:
        name = unique()
        results = [client.send(worker, "meet", name) for _ in range(2)] + [client.send(worker, "meet_in_thread", name)]
        broker.hear(f"{name}:started")
        broker.hear(f"{name}:started")
        worker.signal(signal.SIGTERM)
        until(lambda: "Stopping Pool" in worker.log.read_text(), "shutdown")
        broker.tell(f"{name}:go", 2)
        assert worker.ended() == 0
        assert [result.get() for result in results[:2]] == [name] * 2
        assert (worker.waiting_messages(), worker.unacknowledged()) == (1, 0)


def test_cold_shutdown_puts_unfinished_messages_back(client, broker):
    with running(broker, "-c", "2") as worker:
        name = unique()
        for _ in range(3):
            client.send(worker, "meet", name)
        broker.hear(f"{name}:started")
        broker.hear(f"{name}:started")
        worker.signal(signal.SIGQUIT)
        assert [broker.hear(f"{name}:ended"), broker.hear(f"{name}:ended")] == ["cancelled"] * 2
        worker.ended()
        assert (worker.waiting_messages(), worker.unacknowledged()) == (3, 0)


def test_soft_shutdown_waits_a_while_then_puts_messages_back(client, broker):
    with running(broker, "-c", "2", POOL_TEST_SOFT_SHUTDOWN_S="1.5") as worker:
        short, long = unique(), unique()
        done = client.send(worker, "meet", short)
        client.send(worker, "meet", long)
        broker.hear(f"{short}:started")
        broker.hear(f"{long}:started")
        # Celery's state learns of a run after its body began, and a worker without runs has nothing to wait for.
        until(lambda: len(client.inspect(worker).active()[worker.node]) == 2, "accepted")
        worker.signal(signal.SIGQUIT)
        until(lambda: "Initiating Soft Shutdown" in worker.log.read_text(), "soft shutdown")
        broker.tell(f"{short}:go")
        assert done.get() == short
        assert broker.hear(f"{long}:ended") == "cancelled"
        worker.ended()
        assert (worker.waiting_messages(), worker.unacknowledged()) == (1, 0)


def test_careless_bodies_do_not_keep_a_worker_alive(client, broker):
    with running(broker, "-c", "2") as worker:
        assert client.send(worker, "orphan").get() == "left"
        assert worker.stop() == 0


# ---------------------------------------------------------------------- faults
def test_an_outcome_that_cannot_be_recorded_puts_the_message_back(broker):
    store = Server()
    client = Client(broker, store)
    try:
        with running(broker, "-c", "2", store=store) as worker:
            name = unique()
            result = client.send(worker, "meet", name)
            broker.hear(f"{name}:started")
            store.stop()
            broker.tell(f"{name}:go")
            assert broker.hear(f"{name}:ended") == "done"
            until(lambda: "its outcome could not be recorded" in worker.log.read_text(), "noticed")
            store.start()
            broker.hear(f"{name}:started")
            broker.tell(f"{name}:go")
            until(lambda: result.state == "SUCCESS", "recorded")
            until(lambda: worker.unacknowledged() == 0, "acknowledged")
            assert worker.stop() == 0
    finally:
        client.close()
        store.remove()


def test_a_lost_connection_to_the_broker_loses_neither_tasks_nor_acknowledgements(client, broker):
    with running(broker, "-c", "3") as worker:
        name = unique()
        result = client.send(worker, "meet", name)
        broker.hear(f"{name}:started")
        own = broker.client.client_id()
        for connection in broker.client.client_list():
            if int(connection["id"]) != own:
                broker.client.client_kill_filter(_id=connection["id"])
        until(lambda: "Connection to broker lost" in worker.log.read_text(), "noticed")
        assert client.send(worker, "add", 1, 2).get() == 3
        broker.tell(f"{name}:go", 2)
        assert result.get() == name
        assert worker.stop() == 0
        assert worker.unacknowledged() == 0


def test_a_dead_loop_takes_the_worker_down(client, broker):
    with running(broker, "-c", "2") as worker:
        name = unique()
        client.send(worker, "meet", name)
        broker.hear(f"{name}:started")
        client.send(worker, "stop_loop")
        assert worker.ended() == 1
        assert "the event loop died" in worker.log.read_text()
        assert (worker.waiting_messages(), worker.unacknowledged()) == (2, 0)


def test_a_loop_that_stands_still_takes_the_worker_down(client, broker):
    with running(broker, "-c", "2") as worker:
        name = unique()
        client.send(worker, "block_loop", name)
        broker.hear(f"{name}:started")
        assert worker.ended() == 1
        log = worker.log.read_text()
        assert "the event loop stands still" in log
        assert "in block_loop" in log  # where it stands
        assert (worker.waiting_messages(), worker.unacknowledged()) == (1, 0)
