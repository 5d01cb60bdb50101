"""Errors of the HTTP interface alone."""

from __future__ import annotations

from typing import ClassVar

from dicast.errors import DicastError


class InvalidRequest(DicastError, ValueError):
    """The request is invalid; the message names the field, the bound and the value."""

    problem = "request-refused"


class PathNotFound(DicastError, LookupError):
    """There is nothing at this path."""

    problem = "not-found"


class UnsupportedMediaType(DicastError):
    """The body has a media type that is not accepted here."""

    problem = "media-type-refused"


class TooManyRequests(DicastError):
    """More requests than the rate allows have come; `wait_s` is the time until one is accepted again."""

    problem = "too-many-requests"

    def __init__(self, whose: str, wait_s: float) -> None:
        super().__init__(f"too many requests of this {whose}; the next one is taken in {wait_s:.1f} s")
        self.wait_s = wait_s


class TooManyStreams(DicastError):
    """This server, or one subject of it, has as many event streams open as it may."""

    problem = "too-many-streams"
    wait_s: ClassVar[float] = 5.0


class ForeignRequest(DicastError):
    """The request comes from another site's page, or is for another host name than this server's."""

    problem = "foreign-request"


class NotAllowed(DicastError):
    """The token may not use what the request names."""

    problem = "not-allowed"


class RatingNotDone(DicastError):
    """Somebody who has not finished rating has asked for the judges' scores."""

    problem = "rating-not-done"


class FileNotAllowed(DicastError):
    """A job names a file that it may not name."""

    problem = "file-refused"


class FolderFull(DicastError):
    """The uploads' folder is full."""

    problem = "uploads-full"


class KeyReused(DicastError):
    """The Idempotency-Key was used before, with another request."""

    problem = "idempotency-key-reused"
