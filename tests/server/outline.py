"""The HTTP interface in a line for each parameter, body and answer, with its bounds and without words for people.

`python -m tests.server.outline` writes `tests/server/outline.txt` anew; look at the difference before you commit it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dicast.app.application import create_app
from dicast.app.server.interface import create_server

FILE = Path(__file__).with_suffix(".txt")
FOR_PEOPLE = {"description", "title", "examples", "summary"}


def bare(schema: Any) -> Any:
    """A schema without what only people read."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key not in FOR_PEOPLE or isinstance(value, dict)}
    return [bare(each) for each in schema] if isinstance(schema, list) else schema


def outline() -> Iterator[str]:
    described = create_server(create_app({"REDIS_URL": "redis://127.0.0.1:1/0"})).openapi()
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            head = f"{method.upper()} {path}"
            for one in route.get("parameters", []):
                yield f"{head} {one['in']} {one['name']} {json.dumps(bare(one['schema']), sort_keys=True)}" + (
                    " required" if one.get("required") else ""
                )
            body = route.get("requestBody", {})
            for kind, content in body.get("content", {}).items():
                need = "required" if body.get("required") else "optional"
                yield f"{head} body {kind} {need} {json.dumps(bare(content.get('schema')), sort_keys=True)}"
            for status, reply in route["responses"].items():
                yield " ".join([head, status, *reply.get("content", {}), *reply.get("headers", {})])


if __name__ == "__main__":
    FILE.write_text("\n".join(outline()) + "\n", encoding="utf-8")
