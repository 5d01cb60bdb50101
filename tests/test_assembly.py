"""What a message may ask the services for."""

from types import SimpleNamespace

import pytest

from dicast.app.assembly import Services


@pytest.mark.parametrize("lane", [-1, 2, 99, "0", None, 0.0, [0]])
async def test_a_lane_that_a_job_has_not_is_not_planned_and_is_no_trouble_of_the_job(lane):
    """-1 is Python's last lane: it was planned a second time, and the job had twice as many opinions as units."""

    async def job(_):
        return SimpleNamespace(id="j", incarnation="n", lanes=["a", "b"])

    services = Services.__new__(Services)
    services.ledger = SimpleNamespace(job=job)
    with pytest.raises(LookupError, match="has no lane"):
        await services.plan("j", "n", lane)
