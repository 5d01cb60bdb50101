"""curator: one row a call, its own request processor, answers in its cache, from which a killed run goes on.

Told, it knows the calls open at once, and that no rate per minute binds. Untold, it reads a probe's headers, finds
none, and takes its default rates.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peer_task
from pydantic import BaseModel, Field

# The encoding by which curator counts tokens would be fetched from the net; litellm's wheel has it.
os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(find_spec("litellm").origin).parent / "litellm_core_utils" / "tokenizers")

from bespokelabs import curator

UNBOUND = 100_000_000


class Opinion(BaseModel):
    argument: str = Field(max_length=1200)
    cited_evidence: list[str]
    score: int = Field(ge=1, le=10)


class Judge(curator.LLM):
    response_format = Opinion

    def prompt(self, row: dict[str, Any]) -> list[dict[str, str]]:
        return [{"role": "system", "content": row["system"]}, {"role": "user", "content": row["user"]}]

    def parse(self, row: dict[str, Any], response: Opinion) -> dict[str, Any]:
        return {"id": row["id"], "score": response.score}


def prepare(task: peer_task.Task) -> Callable[[], int]:
    told: dict[str, Any] = {"base_url": task.base_url}
    if task.limit is not None:
        told["max_concurrent_requests"] = task.limit
        told["max_requests_per_minute"] = told["max_tokens_per_minute"] = UNBOUND
    if task.batch:
        told = {"base_url": task.base_url, "batch_size": len(task.calls), "batch_check_interval": 1}
    params = {"max_tokens": task.calls[0].max_tokens}
    judge = Judge(
        model_name=task.model, backend="openai", generation_params=params, backend_params=told, batch=task.batch
    )
    rows = [{"id": call.id, "system": call.system, "user": call.user} for call in task.calls]
    return lambda: len(judge(rows, working_dir=str(task.folder / "curator")).dataset)


if __name__ == "__main__":
    peer_task.run(prepare, "bespokelabs-curator", "aiohttp", "litellm")
