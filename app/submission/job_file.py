"""A job as people write it: a YAML or JSON file, read within bounds.

YAML is read as the data that JSON can hold: YAML 1.2's core types (so `no` is a text and 1:30 is not 90), anchors,
aliases and merge keys within bounds, no tags, no second document. In both formats a key may stand once in its mapping.
In both, and in a mapping that a program brings (`check_bounds`), there are at most `MAX_VALUES` keys and values.
Whatever is wrong raises `JobFileError` with the file, the line and the reason, before much memory or time is spent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import yaml
from yaml.composer import Composer

from dicast.app.datasets.tables import located
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.dimension import SHORT, Dimension
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.text import printable
from dicast.app.submission.images import with_images
from dicast.app.submission.libraries import (
    calibration_in,
    names,
    rubric,
    with_calibration,
    with_rubrics,
    with_template,
)
from dicast.config.settings import nearest_file
from dicast.errors import DicastError

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 300_000
MAX_DEPTH = 64
STDIN = "-"
JOB = "a mapping with agents, dimensions and items"
_FILES = ("items", "ratings")
"""Keys that may name a file."""

_OWN_FILE = "put the items into a file of their own, say `items: answers.jsonl`"
_MERGE = "tag:yaml.org,2002:merge"


class JobFileError(DicastError, ValueError):
    """The file cannot be read as one mapping of plain data. The message is one printable line."""

    problem = "unreadable-job"


def load_job(path: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping in a file, or in standard input if `path` is '-'. Raises `JobFileError`. A mapping is treated
    as if it came from a file in the current folder.

    The relative path of an item or ratings file starts at the job file's folder and is made absolute; `~` and `$NAME`
    in it are expanded (`DatasetError` if that fails). Rubrics that the job names are inserted (`RubricError`), and so
    is a calibration (`CalibrationError`). Nothing else is checked: that is up to `EvaluationJob`.
    """
    if isinstance(path, Mapping):
        document, folder = dict(path), Path.cwd()
    else:
        document = read_document(str(path), JOB)
        folder = Path.cwd() if str(path) == STDIN else Path(path).resolve().parent
    document = with_images(with_template(_absolute_files(document, folder), folder), folder)
    return with_calibration(with_rubrics(document, folder, read_document), folder, read_document)


def read_document(path: str, expected: str = "a mapping") -> dict[str, Any]:
    """Return the mapping of plain data in a file, or in standard input if `path` is '-'. Raises `JobFileError`."""
    try:
        return read_mapping(_bytes(path), yaml=not path.lower().endswith(".json"), expected=expected)
    except JobFileError as error:
        name = "standard input" if path == STDIN else path
        raise JobFileError(printable(f"{name}: {error}", 500)) from None


def read_mapping(raw: bytes, *, yaml: bool = False, expected: str = "a mapping") -> dict[str, Any]:
    """Return the mapping in a JSON or YAML document that came from elsewhere. Raises `JobFileError`.

    Paths in it stay as they are.
    """
    if len(raw) > MAX_BYTES:
        raise JobFileError(f"is larger than {MAX_BYTES >> 20} MiB; {_OWN_FILE}")
    with _no_collections():
        document = _yaml(raw) if yaml else _json(raw)
    if not isinstance(document, dict):
        raise JobFileError(f"holds {_kind(document)}, not {expected}")
    check_bounds(document)
    _check_texts(document)
    return document


