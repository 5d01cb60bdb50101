"""A reason is told with its HTTP status, once."""

from __future__ import annotations

import pytest

from dicast.app.domain.opinion import ErrorReason


@pytest.mark.parametrize(
    ("status", "message", "text"),
    [
        (400, "status 400: invalid_request", "status 400: invalid_request"),
        (400, "answer refused: no score", "400 answer refused: no score"),
        (40, "status 400: x", "40 status 400: x"),
        (None, "no answer within 5 s", "no answer within 5 s"),
    ],
)
def test_a_reason_names_its_status_once(status: int | None, message: str, text: str) -> None:
    reason = ErrorReason(status_code=status, message=message, count=1, judge="a", criterion_id="d", item_id="i")
    assert reason.text == text
