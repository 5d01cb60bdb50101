"""Both batch APIs of the simulated provider, and its invoice.

    POST .../files, GET .../files/ID/content, POST|GET .../batches, GET .../batches/ID, POST .../batches/ID/cancel
    POST|GET .../messages/batches, GET .../messages/batches/ID[/results], POST .../messages/batches/ID/cancel
    GET /invoice    what was billed, in sum         GET /invoice/lines    each billed request, as JSON lines

A batch goes its way by itself, `batch_speed` times as fast as the options say. Files and results lie on the disk, so
that 50,000 requests fit into little memory. Batches have limits of their own; they neither meet those of calls nor
count for them. The answers are those of calls: a request gets the same one on every road.

Sources: the guides and references of both APIs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import orjson
from aiohttp import BodyPartReader, web

from dicast.app.providers.simulated import JSON, ParsedCall, nonce_of
from lab.provider.account import Behaviour
from lab.provider.wire import AccountFormat

_LINES = "application/x-jsonlines"
_OPENAI_PATH = re.compile(r".*?/batches(?:/([\w-]+))?(/cancel)?")
_FILES_PATH = re.compile(r".*?/files(?:/([\w-]+))?(/content)?")
_ANTHROPIC_PATH = re.compile(r".*?/messages/batches(?:/([\w-]+))?(/cancel|/results)?")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OVER = {"completed", "failed", "expired", "cancelled"}
_AT_ONCE = 50
_PIECE = 65536


class Made(NamedTuple):
    """A request that was made: its status, the response's body, and, if it is billed, the call and its output."""

    status: int
    body: bytes
    call: ParsedCall | None = None
    output_tokens: int = 0


Make = Callable[[AccountFormat, Any, Random], Made]
"""Answers a request's body, with its own source of chance."""


class Invoice:
    """What the account owes, in picos (10^-12 of a currency's unit). Nothing is billed while no price is set."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._pico: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._digests: set[str] = set()
        self._repeated = 0

    def bill(self, behaviour: Behaviour, road: str, call: ParsedCall, output_tokens: int, **facts: Any) -> None:
        """Bill one request that was answered. `road` is online, priority, which costs twice as much, or flex or batch,
        which cost half."""
        if behaviour.price is None:
            return
        of_input, of_output = behaviour.rates
        pico = call.input_tokens * of_input + output_tokens * of_output
        if road == "priority":
            pico *= 2
        elif road != "online":
            pico = -(-pico // 2)
        question = f"{call.model}\0{call.max_tokens}\0{call.prompt}".encode(errors="replace")
        digest = hashlib.blake2b(question, digest_size=16).hexdigest()
        self._repeated += digest in self._digests
        self._digests.add(digest)
        self._pico[road] += pico
        self._requests[road] += 1
        self.lines.append(
            {
                "road": road, "model": call.model, "nonce": nonce_of(call.prompt), "digest": digest, "pico": pico,
                "input_tokens": call.input_tokens, "output_tokens": output_tokens, **facts,
            }
        )  # fmt: skip

    def sums(self) -> dict[str, Any]:
        """Return the sums. `repeated` counts billed requests whose question had been billed before, on any road."""
        roads = {road: {"requests": self._requests[road], "pico": self._pico[road]} for road in self._requests}
        return {"pico": sum(self._pico.values()), "repeated": self._repeated, "roads": roads}


@dataclass(slots=True)
class _Batch:
    """A batch. `status` is in OpenAI's words in both dialects; times are Unix seconds."""

    id: str
    dialect: AccountFormat
    behaviour: Behaviour
    input: Path
    created_at: float
    ids: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    input_file_id: str = ""
    endpoint: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    status: str = "validating"
    model: str = ""
    tokens: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counter[str] = field(default_factory=Counter)
    output_file: str | None = None
    error_file: str | None = None
    results: Path | None = None

    def enter(self, status: str) -> None:
        self.status = status
        self.times[status] = time.time()

    @property
    def is_over(self) -> bool:
        return self.status in _OVER

    @property
    def window_s(self) -> float:
        return self.behaviour.batch_window / self.behaviour.batch_speed


