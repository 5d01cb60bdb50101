"""Makes one HTTP call, reads the JSON around the model's answer, and classifies a failure.

Status codes (first match wins): an exhausted account, whatever the code -> QUOTA_EXHAUSTED; a body that names a lack of
resources, or any other 429 to a flex call -> UNAVAILABLE; 429, or a body that names a rate limit -> RATE_LIMITED; 529,
or a body that names an overload -> OVERLOADED; 400 or 403 with a body that names a content filter -> FILTERED; 408 and
5xx -> SERVER; everything else, redirects included -> REJECTED. Gateways answer such bodies under 400, 500, 503 and even
200: an error under 200 is read as the status that it names, by a number (OpenRouter, Gemini) or by its kind
(Anthropic). Names count in any case.

The functions that read an answer are strict and typed, and raise nothing but `MalformedBody`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp
import httpx2
import orjson

from dicast.app.domain.opinion import CallUsage, Usage
from dicast.app.domain.text import excerpt
from dicast.app.providers.base import ANSWERS, ChatRequest, FailureKind, ProviderFailure
from dicast.app.providers.http import HttpResponse, ResponseTooLarge, rate_limit_headers
from dicast.config.pools import RENAMED, PoolSpec
from dicast.workers.policy.headers import retry_after

_MOST_TOKENS = 10**9
_MAX_MODEL_CHARS = 200


class MalformedBody(Exception):
    """A response with status 200 that is no answer. The message says why and contains nothing of the body; `usage` is
    what the body says that it took."""

    kind = FailureKind.MALFORMED

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


class OutOfTokens(MalformedBody):
    """The model has spent `max_tokens` before its answer began, or before it ended because of what it reasoned."""

    kind = FailureKind.OUT_OF_TOKENS


class RefusedAnswer(MalformedBody):
    """The model says that it will not answer."""

    kind = FailureKind.REFUSED


class FilteredAnswer(MalformedBody):
    """A content filter has withheld the answer."""

    kind = FailureKind.FILTERED


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


def text(value: Any, what: str, used: Usage | None = None) -> str:
    """Return a non-empty text. A list of text parts, as some chat servers send it, is joined, and reasoning that stands
    before the answer is cut off. `used` is what an answer without a text took."""
    value = _joined(value)
    if not isinstance(value, str):
        raise MalformedBody(f"{what} is no text", used)
    content: str = value
    if content.lstrip()[:1] == "<" and (thought := _THOUGHTS.match(content)):
        content = content[thought.end() :].lstrip()
    if not content:
        raise MalformedBody(f"{what} is empty", used)
    return content


def _joined(value: Any) -> Any:
    """Return the words of an answer that is a list of parts, without what was reasoned; any other value as it is."""
    if not isinstance(value, list):
        return value
    parts = [part.get("text") for part in value if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(part for part in parts if isinstance(part, str))


def mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is no object")
    return value


def model(value: Any, requested: str) -> str:
    """Return the name of the model that answered, or the requested one if that name is unusable."""
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_MODEL_CHARS and value.isprintable() else requested


_FILTER_ENDS = frozenset({
    "content_filter", "content_filtered", "guardrail_intervened", "safety", "prohibited_content", "blocklist",
    "recitation", "spii",
})  # fmt: skip
_THOUGHTS = re.compile(r"\s*<(think|reasoning)>.*?</\1>", re.DOTALL)
_UNENDED = re.compile(r"\s*<(think|reasoning)>(?!.*</\1>)", re.DOTALL)
_REASONED_SHARE = 0.5


def check_end(ended: Any, answer: Any, used: Usage, *, cut: bool) -> None:
    """Raise what an answer is in place of an opinion, by the reason that the provider gives for its end: filtered, or
    `cut` at `max_tokens` by reasoning. `answer` is its text, if it has one."""
    if isinstance(ended, str) and ended.lower().partition(":")[0] in _FILTER_ENDS:
        raise FilteredAnswer("a content filter stopped the answer", used)
    if not cut:
        return
    answer = _joined(answer)
    content = answer.lstrip() if isinstance(answer, str) else answer
    thinks = isinstance(content, str) and _UNENDED.match(content) is not None
    reasoned = isinstance(used, CallUsage) and used.reasoning_tokens >= _REASONED_SHARE * used.output_tokens > 0
    if not content or thinks or reasoned:
        raise OutOfTokens(f"max_tokens were spent before an answer ({used.output_tokens} tokens of output)", used)


def cache_key(request: ChatRequest) -> str:
    """Return a key by which a provider sends requests with the same beginning to the same machine."""
    beginning = f"{request.model}\0{request.system}\0{request.user[: request.shared]}"
    return hashlib.sha256(beginning.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def fingerprint(value: Any) -> str:
    """Return a system's fingerprint, "" if it is unusable."""
    return model(value, "")


