"""Judges with planted biases are probed: real workers, store, messages and files."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow.parquet as pq
import pytest

from dicast.app.operator.jobs import cancel, resume
from dicast.app.reports.collecting import export
from dicast.app.reports.files import read_opinions
from tests.e2e.cluster import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ITEMS = 30
PLANTED = (
    "--model", "fair:quality_noise=0.5", "--model", "bent:quality_noise=0.5,obeys=0.6,batched=1.5,late=2.0",
)  # fmt: skip


def a_job(**more: Any) -> dict[str, Any]:
    rng = random.Random(1)
    return {
        "items": [
            {
                "id": f"i{n}",
                "text": f"A text.\nQUALITY {round(0.3 + 0.3 * rng.random(), 3)}",
                "metadata": {"probe": "x"},
            }
            for n in range(ITEMS)
        ],
        "agents": [{"name": "fair", "model": "fair"}, {"name": "bent", "model": "bent"}],
        "dimensions": [
            {"id": name, "instructions": f"Is it {name}?", "scale": {"min": 0, "max": 10}} for name in ("good", "clear")
        ],
        "probes": [{"probe": probe, "items": ITEMS} for probe in ("injection", "batching", "order")],
        "batching": True,
        **more,
    }


def found(report: dict[str, Any], dimension: str, voice: str, probe: str) -> dict[str, Any]:
    (of,) = [of for of in report["statistics"]["dimensions"] if of["dimension"] == dimension]
    (one,) = [p for p in of["probes"] if (p["voice"], p["probe"]) == (voice, probe)]
    return dict(one)


def near(one: dict[str, Any], planted: float) -> bool:
    """Within three standard errors: of several intervals of 95 %, one may miss."""
    effect = one["effect"]
    return bool(abs(effect["value"] - planted) <= 0.75 * (effect["high"] - effect["low"]))


@pytest.mark.timeout(200)
def test_planted_biases_are_found(cluster: Any) -> None:
    one = cluster(*PLANTED)
    one.worker(MAX_CONCURRENT_LLM_CALLS="8")
    job_id = one.submit(a_job(id="planted"))  # the attacks follow from it
    report = one.report(job_id, 110)

    assert report["status"] == "completed" and report["failed"] == report["missing"] == 0
    assert report["scored"] == ITEMS * 4 and report["probed"] == 3 * ITEMS * 4 and report["units"] == 4 * ITEMS * 4
    singles = 2 * 2 * ITEMS
    assert report["calls"] == 3 * ITEMS * 2 + singles, (
        "one call for both dimensions, but for the variants judged singly"
    )
    assert one.provider.stats()["accepted"] == report["calls"]
    for dimension, late in (("good", 2.0), ("clear", -2.0)):
        bent = {probe: found(report, dimension, "bent", probe) for probe in ("injection", "batching", "order")}
        assert all(p["p"] < 0.01 and p["tried"] for p in bent.values()), bent
        assert near(bent["order"], late)
        assert near(bent["batching"], 1.5 if dimension == "good" else 3.5)
        assert bent["injection"]["moved"]["value"] > 0.3 and bent["injection"]["attacks"]
        assert all(found(report, dimension, "fair", probe)["p"] > 0.01 for probe in bent)
    said = " ".join(line for of in report["statistics"]["dimensions"] for line in of["summary"])
    assert "The judge 'bent' gives in to attacks" in said and "when the dimensions come in reverse order" in said

    folder = one.results / job_id
    plain = pq.read_table(folder / "opinions.parquet").to_pylist()
    varied = pq.read_table(folder / "probes.parquet").to_pylist()
    assert len(plain) == ITEMS * 4 and {row["probe"] for row in plain} == {None}
    assert len(varied) == 3 * ITEMS * 4 and len({row["item_id"] for row in varied}) == ITEMS
    kinds = {row["probe"].split(":")[0] for row in varied}
    assert kinds == {"injection", "batching", "order"}, "a column of the items' own is no probe"
    means = {row["dimension"]["id"]: row["scores"]["mean"] for row in report["by_dimension"]}
    for dimension, mean in means.items():
        own = [row["score"] for row in plain if row["criterion_id"] == dimension]
        assert mean == pytest.approx(sum(own) / len(own))
    for format in ("jsonl", "csv", "parquet"):
        export(one.results, job_id, format, one.folder / f"out.{format}")
    lines = (one.folder / "out.jsonl").read_text().splitlines()
    assert len(lines) == ITEMS * 4 and all(json.loads(line)["probe"] is None for line in lines)
    assert len((one.folder / "out.csv").read_text().splitlines()) == ITEMS * 4 + 1
    assert len(list(read_opinions(one.results, job_id, probes=True))) == report["units"]


def test_a_job_that_is_resumed_has_the_same_variants(cluster: Any) -> None:
    one = cluster(*PLANTED, "--latency", "0.05")
    job = a_job(probes=[{"probe": "injection", "items": 10, "attacks": 2}], items=a_job()["items"][:12])
    worker = one.worker(MAX_CONCURRENT_LLM_CALLS="4")
    job_id = one.submit(job)
    until(lambda: one.done(job_id) >= 20, "some units are done")
    cancel(one.app, job_id)
    report = one.report(job_id)
    before = {key(o): o["score"] for o in one.opinions(job_id) if o["score"] is not None}
    assert report["status"] == "cancelled" and before
    assert resume(one.app, job_id)
    report = one.report(job_id)
    after = {key(o): o["score"] for o in one.opinions(job_id)}
    assert report["status"] == "completed" and len(after) == report["units"] == (12 + 20) * 4
    assert {unit: after[unit] for unit in before} == before
    assert report["probed"] == 80 and worker.stop() == 0


def key(opinion: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(opinion[name] for name in ("judge", "criterion_id", "item_id", "probe"))


def planted_in(one: dict[str, Any], planted: float) -> bool:
    """Of so many comparisons, each of a few items, none lies five standard errors off."""
    effect = one["effect"]
    return bool(abs(effect["value"] - planted) <= 1.2 * (effect["high"] - effect["low"]))


def test_claims_marks_and_a_preference_for_its_own_are_found(cluster: Any) -> None:
    """The bent judge likes marks of Markdown, which texts of its own family have."""
    one = cluster("--model", "fair:quality_noise=0.4", "--model", "bent:quality_noise=0.4,claims=1.5,marks=1.5")
    one.worker(MAX_CONCURRENT_LLM_CALLS="8")
    rng = random.Random(2)
    items = [
        {
            "id": f"i{n}",
            "text": f"{'**A text.**' if n % 2 else 'A text.'}\nIt is one.\nQUALITY {0.35 + 0.3 * rng.random():.3f}",
            "metadata": {"model": "own" if n % 2 else "other"},
        }
        for n in range(24)
    ]
    families = {"fair": "honest", "bent": "twisted", "own": "twisted", "other": "foreign"}
    tried = [{"probe": probe, "items": 12} for probe in ("authority", "sycophancy", "markdown")]
    report = one.report(
        one.submit(
            a_job(
                id="claimed",
                items=items,
                dimensions=a_job()["dimensions"][:1],
                probes=[*tried, {"probe": "self_preference", "families": families}],
            )
        )
    )
    assert (report["status"], report["failed"], report["probed"]) == ("completed", 0, 5 * 12 * 2)
    (of,) = report["statistics"]["dimensions"]
    probes = {(p["voice"], p["probe"], p["variant"]): p for p in of["probes"]}
    for probe in ("authority", "sycophancy"):
        for variant, planted in (("high", 1.5), ("low", -1.5), ("high against low", 3.0)):
            bent, fair = (probes[voice, probe, variant] for voice in ("bent", "fair"))
            assert bent["p"] < 0.01 and planted_in(bent, planted), (probe, variant)
            assert fair["p"] is None or fair["p"] > 0.001, (probe, variant)
    assert probes["bent", "markdown", ""]["p"] < 0.01 and planted_in(probes["bent", "markdown", ""], 1.5)
    own = probes["bent", "self_preference", ""]
    assert own["p"] < 0.01 and own["against"] == "judges" and planted_in(own, 1.5)
    assert "texts of its own family" in probes["fair", "self_preference", ""]["effect"]["reason"]
    said = " ".join(of["summary"])
    assert "The judge 'bent' gives" in said and "to texts of its own family of models" in said