class _Refused(Exception):
    """A request that is refused, with its status and the reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class BatchServer:
    """The files and batches of one simulated account. `behaviour` is the one in force, `make` answers one request."""

    def __init__(
        self,
        *,
        formats: Mapping[str, AccountFormat],
        behaviour: Callable[[], Behaviour],
        make: Make,
        invoice: Invoice,
        random: Random,
    ) -> None:
        self._openai, self._anthropic = formats["openai"], formats["anthropic"]
        self._behaviour, self._make, self._invoice, self._random = behaviour, make, invoice, random
        self._folder = tempfile.TemporaryDirectory(prefix="dicast-batches-")
        self._files: dict[str, dict[str, Any]] = {}
        self._batches: dict[str, _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.verbs: Counter[str] = Counter()

    async def close(self) -> None:
        """End all batches and remove the files."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._folder.cleanup()

    def counts(self) -> dict[str, Any]:
        """Return how many batches are in each state, and how often each verb was asked for."""
        return {"states": dict(Counter(batch.status for batch in self._batches.values())), "verbs": dict(self.verbs)}

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse | None:
        """Answer a request; None if it is none of these APIs."""
        if match := _ANTHROPIC_PATH.fullmatch(path):
            return await self._guarded(self._anthropic, self._on_anthropic(request, match[1], match[2]))
        if match := _OPENAI_PATH.fullmatch(path):
            return await self._guarded(self._openai, self._on_openai(request, match[1], match[2]))
        if match := _FILES_PATH.fullmatch(path):
            return await self._guarded(self._openai, self._on_files(request, match[1], match[2]))
        return None

    async def _guarded(self, dialect: AccountFormat, answering: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await answering
        except _Refused as refused:
            body = dialect.error(refused.status, refused.reason)
            response = web.Response(status=refused.status, body=body, content_type=JSON)
        return response

    # ------------------------------------------------------------------ faults
    def _strikes(self, fault: str) -> bool:
        share = self._behaviour().faults.get(fault, 0.0)
        return share > 0 and self._random.random() < share

    async def _answer(self, request: web.BaseRequest, verb: str, body: Any) -> web.StreamResponse:
        """Answer with a JSON body, unless the answer of this verb gets lost, or comes as a failure of a gateway."""
        self.verbs[verb] += 1
        if self._strikes(f"{verb}_lost"):
            return _hung_up(request)
        if self._strikes("batches_5xx"):
            return web.Response(status=502, text="<html>502 Bad Gateway</html>", content_type="text/html")
        if self._strikes("batches_garbage"):
            return web.Response(body=b'{"id": "batch', content_type=JSON)
        return web.Response(body=orjson.dumps(body), content_type=JSON)

    # ------------------------------------------------------------------ OpenAI
    async def _on_files(self, request: web.BaseRequest, file_id: str | None, content: str | None) -> web.StreamResponse:
        if request.method == "POST" and file_id is None:
            return await self._answer(request, "upload", await self._upload(request))
        file = self._files.get(file_id or "")
        if file is None:
            raise _Refused(404, f"No such File object: {file_id}")
        if request.method == "GET" and content:
            self.verbs["results"] += 1
            return await self._send_file(request, file["path"])
        if request.method == "DELETE":
            del self._files[file["id"]]
            return await self._answer(request, "delete", {"id": file_id, "object": "file", "deleted": True})
        return await self._answer(request, "file", _shown(file))

    async def _upload(self, request: web.BaseRequest) -> dict[str, Any]:
        purpose, path, filename = "", None, ""
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                raise _Refused(400, "nested parts")
            if part.name == "purpose":
                purpose = (await part.read(decode=True)).decode()
            elif part.name == "file":
                path, filename = self._new_path(), part.filename or ""
                with path.open("wb") as out:
                    while piece := await part.read_chunk(_PIECE):
                        out.write(piece)
        if path is None or purpose != "batch":
            raise _Refused(400, "a file with the purpose 'batch' is wanted")
        if _size(path) > (self._behaviour().batch_bytes or 200_000_000):
            raise _Refused(413, "The file is too large.")
        if self._strikes("upload_dropped"):
            raise _Refused(500, "failure")
        return _shown(self._keep(path, filename, purpose))

    def _keep(self, path: Path, filename: str, purpose: str) -> dict[str, Any]:
        file_id = f"file-{secrets.token_hex(12)}"
        self._files[file_id] = {
            "id": file_id, "object": "file", "bytes": path.stat().st_size, "created_at": int(time.time()),
            "filename": filename, "purpose": purpose, "status": "processed", "path": path,
        }  # fmt: skip
        return self._files[file_id]

    async def _on_openai(self, request: web.BaseRequest, batch_id: str | None, verb: str | None) -> web.StreamResponse:
        match request.method, batch_id, verb:
            case "POST", None, None:
                if self._strikes("create_dropped"):
                    return _hung_up(request)
                batch = self._create_openai(await _json_of(request))
                return await self._answer(request, "create", self._openai_batch(batch))
            case "GET", None, None:
                return await self._answer(request, "list", self._page(request, "after", 100, self._openai))
            case "GET", str(), None:
                return await self._answer(request, "get", self._openai_batch(self._found(batch_id, self._openai)))
            case "POST", str(), "/cancel":
                batch = self._found(batch_id, self._openai)
                if batch.status not in ("validating", "in_progress", "cancelling"):
                    raise _Refused(409, f"Cannot cancel a batch with status '{batch.status}'.")
                self._cancel(batch)
                return await self._answer(request, "cancel", self._openai_batch(batch))
        raise _Refused(404, "there is no such page")

    def _create_openai(self, wish: dict[str, Any]) -> _Batch:
        file = self._files.get(str(wish.get("input_file_id")))
        metadata = wish.get("metadata") or {}
        if file is None:
            raise _Refused(400, "Invalid input_file_id")
        if wish.get("completion_window") != "24h" or not isinstance(wish.get("endpoint"), str):
            raise _Refused(400, "Invalid completion_window or endpoint")
        sizes_fit = all(
            isinstance(value, str) and len(key) <= 64 and len(value) <= 512 for key, value in metadata.items()
        )
        if len(metadata) > 16 or not sizes_fit:
            raise _Refused(400, "Invalid metadata")
        batch = self._begin(f"batch_{secrets.token_hex(12)}", self._openai, file["path"])
        batch.input_file_id, batch.metadata, batch.endpoint = file["id"], metadata, wish["endpoint"]
        self._start(batch)
        return batch

    def _openai_batch(self, batch: _Batch) -> dict[str, Any]:
        made = batch.counts if batch.is_over else self._so_far(batch)
        at = {name: int(batch.times[name]) if name in batch.times else None for name in
              ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")}  # fmt: skip
        errors = {"object": "list", "data": batch.errors} if batch.errors else None
        return {
            "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "errors": errors,
            "input_file_id": batch.input_file_id, "completion_window": "24h", "status": batch.status,
            "output_file_id": batch.output_file, "error_file_id": batch.error_file,
            "created_at": int(batch.created_at), "expires_at": int(batch.created_at + batch.window_s),
            **{f"{name}_at": value for name, value in at.items()},
            "request_counts": {"total": len(batch.ids), "completed": made["succeeded"], "failed": made["errored"]},
            "metadata": batch.metadata or None,
        }  # fmt: skip

    def _validate(self, batch: _Batch) -> None:
        """Read the file's lines; what is wrong with them goes to the batch's errors."""
        seen: set[str] = set()
        for number, (offset, line) in enumerate(_lines_with_offsets(batch.input), start=1):
            problem = ""
            try:
                entry = orjson.loads(line)
                custom_id, body = entry["custom_id"], entry["body"]
                call = batch.dialect.read(body)
            except orjson.JSONDecodeError:
                problem = "invalid_json_line"
            except Exception:  # noqa: BLE001  a line of any shape
                problem = "invalid_request"
            else:
                batch.model = batch.model or call.model
                batch.tokens += call.input_tokens
                if custom_id in seen:
                    problem = "duplicate_custom_id"
                elif call.model != batch.model:
                    problem = "mismatched_model"
                elif entry.get("url") != batch.endpoint or entry.get("method") != "POST":
                    problem = "invalid_url"
                seen.add(custom_id)
                batch.ids.append(custom_id)
                batch.offsets.append(offset)
            if problem:
                self._blame(batch, problem, number)
        if not seen:
            self._blame(batch, "empty_file", None)
        if len(batch.ids) > (batch.behaviour.batch_requests or 50_000):
            self._blame(batch, "too_many_requests", None)
        queued = sum(
            other.tokens
            for other in self._batches.values()
            if other.model == batch.model and not other.is_over and other is not batch and other.status != "validating"
        )
        most = batch.behaviour.batch_queue_tokens
        if most is not None and queued + batch.tokens > most:
            self._blame(batch, "token_limit_exceeded", None)

    def _blame(self, batch: _Batch, code: str, line: int | None) -> None:
        if len(batch.errors) < 20:
            message = f"The batch cannot be processed: {code.replace('_', ' ')}."
            batch.errors.append({"code": code, "message": message, "param": None, "line": line})

    # ------------------------------------------------------------------ Anthropic
    async def _on_anthropic(
        self, request: web.BaseRequest, batch_id: str | None, verb: str | None
    ) -> web.StreamResponse:
        match request.method, batch_id, verb:
            case "POST", None, None:
                if self._strikes("create_dropped"):
                    return _hung_up(request)
                batch = await self._create_anthropic(request)
                return await self._answer(request, "create", self._anthropic_batch(request, batch))
            case "GET", None, None:
                return await self._answer(request, "list", self._page(request, "after_id", 1000, self._anthropic))
        batch = self._found(batch_id, self._anthropic)
        match request.method, verb:
            case "GET", None:
                return await self._answer(request, "get", self._anthropic_batch(request, batch))
            case "GET", "/results":
                if batch.results is None:
                    raise _Refused(404, "The results are not there yet.")
                self.verbs["results"] += 1
                return await self._send_file(request, batch.results)
            case "POST", "/cancel":
                if batch.is_over:
                    raise _Refused(400, "The batch has ended.")
                self._cancel(batch)
                return await self._answer(request, "cancel", self._anthropic_batch(request, batch))
        raise _Refused(404, "there is no such page")

    async def _create_anthropic(self, request: web.BaseRequest) -> _Batch:
        behaviour = self._behaviour()
        raw = await request.content.read()
        if len(raw) > (behaviour.batch_bytes or 256_000_000):
            raise _Refused(413, "Request exceeds the maximum size")
        try:
            entries = orjson.loads(raw)["requests"]
            ids = [entry["custom_id"] for entry in entries]
            params = [entry["params"] for entry in entries]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise _Refused(400, "requests: a list of custom_id and params is wanted") from None
        if not 1 <= len(ids) <= (behaviour.batch_requests or 100_000):
            raise _Refused(400, "requests: a batch has 1 to 100000 requests")
        for number, custom_id in enumerate(ids):
            if not isinstance(custom_id, str) or not _ANTHROPIC_ID.fullmatch(custom_id):
                raise _Refused(400, f"requests.{number}.custom_id: String should match '^[a-zA-Z0-9_-]{{1,64}}$'")
        if len(set(ids)) < len(ids):
            raise _Refused(400, "requests: custom_id must be unique")
        waiting = sum(len(other.ids) for other in self._batches.values() if not other.is_over)
        if behaviour.batch_queue_requests is not None and waiting + len(ids) > behaviour.batch_queue_requests:
            raise _Refused(429, "The queue of batch requests is full.")
        batch = self._begin(f"msgbatch_{secrets.token_hex(12)}", self._anthropic, self._new_path())
        with batch.input.open("wb") as out:
            for custom_id, body in zip(ids, params, strict=True):
                batch.ids.append(custom_id)
                batch.offsets.append(out.tell())
                out.write(orjson.dumps({"custom_id": custom_id, "body": body}) + b"\n")
        self._start(batch)
        return batch

    def _anthropic_batch(self, request: web.BaseRequest, batch: _Batch) -> dict[str, Any]:
        made = batch.counts if batch.is_over else Counter[str]()
        counts = {name: made[name] for name in ("succeeded", "errored", "expired")}
        states = {"cancelling": "canceling"} | dict.fromkeys(_OVER, "ended")
        url = f"http://{request.host}/v1/messages/batches/{batch.id}/results" if batch.is_over else None
        ended = next((at for name, at in batch.times.items() if name in _OVER), None)
        return {
            "id": batch.id, "type": "message_batch", "processing_status": states.get(batch.status, "in_progress"),
            "request_counts": {
                "processing": 0 if batch.is_over else len(batch.ids), **counts, "canceled": made["cancelled"],
            },
            "ended_at": _rfc3339(ended), "created_at": _rfc3339(batch.created_at), "archived_at": None,
            "expires_at": _rfc3339(batch.created_at + batch.window_s),
            "cancel_initiated_at": _rfc3339(batch.times.get("cancelling")), "results_url": url,
        }  # fmt: skip

    # ------------------------------------------------------------------ both
    def _new_path(self) -> Path:
        return Path(self._folder.name) / secrets.token_hex(8)

    def _begin(self, batch_id: str, dialect: AccountFormat, source: Path) -> _Batch:
        return _Batch(batch_id, dialect, self._behaviour(), source, time.time())

    def _start(self, batch: _Batch) -> None:
        self._batches[batch.id] = batch
        task = asyncio.get_running_loop().create_task(self._process(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _found(self, batch_id: str | None, dialect: AccountFormat) -> _Batch:
        batch = self._batches.get(batch_id or "")
        if batch is None or batch.dialect is not dialect:
            raise _Refused(404, f"No batch found with id '{batch_id}'.")
        return batch

    def _page(self, request: web.BaseRequest, cursor: str, most: int, dialect: AccountFormat) -> dict[str, Any]:
        """Return a page of the list, newest first. A batch turns up in it `batch_list_lag` after it was created."""
        limit_text = request.query.get("limit", "20")
        limit = int(limit_text) if limit_text.isdecimal() else 0
        if not 1 <= limit <= most:
            raise _Refused(400, f"limit must be 1 to {most}")
        until = time.time() - self._behaviour().batch_list_lag
        batches = [batch for batch in reversed(self._batches.values()) if batch.dialect is dialect]
        batches = [batch for batch in batches if batch.created_at <= until]
        after = request.query.get(cursor)
        if after is not None:
            ids = [batch.id for batch in batches]
            if after not in ids:
                raise _Refused(400, f"no batch {after}")
            batches = batches[ids.index(after) + 1 :]
        shown = batches[:limit]
        data = [
            self._openai_batch(batch) if dialect is self._openai else self._anthropic_batch(request, batch)
            for batch in shown
        ]
        ends = {"first_id": shown[0].id if shown else None, "last_id": shown[-1].id if shown else None}
        return {"data": data, **ends, "has_more": len(batches) > limit}

    def _cancel(self, batch: _Batch) -> None:
        if not batch.cancelled.is_set():
            batch.counts = self._so_far(batch)
            batch.enter("cancelling")
            batch.cancelled.set()

    def _so_far(self, batch: _Batch) -> Counter[str]:
        """Return how many requests were made until now, in proportion to the time."""
        if "cancelling" in batch.times:
            return batch.counts
        if "in_progress" not in batch.times:
            return Counter()
        took_s = batch.behaviour.batch_time / batch.behaviour.batch_speed
        share = min(1.0, (time.time() - batch.times["in_progress"]) / took_s) if took_s else 1.0
        return Counter(succeeded=int(share * len(batch.ids)))

    async def _process(self, batch: _Batch) -> None:
        """Lead a batch from its creation to its end."""
        behaviour, speed = batch.behaviour, batch.behaviour.batch_speed
        cancelled = batch.cancelled

        async def wait(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(cancelled.wait(), seconds / speed)

        if batch.dialect is self._openai:
            await wait(behaviour.batch_validating)
            self._validate(batch)
            if batch.errors:
                batch.enter("failed")
                return
        if not cancelled.is_set():
            batch.enter("in_progress")
            await wait(min(behaviour.batch_time, behaviour.batch_window))
        made, end = len(batch.ids), "completed"
        if cancelled.is_set():
            made, end = batch.counts["succeeded"], "cancelled"
        elif behaviour.batch_time > behaviour.batch_window:
            made, end = int(made * behaviour.batch_window / behaviour.batch_time), "expired"
        if end != "cancelled":
            batch.enter("finalizing")
        await self._make_results(batch, made, "cancelled" if end == "cancelled" else "expired")
        if end == "completed" and batch.counts["expired"]:
            end = "expired"
        await asyncio.sleep((behaviour.batch_cancelling if end == "cancelled" else behaviour.batch_finalizing) / speed)
        batch.enter(end)

    async def _make_results(self, batch: _Batch, made: int, unmade: str) -> None:
        """Make the first `made` requests and write all results; the others are expired or cancelled."""
        order = list(range(len(batch.ids)))
        random = Random(f"{batch.id}")
        if batch.behaviour.batch_shuffle:
            random.shuffle(order)
        counts: Counter[str] = Counter()
        output, failed = self._new_path(), self._new_path()
        with batch.input.open("rb") as source, output.open("wb") as out, failed.open("wb") as err:
            for done, number in enumerate(order):
                source.seek(batch.offsets[number])
                fate = unmade if number >= made or random.random() < batch.behaviour.batch_expired else ""
                line, fate = self._result(batch, orjson.loads(source.readline()), fate, random)
                counts[fate] += 1
                if batch.dialect is self._openai and fate != "succeeded":
                    if fate != "cancelled":
                        err.write(line)
                else:
                    out.write(line)
                if done % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        batch.counts = counts
        if batch.dialect is self._anthropic:
            batch.results = output
        else:
            batch.output_file = self._kept(output, f"{batch.id}_output.jsonl")
            batch.error_file = self._kept(failed, f"{batch.id}_error.jsonl")

    def _kept(self, path: Path, filename: str) -> str | None:
        return str(self._keep(path, filename, "batch_output")["id"]) if path.stat().st_size else None

    def _result(self, batch: _Batch, entry: Any, fate: str, random: Random) -> tuple[bytes, str]:
        """Make one request, unless its fate is known already, and bill it. Return its line and what became of it."""
        custom_id = entry["custom_id"]
        if fate:
            return self._unmade_line(batch, custom_id, fate), fate
        made = self._make(batch.dialect, entry["body"], random)
        fate = "succeeded" if made.status == 200 else "errored"
        if made.call:
            self._invoice.bill(
                batch.behaviour, "batch", made.call, made.output_tokens, batch=batch.id, custom_id=custom_id
            )
        if batch.dialect is self._anthropic:
            key = "message" if made.status == 200 else "error"
            result = {"type": fate, key: orjson.Fragment(made.body)}
            return orjson.dumps({"custom_id": custom_id, "result": result}) + b"\n", fate
        response = {
            "status_code": made.status, "request_id": secrets.token_hex(8), "body": orjson.Fragment(made.body),
        }  # fmt: skip
        line = {"id": f"batch_req_{secrets.token_hex(8)}", "custom_id": custom_id, "response": response, "error": None}
        return orjson.dumps(line) + b"\n", fate

    def _unmade_line(self, batch: _Batch, custom_id: str, fate: str) -> bytes:
        if batch.dialect is self._anthropic:
            kind = "canceled" if fate == "cancelled" else "expired"
            return orjson.dumps({"custom_id": custom_id, "result": {"type": kind}}) + b"\n"
        error = {"code": f"batch_{fate}", "message": "This request could not be executed before the batch ended."}
        line = {"id": f"batch_req_{secrets.token_hex(8)}", "custom_id": custom_id, "response": None, "error": error}
        return orjson.dumps(line) + b"\n"

    # ------------------------------------------------------------------ downloads
    async def _send_file(self, request: web.BaseRequest, path: Path) -> web.StreamResponse:
        """Send results, spoilt if a fault strikes."""
        if self._strikes("results_lost"):
            return _hung_up(request)
        cut = self._strikes("results_cut")
        spoiler = next((f for f in ("garbage", "duplicate", "missing", "foreign") if self._strikes(f"results_{f}")), "")
        response = web.StreamResponse(headers={"content-type": _LINES})
        if not spoiler:
            response.content_length = _size(path)
        await response.prepare(request)
        left = _size(path) // 2 if cut else None
        async for piece in _pieces(path, spoiler):
            await response.write(piece if left is None else piece[:left])
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    return _hung_up(request, response)
        return response


async def _pieces(path: Path, spoiler: str) -> AsyncIterator[bytes]:
    if not spoiler:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece
        return
    for number, (_, line) in enumerate(_lines_with_offsets(path)):
        yield spoilt(line, number, spoiler)


def spoilt(line: bytes, number: int, spoiler: str) -> bytes:
    """Return a result's line as a fault leaves it; every third one is struck."""
    if number % 3 != 1:
        return line if spoiler != "foreign" else line.replace(b'"custom_id":"', b'"custom_id":"other-', 1)
    match spoiler:
        case "garbage":
            return line[: len(line) // 2] + b"\n"
        case "duplicate":
            return line + line
        case "missing":
            return b""
    return line.replace(b'"custom_id":"', b'"custom_id":"other-', 1)


def _hung_up(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
    """Close the connection without an answer, or in the middle of one."""
    if request.transport:
        request.transport.abort()
    return response or web.Response()


def _size(path: Path) -> int:
    return path.stat().st_size


def _lines_with_offsets(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        offset = 0
        for line in file:
            if line.strip():
                yield offset, line
            offset += len(line)


async def _json_of(request: web.BaseRequest) -> dict[str, Any]:
    try:
        body = orjson.loads(await request.content.read())
    except orjson.JSONDecodeError:
        raise _Refused(400, "We could not parse the JSON body of your request.") from None
    if not isinstance(body, dict):
        raise _Refused(400, "an object is wanted")
    return body


def _shown(file: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in file.items() if key != "path"}


def _rfc3339(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
