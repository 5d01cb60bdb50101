"""Jobs that end as soon as their question is answered: real workers, store, messages, files, a counting provider."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest

from dicast.app.operator.jobs import cancel, resume
from tests.e2e.cluster import SOON, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ITEMS = 200
LIMIT = 8
PLANTED = ("--model", "fair:quality_noise=0.7", "--model", "kind:quality_noise=0.7,quality_bias=0.5")


def a_job(**more: Any) -> dict[str, Any]:
    """Sorted from the worst to the best, so that the first ones alone tell nothing; their mean is 4."""
    items = [
        {"id": f"i{n:03}", "text": f"A text.\nQUALITY {n / (ITEMS - 1):.4f}", "metadata": {"system": "ab"[n % 2]}}
        for n in range(ITEMS)
    ]
    return {
        "items": items,
        "agents": [{"name": "fair", "model": "fair"}, {"name": "kind", "model": "kind"}],
        "dimensions": [{"id": "good", "instructions": "Is it good?", "scale": {"min": 1, "max": 7}}],
        "question": {"mean_at_least": 2.7},
        **more,
    }


def opinions(report: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(report["files"]["opinions_parquet"]).to_pylist()
    return found


def test_a_job_ends_when_its_question_is_answered_and_is_resumed_to_its_end(cluster: Any) -> None:
    one = cluster(*PLANTED, "--latency", "0.01")
    for _ in range(2):
        one.worker(MAX_CONCURRENT_LLM_CALLS=str(LIMIT))
    job_id = one.submit(a_job())
    report = one.report(job_id)
    answer = report["answer"]
    assert (report["status"], answer["state"]) == ("completed", "yes")
    assert 2.7 <= answer["low"] <= answer["value"] <= answer["high"]
    assert answer["low"] - 0.5 <= 4.2 <= answer["high"] + 0.5, "of 20 intervals, 1 may miss it"
    judged = {opinion["item_id"] for opinion in opinions(report)}
    assert answer["items"] <= len(judged) < ITEMS / 2
    # Beyond the answer: what was open, a page's items that were looked at together, and what one worker was planning.
    assert len(judged) - answer["items"] <= (3 * LIMIT) / 2 + 25
    assert report["calls"] == one.provider.stats()["calls"] == report["scored"]
    assert report["missing"] == report["unpublished"] == 2 * ITEMS - report["scored"]
    assert answer["calls_saved"] == 2 * ITEMS - report["calls"]
    assert min(judged) < "i067" < "i133" < max(judged), "they are drawn at random"

    assert one.app.ledger.status(job_id).done < 2 * ITEMS
    assert resume(one.app, job_id)
    until(lambda: one.app.ledger.status(job_id).report is None or one.done(job_id) == 2 * ITEMS, "it goes on")
    whole = until(lambda: (found := one.report(job_id))["scored"] == 2 * ITEMS and found, "all is judged")
    assert (whole["missing"], whole["unpublished"], whole["status"]) == (0, 0, "completed")
    assert whole["answer"] == {**answer, "calls_saved": 0}
    assert one.provider.stats()["calls"] == whole["calls"] == 2 * ITEMS, "nothing is judged twice"
    assert not resume(one.app, job_id)


TWO_POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
[pools.slow]
provider = "simulated"
base_url = "{url}/v1"
"""


def test_a_fast_pool_does_not_run_ahead_of_a_slow_one_and_a_dead_worker_changes_no_answer(cluster: Any) -> None:
    """Two systems are compared, by a judge on each of two pools; one worker is killed on the way."""
    one = cluster(*PLANTED, "--latency", "0.01", "--model", "slow:latency=0.15,quality_noise=0.7", pools=TWO_POOLS,
                  **SOON)  # fmt: skip
    for _ in range(2):
        one.worker(MAX_CONCURRENT_LLM_CALLS=str(LIMIT))
    job = a_job(
        agents=[{"name": "fair", "model": "fair"}, {"name": "slow", "pool": "slow", "model": "slow"}],
        question={"difference": {"by": "system", "of": ["b", "a"], "at_least": -3}},
    )
    job_id = one.submit(job)
    until(lambda: one.done(job_id) > 20, "some are judged")
    one.workers[0].kill()
    report = one.report(job_id)
    answer = report["answer"]
    assert (report["status"], answer["state"], answer["population"]) == ("completed", "yes", ITEMS // 2)
    assert answer["low"] >= -3
    judged = [{o["item_id"] for o in opinions(report) if o["judge"] == name} for name in ("fair", "slow")]
    assert 2 * answer["items"] <= min(map(len, judged)) <= max(map(len, judged)) < ITEMS
    assert len(judged[0]) - 2 * answer["items"] <= 2 * (1.5 * LIMIT + 1) + 2 * 25
    assert report["scored"] == sum(map(len, judged)) == 2 * ITEMS - report["unpublished"]


def test_a_question_that_is_cancelled_goes_on_when_it_is_resumed_and_is_answered_without_an_early_end(
    cluster: Any,
) -> None:
    """The truth lies on the threshold's side by so little that only the end tells; calls are bounded at first."""
    one = cluster(*PLANTED, "--latency", "0.01")
    one.worker(MAX_CONCURRENT_LLM_CALLS=str(LIMIT))
    job = a_job(question={"width": 0.02, "most_calls": 60}, agents=[{"name": "fair", "model": "fair"}])
    job["items"] = job["items"][:100]
    job_id = one.submit(job)
    until(lambda: one.done(job_id) > 10, "some are judged")
    cancel(one.app, job_id)
    report = one.report(job_id)
    assert (report["status"], report["answer"]["state"]) == ("cancelled", "open")
    assert report["answer"]["low"] < report["answer"]["high"]

    assert resume(one.app, job_id)
    spent = until(lambda: (found := one.report(job_id))["status"] == "completed" and found, "its calls are spent")
    assert (spent["answer"]["state"], spent["answer"]["items"]) == ("spent", 60)
    assert one.provider.stats()["calls"] <= 60 + LIMIT, "what was open when it was cancelled may be judged twice"
    assert resume(one.app, job_id)
    whole = until(lambda: (found := one.report(job_id))["scored"] == 100 and found, "all is judged")
    assert (whole["answer"]["state"], whole["answer"]["items"]) == ("known", 100)
