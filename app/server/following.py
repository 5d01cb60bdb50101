"""`/jobs/{job}/events`: a job's progress as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import Request, Response

from dicast.app.ledger.client import UnknownJob
from dicast.app.server.doors import guarded_router
from dicast.app.server.events import Stream, StreamEvent, event_id
from dicast.app.server.jobs import JobName, Reader, read_job
from dicast.app.server.parts import GivenParts

router = guarded_router("jobs")

EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "server-sent events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "nothing more will happen, and the client has the last event"},
}


@router.get("/jobs/{job}/events", response_class=Response, responses=EVENTS)
def job_events(request: Request, parts: GivenParts, claims: Reader, job: JobName) -> Response:
    """Stream the view of `GET /jobs/{job}` whenever it changes, as events named `progress`, and `ended` at the end."""

    def view() -> tuple[dict[str, Any], bool]:
        job_view = read_job(parts, claims, job)
        return job_view.model_dump(mode="json"), job_view.state.ended

    def changes(last: str | None) -> Iterator[StreamEvent]:
        try:
            current, ended = view()
        except UnknownJob as error:
            yield StreamEvent("gone", {"id": job, "detail": str(error)}, last=True)
            return
        if ended or event_id(current) != last:
            yield StreamEvent("ended" if ended else "progress", current, last=ended)

    current, ended = view()
    if ended and request.headers.get("last-event-id") == event_id(current):
        return Response(status_code=204)  # which keeps an EventSource from coming back
    return Stream(request, changes)
