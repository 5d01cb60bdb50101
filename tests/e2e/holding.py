"""A proxy before the simulated provider that stops at one step of a batch, so that a worker can be killed there."""

from __future__ import annotations

import asyncio
import re
import threading

import aiohttp
from aiohttp import web

STEPS = {
    "before upload": ("POST", r".*/files", "before"),
    "after upload": ("POST", r".*/files", "after"),
    "before create": ("POST", r".*/batches", "before"),
    "after create": ("POST", r".*/batches", "after"),
    "in progress": ("GET", r".*/batches/[^/]+", "before"),
    "before download": ("GET", r".*/(content|results)", "before"),
    "during the download": ("GET", r".*/(content|results)", "half"),
    "after download": ("GET", r".*/(content|results)", "after"),
}
"""Each step: the request's method and path, and whether it is held before the provider gets it, after that has obeyed,
or when half of the answer has been passed on."""


class HoldingProxy:
    """Passes requests on to `target`, and holds the first one of `step` for ever; `held` is set then."""

    def __init__(self, target: str, step: str) -> None:
        self._target, self._step = target, STEPS[step]
        self.held, self._ready = threading.Event(), threading.Event()
        self.port = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        self.url = f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with aiohttp.ClientSession(auto_decompress=False) as self._session:
            server = web.Server(self._pass_on)
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        method, path, when = self._step
        holds = not self.held.is_set() and request.method == method and re.fullmatch(path, request.path) is not None
        if holds and when == "before":
            await self._hold()
        hop = {"host", "content-length", "transfer-encoding", "connection"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in hop}
        url = self._target + request.path_qs
        async with self._session.request(request.method, url, headers=headers, data=await request.read()) as reply:
            body = await reply.read()
            if holds and when == "after":
                await self._hold()
            kept = {name: value for name, value in reply.headers.items() if name.lower() not in hop}
            response = web.StreamResponse(status=reply.status, headers=kept)
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body[: len(body) // 2] if holds else body)
            if holds:
                await asyncio.sleep(1.0)  # the worker records what it has
                await self._hold()
            return response

    async def _hold(self) -> None:
        self.held.set()
        await asyncio.Event().wait()