class UsageKeys(NamedTuple):
    """Where a dialect reports tokens: keys whose numbers add up to the input; the output; and of these the parts that
    were read from the cache, written to it, and spent on reasoning, each as a path into the report. `total` is the key
    of the sum of both, "" where none is told."""

    input: tuple[str, ...]
    output: str
    cached: tuple[str, ...]
    written: tuple[str, ...]
    reasoning: tuple[str, ...] = ()
    total: str = ""


def usage(value: Any, keys: UsageKeys, tier: Any = None) -> Usage:
    """Return the tokens as reported; missing, negative and absurd numbers count as 0, and a part is never more than its
    whole. What a total has beyond input and output is output: xAI and Gemini count reasoning, which they charge for,
    there alone. `tier` is the kind of service that answered, as reported."""
    service = model(tier, "")
    report = value if isinstance(value, dict) else {}
    whole, output = sum(_tokens(report.get(key)) for key in keys.input), _tokens(report.get(keys.output))
    if len(report) <= 2 and not service:  # no parts are told
        return Usage(input_tokens=whole, output_tokens=output)
    if whole:
        output = max(output, _tokens(report.get(keys.total)) - whole)
    cached = min(whole, _part(report, keys.cached))
    written = min(whole - cached, _part(report, keys.written))
    reasoning = min(output, _part(report, keys.reasoning))
    if not (cached or written or reasoning or service):
        return Usage(input_tokens=whole, output_tokens=output)
    return CallUsage(
        input_tokens=whole,
        output_tokens=output,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
        service_tier=service,
    )


