"""OpenAI's and Anthropic's batch APIs. `dicast.app.providers.batches` says what they promise.

Addresses and headers are those of the pool's online calls, and nothing that an answer names is ever used as an address:
the key goes nowhere else.

A request is one line of JSON, and so is a result. OpenAI takes a file of lines, and then a batch that names it;
Anthropic takes them within one JSON object. Both bodies are written to a temporary file first, so that a batch that
must not be sent is not, and its length is known.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterator
from dataclasses import replace
from datetime import datetime
from typing import IO, Any, ClassVar, NamedTuple, Protocol

import aiohttp
import httpx2
import orjson
import yarl
from multidict import CIMultiDict

from dicast.app.providers import exchange
from dicast.app.providers.base import ChatReply, ChatRequest, FailureKind, ProviderFailure
from dicast.app.providers.batches import (
    CLOCK_SKEW_S,
    CUSTOM_ID,
    IDENTITY,
    LOOK_BACK_S,
    SEPARATOR,
    BatchCounts,
    BatchError,
    BatchLimits,
    BatchRequest,
    BatchResult,
    BatchState,
    BatchStatus,
    CreateFailed,
    DamagedResults,
    ForeignBatch,
    RequestFate,
    UndecidedBatch,
    UnusableBatch,
)
from dicast.app.providers.exchange import Exchange, MalformedBody, status_of
from dicast.app.providers.http import Build, Connections, HttpResponse, dumped

METADATA_KEY = "dicast_batch"
_PAGE_SIZE = 100
_MOST_PAGES = 1000
_ID = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_MODEL = re.compile(rb'\{"model":("(?:[^"\\]|\\.)*")')
_NO_TEXTS = ChatRequest(model="", system="", user="", max_tokens=0)
_JSON = "application/json"
_OPENAI_STATES = {
    "validating": BatchState.VALIDATING, "in_progress": BatchState.RUNNING, "finalizing": BatchState.FINALIZING,
    "completed": BatchState.ENDED, "failed": BatchState.FAILED, "expired": BatchState.EXPIRED,
    "cancelling": BatchState.CANCELLING, "cancelled": BatchState.CANCELLED,
}  # fmt: skip
_OPENAI_FATES = {"batch_expired": RequestFate.EXPIRED, "batch_cancelled": RequestFate.CANCELLED}
_ANTHROPIC_FATES = {
    "succeeded": RequestFate.ANSWERED, "errored": RequestFate.ANSWERED, "expired": RequestFate.EXPIRED,
    "canceled": RequestFate.CANCELLED,
}  # fmt: skip


@contextlib.contextmanager
def _temporary_file() -> Iterator[IO[bytes]]:
    """Yield a file without a name. The HTTP client closes what it has sent, in a thread and perhaps at this instant."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    try:
        yield file
    finally:
        with contextlib.suppress(ValueError):
            file.close()


class OnlineProvider(Protocol):
    """The part of a pool's provider that its batches use as well."""

    exchange: Exchange

    def builder(self) -> Build: ...
    def body(self, request: ChatRequest) -> dict[str, Any]: ...
    def read(self, response: HttpResponse, request: ChatRequest) -> ChatReply: ...
    async def close(self) -> None: ...


class _Parsed(NamedTuple):
    """A result's line as far as it was read: its whole custom id, its fate, and the response if there was one."""

    custom_id: str
    fate: RequestFate
    response: HttpResponse | None


