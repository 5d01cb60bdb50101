"""Sends messages to workers: one for each unit (or batch), one chord for each page, and control tasks.

Messages carry ids only. The ids of tasks and chords are derived from their place in one incarnation of the job. Any
process can therefore send a message again, a message that comes twice is the same task, and messages of an earlier job
with the same id are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from celery import Celery
from kombu.exceptions import BatchPublishError, OperationalError
from redis.exceptions import RedisError

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.image import image_tokens
from dicast.app.domain.item import Item
from dicast.app.domain.panel import Agent
from dicast.app.domain.plan import Choice, Lane, batch_label
from dicast.app.domain.prompt import batch_max_tokens
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobRecord, MessageId
from dicast.app.tracing import NO_TRACES, Traces
from dicast.workers.admission.request import HEADER, QUEUE_PREFIX, SENT
from dicast.workers.store.connection import is_passing

if TYPE_CHECKING:
    from dicast.app.pipeline.call_facts import Models
    from dicast.app.pipeline.plan import PageMessages

logger = logging.getLogger(__name__)

CONTROL_QUEUE = "dicast.control"
BEAT_QUEUE = "dicast.beat"

EVALUATE = "dicast.evaluate"
JUDGE_DIMENSION = "dicast.judge_dimension"
JUDGE_BATCH = "dicast.judge_batch"
GATHER_PAGE = "dicast.gather_page"
PLAN_LANE = "dicast.plan_lane"
FINISH_JOB = "dicast.finish_job"
HOUSEKEEPING = "dicast.housekeeping"
GOVERNOR = "dicast.governor"

BROKER_TROUBLE = (OperationalError, BatchPublishError, RedisError, OSError, AttributeError)
"""The errors that publishing raises while the broker is away. kombu raises `AttributeError` if another thread has
closed a broken connection meanwhile."""
BROKER_AWAY_MAX_S, BROKER_PAUSE_S = 60.0, 0.5


def is_away(error: BaseException) -> bool:
    """Whether an error tells that the store or the broker is unavailable for now, so that the operation may succeed
    later."""
    return is_passing(error) or isinstance(error, OperationalError | BatchPublishError)


CHARS_PER_TOKEN = 4
FRAME_CHARS = 1200
"""The length of a prompt without the persona, the criteria and the item, roughly."""
TYPICAL_CHARS = 2000
"""The length that is assumed for an item that is not at hand, as when a message is sent again."""


FIRST_DEPLOYMENT = Choice(0, 0.0, False)
"""The choice for a judge that has a single deployment."""


class Chooser(Protocol):
    """Chooses the deployment of each message where there is a choice (see `dicast.app.pipeline.pools.Deployments`)."""

    async def choose(
        self, job: JobRecord, ref: PageRef, lane: Lane, tokens: Sequence[MessageId]
    ) -> Mapping[MessageId, Choice]: ...


class Sender(Protocol):
    """Sends the control tasks that may follow from one message."""

    async def gather(self, ref: PageRef) -> None: ...
    async def plan(self, job_id: str, incarnation: str, lane: int) -> None: ...


class Messages:
    """Sends the pipeline's messages from a worker's event loop. Publishing blocks, so it is done in threads."""

    def __init__(self, app: Celery, models: Models, chooser: Chooser, tracer: Traces = NO_TRACES) -> None:
        self._app, self._models, self._chooser, self._tracer = app, models, chooser, tracer

    async def page(self, job: JobRecord, page: PageMessages) -> None:
        """Send a page's chord: one header task for each message, and the body that gathers the page."""
        place, messages = page.ref.place, len(page.tokens)
        with self._tracer.span("publish page", job.traceparent, job=job.id, page=place, messages=messages):
            if page.tokens:
                choices = await self._chooser.choose(job, page.ref, page.lane, page.tokens)
                await _send_with_retries(f"page {page.ref}", self._publish, job, page, choices)
            else:  # all its units had their results before the job was resumed
                await self.gather(page.ref)

    def _publish(self, job: JobRecord, page: PageMessages, choices: Mapping[MessageId, Choice]) -> None:
        """Send the chord as Celery's `chord(header)(body)` does, but through one producer, in one round trip where the
        transport can, and without copying every signature or subscribing to results that are not read here."""
        group_id, body = self._chord(page.ref)
        self._app.backend.set_chord_size(group_id, len(page.tokens))
        with self._app.producer_or_acquire() as producer, producer.batch():
            for pool in page.lane.pools:  # once, instead of a check with each message
                producer.maybe_declare(self._app.amqp.queues[QUEUE_PREFIX + pool])
            for index, token in enumerate(page.tokens):
                item = page.items[page.lane.unit(token.position).item]
                unit = self._unit(job, page.ref, token, choices.get(token, FIRST_DEPLOYMENT), _chars(item))
                self._app.send_task(
                    unit.task, unit.args, **unit.options, producer=producer, group_id=group_id, group_index=index,
                    chord=body, declare=[],
                )  # fmt: skip

    async def resend(self, job: JobRecord, ref: PageRef, token: MessageId) -> None:
        """Send one message of a page again, as the same member of the same chord. Its deployment is chosen anew."""
        group_id, body = self._chord(ref)
        choices = await self._chooser.choose(job, ref, job.lanes[ref.lane], [token])
        message = self._unit(job, ref, token, choices.get(token, FIRST_DEPLOYMENT))
        await asyncio.to_thread(message.apply_async, group_id=group_id, chord=body)

    def join_chord(self, task: Any, job: JobRecord, ref: PageRef, tokens: Sequence[MessageId], deployment: int) -> None:
        """Send units of an incomplete batch as further members of the chord of `task`, to the deployment that answered
        the batch. Has to be called within that task."""
        for token in tokens:
            message = self._unit(job, ref, token, FIRST_DEPLOYMENT._replace(deployment=deployment))
            if task.request.chord:
                task.add_to_chord(message)
            else:
                message.apply_async()

    async def start(self, job_id: str) -> None:
        await self._control(EVALUATE, job_id, task_id=job_id)

    async def gather(self, ref: PageRef) -> None:
        await self._control(GATHER_PAGE, *ref)

    async def plan(self, job_id: str, incarnation: str, lane: int) -> None:
        await self._control(PLAN_LANE, job_id, incarnation, lane)

    async def finish(self, job_id: str) -> None:
        await self._control(FINISH_JOB, job_id)

    async def declare(self) -> None:
        """Declare all queues again: a broker that was emptied with the store drops messages to undeclared queues."""

        def declare() -> None:
            with self._app.connection_for_write() as connection:
                for queue in self._app.amqp.queues.values():
                    queue(connection.default_channel).declare()

        await asyncio.to_thread(declare)

    def queue(self, pool: str) -> str:
        """Return the name of the pool's queue at the broker."""
        return str(self._app.amqp.queues[QUEUE_PREFIX + pool].name)

    async def queues_empty(self, pools: Collection[str]) -> bool:
        """Return True if no message waits in the broker for any of these pools."""

        def waiting(pool: str, connection: Any) -> int:
            queue = self._app.amqp.queues[QUEUE_PREFIX + pool](connection.default_channel)
            try:
                return int(queue.queue_declare(passive=True).message_count)
            except connection.channel_errors:  # with Redis, an empty queue does not exist
                return 0

        def count_waiting() -> bool:
            with self._app.connection_for_read() as connection:
                return not any(waiting(pool, connection) for pool in pools)

        return await asyncio.to_thread(count_waiting)

    async def _control(self, name: str, *args: Any, **options: Any) -> None:
        await _send_with_retries(name, self._app.send_task, name, args=args, queue=CONTROL_QUEUE, **options)

    def _unit(
        self, job: JobRecord, ref: PageRef, token: MessageId, choice: Choice, item_chars: int = TYPICAL_CHARS
    ) -> Any:
        lane = job.lanes[ref.lane]
        unit = lane.unit(token.position)
        judge = job.spec.agents[unit.agent]
        agent = judge.name
        batched, answers = lane.batched and token.batch, lane.together if token.batch else 1
        dimensions = job.spec.dimensions if batched else [job.spec.dimensions[unit.dimension]]
        dimension = batch_label(dimensions)
        header = {
            "job": job.id,
            "project": job.spec.project,
            "agent": agent,
            "dimension": dimension,
            "unit": f"{ref.lane}.{ref.page}.{token}",
            "page": ref.place,
            "pool": lane.pools[choice.deployment],
            "model": self._models.model(judge.choices[choice.deployment]),
            "input_tokens": input_tokens(judge, dimensions, item_chars),
            "output_tokens": answers * (batch_max_tokens(judge, len(dimensions)) if batched else judge.max_tokens),
            SENT: round(time.time(), 3),
            **self._tracer.header(job.traceparent),
        }
        if choice.elsewhere:
            header["elsewhere"] = True
        return self._app.signature(
            JUDGE_BATCH if token.batch else JUDGE_DIMENSION,
            args=(*ref, str(token), choice.deployment),
            immutable=True,
            task_id=f"{ref.name}.{token}",
            queue=QUEUE_PREFIX + lane.pools[choice.deployment],
            headers={HEADER: header},
            argsrepr=f"({agent!r}, {dimension!r}, item {unit.item}, job {ref.job!r})",
        )

    def _chord(self, ref: PageRef) -> tuple[str, Any]:
        """Return the group's id, which is also the body's task id, and the body."""
        body = self._app.signature(GATHER_PAGE, args=tuple(ref), immutable=True, task_id=ref.name, queue=CONTROL_QUEUE)
        return ref.name, body


