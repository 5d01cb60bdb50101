"""What a gate asks the store for, what it makes of the answers, and what it gives back."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import ResponseError

from dicast.workers.admission import gate
from dicast.workers.admission.gate import BATCH_MIN, FALLBACK_S, WAITING_MAX, Gate, Turns
from dicast.workers.admission.leases import LeaseVerdict, Returned, Want
from tests.workers.gates import Host, Request, until_turned

HEADER = {"job": "j", "project": "g", "model": "m", "input_tokens": 70, "output_tokens": 30}


def a_gate(host, requests=1, *, pool="p", **header):
    door = Gate(host, pool)
    for number in range(requests):
        door.hold(Request(id=str(number), **header))
    return door


async def test_the_store_is_asked_for_what_the_message_says():
    host = Host()
    await a_gate(host, **HEADER)._step()
    (asked,) = host.asked
    (want,) = asked.pop("wanted")
    assert asked == {"pool": "p", "node": "n", "ttl_ms": 60_000, "give_back": [], "cut_frees": True}
    assert want._replace(jitter=0.0) == Want("lease", "j", "g", "m", 70.0, 30.0, 0.0)


async def test_the_last_units_of_a_queue_are_told_to_be_the_last():
    """Of a limit of 8, as the host tells: 24 units wait, one of them here, then 23, of which one was just fetched."""
    host = Host()
    host.backlog = 24
    door = a_gate(host)
    await door._step()
    door.waiting[0].announced = True
    await door._step()
    door.hold(Request(id="x"))
    await door._step()
    assert [[want.last for want in ask["wanted"]] for ask in host.asked] == [[False], [False], [False, False]]
    door.backlog = 21
    await door._step()
    assert [want.last for want in host.asked[-1]["wanted"]] == [True, True]


async def test_each_ask_is_spread_evenly():
    host = Host(slots=300)
    door = a_gate(host, 300)
    door._batch_size = 300
    await door._step()
    drawn = [want.jitter for want in host.asked[0]["wanted"]]
    assert -1.0 <= min(drawn) < -0.9 and 0.9 < max(drawn) <= 1.0


async def test_a_granted_request_starts_with_a_lease_that_ends_with_its_time():
    host = Host()
    host.verdicts = [LeaseVerdict.GRANTED]
    began = asyncio.get_running_loop().time()
    await a_gate(host)._step()
    (request,) = host.started
    lease = request.lease
    assert request.request_dict == {"lease": lease}
    assert (lease.id, lease.unit) == ("lease", request.unit)
    assert began + 60.0 <= lease.expires_at < began + 70.0


@pytest.mark.parametrize(
    "pool, open_at_provider, further_s, told",
    [
        ("deaf", True, 0.0, ("cut", "j", "deaf", "lease", 10.0)),
        ("deaf", True, 25.0, ("cut", "j", "deaf", "lease", 25.0)),
        ("deaf", False, 25.0, ("released", "j", "deaf", "lease")),
        ("p", True, 25.0, ("released", "j", "p", "lease")),
    ],
)
async def test_a_call_that_the_provider_may_still_work_on_counts_on(pool, open_at_provider, further_s, told):
    host = Host()
    host.verdicts = [LeaseVerdict.GRANTED]
    door = a_gate(host, pool=pool)
    await door._step()
    lease = host.started[0].lease
    lease.at_provider, lease.further_s = (lambda: open_at_provider), further_s
    lease.release()
    assert host.events[-1] == told
    assert host.leased == 0  # this worker has a slot for another call, of any pool
    await door._step()
    assert host.given_back == [Returned("lease", None, further_s if told[0] == "cut" else None)]


async def test_a_lease_given_back_from_another_thread_comes_back_on_the_loop():
    host, moved = Host(), []
    host.on_loop = moved.append
    host.verdicts = [LeaseVerdict.GRANTED]
    door = a_gate(host)
    await door._step()
    moved.clear()
    host.started[0].lease.release_from_any_thread()
    assert (len(moved), host.leased) == (1, 1)
    moved[0]()
    assert host.leased == 0


async def test_a_waiting_request_is_told_of_once_with_the_queue_before_it():
    host = Host()
    host.backlog = 5
    door = a_gate(host, 2)
    await door._step()
    await door._step()
    assert host.events == [("queueing", "j", "p", 7)] * 2


@pytest.mark.parametrize("projects, held, room", [
    (1, [0], 32), (1, [16], 16), (1, [17], 0), (1, [32], 0),  # many at once, when half are gone
    (2, [0, 0], 32), (2, [16, 4], 12), (2, [20, 4], 12), (2, [31, 1], 15),  # beyond its part nobody counts
    (3, [12, 0, 0], 22), (3, [11, 11, 10], 2),
])  # fmt: skip
def test_messages_are_taken_from_the_broker_while_each_project_has_its_part(projects, held, room):
    door = Gate(Host(slots=40), "p")
    door._projects = projects
    for number, n in enumerate(held):
        for _ in range(n):
            door.hold(Request(project=str(number)))
    assert door.room() == room


async def test_in_vain_few_leases_are_asked_for_and_twice_as_many_as_were_granted():
    host = Host(slots=1000)
    door = a_gate(host, 200)
    sizes = []
    for granted in (0, 0, 4, 8, 16, 32, 1):
        host.verdicts = [LeaseVerdict.GRANTED] * granted
        await door._step()
        sizes.append(len(host.asked[-1]["wanted"]))
    await door._step()
    assert [*sizes, len(host.asked[-1]["wanted"])] == [BATCH_MIN, 4, 4, 8, 16, WAITING_MAX, 32, BATCH_MIN]


@pytest.mark.parametrize("granted, held, slots, retry_after_ms, want", [
    (0, 4, 10, -1, FALLBACK_S),  # until a lease is freed
    (0, 4, 10, 250, 0.25),
    (0, 4, 10, 5000, FALLBACK_S),
    (4, 8, 10, -1, 0.0),  # more may be granted at once
    (4, 4, 10, -1, FALLBACK_S),  # nobody else waits
    (3, 8, 10, -1, FALLBACK_S),  # the pool is full
    (4, 8, 4, -1, FALLBACK_S),  # the worker is
    (4, 8, 5, -1, 0.0),
    (4, 8, 10, 0, 0.0),
])  # fmt: skip
async def test_a_gate_waits_as_long_as_nothing_can_change(granted, held, slots, retry_after_ms, want):
    host = Host(slots)
    host.verdicts, host.retry_after_ms = [LeaseVerdict.GRANTED] * granted, retry_after_ms
    assert await a_gate(host, held)._step() == want
    assert host.asking == 0


async def test_other_gates_know_what_is_being_asked_for():
    host, asking = Host(slots=3), []
    admit = host.admit

    async def noted(**more):
        asking.append(host.asking)
        return await admit(**more)

    host.admit = noted
    host.asking = 1
    await a_gate(host, 4)._step()
    assert (asking, host.asking) == ([3], 1)


async def test_leases_of_an_ask_that_failed_are_given_back_with_those_before():
    """The store may have granted them all the same."""
    host = Host()
    door = a_gate(host)
    door._give_back = [Returned("before")]
    host.store_error = StoreConnectionError()
    with pytest.raises(StoreConnectionError):
        await door._step()
    host.store_error = None
    await door.flush()
    assert host.given_back == [Returned("before"), "lease"]
    assert host.asking == 0
    await door.flush()
    assert len(host.asked) == 2, "nothing is left to give back"


@pytest.mark.parametrize("error, closed", [
    (StoreConnectionError("gone"), ""), (ResponseError("WRONGTYPE"), "gate p: WRONGTYPE")
])  # fmt: skip
async def test_a_gate_says_what_does_not_pass_by_itself(error, closed):
    host = Host()
    door = a_gate(host)
    host.store_error = error
    running = asyncio.create_task(door.run())
    await until_turned(lambda: len(host.asked) >= 2)
    assert door.closed_by == closed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_gate_asks_from_time_to_time_though_nobody_wakes_it(monkeypatch):
    monkeypatch.setattr(gate, "FALLBACK_S", 0.001)
    host = Host()
    door = Gate(host, "p")
    running = asyncio.create_task(door.run())
    for times in (1, 2):
        door.waiting.append(Request(id="quiet"))
        await until_turned(lambda times=times: len(host.asked) > times)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_gate_asks_again_after_an_error_though_nobody_wakes_it(monkeypatch):
    monkeypatch.setattr(gate, "FALLBACK_S", 0.001)
    host = Host()
    host.verdicts = [LeaseVerdict.GRANTED]
    door = a_gate(host)
    running = asyncio.create_task(door.run())
    host.store_error = StoreConnectionError("gone")
    await until_turned(lambda: host.asked)
    await asyncio.sleep(0)
    host.store_error = None
    door._wake.clear()
    await until_turned(lambda: host.started)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_gate_that_ends_gives_back_what_it_has():
    host = Host()
    door = Gate(host, "p")
    running = asyncio.create_task(door.run())
    await asyncio.sleep(0)
    door._give_back = [Returned("last")]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert host.given_back == [Returned("last")]


@pytest.mark.parametrize("verdict, back", [(LeaseVerdict.GRANTED, ["lease"]), (LeaseVerdict.DENIED, [])])
async def test_a_lease_for_a_message_that_was_dropped_meanwhile_goes_back(verdict, back):
    host = Host()
    door = a_gate(host, elsewhere=True)
    host.verdicts, host.reasons = [verdict], ["breaker"]
    admit = host.admit

    async def slow(**more):
        answer = await admit(**more)
        assert [request.dropped for request in door.drop_held()] == [True]
        return answer

    host.admit = slow
    await door._step()
    assert (host.started, host.leased, door._give_back) == ([], 0, back)


async def test_a_lease_that_came_to_no_request_goes_back():
    host = Host()
    host.verdicts = [LeaseVerdict.GRANTED]
    lives = iter([60.0])
    host.config.lease_s = lambda pool: next(lives)
    door = a_gate(host)
    await door._step()
    assert (host.started, [name for name, _ in host.aside]) == ([], ["0"])
    assert door._give_back == [Returned("lease")]


async def test_one_decision_is_made_at_a_time_and_a_failed_one_stops_nothing(caplog):
    host, ticks, gates = Host(), [], asyncio.Event()

    class Governor:
        async def tick(self, pool):
            ticks.append(pool)
            await gates.wait()
            if len(ticks) == 2:
                raise RuntimeError("odd")
            if len(ticks) == 3:
                raise OSError("away")

    host.config.governor = Governor
    host.decides = True
    door = a_gate(host)
    for number in range(1, 5):
        gates.clear()
        for _ in range(2):
            await door._step()
            await asyncio.sleep(0)
        assert ticks == ["p"] * number
        gates.set()
        await asyncio.wait_for(door._deciding, 5)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


async def test_an_end_is_told_and_the_job_that_waited_for_it_asks_again():
    host = Host()
    host.verdicts, host.reasons = [LeaseVerdict.GRANTED], ["", "job_limit"]
    door = a_gate(host, 2)
    await door._step()
    assert not any(map(door._turns.takes, door.waiting))
    door._wake.clear()
    host.started[0].lease.release()
    assert host.events[-1] == ("released", "j", "p", "lease")
    assert door._wake.is_set() and all(map(door._turns.takes, door.waiting))


def test_a_new_gate_holds_nothing_and_is_open():
    door = Gate(Host(slots=10), "p")
    assert (door.backlog, door.starved, door.closed_by, list(door.waiting), door.room()) == (0, False, "", [], 10)


@pytest.mark.parametrize("later_s, waits, aside", [
    (0.9, True, True),
    (1.0, True, False),  # nothing here tells when a call of the job's ends elsewhere
    (0.5, False, False),  # nobody waits
])  # fmt: skip
def test_a_job_at_its_own_limit_steps_aside_for_a_second(later_s, waits, aside):
    turns, request = Turns(), Request(job="a")
    turns.note([request], [request], ["job_limit"], 100.0)
    assert not turns.takes(request)
    turns.note([request] if waits else [], [], [], 100.0 + later_s)
    assert turns.takes(request) is not aside


async def test_a_unit_that_waits_for_a_slot_of_this_worker_is_told_of():
    host = Host(slots=1)
    host.verdicts = [LeaseVerdict.GRANTED]
    door = a_gate(host, 3)
    for _ in range(2):
        await door._step()
    assert host.events == [("acquired", "j", "p", "lease")] + [("queueing", "j", "p", 2)] * 2


@pytest.mark.parametrize("sent_before_s, told", [(5.0, True), (-5.0, False), (None, False)])
async def test_a_unit_that_waited_in_the_queue_is_told_of_when_it_comes_out(sent_before_s, told):
    host = Host(slots=2)
    host.verdicts, host.slots = [LeaseVerdict.GRANTED], 1
    door = a_gate(host)
    await door._step()  # the only slot is taken
    host.slots, host.events = 2, []
    sent = {} if sent_before_s is None else {"sent": time.time() - sent_before_s}
    door.hold(Request(id="late", **sent))
    await door._step()
    assert host.events == [("queueing", "j", "p", 1)] * told + [("acquired", "j", "p", "lease")]
