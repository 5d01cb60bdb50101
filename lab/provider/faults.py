"""How answers can be spoilt: bodies that no provider should send, and mistakes in the judge's words."""

from __future__ import annotations

import asyncio
import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any

from aiohttp import web

BODY_FAULTS = ("drip", "cut", "hang", "huge", "bomb", "html", "invalid_json")
"""The faults of the HTTP answer."""
ANSWER_FAULTS = (
    "out_of_range", "wrong_type", "missing", "duplicate", "unknown", "wrong_nonce", "chatter", "null", "swapped",
)  # fmt: skip
"""The faults of the judge's words in it."""
END_FAULTS = ("refusal", "filtered")
"""Answers that end without any words, as the provider tells it: the model's refusal, and a content filter's work."""
BATCH_FAULTS = (
    "upload_lost", "upload_dropped", "create_lost", "create_dropped", "get_lost", "list_lost", "cancel_lost",
    "results_lost", "results_cut", "results_garbage", "results_duplicate", "results_missing", "results_foreign",
    "batches_5xx", "batches_garbage",
)  # fmt: skip
"""The faults of the batch APIs. What is dropped was not obeyed; what is lost was, and only its answer is missing."""
FAULTS = BODY_FAULTS + ANSWER_FAULTS + END_FAULTS + BATCH_FAULTS
_VERDICTS = ("score", "label", "answers")
_JSON = {"content-type": "application/json"}
_PIECE = b" " * 65536
_BLOCK = 1 << 20


async def respond(
    fault: str, request: web.BaseRequest, body: bytes, *, interval_s: float, size: int
) -> web.StreamResponse:
    """Answer with `body` spoilt by one of BODY_FAULTS; `size` is that of bodies which are far too large.

    Some providers have sent such bodies: dripping, cut, endless, exploding, foreign.
    """
    match fault:
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "html":
            page = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
            return web.Response(text=page, content_type="text/html")
        case "invalid_json":
            return web.Response(body=body[: len(body) // 2] + b"NaN", content_type="application/json")
        case "bomb":
            return web.Response(body=bomb(size), headers={**_JSON, "content-encoding": "gzip"})
    response = web.StreamResponse(headers=_JSON)
    response.content_length = size if fault == "huge" else len(body)
    await response.prepare(request)
    if fault == "drip":
        for byte in body:
            await response.write(bytes([byte]))
            await asyncio.sleep(interval_s)
    elif fault == "huge":
        for _ in range(size // len(_PIECE)):
            await response.write(_PIECE)
        await response.write(_PIECE[: size % len(_PIECE)])
    else:  # cut
        await response.write(body[: len(body) // 2])
        if request.transport:
            request.transport.abort()
    return response


@functools.lru_cache(maxsize=2)
def bomb(size: int) -> bytes:
    """A gzip stream that unpacks to at least `size` spaces, a thousandth as long; made of one block, repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b" " * _BLOCK) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (size // _BLOCK + 1) + packer.flush()


def spoil(fault: str, reply: Any) -> str:
    """Return an answer's JSON with one mistake. `fault` is one of ANSWER_FAULTS; single and batched answers are
    accepted."""
    if fault == "chatter":
        return f"Here is my verdict:\n```json\n{json.dumps(reply)}\n```\nI hope it helps!"
    if fault == "null":
        return "null"
    entries = _entries(reply)
    entry = entries[0] if entries else {}
    match fault:
        case "out_of_range":
            key = _verdict_key(entry)
            entry[key] = {"label": "no such label", "answers": {"1000": True}}.get(key, 1_000_000)
        case "wrong_type":
            key = _verdict_key(entry)
            entry[key] = str(entry.get(key, 7)) if key == "score" else 7
        case "wrong_nonce":
            reply["nonce"] = "0" * 16
        case "missing":
            _remove_one(reply)
        case "duplicate":
            return _contradicted(reply)
        case "unknown":
            _rename(entry, reply)
    return json.dumps(reply)


def _entries(reply: Any) -> list[dict[str, Any]]:
    """Return every object with a verdict, at any depth."""
    if isinstance(reply, dict):
        entries = [reply] if reply.keys() & set(_VERDICTS) else []
        return entries + [entry for value in reply.values() for entry in _entries(value)]
    return [entry for value in reply for entry in _entries(value)] if isinstance(reply, list) else []


def _batch(reply: Any) -> list[Any] | None:
    """Return the list of a batch's entries; None if the answer is no batch."""
    values = reply.values() if isinstance(reply, dict) else ()
    lists = (value for value in values if isinstance(value, list) and _entries(value))
    return next(lists, None)


def _remove_one(reply: Any) -> None:
    batch = _batch(reply)
    if batch is not None:
        batch.pop()
    else:
        entry = _entries(reply)[0]
        entry.pop(_verdict_key(entry), None)


def _contradicted(reply: Any) -> str:
    """Return a batch with two opinions on one criterion, or a single opinion that gives its verdict twice."""
    batch = _batch(reply)
    if batch is None:
        return json.dumps(reply).removesuffix("}") + f', "{_verdict_key(reply)}": 1}}'
    key = _verdict_key(batch[0])
    other = batch[0]["score"] + 1 if key == "score" else None
    batch.append({**batch[0], key: other})
    return json.dumps(reply)


def _verdict_key(entry: Mapping[str, Any]) -> str:
    return next((key for key in _VERDICTS if key in entry), "score")


def _rename(entry: dict[str, Any], reply: Any) -> None:
    ids = [key for key in entry if key.endswith("id")]
    if ids:
        entry[ids[0]] = "no-such-criterion"
    else:
        reply["no_such_key"] = 1
