"""The admission gate: a unit enters the execution pool only with a lease from the store.

A waiting unit holds no slot. A gate asks for leases in batches: one round trip gives back the leases that calls have
ended with and requests new ones. It wakes when a lease is given back here, when the store announces that one was freed
elsewhere, when the wait that the store named is over, and each second in any case. If the store does not answer,
nothing new is granted. An error that concerns one request affects that request alone: it is set aside, and its lease
goes back.

Threads: the hub's thread receives and acknowledges messages; everything else runs on the execution pool's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from redis.exceptions import RedisError

from dicast.workers.admission.gate_host import GateHost
from dicast.workers.admission.leases import Admission, LeaseVerdict, Returned, Want
from dicast.workers.admission.request import AdmittedRequest, GatedUnit, Lease
from dicast.workers.policy.parameters import PROJECT_MAX
from dicast.workers.store.connection import is_passing
from dicast.workers.system.supervision import watch

logger = logging.getLogger(__name__)

ROUNDS = 3
"""The end of a queue is near when fewer units wait than `ROUNDS` times the limit. With calls of half a second these
take about as long as a rate-limited unit waits for its next attempt; with slower calls, others are open that long
anyway."""
LONGEST_S = 2.0
"""A queue that stays short for longer than this is filled as fast as it is emptied, or by many small jobs. The limit
has to grow for these, too."""


class QueueEnd:
    """The end of one gate's queue. No higher limit is tried with a queue's last units, since a refused one would end
    after all others.

    It detects that the units waiting for a pool are the last ones. It is pure: time is an argument.
    """

    def __init__(self) -> None:
        self._near_since: float | None = None

    def is_near(self, waiting: int, limit: int, now: float) -> bool:
        """Return whether the end is near, with `waiting` units here and in the queue under `limit` (0: not known yet);
        `now` is in seconds."""
        if waiting >= ROUNDS * limit:
            self._near_since = None
            return False
        if self._near_since is None:
            self._near_since = now
        return now < self._near_since + LONGEST_S


CROWD_MAX = 256
"""The most messages that a gate takes in addition to `WAITING_MAX`, since others may stand behind them in the queue.
They are messages of jobs at their own limit or, if several projects use the pool, of projects that fill more than their
part."""
JOB_LIMIT = "job_limit"
ASIDE_S = 1.0
"""How long a job that was denied for its own limit steps aside: nothing here says when one of its calls ends
elsewhere."""


class Turns:
    """The turns at one gate. Jobs at their own limit, or of projects at theirs, step aside for a while.

    They decide in which order the units that wait at the gate ask for leases.
    """

    def __init__(self) -> None:
        self._aside: dict[str, float] = {}
        """Job -> until when it steps aside. The dict is replaced and never changed, since other threads read it."""

    def takes(self, request: AdmittedRequest) -> bool:
        """Return whether the request takes its turn, that is, its job has not stepped aside."""
        return request.unit.job not in self._aside

    def note(
        self, pending: Iterable[AdmittedRequest], batch: Sequence[AdmittedRequest], reasons: Sequence[str], now: float
    ) -> None:
        """Take in the reasons for which the requests in `batch` were denied, '' for those that were not."""
        waiting = {request.unit.job for request in pending}
        aside = {job: until for job, until in self._aside.items() if now < until and job in waiting}
        for request, reason in zip(batch, reasons, strict=True):
            if reason in (JOB_LIMIT, PROJECT_MAX):
                aside[request.unit.job] = now + ASIDE_S
        self._aside = aside

    def come_back(self, job: str) -> None:
        """End the job's stepping aside: one of its calls has ended here, so it may have another."""
        self._aside = {name: until for name, until in self._aside.items() if name != job}

    def crowd(self, pending: Iterable[AdmittedRequest], projects: int, places: int) -> int:
        """Return how many of the waiting messages do not count against the room: those of jobs that have stepped aside
        and, with several `projects`, those beyond their equal parts of the `places`."""
        aside, units = self._aside, [request.unit for request in pending]
        waiting = Counter(unit.project for unit in units if unit.job not in aside)
        part = places // projects if projects > 1 else len(units)
        crowd = len(units) - waiting.total() + sum(max(0, n - part) for n in waiting.values())
        return min(CROWD_MAX, crowd)