class _Batches(ABC):
    """What both APIs have in common. `online_path` is how an online call's address ends."""

    limits: BatchLimits
    online_path: ClassVar[str]
    batches_path: ClassVar[str]
    after: ClassVar[str]

    def __init__(self, provider: OnlineProvider, connections: Connections, *, most_line: int) -> None:
        self._provider, self._connections, self._most_line = provider, connections, most_line
        self._exchange = provider.exchange
        self._address: tuple[yarl.URL, CIMultiDict[str]] | None = None

    def body(self, request: ChatRequest) -> bytes:
        return dumped(self._provider.body(request))

    def read(self, result: BatchResult, request: ChatRequest) -> ChatReply:
        """See `BatchApi`. The answer is read by the code that reads online answers."""
        try:
            response = self._parse(result.line).response
        except MalformedBody as reason:
            raise self._exchange.malformed(reason, _response(200, None), request) from None
        if response is None:
            raise ProviderFailure(FailureKind.UNAVAILABLE, f"the request was not made: the batch {result.fate}")
        return self._provider.read(response, request)

    async def create(self, requests: AsyncIterable[BatchRequest], identity: str) -> BatchStatus:
        if not IDENTITY.fullmatch(identity):
            raise UnusableBatch("a batch's identity consists of 1 to 23 letters, digits and hyphens")
        with _temporary_file() as file:
            await self._write(file, requests, identity)
            file.seek(0)
            return await self._send(file, identity)

    async def get(self, batch_id: str) -> BatchStatus:
        return self._status(await self._json("GET", self._path(batch_id)))

    async def list(self, since: float) -> AsyncGenerator[BatchStatus, None]:
        after, ids = "", set[str]()
        for _ in range(_MOST_PAGES):
            query = {"limit": str(_PAGE_SIZE), **({self.after: after} if after else {})}
            answer = await self._json("GET", self.batches_path, query=query)
            entries = answer.get("data")
            if not isinstance(entries, list):
                raise self._malformed("no list of batches")
            for entry in entries:
                batch = self._status(entry)
                if batch.created_at < since:
                    return
                if batch.id not in ids:  # a batch made between two pages shifts the list
                    ids.add(batch.id)
                    yield batch
                after = batch.id
            if not entries or answer.get("has_more") is not True:
                return
        raise self._malformed("a list of batches without end")

    @abstractmethod
    async def find(
        self, identity: str, *, since: float, requests: int, known: Collection[str] = ()
    ) -> BatchStatus | None: ...

    async def results(self, batch: BatchStatus, identity: str) -> AsyncGenerator[BatchResult, None]:
        ids, garbage, duplicates, answers = set[str](), 0, 0, 0
        prefix = identity + SEPARATOR
        for source in batch.sources:
            async with contextlib.aclosing(self._lines(source)) as lines:
                async for line in lines:
                    parsed = self._parsed_or_none(line)
                    if line is None or parsed is None:
                        garbage += 1
                        if line is not None and not line.endswith(b"\n"):
                            raise DamagedResults(cut=True)
                    elif not parsed.custom_id.startswith(prefix):
                        if not ids:
                            raise ForeignBatch(f"the results of batch {batch.id} are not those of {identity}")
                        garbage += 1
                    elif parsed.custom_id in ids:
                        duplicates += 1
                    else:
                        ids.add(parsed.custom_id)
                        answers += parsed.response is not None and parsed.response.is_success
                        yield BatchResult(parsed.custom_id.removeprefix(prefix), parsed.fate, line)
        missing = max(0, self._missing(batch, len(ids), answers))
        if garbage or duplicates or missing:
            raise DamagedResults(cut=False, garbage=garbage, duplicates=duplicates, missing=missing)

    async def cancel(self, batch_id: str) -> BatchStatus:
        try:
            return self._status(await self._json("POST", f"{self._path(batch_id)}/cancel"))
        except ProviderFailure as failure:
            if failure.kind is not FailureKind.REJECTED:
                raise
            batch = await self.get(batch_id)
            if not batch.state.is_over:
                raise
            return batch

    async def close(self) -> None:
        await self._connections.close()
        await self._provider.close()

    # ------------------------------------------------------------------ what the APIs differ in
    @abstractmethod
    async def _send(self, file: IO[bytes], identity: str) -> BatchStatus:
        """Hand over what `_write` has written. Raises `CreateFailed`."""

    @abstractmethod
    def _wrapped(self, custom_id: str, body: bytes) -> bytes:
        """Return a request as it is handed over."""

    frame: ClassVar[tuple[bytes, bytes, bytes]]
    """What stands before the first request, between two, and after the last."""

    @abstractmethod
    def _status(self, entry: Any) -> BatchStatus:
        """Read what the API tells of a batch. Raises `ProviderFailure`."""

    @abstractmethod
    def _parse(self, line: bytes) -> _Parsed:
        """Read a result's line. Raises `MalformedBody`."""

    @abstractmethod
    def _source(self, source: str) -> str:
        """Return the path at which a batch's results are."""

    def _missing(self, batch: BatchStatus, results: int, answers: int) -> int:
        """Return how many results a batch that is over lacks, of which so many came, `answers` of them of success."""
        return batch.counts.total - results

    # ------------------------------------------------------------------ common parts
    async def _write(self, file: IO[bytes], requests: AsyncIterable[BatchRequest], identity: str) -> None:
        head, between, tail = self.frame
        size, ids, models = len(head) + len(tail), set[str](), set[bytes]()
        file.write(head)
        async for custom_id, body in requests:
            if not CUSTOM_ID.fullmatch(custom_id):
                raise UnusableBatch("a request's id consists of 1 to 40 letters, digits, hyphens and underscores")
            if custom_id in ids:
                raise UnusableBatch(f"two requests have the id {custom_id}")
            if b"\n" in body:
                raise UnusableBatch("a request's body must be one line")
            line = (between if ids else b"") + self._wrapped(identity + SEPARATOR + custom_id, body)
            size += len(line)
            ids.add(custom_id)
            models.add(_model_in(body))
            if len(ids) > self.limits.requests or size > self.limits.bytes:
                raise UnusableBatch(f"a batch has at most {self.limits.requests} requests, {self.limits.bytes} bytes")
            if self.limits.one_model and len(models) > 1:
                raise UnusableBatch("all requests of a batch must ask the same model")
            file.write(line)
        if not ids:
            raise UnusableBatch("a batch must have a request")
        file.write(tail)

    def _parsed_or_none(self, line: bytes | None) -> _Parsed | None:
        if line is None:
            return None
        try:
            return self._parse(line)
        except MalformedBody:
            return None

    async def _lines(self, source: str) -> AsyncGenerator[bytes | None, None]:
        """Yield the lines of results, None for one that is too long; raise `DamagedResults` where they are cut."""
        url, headers = await self._at(self._source(source))
        async with contextlib.AsyncExitStack() as opened:
            pieces: AsyncIterator[bytes]

            async def begin() -> HttpResponse:
                nonlocal pieces
                response, pieces = await opened.enter_async_context(self._connections.stream(url, headers))
                return response

            await self._exchange.call(begin(), _NO_TEXTS)
            try:
                async for line in lines_of(pieces, self._most_line):
                    yield line
            except (aiohttp.ClientError, httpx2.HTTPError, OSError, TimeoutError):
                raise DamagedResults(cut=True) from None

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        data: Any = None,
        media: str | None = _JSON,
    ) -> dict[str, Any]:
        """Make one HTTP call and return the JSON object that came. Raises `ProviderFailure`."""
        url, headers = await self._at(path)
        if query:
            url = url.update_query(query)
        if data is not None and media:
            headers["content-type"] = media
        response = await self._exchange.call(self._connections.request(method, url, headers, data), _NO_TEXTS)
        try:
            return exchange.decode(response.content)
        except MalformedBody as reason:
            failure = self._exchange.malformed(reason, response, _NO_TEXTS)
        raise failure

    async def _create(self, path: str, data: Any) -> BatchStatus:
        """Make the call that creates the batch. Raises `CreateFailed`."""
        try:
            return self._status(await self._json("POST", path, data=data))
        except ProviderFailure as failure:
            status = failure.status_code
            is_refusal = status is not None and 300 <= status < 500 and status != 408
            raise CreateFailed(failure, uncertain=failure.reached and not is_refusal) from None

    async def _at(self, path: str) -> tuple[yarl.URL, CIMultiDict[str]]:
        """Return the address and the headers of a call, as online calls have them."""
        if self._address is None:
            request = await self._provider.builder()("")
            pairs = [(k, v) for k, v in request.headers.items() if k.lower() not in ("content-length", "content-type")]
            self._address = yarl.URL(str(request.url)), CIMultiDict(pairs)
        online, headers = self._address
        base = online.path.removesuffix(self.online_path)
        return online.with_path(base + path).with_query(online.query), headers.copy()

    def _path(self, batch_id: str) -> str:
        return f"{self.batches_path}/{_checked(batch_id)}"

    def _malformed(self, reason: str) -> ProviderFailure:
        return ProviderFailure(FailureKind.MALFORMED, reason, status_code=200)


