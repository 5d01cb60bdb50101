"""Makes one HTTP call, reads the JSON around the model's answer, and classifies a failure.

Status codes (first match wins): an exhausted account, whatever the code -> QUOTA_EXHAUSTED; 429, or a body that names a
rate limit -> RATE_LIMITED; 529, or a body that names an overload -> OVERLOADED; 408 and 5xx -> SERVER; everything else,
redirects included -> REJECTED. Gateways answer such bodies under 400, 500, 503 and even 200: an error under 200 is read
as the status that it names, by a number (OpenRouter, Gemini) or by its kind (Anthropic). Names count in any case.

The functions that read an answer are strict and typed, and raise nothing but `MalformedBody`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import aiohttp
import httpx2
import orjson

from dicast.app.domain.opinion import Usage
from dicast.app.domain.text import excerpt
from dicast.app.providers.base import ChatRequest, FailureKind, ProviderFailure
from dicast.app.providers.http import HttpResponse, ResponseTooLarge, rate_limit_headers
from dicast.workers.policy.headers import retry_after

_MOST_TOKENS = 10**9
_MAX_MODEL_CHARS = 200


class MalformedBody(Exception):
    """A response with status 200 that is no answer. The message says why and contains nothing of the body."""


def decode(content: bytes) -> dict[str, Any]:
    """Parse the body as a JSON object: no NaN, no invalid UTF-8, no lone surrogates, at most 1,024 levels deep."""
    try:
        envelope = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is no JSON ({error.msg[:60]})") from None
    if not isinstance(envelope, dict):
        raise MalformedBody("the body is no JSON object")
    return envelope


def error_in(body: dict[str, Any]) -> Any:
    """Return the error in an answer, beside its choices or within the first of them; None if there is none."""
    if body.get("error"):
        return body["error"]
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return (first.get("error") or None) if isinstance(first, dict) else None


def refuse_duplicate_keys(content: bytes) -> None:
    """Raise `MalformedBody` if an object has a key twice: in answers that are JSON values within the envelope, the
    later key would win silently."""

    def unique(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise MalformedBody("a JSON object has the same key twice")

    try:
        json.loads(content, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise MalformedBody("the body is no JSON") from None


def text(value: Any, what: str) -> str:
    """Return a non-empty text. A list of text parts, as some chat servers send it, is joined."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
        value = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        raise MalformedBody(f"{what} is no text")
    if not value:
        raise MalformedBody(f"{what} is empty")
    return value


def mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is no object")
    return value


def model(value: Any, requested: str) -> str:
    """Return the name of the model that answered, or the requested one if that name is unusable."""
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_MODEL_CHARS and value.isprintable() else requested


def usage(value: Any, input_keys: tuple[str, ...], output_key: str) -> Usage:
    """Return the tokens as reported; missing, negative and absurd numbers count as 0."""
    report = value if isinstance(value, dict) else {}
    return Usage(
        input_tokens=sum(_tokens(report.get(key)) for key in input_keys), output_tokens=_tokens(report.get(output_key))
    )