def check_bounds(document: Mapping[str, Any]) -> None:
    """Raise `JobFileError` for a mapping of more than `MAX_VALUES` keys and values, counted wherever they are reached,
    or nested deeper than `MAX_DEPTH`. The time is bounded by these limits, not by the document."""
    level: list[Any] = [document]
    values = 1
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, Mapping):
                values += 2 * len(node)
                if values <= MAX_VALUES:
                    inner += node.values()
            elif isinstance(node, list | tuple):
                values += len(node)
                if values <= MAX_VALUES:
                    inner += node
            if values > MAX_VALUES:
                raise JobFileError(f"holds more than {MAX_VALUES} keys and values; {_OWN_FILE}")
        level = [node for node in inner if isinstance(node, Mapping | list | tuple)]
        if not level:
            return
    raise JobFileError(f"nested deeper than {MAX_DEPTH}")


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job's file, for editors: the schema of `EvaluationJob` with the short forms in which
    people may write its parts. Whether a job is accepted is decided by `EvaluationJob` alone."""
    schema = EvaluationJob.model_json_schema()
    fields, defined = schema["properties"], schema["$defs"]
    text: dict[str, Any] = {"type": "string"}
    rubric_name = {
        **text,
        "examples": names(),
        "description": "a rubric of the library, or a file's path",
    }
    changed_rubric = {"type": "object", "properties": {"rubric": rubric_name}, "required": ["rubric"]}
    dimension = {"anyOf": [{"$ref": "#/$defs/Dimension"}, rubric_name, changed_rubric]}
    dimensions = fields["dimensions"]
    fields["dimensions"] = {"anyOf": [{**dimensions, "items": dimension}, rubric_name]}
    fields["items"]["anyOf"][0]["items"] = {"anyOf": [{"$ref": "#/$defs/Item"}, text]}
    for name in ("items", "ratings"):
        fields[name]["anyOf"].append({**text, "description": "the path of a file"})
    from_file = {"type": "object", "properties": {"file": text, "on_mismatch": {"enum": ["refuse", "warn"]}}}
    fields["calibration"]["anyOf"] += [text, {**from_file, "required": ["file"], "additionalProperties": False}]
    fields["probes"]["items"] = {"anyOf": [{"enum": list(fields["probes"]["items"]["discriminator"]["mapping"])},
                                           fields["probes"]["items"]]}  # fmt: skip
    names_of_rules = {"enum": defined["PanelRule"]["properties"]["combine"]["enum"]}
    for table in (fields, defined["Dimension"]["properties"]):
        table["panel"]["anyOf"].append(names_of_rules)
    defined["PanelRule"]["properties"]["escalate"]["anyOf"].append({"type": "boolean"})
    described = defined["Dimension"]["properties"]
    described["scale"] = {"anyOf": [{"$ref": "#/$defs/Scale"}, {"enum": list(SHORT)}]}
    level = {"type": "object", "properties": {"means": text, "examples": {"type": "array", "items": text}}}
    described["levels"]["additionalProperties"] = {"anyOf": [text, level]}
    defined["QualityGate"]["properties"]["max_errors"]["anyOf"].append({**text, "pattern": "%\\s*$"})
    defined["Turn"]["properties"]["content"]["anyOf"].append({"type": "array"})
    for images in (defined["Turn"]["properties"]["images"], defined["Item"]["properties"]["images"]):
        images["anyOf"][0]["items"] = {"anyOf": [{"$ref": "#/$defs/Image"}, text]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "A Dicast job"}


def load_rubric(name: str) -> Dimension:
    """Return the dimension of a rubric: one of the library by its name, or one in a YAML or JSON file by its path.
    Raises `RubricError`, or `JobFileError` for a file that cannot be read."""
    return Dimension.model_validate(rubric(name, Path.cwd(), read_document))


def load_calibration(path: str, on_mismatch: Literal["refuse", "warn"] = "refuse") -> Calibration:
    """Return the calibration that `dicast calibrate` wrote to a file, for `EvaluationJob(calibration=...)`. Raises
    `CalibrationError`, or `JobFileError` for a file that cannot be read."""
    return calibration_in(path, read_document, on_mismatch)


def override(document: dict[str, Any], assignment: str) -> None:
    """Set one value of a job: `replicates=3`, `agents.0.model=gpt-4.1`, `metadata.run=night`. The value is YAML.

    Raises `JobFileError` if the path leads nowhere.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not path:
        raise JobFileError(f"--set takes KEY=VALUE, got {printable(assignment, 80)}")
    try:
        value = _yaml(text.encode("utf-8", "surrogateescape"))
        *folders, last = path.split(".")
        if folders and folders[0] in _FILES and isinstance(document.get(folders[0]), str):
            document[folders[0]] = {"path": document[folders[0]]}  # what a bare path is short for
        place: Any = document
        for name in folders:
            place = place.setdefault(name, {}) if isinstance(place, dict) else place[int(name)]
        if isinstance(place, dict):
            place[last] = value
        else:
            place[int(last)] = value
    except JobFileError as error:
        raise JobFileError(f"--set {printable(assignment, 80)}: {error}") from None
    except (ValueError, IndexError, TypeError):
        reason = _no_such_place(document, path.split("."))
        raise JobFileError(f"--set {printable(assignment, 80)}: the job has no such place{reason}") from None


