"""Escalating panels on real workers: who is not needed is not called, and the verdicts are the full panel's."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict

import pyarrow.parquet as pq
import pytest

from dicast.app.domain.escalation import is_audited, standard_error
from dicast.app.domain.panel import PanelRule
from dicast.app.operator.jobs import resume
from tests.e2e.cluster import SOON, a_job, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MAJORITY = {"combine": "majority", "escalate": True}


def job_of(items=12, dimensions=2, judges=3, panel=MAJORITY, models=(), **more):
    job = a_job(agents=judges, dimensions=dimensions, items=items, panel=panel, **more)
    for dimension in job["dimensions"]:
        dimension["scale"] = {"min": 1, "max": 3}
    for agent in job["agents"]:  # or those of one model would say the same
        agent["persona"] = f"You are {agent['name']}."
    for agent, model in zip(job["agents"], models, strict=False):
        agent["model"] = model
    return job


def verdicts(cluster, job_id):
    rows = pq.read_table(cluster.results / job_id / "panel.parquet").to_pylist()
    return {(row["item_id"], row["criterion_id"]): row["score"] for row in rows}


def check_panel(cluster, job_id, report, units, *, alone=True):
    """Each unit has ended once; a unit was spared if and only if the two before it had agreed."""
    opinions = cluster.opinions(job_id)
    places = Counter((o["judge"], o["criterion_id"], o["item_id"], o["replicate"]) for o in opinions)
    assert len(places) == units and set(places.values()) == {1}
    spared = [o for o in opinions if o.get("not_needed", False)]
    assert report["spared"] == len(spared) and report["scored"] + report["failed"] + report["spared"] == units
    assert report["missing"] == 0 and len(cluster.errors(job_id)) == report["failed"]
    by_text = defaultdict(lambda: defaultdict(list))
    for o in opinions:
        by_text[o["item_id"], o["criterion_id"]][o["judge"]].append(o)
    for judges in by_text.values():
        first, second, third = ([o["score"] for o in judges[f"judge-{n}"]] for n in range(3))
        if None in first + second:
            assert not any(o.get("not_needed", False) for o in judges["judge-2"])
            continue
        agree = statistics.fmean(first) == statistics.fmean(second)
        assert {o.get("not_needed", False) for o in judges["judge-2"]} == {agree}
        assert all((score is None) == agree for score in third) or not alone
    assert all(o["attempts"] == 0 and o["model"] == "" for o in spared)
    status = cluster.app.ledger.status(job_id)
    assert (status.done, status.counters["spared"]) == (units, len(spared))
    assert not cluster.app.store.exists(cluster.app.keys.at("job", job_id, "board"))
    cluster.quiet()
    return len(spared)


def test_an_escalating_panel_says_what_the_full_one_says(cluster):
    c = cluster("--latency", "0.02")
    c.worker()
    full = c.submit(job_of(panel="majority"))
    assert c.report(full)["scored"] == 72
    calls = c.provider.stats()["calls"]
    assert calls == 72
    escalating = c.submit(job_of())
    report = c.report(escalating)
    spared = check_panel(c, escalating, report, 72)
    assert verdicts(c, escalating) == verdicts(c, full)
    assert c.provider.stats()["calls"] - calls == report["calls"] == 72 - spared
    assert 0 < spared < 24
    assert {cell["judge"]: cell["spared"] for cell in report["by_dimension"][0]["by_judge"]}["judge-0"] == 0
    assert sum(of["spared"] for of in report["by_dimension"]) == spared == report["by_agent"][2]["spared"]


def test_dimensions_of_one_call_that_are_settled_are_left_out_of_it(cluster):
    c = cluster("--latency", "0.02", BATCHING_ENABLED="true")
    c.worker()
    job = job_of(items=20, dimensions=3, replicates=2)
    job["dimensions"][2]["panel"] = "mean"  # it needs everybody
    report = c.report(c.submit(job))
    asked = Counter()
    for o in c.opinions(report["job_id"]):
        assert not o.get("not_needed", False) or o["criterion_id"] != "dim-2"
        asked[o["item_id"], o["judge"], o["replicate"]] += not o.get("not_needed", False)
    assert report["calls"] == c.provider.stats()["calls"] == 120
    assert {count for (_, judge, _), count in asked.items() if judge != "judge-2"} == {3}
    assert {1, 2} & {count for (_, judge, _), count in asked.items() if judge == "judge-2"}
    assert report["spared"] > 0


def test_the_next_judge_is_asked_where_those_before_were_uncertain(cluster):
    """Of the first judge's replicates some agree and some do not; the audit's items are asked of everybody."""
    c = cluster("--latency", "0.02", "--model", "restless:quality_noise=0.2,restless=0.5")
    c.worker()
    rule = {"combine": "mean", "escalate": {"uncertainty": 0.3, "audit": 0.1}}
    job = job_of(items=25, dimensions=1, panel=rule, models=("restless",) * 3, replicates=2)
    for number, item in enumerate(job["items"]):
        item["text"] = f"QUALITY {number / 25}\nA text, number {number}."
    job["dimensions"][0]["scale"] = {"min": 1, "max": 5}
    report = c.report(c.submit(job))
    parsed, asked = PanelRule.model_validate(rule), Counter()
    answers = defaultdict(lambda: defaultdict(list))
    for o in c.opinions(report["job_id"]):
        if not o.get("not_needed", False):
            answers[o["item_id"]][int(o["judge"][-1])].append(o["score"])
    for item, judges in answers.items():
        errors = [standard_error(judges[number]) for number in sorted(judges)]
        certain = [math.hypot(*errors[:n]) / n <= 0.3 for n in range(1, len(errors) + 1)]
        assert all(len(own) == 2 for own in judges.values())
        if not is_audited(parsed, item):
            assert certain == [False] * (len(judges) - 1) + [True] or (len(judges) == 3 and not any(certain)), item
            asked[len(judges)] += 1
        else:
            assert len(judges) == 3
            asked["audited"] += 1
    assert len(answers) == 25 and asked[1] and asked[2] + asked[3] and asked["audited"]
    assert report["failed"] == 0 and report["calls"] == c.provider.stats()["calls"] == 150 - report["spared"]
    assert c.app.ledger.status(report["job_id"]).counters["spared"] == report["spared"] > 0
    c.quiet()


def third_open(cluster):
    """The last judge's calls have begun."""
    return cluster.provider.stats()["models"]["slow"]["max_open"] > 0


