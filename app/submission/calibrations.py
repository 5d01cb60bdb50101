"""Calibrations: files made by `dicast calibrate`, inserted into the job that names one and checked against it.

In a job's document `calibration` is the path of a file, `{file: ..., on_mismatch: warn}`, or the file's content itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dicast.app.datasets.kinds import located
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.fingerprints import prompt_digest
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.printable import printable
from dicast.app.refusals import JobRefused, validation_lines
from dicast.errors import DicastError

Read = Callable[[str], dict[str, Any]]
"""Reads the mapping in a file."""


class CalibrationError(DicastError, ValueError):
    """There is no such calibration, or its file holds none."""

    problem = "invalid-job"


def with_calibration(document: Mapping[str, Any], folder: Path | None, read: Read) -> dict[str, Any]:
    """Return the job's document with the content of the calibration file that it names.

    Relative paths start at `folder`; with None no file may be named. Raises `CalibrationError`.
    """
    entry = document.get("calibration")
    if isinstance(entry, str):
        entry = {"file": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("file"), str):
        return dict(document)
    if folder is None:
        raise CalibrationError("calibration: no file can be named here; give the file's content in its place")
    changes = {key: value for key, value in entry.items() if key != "file"}
    return {**document, "calibration": {**_content(located(entry["file"], folder), read), **changes}}


def calibration_in(path: str, read: Read, on_mismatch: Literal["refuse", "warn"] = "refuse") -> Calibration:
    """Return the calibration in a file, for `EvaluationJob(calibration=...)`. Raises `CalibrationError`,
    `JobFileError`."""
    return Calibration.model_validate({**_content(path, read), "on_mismatch": on_mismatch})


def _content(path: str, read: Read) -> dict[str, Any]:
    if not Path(path).is_file():
        raise CalibrationError(f"calibration: there is no file {printable(path, 300)}")
    fields = read(path)
    try:
        Calibration.model_validate(fields)
    except ValidationError as error:
        lines = "; ".join(validation_lines(error, fields, Calibration))
        raise CalibrationError(
            f"calibration: {printable(path, 300)} is none that `dicast calibrate` made: {lines}"
        ) from None
    return fields


def calibration_warnings(job: EvaluationJob, models: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each thing that the job's calibration was made with and the job does not have; `models` are
    those of each judge's deployments.

    Raises `JobRefused` if there is anything, unless the job only warns.
    """
    if job.calibration is None:
        return []
    # The report's many types: only jobs with a calibration need any of them to be checked.
    from dicast.app.domain.calibrated import ScoringContext, mismatches  # noqa: PLC0415
    from dicast.app.domain.report import ReportAgent, ReportDimension  # noqa: PLC0415

    agents = [ReportAgent.from_agent(agent, names) for agent, names in zip(job.agents, models, strict=True)]
    dimensions = [ReportDimension.from_dimension(d, job.panel_of(d)) for d in job.dimensions]
    differences = mismatches(job.calibration, ScoringContext(agents, dimensions, prompt_digest(job)))
    if differences and job.calibration.on_mismatch == "refuse":
        raise JobRefused(
            f"calibration: {'; '.join(differences[:5])}; calibrate again, or say `on_mismatch: warn` to apply it all "
            "the same"
        )
    return [f"calibration: {line}" for line in differences]