def _no_such_place(document: dict[str, Any], path: list[str]) -> str:
    """Return where a path of `--set` leaves the job, and what is there."""
    place: Any = document
    for at, name in enumerate(path):
        if isinstance(place, dict):
            place = place.get(name, {})
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            field = printable(".".join(path[:at]), 80)
            if isinstance(place, list):
                counts = f"0 to {len(place) - 1}" if place else "none"
                named = [str(one.get("name", one.get("id", ""))) for one in place if isinstance(one, dict)]
                number = f", {name!r} is number {named.index(name)}" if name in named else ""
                return f": {field} is a list, whose entries have the numbers {counts}{number}"
            return f": {field} is {printable(repr(place), 60)}, which has no parts"
    return ""


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the garbage collector, which would visit the live nodes again and again and more than double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _bytes(path: str) -> bytes:
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        near = nearest_file(Path(path)) if isinstance(error, FileNotFoundError) else None
        hint = f"; did you mean {near}?" if near else ""
        raise JobFileError(f"cannot be read: {getattr(error, 'strerror', None) or error}{hint}") from None
    if len(raw) > MAX_BYTES:
        raise JobFileError(f"is larger than {MAX_BYTES >> 20} MiB; {_OWN_FILE}")
    return raw


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise JobFileError(f"line {line} is not UTF-8") from None


def _json(raw: bytes) -> Any:
    try:
        return json.loads(_text(raw), object_pairs_hook=_unique_mapping, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise JobFileError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise JobFileError("is nested too deeply") from None
    except ValueError as error:
        raise error if isinstance(error, JobFileError) else JobFileError(str(error)) from None


def _unique_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise JobFileError(f"the key {key[:60]!r} occurs twice in one mapping")
        mapping[key] = value
    return mapping


def _no_constant(name: str) -> Any:
    raise JobFileError(f"{name} is no JSON number")


def _yaml(raw: bytes) -> Any:
    loader = _Loader(_text(raw))
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_bounds(node)
        return loader.construct_document(node)
    except RecursionError:
        raise JobFileError(f"nested deeper than {MAX_DEPTH}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise JobFileError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise JobFileError(" ".join(str(error).split())) from None
    finally:
        loader.dispose()


def _check_bounds(root: yaml.Node) -> None:
    """Reject, before it is built, a document that is too large or too deep, with each alias counted in full."""
    level, depth, values = [root], 1, 1
    while level := list(islice(chain.from_iterable(map(_inner, level)), MAX_VALUES)):
        depth, values = depth + 1, values + len(level)
        if depth > MAX_DEPTH:
            raise _problem(f"nested deeper than {MAX_DEPTH}", level[0])
        if values > MAX_VALUES:
            raise _problem(f"holds more than {MAX_VALUES} values, aliases included; {_OWN_FILE}", level[0])


def _inner(node: yaml.Node) -> Iterable[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return chain.from_iterable(node.value)
    return node.value if isinstance(node, yaml.SequenceNode) else ()


class _Loader(Composer, yaml.CSafeLoader):
    """Loads YAML 1.2's core types, without the infinite numbers, and merge keys; keys are unique texts or whole
    numbers.

    It uses Python's composer, because libyaml's own overflows the stack on deeply nested brackets.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (not ClassVar: the base class says so)

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()
        self._nodes += 1
        if self._nodes > MAX_VALUES:
            raise _problem(f"holds more than {MAX_VALUES} values; {_OWN_FILE}", event)
        if getattr(event, "tag", None) is not None:
            raise _problem("tags are not allowed; write plain values, and quote a text that begins with '!'", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise _problem("a key must be a text or a whole number; put it in quotes", key_node)
            if str(key) in keys:
                raise _problem(f"the key {str(key)[:60]!r} occurs twice in one mapping", key_node)
            keys.add(str(key))
        return super().construct_mapping(node, deep)

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = node.value
        try:
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        except ValueError:
            raise _problem("a number of too many digits", node) from None


for kind, pattern, first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"^(?:{pattern})$"), first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)


def _problem(message: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=at.start_mark)


def _check_texts(document: dict[str, Any]) -> None:
    """Reject half of a surrogate pair, which JSON can spell and no store or file can hold."""
    try:
        json.dumps(document, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise JobFileError("a text holds half a character (a lone surrogate)") from None


def _absolute_files(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    for name in _FILES:
        entry = document.get(name)
        if isinstance(entry, str) and entry:
            document = {**document, name: located(entry, folder)}
        elif isinstance(entry, dict) and isinstance(entry.get("path"), str) and entry["path"]:
            document = {**document, name: {**entry, "path": located(entry["path"], folder)}}
    return document


def _kind(document: Any) -> str:
    names = {type(None): "nothing", list: "a list", str: "a text"}
    return names.get(type(document), "a single value")