def _part(report: Any, path: tuple[str, ...]) -> int:
    for key in path:
        report = report.get(key) if isinstance(report, dict) else None
    return _tokens(report)


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
_UNAVAILABLE = {"resource_unavailable"}  # OpenAI's flex has no capacity; it has been seen to say so as a rate limit
# OpenAI's and Azure's names; `invalid_prompt` is what OpenAI's reasoning models answer to a prompt that is against the
# rules. Anthropic has words alone.
_FILTERED = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt"}
_FILTERED_WORDS = ("blocked by content filtering policy", "content violates usage guidelines")  # Anthropic, xAI
# What an error's kind means where the status does not say it: Anthropic's, OpenAI's, then Google's (google.rpc.Code).
_STATUSES = {
    **dict.fromkeys(_EXHAUSTED, 402), **dict.fromkeys(_RATE_LIMITED | _UNAVAILABLE, 429),
    **dict.fromkeys(_OVERLOADED, 529),
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


_UNSUPPORTED = re.compile(
    r"support|unknown|unrecogni[sz]ed|not permitted|not allowed|extra_forbidden|extraneous|unexpected|deprecated|"
    r"only the default|may only be|cannot be|can't be|cannot find field|invalid|must be|is not valid"
)
"""What messages say of a parameter that is refused."""


class Options:
    """The parameters of a pool's calls that a model may refuse, and can be asked without."""

    def __init__(self, spec: PoolSpec) -> None:
        self._spec, self._allowed = spec, frozenset(spec.params)
        defaults = {"effort": spec.effort, "service_tier": spec.service_tier}
        self._own = {name: value for name, value in defaults.items() if value is not None}

    def add(self, body: dict[str, Any], request: ChatRequest) -> None:
        """Add the pool's own fields and the request's parameters to its body. Raises `ProviderFailure` if the pool does
        not allow one."""
        body.update(self._spec.body)
        for name, value in self._sent(request).items():
            *path, key = self._spec.field_of(name).split(".")
            holder = body
            for step in path:
                holder = holder.setdefault(step, {})
            holder[key] = value

    def refused_params(self, request: ChatRequest, status: int, content: bytes) -> list[str]:
        """Return the parameters for which an error refuses the request: those to which its body points, or else those
        that its words name."""
        if status not in (400, 422):
            return []
        complaint = _complaint_of(content)
        text = _LISTED.sub(" ", complaint.text)
        if not _UNSUPPORTED.search(text.lower()):
            return []
        sent = list(self._sent(request))
        pointed = [name for name in sent if not self._alike(name).isdisjoint(complaint.places)]
        return pointed or [name for name in sent if self._names(name).search(text)]

    def _sent(self, request: ChatRequest) -> dict[str, Any]:
        """Return the parameters that are sent. Jobs are checked for the others when they are submitted, but perhaps by
        another pools file."""
        pool = self._spec.name
        if foreign := [name for name in request.params if name not in self._allowed and name not in _NAMED]:
            why = f"pool {pool!r} does not allow the parameter {foreign[0]!r}: its `params` do not name it"
            raise ProviderFailure(FailureKind.REJECTED, why, reached=False)
        temperature = {} if request.temperature is None else {"temperature": request.temperature}
        parameters = {**temperature, **self._own, **request.params}
        if request.logprobs and not _LOGPROBS & request.dropped:
            if not self._spec.logprobs:
                why = f"pool {pool!r} tells no log probabilities of tokens (score_from: logprobs)"
                raise ProviderFailure(FailureKind.REJECTED, why, reached=False)
            parameters |= {"logprobs": True, "top_logprobs": self._spec.logprobs}
        if request.answers > 1:
            parameters[ANSWERS] = request.answers
        sent = {name: value for name, value in parameters.items() if name not in request.dropped}
        if missing := [name for name in sent if not self._spec.field_of(name)]:
            why = f"pool {pool!r} has no parameter {missing[0]!r}, as its `param_names` say"
            raise ProviderFailure(FailureKind.REJECTED, why, reached=False)
        return sent

    def _alike(self, name: str) -> set[str]:
        """Return how a provider may spell a parameter."""
        field = self._spec.field_of(name)
        last = field.rpartition(".")[2]
        head, *tail = last.split("_")
        return {field, last, head + "".join(part.title() for part in tail)}

    def _names(self, name: str) -> re.Pattern[str]:
        alike = "|".join(map(re.escape, sorted(self._alike(name))))
        return re.compile(rf"(?<![A-Za-z0-9_])(?:{alike})(?![A-Za-z0-9_])")


_NAMED = frozenset(RENAMED) - {"temperature"}
_LOGPROBS = frozenset({"logprobs", "top_logprobs"})
"""Neither is sent without the other."""
_WORDS_CHARS = 2000
_RAW_CHARS = 20_000


_LISTED = re.compile(
    r"\b(?:expected one of|(?:supported|valid|allowed|accepted|available) (?:parameter|field|argument|propert|key)\w*)"
    r"\b[^.;]*",
    re.IGNORECASE,
)
"""What messages list of the parameters that there are, none of which is refused (serde's words, at Bedrock)."""


class _Complaint(NamedTuple):
    """What an error says of a request, and the names of fields to which its body points."""

    text: str
    places: frozenset[str] = frozenset()


def _complaint_of(content: bytes, *, nested: bool = False) -> _Complaint:
    """Return what an error's message says, the parameter that it names, and where a list of details points to; of a
    gateway's error, those of the error that it passes on."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return _Complaint(content.decode(errors="replace")[:_WORDS_CHARS] if nested else "")
    texts, places = [_error_of(content).message[:_WORDS_CHARS]], set[str]()
    body = body[0] if isinstance(body, list) and len(body) == 1 else body
    outer = body if isinstance(body, dict) else {}
    for holder in (outer, outer.get("error"), outer.get("message")):
        if not isinstance(holder, dict):
            continue
        texts += [text[:_WORDS_CHARS] for key in ("param", "code") if isinstance(text := holder.get(key), str)]
        if isinstance(param := holder.get("param"), str):
            places.add(param)
        details = holder.get("detail")
        texts += [details[:_WORDS_CHARS]] if isinstance(details, str) else []
        for detail in details[:20] if isinstance(details, list) else ():
            if isinstance(detail, dict):
                steps = detail.get("loc")
                steps = [str(step)[:_WORDS_CHARS] for step in steps[:5]] if isinstance(steps, list) else []
                places.update(steps)
                texts += [*steps, f"{detail.get('type')} {detail.get('msg')}"[:_WORDS_CHARS]]
    if not nested and (raw := _passed_on(error_in(outer))):
        inner = _complaint_of(raw, nested=True)
        return _Complaint(" ".join([*texts, inner.text]), inner.places or frozenset(places))
    return _Complaint(" ".join(texts), frozenset(places))


def _passed_on(error: Any) -> bytes:
    """Return the error of a model's provider that a gateway (OpenRouter) holds in its own; b"" if it holds none."""
    metadata = error.get("metadata") if isinstance(error, dict) else None
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, dict):
        try:
            return orjson.dumps(raw)
        except orjson.JSONEncodeError:  # nested more deeply than it writes, though not than it reads
            return b""
    return raw[:_RAW_CHARS].encode(errors="replace") if isinstance(raw, str) else b""


