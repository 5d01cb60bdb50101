"""What a gate does with the store's answers, without a worker around it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from redis.exceptions import ResponseError

from dicast.workers.admission import gate
from dicast.workers.admission.gate import Gate
from dicast.workers.admission.leases import Admission, LeaseVerdict
from dicast.workers.admission.request import GatedUnit, QueuedUnits
from dicast.workers.policy.calls import CallOutcome
from tests.workers.gates import Host, Request, until_turned


@pytest.mark.parametrize(
    "elsewhere, reason, moved_on",
    [(True, "breaker", True), (True, "probe", True), (True, "limit", False), (False, "breaker", False)],
)
async def test_a_unit_that_would_do_as_well_elsewhere_does_not_wait_for_a_broken_pool(elsewhere, reason, moved_on):
    host = Host()
    host.reasons = [reason]
    door, request = Gate(host, "p"), Request(elsewhere=elsewhere)
    door.hold(request)
    await door._step()
    assert (host.started == [request], list(door.waiting) == []) == (moved_on, moved_on)
    assert request.lease is None and host.leased == 0


async def test_a_project_over_its_share_is_told_of_once_a_minute(monkeypatch):
    host = Host()
    door = Gate(host, "p")
    for project in ("greedy", "greedy", "other"):
        door.hold(Request(project=project))
    host.reasons = ["fair_share"] * 3
    for _ in range(5):
        await door._step()
    assert sorted(host.told) == [("greedy", "p", 8, 3, 7, 2, None), ("other", "p", 8, 3, 6, 2, None)]
    monkeypatch.setattr(gate, "OVER_SHARE_EVERY_S", 0.0)
    await door._step()
    assert len(host.told) > 2


async def test_what_a_project_wants_includes_what_waits_in_the_queue_and_says_of_how_much_nobody_knows():
    host = Host()
    host.queued = QueuedUnits({"greedy": 40, "absent": 3}, 12)
    door = Gate(host, "p")
    for project in ("greedy", "greedy", "other"):
        door.hold(Request(project=project))
    host.reasons = ["fair_share", "fair_share", "project_max"]
    await door._step()
    assert sorted(host.told) == [("greedy", "p", 8, 3, 47, 2, 12), ("other", "p", 8, 3, 6, 2, 12)]


async def test_a_broker_that_does_not_answer_keeps_nobody_from_what_is_known(monkeypatch):
    host, never = Host(), asyncio.Event()
    monkeypatch.setattr(gate, "COUNTED_WITHIN_S", 0.0)
    monkeypatch.setattr(host, "count_by_project", lambda pool: never.wait())
    door = Gate(host, "p")
    door.hold(Request(project="greedy"))
    host.reasons = ["fair_share"]
    await door._step()
    assert host.told == [("greedy", "p", 8, 3, 6, 2, None)]


async def test_calls_that_are_granted_together_are_counted_one_after_the_other(monkeypatch):
    host, told = Host(), []

    async def admit(*, wants, **_):
        return Admission([LeaseVerdict.GRANTED] * 3, 5, 7, -1, "", False, 8, 1, [""] * 3, [-1] * 3)

    monkeypatch.setattr(host, "admit", admit)
    monkeypatch.setattr(host, "acquired", lambda unit, pool, lease, open_calls: told.append(open_calls))
    monkeypatch.setattr(host, "released", lambda unit, pool, lease, open_calls: told.append(open_calls))
    door = Gate(host, "p")
    for _ in range(3):
        door.hold(Request())
    await door._step()
    host.started[0].lease.release()
    assert told == [5, 6, 7, 6]


async def test_the_first_unit_that_waits_is_told_with_all_that_wait_behind_it(monkeypatch):
    """However long it is until the host looks again."""
    host, told = Host(), []
    host.backlog = 25
    monkeypatch.setattr(host, "queueing", lambda unit, pool, depth, *_: told.append(depth))
    door = Gate(host, "p")
    for _ in range(2):
        door.hold(Request())
    await door._step()
    assert told == [27, 27]


async def test_the_last_call_that_ends_leaves_none_open(monkeypatch):
    host, told = Host(), []

    async def admit(*, wants, **_):
        return Admission([LeaseVerdict.GRANTED], 1, 1, -1, "", False, 8, 1, [""], [-1])

    monkeypatch.setattr(host, "admit", admit)
    monkeypatch.setattr(host, "released", lambda unit, pool, lease, open_calls: told.append((pool, lease, open_calls)))
    door = Gate(host, "p")
    door.hold(Request())
    await door._step()
    assert host.events == [("acquired", "j", "p", "lease")]
    host.started[0].lease.release()
    assert told == [("p", "lease", 0)]


async def test_leases_are_counted_and_their_ends_told_to_the_nodes_width():
    host = Host()
    door = Gate(host, "p")
    for _ in range(3):
        door.hold(Request())
    host.verdicts = [LeaseVerdict.GRANTED] * 3
    await door._step()
    assert (host.leased, len(host.started)) == (3, 3)
    for request, status in zip(host.started, (200, 500, 429), strict=True):
        lease = request.lease
        lease.outcome = CallOutcome(status)
        lease.release()
        lease.release()
    assert host.leased == 0
    status = host.config.width.sample()
    assert (status.window_size, status.error_rate) == (2, 0.5)
    await asyncio.wait_for(door.flush(), 5)
    assert [given.outcome.status for given in host.given_back] == [200, 500, 429]


def test_a_broker_is_asked_for_several_or_when_few_wait():
    door = Gate(Host(slots=40), "p")
    door._projects = 2
    asked = []
    for number in range(33):
        asked.append(door.room_for_bunch())
        door.hold(Request(project=str(number % 2)))
    assert asked == [32 - held for held in range(25)] + [0] * 8


@pytest.mark.parametrize("held, room", [(7, 3), (8, 0)])
def test_for_few_messages_a_broker_is_not_asked_while_enough_wait(held, room):
    door = Gate(Host(slots=10), "p")
    door._projects = 2
    for number in range(held):
        door.hold(Request(project=str(number % 2)))
    assert door.room_for_bunch() == room


@pytest.mark.parametrize("slots, ahead", [(1, 1), (9, 1), (40, 8), (1000, 32)])
async def test_a_full_worker_holds_as_many_messages_as_soon_find_a_slot(slots, ahead):
    host = Host(slots)
    door, idle = Gate(host, "p"), Gate(host, "q")
    host.verdicts = [LeaseVerdict.GRANTED] * 32
    while host.free_slots():
        door.hold(Request())
        await door._step()
    assert door.room() == ahead
    assert idle.room() == 1  # none of its own calls makes room for it here
    for _ in range(ahead):
        door.hold(Request())
    assert door.room() == 0
    host.started[0].lease.release()
    assert door.room() == 0  # they come several at a time
    for request in host.started[1:]:
        request.lease.release()
    host.started.clear()
    assert host.leased == len(door._leases) == 0


async def test_a_cordoned_gate_starts_nothing_that_is_granted_after_all():
    """The store answered an ask that was under way: the lease goes back, and so does the request, to its queue."""
    host = Host()
    host.verdicts = [LeaseVerdict.GRANTED] * 2
    door, first, second = Gate(host, "p"), Request(), Request()
    door.hold(first)
    await door._step()
    assert first.lease.may_begin()
    door.hold(second)
    host.config.suspension.cordon = "cordon by ann"
    await door._step()
    assert (host.started, list(door.waiting), door._give_back) == ([first], [second], ["lease"])
    assert not first.lease.may_begin()
    assert (door.closed, door.room()) == (True, 0)
    host.config.suspension.cordon = ""
    assert door.room() > 0


async def test_what_is_given_up_is_the_newest_and_others_come_first(monkeypatch):
    host = Host()
    door, requests = Gate(host, "p"), [Request(id=str(n)) for n in range(5)]
    for request in requests:
        door.hold(request)
    assert door.give_up(2) == requests[:2:-1]
    assert list(door.waiting) == requests[:3]
    assert (door.closed, door.room()) == (True, 0), "or it would take them again"
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + gate.ASIDE_S))
    assert not door.closed
    assert door.give_up(9) == requests[2::-1]


async def test_open_calls_are_cut_once_each(monkeypatch):
    host, ended = Host(), []
    host.verdicts = [LeaseVerdict.GRANTED] * 2
    door = Gate(host, "p")
    for _ in range(2):
        door.hold(Request())
    await door._step()
    called, waiting = host.started
    called.lease.end_call = lambda: ended.append(1)
    assert door.cut_calls() == 1, "the other has not begun its call"
    assert (door.cut_calls(), ended, called.lease.is_cut, waiting.lease.is_cut) == (0, [1], True, False)


async def test_a_gate_without_a_slot_asks_as_soon_as_there_is_one():
    """One gate has asked for all slots, in vain; meanwhile a lease of the other's came back."""
    host = Host(slots=1)
    host.doors = [greedy, poor] = [Gate(host, "a"), Gate(host, "b")]
    for door in host.doors:
        door.hold(Request())
        door._wake.clear()
    host.asking = 1
    await poor._step()
    assert poor.starved and not poor._wake.is_set()
    host.asking = 0
    await greedy._step()
    assert poor._wake.is_set()
    await poor._step()
    assert not poor.starved


