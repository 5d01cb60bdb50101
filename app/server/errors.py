"""What only the HTTP interface refuses."""

from __future__ import annotations

from typing import ClassVar

from dicast.errors import DicastError


class RequestRefused(DicastError, ValueError):
    """The request is not as it must be; the message names the field, the bound and the value."""

    problem = "request-refused"


class NotThere(DicastError, LookupError):
    """The path leads to nothing."""

    problem = "not-found"


class TypeRefused(DicastError):
    """The body is of a media type that is not taken here."""

    problem = "media-type-refused"


class TooManyRequests(DicastError):
    """More requests than the rate allows; `wait_s` is the time until one is taken again."""

    problem = "too-many-requests"

    def __init__(self, whose: str, wait_s: float) -> None:
        super().__init__(f"too many requests of this {whose}; the next one is taken in {wait_s:.1f} s")
        self.wait_s = wait_s


class TooManyStreams(DicastError):
    """This server has as many event streams open as it may."""

    problem = "too-many-streams"
    wait_s: ClassVar[float] = 5.0


class ForeignRequest(DicastError):
    """Another site's page, or another name than this server's, is behind the request."""

    problem = "foreign-request"


class NotAllowed(DicastError):
    """The token may not use what the request names."""

    problem = "not-allowed"


class RatingNotDone(DicastError):
    """The judges' scores are asked for by somebody who has not finished rating."""

    problem = "rating-not-done"


class FileRefused(DicastError):
    """A job names a file that it may not name."""

    problem = "file-refused"


class FolderFull(DicastError):
    """The uploads' folder holds as much as it may."""

    problem = "uploads-full"


class KeyReused(DicastError):
    """The Idempotency-Key came before, with another request."""

    problem = "idempotency-key-reused"
