"""CPU time of one call, sent as the SDK would send it and through the SDK. `python -m lab.bench.calls --open 40`

The provider is a process of its own that answers each request with the same opinion after 20 ms. The two ways take
turns within one process, and what is told is the median of the rounds and their range.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from dicast.app.domain.dimension import Scale
from dicast.app.domain.prompt import answer_limits, single_schema
from dicast.app.providers.base import ChatRequest, Provider
from dicast.app.providers.registry import build_provider
from dicast.config.pools import PoolSpec
from dicast.config.settings import Settings

OPINION = {"nonce": "0123456789abcdef", "argument": "It is sound, all in all.", "cited_evidence": [], "score": 7}
BODY = json.dumps({
    "model": "judge", "usage": {"prompt_tokens": 400, "completion_tokens": 50},
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": json.dumps(OPINION)}}],
}).encode()  # fmt: skip
LIMITS = "x-ratelimit-limit-requests: 1000\r\nx-ratelimit-remaining-requests: 999\r\nx-ratelimit-reset-requests: 60ms"
HEAD = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{LIMITS}\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
REQUEST = ChatRequest(
    model="judge", system="You are one judge of a panel. " * 20, user="> A line of a text to be judged. \n" * 60,
    max_tokens=600, temperature=0.0, schema=single_schema(Scale(), answer_limits(600)),
)  # fmt: skip
WAYS = ("direct", "sdk")


class _Answering(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(rest) >= length:
                self._received = rest[length:]
                asyncio.get_running_loop().call_later(0.02, self._transport.write, HEAD + BODY)


def _serve(told: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def _provider_process() -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        process.terminate()
        process.join()


async def _cpu_ms(provider: Provider, calls: int, most_open: int) -> float:
    left = iter(range(calls))

    async def ask() -> None:
        for _ in left:
            await provider.complete(REQUEST)

    begun = time.process_time()
    await asyncio.gather(*(ask() for _ in range(most_open)))
    return 1000 * (time.process_time() - begun) / calls


async def measure(url: str, calls: int, most_open: int, rounds: int) -> dict[str, list[float]]:
    """CPU ms a call of each way, a figure a round."""
    providers = {}
    for way in WAYS:
        spec = PoolSpec.model_validate({"name": "p", "provider": "simulated", "model": "judge", "calls": way})
        providers[way] = build_provider(spec, Settings(), {}, base_url=url)
        await _cpu_ms(providers[way], 2 * most_open, most_open)  # opens the connections
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, provider in providers.items():
            found[way].append(await _cpu_ms(provider, calls, most_open))
    for provider in providers.values():
        await provider.close()
    return found


def main() -> None:
    parse = argparse.ArgumentParser("python -m lab.bench.calls", description=(__doc__ or "").partition(" `")[0])
    parse.add_argument("--open", type=int, default=40, help="calls open at once")
    parse.add_argument("--calls", type=int, default=2000, help="calls in each round")
    parse.add_argument("--rounds", type=int, default=5)
    given = parse.parse_args()
    with _provider_process() as url:
        found = asyncio.run(measure(url, given.calls, given.open, given.rounds))
    for way, figures in found.items():
        print(f"{way:7} {statistics.median(figures):.2f} ms ({min(figures):.2f}-{max(figures):.2f})")


if __name__ == "__main__":
    main()
