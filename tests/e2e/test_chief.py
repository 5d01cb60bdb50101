"""A panel's chief on real workers: it is told of what is final, also when the job is resumed."""

from __future__ import annotations

from collections import Counter, defaultdict

import pyarrow.parquet as pq
import pytest

from dicast.app.operator.jobs import resume
from tests.e2e.cluster import a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def check(cluster, job_id, report, units):
    """Each unit has ended once with a score, the chief's with a dissent where the others differ, and the panel says
    what the chief says."""
    opinions = cluster.opinions(job_id)
    places = Counter((o["judge"], o["criterion_id"], o["item_id"], o["replicate"]) for o in opinions)
    assert len(places) == units and set(places.values()) == {1}
    assert (report["scored"], report["failed"], report["missing"]) == (units, 0, 0)
    others, verdicts = defaultdict(set), {}
    for o in opinions:
        if o["judge"] == "judge-2":
            verdicts[o["item_id"], o["criterion_id"]] = o
        else:
            assert "dissent" not in o
            others[o["item_id"], o["criterion_id"]].add(o["score"])
    for place, verdict in verdicts.items():
        assert (verdict["dissent"] != "") == (len(others[place]) > 1)
    panel = pq.read_table(cluster.results / job_id / "panel.parquet").to_pylist()
    assert {(row["item_id"], row["criterion_id"]): row["score"] for row in panel} == {
        place: verdict["score"] for place, verdict in verdicts.items()
    }
    columns = pq.read_table(cluster.results / job_id / "opinions.parquet", columns=["judge", "dissent"]).to_pylist()
    assert all((row["dissent"] is None) == (row["judge"] != "judge-2") for row in columns)
    assert [agent["chief"] for agent in report["agents"]] == [False, False, True]
    cluster.quiet()


def test_a_chief_hears_the_others_and_a_cancelled_job_goes_on_with_it(cluster):
    c = cluster("--latency", "0.01", "--model", "slow:latency=0.1", DICAST_PAGE_UNITS="6")
    c.worker()
    job = a_job(agents=3, dimensions=2, items=8, panel={"chief": "judge-2"})
    for agent, model in zip(job["agents"], ("fast", "fast", "slow"), strict=True):
        agent |= {"persona": f"You are {agent['name']}.", "model": model}
    for dimension in job["dimensions"]:
        dimension["scale"] = {"min": 1, "max": 3}
    job_id = c.submit(job)
    until(lambda: c.provider.stats()["models"]["slow"]["max_open"] > 0, "the chief is asked")
    c.app.ledger.cancel(job_id)
    before = c.report(job_id)
    kept = {(o["judge"], o["criterion_id"], o["item_id"]): o["argument"] for o in c.opinions(job_id)
            if o["score"] is not None}  # fmt: skip
    assert before["status"] == "cancelled" and len(kept) < 48
    assert resume(c.app, job_id)
    report = c.report(job_id)
    check(c, job_id, report, 48)
    after = {(o["judge"], o["criterion_id"], o["item_id"]): o["argument"] for o in c.opinions(job_id)}
    assert kept.items() <= after.items()
