"""A job with people's ratings, judged by planted judges: real workers, store, messages and files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import redis

from dicast.app.pipeline.messages import CONTROL_QUEUE, EVALUATE
from tests.e2e.cluster import ROOT, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ITEMS, RATED = 150, 90
SECRET = "zaphod"
"""Stands in the names of all columns of ratings."""


def a_job(**more: Any) -> dict[str, Any]:
    """Texts say how good they are; 'kind' sees each a point better. People see them as they are, less exactly."""
    rng = random.Random(1)
    items = []
    for n in range(ITEMS):
        quality = round(rng.random(), 3)
        rated = {
            f"{SECRET}_{who}": min(7, max(1, round(1 + 6 * quality + rng.gauss(0, 0.8)))) if n < RATED else None
            for who in ("ada", "ben")
        }
        metadata = {**rated, "system": "ab"[n % 2]}
        items.append({"id": f"i{n}", "text": f"A text.\nQUALITY {quality}", "metadata": metadata})
    return {
        "items": items,
        "agents": [{"name": "fair", "model": "fair"}, {"name": "kind", "model": "kind"}],
        "dimensions": [{"id": "good", "instructions": "Is it good?", "scale": {"min": 1, "max": 7}}],
        "ratings": {"columns": {"good": {"ada": f"{SECRET}_ada", "ben": f"{SECRET}_ben"}}},
        "groups": ["system"],
        "probes": ["verbosity"],
        "panel": {"combine": "weighted", "weights": {"fair": 3, "kind": 1}},
        **more,
    }


def planted() -> tuple[dict[str, float], float]:
    """What very many such texts would show: the bias of both judges (less than a point is left near the scale's upper
    end), and the correlation of the fair one with one person."""
    rng = np.random.default_rng(1)
    quality = 1 + 6 * rng.random(400_000)

    def seen(bias: float, noise: float) -> Any:
        return np.clip(np.round(quality + bias + noise * rng.normal(size=len(quality))), 1, 7)

    person, fair, kind = seen(0, 0.8), seen(0, 0.7), seen(1, 0.7)
    bias = {"fair": float((fair - person).mean()), "kind": float((kind - person).mean())}
    return bias, float(np.corrcoef(fair, person)[0, 1])


PLANTED = ("--model", "fair:quality_noise=0.7", "--model", "kind:quality_noise=0.7,quality_bias=1")


def test_planted_judges_are_measured_and_see_no_rating(cluster: Any, redis_url: str) -> None:
    one = cluster(*PLANTED, "--latency", "0.05")
    job_id = one.app.submit(a_job())
    one.worker(MAX_CONCURRENT_LLM_CALLS="4")
    one.app.send_task(EVALUATE, args=(job_id,), task_id=job_id, queue=CONTROL_QUEUE)
    until(lambda: one.done(job_id) > 1, "some units are done")
    with redis.Redis.from_url(redis_url) as client:
        telling = {key.decode() for key in client.scan_iter() if SECRET.encode() in _whole(client, key)}
    assert telling == {one.app.keys.at("job", job_id), one.app.keys.at("job", job_id, "items")}, (
        "the job itself, and its items"
    )
    report = one.report(job_id)

    folder = one.results / job_id
    assert len((folder / "ratings.jsonl").read_text().splitlines()) == 2 * RATED
    assert SECRET not in (folder / "opinions.jsonl").read_text()
    assert json.loads((folder / "report.json").read_text())["statistics"] == report["statistics"]
    assert SECRET not in "".join(worker.log.read_text() for worker in one.workers)
    (of,) = report["statistics"]["dimensions"]
    fair, kind, panel = of["voices"]
    assert report["statistics"]["state"] == "computed"
    bias, correlation = planted()
    for voice in (fair, kind):
        assert voice["bias"]["low"] < bias[voice["name"]] < voice["bias"]["high"]
    assert fair["pearson"]["low"] < correlation < fair["pearson"]["high"]
    assert panel["peoples_mean"]["saved"] > 1.3
    assert of["groups"][0]["means"][0]["ranks"] is not None

    rows = pq.read_table(folder / "panel.parquet").to_pylist()
    scores = {(o["item_id"], o["judge"]): o["score"] for o in one.opinions(job_id)}
    assert len(rows) == ITEMS and of["panel"] == "weighted"
    for row in rows:
        fair_score, kind_score = scores[row["item_id"], "fair"], scores[row["item_id"], "kind"]
        assert row["score"] == pytest.approx((3 * fair_score + kind_score) / 4)
    assert report["by_dimension"][0]["panel"]["n"] == ITEMS
    lengths = {item["id"]: len(item["text"]) for item in a_job()["items"]}
    assert all(o["metadata"]["text.chars"] == lengths[o["item_id"]] for o in one.opinions(job_id))
    assert [probe["voice"] for probe in of["probes"]] == ["fair", "kind", "panel"]

    said = _dicast(one, "report", job_id, "--all")
    assert said.returncode == 0, said.stderr
    for text in ("Against people", "kind scores above these raters, by", "By system", "a person"):
        assert text in said.stdout
    again = _dicast(one, "report", job_id, "--json", "--again")
    assert json.loads(again.stdout)["statistics"] == report["statistics"], "the same scores give the same figures"

    said = _dicast(one, "calibrate", job_id, "-o", "calibration.json", "--method", "linear")
    assert said.returncode == 0, said.stderr
    later = one.submit(a_job(calibration=str(Path(one.folder) / "calibration.json")))
    (mended,) = one.report(later)["statistics"]["dimensions"]
    kind = mended["calibrated"][1]
    assert kind["bias"]["low"] < 0 < kind["bias"]["high"] and kind["raw"]["value"] > kind["calibrated"]["value"] + 0.5
    rows = pq.read_table(one.results / later / "panel.parquet").to_pylist()
    assert rows and all(row["calibrated"] is not None for row in rows)


def test_ratings_in_a_file_that_changes_before_the_start_stop_the_job(cluster: Any) -> None:
    one = cluster(*PLANTED)
    path = Path(one.folder) / "ratings.csv"
    path.write_text("item_id,dimension,score\n" + "".join(f"i{n},good,4\n" for n in range(20)))
    job_id = one.submit(a_job(ratings=str(path)))
    path.write_text("item_id,dimension,score\n" + "".join(f"i{n},good,5\n" for n in range(20)))
    one.worker()
    report = one.report(job_id)
    assert (report["status"], report["missing"]) == ("cancelled", 2 * ITEMS)
    assert "ratings.csv has changed since job" in report["reason"]
    assert report["statistics"]["state"] == "left out"


def _whole(client: Any, key: bytes) -> bytes:
    kind = client.type(key)
    reads = {
        b"string": client.get, b"hash": client.hgetall, b"set": client.smembers,
        b"list": lambda k: client.lrange(k, 0, -1), b"zset": lambda k: client.zrange(k, 0, -1),
        b"stream": client.xrange,
    }  # fmt: skip
    return repr(reads[kind](key)).encode() if kind in reads else b""


def _dicast(one: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    # As the workers': settings of the numerical libraries decide the last digits.
    environ = {**one.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "dicast", *arguments], cwd=one.folder, env=environ, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
