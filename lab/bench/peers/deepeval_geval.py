"""DeepEval: `evaluate` with one GEval metric a test case. Its prompt is its own, of about the same length.

The model's name is one whose answers DeepEval asks for by schema; for others it reads log probabilities, which the
simulated provider has not. Told, it also shares one HTTP client and writes no cache: it would build a client, with a
TLS context of its own, for each call, and write the whole cache anew after each test case.
"""

from __future__ import annotations

from collections.abc import Callable

import openai
import peer_task
from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.metrics import GEval
from deepeval.models import OpenAIModel
from deepeval.test_case import LLMTestCase, SingleTurnParams

MODEL = "gpt-5-mini"


def prepare(task: peer_task.Task) -> Callable[[], int]:
    shared = {} if task.limit is None else {"async_http_client": openai.DefaultAsyncHttpxClient()}
    model = OpenAIModel(model=MODEL, base_url=task.base_url, api_key="none", **shared)
    cases = [LLMTestCase(input=call.criterion, actual_output=call.text) for call in task.calls]
    metric = GEval(
        name="quality",
        evaluation_steps=[task.calls[0].system, task.calls[0].criterion],
        evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
        model=model,
    )
    told = AsyncConfig() if task.limit is None else AsyncConfig(max_concurrent=task.limit)
    quiet = DisplayConfig(show_indicator=False, print_results=False, inspect_after_run=False)

    def work() -> int:
        result = evaluate(
            cases,
            [metric],
            async_config=told,
            display_config=quiet,
            error_config=ErrorConfig(ignore_errors=True),
            cache_config=CacheConfig(write_cache=task.limit is None),
        )
        scores = [data.score for tested in result.test_results for data in tested.metrics_data or []]
        return sum(score is not None for score in scores)

    return work


if __name__ == "__main__":
    peer_task.run(prepare, "deepeval", "openai")