def in_turns(pending: Iterable[AdmittedRequest], most: int) -> list[AdmittedRequest]:
    """Return up to `most` of the waiting requests: the oldest of each project first, then the second of each, and so
    on.

    So a project with a long queue does not hold up others. The same holds for the jobs within a project.
    """
    turns: Counter[tuple[str, str]] = Counter()
    waiting: dict[str, list[tuple[int, int, AdmittedRequest]]] = defaultdict(list)
    for number, request in enumerate(pending):
        unit = request.unit
        waiting[unit.project].append((turns[unit.project, unit.job], number, request))
        turns[unit.project, unit.job] += 1
    ranked = []
    for requests in waiting.values():
        requests.sort()  # no two have one number, so that requests are never compared
        ranked += [(turn, number, request) for turn, (_, number, request) in enumerate(requests)]
    return [request for *_, request in sorted(ranked)[:most]]


WAITING_MAX = 32
"""The most messages that one gate takes from the broker ahead of their leases. It is small, so that other workers find
work too."""
CALLS_AHEAD = 5
"""While all slots are taken, one message is held for each `CALLS_AHEAD` calls that the pool has open here. That many
calls end in a fifth of a call's time, and without held messages their slots would stay empty during the next fetch. A
pool whose calls run elsewhere holds at most one message here."""
BUNCH_MIN = 8
BATCH_MIN = 4
"""The number of leases requested at once while few are granted: a denial costs the store as much as a grant."""
BROKEN = ("breaker", "probe")
OVER_SHARE = ("fair_share", PROJECT_MAX)
SLOTS = "slots"
"""The reason reported for units that wait because this worker has no free slot."""
FALLBACK_S = 1.0
"""How long a gate that has given messages back takes no others, so that other workers can take them."""
COUNTED_EVERY_S, COUNTED_WITHIN_S = 1.0, 0.2
OVER_SHARE_EVERY_S = 60.0


