"""Rubrics: dimensions in files of their own, by path or by name from the library that comes with Dicast.

If a job's `dimensions` is a text, or a list that contains one, the text is a rubric: a name of the library
(`faithfulness`) or the path of a YAML or JSON file with the fields of one `Dimension`. `{rubric: faithfulness, weight:
2}` takes a rubric and changes some of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dicast import config
from dicast.app.datasets.kinds import located
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.printable import printable
from dicast.app.refusals import validation_lines
from dicast.errors import DicastError, nearest

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
    """Return the job's document with the rubrics that it names inserted; `folder` is as in `rubric`."""
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
