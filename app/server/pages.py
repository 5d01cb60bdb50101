"""`/` and `/page/{file}`: the page's files, read from its folder once, at the first request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import Header
from fastapi import Path as InPath
from starlette.responses import Response

from dicast.app.access.scopes import Claims
from dicast.app.server import page
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.errors import PathNotFound
from dicast.app.server.parts import GivenParts

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
