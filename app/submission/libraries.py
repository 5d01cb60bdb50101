"""Files that a job names and that become part of it when it is submitted: templates, rubrics and calibrations.

A template is tried on the job's items before the job is accepted (`Trials`). Files of calibrations are made by `dicast
calibrate`, and checked against the job that names one. In a job's document `calibration` is the path of a file, `{file:
..., on_mismatch: warn}`, or the file's content itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dicast import config
from dicast.app.datasets.tables import located
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.fingerprints import prompt_digest
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.material import TemplateError
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.domain.refusals import JobRefused, validation_lines
from dicast.app.domain.text import printable
from dicast.app.submission.rendering import shared
from dicast.errors import DicastError, nearest

MOST_TRIED = 100_000
"""The most items tried, divided by the number of templates; each takes a tenth of a millisecond. Items beyond fail when
they are to be judged."""
MOST_WORK = 1_000_000_000
"""The most work of all trials, as templates count it: some seconds of CPU time. It ends the trial as `MOST_TRIED`
does."""
TRIED_AT_ONCE = 64
BYTES_AT_ONCE = 250_000
"""Renderings that are requested together, or fewer by their items' texts. Other jobs' trials wait meanwhile."""
PAIRS_TRIED = 3
"""The pairs tried of each list of candidates: all have the same fields."""
_CODE = "5f0c2a9be1d47783"


class Trials:
    """Tries all of a job's templates on its first items. Raises `JobRefused` for an invalid template."""

    def __init__(self, job: EvaluationJob) -> None:
        self._job = job
        self._templates = list(_needed(job))
        self._hidden = job.rating_columns
        self._items, self._work = MOST_TRIED if self._templates else 0, MOST_WORK
        self._waiting: list[tuple[str, str, Item]] = []
        self._bytes = 0
        for field, template in self._templates:
            try:
                shared.check(template)
            except TemplateError as error:
                raise JobRefused(printable(f"{field}: {error}", 300)) from None

    def add(self, item: Item) -> None:
        """Take the next item. Raises `JobRefused`, naming template, item and field, for one that does not fit; it may
        be an earlier one."""
        if self._items <= 0 or self._work <= 0:
            return
        for judged in _judged(self._job, item.without(self._hidden)):
            self._waiting += [(field, template, judged) for field, template in self._templates]
            self._items -= len(self._templates)
            self._bytes += len(self._templates) * judged.stored_bytes
        if len(self._waiting) >= TRIED_AT_ONCE or self._bytes >= BYTES_AT_ONCE:
            self.finish()

    def finish(self) -> None:
        """Try what has not been tried yet. Raises `JobRefused`."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        trials = shared.trials([(template, item) for _, template, item in waiting], _CODE) if waiting else []
        for (field, _, _), trial in zip(waiting, trials, strict=True):
            if trial.error is not None:
                raise JobRefused(printable(f"{field}: {trial.error}", 300))
            self._work -= trial.work


def _needed(job: EvaluationJob) -> Iterator[tuple[str, str]]:
    """Yield the templates by which anything is shown, each once, with its field."""
    fields = {job.template: "template"}
    fields |= {agent.template: f"agents: the template of {agent.name!r}" for agent in job.agents}
    fields |= {d.template: f"dimensions: the template of {d.id!r}" for d in job.dimensions}
    needed = dict.fromkeys(job.template_for(agent, dimension) for agent in job.agents for dimension in job.dimensions)
    for template in needed:
        if template is not None:
            yield fields[template], template


def _judged(job: EvaluationJob, item: Item) -> Iterable[Item]:
    """Return the item as it is judged: of a list of candidates some of its pairs."""
    return [item] if job.pairs is None else islice(PairsOfLists(job.pairs).items(item), PAIRS_TRIED)


def with_template(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the job's document with the contents of the template files that it, its agents and its dimensions name. A
    text that has neither `{{` nor a line break is a file name. Raises `JobRefused`."""
    resolved = _read("template", document, folder)
    for field in ("agents", "dimensions"):
        if isinstance(parts := resolved.get(field), list):
            read = [_read(f"{field}: template", part, folder) if isinstance(part, dict) else part for part in parts]
            resolved = {**resolved, field: read}
    return resolved


def _read(field: str, document: dict[str, Any], folder: Path) -> dict[str, Any]:
    name = document.get("template")
    if not isinstance(name, str) or "{{" in name or "\n" in name or not name.strip():
        return document
    path = Path(located(name, folder))
    try:
        return {**document, "template": path.read_text(encoding="utf-8")}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise JobRefused(printable(f"{field}: {path} cannot be read: {reason}", 300)) from None


LIBRARY = Path(config.__file__).parent / "rubrics"
ENDINGS = (".yaml", ".yml", ".json")

Read = Callable[[str], dict[str, Any]]
"""A function that reads the mapping in a file."""


class RubricError(DicastError, ValueError):
    """There is no such rubric, or its file holds no dimension."""

    problem = "invalid-job"


def names() -> list[str]:
    """Return the names of the library's rubrics."""
    return sorted(path.stem for path in LIBRARY.glob("*.yaml"))


def rubric_path(name: str, folder: Path | None) -> Path:
    """Return the path of the rubric that a job in `folder` names; with None only those of the library may be named.
    Raises `RubricError`."""
    if name.lower().endswith(ENDINGS) or "/" in name:
        if folder is None:
            library = ", ".join(names())
            raise RubricError(f"dimensions: {printable(repr(name), 80)} is a file; here, name one of {library}")
        path = Path(located(name, folder))
        if not path.is_file():
            raise RubricError(f"dimensions: there is no file {printable(str(path), 300)}")
        return path
    if name in names():
        return LIBRARY / f"{name}.yaml"
    near = nearest(name, names())
    hint = f"; did you mean {near}?" if near else f"; there are {', '.join(names())}"
    raise RubricError(f"dimensions: there is no rubric {printable(repr(name), 80)}{hint} (or a file: clear.yaml)")


def rubric(name: str, folder: Path | None, read: Read) -> dict[str, Any]:
    """Return the fields of a rubric's dimension, by the name or path that a job in `folder` gives. Raises
    `RubricError`."""
    path = rubric_path(name, folder)
    fields = read(str(path))
    try:
        Dimension.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(validation_lines(error, fields, Dimension))
        raise RubricError(f"{printable(str(path), 300)}: {problems}") from None
    return fields


def with_rubrics(document: Mapping[str, Any], folder: Path | None, read: Read) -> dict[str, Any]:
    """Return the job's document with the rubrics that it names inserted; `folder` is as in `rubric`.

    A rubric is a dimension in a file of its own, by path or by name from the library that comes with Dicast. If a job's
    `dimensions` is a text, or a list that contains one, the text is a rubric: a name of the library (`faithfulness`) or
    the path of a YAML or JSON file with the fields of one `Dimension`. `{rubric: faithfulness, weight: 2}` takes a
    rubric and changes some of its fields.
    """
    entries = document.get("dimensions")
    if isinstance(entries, str):
        entries = [entries]
    if not isinstance(entries, list):
        return dict(document)
    return {**document, "dimensions": [_dimension(entry, folder, read) for entry in entries]}


def _dimension(entry: Any, folder: Path | None, read: Read) -> Any:
    if isinstance(entry, str):
        return rubric(entry, folder, read)
    if isinstance(entry, Mapping) and isinstance(entry.get("rubric"), str):
        changes = {key: value for key, value in entry.items() if key != "rubric"}
        return {**rubric(entry["rubric"], folder, read), **changes}
    return entry


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
