"""The HTTP interface as one application: its routes, their OpenAPI description, errors and headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

from dicast.app.application import Dicast
from dicast.app.domain.job import EvaluationJob
from dicast.app.server import (
    browsing,
    cluster,
    following,
    health,
    jobs,
    nodes,
    overview,
    pages,
    pools,
    problems,
    rating,
    results,
    session,
    uploading,
)  # fmt: skip
from dicast.app.server.doors import needs_of
from dicast.app.server.headers import SafeHeaders
from dicast.app.server.parts import Parts

ROUTERS = (
    jobs.router, following.router, results.router, browsing.router, rating.router, uploading.router, pools.router,
    nodes.router, cluster.router, overview.router, session.session_router, health.health_router, pages.page_router,
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
