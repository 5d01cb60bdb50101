"""The Celery app that the tests of the execution pool run in real worker processes.

Tasks and tests meet in Redis lists: `tell` pushes, `wait` pops; nobody sleeps to meet the other.
"""

import asyncio
import contextvars
import os
import threading

import redis.asyncio
from celery import Celery, Task, group
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.signals import task_failure, worker_ready
from celery.worker.consumer import Consumer

import dicast.workers.runtime.pool
import dicast.workers.runtime.result_backend
from dicast.workers.broker.acknowledgement import batch_acks
from dicast.workers.runtime.pool import await_, in_task_greenlet, loop_resource

BROKER = os.environ.get("POOL_TEST_BROKER", "/nowhere")
STORE = os.environ.get("POOL_TEST_STORE", BROKER)
BACKEND = os.environ.get("POOL_TEST_BACKEND", "dicast.workers.runtime.result_backend:RedisBackend+socket")
WAIT_S = 30

dicast.workers.runtime.pool.REQUEUE_DELAY_S = 0.2
dicast.workers.runtime.result_backend.RETRIES = 1
dicast.workers.runtime.pool.STALL_WARNING_S, dicast.workers.runtime.pool.STALL_LIMIT_S = 1.0, 2.0


class TestConsumer(Consumer):
    """As the application's consumer does: acknowledgements in batches."""

    __test__ = False

    def connect(self):
        connection = super().connect()
        batch_acks(connection.default_channel)
        return connection


app = Celery("pool_tests", amqp="dicast.workers.runtime.publishing:AMQP")
app.conf.update(
    broker_url=f"redis+socket://{BROKER}",
    result_backend=f"{BACKEND}://{STORE}",
    broker_connection_retry_on_startup=True,
    worker_pool="dicast.workers.runtime.pool:TaskPool",
    worker_consumer=TestConsumer,
    worker_prefetch_multiplier=4,
    worker_soft_shutdown_timeout=float(os.environ.get("POOL_TEST_SOFT_SHUTDOWN_S", "0")),
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
    task_default_queue=os.environ.get("POOL_TEST_QUEUE", "celery"),
    task_acks_late=True,
    task_send_sent_event=False,
    task_track_started=True,
    result_expires=600,
    enable_utc=True,
)

meeting = loop_resource(
    lambda: redis.asyncio.Redis(unix_socket_path=BROKER, socket_timeout=None), lambda client: client.aclose()
)
colour = contextvars.ContextVar("colour", default="none")


async def tell(name, value="1"):
    await meeting().rpush(name, value)


async def wait(name):
    got = await meeting().blpop([name], timeout=WAIT_S)
    assert got is not None, f"nobody told {name}"
    return got[1].decode()


@worker_ready.connect
def on_ready(sender, **_):
    with redis.Redis(unix_socket_path=BROKER) as client:
        client.rpush(f"ready:{sender.hostname}", "1")


@task_failure.connect
def on_task_failure(task_id, exception, **_):
    with redis.Redis(unix_socket_path=BROKER) as client:
        client.rpush(f"failed:{task_id}", type(exception).__name__)


@app.task
async def add(x, y):
    await asyncio.sleep(0)
    return x + y


@app.task
def add_in_thread(x, y):
    assert not in_task_greenlet()
    assert threading.current_thread().name.startswith("execution-pool-task")
    return x + y


@app.task
async def total(numbers):
    return sum(numbers)


@app.task
def total_in_thread(numbers):
    return sum(numbers)


@app.task(bind=True)
async def who_am_i(self, shade):
    """What is the task's own must stay so while others run between its steps."""
    colour.set(shade)
    before = (self.request.id, app.current_task.request.id)
    for _ in range(5):
        await asyncio.sleep(0)
    assert in_task_greenlet()
    assert before == (self.request.id, app.current_task.request.id)
    return [self.request.id, colour.get(), threading.current_thread().name, await_(asyncio.sleep(0, "deep"))]


@app.task
async def call_other_as_function():
    return await add(20, 22)


@app.task
async def meet(name):
    """Tells that it runs, waits to be let go; tells what became of it."""
    try:
        await tell(f"{name}:started")
        await wait(f"{name}:go")
    except asyncio.CancelledError:
        await tell(f"{name}:ended", "cancelled")
        raise
    await tell(f"{name}:ended", "done")
    return name


