from __future__ import annotations

import json
import time
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from dicast.app.domain.calibration import CalibrationMap
from dicast.app.domain.dimension import Scale
from dicast.app.domain.item import Item, ItemSource, Turn
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Agent, Deployment, Escalation
from dicast.app.domain.quality_gate import QualityGate
from dicast.app.domain.refusals import MAX_LINES, InvalidJob, _models_at, _united, validated
from dicast.app.submission.job_file import read_mapping
from dicast.app.submission.submit import check_job

AGENT = {"name": "a"}
DIMENSION = {"id": "d", "instructions": "?"}
ITEM = {"id": "i", "text": "t"}
GIVEN_FIELDS = [name for name in EvaluationJob.model_fields if name not in ("item_images", "item_kinds")]
"""Dicast itself sets the others."""


def job(**changes: Any) -> dict[str, Any]:
    return {"agents": [AGENT], "dimensions": [DIMENSION], "items": [ITEM], **changes}


def lines(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        validated(document)
    assert all(line.isprintable() for line in caught.value.lines)
    return caught.value.lines


def test_the_fields_of_every_model_of_a_job_are_known() -> None:
    """Wherever a job holds a model, an unknown key is told from that model's keys."""
    models: list[tuple[type[BaseModel], list[str | int]]] = [(EvaluationJob, [])]
    known: set[type[BaseModel]] = set()
    while models:
        model, place = models.pop()
        for name, field in model.model_fields.items():
            for each in _united(field.annotation):
                elements = [one for element in get_args(each) for one in _united(element)]
                for found, at in [(each, [*place, name]), *((one, [*place, name, 0]) for one in elements)]:
                    if isinstance(found, type) and issubclass(found, BaseModel) and found not in known:
                        assert found in _models_at(at, EvaluationJob), at
                        known.add(found)
                        models.append((found, at))
    assert {Item, ItemSource, Agent, Deployment, Scale, Turn, Escalation, CalibrationMap, QualityGate} <= known


def test_a_good_job_passes() -> None:
    assert validated(job()).agents[0].name == "a"


@pytest.mark.parametrize(
    "document, told",
    [
        (job(replicates=0), ["replicates: must be >= 1, got 0"]),
        (job(replicates="3"), ["replicates: must be a whole number, got '3'"]),
        (job(replicats=3), ["replicats: unknown key; did you mean replicates?"]),
        (job(agents=[{"name": "a", "modle": "x"}]), ["agents[0].modle: unknown key; did you mean model?"]),
        (job(agents=[{**AGENT, "temperature": 9}]), ["agents[0].temperature: must be <= 2, got 9"]),
        (job(agents=[{}]), ["agents[0].name: is missing"]),
        (job(agents=[AGENT, AGENT]), ["agents: the id 'a' occurs twice"]),
        (job(dimensions=[{**DIMENSION, "scale": {"min": 5, "max": 1}}]),
         ["dimensions[0].scale: scale.max must be > scale.min (5), got 1"]),
        (job(dimensions=[{**DIMENSION, "scale": {"maxx": 5}}]),
         ["dimensions[0].scale.maxx: unknown key; did you mean max?"]),
        (job(dimensions=[{**DIMENSION, "scale": {"rhubarb": 5}}]), [
            "dimensions[0].scale.rhubarb: unknown key; "
            "there are min, max, labels, ordered, checklist, preference, criteria"
        ]),
        (job(dimensions=[{**DIMENSION, "id": "a\x07"}]),
         ["dimensions[0].id: contains the unprintable character U+0007, got 'a\\x07'"]),
        (job(items=[{"id": True, "text": "t"}]), ["items[0].id: must be a text, got True"]),
        (job(items={"pth": "x"}),
         ["items.path: is missing", "items.pth: unknown key; did you mean path?"]),
        (job(**{"a\x1b[2Jb": 1}),
         [f"a\\x1b[2Jb: unknown key; there are {', '.join(GIVEN_FIELDS)}"]),
        (job(replicates=0, spend="once", agents=[{**AGENT, "max_tokens": 0}]),
         ["agents[0].max_tokens: must be >= 1, got 0", "replicates: must be >= 1, got 0",
          "spend: must be 'at_least_once' or 'at_most_once', got 'once'"]),
    ],
)  # fmt: skip
def test_each_mistake_is_a_line(document: dict[str, Any], told: list[str]) -> None:
    assert lines(document) == told


@pytest.mark.parametrize("value", [5, [1, 2], "a job", None, object(), EvaluationJob])
def test_what_is_no_job_at_all_is_told_what_one_is(value: Any) -> None:
    with pytest.raises(TypeError, match="a job is an EvaluationJob or a dict of one, got "):
        validated(value)


@pytest.mark.parametrize(
    "key, meant", [("judges", "agents"), ("criteria", "dimensions"), ("dataset", "items"), ("Agents", "agents")]
)
def test_what_others_call_our_keys_is_known(key: str, meant: str) -> None:
    assert lines(job(**{key: 1})) == [f"{key}: unknown key; did you mean {meant}?"]


def test_a_number_names_an_item_as_well_as_a_text_does() -> None:
    assert validated(job(items=[{"id": 1, "text": "t"}])) == validated(job(items=[{"id": "1", "text": "t"}]))


def test_items_of_neither_shape() -> None:
    assert lines(job(items=5))
    assert all(line.startswith("items: ") for line in lines(job(items=5)))


def test_hundreds_of_mistakes_are_counted() -> None:
    found = lines(job(agents=[{"name": ""} for _ in range(300)]))
    assert len(found) == MAX_LINES + 1
    assert found[-1] == f"and {300 - MAX_LINES} more"


def test_long_values_are_cut() -> None:
    found = lines(job(project="x" * 10_000))
    assert len(found) == 1
    assert len(found[0]) < 200


def test_thousands_of_unknown_keys_are_a_few_lines() -> None:
    job = {"items": [{"id": f"i{n}", "text": "t", "k": 1} for n in range(2000)], "agents": [{"name": "a"}]}
    job["agents"][0] |= {f"key{n}": n for n in range(20_000)}  # type: ignore[index,operator]
    job |= {f"{n}th": n for n in range(50_000)}  # type: ignore[misc]
    began = time.process_time()
    with pytest.raises(InvalidJob) as refused:
        validated({**job, "dimensions": [{"id": "d", "instructions": "?"}]})
    assert time.process_time() - began < 5
    assert len(refused.value.lines) < 30
    assert {"agents[0]: and 19,995 more unknown keys", "and 49,995 more unknown keys"} <= set(refused.value.lines)
    assert sum(map(len, refused.value.lines)) < 10_000


@pytest.mark.parametrize("form", ["yaml", "json", "dict"])
def test_all_forms_of_a_job_have_the_same_bounds(form: str) -> None:
    document = {"agents": [{"name": "a"}], "dimensions": [{"id": "d", "instructions": "?"}], "items": []}
    wide = {**document, "metadata": {"m": list(range(300_000))}}
    deep: list[object] = []
    for _ in range(70):
        deep = [deep]
    for case, said in ((wide, "holds more than 300000"), ({**document, "metadata": {"m": deep}}, "deeper than 64")):
        with pytest.raises(ValueError, match=said):
            check_job(case) if form == "dict" else read_mapping(json.dumps(case).encode(), yaml=form == "yaml")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"panel": "medain"}, "got 'medain'; did you mean median?"),
        ({"panel": {"chief": "adda"}}, "panel.chief: 'adda' is no judge of this job; did you mean 'ada'?"),
        ({"panel": {"combine": "weighted", "weights": {"adda": 1}}},
         "panel.weights (clear): 'adda' is no judge of this job; did you mean 'ada'?"),
        ({"probes": ["verbosty"]}, "probes[0]: must be one of 'verbosity', "),
        ({"probes": ["verbosty"]}, "got 'verbosty'; did you mean verbosity?"),
        ({"ratings": {"columns": {"claer": "stars"}}}, "'claer' is no dimension of this job; did you mean 'clear'?"),
        ({"gate": {"fail_under": {"claer": 3}}}, "which are clear; did you mean 'clear'?"),
        ({"on_exhausted": "wiat"}, "on_exhausted: must be 'fail' or 'wait', got 'wiat'; did you mean wait?"),
    ],
)  # fmt: skip
def test_a_slip_in_a_name_is_told_with_what_was_meant(changes: dict[str, Any], said: str) -> None:
    document = job(agents=[{"name": "ada"}], dimensions=[{"id": "clear", "instructions": "?"}], **changes)
    assert any(said in line for line in lines(document)), lines(document)
