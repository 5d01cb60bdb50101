"""What a job may be is settled before anything is stored; every refusal names the field and the value."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dicast.app.domain.item import ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.text import MAX_ID_LENGTH, MAX_JOB_ID_LENGTH

JOB = {
    "id": "job-1",
    "items": [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}],
    "agents": [{"name": "ann"}, {"name": "ben"}],
    "dimensions": [{"id": "d", "instructions": "judge", "scale": {"min": 1, "max": 3}, "levels": {"1": "bad"}}],
}


def changed(path, value):
    """JOB with one place changed; `...` takes it away."""
    job = copy.deepcopy(JOB)
    *way, last = path.split(".")
    place = job
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return job


def test_defaults():
    job = EvaluationJob.model_validate(JOB)
    assert (job.project, job.replicates, job.batching, job.metadata) == ("default", 1, None, {})
    assert (job.agents[0].pool, job.agents[0].model, job.agents[0].temperature) == ("", None, None)
    assert job.dimensions[0].levels == {1: "bad"}


def test_a_bare_path_is_short_for_a_source():
    assert EvaluationJob.model_validate(changed("items", "rows.csv")).items == ItemSource(path="rows.csv")


def test_it_comes_back_from_json():
    job = EvaluationJob.model_validate(JOB)
    assert EvaluationJob.model_validate(json.loads(job.model_dump_json())) == job


@pytest.mark.parametrize(
    "path, value, place, said",
    [
        ("agents", [], "agents", "at least 1 item"),
        ("dimensions", [], "dimensions", "at least 1 item"),
        ("items", [], "", "items: at least one is needed, got 0"),
        ("agents", ..., "agents", "Field required"),
        ("agents.1", {"name": "ann"}, "", "agents: the id 'ann' occurs twice"),
        ("items.1", {"id": "a", "text": "two"}, "", "items: the id 'a' occurs twice"),
        ("colour", "red", "colour", "Extra inputs are not permitted"),
        ("agents.0.api_key", "sk-1", "agents.0.api_key", "Extra inputs are not permitted"),
        ("agents.0.temperature", 2.1, "agents.0.temperature", "less than or equal to 2"),
        ("agents.0.temperature", float("nan"), "agents.0.temperature", "finite number"),
        ("agents.0.temperature", "0.5", "agents.0.temperature", "valid number"),
        ("agents.0.max_tokens", 0, "agents.0.max_tokens", "greater than or equal to 1"),
        ("agents.0.pool", "a/b", "agents.0.pool", "names a pool"),
        ("replicates", 0, "replicates", "greater than or equal to 1"),
        ("replicates", 1.5, "replicates", "valid integer"),
        ("replicates", True, "replicates", "valid integer"),
        ("replicates", "2", "replicates", "valid integer"),
        ("batching", "yes", "batching", "valid boolean"),
        ("id", "", "id", "at least 1 character"),
        ("id", "../etc", "id", "may hold only letters, digits"),
        ("id", "-x", "id", "starts with a letter or digit"),
        ("id", "x" * (MAX_JOB_ID_LENGTH + 1), "id", f"at most {MAX_JOB_ID_LENGTH} characters"),
        ("agents.0.name", "x" * (MAX_ID_LENGTH + 1), "agents.0.name", f"at most {MAX_ID_LENGTH} characters"),
        ("agents.0.name", "a\nb", "agents.0.name", "unprintable character U+000A"),
        ("agents.0.name", "a\u202eb", "agents.0.name", "unprintable character U+202E"),
        ("agents.0.name", " a", "agents.0.name", "white space"),
        ("dimensions.0.instructions", "", "dimensions.0.instructions", "at least 1 character"),
        ("dimensions.0.instructions", " \n", "dimensions.0.instructions", "must not be blank"),
        ("items.0.text", "\t ", "items.list[Item].0.text", "must not be blank"),
        ("items.0.id", True, "items.list[Item].0.id", "valid string"),
        ("dimensions.0.scale", {"min": 3, "max": 3}, "dimensions.0.scale", "scale.max must be > scale.min (3), got 3"),
        ("dimensions.0.scale", {"max": 10**4}, "dimensions.0.scale", "span at most 1000, got 9999"),
        ("dimensions.0.levels", {"9": "?"}, "dimensions.0", "levels: 9 is outside the scale 1..3"),
        ("dimensions.0.levels", {"1": "a", 1: "b"}, "dimensions.0", "levels: 1 is described twice"),
        ("dimensions.0.weight", -1, "dimensions.0.weight", "greater than or equal to 0"),
        ("metadata", {"k": "\ud800"}, "metadata", "cannot be written as JSON"),
        ("metadata", {"k": object()}, "metadata.k", "valid JSON value"),
    ],
)
def test_refusals_name_the_field(path, value, place, said):
    with pytest.raises(ValidationError) as refused:
        EvaluationJob.model_validate(changed(path, value))
    errors = {".".join(map(str, e["loc"])): e["msg"] for e in refused.value.errors()}
    assert said in errors[place]


@given(st.text(max_size=300))
def test_an_id_is_printable_or_refused(text):
    try:
        job = EvaluationJob.model_validate(changed("agents.0.name", text))
    except ValidationError:
        return
    assert job.agents[0].name == text
    assert text.isprintable() or " " in text
    assert 1 <= len(text) <= MAX_ID_LENGTH