def test_a_worker_that_dies_in_the_middle_of_the_second_stage_costs_no_verdict(cluster):
    c = cluster("--latency", "0.02", "--model", "slow:latency=0.4", **SOON)
    first = c.worker()
    job_id = c.submit(job_of(items=15, models=("fast", "fast", "slow")))
    until(lambda: third_open(c), "the third judge is asked")
    first.kill()
    c.worker()
    report = c.report(job_id)
    spared = check_panel(c, job_id, report, 90)
    assert (report["failed"], report["status"]) == (0, "completed")
    assert c.provider.stats()["calls"] <= 90 - spared + 5  # those that were open when it died


def test_a_job_that_was_cancelled_in_the_second_stage_goes_on_there(cluster):
    c = cluster("--latency", "0.02", "--model", "slow:latency=0.3", DICAST_PAGE_UNITS="6")
    c.worker()
    job_id = c.submit(job_of(items=15, models=("fast", "fast", "slow")))
    until(lambda: third_open(c), "the third judge is asked")
    c.app.ledger.cancel(job_id)
    before = c.report(job_id)
    assert before["status"] == "cancelled" and 0 < before["scored"] < 90
    kept = {(o["judge"], o["criterion_id"], o["item_id"]): o["score"] for o in c.opinions(job_id)
            if o["score"] is not None}  # fmt: skip
    assert resume(c.app, job_id)
    report = c.report(job_id)
    spared = check_panel(c, job_id, report, 90)
    after = {(o["judge"], o["criterion_id"], o["item_id"]): o["score"] for o in c.opinions(job_id)}
    assert kept.items() <= after.items()
    assert c.provider.stats()["calls"] == report["calls"] <= 90 - spared + 5