class OpenAIBatches(_Batches):
    """OpenAI's batches of chat completions: at most 50,000 requests of one model in a file of 200 MB."""

    limits = BatchLimits(requests=50_000, bytes=200_000_000, one_model=True)
    online_path = "/chat/completions"
    batches_path = "/batches"
    after = "after"
    frame = (b"", b"", b"")

    async def find(
        self, identity: str, *, since: float, requests: int, known: Collection[str] = ()
    ) -> BatchStatus | None:
        async with contextlib.aclosing(self.list(since - LOOK_BACK_S)) as batches:
            async for batch in batches:
                if batch.identity == identity and batch.id not in known:
                    return batch
        return None

    async def _send(self, file: IO[bytes], identity: str) -> BatchStatus:
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", file, filename=f"{identity}.jsonl", content_type="application/jsonl")
        try:
            uploaded = await self._json("POST", "/files", data=form, media="")
            file_id = _checked(uploaded.get("id"))
        except ProviderFailure as failure:  # a file alone is no batch
            raise CreateFailed(failure, uncertain=False) from None
        wish = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": {METADATA_KEY: identity},
        }
        return await self._create("/batches", orjson.dumps(wish))

    def _wrapped(self, custom_id: str, body: bytes) -> bytes:
        return b'{"custom_id":"%b","method":"POST","url":"/v1/chat/completions","body":%b}\n' % (
            custom_id.encode(),
            body,
        )

    def _status(self, entry: Any) -> BatchStatus:
        try:
            batch = exchange.mapping(entry, "the batch")
            state = _OPENAI_STATES.get(str(batch.get("status")))
            if state is None:
                raise MalformedBody("a batch in an unknown state")
            files = (batch.get("output_file_id"), batch.get("error_file_id"))
            ends = ("completed_at", "failed_at", "expired_at", "cancelled_at")
            return BatchStatus(
                id=_checked(batch.get("id")),
                state=state,
                created_at=_unix_s(batch.get("created_at")),
                identity=str(_dict(batch.get("metadata")).get(METADATA_KEY, "")),
                counts=_openai_counts(_dict(batch.get("request_counts"))),
                errors=_openai_errors(batch.get("errors")),
                ended_at=next((at for name in ends if (at := _unix_s_or_none(batch.get(name))) is not None), None),
                expires_at=_unix_s_or_none(batch.get("expires_at")),
                sources=tuple(_checked(file) for file in files if file) if state.is_over else (),
            )
        except MalformedBody as reason:
            raise self._malformed(str(reason)) from None

    def _parse(self, line: bytes) -> _Parsed:
        entry = exchange.decode(line)
        custom_id = exchange.text(entry.get("custom_id"), "the custom id")
        response, error = entry.get("response"), _dict(entry.get("error"))
        if isinstance(response, dict):
            status = response.get("status_code")
            if not isinstance(status, int) or not 100 <= status <= 599:
                raise MalformedBody("a response without a status")
            return _Parsed(custom_id, RequestFate.ANSWERED, _response(status, response.get("body")))
        if not error:
            raise MalformedBody("neither a response nor an error")
        fate = _OPENAI_FATES.get(str(error.get("code")), RequestFate.ANSWERED)
        if fate is not RequestFate.ANSWERED:
            return _Parsed(custom_id, fate, None)
        return _Parsed(custom_id, fate, _response(status_of({"error": error}) or 500, {"error": error}))

    def _source(self, source: str) -> str:
        return f"/files/{_checked(source)}/content"

    def _missing(self, batch: BatchStatus, results: int, answers: int) -> int:
        """See `_Batches`. Of a cancelled batch only what is billed has a result for certain."""
        if batch.state is BatchState.FAILED:
            return 0
        if batch.state is BatchState.CANCELLED:
            return batch.counts.succeeded - answers
        return super()._missing(batch, results, answers)


