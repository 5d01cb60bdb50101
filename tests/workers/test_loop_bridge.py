"""Waiting from synchronous code, and what belongs to a loop."""

import asyncio
import contextvars
import threading

import pytest

import dicast.workers.runtime.loop_bridge
from dicast.workers.runtime.loop_bridge import (
    TaskGreenlet,
    await_,
    close_loop_resources,
    in_task_greenlet,
    loop_resource,
    off_loop,
    on_loop_close,
)


async def echo(value):
    await asyncio.sleep(0)
    return value


async def fail(error):
    await asyncio.sleep(0)
    raise error


def sync_deep(levels, value):
    return sync_deep(levels - 1, value) if levels else await_(echo(value))


# ---------------------------------------------------------------------- await_
async def test_results_come_back_through_synchronous_frames():
    assert await TaskGreenlet(lambda: [sync_deep(20, n) for n in range(3)]) == [0, 1, 2]


async def test_anything_awaitable_will_do():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "future")
    task = asyncio.create_task(echo("task"))
    assert await TaskGreenlet(lambda: (await_(future), await_(task))) == ("future", "task")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()])
async def test_exceptions_come_out_where_they_were_waited_for(error):
    def body():
        with pytest.raises(type(error)) as raised:
            await_(fail(error))
        return raised.value

    assert await TaskGreenlet(body) is error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
async def test_exceptions_leave_the_greenlet(error):
    with pytest.raises(type(error)):
        await TaskGreenlet(lambda: await_(fail(error)))


async def test_waits_nest():
    """A body that asyncio runs calls synchronous code that waits itself."""

    async def body():
        return sync_deep(3, "inner"), await echo("outer")

    assert await TaskGreenlet(lambda: await_(body())) == ("inner", "outer")


async def test_many_greenlets_take_turns():
    order = []

    def body(name):
        for step in range(3):
            order.append((step, name))
            await_(asyncio.sleep(0))

    async def drive(name):
        await TaskGreenlet(lambda: body(name))

    await asyncio.gather(drive("a"), drive("b"))
    assert order == [(step, name) for step in range(3) for name in "ab"]


async def test_the_driving_task_is_the_current_one_and_can_be_cancelled():
    reached = asyncio.Event()

    def body():
        assert asyncio.current_task() is task
        reached.set()
        await_(asyncio.Event().wait())

    async def drive():
        await TaskGreenlet(body)

    task = asyncio.create_task(drive())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interruption_can_be_translated():
    def body():
        with pytest.raises(LookupError):
            await_(asyncio.Event().wait())
        return "interrupted"

    async def drive():
        return await TaskGreenlet(body, lambda _: LookupError())

    task = asyncio.create_task(drive())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "interrupted"


async def test_context_variables_are_the_greenlets_own():
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("outer")

    def body():
        seen = variable.get()
        variable.set("inner")
        await_(asyncio.sleep(0))
        return seen, variable.get()

    assert await TaskGreenlet(body) == ("outer", "inner")
    assert variable.get() == "outer"


async def test_elsewhere_await_is_refused():
    with pytest.raises(RuntimeError, match="only in a task greenlet"):
        await_(echo(1))
    assert not in_task_greenlet()


async def test_tasks_beside_the_body_are_not_in_its_greenlet():
    async def beside():
        return in_task_greenlet()

    async def body():
        return in_task_greenlet(), await asyncio.create_task(beside())

    assert await TaskGreenlet(lambda: await_(body())) == (True, False)


# ---------------------------------------------------------------------- off_loop
async def test_blocking_calls_leave_the_loop_free():
    go = threading.Event()

    def blocking(value, *, more):
        assert go.wait(20)
        return value + more, threading.current_thread().name

    async def drive():
        return await TaskGreenlet(lambda: off_loop(blocking, 1, more=2))

    task = asyncio.create_task(drive())
    await echo("the loop turns")
    assert not task.done()
    go.set()
    value, thread = await task
    assert value == 3
    assert thread.startswith("off-loop")
    await close_loop_resources()


async def test_off_loop_shows_context_and_raises():
    variable = contextvars.ContextVar("variable", default="default")

    def body():
        variable.set("mine")
        with pytest.raises(ZeroDivisionError):
            off_loop(lambda: 1 / 0)
        return off_loop(variable.get)

    assert await TaskGreenlet(body) == "mine"
    await close_loop_resources()


def test_off_loop_elsewhere_is_a_call():
    assert off_loop(threading.current_thread) is threading.current_thread()


# ---------------------------------------------------------------------- what belongs to a loop
class Resource:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.closed = False

    async def close(self):
        await asyncio.sleep(0)
        self.closed = True


def test_one_resource_a_loop_closed_with_it():
    get = loop_resource(Resource, Resource.close)
    before = Resource.made

    async def use():
        first, again = get(), get()
        assert first is again
        await close_loop_resources()
        return first

    used = [asyncio.run(use()), asyncio.run(use())]
    assert used[0] is not used[1]
    assert all(resource.closed for resource in used)
    assert Resource.made - before == 2


async def test_the_last_made_is_closed_first_and_one_that_fails_stops_nobody(caplog, monkeypatch):
    monkeypatch.setattr(dicast.workers.runtime.loop_bridge, "CLOSE_TIMEOUT_S", 0.01)
    closed = []

    async def close(name):
        closed.append(name)

    async def close_badly():
        raise ValueError("stuck valve")

    on_loop_close(lambda: close("first"))
    on_loop_close(close_badly)
    on_loop_close(asyncio.Event().wait)
    on_loop_close(lambda: close("last"))
    await close_loop_resources()
    assert closed == ["last", "first"]
    assert caplog.text.count("could not be closed") == 2
    assert "stuck valve" in caplog.text
    await close_loop_resources()
    assert closed == ["last", "first"]
