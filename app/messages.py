"""What is sent to workers: one message a unit (or batch), a chord a page, and control work. Messages carry ids only.

Ids of tasks and chords follow from their place in the job, so anybody can send a message again, and a message that
comes twice is the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from celery import Celery, group

from app.domain.plan import Lane
from app.ledger.keys import PageRef
from app.ledger.ledger import JobRecord, Token
from app.planning import PageMessages
from workers.gate import HEADER, QUEUE_PREFIX

CONTROL_QUEUE = "dicast.control"
BEAT_QUEUE = "dicast.beat"

EVALUATE = "dicast.evaluate"
JUDGE_DIMENSION = "dicast.judge_dimension"
JUDGE_BATCH = "dicast.judge_batch"
GATHER_PAGE = "dicast.gather_page"
PLAN_LANE = "dicast.plan_lane"
FINISH_JOB = "dicast.finish_job"
HOUSEKEEPING = "dicast.housekeeping"


class Messages:
    """Sends the pipeline's messages from a worker's loop; publishing blocks, so it is done in threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """Send a page's chord: a header task a message, and the body that gathers them."""
        await asyncio.to_thread(self._publish, job, page)

    def _publish(self, job: JobRecord, page: PageMessages) -> None:
        """The header goes out through one producer, in one round trip where the transport can; `chord()` takes none."""
        group_id, body = self._chord(page.ref)
        header = [self._unit(job, page.ref, page.lane, token) for token in page.tokens]
        with self._app.producer_or_acquire() as producer, producer.batch():
            group(header, app=self._app).apply_async(task_id=group_id, chord=body, producer=producer)

    async def again(self, job: JobRecord, ref: PageRef, token: Token) -> None:
        """Send one message of a page once more, as the same member of the same chord."""
        group_id, body = self._chord(ref)
        message = self._unit(job, ref, job.lanes[ref.lane], token)
        await asyncio.to_thread(message.apply_async, group_id=group_id, chord=body)

    def join_chord(self, task: Any, job: JobRecord, ref: PageRef, tokens: Sequence[Token]) -> None:
        """Send units of an incomplete batch as further members of the chord of `task`, from its own task greenlet."""
        for token in tokens:
            message = self._unit(job, ref, job.lanes[ref.lane], token)
            if task.request.chord:
                task.add_to_chord(message)
            else:
                message.apply_async()

    async def start(self, job_id: str) -> None:
        await self._control(EVALUATE, job_id, task_id=job_id)

    async def gather(self, ref: PageRef) -> None:
        await self._control(GATHER_PAGE, ref.job, ref.lane, ref.page)

    async def plan(self, job_id: str, lane: int) -> None:
        await self._control(PLAN_LANE, job_id, lane)

    async def finish(self, job_id: str) -> None:
        await self._control(FINISH_JOB, job_id)

    async def queue_empty(self, pool: str) -> bool:
        """Whether no message waits in the broker for this pool."""

        def look() -> bool:
            with self._app.connection_for_read() as connection:
                queue = self._app.amqp.queues[QUEUE_PREFIX + pool]
                return int(queue(connection.default_channel).queue_declare(passive=True).message_count) == 0

        return await asyncio.to_thread(look)

    async def _control(self, name: str, *args: Any, **options: Any) -> None:
        await asyncio.to_thread(self._app.send_task, name, args=args, queue=CONTROL_QUEUE, **options)

    def _unit(self, job: JobRecord, ref: PageRef, lane: Lane, token: Token) -> Any:
        unit = lane.unit(token.position)
        agent = job.spec.agents[unit.agent].name
        dimension = "*" if token.batch else job.spec.dimensions[unit.dimension].id
        header = {
            "job": job.id,
            "project": job.spec.project,
            "agent": agent,
            "dimension": dimension,
            "unit": f"{ref.lane}.{ref.page}.{token}",
        }
        return self._app.signature(
            JUDGE_BATCH if token.batch else JUDGE_DIMENSION,
            args=(ref.job, ref.lane, ref.page, str(token)),
            immutable=True,
            task_id=f"{ref.job}.{ref.lane}.{ref.page}.{token}",
            queue=QUEUE_PREFIX + lane.pool,
            headers={HEADER: header},
            argsrepr=f"({agent!r}, {dimension!r}, item {unit.item}, job {ref.job!r})",
        )

    def _chord(self, ref: PageRef) -> tuple[str, Any]:
        """The group's id, which is also the body's, and the body."""
        name = f"{ref.job}.{ref.lane}.{ref.page}"
        body = self._app.signature(GATHER_PAGE, args=tuple(ref), immutable=True, task_id=name, queue=CONTROL_QUEUE)
        return name, body