class Exchange:
    """Turns a call into an answer or a `ProviderFailure`; shared by all calls of one provider."""

    def __init__(
        self,
        *,
        sdk_error: tuple[type[Exception], ...],
        redactor: Redactor,
        options: Options | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._transport_errors: tuple[type[Exception], ...] = (*sdk_error, *_TRANSPORT_ERRORS)
        self._redactor = redactor
        self._options = options
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
            failure = self.status_failure(response, request)
        raise failure from None

    def malformed(self, reason: MalformedBody, response: HttpResponse, request: ChatRequest) -> ProviderFailure:
        """Return the failure for a response with status 200 that is no answer; it may still report an error or a rate
        limit."""
        error = _error_of(response.content)
        if (status := error.status) is not None:
            kinds = " ".join(name for name in error.identifiers if name in _STATUSES)
            kind = _kind(status, error, flex=request.is_flex)
            return ProviderFailure(
                kind,
                f"status {response.status_code}, and an error that means {status}{': ' if kinds else ''}{kinds}",
                status_code=status,
                refused_params=self._refused_params(kind, status, response, request),
                **self._limit_fields(response, error),
            )
        media_type = self._redactor.clean(response.content_type.partition(";")[0][:60])
        return ProviderFailure(
            reason.kind,
            f"{reason}; status {response.status_code}, {media_type or 'no content type'}, {len(response.content)} bytes"
            if reason.kind is FailureKind.MALFORMED
            else str(reason),
            status_code=response.status_code,
            headers=rate_limit_headers(response.headers),
            usage=reason.usage,
        )

    def status_failure(self, response: HttpResponse, request: ChatRequest) -> ProviderFailure:
        """Return the failure for a response whose status is no success."""
        status = response.status_code
        error = _error_of(response.content)
        error_text = " ".join([*error.identifiers, error.message]).strip()
        return ProviderFailure(
            kind := _kind(status, error, flex=request.is_flex),
            self._redactor.clean(f"status {status}: {error_text or 'no reason given'}", request.user),
            status_code=status,
            refused_params=self._refused_params(kind, status, response, request),
            **self._limit_fields(response, error),
        )

    def _refused_params(
        self, kind: FailureKind, status: int, response: HttpResponse, request: ChatRequest
    ) -> Sequence[str]:
        if self._options is None or kind is not FailureKind.REJECTED:
            return ()
        return self._options.refused_params(request, status, response.content)

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


def status_of(body: Any) -> int | None:
    """Return the HTTP status that an error's body names, None if it names none."""
    return _error_of(orjson.dumps(body)).status


def _error_of(content: bytes, *, nested: bool = False) -> _Error:
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
    azure = error.get("innererror")
    why = azure.get("code") if isinstance(azure, dict) else None
    values = [error.get("type"), code, error.get("status"), inner, why, *_moderation(metadata)]
    if not nested and (raw := _passed_on(error)):
        upstream = _error_of(raw, nested=True)
        reason = upstream.message or ("" if raw[:1] in (b"{", b"[", b"<") else raw.decode()[:_WORDS_CHARS])
        values += _FILTERED.intersection(upstream.identifiers)  # its other names are about an account that is not ours
        message = f"{message}: {reason}" if isinstance(message, str) and reason else message
    identifiers = dict.fromkeys(name[:60].lower() for name in values if isinstance(name, str) and name)
    repeated = metadata.get("headers") if isinstance(metadata, dict) else None
    return _Error(
        [name for name in identifiers if not name.isdecimal()],
        message if isinstance(message, str) else "",
        _number(code),
        _retry_delay(details if isinstance(details, list) else []),
        {name: text for name, text in repeated.items() if isinstance(text, str)} if isinstance(repeated, dict) else {},
    )


def _moderation(metadata: Any) -> Iterator[str]:
    """Yield that a gateway's filter has flagged the input, if its error says why (OpenRouter). What it flagged stands
    beside that, and is a judged text."""
    if isinstance(metadata, dict) and isinstance(metadata.get("reasons"), list) and metadata["reasons"]:
        yield "content_filter"


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


def _kind(status: int, error: _Error, *, flex: bool = False) -> FailureKind:
    message = error.message.lower()
    in_words = status == 400 and any(phrase in message for phrase in _EXHAUSTED_WORDS)
    if status == 402 or in_words or not _EXHAUSTED.isdisjoint(error.identifiers):
        return FailureKind.QUOTA_EXHAUSTED
    if not _UNAVAILABLE.isdisjoint(error.identifiers) or (flex and status == 429):
        return FailureKind.UNAVAILABLE
    if status == 429 or not _RATE_LIMITED.isdisjoint(error.identifiers):
        return FailureKind.RATE_LIMITED
    if status == 529 or not _OVERLOADED.isdisjoint(error.identifiers):
        return FailureKind.OVERLOADED
    in_words = any(phrase in message for phrase in _FILTERED_WORDS)
    if status in (400, 403) and (in_words or not _FILTERED.isdisjoint(error.identifiers)):
        return FailureKind.FILTERED
    return FailureKind.SERVER if status == 408 or status >= 500 else FailureKind.REJECTED


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and the errors that it was raised from, outermost first; at most ten."""
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__
