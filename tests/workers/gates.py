"""A gate's host, and requests, without a worker around them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from dicast.workers.admission import gate
from dicast.workers.admission.concurrency import NodeWidth, Suspension
from dicast.workers.admission.leases import Admission, LeaseVerdict
from dicast.workers.store.keys import Keys


class Request:
    """As Celery made it of a message with this header."""

    def __init__(self, **header):
        self.unit = gate.GatedUnit.from_header({"job": "j", **header})
        self.announced, self.lease, self.request_dict = False, None, {}
        self.id = header.get("id", "")


class Host:
    """The consumer's part: answers as told, and what the gate did."""

    def __init__(self, slots=10):
        self.verdicts, self.reasons = [], []
        self.started, self.told, self.aside = [], [], []
        self.faults = {}
        self.asking = self.leased = self.backlog = 0
        self.slots, self.doors = slots, []
        self.store_error = self.queued = None
        self.asked, self.events = [], []
        self.decides = False
        self.retry_after_ms = -1
        self.store = self
        self.config = SimpleNamespace(
            lease_s=lambda pool: {"p": 60.0}.get(pool, 10.0),
            cut_frees=lambda pool: pool != "deaf",
            node="n",
            keys=Keys("t"),
            observer=self,
            width=NodeWidth(slots),
            suspension=Suspension(),
        )

    def free_slots(self):
        return min(self.slots - len(self.started), self.config.width.width - self.leased)

    def new_lease_id(self):
        return "lease"

    async def count_waiting(self, pool):
        return self.backlog

    async def count_by_project(self, pool):
        return self.queued

    def on_loop(self, callback):
        callback()

    def start_request(self, request):
        if request.id in self.faults:
            raise self.faults[request.id]
        self.started.append(request)

    def set_aside(self, request, reason):
        self.aside.append((request.id, reason))
        if request.lease is not None:
            request.lease.release()

    def room_freed(self):
        for door in self.doors:
            if door.starved:
                door.kick()

    async def admit(self, *, wants, give_back, **more):
        self.given_back = give_back
        self.asked.append({"wanted": wants, "give_back": give_back, **more})
        if self.store_error is not None:
            raise self.store_error
        if any(want.project == "odd" for want in wants):
            raise TypeError("str is not valid UTF-8: surrogates not allowed")
        n = len(wants)
        verdicts, reasons = (self.verdicts + [LeaseVerdict.DENIED] * n)[:n], (self.reasons + [""] * n)[:n]
        return Admission(
            verdicts, 0, 0, self.retry_after_ms, "", self.decides, 8, 3, reasons, [-1] * n, widths=[5] * n,
            shares=[2] * n,
        )  # fmt: skip

    def queueing(self, unit, pool, depth, *_):
        self.events.append(("queueing", unit.job, pool, depth))

    def acquired(self, unit, pool, lease, open_calls):
        self.events.append(("acquired", unit.job, pool, lease))

    def released(self, unit, pool, lease, open_calls):
        self.events.append(("released", unit.job, pool, lease))

    def cut(self, unit, pool, lease, open_calls, counts_on_s):
        self.events.append(("cut", unit.job, pool, lease, round(counts_on_s, 1)))

    def over_share(self, unit, pool, limit, projects, *, width, share, unknown):
        self.told.append((unit.project, pool, limit, projects, width, share, unknown))


async def until_turned(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (states that nobody announces)
            await asyncio.sleep(0)
