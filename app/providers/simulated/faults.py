"""Bodies that no provider should send and some have: dripping, cut, endless, exploding, foreign."""

from __future__ import annotations

import asyncio
import functools
import zlib

from aiohttp import web

_JSON = {"content-type": "application/json"}
_PIECE = b" " * 65536
_BLOCK = 1 << 20


async def respond(
    fault: str, request: web.BaseRequest, body: bytes, *, interval_s: float, size: int
) -> web.StreamResponse:
    """Answer with `body` spoilt by one of BODY_FAULTS; `size` is that of bodies which are far too large."""
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
