"""Why a job was refused, in lines that a person can act on: the field, what is wrong with it, and its value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.records import RecordError, inline_items
from dicast.app.domain.text import printable
from dicast.errors import DicastError, nearest

MAX_LINES = 20
MAX_UNKNOWN_KEYS = 5
"""How many unknown keys of one mapping are named; the others are counted."""
VALUE_CHARS = 60

# The two shapes of `items` appear in pydantic's locations under these names.
_SHAPES = {"list[Item]": list, "ItemSource": dict}
FORMS = {
    "items": "items: answers.jsonl, or a list of {id: a1, text: ...}",
    "ratings": "ratings: ratings.csv, or {path: ratings.csv, score_field: stars}",
    "agents": "agents: [{name: physicist, persona: You teach physics.}]",
    "dimensions": "dimensions: [{id: clear, instructions: Is it clear?}]",
    "deployments": "deployments: [{pool: openai}, {pool: azure, model: gpt-4.1}]",
    "scale": "scale: {min: 1, max: 5}, {labels: [poor, fair, good]}, {checklist: [..., ...]} or pass_fail",
    "messages": "messages: [{role: user, content: Why?}, {role: assistant, content: Because.}]",
    "levels": "levels: {1: poor, 5: excellent}, scores first",
    "metadata": "metadata: {language: en}",
    "keep": "keep: [language, source]",
    "labels": "labels: {region: eu}",
    "panel": "panel: median, or {combine: weighted, weights: {strict: 2, kind: 1}}",
    "escalate": "escalate: true, {difference: 1} or {uncertainty: 0.3}",
    "groups": "groups: [system, language]",
    "calibration": "calibration: calibration.json, or {file: calibration.json, on_mismatch: warn}",
}
"""The right form of a field, shown when it is written in another form."""

OTHER_NAMES = {
    "judges": "agents", "models": "agents", "jury": "agents", "criteria": "dimensions", "rubric": "dimensions",
    "metrics": "dimensions", "data": "items", "dataset": "items", "samples": "items", "inputs": "items",
    "repeats": "replicates", "runs": "replicates", "n": "replicates", "system": "persona", "system_prompt": "persona",
    "role": "persona", "provider": "pool", "description": "instructions", "question": "instructions",
    "criterion": "instructions", "output": "text", "answer": "text", "response": "text", "content": "text",
    "output_a": "text_a", "answer_a": "text_a", "response_a": "text_a", "first": "text_a", "chosen": "text_a",
    "output_b": "text_b", "answer_b": "text_b", "response_b": "text_b", "second": "text_b", "rejected": "text_b",
    "human": "ratings", "labels": "ratings", "annotations": "ratings",
    "input": "prompt", "expected": "reference", "target": "reference", "file": "path", "low": "min", "high": "max",
    "minimum": "min", "maximum": "max",
}  # fmt: skip
"""The names that other tools have for our keys."""
OPERATORS = {
    "api_key": "keys stand in the environment; a pool's api_key_env names the variable",
    "base_url": "addresses belong to pools, in the pools file",
    "limit": "limits belong to pools, in the pools file or by `dicast governor set`",
}
"""Keys that belong to the operator and not to a job, each with the place where it is set."""

_MESSAGES = {
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than_equal": "must be >= {ge:g}",
    "less_than_equal": "must be <= {le:g}",
    "too_short": "needs at least one, got none",
    "too_long": "may hold at most {max_length}, got {actual_length}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "invalid-json-value": "must be plain JSON data",
}


class JobRefused(DicastError, ValueError):
    """The job cannot be accepted; the message names the field and the value."""

    problem = "job-refused"


class InvalidJob(JobRefused):
    """The document is no valid job; the message has one line for each mistake. Can be made of its own message, as
    Celery does with an error that comes back from a worker."""

    problem = "invalid-job"

    def __init__(self, lines: list[str] | str) -> None:
        self.lines = lines.splitlines() if isinstance(lines, str) else lines
        super().__init__("\n".join(self.lines))


def validated(job: EvaluationJob | Mapping[str, Any]) -> EvaluationJob:
    """Return a job, or validate a document as one. Raises `InvalidJob`, or TypeError if `job` is neither."""
    if isinstance(job, EvaluationJob):
        return job
    if not isinstance(job, Mapping):
        raise TypeError(f"a job is an EvaluationJob or a dict of one, got {_value(job)} ({type(job).__name__})")
    document = dict(job)
    try:
        if "items" in document:
            document["items"] = inline_items(document["items"])
    except RecordError as error:
        raise InvalidJob([printable(str(error), 600)]) from None
    try:
        return EvaluationJob.model_validate(document)
    except ValidationError as error:
        raise InvalidJob(validation_lines(error, document)) from None


def validation_lines(
    error: ValidationError, document: Mapping[str, Any], model: type[BaseModel] = EvaluationJob
) -> list[str]:
    """Return one line, `field: message, got value`, for each mistake in a document that should fit `model`."""
    lines: dict[str, None] = {}
    unknown: Counter[tuple[Any, ...]] = Counter()
    omitted = 0
    for mistake in _relevant(error.errors(include_url=False), document.get("items")):
        parent = mistake["loc"][:-1]
        unknown[parent] += mistake["type"] == "extra_forbidden"
        if mistake["type"] == "extra_forbidden" and unknown[parent] > MAX_UNKNOWN_KEYS:
            continue
        if len(lines) < MAX_LINES:
            lines[_line(mistake, model)] = None
        else:
            omitted += 1
    more = [f"and {omitted:,} more"] if omitted else []
    for parent, count in unknown.items():
        if count > MAX_UNKNOWN_KEYS and len(more) < MAX_LINES:
            where = field_name([part for part in parent if part not in _SHAPES])
            more.append(f"{where + ': ' if where else ''}and {count - MAX_UNKNOWN_KEYS:,} more unknown keys")
    return [*lines, *more]


def problem(mistake: Any) -> str:
    """Describe a mistake in plain words, with the value."""
    kind, value = mistake["type"], mistake["input"]
    template = _MESSAGES.get(kind)
    if kind == "union_tag_invalid":
        value = mistake["ctx"]["tag"]
    if template is not None:
        message = template.format(**mistake.get("ctx", {}))
    else:
        message = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
        message = message[:1].lower() + message[1:]
    options = mistake.get("ctx", {}).get("expected" if kind == "literal_error" else "expected_tags", "")
    if isinstance(value, str) and kind in ("literal_error", "union_tag_invalid"):
        near = nearest(value, re.findall(r"'([^']+)'", options))
        return f"{message}, got {_value(value)}" + (f"; did you mean {near}?" if near is not None else "")
    whole = kind == "value_error" and not isinstance(value, str | int | float)
    return message if whole or ", got " in message else f"{message}, got {_value(value)}"


def _relevant(mistakes: Iterable[Any], items: Any) -> Iterator[Any]:
    """Yield mistakes, except that `items` does not have its other shape, and those about the value of a key that is
    wrong itself."""
    mistakes = list(mistakes)
    wrong_keys = {mistake["loc"][:-1] for mistake in mistakes if mistake["loc"][-1:] == ("[key]",)}
    for mistake in mistakes:
        if mistake["loc"] in wrong_keys:
            continue
        shapes = [part for part in mistake["loc"][1:2] if part in _SHAPES]
        if not shapes or not isinstance(items, list | dict) or isinstance(items, _SHAPES[shapes[0]]):
            yield mistake


def _line(mistake: Any, model: type[BaseModel]) -> str:
    loc = mistake["loc"]
    if loc[:1] == ("items",) and loc[1:] in {(shape,) for shape in _SHAPES}:
        return printable(f"items: must be a list or the name of a file, got {_value(mistake['input'])}; "
                         f"write {FORMS['items']}", 300)  # fmt: skip
    place = [part for part in loc if part not in (*_SHAPES, "[key]")]
    kind = mistake["type"]
    if kind == "extra_forbidden":
        return f"{field_name(place)}: unknown key{_hint(place, model)}"
    if kind == "union_tag_not_found":
        tags = [tag for model in _models_at(place, model) for tag in _tags(model)]
        field = mistake["ctx"]["discriminator"].strip("'")
        return f"{field_name([*place, field])}: is missing; it is one of {', '.join(tags)}"
    if kind == "missing":
        return f"{field_name(place)}: is missing{_form(place) if len(place) == 1 else ''}"
    if "levels" in place:
        message, place = f"{_part_of_levels(loc)}{problem(mistake)}", place[: place.index("levels") + 1]
    else:
        message = problem(mistake)
    message += _form(place) if _is_of_another_form(kind, place) else ""
    return f"{field_name(place)}: {printable(message, 300)}" if place else printable(message, 300)


def _value(value: Any) -> str:
    """Return the text of a value; only the part that is shown is rendered."""
    if isinstance(value, dict) and len(value) > VALUE_CHARS:
        return f"{len(value):,} entries"
    if isinstance(value, list | str):
        value = value[: VALUE_CHARS + 1]
    return printable(repr(value), VALUE_CHARS)


def field_name(place: list[Any]) -> str:
    """Return the name of a field: ('agents', 0, 'name') is agents[0].name."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return printable(text.lstrip("."), 200)


