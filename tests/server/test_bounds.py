"""Whatever a stranger may send is bounded, and what is beyond a bound is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.serving import open_description, problem

DOCUMENT = open_description()
ELSEWHERE = {"EvaluationJob"}
"""Bounded by the size of a request's body, and by what a job may be (tests/domain)."""


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """All that a request may hold, by its place."""
    for path, methods in DOCUMENT["paths"].items():
        for method, told in methods.items():
            for parameter in told.get("parameters", []):
                yield from leaves(f"{method} {path} {parameter['name']}", parameter["schema"])
            content = told.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                yield from leaves(f"{method} {path}", content["application/json"]["schema"])


def leaves(place: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in ELSEWHERE:
            yield from leaves(place, DOCUMENT["components"]["schemas"][name])
        return
    parts = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    for part in parts:
        yield from leaves(place, part)
    for name, of in schema.get("properties", {}).items():
        yield from leaves(f"{place} {name}", of)
    if isinstance(items := schema.get("items"), dict):
        yield from leaves(f"{place}[]", items)
    if not parts and schema.get("type") in ("integer", "number", "string", "array"):
        yield place, schema


def is_bounded(schema: dict[str, Any]) -> bool:
    if "enum" in schema or "const" in schema:
        return True
    if schema["type"] in ("integer", "number"):
        return (
            {"minimum", "exclusiveMinimum"} & schema.keys() != set() != {"maximum", "exclusiveMaximum"} & schema.keys()
        )
    return {"string": "maxLength", "array": "maxItems"}[schema["type"]] in schema or "pattern" in schema


def test_whatever_a_request_may_hold_is_bounded() -> None:
    found = dict(schemas())
    assert {"post /jobs/{job}/rating size", "get /jobs limit", "get /jobs/{job}/opinions cursor"} <= found.keys()
    open_ended = {place for place, schema in found.items() if not is_bounded(schema)}
    # A pool's overrides are checked by the governor's own rules; these numbers only compare, or must be on a scale.
    of_pools = {place for place in open_ended if place.startswith("patch /pools/{pool} ")}
    assert open_ended - of_pools == {
        "get /jobs/{job}/items least", "get /jobs/{job}/items most", "post /jobs/{job}/rating/scores score",
    }  # fmt: skip


@pytest.mark.parametrize("most, path", [
    (2000, {"size": 2001}), (2**32, {"seed": 2**32 + 1}), (400, {"path": "x" * 401}), (1, {"size": 0}),
])  # fmt: skip
def test_a_sample_beyond_a_bound_is_refused_by_the_fields_name(
    http: httpx2.Client, most: int, path: dict[str, Any]
) -> None:
    told = problem(http.post("/jobs/r/rating", json=path), 422, "request-refused")
    assert next(iter(path)) in told["detail"] and str(most) in told["detail"]


def test_no_request_may_hold_a_key_that_nobody_reads() -> None:
    bodies = []
    for path, methods in DOCUMENT["paths"].items():
        for method, told in methods.items():
            schema = told.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for part in (schema, *schema.get("anyOf", [])):
                if "$ref" in part:
                    bodies.append((f"{method} {path}", part["$ref"].rpartition("/")[2]))
    assert {"Sampling", "GivenRating", "Joining", "Draining"} <= {name for _, name in bodies}
    closed = {name for name, schema in DOCUMENT["components"]["schemas"].items() if not_open(schema)}
    assert [place for place in bodies if place[1] not in closed] == []


def not_open(schema: dict[str, Any]) -> bool:
    return schema.get("additionalProperties") is False


@pytest.mark.parametrize("body", [{"size": "5"}, {"sise": 5}, {"size": 5.0}, {"seed": True}, {"path": 5}])
def test_a_sample_is_asked_for_in_its_own_types(http: httpx2.Client, body: dict[str, Any]) -> None:
    problem(http.post("/jobs/r/rating", json=body), 422, "request-refused")
