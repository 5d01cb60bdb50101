"""What a message may ask to be planned."""

from types import SimpleNamespace

import pytest

from dicast.app.pipeline.lanes import Lanes


@pytest.mark.parametrize("lane", [-1, 2, 99, "0", None, 0.0, [0]])
async def test_a_lane_that_a_job_has_not_is_not_planned_and_is_no_trouble_of_the_job(lane):
    """-1 is Python's last lane: it was planned a second time, and the job had twice as many opinions as units."""

    async def job(_):
        return SimpleNamespace(id="j", incarnation="n", lanes=["a", "b"])

    lanes = Lanes(SimpleNamespace(job=job), None, None, None, None)
    with pytest.raises(LookupError, match="has no lane"):
        await lanes.plan("j", "n", lane)
