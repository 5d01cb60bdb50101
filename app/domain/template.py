"""Templates: how a job's author arranges the material before a judge reads it. Jinja2, sandboxed, within bounds.

The author writes the words around the values; every value that the template prints is quoted line by line, whatever
the template has done to it. The renderer does not trust the template for that: in its output each value is only a mark,
made of the call's nonce, and the value is quoted and put there afterwards, so that no filter ever holds a fence.
Whatever could change the output as a whole (macros, filter blocks, captured blocks, other templates) is refused.

Work is counted and not timed: each step of a loop and each operation is one, and costs something by the weight of what
it handles, which is all that can be reached from it: a list that stands eight times in another one weighs eight times.
A template that has spent `STEPS` or `WORK` (more for large items) ends with a `TemplateError`, on every machine at the
same place, so that no job fails on a slow machine that passes on a fast one. The operations that could do much at once
(`*`, `**`, `%`, calls, ranges, padding filters) do not exist.

These counts are the first bound and not the only one: whatever they overlook meets the bounds on time and memory of the
process that renders (app/submission/rendering.py). Nothing else in production calls `rendered`, `arranged` or
`check_template`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, UndefinedError, nodes, pass_context
from jinja2 import Template as Compiled
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from dicast.app.domain.image import Image, display_name
from dicast.app.domain.item import Item, ItemKind, Turn
from dicast.app.domain.material import TemplateError, quote_lines
from dicast.errors import alternatives

MAX_TEMPLATE_CHARS = 20_000
STEPS = 200_000
"""The most loop steps and operations: some tenths of a second."""
WORK = 1_000_000
"""The most work, in addition to 64 for each byte of the item's texts."""
STEP = 50
CHARACTER = 8
"""The cost of an operation for each character that it handles or makes."""
ENTRY = 32
"""The cost of an operation for each entry that it reaches, by the time of a visit and the memory that a new entry
needs."""
DEPTH = 250
"""The most levels of nested lists and mappings that an operation goes through."""
RENDERED_CHARS = 200_000
"""The most characters of a rendered template beyond four times the item's texts."""
RESERVED = (">", "MATERIAL", "END OF MATERIAL", "NONCE:", "SCALE:", "LABELS:", "QUESTIONS:", "CRITERION:", "IMAGE ")
JUDGED: Mapping[ItemKind, tuple[str, ...]] = {
    "text": ("text",), "pair": ("text_a", "text_b"), "conversation": ("messages",), "candidates": ()
}  # fmt: skip
"""What a template must show of an item of each kind; lists of candidates are judged as pairs."""
FIELDS = frozenset({"id", "metadata", "prompt", "reference", "images"}.union(*JUDGED.values()))

_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.Name, nodes.Const,
    nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.Compare, nodes.Operand, nodes.And,
    nodes.Or, nodes.Not, nodes.Neg, nodes.Add, nodes.Sub, nodes.CondExpr, nodes.Concat, nodes.List, nodes.Tuple,
)  # fmt: skip
_LOOP = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"})
_TESTS = frozenset({"defined", "undefined", "none", "string", "number", "mapping", "sequence", "boolean"})


class _Budget:
    def __init__(self, text_bytes: int, mark: str) -> None:
        self.remaining, self.steps = WORK + 64 * text_bytes, STEPS
        self.characters = RENDERED_CHARS + 4 * text_bytes
        self.values: list[str] = []
        self.mark = mark

    def spend(self, work: int) -> None:
        self.remaining -= work
        self.steps -= 1
        if self.remaining < 0 or self.steps < 0:
            raise TemplateError("it does too much: a loop goes on too long, or values grow too large")

    def handle(self, *values: Any) -> None:
        """Pay for one operation on these values."""
        self.spend(STEP + sum(_weight(value, self.remaining) for value in values))

    def write(self, characters: int) -> None:
        self.spend(characters)
        self.characters -= characters
        if self.characters < 0:
            raise TemplateError("it writes too much")


_budget: ContextVar[_Budget] = ContextVar("budget")


