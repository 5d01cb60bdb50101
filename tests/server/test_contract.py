"""The interface is what its OpenAPI description says, and what docs/http.md says: asked with whatever the description
allows, and with what it does not."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS, load_all_checks

from dicast.app.server.interface import create_server, routes
from dicast.app.server.problems import STATUSES
from tests.server import outline
from tests.server.serving import installation, open_description, served

DOCUMENT = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
STREAMS = {"/cluster/events"}
"""Without an end; tests/server/test_events.py reads them."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, module_url: str):
    folder = tmp_path_factory.mktemp("contract")
    dicast = installation(folder, module_url, **OPEN)
    with served(dicast) as url:
        yield url


OPEN = {"DICAST_REQUIRE_AUTH": "false"}
"""Who may do what is the matter of tests/server/test_tokens.py."""
SCHEMA = schemathesis.openapi.from_dict(copy.deepcopy(open_description()))
load_all_checks()
CHECKED = CHECKS.get_by_names([
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
])  # fmt: skip


@SCHEMA.exclude(path=sorted(STREAMS)).parametrize()
@settings(max_examples=20, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_comes_the_answer_is_as_described(case, address: str) -> None:
    case.call_and_validate(base_url=address, checks=CHECKED)


def test_every_route_and_problem_is_in_the_document(tmp_path: Path, redis_url: str) -> None:
    described = create_server(installation(tmp_path, redis_url)).openapi()["paths"]
    found = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert found | {"GET /openapi.json"} == {f"{m} {route.path}" for route in routes() for m in route.methods or ()}
    rows = re.findall(r"^\| `((?:GET|POST|PATCH|DELETE|PUT) [^`]+)` \|", DOCUMENT, re.MULTILINE)
    assert sorted(rows) == sorted(found | {"GET /openapi.json"})
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (\d{3})\b", DOCUMENT, re.MULTILINE))
    assert told == {slug: str(status) for slug, status in STATUSES.items()}


def test_every_parameter_answer_and_bound_is_what_was_looked_at() -> None:
    """`python -m tests.server.outline` writes them anew."""
    assert "\n".join(outline.outline()) + "\n" == outline.FILE.read_text(encoding="utf-8")
