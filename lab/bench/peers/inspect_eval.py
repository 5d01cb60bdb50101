"""Inspect AI: a task of one generation and one scorer a sample. Untold, its adaptive connections find the limit.

A killed run is gone on with as its manual says: the crashed log is recovered, then retried. Told, it does without the
database that makes a running evaluation visible and a crashed one recoverable: it costs a third of its CPU time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import peer_task
from inspect_ai import Task, eval, eval_retry, task
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, list_eval_logs, recover_eval_log
from inspect_ai.model import BatchConfig, ChatMessageSystem, ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import TaskState, generate
from inspect_ai.util import JSONSchema


@scorer(metrics=[mean()])
def judged() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=json.loads(state.output.completion)["score"])

    return score


@task
def opinions(calls: str) -> Task:
    given = [peer_task.Call(**json.loads(line)) for line in Path(calls).read_text().splitlines()]
    samples = [
        Sample(id=call.id, input=[ChatMessageSystem(content=call.system), ChatMessageUser(content=call.user)])
        for call in given
    ]
    schema = ResponseSchema(name="opinion", json_schema=JSONSchema.model_validate(given[0].schema), strict=True)
    config = GenerateConfig(max_tokens=given[0].max_tokens, response_schema=schema)
    return Task(dataset=samples, solver=generate(), scorer=judged(), config=config)


def prepare(given: peer_task.Task) -> Callable[[], int]:
    config = GenerateConfig() if given.limit is None else GenerateConfig(max_connections=given.limit)
    if given.batch:
        config = GenerateConfig(batch=BatchConfig(size=len(given.calls), send_delay=2.0, tick=0.5))
    model = get_model(f"openai/{given.model}", base_url=given.base_url, config=config)
    logs = str(given.folder / "logs")

    def fresh() -> EvalLog:
        task = opinions(str(given.folder / "calls.jsonl"))
        return eval(task, model=model, log_dir=logs, display="none", log_realtime=given.limit is None)[0]

    def resumed() -> EvalLog:
        recovered = recover_eval_log(list_eval_logs(logs)[0].name)
        return eval_retry(recovered, log_dir=logs, display="none")[0]

    return lambda: sum(bool(sample.scores) for sample in (resumed() if given.resume else fresh()).samples or [])


if __name__ == "__main__":
    peer_task.run(prepare, "inspect-ai", "openai")