def check_template(source: str) -> None:
    """Check that the template can be used at all. Raises `TemplateError`."""
    _compiled(source)


def rendered(source: str, item: Item, nonce: str) -> list[str]:
    """Return the item's material as the template arranges it, in lines: the author's own, and values quoted with `> `.
    It is deterministic. Raises `TemplateError`, naming the item."""
    return arranged(source, plain(item), nonce)[0]


def plain(item: Item) -> dict[str, Any]:
    """Return everything that a template may know of the item, as data that JSON can hold."""
    fields: dict[str, Any] = {"id": item.id, "metadata": item.metadata, "images": _pictures(item, item.images or ())}
    texts = ("text", "text_a", "text_b", "prompt", "reference")
    fields |= {name: value for name in texts if (value := getattr(item, name)) is not None}
    if item.messages is not None:
        fields["messages"] = [_turn(item, turn) for turn in item.messages]
    return {"kind": item.kind, "bytes": item.text_bytes, "fields": fields}


def arranged(source: str, material: Mapping[str, Any], nonce: str) -> tuple[list[str], int]:
    """Return the lines of `rendered` for an item that is `plain`, and the work that they took.

    Raises `TemplateError`, and MemoryError if this process may allocate no more.
    """
    name = material["fields"]["id"]
    budget = _Budget(material["bytes"], nonce)
    most = budget.remaining
    token = _budget.set(budget)
    try:
        template, used = _compiled(source)
        _check_judged(material["kind"], used)
        pieces = []
        for piece in template.root_render_func(template.new_context(material["fields"])):
            budget.write(len(piece))
            pieces.append(piece)
        return _fenced("".join(pieces), nonce, budget.values), most - budget.remaining
    except UndefinedError as error:
        raise TemplateError(f"item {name!r}: {error.message}") from None
    except TemplateError as error:
        raise TemplateError(f"item {name!r}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever operations raise on values that do not fit them)
        raise TemplateError(f"item {name!r}: {str(error) or type(error).__name__}"[:300]) from None
    finally:
        _budget.reset(token)


def _turn(item: Item, turn: Turn) -> dict[str, Any]:
    """Return a message as data, with its tool calls as JSON text."""
    optional = {"name": turn.name, "tool_calls": turn.calls or None, "tool_call_id": turn.tool_call_id}
    always = {"role": turn.role, "content": turn.content or "", "images": _pictures(item, turn.images or ())}
    return always | {name: value for name, value in optional.items() if value is not None}


def _pictures(item: Item, images: Sequence[Image]) -> list[dict[str, Any]]:
    """Return what a template may know of images; each image stands after the template's text, under its number."""
    numbers = {id(image): number for number, image in enumerate(item.all_images, 1)}
    return [
        {"number": numbers[id(image)], "name": display_name(image, f"image {numbers[id(image)]}"),
         "description": image.description or ""}
        for image in images
    ]  # fmt: skip


def _check_judged(kind: ItemKind, used: Set[str]) -> None:
    missing = [name for name in JUDGED[kind] if name not in used]
    if missing:
        placeholders = " and ".join(f"{{{{ {name} }}}}" for name in missing)
        are = "is" if len(missing) == 1 else "are"
        raise TemplateError(f"it shows nothing of what is judged: {placeholders} {are} missing")


def _fenced(whole: str, nonce: str, values: list[str]) -> list[str]:
    lines: list[str] = []
    for place, piece in enumerate(re.split(rf"\x00{nonce}:(\d+)\x00", whole)):
        if place % 2:
            lines += (quote_lines(values[int(piece)]) or ">").split("\n")
            continue
        for line in piece.splitlines():
            if line.strip():
                if line.lstrip().startswith(RESERVED):
                    raise TemplateError(f"a line of its own words begins like the request: {line.strip()[:60]!r}")
                lines.append(line.rstrip())
    if nonce in "\n".join(lines).lower():
        raise TemplateError("it prints the code that ends the material")
    return lines


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which only data can be reached: no attribute or method of an object."""

    intercepted_binops = frozenset({"+", "-"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        _budget.get().spend(STEP)
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self.undefined(f"it has no {attribute!r}", obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _budget.get().spend(STEP)
        is_readable = isinstance(obj, Mapping) if isinstance(argument, str) else isinstance(obj, list | tuple | str)
        if is_readable and isinstance(argument, str | int):
            try:
                return obj[argument]
            except LookupError:
                pass
        if isinstance(argument, str):
            description = repr(argument[:60])
        else:
            near = isinstance(argument, int) and argument.bit_length() < 64
            description = str(argument) if near else f"entry of that {type(argument).__name__}"
        return self.undefined(f"it has no {description}", obj=obj, name=description)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _budget.get().handle(left, right)
        return super().call_binop(context, operator, left, right)


class _Counted(NodeTransformer):
    """Wraps what the environment does not intercept, so that it is counted: loops, joined texts, comparisons,
    slices."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  as Jinja2 calls it
        self.generic_visit(node)
        node.iter = _through("_steps", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  as Jinja2 calls it
        self.generic_visit(node)
        return _through("_joined", nodes.List(node.nodes))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  as Jinja2 calls it
        self.generic_visit(node)
        node.expr = _through("_weighed", node.expr)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:  # noqa: N802  as Jinja2 calls it
        self.generic_visit(node)
        node.expr = _through("_weighed", node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  as Jinja2 calls it
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through("_weighed", node.node)
        return node


def _through(name: str, value: Any) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None)


@lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[Compiled, Set[str]]:
    """Return the compiled template, and the names that it uses."""
    if len(source) > MAX_TEMPLATE_CHARS:
        raise TemplateError(f"it has more than {MAX_TEMPLATE_CHARS} characters")
    if "\x00" in source:
        raise TemplateError("it holds the character U+0000")
    if not _whole(source):
        raise TemplateError("it holds half a character (a lone surrogate)")
    try:
        tree = _environment.parse(source)
        used = _check(tree)
        code = _environment.compile(_Counted().visit(tree))
        return Compiled.from_code(_environment, code, {}, None), used
    except TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, TemplateError):
            raise
        raise TemplateError("it is nested too deeply, or has a number of too many digits") from None


def _check(tree: nodes.Template) -> Set[str]:
    for node in tree.find_all(nodes.Node):
        kind = type(node).__name__
        if isinstance(node, nodes.Operand | nodes.Keyword | nodes.Pair):
            continue
        if not isinstance(node, _ALLOWED) or (isinstance(node, nodes.For) and node.recursive):
            raise TemplateError(f"line {node.lineno}: templates have no {kind.lower()}, only if, for, set and filters")
        if isinstance(node, nodes.Filter) and (node.node is None or node.name not in FILTERS):
            raise TemplateError(_unknown(node, "filter", FILTERS))
        if isinstance(node, nodes.Test) and node.name not in _TESTS:
            raise TemplateError(_unknown(node, "test", sorted(_TESTS)))
        if isinstance(node, nodes.Const):
            _check_constant(node)
        if isinstance(node, nodes.Name) and node.name == "self":
            raise TemplateError(f"line {node.lineno}: templates have no self")
    used = find_undeclared_variables(tree)
    for name in sorted(used - FIELDS):
        raise TemplateError(f"items have no {name!r}{alternatives(name, sorted(FIELDS))}")
    if not any(used.issuperset(names) for names in JUDGED.values() if names):
        raise TemplateError(
            "it shows nothing of what is judged: {{ text }} is missing, or {{ text_a }} and {{ text_b }}, or "
            "{{ messages }}"
        )
    return used


def _check_constant(node: nodes.Const) -> None:
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise TemplateError(f"line {node.lineno}: a number is too large; they end at 1.7e308")
    if isinstance(node.value, str) and not _whole(node.value):
        raise TemplateError(f"line {node.lineno}: a text holds half a character (a lone surrogate)")


def _whole(text: str) -> bool:
    """Whether UTF-8 can encode the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unknown(node: Any, kind: str, choices: Iterable[str]) -> str:
    return f"line {node.lineno}: there is no {kind} {node.name!r}{alternatives(node.name, choices)}"


@pass_context
def _finalize(_context: Any, value: Any) -> str:
    """Print a mark in the value's place; the context argument keeps Jinja2 from doing this at compile time."""
    if isinstance(value, Undefined):
        str(value)
    budget = _budget.get()
    if not isinstance(value, str):
        budget.handle(value)
    text: str = value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    budget.write(len(text))
    budget.values.append(text)
    return f"\x00{budget.mark}:{len(budget.values) - 1}\x00"


def _weight(value: Any, most: int) -> int:
    """Return the weight of the value with everything that is reached from it; a value that is reached twice weighs
    twice.

    Counting ends beyond `most`. Raises `TemplateError` for what is nested deeper than `DEPTH`.
    """
    if isinstance(value, str):
        return CHARACTER * len(value)
    weight, level = 0, [value]
    for _ in range(DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, str):
                weight += CHARACTER * len(node)
            elif isinstance(node, list | tuple | Mapping):
                weight += ENTRY * len(node) * (2 if isinstance(node, Mapping) else 1)
                if weight > most:
                    return weight
                inner.extend(node)
                if isinstance(node, Mapping):
                    inner.extend(node.values())
            elif isinstance(node, int):
                weight += CHARACTER * (node.bit_length() >> 3)
        if not inner or weight > most:
            return weight
        level = inner
    raise TemplateError(f"values are nested deeper than {DEPTH}")


def _steps(values: Any) -> Iterator[Any]:
    if isinstance(values, Undefined):
        iter(values)
    if not isinstance(values, str | list | tuple | dict):
        raise TemplateError(f"a loop goes over a text or a list, not {type(values).__name__}")
    for value in values:
        _budget.get().spend(2 * STEP)
        yield value


def _weighed(value: Any) -> Any:
    _budget.get().handle(value)
    return value


def _joined(values: Iterable[Any], separator: str = "") -> str:
    texts = []
    for value in values:
        text = value if isinstance(value, str) else str(value)
        _budget.get().spend(CHARACTER * (len(text) + len(separator)) + 1)
        texts.append(text)
    return separator.join(texts)


def _replace(value: Any, old: str, new: str) -> str:
    text = str(value)
    grown = (text.count(old) if old else len(text) + 1) * max(len(new) - len(old), 0)
    _budget.get().spend(CHARACTER * (grown + len(text)))
    return text.replace(old, new)


def _items(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [] if isinstance(value, Undefined) else list(value.items())


def _default(value: Any, otherwise: Any = "") -> Any:
    return otherwise if isinstance(value, Undefined) or value is None else value


FILTERS: dict[str, Callable[..., Any]] = {
    "capitalize": lambda value: str(value).capitalize(),
    "default": _default,
    "first": lambda value: value[0],
    "items": _items,
    "join": _joined,
    "last": lambda value: value[-1],
    "length": len,
    "list": list,
    "lower": lambda value: str(value).lower(),
    "replace": _replace,
    "reverse": lambda value: value[::-1],
    "title": lambda value: str(value).title(),
    "tojson": lambda value: json.dumps(value, ensure_ascii=False),
    "trim": lambda value: str(value).strip(),
    "upper": lambda value: str(value).upper(),
}
"""The filters that templates may use. None costs more than a few times its value's size."""


def _charged(function: Callable[..., Any]) -> Callable[..., Any]:
    def charged(*values: Any) -> Any:
        budget = _budget.get()
        budget.handle(*values)
        result = function(*values)
        if isinstance(result, str):
            budget.spend(CHARACTER * len(result))
        elif isinstance(result, list):
            budget.spend(ENTRY * len(result))
        return result

    return charged


_environment = _Environment(
    undefined=StrictUndefined, finalize=_finalize, autoescape=False, optimized=False, trim_blocks=True,
    lstrip_blocks=True, cache_size=0,
)  # fmt: skip
_environment.globals.clear()
_environment.filters = {name: _charged(function) for name, function in FILTERS.items()}
_environment.filters |= {"_weighed": _weighed, "_joined": _charged(_joined), "_steps": _steps}
