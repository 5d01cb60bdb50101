"""What the nonce costs in tokens, counted by the local model's own tokenizer: python -m lab.bench.nonce_cost

Each question is asked as it is and without the lines about the nonce; the answer's nonce is counted as a text alone.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.material import nonce_for
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import batch_prompt, single_prompt
from dicast.app.providers.base import ChatRequest
from dicast.app.providers.local import LocalProvider, stop_local_model
from dicast.app.providers.local_server import MODEL
from dicast.app.providers.registry import build_provider
from dicast.config.pools import PoolSpec
from dicast.config.settings import Settings

QUESTIONS = 8
AGENT = Agent(name="judge", max_tokens=400)
DIMENSIONS = [Dimension(id=f"dim-{n}", instructions=f"Is it good in respect {n}?") for n in range(10)]


async def measure(provider: LocalProvider) -> list[tuple[str, Sequence[int]]]:
    """(what, tokens of each question) for single calls, batches of ten, and what an answer has to write."""

    async def tokens(text: str) -> int:
        reply = await provider.complete(ChatRequest(MODEL, "", text, max_tokens=1))
        return reply.usage.input_tokens

    single: list[int] = []
    batched: list[int] = []
    written: list[int] = []
    empty = await tokens("x")
    for number in range(QUESTIONS):
        item = Item(id=str(number), text=f"A text to judge, number {number}.")
        nonce = nonce_for(b"bench", AGENT, DIMENSIONS, item, 0)
        for found, prompt in (
            (single, single_prompt(AGENT, DIMENSIONS[0], item, nonce, structured=True)),
            (batched, batch_prompt(AGENT, DIMENSIONS, item, nonce)),
        ):
            bare = prompt.user.replace(f"NONCE: {nonce}\n", "").replace(f'Under "nonce", repeat "{nonce}". ', "")
            found.append(await tokens(prompt.user) - await tokens(bare))
        written.append(await tokens(f'x"nonce": "{nonce}", ') - empty)
    return [("single question", single), ("batch of ten", batched), ("answer", written)]


async def main() -> None:
    spec = PoolSpec(name="local", provider="local", model=MODEL)
    with tempfile.TemporaryDirectory() as folder:
        provider = LocalProvider(folder, lambda url: build_provider(spec, Settings.from_env({}), {}, base_url=url))
        try:
            for what, counts in await measure(provider):
                print(f"{what}: {statistics.median(counts):.0f} tokens more ({min(counts)} to {max(counts)})")
        finally:
            await provider.close()
            stop_local_model(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