class AnthropicBatches(_Batches):
    """Anthropic's message batches: at most 100,000 requests, of any models, in 256 MB."""

    limits = BatchLimits(requests=100_000, bytes=256_000_000, one_model=False)
    online_path = "/v1/messages"
    batches_path = "/v1/messages/batches"
    after = "after_id"
    frame = (b'{"requests":[', b",", b"]}")

    async def find(
        self, identity: str, *, since: float, requests: int, known: Collection[str] = ()
    ) -> BatchStatus | None:
        running: list[BatchStatus] = []
        async with contextlib.aclosing(self.list(since - CLOCK_SKEW_S)) as batches:
            async for batch in batches:
                if batch.id in known or batch.counts.total != requests:
                    continue
                if not batch.state.is_over:
                    running.append(batch)
                elif batch.sources and await self._belongs(batch, identity):
                    return replace(batch, identity=identity)
        if len(running) > 1:
            raise UndecidedBatch([batch.id for batch in running])
        return running[0] if running else None

    async def _belongs(self, batch: BatchStatus, identity: str) -> bool:
        """Whether the first result that can be read has the identity in its custom id."""
        for source in batch.sources:
            async with contextlib.aclosing(self._lines(source)) as lines:
                async for line in lines:
                    if parsed := self._parsed_or_none(line):
                        return parsed.custom_id.startswith(identity + SEPARATOR)
        return False

    async def _send(self, file: IO[bytes], identity: str) -> BatchStatus:
        return await self._create(self.batches_path, file)

    def _wrapped(self, custom_id: str, body: bytes) -> bytes:
        return b'{"custom_id":"%b","params":%b}' % (custom_id.encode(), body)

    def _status(self, entry: Any) -> BatchStatus:
        try:
            batch = exchange.mapping(entry, "the batch")
            counts = _anthropic_counts(_dict(batch.get("request_counts")))
            state = _anthropic_state(batch, counts)
            batch_id = _checked(batch.get("id"))
            return BatchStatus(
                id=batch_id,
                state=state,
                created_at=_unix_s(batch.get("created_at")),
                counts=counts,
                ended_at=_unix_s_or_none(batch.get("ended_at")),
                expires_at=_unix_s_or_none(batch.get("expires_at")),
                sources=(batch_id,) if state.is_over and batch.get("results_url") else (),
            )
        except MalformedBody as reason:
            raise self._malformed(str(reason)) from None

    def _parse(self, line: bytes) -> _Parsed:
        entry = exchange.decode(line)
        custom_id = exchange.text(entry.get("custom_id"), "the custom id")
        result = exchange.mapping(entry.get("result"), "the result")
        kind = str(result.get("type"))
        fate = _ANTHROPIC_FATES.get(kind)
        if fate is None:
            raise MalformedBody("a result of an unknown type")
        if fate is not RequestFate.ANSWERED:
            return _Parsed(custom_id, fate, None)
        if kind == "succeeded":
            return _Parsed(custom_id, fate, _response(200, result.get("message")))
        error = result.get("error")
        return _Parsed(custom_id, fate, _response(status_of(error) or 500, error))

    def read(self, result: BatchResult, request: ChatRequest) -> ChatReply:
        """See `BatchApi`. A tool's input is JSON within the line, where a key that comes twice would win silently."""
        if result.fate is RequestFate.ANSWERED:
            try:
                exchange.refuse_duplicate_keys(result.line)
            except MalformedBody as reason:
                raise self._exchange.malformed(reason, _response(200, None), request) from None
        return super().read(result, request)

    def _source(self, source: str) -> str:
        return f"{self.batches_path}/{_checked(source)}/results"