def test_projects_and_their_jobs_take_turns():
    held = [Request(project=p, job=j) for p, j in ("ga", "ga", "ga", "gb", "gb", "oc", "oc")]
    turns = ["".join((r.unit.project, r.unit.job)) for r in gate.in_turns(held, 7)]
    assert turns == ["ga", "oc", "gb", "oc", "ga", "gb", "ga"]
    assert gate.in_turns(held, 4) == [held[0], held[5], held[3], held[6]]


async def test_a_job_at_its_own_limit_stands_in_front_of_no_other():
    """Two jobs of one project: the first has hundreds of messages in the queue and may have one call open."""
    host = Host(slots=8)
    door = Gate(host, "p")
    queue = [Request(project="g", job="a") for _ in range(150)] + [Request(project="g", job="b") for _ in range(40)]

    async def admit(*, wants, **_):
        open_of_a = sum(request.unit.job == "a" for request in host.started)
        verdicts, reasons = [], []
        for want in wants:
            refused = want.job == "a" and open_of_a + verdicts.count("a") >= 1
            verdicts.append(LeaseVerdict.DENIED if refused else LeaseVerdict.GRANTED)
            reasons.append("job_limit" if refused else "")
            open_of_a += want.job == "a" and not refused
        n = len(wants)
        return Admission(verdicts, 0, 0, -1, "", False, 8, 1, reasons, [-1] * n)

    host.admit = admit

    async def step():
        for _ in range(min(door.room(), len(queue))):
            door.hold(queue.pop(0))
        await door._step()
        return "".join(sorted(request.unit.job for request in host.started))

    for _ in range(40):
        if await step() == "abbbbbbb":
            break
    else:
        pytest.fail(f"{await step()} were started")
    host.started.pop(0).lease.release()  # it may have another call, and has its turn at once
    assert await step() == "abbbbbbb"


