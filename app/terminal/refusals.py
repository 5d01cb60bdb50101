"""Why something was refused, in lines that a person can act on: the field, what is wrong with it, and its value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from app.domain.job import Agent, Deployment, Dimension, EvaluationJob, Item, ItemSource, Scale
from app.reports.text import printable
from app.terminal.console import Refused

MAX_LINES = 20
VALUE_CHARS = 60

# The two shapes of `items` appear in pydantic's locations under these names.
_SHAPES = {"list[Item]": list, "ItemSource": dict}
_MODELS: dict[str, tuple[type[BaseModel], ...]] = {
    "": (EvaluationJob,),
    "items": (Item, ItemSource),
    "agents": (Agent,),
    "deployments": (Deployment,),
    "dimensions": (Dimension,),
    "scale": (Scale,),
}


class InvalidJob(Refused):
    """A job that its model refuses; the message has one line a mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def validated(document: dict[str, Any]) -> EvaluationJob:
    """The job that the document is; raises `InvalidJob`."""
    try:
        return EvaluationJob.model_validate(document)
    except ValidationError as error:
        raise InvalidJob(validation_lines(error, document)) from None


def validation_lines(error: ValidationError, document: dict[str, Any]) -> list[str]:
    """`field: message, got value`, one line a mistake."""
    items = document.get("items")
    lines = list(dict.fromkeys(_line(mistake) for mistake in _meant(error.errors(), items)))
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"and {len(lines) - MAX_LINES} more"]
    return lines


def _meant(mistakes: Iterable[Any], items: Any) -> Iterator[Any]:
    """Without the complaints that `items` is not of the other shape, which it was not meant to be."""
    for mistake in mistakes:
        shapes = [part for part in mistake["loc"][1:2] if part in _SHAPES]
        if not shapes or not isinstance(items, list | dict) or isinstance(items, _SHAPES[shapes[0]]):
            yield mistake


def _line(mistake: Any) -> str:
    place = [part for part in mistake["loc"] if part not in _SHAPES]
    kind, value = mistake["type"], mistake["input"]
    if kind == "extra_forbidden":
        return f"{_field(place)}: unknown key{_nearest(place)}"
    if kind == "missing":
        return f"{_field(place)}: is missing"
    message = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = message[:1].lower() + message[1:]
    if ", got " not in message and (value is None or isinstance(value, str | int | float)):
        message += f", got {printable(repr(value), VALUE_CHARS)}"
    return f"{_field(place)}: {printable(message, 300)}" if place else printable(message, 300)


def _field(place: list[Any]) -> str:
    """('agents', 0, 'name') is agents[0].name."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return printable(text.lstrip("."), 200)


def _nearest(place: list[Any]) -> str:
    names = [part for part in place[:-1] if isinstance(part, str)]
    models = _MODELS.get(names[-1] if names else "", ())
    known = [field for model in models for field in model.model_fields]
    near = difflib.get_close_matches(str(place[-1])[:100], known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]}?" if near else ""