async def _send_with_retries(what: str, send: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Send in a thread, trying again for `BROKER_AWAY_MAX_S` while the broker is away; after that the sweeper has to
    send it. Everything may be sent twice."""
    now = asyncio.get_running_loop().time
    give_up_at = now() + BROKER_AWAY_MAX_S
    while True:
        try:
            await asyncio.to_thread(send, *args, **options)
            return
        except BROKER_TROUBLE as error:
            if now() >= give_up_at:
                raise
            logger.warning("%s waits for the broker: %r", what, error)
        await asyncio.sleep(BROKER_PAUSE_S)


def input_tokens(agent: Agent, dimensions: Sequence[Dimension], item_chars: int) -> int:
    """Estimate a prompt's tokens cheaply; the governor learns the factor by which the estimate is wrong."""
    criteria = sum(len(d.instructions) + sum(map(len, d.levels.values())) for d in dimensions)
    criteria += sum(len(text) for d in dimensions for texts in d.examples.values() for text in texts)
    return (FRAME_CHARS + len(agent.persona) + criteria + item_chars) // CHARS_PER_TOKEN


def _chars(item: Item) -> int:
    pictured = sum(map(image_tokens, item.all_images))
    return sum(map(len, item.texts)) + pictured * CHARS_PER_TOKEN