def _form(place: list[Any]) -> str:
    name = "scale" if "scale" in place else next((part for part in reversed(place) if part in FORMS), None)
    return f"; write {FORMS[name]}" if name is not None else ""


def _part_of_levels(loc: tuple[Any, ...]) -> str:
    if loc[-1] == "levels":
        return ""
    return "a score " if loc[-1] == "[key]" else "what earns a score "


def _is_of_another_form(kind: str, place: list[Any]) -> bool:
    of_levels = "levels" in place
    return of_levels or kind in ("list_type", "dict_type", "model_type", "model_attributes_type")


def _hint(place: list[Any], model_type: type[BaseModel]) -> str:
    key = str(place[-1])
    models = _models_at(place[:-1], model_type)
    field_names = [name for model in models for name, field in model.model_fields.items() if _is_public(field)]
    other = OTHER_NAMES.get(key.lower())
    near = other if other in field_names else nearest(key, field_names)
    if near is not None:
        return f"; did you mean {near}?"
    if key.lower() in OPERATORS:
        return f"; {OPERATORS[key.lower()]}"
    return f"; there are {', '.join(dict.fromkeys(field_names))}" if field_names else ""


def _is_public(field: FieldInfo) -> bool:
    """Whether a job may give the field: the JSON Schema of jobs has it."""
    hidden: Any = SkipJsonSchema  # to type checkers it is an annotation, not a class
    return not any(isinstance(part, hidden) for part in field.metadata)


