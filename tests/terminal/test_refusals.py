from __future__ import annotations

from typing import Any

import pytest

from app.terminal.refusals import MAX_LINES, InvalidJob, validated

AGENT = {"name": "a"}
DIMENSION = {"id": "d", "instructions": "?"}
ITEM = {"id": "i", "text": "t"}


def job(**changes: Any) -> dict[str, Any]:
    return {"agents": [AGENT], "dimensions": [DIMENSION], "items": [ITEM], **changes}


def lines(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidJob) as caught:
        validated(document)
    assert all(line.isprintable() for line in caught.value.lines)
    return caught.value.lines


def test_a_good_job_passes() -> None:
    assert validated(job()).agents[0].name == "a"


@pytest.mark.parametrize(
    "document, told",
    [
        (job(replicates=0), ["replicates: should be greater than or equal to 1, got 0"]),
        (job(replicates="3"), ["replicates: should be a valid integer, got '3'"]),
        (job(replicats=3), ["replicats: unknown key; did you mean replicates?"]),
        (job(agents=[{"name": "a", "modle": "x"}]), ["agents[0].modle: unknown key; did you mean model?"]),
        (job(agents=[{**AGENT, "temperature": 9}]),
         ["agents[0].temperature: should be less than or equal to 2, got 9"]),
        (job(agents=[{}]), ["agents[0].name: is missing"]),
        (job(agents=[]), ["agents: list should have at least 1 item after validation, not 0"]),
        (job(agents=[AGENT, AGENT]), ["agents: the id 'a' occurs twice"]),
        (job(dimensions=[{**DIMENSION, "scale": {"min": 5, "max": 1}}]),
         ["dimensions[0].scale: scale.max must be > scale.min (5), got 1"]),
        (job(dimensions=[{**DIMENSION, "scale": {"maxx": 5}}]),
         ["dimensions[0].scale.maxx: unknown key; did you mean max?"]),
        (job(dimensions=[{**DIMENSION, "id": "a\x07"}]),
         ["dimensions[0].id: contains the unprintable character U+0007, got 'a\\x07'"]),
        (job(items=[]), ["items: at least one is needed, got 0"]),
        (job(items=[{"id": "i"}]), ["items[0].text: is missing"]),
        (job(items=[{"id": True, "text": "t"}]), ["items[0].id: should be a valid string, got True"]),
        (job(items={"path": 5}), ["items.path: should be a valid string, got 5"]),
        (job(items={"pth": "x"}), ["items.path: is missing", "items.pth: unknown key; did you mean path?"]),
        ({"agents": [AGENT], "dimensions": [DIMENSION]}, ["items: is missing"]),
        (job(id="../x"), ["id: may hold only letters, digits, '.', '_' and '-', and starts with a letter or digit, "
                          "got '../x'"]),
        (job(**{"a\x1b[2Jb": 1}), ["a\\x1b[2Jb: unknown key; did you mean batching?"]),
    ],
)  # fmt: skip
def test_each_mistake_is_a_line(document: dict[str, Any], told: list[str]) -> None:
    found = lines(document)
    assert [line.split("; did you")[0].lower() for line in found] == [
        line.split("; did you")[0].lower() for line in told
    ]
    assert ["did you mean" in line for line in found] == ["did you mean" in line for line in told]


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