async def test_one_request_that_cannot_start_is_set_aside_and_gives_its_lease_back():
    """A time limit of three numbers, where Celery expects two."""
    host = Host()
    door = Gate(host, "p")
    for name in ("a", "odd", "b"):
        door.hold(Request(id=name))
    host.faults["odd"] = ValueError("too many values to unpack")
    host.verdicts = [LeaseVerdict.GRANTED] * 3
    await door._step()
    assert [request.id for request in host.started] == ["a", "b"]
    assert host.aside == [("odd", "ValueError('too many values to unpack')")]
    assert (host.leased, len(door.waiting)) == (2, 0)
    await door.flush()
    assert [given.lease for given in host.given_back] == ["lease"]


async def test_one_request_that_cannot_be_asked_for_is_set_aside_alone():
    host = Host()
    door = Gate(host, "p")
    for name in ("a", "odd", "b"):
        door.hold(Request(id=name, project=name))
    host.verdicts = [LeaseVerdict.GRANTED]
    assert await door._step() == 0.0
    assert [request.id for request in host.started] == ["a", "b"]
    assert host.aside == [("odd", "TypeError('str is not valid UTF-8: surrogates not allowed')")]
    assert not door.waiting


async def test_a_fault_of_the_stores_closes_one_gate_and_sets_nobody_aside(caplog):
    host = Host()
    door = Gate(host, "p")
    door.hold(Request(id="a"))
    host.store_error = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
    running = asyncio.create_task(door.run())
    await until_turned(lambda: door.closed_by)
    assert door.closed_by.startswith("gate p: WRONGTYPE")
    assert (host.aside, len(door.waiting)) == ([], 1)
    host.store_error, host.verdicts = None, [LeaseVerdict.GRANTED]
    door.kick()
    await until_turned(lambda: host.started and not door.closed_by)
    assert (door.closed_by, [record.event for record in caplog.records]) == ("", ["gate_closed"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_worker_that_is_suspended_takes_nothing():
    host = Host()
    door = Gate(host, "p")
    assert door.room() > 0
    for _ in range(3):
        host.config.suspension.failed(ResponseError("ERR odd"))
    assert (door.room(), door.room_for_bunch()) == (0, 0)


@pytest.mark.parametrize("name", ["job", "project", "pool", "model"])
@pytest.mark.parametrize("value", ["\ud800", 5, None, ["a"], "x" * 2000], ids=repr)
def test_a_header_that_the_store_could_not_take_belongs_to_no_job(name, value):
    unit = gate.GatedUnit.from_header({"job": "j", "project": "p", name: value})
    assert (unit.job, unit.project, unit.pool, unit.model) == ("", "", "", "")


@pytest.mark.parametrize(
    "labels, wanted",
    [({"unit": "0.3.b20"}, "lease~0.3.b20"), ({"unit": "a|b"}, "lease"), ({"unit": 7}, "lease"), ({}, "lease")],
)
async def test_a_lease_tells_which_unit_it_is_for(labels, wanted):
    host = Host()
    unit = GatedUnit("j", "proj", labels)
    assert Gate(host, "p")._want(unit).lease == wanted
