"""What the tasks promise to the broker, whatever the configuration says."""

import contextlib
from types import SimpleNamespace

import pytest
from celery.exceptions import Ignore
from kombu.exceptions import OperationalError
from redis.exceptions import ReadOnlyError, ResponseError

from dicast.app.ledger.keys import PageRef
from dicast.app.pipeline.call_facts import NextSteps
from dicast.app.pipeline.gather import GatherResult
from dicast.app.tasks import _judge, evaluate, finish_job, gather_page, judge_batch, judge_dimension, plan_lane
from dicast.config.pools import UnknownPool


@pytest.mark.parametrize("task", [judge_batch, judge_dimension])
def test_a_units_message_is_acknowledged_after_its_work(task):
    assert task.acks_late
    assert task.gated


@pytest.mark.parametrize("error", [PermissionError, OperationalError, ResponseError, UnknownPool])
async def test_a_store_in_trouble_is_no_result_of_a_job(monkeypatch, error):
    """What is raised here would be what `.get()` gives to the caller, though the job will run."""

    async def away(_):
        raise error

    async def lost(*_):
        raise ResponseError

    away_now = SimpleNamespace(starter=SimpleNamespace(start=away), faults=SimpleNamespace(note=lost))
    monkeypatch.setattr("dicast.app.tasks.services", lambda: away_now)
    with pytest.raises(Ignore):
        await evaluate.run("j")


@pytest.mark.parametrize("task", [evaluate, plan_lane, gather_page, finish_job], ids=lambda task: task.name)
async def test_control_work_waits_for_a_store_in_trouble(monkeypatch, task):
    """Given up, it would be found again half a minute later."""
    attempts = []

    async def verb(*_):
        attempts.append(_)
        if len(attempts) < 3:
            raise ReadOnlyError
        return GatherResult()

    async def told(_):
        pass

    part = SimpleNamespace(start=verb, plan=verb, gather=verb, finish=verb)
    parts = SimpleNamespace(starter=part, lanes=part, gatherer=part, progress=SimpleNamespace(store=told))
    monkeypatch.setattr("dicast.app.tasks.services", lambda: parts)
    with contextlib.suppress(Ignore):
        await task.run(*{plan_lane: ["j", "i", 0], gather_page: ["j", "i", 0, 0]}.get(task, ["j"]))
    assert len(attempts) == 3


@pytest.mark.parametrize("counts", [True, False])
async def test_a_unit_that_comes_again_is_not_counted_by_its_chord(monkeypatch, counts):
    class Judging:
        async def judge(self, *_, came_back):
            return NextSteps(counts=counts)

    monkeypatch.setattr("dicast.app.tasks.services", lambda: SimpleNamespace(judge=Judging()))
    task = SimpleNamespace(request=SimpleNamespace(chord="the chord", get=lambda _: None))
    await _judge(task, PageRef("j", "i", 0, 0), "0", 0)
    assert task.request.chord == ("the chord" if counts else None)
