"""What the tasks promise to the broker, whatever the configuration says."""

import pytest
from celery.exceptions import Ignore
from kombu.exceptions import OperationalError
from redis.exceptions import ReadOnlyError

from app.tasks import evaluate, judge_batch, judge_dimension


@pytest.mark.parametrize("task", [judge_batch, judge_dimension])
def test_a_units_message_is_acknowledged_after_its_work(task):
    assert task.acks_late
    assert task.gated


@pytest.mark.parametrize("error", [ConnectionError, ReadOnlyError, OperationalError])
async def test_a_store_in_trouble_is_no_result_of_a_job(monkeypatch, error):
    """What is raised here would be what `.get()` gives to the caller, though the job will run."""

    class Away:
        async def start(self, job_id):
            raise error

    monkeypatch.setattr("app.tasks.services", Away)
    with pytest.raises(Ignore):
        await evaluate.run("j")
