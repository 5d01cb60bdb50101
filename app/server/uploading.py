"""`/uploads`: stores files of items, which jobs may name."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from dicast.app.access.scopes import Claims, Scope
from dicast.app.datasets.kinds import ENDINGS
from dicast.app.server.doors import guarded_router, needs
from dicast.app.server.parts import GivenParts

router = guarded_router("jobs")

UPLOAD_S = 3600.0


class UploadedFile(BaseModel):
    """A stored file. A job names it as `items: {path: ...}`."""

    path: str
    bytes: int
    sha256: str


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_ENDINGS = "^(" + "|".join(ending.replace(".", r"\.") for ending in ENDINGS) + ")$"


@router.post("/uploads", status_code=201, openapi_extra=_BODY)
async def upload(
    request: Request,
    parts: GivenParts,
    claims: Annotated[Claims, needs(Scope.JOB_SUBMIT, body_bytes=None, body_s=UPLOAD_S)],
    ending: Annotated[str, Query(pattern=_ENDINGS, description="what kind of file it is")],
) -> UploadedFile:
    """Store the body as a file of items. The same file again has the same path."""
    length = request.headers.get("content-length", "")
    stored = await parts.uploads.take(request.stream(), ending, int(length) if length.isdecimal() else 0)
    outcome = "done" if stored.is_new else "nothing to do"
    await run_in_threadpool(parts.record, claims, "upload", stored.path, outcome, {"bytes": stored.bytes})
    return UploadedFile(path=stored.path, bytes=stored.bytes, sha256=stored.sha256)
