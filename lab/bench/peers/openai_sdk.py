"""The OpenAI SDK over aiohttp, its own two retries, and a semaphore. Untold, it opens 100 calls, as one does who cannot
know."""

from __future__ import annotations

import asyncio

import openai
import peer_task


async def ask(client: openai.AsyncOpenAI, room: asyncio.Semaphore, call: peer_task.Call) -> bool:
    async with room:
        try:
            answer = await client.chat.completions.create(**call.body)
        except openai.OpenAIError:
            return False
    return peer_task.is_score(answer.choices[0].message.content)


async def main(task: peer_task.Task, *, aiohttp: bool = True) -> int:
    room = asyncio.Semaphore(task.limit or 100)
    http = openai.DefaultAioHttpClient(timeout=120) if aiohttp else openai.DefaultAsyncHttpxClient(timeout=120)
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key="none", http_client=http) as client:
        return sum(await asyncio.gather(*(ask(client, room, call) for call in task.calls)))


if __name__ == "__main__":
    peer_task.run(lambda task: lambda: asyncio.run(main(task)), "openai", "aiohttp")