@app.task(acks_late=False)
async def meet_early(name):
    return await meet(name)


@app.task
def meet_in_thread(name):
    with redis.Redis(unix_socket_path=BROKER) as client:
        client.rpush(f"{name}:started", "1")
        assert client.blpop([f"{name}:go"], timeout=WAIT_S)
    return name


@app.task
async def swallow_cancellation(name):
    try:
        await tell(f"{name}:started")
        await wait(f"{name}:go")
    except asyncio.CancelledError:
        await tell(f"{name}:ended", "swallowed")
    return "too late"


@app.task
async def soft_limited(name, catch):
    try:
        await tell(f"{name}:started")
        await wait(f"{name}:go")
    except SoftTimeLimitExceeded:
        if not catch:
            raise
    return "cleaned up"


@app.task
async def soft_limited_group(name):
    """The limit strikes while the body waits in a task group: the children must not survive it."""

    async def child():
        try:
            await wait(f"{name}:go")
        finally:
            await tell(f"{name}:child", "ended")

    async with asyncio.TaskGroup() as children:
        children.create_task(child())
        children.create_task(child())


RETRY_S = 0.1  # with 0 the next run could be over before this one has stored that it retries


@app.task(bind=True, max_retries=3)
async def retry_by_hand(self):
    if self.request.retries < 2:
        raise self.retry(countdown=RETRY_S)
    return self.request.retries


@app.task(bind=True, autoretry_for=(ValueError,), max_retries=3, default_retry_delay=RETRY_S)
async def retry_by_itself(self):
    await asyncio.sleep(0)
    if self.request.retries < 2:
        raise ValueError("again")
    return self.request.retries


@app.task(bind=True, max_retries=1)
async def retry_in_vain(self):
    raise self.retry(countdown=RETRY_S, exc=LookupError("gone"))


class Odd(BaseException):
    pass


@app.task(bind=True)
async def raise_oddly(self, kind):
    await asyncio.sleep(0)
    raise {
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "odd": Odd("odd"),
        "generator": GeneratorExit(),
        "cancelled": asyncio.CancelledError(),
        "ignore": Ignore(),
        "reject": Reject("no", requeue=False),
        "value": ValueError("plain"),
    }[kind]


@app.task
def exit_in_thread():
    raise SystemExit(3)


@app.task(bind=True)
async def reject_first(self, name):
    """Puts its own message back once."""
    if await meeting().incr(f"{name}:runs") == 1:
        raise Reject("once more", requeue=True)
    return "second run"


@app.task(bind=True)
async def replace_me(self, x):
    raise self.replace(add.s(x, 100))


@app.task(bind=True)
async def replace_with_group(self, x):
    raise self.replace(group(add.s(x, 1), add_in_thread.s(x, 2)) | total.s())


@app.task(bind=True)
async def add_sibling(self, x):
    self.add_to_chord(add.s(x, 1000))
    return x


@app.task
async def fail(message):
    raise ValueError(message)


@app.task
async def on_error(request, exc, traceback):
    raise AssertionError("errbacks with three arguments are called in place, as functions")


@app.task
async def exit_in_child():
    """asyncio lets a SystemExit of any of its tasks out of the loop."""

    async def leave():
        raise SystemExit("child")

    await asyncio.create_task(leave())


@app.task
async def stop_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(3600)


@app.task
async def block_loop(name):
    await tell(f"{name}:started")
    threading.Event().wait()


@app.task
async def orphan():
    """Leaves an asyncio task behind, as careless bodies do."""
    asyncio.create_task(asyncio.sleep(3600), name="orphan")  # noqa: RUF006
    return "left"


class Hooked(Task):
    abstract = True

    def on_success(self, retval, task_id, args, kwargs):
        await_(tell(f"hook:{task_id}", "on_success"))

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        await_(tell(f"hook:{task_id}", "on_failure"))


@app.task(base=Hooked)
async def hooked(fails):
    if fails:
        raise ValueError
    return "fine"


@app.task
async def nested_total(numbers):
    return sum(n if isinstance(n, int) else sum(n) for n in numbers)
