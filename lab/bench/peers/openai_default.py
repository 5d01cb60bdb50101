"""The same with the transport that the SDK brings by itself."""

from __future__ import annotations

import asyncio

import peer_task
from openai_sdk import main

if __name__ == "__main__":
    peer_task.run(lambda task: lambda: asyncio.run(main(task, aiohttp=False)), "openai")