async def lines_of(pieces: AsyncIterator[bytes], most: int) -> AsyncGenerator[bytes | None, None]:
    """Split a stream into lines with their ends, without empty ones. None stands for one of more than `most` bytes,
    which is not kept. The last may have no end."""
    line, dropping = bytearray(), False
    async for piece in pieces:
        for part in piece.splitlines(keepends=True):
            ended = part.endswith(b"\n")
            if not dropping:
                line += part
                dropping = len(line) > most
            if ended or dropping:
                if ended and (dropping or line.strip()):
                    yield None if dropping else bytes(line)
                line.clear()
                dropping = dropping and not ended
    if dropping:
        yield None
    elif line.strip():
        yield bytes(line)


def _response(status: int, body: Any) -> HttpResponse:
    """Return a result as the response of an online call."""
    return HttpResponse(status, httpx2.Headers(), orjson.dumps(body), _JSON)


def _model_in(body: bytes) -> bytes:
    match = _MODEL.match(body)
    return match[1] if match else orjson.dumps(orjson.loads(body).get("model"))


def _checked(identifier: Any) -> str:
    """Return an id of the provider's that may be put into an address. Raises `ProviderFailure`."""
    if not isinstance(identifier, str) or not _ID.fullmatch(identifier):
        raise ProviderFailure(FailureKind.MALFORMED, "an id that is none", status_code=200)
    return identifier


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _openai_counts(counts: dict[str, Any]) -> BatchCounts:
    total, succeeded, errored = (_count(counts.get(name)) for name in ("total", "completed", "failed"))
    return BatchCounts(total, max(0, total - succeeded - errored), succeeded, errored)


