"""Enforces the time limits of jobs: `max_pool_down`, `finish_by` and `unit_deadline`.

The housekeeping checks each bounded job as often as its bounds require. All instants are in the store, on the lease
clock, so any worker can take over the checks. Rules for one check of a running job:

1. The job's `finish_by` has passed: it stops asking everywhere. Open calls are cut at that instant by their workers.
2. A pool has been down for longer than the job waits, counted from the job's start if that is later, and has been
   probed since: the job stops asking there. Units whose judge has other deployments go to these.
3. Units that no worker is working on end, where their job has stopped asking or their own deadline has passed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping

from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.plan import Lane, Stop
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import Bounded, JobRecord, MessageId, OpenPage
from dicast.app.pipeline.call_facts import Models, places_of
from dicast.app.pipeline.judge import Judge
from dicast.app.pipeline.messages import Sender
from dicast.app.pipeline.pool_trouble import Conditions, FailFast, outage_text_of
from dicast.workers.admission.pool_state import PoolCondition


class TimeLimits:
    """Enforces time limits on one event loop."""

    def __init__(
        self, ledger: Ledger, fail_fast: FailFast, judge: Judge, messages: Sender, conditions: Conditions,
        models: Models,
    ) -> None:  # fmt: skip
        self._ledger, self._fail_fast, self._judge, self._messages = ledger, fail_fast, judge, messages
        self._conditions, self._models = conditions, models

    async def check(self, job_id: str) -> None:
        """End what the job no longer waits for. Raises redis errors; the next check repeats all of it."""
        bounds = await self._ledger.bounds(job_id)
        job = await self._ledger.job(job_id) if bounds is not None else None
        if bounds is None or job is None:
            return
        stops = await self._fail_fast.stops(job)
        new = [stop async for stop in self._given_up(job, bounds, stops)]
        for stop in new:
            await self._fail_fast.give_up(job, stop)
        if new:
            stops = await self._fail_fast.stops(job)
        await self._end(job, bounds, stops)
        if new:
            for number in range(len(job.lanes)):  # to end units that are not published yet
                await self._messages.plan(job.id, job.incarnation, number)

    async def _given_up(self, job: JobRecord, bounds: Bounded, stops: Mapping[str, Stop]) -> AsyncIterator[Stop]:
        """Yield stops for places that the job gives up now."""
        if bounds.ends_ms is not None and bounds.now_ms >= bounds.ends_ms:
            took_s = max(0, bounds.ends_ms - bounds.began_ms) / 1000
            message = f"the job's finish_by has passed, {took_s:,.0f} s after its start"
            for pool, model in self._places(job, stops):
                yield Stop(pool=pool, model=model, kind=ErrorKind.DEADLINE, after=0, status_code=None, message=message)
        elif bounds.pool_down_ms is not None:
            places = list(self._places(job, stops))
            conditions = await self._conditions.read({pool for pool, _ in places}) if places else {}
            for pool, model in places:
                if _is_too_long(conditions[pool], bounds):
                    status, message = _status(conditions[pool]), outage_text_of(pool, conditions[pool])
                    yield Stop(
                        pool=pool, model=model, kind=ErrorKind.POOL_DOWN, after=0, status_code=status, message=message
                    )

    def _places(self, job: JobRecord, stops: Mapping[str, Stop]) -> Iterator[tuple[str, str]]:
        places = (at for lane in job.lanes for agent in lane.agents for at in places_of(job, lane, agent, self._models))
        for at in dict.fromkeys(places):
            if at not in stops:
                pool, _, model = at.partition("|")
                yield pool, model

    async def _end(self, job: JobRecord, bounds: Bounded, stops: Mapping[str, Stop]) -> None:
        """End units without a call that are no longer to be called, or whose deadline has passed, except those that a
        living worker is working on."""
        late_ms = bounds.now_ms - bounds.unit_ms if bounds.unit_ms is not None else -1
        given_up = {at for at, stop in stops.items() if stop.kind in (ErrorKind.POOL_DOWN, ErrorKind.DEADLINE)}
        if not given_up and bounds.unit_ms is None:
            return
        for page in await self._ledger.unended(job.id):
            lane = job.lanes[page.ref.lane]
            ended = False
            is_late = page.opened_ms <= late_ms
            async for token, deployment in self._waiting(job, lane, page, given_up, all_of_it=is_late):
                outcome = await self._judge.judge(page.ref, token, None, deployment, early=True)
                ended = True
                if outcome.plan:
                    await self._messages.plan(job.id, job.incarnation, page.ref.lane)
            if ended:
                await self._messages.gather(page.ref)

    async def _waiting(
        self, job: JobRecord, lane: Lane, page: OpenPage, given_up: set[str], *, all_of_it: bool
    ) -> AsyncIterator[tuple[MessageId, int]]:
        """Yield the messages of a page that are to be ended or sent elsewhere, each with the deployment where it
        waits."""
        places = {agent: places_of(job, lane, agent, self._models) for agent in lane.agents}
        partly = len(lane.pools) > 1 and any(given_up & set(at) for at in places.values())
        assigned = await self._ledger.assignments(page.ref) if partly else {}
        yielded: set[MessageId] = set()
        for position in page.open:
            token = MessageId.of(lane, position)
            agent = lane.unit(position).agent
            pool = assigned.get(token)
            if token in yielded:
                continue
            if all_of_it or given_up.issuperset(places[agent]):
                yielded.add(token)
                yield token, 0
            elif pool in lane.pools and places[agent][lane.pools.index(pool)] in given_up:
                yielded.add(token)
                yield token, lane.pools.index(pool)


def _is_too_long(condition: PoolCondition, bounds: Bounded) -> bool:
    outage, began_s = condition.outage, bounds.began_ms / 1000
    if outage is None or not outage.is_down or outage.at < began_s or bounds.pool_down_ms is None:
        return False
    return 1000 * (condition.now - max(outage.since, began_s)) >= bounds.pool_down_ms


def _status(condition: PoolCondition) -> int | None:
    return (condition.outage.status or None) if condition.outage is not None else None