def _tokens(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else 0


MAX_MESSAGE_CHARS = 300
_SHOWN_CHARS = 270  # leaves room for the note that something was cut off

_MASK = "[hidden]"
_SHORTEST_SECRET = 8
_SHORTEST_ECHO = 12
_SHORTEST_KEY_PIECE = 6
_LOOKS_LIKE_A_KEY = re.compile(
    r"(?i)\b(?:sk|pk|rk|gsk|xai|key|api[-_]?key)[-_:=][\w*.-]{4,}|\bbearer\s+\S+",
)


class Redactor:
    """Cleans messages of a provider. `secrets` are the values that are sent with each call.

    A message is safe to log then: one line without keys, judged texts and control characters.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)

    def clean(self, message: str, judged_text: str = "") -> str:
        """Return `message` without pieces of a key (6 characters or more) or of the judged text (12 or more).

        The result is one printable line of at most MAX_MESSAGE_CHARS characters.
        """
        cut = message[: 4 * _SHOWN_CHARS]
        for secret in self._secrets:
            cut = _without(cut, secret, _SHORTEST_KEY_PIECE)
        cut = _LOOKS_LIKE_A_KEY.sub(_MASK, cut)
        return excerpt(_without(cut[: 2 * _SHOWN_CHARS], judged_text, _SHORTEST_ECHO), _SHOWN_CHARS)


def _without(message: str, source: str, shortest: int) -> str:
    """Replace every run of at least `shortest` characters in `message` that also stands in `source`."""
    pieces: list[str] = []
    start = 0
    while start < len(message):
        end = start + shortest
        if end <= len(message) and message[start:end] in source:
            while end < len(message) and message[start : end + 1] in source:
                end += 1
            pieces.append(_MASK)
            start = end
        else:
            pieces.append(message[start])
            start += 1
    return "".join(pieces)


_EXHAUSTED = {
    # OpenAI: error.type or error.code
    "insufficient_quota",
    "credit_balance_exhausted",
    "organization_usage_limit_exceeded",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "billing_hard_limit_reached",
    "billing_not_active",
    # Anthropic: error.type or error.details.error_code
    "billing_error",
    "enforced_spend_limit_reached",
    "contract_spend_limit_reached",
    "linked_organization_spend_limit_reached",
    "linked_organization_billing_unavailable",
}
_RATE_LIMITED = {"rate_limit_error", "rate_limit_exceeded"}
_OVERLOADED = {"overloaded_error"}
# What an error's kind means where the status does not say it: Anthropic's, OpenAI's, then Google's (google.rpc.Code).
_STATUSES = {
    **dict.fromkeys(_EXHAUSTED, 402), **dict.fromkeys(_RATE_LIMITED, 429), **dict.fromkeys(_OVERLOADED, 529),
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404,
    "request_too_large": 413, "api_error": 500, "timeout_error": 504, "server_error": 500, "invalid_api_key": 401,
    "model_not_found": 404, "invalid_argument": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404,
    "resource_exhausted": 429, "internal": 500, "unavailable": 503, "deadline_exceeded": 504,
}  # fmt: skip
_RETRY_INFO = "google.rpc.RetryInfo"
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s", re.ASCII)
# Anthropic reports a limit that the customer has set, and an empty account, only in words (with a 400).
_EXHAUSTED_WORDS = ("you have reached your specified", "credit balance is too low")

# Beside its own errors, an SDK lets through what its transport does not translate: aiohttp's errors, and a
# UnicodeError where the server's reason phrase is no UTF-8.
# The server has closed the connection; other network errors do not tell whether the provider is still working.
_ENDED_BY_SERVER = (
    aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionResetError, ConnectionAbortedError,
    BrokenPipeError,
)  # fmt: skip
_TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.InvalidURL, aiohttp.ClientError, OSError, UnicodeError)


class Exchange:
    """Turns a call into an answer or a `ProviderFailure`; shared by all calls of one provider."""

    def __init__(
        self,
        *,
        sdk_error: tuple[type[Exception], ...],
        redactor: Redactor,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._transport_errors: tuple[type[Exception], ...] = (*sdk_error, *_TRANSPORT_ERRORS)
        self._redactor = redactor
        self._now_s = now_s

    async def call(self, sending: Awaitable[HttpResponse], request: ChatRequest) -> HttpResponse:
        """Return the response to a call that succeeded; raise `ProviderFailure` for all others.

        The original exception is not chained, since its text may repeat what the provider said.
        """
        try:
            response = await sending
        except self._transport_errors as error:
            failure = self._transport_failure(error, request)
        else:
            if response.is_success:
                return response
            failure = self._status_failure(response, request.user)
        raise failure from None

    def malformed(self, reason: MalformedBody, response: HttpResponse) -> ProviderFailure:
        """Return the failure for a response with status 200 that is no answer; it may still report an error or a rate
        limit."""
        error = _error_of(response.content)
        if (status := error.status) is not None:
            kinds = " ".join(name for name in error.identifiers if name in _STATUSES)
            return ProviderFailure(
                _kind(status, error),
                f"status {response.status_code}, and an error that means {status}{': ' if kinds else ''}{kinds}",
                status_code=status,
                **self._limit_fields(response, error),
            )
        kind = self._redactor.clean(response.content_type.partition(";")[0][:60])
        return ProviderFailure(
            FailureKind.MALFORMED,
            f"{reason}; status {response.status_code}, {kind or 'no content type'}, {len(response.content)} bytes",
            status_code=response.status_code,
            headers=rate_limit_headers(response.headers),
        )

    def _status_failure(self, response: HttpResponse, judged_text: str) -> ProviderFailure:
        status = response.status_code
        error = _error_of(response.content)
        error_text = " ".join([*error.identifiers, error.message]).strip()
        return ProviderFailure(
            _kind(status, error),
            self._redactor.clean(f"status {status}: {error_text or 'no reason given'}", judged_text),
            status_code=status,
            **self._limit_fields(response, error),
        )

    def _limit_fields(self, response: HttpResponse, error: _Error) -> dict[str, Any]:
        """Return the wait and the rate-limit headers. Some bodies hold them instead of headers (Gemini), or as well
        (OpenRouter)."""
        headers = {**rate_limit_headers(error.headers), **rate_limit_headers(response.headers)}
        if error.retry_after and not {"retry-after", "retry-after-ms"} & headers.keys():
            headers["retry-after"] = error.retry_after
        now_s = self._now_s()
        wait = retry_after(response.headers.multi_items(), now_s) or retry_after(headers.items(), now_s)
        return {"retry_after_s": wait and wait.seconds, "headers": headers}

    def _transport_failure(self, error: BaseException, request: ChatRequest) -> ProviderFailure:
        """Classify an error by the end of its chain: SDK error <- httpx error <- aiohttp or operating system error.

        The middle link is unreliable: the transport reports a server that hung up as a time-out of the connection.
        """
        chain = list(_causes(error))
        root = chain[-1]
        name = type(root).__name__
        for link in chain:
            if isinstance(link, ResponseTooLarge | httpx2.DecodingError):
                too_large = isinstance(link, ResponseTooLarge)
                unread = str(link) if too_large else "the body cannot be unpacked"
                return ProviderFailure(FailureKind.MALFORMED, unread, ended=False)
        if isinstance(root, TimeoutError | httpx2.TimeoutException):
            return ProviderFailure(FailureKind.TIMEOUT, f"no answer in time ({name})", ended=False)
        if isinstance(root, httpx2.InvalidURL | httpx2.UnsupportedProtocol | aiohttp.InvalidURL):
            return ProviderFailure(FailureKind.REJECTED, f"the pool's base_url cannot be called ({name})")
        if isinstance(root, UnicodeEncodeError) and not _encodable(request):
            return ProviderFailure(FailureKind.REJECTED, "the texts hold lone surrogates and cannot be sent")
        # An operating system error names host and reason; a parser's error would quote what the server sent.
        detail = f": {self._redactor.clean(str(root))}" if isinstance(root, OSError) else ""
        never_connected = any(isinstance(link, aiohttp.ClientConnectorError | ConnectionRefusedError) for link in chain)
        ended = any(isinstance(link, _ENDED_BY_SERVER) for link in chain)
        return ProviderFailure(
            FailureKind.CONNECTION, f"connection failed ({name}){detail}", reached=not never_connected, ended=ended
        )


class _Error(NamedTuple):
    """The content of an error body, in OpenAI's, Anthropic's, Google's or an unknown form. `identifiers` are in lower
    case, `retry_after` is the requested wait in the form of a header, `headers` are those that the body repeats."""

    identifiers: list[str]
    message: str
    code: int = 0
    retry_after: str = ""
    headers: Mapping[str, str] = {}

    @property
    def status(self) -> int | None:
        """The HTTP status that the body names, None if it names none."""
        if 400 <= self.code <= 599:
            return self.code
        return next((_STATUSES[name] for name in self.identifiers if name in _STATUSES), None)


def _encodable(request: ChatRequest) -> bool:
    try:
        (request.system + request.user + request.model).encode()
    except UnicodeEncodeError:
        return False
    return True


def _error_of(content: bytes) -> _Error:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return _Error([], "")
    if isinstance(body, list) and len(body) == 1:  # Gemini's OpenAI-compatible API
        body = body[0]
    error: Any = (error_in(body) or body.get("error", body)) if isinstance(body, dict) else {}
    if isinstance(error, str):
        return _Error([], error)
    if not isinstance(error, dict):
        return _Error([], "")
    details, code, message = error.get("details"), error.get("code"), error.get("message")
    metadata = error.get("metadata")
    inner = details.get("error_code") if isinstance(details, dict) else None
    values = [error.get("type"), code, error.get("status"), inner]
    identifiers = dict.fromkeys(name[:60].lower() for name in values if isinstance(name, str) and name)
    repeated = metadata.get("headers") if isinstance(metadata, dict) else None
    return _Error(
        [name for name in identifiers if not name.isdecimal()],
        message if isinstance(message, str) else "",
        _number(code),
        _retry_delay(details if isinstance(details, list) else []),
        {name: text for name, text in repeated.items() if isinstance(text, str)} if isinstance(repeated, dict) else {},
    )


def _number(code: Any) -> int:
    """Return a code that is a number or the text of one, else 0."""
    if isinstance(code, str) and len(code) == 3 and code.isascii() and code.isdecimal():
        return int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) else 0


def _retry_delay(details: list[Any]) -> str:
    """Return the wait of Google's `RetryInfo` ("34.07s") in seconds, as text; "" if there is none."""
    for detail in details:
        if isinstance(detail, dict) and str(detail.get("@type", "")).endswith(_RETRY_INFO):
            match = _DELAY.fullmatch(str(detail.get("retryDelay", "")))
            return match[1] if match else ""
    return ""


def _kind(status: int, error: _Error) -> FailureKind:
    message = error.message.lower()
    in_words = status == 400 and any(phrase in message for phrase in _EXHAUSTED_WORDS)
    if status == 402 or in_words or not _EXHAUSTED.isdisjoint(error.identifiers):
        return FailureKind.QUOTA_EXHAUSTED
    if status == 429 or not _RATE_LIMITED.isdisjoint(error.identifiers):
        return FailureKind.RATE_LIMITED
    if status == 529 or not _OVERLOADED.isdisjoint(error.identifiers):
        return FailureKind.OVERLOADED
    return FailureKind.SERVER if status == 408 or status >= 500 else FailureKind.REJECTED


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and the errors that it was raised from, outermost first; at most ten."""
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__