class Gate:
    """Admission of one pool's units into this process."""

    def __init__(self, host: GateHost, pool: str) -> None:
        self.host, self.pool = host, pool
        self.waiting: deque[AdmittedRequest] = deque()
        self.backlog = 0
        self.shut = False
        """True while an operator's command keeps its queue from being read."""
        self.starved = False
        """True if units wait here and no slot was free for them at the last step."""
        self._projects = 0
        self._limit = 0
        self._queue_end, self._near_end = QueueEnd(), False
        self._batch_size = BATCH_MIN
        self._give_back: list[str | Returned] = []
        self._deciding: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._open_calls = 0
        self._leases: set[Lease] = set()
        self._logged_at: dict[str, float] = {}
        self._counted_at = float("-inf")
        self._turns = Turns()
        self._full_at = float("-inf")
        """When units last waited here or no slot was free, in Unix seconds by this host's clock."""
        self._aside_until = float("-inf")
        self.closed_by = ""
        """A permanent store error that keeps this gate closed, '' if there is none; readable from any thread."""

    # ------------------------------------------------------------------ any thread
    @property
    def closed(self) -> bool:
        """Whether the gate takes no messages, because of an operator or a fault. Messages that still arrive go back."""
        return self.shut or not self.host.config.suspension.takes_units or time.monotonic() < self._aside_until

    def room(self) -> int:
        """Return how many messages may be taken from the broker now.

        While one project uses the pool, messages are taken in bulk, once half of them are gone. With several projects
        they are taken as soon as there is room, since the next project's message may stand behind others in the queue.
        """
        if self.closed:
            return 0
        free = self.host.free_slots()
        most = max(1, min(WAITING_MAX, max(free, len(self._leases) // CALLS_AHEAD)))
        occupied = len(self.waiting)
        if free:
            occupied -= self._turns.crowd(list(self.waiting), self._projects, WAITING_MAX)
        is_worth_it = self._projects > 1 or occupied <= most // 2
        return max(0, most - occupied) if is_worth_it else 0

    def room_for_bunch(self) -> int:
        """Like `room`, for brokers where a request costs more than a message: 0 if the room is small and enough wait
        here."""
        room = self.room()
        return room if room >= BUNCH_MIN or len(self.waiting) < BUNCH_MIN else 0

    def hold(self, request: AdmittedRequest) -> None:
        self.waiting.append(request)
        self.backlog = max(0, self.backlog - 1)
        self.host.on_loop(self.kick)

    def give_up(self, most: int) -> list[AdmittedRequest]:
        """Drop up to `most` of the newest waiting requests and return them; their messages go back for other workers.

        The gate then takes no messages for `ASIDE_S`, so that the others come first. Call it on the hub's thread.
        """
        dropped = []
        for request in list(self.waiting)[::-1][:most]:
            with contextlib.suppress(ValueError):  # it was granted in between
                self.waiting.remove(request)
                request.dropped = True
                dropped.append(request)
        if dropped:
            self._aside_until = time.monotonic() + ASIDE_S
        return dropped

    def drop_held(self) -> list[AdmittedRequest]:
        """Drop all waiting requests and return them: their connection is gone, or they go back to the queue."""
        dropped = list(self.waiting)
        self.waiting.clear()
        for request in dropped:
            request.dropped = True
        return dropped

    # ------------------------------------------------------------------ the loop
    def kick(self) -> None:
        self._wake.set()

    def give_back(self, lease: Lease) -> None:
        self._give_back.append(Returned(lease.id, lease.outcome, lease.counts_on_s))
        self.host.leased -= 1
        self._leases.discard(lease)
        self._turns.come_back(lease.unit.job)
        self.host.config.width.record(lease.outcome)
        observer = self.host.config.observer
        if lease.counts_on_s is None:
            self._open_calls = max(0, self._open_calls - 1)
            observer.released(lease.unit, self.pool, lease.id, self._open_calls)
        else:
            deadline_s = lease.expires_at - asyncio.get_running_loop().time()
            counts_on_s = max(0.0, lease.counts_on_s, deadline_s)
            observer.cut(lease.unit, self.pool, lease.id, self._open_calls, counts_on_s)
        self.kick()

    async def count(self) -> None:
        """Update `backlog`, if the broker answers."""
        waiting = await self.host.count_waiting(self.pool)
        if waiting is not None:
            self.backlog = waiting

    def cut_calls(self) -> int:
        """End all open calls without an answer; returns how many there were."""
        return sum(lease.cut() for lease in list(self._leases))

    async def run(self) -> None:
        """Serve until cancelled; then give back the remaining leases."""
        wait = FALLBACK_S
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                self._wake.clear()
                try:
                    wait = await self._step()
                    self.closed_by = ""
                except RedisError as error:
                    self._close(error)
                    wait = FALLBACK_S
                    await self.flush()
        finally:
            await self.flush()

    def _close(self, error: RedisError) -> None:
        """Log why nothing is granted: the store is unreachable, or rejects the requests of this gate alone."""
        if is_passing(error):
            logger.warning("gate %s is closed, the store does not answer: %s", self.pool, error)
        elif not self.closed_by:
            self.closed_by = f"gate {self.pool}: {error}"
            logger.error("gate %s is closed: %r", self.pool, error,
                         extra={"event": "gate_closed", "pool": self.pool})  # fmt: skip

    async def flush(self) -> None:
        """Give back all leases of ended calls without requesting new ones."""
        if self._give_back:
            with contextlib.suppress(RedisError):
                await self._admit([], ())

    async def _step(self) -> float:
        """Give leases back and request new ones, once; returns the longest sensible wait until the next step, s."""
        await self._count()
        now = asyncio.get_running_loop().time()
        self._near_end = self._queue_end.is_near(len(self.waiting) + self.backlog, self._limit, now)
        room = max(0, self.host.free_slots() - self.host.asking)
        waiting = list(self.waiting)
        batch = in_turns(list(filter(self._turns.takes, waiting)) or waiting, min(room, self._batch_size))
        self.starved = bool(self.waiting) and not batch
        self._note_waiting(batch)
        if not batch and not self._give_back:
            return FALLBACK_S
        self.host.asking += len(batch)
        try:
            verdicts, wait_ms = await self._ask(batch)
        finally:
            self.host.asking -= len(batch)
            self.host.room_freed()
            self._note_waiting()
        if wait_ms >= 0:
            return min(FALLBACK_S, wait_ms / 1000)
        return 0.0 if self._may_have_more(batch, verdicts) else FALLBACK_S

    def _note_waiting(self, batch: Sequence[AdmittedRequest] = ()) -> None:
        """Report units that wait because this worker has no free slot. The requests in `batch` are left out: why they
        wait is reported when they are denied."""
        waiting = [request for request in list(self.waiting) if request not in batch]
        if waiting or self.host.free_slots() <= 0:
            self._full_at = time.time()
        for request in waiting if self.host.free_slots() <= 0 else ():
            self._announce(request, SLOTS, None)

    def _announce(self, request: AdmittedRequest, reason: str, wait_s: float | None) -> None:
        """Report that a unit waits; once for each unit."""
        if not request.announced:
            request.announced = True
            depth = len(self.waiting) + self.backlog
            self.host.config.observer.queueing(request.unit, self.pool, depth, reason, wait_s)

    def _may_have_more(self, batch: Sequence[AdmittedRequest], verdicts: Sequence[LeaseVerdict]) -> bool:
        """Return whether all requests whose turn it was were granted, more of them wait, and a slot is free."""
        granted = [verdict for request, verdict in zip(batch, verdicts, strict=False) if self._turns.takes(request)]
        more = any(map(self._turns.takes, list(self.waiting)))
        return bool(granted) and all(granted) and more and self.host.free_slots() > 0

    async def _count(self) -> None:
        """Update the backlog before the first waiting unit is reported, instead of at the host's next periodic
        count."""
        now = asyncio.get_running_loop().time()
        if now >= self._counted_at + COUNTED_EVERY_S and not all(request.announced for request in list(self.waiting)):
            self._counted_at = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COUNTED_WITHIN_S):
                    await self.count()

    async def _ask(self, batch: Sequence[AdmittedRequest]) -> tuple[list[LeaseVerdict], int]:
        """Request leases in one batch; if that fails before it reaches the store, request them one by one."""
        try:
            return await self._admit([self._want(r.unit) for r in batch], batch)
        except RedisError:
            raise
        except Exception:  # one request that cannot be asked for must not keep the others waiting
            if not batch:
                raise
            logger.exception("gate %s cannot request %d leases together", self.pool, len(batch))
        await self._admit([], ())
        for request in batch:
            try:
                await self._admit([self._want(request.unit)], [request])
            except RedisError:
                raise
            except Exception as error:  # found: it alone is set aside
                logger.exception("gate %s: no lease can be requested for %s", self.pool, request.id)
                self._drop(request, repr(error))
        return [], 0

    def _drop(self, request: AdmittedRequest, why: str) -> None:
        with contextlib.suppress(ValueError):
            self.waiting.remove(request)
        self.host.set_aside(request, why)

    def _want(self, unit: GatedUnit) -> Want:
        jitter = random.uniform(-1.0, 1.0)  # noqa: S311  spreads grants, guards nothing
        lease = unit.lease_named(self.host.new_lease_id())
        tokens = unit.input_tokens, unit.output_tokens
        return Want(lease, unit.job, unit.project, unit.model, *tokens, jitter, last=self._near_end)

    async def _admit(self, wants: list[Want], batch: Sequence[AdmittedRequest]) -> tuple[list[LeaseVerdict], int]:
        config = self.host.config
        lease_s = config.lease_s(self.pool)
        returned, self._give_back = self._give_back, []
        started = asyncio.get_running_loop().time()
        try:
            admission = await self.host.store.admit(
                pool=self.pool,
                node=config.node,
                ttl_ms=int(lease_s * 1000),
                give_back=returned,
                wants=wants,
                cut_frees=config.cut_frees(self.pool),
            )
        except BaseException:
            # The step may have been taken all the same: the leases asked for are given back as well.
            self._give_back = [*returned, *(w.lease for w in wants), *self._give_back]
            raise
        self._learn(admission, batch, started)
        over_share = list[tuple[AdmittedRequest, int]]()
        entries = zip(batch, wants, admission.verdicts, admission.reasons, strict=True)
        for number, (request, want, verdict, reason) in enumerate(entries):
            try:
                self._apply_verdict(number, request, want, verdict, reason, admission, started)
                denied_over_share = verdict is LeaseVerdict.DENIED and reason in OVER_SHARE
                if denied_over_share and self._is_news(request.unit.project, started):
                    over_share.append((request, number))
            except Exception as error:  # what is wrong with one request concerns that one alone
                logger.exception("gate %s: %s cannot be started", self.pool, request.id)
                if verdict is LeaseVerdict.GRANTED and request.lease is None:
                    self._give_back.append(Returned(want.lease))
                self._drop(request, repr(error))
        if over_share:
            await self._report_over_share(over_share, admission)
        return list(admission.verdicts), admission.retry_after_ms

    def _learn(self, admission: Admission, batch: Sequence[AdmittedRequest], started: float) -> None:
        """Take in what an answer says about the pool, apart from the verdicts."""
        self._projects, self._limit = admission.projects, admission.limit
        # Calls granted together are reported one after the other.
        self._open_calls = admission.open_in_all - sum(
            verdict is LeaseVerdict.GRANTED for verdict in admission.verdicts
        )
        if batch:
            granted = sum(verdict is not LeaseVerdict.DENIED for verdict in admission.verdicts)
            self._batch_size = max(BATCH_MIN, min(WAITING_MAX, 2 * granted))
        if admission.decide:
            self._decide()
        self._turns.note(list(self.waiting), batch, admission.reasons, started)

    def _apply_verdict(
        self, number: int, request: AdmittedRequest, want: Want, verdict: LeaseVerdict, reason: str,
        admission: Admission, started: float,
    ) -> None:  # fmt: skip
        """Apply one request's verdict: it starts with its lease, or goes on waiting."""
        # A unit that other pools could serve does not wait for a broken pool: its task, without a lease, sends it on.
        if verdict is LeaseVerdict.DENIED and not (request.unit.elsewhere and reason in BROKEN):
            wait_ms = admission.waits_ms[number]
            self._announce(request, reason, wait_ms / 1000 if wait_ms >= 0 else None)
            return
        if verdict is LeaseVerdict.GRANTED and not self.host.config.suspension.may_begin():
            self._give_back.append(want.lease)  # cordoned meanwhile: the request goes back to its queue
            return
        if request.unit.sent_s < self._full_at:  # it waited in the queue, while there was no slot
            self._announce(request, SLOTS, None)
        try:
            self.waiting.remove(request)
        except ValueError:  # dropped meanwhile: its message comes again
            if verdict is LeaseVerdict.GRANTED:
                self._give_back.append(want.lease)
            return
        if verdict is LeaseVerdict.GRANTED:
            self._lease(request, want.lease, started, probe=number == admission.probe)
        request.request_dict["lease"] = request.lease
        self.host.start_request(request)

    def _lease(self, request: AdmittedRequest, lease: str, started: float, *, probe: bool) -> None:
        config = self.host.config
        expires_at = started + config.lease_s(self.pool)
        request.lease = Lease(
            self.give_back, self.host.on_loop, lease, request.unit, expires_at, probe=probe,
            cut_frees=config.cut_frees(self.pool), may_begin=config.suspension.may_begin,
        )  # fmt: skip
        self.host.leased += 1
        self._leases.add(request.lease)
        self._open_calls += 1
        config.observer.acquired(request.unit, self.pool, lease, self._open_calls)

    async def _report_over_share(self, denied: Sequence[tuple[AdmittedRequest, int]], admission: Admission) -> None:
        """Report the demand of projects that are denied for their share: open calls, units that wait here, and those in
        the queue whose project is known. Units held by other workers' gates are not included."""
        queued = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNTED_WITHIN_S):
                queued = await self.host.count_by_project(self.pool)
        for request, number in denied:
            project = request.unit.project
            waiting = sum(other.unit.project == project for other in list(self.waiting))
            waiting += queued.projects.get(project, 0) if queued else 0
            self.host.config.observer.over_share(
                request.unit, self.pool, admission.limit, admission.projects, width=admission.widths[number] + waiting,
                share=admission.shares[number], unknown=queued.unknown if queued else None,
            )  # fmt: skip

    def _is_news(self, project: str, now: float) -> bool:
        """Return whether this project has not been logged in the last `OVER_SHARE_EVERY_S`."""
        self._logged_at = {name: at for name, at in self._logged_at.items() if now < at + OVER_SHARE_EVERY_S}
        is_news = project not in self._logged_at
        self._logged_at.setdefault(project, now)
        return is_news

    def _decide(self) -> None:
        """Have the governor decide, concurrently with the gate's own work; the result comes back with the store's
        answers."""
        if self._deciding is None or self._deciding.done():
            self._deciding = asyncio.ensure_future(self._tick())
            watch(self._deciding, f"decision for pool {self.pool}")

    async def _tick(self) -> None:
        try:
            await self.host.config.governor().tick(self.pool)
        except (RedisError, OSError) as error:
            logger.warning("no decision for pool %s: %s", self.pool, error)
        except Exception:
            # A fault of this program: the last decision stays in force until it is stale, and calls go on.
            logger.exception("no decision for pool %s", self.pool)