def _models_at(place: Sequence[Any], model_type: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models of which one is meant at a place, counted from a document `of` a model."""
    types: list[Any] = [model_type]
    for part in place:
        models = [candidate for candidate in types if isinstance(candidate, type) and issubclass(candidate, BaseModel)]
        fields = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        tagged = [model for model in models if part in _tags(model)]
        members = [[arg for arg in get_args(annotation) if arg is not Ellipsis] for annotation in types]
        elements = [arg for arguments in members for arg in arguments[-1:]]  # of a list, a tuple, or a mapping
        types = [member for annotation in fields or tagged or elements for member in _united(annotation)]
    return [candidate for candidate in types if isinstance(candidate, type) and issubclass(candidate, BaseModel)]


def _united(annotation: Any) -> list[Any]:
    """Return the types of a union, and any other type alone."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _united(arguments[0])
    if origin in (Union, UnionType):
        return [member for argument in arguments for member in _united(argument)]
    return [annotation]


def _tags(model: type[BaseModel]) -> list[str]:
    """Return the words that tell a model from the others of its union."""
    return [tag for field in model.model_fields.values() if field.is_required() for tag in _words(field.annotation)]


def _words(annotation: Any) -> list[str]:
    return list(get_args(annotation)) if get_origin(annotation) is Literal else []
