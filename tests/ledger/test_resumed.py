"""A job that is resumed is as one that was just submitted, and no less lasting."""

import pytest

from dicast.app.ledger.records import JobState
from tests.ledger.repeating import Stage, one_incarnation
from tests.ledger.test_every_verb_twice import completed

__all__ = ["one_incarnation"]


@pytest.fixture
async def stage(redis_url):
    stage = Stage(redis_url)
    yield stage
    await stage.close()


async def test_a_resumed_job_does_not_expire_by_the_retention_of_its_first_end(stage):
    """It may run for longer than that, and its record would vanish under it."""
    await completed(stage)
    job = stage.one.keys.job("j")
    assert 0 < stage.redis.ttl(job) <= 60
    stage.client.resume("j")
    assert stage.redis.ttl(job) == -1
    assert stage.client.status("j").state is JobState.SUBMITTED
