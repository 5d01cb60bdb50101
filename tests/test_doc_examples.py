"""Every job in the documents, whole or in part, is validated and run: what a reader copies works.

A part is completed by what it leaves out. Where a block shows one key several times, each is a job of its own. The
pools are those that the documents name, all simulated.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dicast import load_job
from dicast.app.operator.prompts import first_unit
from tests.e2e.cluster import ROOT, Cluster, one_worker
from tests.test_healthbench import a_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WORKFLOW = True
"""A key of a workflow of GitHub's, which is no job: YAML 1.1 reads `on` so."""
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
POOLS = 'default = "local"\n' + "".join(
    f'[pools.{name}]\nprovider = "simulated"\nbase_url = "{{url}}/v1"\nimages = true\n'
    for name in ("local", "openai", "anthropic", "ollama")
)
RATED = {"clarity_score": 5, "truth_ada": 2, "truth_ben": 3}
ITEMS = [
    {
        "id": f"a{n}", "text": f"Text {n}.", "prompt": "Why?",
        "metadata": {"system": "ab"[n % 2], "model": "m", "language": "en", "remarks": ["Good."], **RATED},
    }
    for n in range(12)
]  # fmt: skip
PAIR = {"id": "q", "text_a": "Seven minutes.", "text_b": "Not long."}
PREFERENCE = {"id": "better", "instructions": "Which is better?", "scale": "preference"}
CRITERIA = [{"text": "Answers the question", "points": 5}, {"text": "Rambles", "points": -2}]
OWN_ITEMS: dict[str, Any] = {
    "preference": {"items": [PAIR]},
    "criteria": {"items": [{**item, "criteria": CRITERIA} for item in ITEMS]},
}
"""The items that dimensions on these scales need, where a part brings none."""
WHOLE: dict[str, Any] = {
    "agents": [{"name": "judge"}, {"name": "second"}],
    "items": ITEMS,
    "dimensions": [{"id": name, "instructions": f"Is it {name}?"} for name in ("clear", "short")],
}
NEEDS = {"gate": ["faithfulness"], "ratings": [{"id": name, "instructions": "?"} for name in ("clarity", "truth")]}


def blocks() -> Iterator[tuple[str, str]]:
    """The YAML blocks of all documents, by document and line."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            yield f"{document.name}:{text.count(chr(10), 0, block.start()) + 1}", block[1]


def readings(block: str) -> list[dict[str, Any]]:
    """The block as it stands, or, where it shows a key several times, with each of its values."""
    parts = re.split(r"^(?=\w)", block, flags=re.MULTILINE)
    keys = [part.partition(":")[0] for part in parts if ":" in part]
    if len(keys) == len(set(keys)):
        return [yaml.safe_load(block)]
    return [yaml.safe_load(part) for part in parts if part.strip()]


def whole(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Jobs with this part: what is asked of other items than texts stands apart."""
    job = {**WHOLE, **part, **({"batching": True} if "probes" in part else {})}
    if isinstance(part.get("question"), dict) or (isinstance(part.get("gate"), dict) and "dimensions" not in part):
        asked = [part.get("question", {}).get("dimension"), *part.get("gate", {}).get("fail_under", {})]
        job["dimensions"] = [{"id": name, "instructions": "Is it?"} for name in filter(None, asked)]
    if part.get("ratings") and "dimensions" not in part:
        job["dimensions"] = NEEDS["ratings"]
    if "dimensions" not in part or "items" in part:
        return [job]
    kinds: dict[str, list[Any]] = {}
    for dimension in part["dimensions"]:
        scale = dimension.get("scale") if isinstance(dimension, dict) else None
        kinds.setdefault(scale if isinstance(scale, str) and scale in OWN_ITEMS else "", []).append(dimension)
    return [{**job, "dimensions": asked, **OWN_ITEMS.get(kind, {})} for kind, asked in kinds.items()]


CASES = [
    pytest.param(job, id=f"{place}-{number}")
    for place, block in blocks()
    for number, job in enumerate(job for part in readings(block) if WORKFLOW not in part for job in whole(part))
]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, redis_server: str) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("documents")
    write_side_files(folder)
    with one_worker(folder, f"{redis_server}?db=11", POOLS, "--latency", "0.01") as cluster:
        yield cluster


def write_side_files(folder: Path) -> None:
    """What the examples name beside the job."""
    lines = "".join(json.dumps({k: v for k, v in item.items() if k != "metadata"}) + "\n" for item in ITEMS)
    (folder / "answers.jsonl").write_text(lines)
    rows = [json.dumps({**a_row(n), "completion": f"Answer {n}."}) + "\n" for n in range(3)]
    (folder / "2025-05-07-06-14-12_oss_eval.jsonl").write_text("".join(rows))
    (folder / "answers.csv").write_text("id,text\na1,Turn it on.\na2,Read the manual.\n")
    (folder / "ratings.csv").write_text("item_id,dimension,rater,score\na0,clarity,ada,5\n")
    (folder / "sheet.csv").write_text("item_id,rater,clarity,truth\na0,ada,5,3\n")
    (folder / "rubrics").mkdir()
    (folder / "rubrics" / "tone.yaml").write_text("id: tone\ninstructions: Is it friendly?\n")
    (folder / "photos").mkdir()
    (folder / "photos" / "bus.jpg").write_bytes(base64.b64decode(PIXEL))
    bound = dict.fromkeys(("judge", "model", "prompt", "rubric"), "another")
    one = {
        "judge": "judge",
        "dimension": "clear",
        "method": "linear",
        "made_for": bound,
        "x": [1],
        "y": [2],
        "items": 9,
    }
    (folder / "calibration.json").write_text(json.dumps({"on_mismatch": "warn", "maps": [one]}))


@pytest.mark.parametrize("job", CASES)
def test_a_job_of_the_documents_is_valid_and_runs(
    installation: Cluster, job: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    name = re.sub(r"\W", "-", request.node.callspec.id)
    (installation.folder / f"{name}.yaml").write_text(yaml.safe_dump({**job, "id": name}))
    ready = installation.app.prepared(load_job(str(installation.folder / f"{name}.yaml")))
    first = first_unit(installation.app, ready)  # what `dicast validate` shows
    assert first.item and first.prompt.user
    report = installation.report(installation.submit(ready.job))
    assert report["status"] == "completed" and report["failed"] == 0
    assert report["scored"] > 0
    if "pairs" in job:
        (of,) = report["statistics"]["dimensions"]
        ranked = of["preferences"]["contestants"]
        assert {one["name"] for one in ranked} == {"terse", "vague", "wrong"}
        assert all(one["strength"]["low"] < one["strength"]["high"] for one in ranked)
        assert all(rate["wins"]["value"] is not None for rate in of["preferences"]["rates"])


def test_every_document_with_jobs_is_read() -> None:
    places = {str(case.id).partition(":")[0] for case in CASES}
    assert places >= {
        "README.md",
        "data-model.md",
        "how-to.md",
        "judging.md",
        "panels.md",
        "report.md",
        "statistics.md",
    }
    assert len(CASES) >= 29
