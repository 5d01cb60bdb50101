"""What a recorder tells a new server again: what was written of late, and nothing older."""

from __future__ import annotations

import asyncio

import pytest

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Recorded, UnitResult
from dicast.app.pipeline.record import REMEMBERED_S, Recorder, Spool


class NewServer:
    """A ledger to which all is news; `written` are the pages of the writes."""

    def __init__(self):
        self.written: list[int] = []

    async def record(self, ref, *_):
        self.written.append(ref.page)
        return Recorded(0, False, False, [])

    async def defer(self, ref, *_):
        self.written.append(ref.page)

    async def open_pages(self):
        return [page(number) for number in range(9)]


def page(number):
    return PageRef("j", "n", 0, number)


@pytest.fixture
async def later(monkeypatch):
    """Moves the loop's clock on."""
    loop, passed = asyncio.get_running_loop(), [0.0]
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])

    def move(seconds):
        passed[0] += seconds

    return move


async def test_what_was_written_of_late_is_told_again_and_what_is_older_is_not(tmp_path, later):
    ledger = NewServer()
    recorder = Recorder(ledger, Spool(tmp_path, "n", "w"))
    await recorder.store(page(0), {}, [UnitResult(0, 1, b"{}", True)])
    later(REMEMBERED_S - 5)
    await recorder.defer(page(1), {}, [], [])
    await recorder.store(page(2), {}, [UnitResult(0, 1, b"{}", True)])
    ledger.written.clear()
    assert [ref.page async for ref, _ in recorder.recall()] == [0, 2]
    assert ledger.written == [0, 1, 2], "a deferral is told, too, and nothing follows from it"
    later(10)
    await recorder.store(page(3), {}, [UnitResult(0, 1, b"{}", True)])
    ledger.written.clear()
    assert [ref.page async for ref, _ in recorder.recall()] == [2, 3]
    assert ledger.written == [1, 2, 3]
