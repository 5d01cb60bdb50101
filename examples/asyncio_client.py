"""Several jobs at once from an asyncio program, with their progress."""

import asyncio

from dicast import AsyncClient


def job(name: str) -> dict:
    return {
        "project": name,
        "items": [{"id": str(n), "text": f"Text {n} by {name}."} for n in range(5)],
        "agents": [{"name": "editor", "max_tokens": 200}],
        "dimensions": [{"id": "clear", "instructions": "Is the text clear?"}],
    }


async def main() -> None:
    async with AsyncClient() as client, asyncio.timeout(600):
        ids = [await client.submit(job(name)) for name in ("anna", "ben")]
        waiting = asyncio.gather(*(client.wait(job_id) for job_id in ids))
        while not waiting.done():
            for job_id in ids:
                status = await client.status(job_id)
                print(f"{status.project}: {status.state}, {status.done} of {status.units} units")
            await asyncio.wait([waiting], timeout=1.0)
        for report in await waiting:
            print(f"{report.project}: {report.scored} scored, overall {report.overall}")


asyncio.run(main())
