"""docs/data-model.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from dicast.app.domain import verdict
from dicast.app.domain.dimension import Dimension, Scale
from dicast.app.domain.item import Item, ItemSource, RatingSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion
from dicast.app.domain.panel import Agent, Deployment
from dicast.app.domain.prompt import answer_limits, batch_prompt, single_schema
from dicast.app.domain.report import Report
from dicast.app.domain.verdict import MAX_DEPTH, MAX_DIGITS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/data-model.md").read_text(encoding="utf-8")
NONCE = "5f0c2a9be1d47783"


def block(label: str) -> Any:
    found = re.search(rf"<!-- {label} -->\n```json\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found, label
    return json.loads(found[1])


def section(title: str) -> str:
    return DOCUMENT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def job() -> EvaluationJob:
    found = re.search(r"```yaml\n(.*?)```", section("Job"), re.DOTALL)
    assert found
    return EvaluationJob.model_validate(yaml.safe_load(found[1]))


def test_the_documented_schemas_are_the_ones_that_are_sent(job: EvaluationJob) -> None:
    assert block("single schema") == single_schema(Scale(), answer_limits(1024))
    prompt = batch_prompt(job.agents[0], job.dimensions, Item(id="1", text="Text."), NONCE)
    assert block("batch schema") == prompt.schema
    assert json.dumps(block("batch schema")) == json.dumps(prompt.schema), "the order of keys matters"


def test_the_documented_batch_is_read_as_documented(job: EvaluationJob) -> None:
    answer = block("batch answer")
    jsonschema.validate(answer, block("batch schema"))
    text = json.dumps(answer)
    reading = verdict.read_batch(text, structured=True, nonce=NONCE, dimensions=job.dimensions)
    assert list(reading.accepted) == ["clarity"] and reading.missing == []
    assert [corrupt.dimension_id for corrupt in reading.corrupt] == ["truth"]


def test_the_documented_results_are_valid() -> None:
    opinion, error = block("opinion"), block("error")
    assert Opinion.model_validate(opinion).model_dump() == opinion
    assert EvaluationError.model_validate(error).model_dump() == error


@pytest.mark.parametrize(
    "title, model",
    [
        *(("Job", model) for model in (EvaluationJob, Agent, Deployment, Dimension, Item, ItemSource, RatingSource)),
        ("Report", Report),
    ],
)
def test_every_field_has_its_row(title: str, model: type[BaseModel]) -> None:
    text = section(title)
    for name in model.model_fields:
        assert f"`{name}`" in text, f"{model.__name__}.{name} is not documented"


def test_every_kind_of_error_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("Error"), re.MULTILINE)
    assert rows == ["kind", *ErrorKind]


BOUNDS = [
    verdict.MAX_ANSWER_CHARS,
    verdict.MAX_ARGUMENT_CHARS,
    verdict.MAX_QUOTE_CHARS,
    verdict.MAX_QUOTES,
    MAX_DEPTH,
    MAX_DIGITS,
]


@pytest.mark.parametrize("bound", BOUNDS)
def test_bounds_are_the_documented_ones(bound: int) -> None:
    assert f" {bound:,} " in section("What a judge is asked").replace("\n", " ")


def test_the_example_job() -> None:
    """Three judges, ten dimensions with levels, one text of 350 to 500 words: 30 units on the default pool."""
    raw = yaml.safe_load((ROOT / "config/jobs/example.yaml").read_text(encoding="utf-8"))
    job = EvaluationJob.model_validate(raw)
    assert isinstance(job.items, list)
    (item,) = job.items
    assert (len(job.agents), len(job.dimensions), job.replicates) == (3, 10, 1)
    assert 350 <= len(item.text.split()) <= 500 and item.prompt
    assert len({agent.persona for agent in job.agents}) == 3
    assert all(agent.pool == "" and agent.model is None for agent in job.agents)
    assert all(dimension.levels.keys() == {1, 5, 10} for dimension in job.dimensions)
