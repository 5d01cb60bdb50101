"""Small jobs for the tests of results."""

from __future__ import annotations

from datetime import UTC, datetime

from dicast.app.domain.opinion import ErrorKind, EvaluationError, Opinion, Usage
from dicast.app.domain.report import ReportAgent, ReportBuilder, ReportDimension, ReportHeader, ResultFiles

NOW = "0a1b2c3d"
"""The incarnation of a job."""


def header(units: int, *, job_id: str = "job-1", **changes: object) -> ReportHeader:
    values = {
        "job_id": job_id,
        "project": "default",
        "status": "completed",
        "units": units,
        "started": datetime(2025, 1, 1, tzinfo=UTC),
        "finished": datetime(2025, 1, 1, 0, 1, 23, tzinfo=UTC),
        "wall_s": 83.0,
        "calls": units,
        "agents": [ReportAgent(name="strict", model="m"), ReportAgent(name="kind", model="m")],
        "dimensions": [ReportDimension(id="clear", name="Clarity", scale_min=1, scale_max=10)],
    }
    return ReportHeader.model_validate({**values, **changes})


def opinion(item: int, judge: str = "strict", score: int | None = 5, **changes: object) -> Opinion:
    values = {
        "judge": judge,
        "criterion_id": "clear",
        "item_id": f"item-{item}",
        "replicate": 0,
        "score": score,
        "argument": f"because of {item}",
        "cited_evidence": [f"line {item}", "and more"],
        "model": "m",
        "usage": Usage(input_tokens=100 + item, output_tokens=item),
        "latency_s": 0.25,
        "attempts": 2,
    }
    return Opinion.model_validate({**values, **changes})


def error(item: int, judge: str = "strict", **changes: object) -> EvaluationError:
    values = {
        "judge": judge,
        "criterion_id": "clear",
        "item_id": f"item-{item}",
        "replicate": 0,
        "kind": ErrorKind.PROVIDER,
        "message": "the provider answered 503",
        "status_code": 503,
        "attempts": 3,
        "elapsed_s": 4.5,
    }
    return EvaluationError.model_validate({**values, **changes})


def files_in(directory: str) -> ResultFiles:
    return ResultFiles(
        directory=directory,
        opinions_jsonl=f"{directory}/opinions.jsonl",
        opinions_parquet=f"{directory}/opinions.parquet",
        errors_jsonl=f"{directory}/errors.jsonl",
        report=f"{directory}/report.json",
    )


def builder(units: int, **changes: object) -> ReportBuilder:
    return ReportBuilder(header(units, **changes))
