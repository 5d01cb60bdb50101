"""A file in HealthBench's form, on a real worker, store and provider: every item is judged by its own criteria."""

from __future__ import annotations

import orjson
import pyarrow.parquet as pq
import pytest

from dicast.app.domain.dimension import attained
from tests.test_healthbench import RUBRICS, a_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_the_file_runs_as_it_is(cluster, tmp_path):
    c = cluster()
    c.worker()
    path = tmp_path / "health.jsonl"
    rows = [a_row(n, None if n == 2 else f"Answer {n}.") for n in range(6)]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    health = {"id": "health", "instructions": "Does it serve the asker?", "scale": "criteria"}
    job_id = c.submit({"items": str(path), "agents": [{"name": "grader"}], "dimensions": [health]})
    report = c.report(job_id)
    assert (report["scored"], report["failed"], report["missing"]) == (5, 0, 0)
    points = [rubric["points"] for rubric in RUBRICS]
    opinions = c.opinions(job_id)
    assert {o["item_id"] for o in opinions} == {row["prompt_id"] for row in rows if row["ideal_completions_data"]}
    for o in opinions:
        shares = attained(points, o["answers"])
        assert (tuple(o["attained"]), o["score"]) == (tuple(shares), shares.score)
    told = report["by_dimension"][0]["criteria"]
    assert (told["opinions"], told["criteria"], told["unanswered"]) == (5, 10, 0)
    columns = pq.read_table(c.results / job_id / "opinions.parquet", columns=["answers", "attained"]).to_pylist()
    assert [row["answers"] for row in columns] == [o["answers"] for o in opinions]