def _anthropic_counts(counts: dict[str, Any]) -> BatchCounts:
    parts = [_count(counts.get(name)) for name in ("processing", "succeeded", "errored", "expired", "canceled")]
    return BatchCounts(sum(parts), *parts)


def _openai_errors(errors: Any) -> tuple[BatchError, ...]:
    entries = _dict(errors).get("data")
    return tuple(
        BatchError(
            str(error.get("code"))[:100],
            str(error.get("message") or "")[: exchange.MAX_MESSAGE_CHARS],
            line if isinstance(line := error.get("line"), int) else None,
        )
        for error in (entries if isinstance(entries, list) else [])[:20]
        if isinstance(error, dict)
    )


def _anthropic_state(batch: dict[str, Any], counts: BatchCounts) -> BatchState:
    match batch.get("processing_status"):
        case "in_progress":
            return BatchState.RUNNING
        case "canceling":
            return BatchState.CANCELLING
        case "ended":
            if batch.get("cancel_initiated_at") and counts.cancelled:
                return BatchState.CANCELLED
            return BatchState.EXPIRED if counts.expired else BatchState.ENDED
    raise MalformedBody("a batch in an unknown state")


def _unix_s(value: Any) -> float:
    """Return an instant that is told as Unix seconds or by RFC 3339. Raises `MalformedBody`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except ValueError:
        raise MalformedBody("no time of creation") from None


def _unix_s_or_none(value: Any) -> float | None:
    return None if value is None else _unix_s(value)
