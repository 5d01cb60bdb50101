"""A provider's batch API in virtual time, its verbs as a node's HTTP client sees them, and what can befall them.

The product's own clients (`dicast.app.providers.batch_apis`) run over it: the simulation begins below them, at the
requests that they make. A request takes its time on the way there and back. It may be lost on either way, arrive after
its sender has given up, or be answered by a gateway; a node that dies has sent what it has sent.

An account belongs to one pool and speaks OpenAI's verbs, with metadata, or Anthropic's, without. It serves others as
well: their batches are in its lists. What it bills stands in the world's books, as calls of the road `batch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import aiohttp
import httpx2
import orjson
import yarl

from dicast.app.domain.opinion import Usage
from dicast.app.providers.base import ChatReply, ChatRequest
from dicast.app.providers.batch_apis import METADATA_KEY, AnthropicBatches, OpenAIBatches
from dicast.app.providers.batches import BatchApi
from dicast.app.providers.exchange import Exchange, Redactor
from dicast.app.providers.http import HttpResponse
from lab.chaos.virtual.provider import answer_texts, ending_of, reply_of, usage_of
from lab.chaos.virtual.wire import VirtualHost

if TYPE_CHECKING:
    from lab.chaos.virtual.world import VirtualCall, World

Dialect = Literal["openai", "anthropic"]
PAGE_SIZE = 2
TRAVEL_S, DRIPS_S = 0.2, 0.3
GIVEN_UP_S = 20.0
"""A client that hears nothing gives up after this long."""
LATE_S = 15.0
"""A request that was given up may be obeyed so much later."""
WINDOW_S = 40.0
OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
ENDS = {"completed", "failed", "expired", "cancelled"}


@dataclass
class AccountBatch:
    """A batch at the provider, in OpenAI's words; times are the world's. `made` are the requests that were called, and
    their results; `foreign` tells that it is somebody else's."""

    id: str
    identity: str
    requests: dict[str, Any]
    created_at: float
    listed_at: float
    foreign: bool = False
    status: str = "validating"
    errors: list[dict[str, Any]] = field(default_factory=list)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[VirtualCall] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ended_at: float | None = None
    cancelled_at: float | None = None
    fetched: int = 0

    @property
    def is_over(self) -> bool:
        return self.status in ENDS

    @property
    def name(self) -> str:
        """The name of the batch in the ledger, which all its identities share."""
        return self.identity.rpartition("-")[0]

    @property
    def tokens(self) -> int:
        return sum(len(orjson.dumps(body)) for body in self.requests.values()) // 4


class Reply(NamedTuple):
    """What the provider answers: a status, and a JSON body or lines."""

    status: int
    body: Any
    lines: list[bytes] | None = None


def refusal(status: int, message: str) -> Reply:
    return Reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})


