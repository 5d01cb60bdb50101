"""The process behind the pool `local`: llama.cpp's server with a small model, and in front of it the two APIs.

    python -m dicast.app.providers.local_server --weights model.gguf --folder DIR --idle-s 30

It listens on a free port of the loopback interface, writes its address into `DIR/address.json`, and ends by itself when
nobody has held `DIR/holders.lock` for a while (see `dicast.app.providers.local`).

llama.cpp answers chat completions, and constrains them to a JSON schema, at `/v1/chat/completions`; these pass through
as they are. At `/v1/messages` it accepts a forced tool and does not enforce it, so such a request is put to it as a
chat completion constrained to the tool's input schema, and its answer is handed back as the tool's call. Streaming is
not offered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, Any

import aiohttp
from aiohttp import web

from dicast.workers.system.files import try_lock

MODEL = "SmolLM2-135M-Instruct"

# Threads of llama.cpp wait for each other many times for each token. Waiting long in a busy loop, as OpenMP does by
# itself, costs a factor of ten and more when they must share their cores with a worker; never spinning costs half the
# speed when they need not.
SPINS = "500"
MOST_THREADS = 8
"""More of them only wait for each other, at this size of model."""

REPEAT_PENALTY = 1.3
"""Without one, a model this small says the same few characters until its tokens are used up, and answers nothing."""
PROMPT_CACHE_MB = 512
"""Keeps some 20,000 tokens of prompts: judges take turns with one text, and each finds its own beginning again."""

MAX_BODY_BYTES = 16_000_000
LOOK_EVERY_S = 0.5


def start_llama(weights: Path, key: str) -> Any:
    """Start a llama.cpp server, which ends when the returned object does. `listening_address` tells where it is."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # read when the library is loaded
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL}
    params.n_ctx = 0  # as much as the model was trained for
    # One slot: this model is bound by arithmetic, so two calls side by side take as long as one after the other, and
    # the second would have to read the text again that the first is still reading.
    params.n_parallel = 1
    params.flash_attn_type = 1
    params.cache_prompt = True
    params.cache_ram_mib = PROMPT_CACHE_MB
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(_cores(), MOST_THREADS)
    params.sampling.temp = 0.0
    params.sampling.seed = 0
    params.sampling.penalty_repeat = REPEAT_PENALTY
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.cors_origins = "http://127.0.0.1"
    params.endpoint_slots = False  # would show the judged texts
    params.ui = False
    params.verbosity = 2
    return xllamacpp.Server(params)


class Front:
    """The two APIs on one address. `open_calls` counts requests that are not answered yet."""

    def __init__(self, llama_url: str, key: str) -> None:
        self._url, self._key = llama_url, key
        self.open_calls = 0

    def application(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._session)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/v1/chat/completions", self._completions),
                web.post("/chat/completions", self._completions),
                web.post("/v1/messages", self._messages),
            ]
        )
        return app

    async def _session(self, _: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(
            self._url,
            headers={"authorization": f"Bearer {self._key}"},
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0),
        ) as self._llama:
            yield

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "pid": os.getpid()})

    async def _completions(self, request: web.Request) -> web.Response:
        status, reply = await self._ask("/v1/chat/completions", await request.read())
        return web.Response(status=status, body=reply, content_type="application/json")

    async def _messages(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            completion = as_completion(json.loads(body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return web.json_response(_error("invalid_request_error", f"{type(error).__name__}: {error}"), status=400)
        if completion is None:
            status, reply = await self._ask("/v1/messages", body)
            return web.Response(status=status, body=reply, content_type="application/json")
        tool, chat_request = completion
        status, reply = await self._ask("/v1/chat/completions", json.dumps(chat_request).encode())
        if status != web.HTTPOk.status_code:
            message = str(json.loads(reply).get("error", {}).get("message", ""))
            return web.json_response(_error("api_error", message), status=status)
        return web.json_response(as_message(json.loads(reply), tool))

    async def _ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return llama.cpp's answer. If the caller hangs up, this is cancelled, which closes the connection and frees
        the slot."""
        self.open_calls += 1
        try:
            async with self._llama.post(path, data=body, headers={"content-type": "application/json"}) as reply:
                return reply.status, await reply.read()
        finally:
            self.open_calls -= 1


def as_completion(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the tool's name and a chat completion that is constrained to its input; None if no tool is forced."""
    choice = body.get("tool_choice") or {}
    if choice.get("type") != "tool":
        return None
    name = choice["name"]
    tool = next((tool for tool in body["tools"] if tool["name"] == name), None)
    if tool is None:
        raise ValueError(f"there is no tool {name!r}")
    system = [{"role": "system", "content": _text(body["system"])}] if body.get("system") else []
    messages = [{"role": m["role"], "content": _text(m["content"])} for m in body["messages"]]
    chat_request = {
        "messages": [*system, *messages],
        "max_tokens": body["max_tokens"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": name, "strict": True, "schema": tool["input_schema"]},
        },
    }
    return name, chat_request | {key: body[key] for key in ("temperature", "top_p", "top_k") if key in body}


def as_message(completion: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return an Anthropic message that calls `tool`. A call that was cut off has an empty input."""
    choice = completion["choices"][0]
    try:
        tool_input = json.loads(choice["message"]["content"])
    except ValueError:
        tool_input = {}
    usage = completion["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": [{"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": tool, "input": tool_input}],
        "stop_reason": "max_tokens" if choice["finish_reason"] == "length" else "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        },
    }


async def wait_until_idle(lock: Path, idle_s: float, busy: Callable[[], bool]) -> IO[str]:
    """Return when nobody has held `lock`, and nothing was `busy`, for `idle_s`.

    The returned lock file is held until it is closed: a process that comes then waits until this one is gone, instead
    of using a server that is about to end.
    """
    loop = asyncio.get_running_loop()
    used = loop.time()
    while True:
        file = lock.open("a")
        if not busy() and try_lock(file):
            if loop.time() - used >= idle_s:
                return file
        else:
            used = loop.time()
        file.close()
        await asyncio.sleep(LOOK_EVERY_S)


async def serve(llama_url: str, key: str, folder: Path, idle_s: float) -> None:
    """Serve until SIGTERM, or until nobody needs it any more."""
    front = Front(llama_url, key)
    runner = web.AppRunner(front.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    address = folder / "address.json"
    fresh = address.with_suffix(".new")
    fresh.write_text(json.dumps({"pid": os.getpid(), "url": f"http://{host}:{port}"}))
    fresh.replace(address)
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    ends = [
        asyncio.create_task(stop_requested.wait()),
        asyncio.create_task(wait_until_idle(folder / "holders.lock", idle_s, lambda: front.open_calls > 0)),
    ]
    ended, waiting = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    address.unlink(missing_ok=True)
    await runner.cleanup()
    for task in ended:
        task.result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dicast.app.providers.local_server")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    options = parser.parse_args()
    key = secrets.token_hex(16)
    try:
        llama = start_llama(options.weights, key)
    except ImportError as error:
        sys.exit(f"xllamacpp cannot be loaded: {error} (libgomp.so.1 is in Debian's package libgomp1)")
    asyncio.run(serve(llama.listening_address, key, options.folder, options.idle_s))
    # What llama.cpp may still be computing is of no use to anybody: its threads are not waited for.
    os._exit(0)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(content: str | list[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content)


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


if __name__ == "__main__":
    main()
