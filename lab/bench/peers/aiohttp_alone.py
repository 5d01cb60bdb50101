"""The least there is: aiohttp, a semaphore, and a wait when the provider says so."""

from __future__ import annotations

import asyncio

import aiohttp
import peer_task

TRIES = 6


async def ask(session: aiohttp.ClientSession, room: asyncio.Semaphore, url: str, call: peer_task.Call) -> bool:
    for _ in range(TRIES):
        async with room, session.post(url, json=call.body) as response:
            if response.status == 200:
                answer = await response.json()
                return peer_task.is_score(answer["choices"][0]["message"]["content"])
            wait_s = float(response.headers.get("retry-after", "1"))
        await asyncio.sleep(wait_s)
    return False


async def main(task: peer_task.Task) -> int:
    limit = task.limit or 100
    room = asyncio.Semaphore(limit)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit)) as session:
        url = f"{task.base_url}/chat/completions"
        return sum(await asyncio.gather(*(ask(session, room, url, call) for call in task.calls)))


if __name__ == "__main__":
    peer_task.run(lambda task: lambda: asyncio.run(main(task)), "aiohttp")