class BatchAccount:
    """One pool's account. `queue_tokens` are the most that may be queued, None if that is not limited."""

    def __init__(self, world: World, pool: str, dialect: Dialect, queue_tokens: int | None = None) -> None:
        self._world, self.pool, self.dialect, self._queue_tokens = world, pool, dialect, queue_tokens
        self.chance = random.Random(f"account {world.seed} {pool}")
        self.batches: dict[str, AccountBatch] = {}
        self._files: dict[str, list[tuple[str, Any]]] = {}
        self.verbs: Counter[str] = Counter()

    # ------------------------------------------------------------------ verbs
    def obey(self, method: str, path: str, query: dict[str, str], body: Any) -> Reply:
        """Obey one request."""
        parts = path.removeprefix("/v1/").removeprefix("messages/").strip("/").split("/")
        match method, parts:
            case "POST", ["files"]:
                self.verbs["upload"] += 1
                file_id = f"file-{len(self._files)}"
                self._files[file_id] = [_request_in(line, "body") for line in body.splitlines()]
                return Reply(200, {"id": file_id})
            case "POST", ["batches"]:
                self.verbs["create"] += 1
                return self._create(orjson.loads(body))
            case "GET", ["batches"]:
                self.verbs["list"] += 1
                return self._list(query)
            case "GET", ["files", source, "content"] | ["batches", source, "results"]:
                self.verbs["results"] += 1
                return self._results(source)
            case "GET", ["batches", batch_id] if batch_id in self.batches:
                self.verbs["get"] += 1
                return Reply(200, self._told(self.batches[batch_id]))
            case "POST", ["batches", batch_id, "cancel"] if batch_id in self.batches:
                self.verbs["cancel"] += 1
                return self._cancel(self.batches[batch_id])
        return refusal(404, f"no {path}")

    def _create(self, wish: dict[str, Any]) -> Reply:
        if self.dialect == "openai":
            identity, requests = wish["metadata"][METADATA_KEY], self._files[wish["input_file_id"]]
        else:
            requests = [_request_in(orjson.dumps(entry), "params") for entry in wish["requests"]]
            identity = requests[0][0].partition("_")[0]
        return Reply(200, self._told(self.begin(identity, dict(requests))))

    def begin(self, identity: str, requests: dict[str, Any], *, foreign: bool = False) -> AccountBatch:
        """A batch begins; it goes its way by itself."""
        world, chance = self._world, self.chance
        late_s = chance.uniform(0, LATE_S) if chance.random() < world.odds.batches.unlisted else 0.0
        batch = AccountBatch(
            f"batch_{self.pool}_{len(self.batches)}", identity, requests, world.now, world.now + late_s, foreign
        )
        self.batches[batch.id] = batch
        world.tell(f"account {self.pool}: {batch.id} is created as {identity}, {len(requests)} requests")
        world.later(chance.uniform(0, 3), lambda: self._validate(batch))
        return batch

    # ------------------------------------------------------------------ a batch's life
    def _validate(self, batch: AccountBatch) -> None:
        if batch.status != "validating":
            return
        queued = sum(other.tokens for other in self.batches.values() if other.status in ("in_progress", "cancelling"))
        full = self._queue_tokens is not None and queued + batch.tokens > self._queue_tokens
        if self.dialect == "openai" and full:
            batch.errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached", "line": None}]
            self._end(batch, "failed")
            return
        batch.status = "in_progress"
        world, chance, odds = self._world, self.chance, self._world.odds.batches
        slow = chance.random() < odds.slow
        lasts_s = chance.uniform(0.5, 2 * WINDOW_S) if slow else chance.uniform(0.5, 6.0)
        last = 0.0
        for custom_id in chance.sample(sorted(batch.requests), len(batch.requests)):
            at = chance.uniform(0, lasts_s)
            if chance.random() < odds.expire:
                at = 2 * WINDOW_S
            if at < WINDOW_S:
                world.later(at, lambda custom_id=custom_id: self._make(batch, custom_id))  # type: ignore[misc]
            last = max(last, at)
        last = min(last, WINDOW_S)
        world.later(last, lambda: self._finalise(batch))

    def _make(self, batch: AccountBatch, custom_id: str) -> None:
        """One request is called, and billed."""
        if batch.status not in ("in_progress", "cancelling") or batch.foreign:
            return
        body = batch.requests[custom_id]
        call, chance = self._world.call_in_batch(self.pool, f"{body['system']} {body['user']}", batch)
        ending = ending_of(call, chance, self._world.odds.answers)
        call.ending = "refused" if ending == "hung" else ending
        if call.ending != "refused":
            call.usage = usage_of(chance)
        batch.calls.append(call)
        texts = answer_texts(call, call.ending, ChatRequest("m", "", body["user"], 0, schema=body["schema"]))
        usage = {"in": call.usage.input_tokens, "out": call.usage.output_tokens}
        batch.made[custom_id] = {"ending": call.ending, "message": {"texts": texts, **usage}}
        batch.counts["errored" if call.ending == "refused" else "succeeded"] += 1

    def _finalise(self, batch: AccountBatch) -> None:
        if batch.status != "in_progress":
            return
        batch.status = "finalizing"
        chance = self.chance
        wait_s = chance.uniform(5, 30) if chance.random() < self._world.odds.batches.slow else chance.uniform(0, 1)
        missing = not batch.foreign and len(batch.made) < len(batch.requests)
        self._world.later(wait_s, lambda: self._end(batch, "expired" if missing else "completed"))

    def _cancel(self, batch: AccountBatch) -> Reply:
        if batch.foreign:
            self._world.fail(f"orphans: {batch.id} is somebody else's, and is cancelled")
        if batch.status not in ("validating", "in_progress", "cancelling"):
            return refusal(409 if self.dialect == "openai" else 400, "it has ended")
        if batch.status != "cancelling":
            batch.status, batch.cancelled_at = "cancelling", self._world.now
            self._world.tell(f"account {self.pool}: {batch.id} is cancelled")
            self._world.later(self.chance.uniform(0, 8), lambda: self._end(batch, "cancelled"))
        return Reply(200, self._told(batch))

    def _end(self, batch: AccountBatch, status: str) -> None:
        if batch.is_over:
            return
        batch.status, batch.ended_at = status, self._world.now
        unmade = len(batch.requests) - len(batch.made)
        if status in ("expired", "cancelled"):
            batch.counts[status] = unmade
        if batch.foreign:
            batch.counts = Counter(succeeded=len(batch.requests))
        self._world.tell(f"account {self.pool}: {batch.id} is {status}, {len(batch.made)} were made")

    # ------------------------------------------------------------------ what is told
    def _list(self, query: dict[str, str]) -> Reply:
        now = self._world.now
        shown = sorted(
            (batch for batch in self.batches.values() if batch.listed_at <= now), key=lambda b: -b.created_at
        )
        after = query.get("after") or query.get("after_id") or ""
        ids = [batch.id for batch in shown]
        first = ids.index(after) + 1 if after in ids else 0
        page = shown[first : first + PAGE_SIZE]
        return Reply(200, {"data": [self._told(b) for b in page], "has_more": len(shown) > first + PAGE_SIZE})

    def _told(self, batch: AccountBatch) -> dict[str, Any]:
        made, created = batch.counts, self._unix(batch.created_at)
        ended = None if batch.ended_at is None else self._unix(batch.ended_at)
        if self.dialect == "openai":
            has_results = batch.is_over and batch.status != "failed"
            return {
                "id": batch.id, "status": batch.status, "created_at": int(created),
                "metadata": {} if batch.foreign else {METADATA_KEY: batch.identity},
                "request_counts": {
                    "total": len(batch.requests), "completed": made["succeeded"], "failed": made["errored"]
                },
                "errors": {"data": batch.errors} if batch.errors else None,
                "output_file_id": f"{batch.id}-out" if has_results else None,
                "error_file_id": f"{batch.id}-err" if has_results and len(batch.requests) > made["succeeded"] else None,
                **({f"{batch.status}_at": int(ended)} if ended is not None else {}),
            }  # fmt: skip
        over = batch.is_over
        counts = {name: made[name] if over else 0 for name in ("succeeded", "errored", "expired")}
        states = {"cancelling": "canceling"} | dict.fromkeys(ENDS, "ended")
        return {
            "id": batch.id, "processing_status": states.get(batch.status, "in_progress"), "created_at": _date(created),
            "request_counts": {
                "processing": 0 if over else len(batch.requests), **counts, "canceled": made["cancelled"] if over else 0
            },
            "cancel_initiated_at": _date(self._unix(batch.cancelled_at)) if batch.cancelled_at is not None else None,
            "ended_at": _date(ended) if ended is not None else None,
            "results_url": f"http://elsewhere/{batch.id}" if over else None,
        }  # fmt: skip

    def _unix(self, at: float) -> float:
        return self._world.starts_s + at

    def _results(self, source: str) -> Reply:
        """Return results in any order, another one each time. The first time some may not be there yet."""
        batch_id, _, kind = source.partition("-")
        batch = self.batches.get(batch_id)
        if batch is None or not batch.is_over:
            return refusal(404, "no such results")
        errors = {"refused"} if kind == "err" else {"good", "spoilt", "part"} if kind == "out" else None
        lines = [
            self._line(batch, custom_id)
            for custom_id in batch.requests
            if errors is None or (batch.made[custom_id]["ending"] if custom_id in batch.made else "refused") in errors
        ]
        self.chance.shuffle(lines)
        batch.fetched += 1
        if batch.fetched <= 2 and self.chance.random() < self._world.odds.batches.partial:
            lines = lines[: len(lines) // 2]
        return Reply(200, None, lines)

    def _line(self, batch: AccountBatch, custom_id: str) -> bytes:
        made = batch.made.get(custom_id)
        if batch.foreign:
            made = {"ending": "good", "message": {"text": "{}", "in": 1, "out": 1}}
        refused = made is not None and made["ending"] == "refused"
        if self.dialect == "openai":
            error, response = None, None
            if made is None:
                error = {"code": f"batch_{batch.status}", "message": "not made"}
            elif refused:
                response = {"status_code": 429, "body": {"error": {"code": "rate_limit_exceeded", "message": "429"}}}
            else:
                response = {"status_code": 200, "body": made["message"]}
            return orjson.dumps({"custom_id": custom_id, "response": response, "error": error}) + b"\n"
        if made is None:
            result: dict[str, Any] = {"type": "canceled" if batch.status == "cancelled" else "expired"}
        elif refused:
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": "429"}}
            result = {"type": "errored", "error": error}
        else:
            result = {"type": "succeeded", "message": made["message"]}
        return orjson.dumps({"custom_id": custom_id, "result": result}) + b"\n"


def _request_in(line: bytes, name: str) -> tuple[str, Any]:
    entry = orjson.loads(line)
    return entry["custom_id"], entry[name]


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


# ---------------------------------------------------------------------- a node's side
class VirtualConnections:
    """Stands for `dicast.app.providers.http.Connections` at one node."""

    def __init__(self, account: BatchAccount, world: World, host: VirtualHost) -> None:
        self._account, self._world, self._host = account, world, host

    async def request(self, method: str, url: yarl.URL, _: Any, body: Any = None) -> HttpResponse:
        """Make one request. Raises aiohttp's errors."""
        reply = await self._exchanged(method, url, _read(body))
        return _response(reply.status, orjson.dumps(reply.body))

    @contextlib.asynccontextmanager
    async def stream(self, url: yarl.URL, _: Any) -> AsyncIterator[tuple[HttpResponse, AsyncIterator[bytes]]]:
        """Get results, line by line, which may break off."""
        reply = await self._exchanged("GET", url, b"")
        if reply.lines is None:
            yield _response(reply.status, orjson.dumps(reply.body)), _none()
            return
        yield _response(200, b""), self._dripping(reply.lines)

    async def close(self) -> None: ...

    async def _dripping(self, lines: list[bytes]) -> AsyncIterator[bytes]:
        chance = self._account.chance
        breaks = chance.randrange(len(lines)) if lines and chance.random() < self._world.odds.batches.cut else None
        for number, line in enumerate(lines):
            await asyncio.sleep(chance.uniform(0, DRIPS_S))
            if number == breaks:
                yield line[: len(line) // 2]
                raise aiohttp.ClientPayloadError("simulated")
            yield line

    async def _exchanged(self, method: str, url: yarl.URL, body: bytes) -> Reply:
        world, chance = self._world, self._account.chance
        came: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        fate = world.odds.batches.draw(chance)
        there_s, back_s = chance.uniform(0, TRAVEL_S), chance.uniform(0, TRAVEL_S)
        verb = f"{method} {url.path} of {self._host.name}"
        if fate:
            world.tell(f"{verb}: {fate}")

        def answer(reply: Reply | None) -> None:
            self._host.soon(lambda: None if came.done() else came.set_result(reply))

        def arrive() -> None:
            reply = self._account.obey(method, url.path, dict(url.query), body)
            if fate == "lost":
                world.later(chance.choice([back_s, GIVEN_UP_S]), lambda: answer(None))
            elif fate == "gateway":
                world.later(back_s, lambda: answer(refusal(502, "bad gateway")))
            elif fate != "late":
                world.later(back_s, lambda: answer(reply))

        if fate in ("dropped", "late"):
            world.later(there_s + back_s, lambda: answer(None))
        elif fate == "refused":
            world.later(there_s + back_s, lambda: answer(refusal(429, "too many requests")))
        if fate not in ("dropped", "refused"):
            world.later(there_s + (chance.uniform(0, LATE_S) if fate == "late" else 0.0), arrive)
        reply = await came
        if reply is None:
            raise aiohttp.ServerDisconnectedError("simulated")
        return reply


class VirtualOnline:
    """The part of a pool's provider that its batches use."""

    exchange = Exchange(sdk_error=(), redactor=Redactor([]))

    def __init__(self, dialect: Dialect, *, structured: bool) -> None:
        self._dialect, self._structured = dialect, structured

    def builder(self) -> Any:
        async def build(_: str) -> Any:
            path = OPENAI if self._dialect == "openai" else ANTHROPIC
            return SimpleNamespace(url=f"http://virtual{path}", headers={})

        return build

    def body(self, request: ChatRequest) -> dict[str, Any]:
        return {"model": request.model, "system": request.system, "user": request.user, "schema": request.schema}

    def read(self, response: HttpResponse, request: ChatRequest) -> ChatReply:
        if not response.is_success:
            raise self.exchange.status_failure(response, request)
        message = orjson.loads(response.content)
        usage = Usage(input_tokens=message["in"], output_tokens=message["out"])
        return reply_of(message["texts"], usage, structured=self._structured)

    async def close(self) -> None: ...


def batch_api(account: BatchAccount, world: World, host: VirtualHost, *, structured: bool) -> BatchApi:
    """The product's own client of an account, at one node."""
    build = OpenAIBatches if account.dialect == "openai" else AnthropicBatches
    online = VirtualOnline(account.dialect, structured=structured)
    return build(online, VirtualConnections(account, world, host), most_line=1 << 20)  # type: ignore[arg-type]


def _read(body: Any) -> bytes:
    if isinstance(body, aiohttp.FormData):
        return next(value.read() for options, _, value in body._fields if options["name"] == "file")  # type: ignore[no-any-return]
    if body is None or isinstance(body, bytes):
        return body or b""
    return bytes(body.read())


def _response(status: int, content: bytes) -> HttpResponse:
    return HttpResponse(status, httpx2.Headers(), content, "application/json")


async def _none() -> AsyncIterator[bytes]:
    for piece in ():
        yield piece
