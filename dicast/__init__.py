"""Panels of LLM judges, at any scale, on Celery.

    from dicast import EvaluationJob, evaluate

    report = evaluate.delay(EvaluationJob(...)).get()

What is exported here is all that programs should import; `celery -A dicast worker` finds the application here too.
Everything is loaded when it is first used, so that importing a part of Dicast loads no more than that part.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dicast.app.aio import AsyncClient, evaluate_and_wait
    from dicast.app.application import app as celery
    from dicast.app.datasets.tables import DatasetError
    from dicast.app.domain.calibration import Calibration
    from dicast.app.domain.dimension import Dimension, Scale
    from dicast.app.domain.item import Item, ItemSource, RatingSource
    from dicast.app.domain.job import EvaluationJob
    from dicast.app.domain.judge_statistics import JobStatistics
    from dicast.app.domain.opinion import Opinion
    from dicast.app.domain.panel import Agent, Deployment
    from dicast.app.domain.refusals import InvalidJob, JobRefused
    from dicast.app.domain.report import Report
    from dicast.app.ledger.client import JobConflict, JobLost, UnknownJob
    from dicast.app.reports.results import (
        load_opinions,
        load_report,
        load_statistics,
        statistics_frame,
        to_pandas,
        to_polars,
    )
    from dicast.app.submission.job_file import JobFileError, load_calibration, load_job, load_rubric
    from dicast.app.submission.libraries import CalibrationError, RubricError
    from dicast.app.tasks import evaluate
    from dicast.config.pools import UnknownPool
    from dicast.errors import DicastError

__all__ = [
    "Agent", "AsyncClient", "Calibration", "CalibrationError", "DatasetError", "Deployment", "DicastError",
    "Dimension", "EvaluationJob", "InvalidJob", "Item", "ItemSource", "JobConflict", "JobFileError", "JobLost",
    "JobRefused", "JobStatistics", "Opinion", "RatingSource", "Report", "RubricError", "Scale", "UnknownJob",
    "UnknownPool", "celery", "evaluate", "evaluate_and_wait", "load_calibration", "load_job", "load_opinions",
    "load_report", "load_rubric", "load_statistics", "statistics_frame", "to_pandas", "to_polars",
]  # fmt: skip

_NAMES = {
    "app.aio": ["AsyncClient", "evaluate_and_wait"],
    "app.celery": ["celery"],
    "app.datasets.tables": ["DatasetError"],
    "app.domain.calibration": ["Calibration"],
    "app.domain.dimension": ["Dimension", "Scale"],
    "app.domain.item": ["Item", "ItemSource", "RatingSource"],
    "app.domain.job": ["EvaluationJob"],
    "app.domain.judge_statistics": ["JobStatistics"],
    "app.domain.opinion": ["Opinion"],
    "app.domain.panel": ["Agent", "Deployment"],
    "app.domain.report": ["Report"],
    "app.ledger.client": ["JobConflict", "JobLost", "UnknownJob"],
    "app.domain.refusals": ["InvalidJob", "JobRefused"],
    "app.reports.results": [
        "load_opinions",
        "load_report",
        "load_statistics",
        "statistics_frame",
        "to_pandas",
        "to_polars",
    ],
    "app.submission.libraries": ["CalibrationError", "RubricError"],
    "app.submission.job_file": ["JobFileError", "load_calibration", "load_job", "load_rubric"],
    "app.tasks": ["evaluate"],
    "config.pools": ["UnknownPool"],
    "errors": ["DicastError"],
}
HOMES = {name: f"dicast.{module}" for module, names in _NAMES.items() for name in names}
"""The module of each."""


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(HOMES[name])
    return module.app if name == "celery" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
