"""The HTTP interface as one application: its routes, their OpenAPI description, errors and headers.

The files of the page, `/` and `/page/{file}`, are read from their folder once, at the first request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Header
from fastapi import Path as InPath
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from dicast.app.access.scopes import Claims
from dicast.app.application import Dicast
from dicast.app.domain.job import EvaluationJob
from dicast.app.server import jobs, nodes, overview, page, pools, problems, rating, results
from dicast.app.server.errors import PathNotFound
from dicast.app.server.guards import guarded_router, needs, needs_of
from dicast.app.server.parts import GivenParts, Parts
from dicast.app.server.problems import SafeHeaders

page_router = guarded_router("page")

KINDS: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only files of this server can run as scripts, and no text becomes markup, even by mistake."""

Everybody = Annotated[Claims, needs(rate=0)]
IfNoneMatch = Annotated[str | None, Header(alias="if-none-match", max_length=200)]
_FILE = {"schema": {"type": "string"}}


class _File(NamedTuple):
    content: bytes
    kind: str
    mark: str


@cache
def files() -> Mapping[str, _File]:
    """Return the page's files by name."""
    contents = {}
    for path in sorted(Path(page.__file__).parent.iterdir()):
        if path.suffix in KINDS and path.is_file():
            content = path.read_bytes()
            mark = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            contents[path.name] = _File(content, KINDS[path.suffix], mark)
    return contents


@page_router.get("/", response_class=Response, responses={200: {"content": {"text/html": _FILE}}, 304: {}})
def show_page(parts: GivenParts, _: Everybody, etag: IfNoneMatch = None) -> Response:
    """Serve the page. It contains whether a token is needed, and nothing else about this installation."""
    template = files()["index.html"]
    auth = b"required" if parts.require_auth else b"none"
    content = template.content.replace(b'data-auth=""', b'data-auth="' + auth + b'"')
    return _respond(_File(content, template.kind, f'{template.mark[:-1]}-{auth.decode()}"'), etag)


@page_router.get(
    "/page/{file}", response_class=Response,
    responses={200: {"content": {kind.partition(";")[0]: _FILE for kind in KINDS.values()}}, 304: {}},
)  # fmt: skip
def show_file(
    _: Everybody, file: Annotated[str, InPath(max_length=60, pattern=r"^[a-z-]+\.[a-z]+$")], etag: IfNoneMatch = None
) -> Response:
    """Serve a file of the page."""
    page_file = files().get(file)
    if page_file is None:
        raise PathNotFound("the page has no such file")
    return _respond(page_file, etag)


def _respond(file: _File, etag: str | None) -> Response:
    headers = {"ETag": file.mark, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if etag == file.mark:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.kind, headers=headers)


ROUTERS = (
    jobs.router, results.router, rating.router, pools.router, nodes.router, overview.router, overview.session_router,
    overview.health_router, page_router,
)  # fmt: skip

DESCRIPTION = "Panels of LLM judges: jobs, their results, pools and nodes. Errors are problems as RFC 9457 has them."


def create_server(dicast: Dicast, hosts: frozenset[str] | None = None) -> FastAPI:
    """Return the interface of an installation. `hosts` are the names under which it may be reached; None: any.

    The store is connected to with the first request that needs it.
    """
    server = FastAPI(
        title="Dicast", version=overview.VERSION, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    server.state.parts = Parts.for_server(dicast, hosts)
    # As they are: `include_router` would make them anew, each with its first request, and in several threads at once.
    server.router.routes.extend(routes())
    problems.install(server)
    server.add_middleware(SafeHeaders)
    server.openapi = lambda: _describe(server)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    return server


def routes() -> Iterator[APIRoute]:
    """Yield every route of the interface."""
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            yield route


def _describe(server: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, made once: FastAPI's, with the scopes of each route, and the models that FastAPI
    does not find in the routes."""
    if server.openapi_schema is None:
        description = get_openapi(
            title=server.title, version=server.version, routes=server.routes, description=DESCRIPTION
        )
        _, models = models_json_schema(
            [(EvaluationJob, "validation"), (problems.Problem, "serialization")],
            ref_template="#/components/schemas/{model}",
        )
        components = description.setdefault("components", {})
        components.setdefault("schemas", {}).update(models["$defs"])
        if server.state.parts.require_auth:
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
            _say_scopes(description["paths"])
        server.openapi_schema = description
    return server.openapi_schema


def _say_scopes(paths: dict[str, Any]) -> None:
    for route in routes():
        scopes = needs_of(route.dependant).scopes
        for method in (route.methods or ()) if route.include_in_schema else ():
            paths[route.path_format][method.lower()]["security"] = [{"token": [scope]} for scope in scopes]
