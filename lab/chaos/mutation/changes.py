"""Small changes of Python modules: one operator, value, condition, statement or argument at a time.

A module is changed as text, at places that its syntax tree gives, also where mutmut does not reach: decorated
functions, fields of classes, constants of modules. Left alone is what no test should pin: what only people read (texts
with spaces, log lines, descriptions, colours), annotations, assertions, `strict` of `zip`, the layout of data classes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

COMPARED = {
    "==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
COUNTED = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "%": "//", "**": "*", "|": "&", "&": "|", "@": "*"}
OPERATOR = re.compile(r"not\s+in\b|is\s+not\b|\bin\b|\bis\b|==|!=|<=|>=|<|>")
COUNTING = re.compile(r"\*\*|//|[-+*/%|&@]")
COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}|bold|dim|red|green|yellow|cyan")
READ_BY_PEOPLE = {"description", "title", "summary", "help", "responses", "openapi_extra"}
LOOKS = {"style", "justify", "no_wrap", "min_width", "overflow", "padding", "show_header", "highlight"}
LAYOUT = {"frozen", "slots", "kw_only", "extra", "maxsize", "strict"}
LOGS = ("logger.", "logs.", "logging.", "warnings.")


class Reach(NamedTuple):
    """Where code is run if a change is to matter: these lines of a function, by its qualified name. Outside of all
    functions, whose name is '' then, `assigned` is the name that the changed statement gives a value."""

    function: str = ""
    first: int = 0
    last: int = 0
    assigned: str = ""


class Change(NamedTuple):
    """`start` and `end` are byte offsets; `line` counts from 1; `function` is the qualified name of the innermost
    function, '' outside of all. A default or a decorator stands outside of its function, and is reached in it."""

    file: Path
    line: int
    start: int
    end: int
    new: str
    function: str
    reached: Reach

    def text(self) -> bytes:
        """The whole module with the change."""
        old = self.file.read_bytes()
        return old[: self.start] + self.new.encode() + old[self.end :]

    def compiles(self) -> bool:
        """Whether it leaves a module that Python reads."""
        try:
            ast.parse(self.text())
        except SyntaxError:
            return False
        return True

    def lines(self) -> tuple[str, str]:
        """The changed lines before and after, without their indentation."""
        old = self.file.read_bytes()
        first = old.rfind(b"\n", 0, self.start) + 1
        last = len(old) if (end := old.find(b"\n", self.end)) < 0 else end
        before, after = old[first:last], old[first : self.start] + self.new.encode() + old[self.end : last]
        return _stripped(before), _stripped(after)


def _stripped(text: bytes) -> str:
    return "\n".join(line.strip() for line in text.decode().splitlines())


def changes(file: Path) -> list[Change]:
    """All changes of a module, from top to bottom; few of them make it one that does not compile."""
    found = {(c.start, c.end, c.new): c for c in _Module(file).changes()}
    return [found[key] for key in sorted(found)]


class _Module:
    def __init__(self, file: Path) -> None:
        self._file, self._bytes = file, file.read_bytes()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def changes(self) -> Iterator[Change]:
        yield from self._within(ast.parse(self._bytes), "", "", Reach())

    def _within(self, node: ast.AST, place: str, function: str, reached: Reach) -> Iterator[Change]:
        """Changes of a node and of all below it that may be changed; `place` is the qualified name so far."""
        reached = _reach(node, place, function, reached)
        for start, end, new in self._edits(node):
            line = self._bytes.count(b"\n", 0, start) + 1
            yield Change(self._file, line, start, end, new, function, reached)
        for child in self._children(node):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and child in node.body:
                yield from self._within(child, f"{place}{node.name}.<locals>.", f"{place}{node.name}", reached)
            elif isinstance(node, ast.ClassDef) and child in node.body:
                yield from self._within(child, f"{place}{node.name}.", "", reached)
            else:
                yield from self._within(child, place, function, reached)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        skipped = _unchanged(node)
        for child in ast.iter_child_nodes(node):
            if not any(child is other for other in skipped) and not self._is_left(child):
                yield child

    def _is_left(self, node: ast.AST) -> bool:
        """Whether nothing in it is changed."""
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            return True
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):  # a docstring
                return True
            return self._text(node).removeprefix("await ").startswith(LOGS)
        if isinstance(node, ast.keyword):
            return node.arg in READ_BY_PEOPLE | LOOKS | LAYOUT
        if isinstance(node, ast.Call):
            return self._text(node.func) in ("cast", "TypeVar", "ParamSpec", "NewType")
        return isinstance(node, ast.If) and self._text(node.test).startswith(("TYPE_CHECKING", "__name__"))

    # ------------------------------------------------------------------ edits: first byte, end, what comes instead
    def _edits(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                for left, right in pairwise(sides):
                    yield from self._between(left, right, OPERATOR, COMPARED)
            case ast.BoolOp():
                swap = {"and": "or", "or": "and"}
                for left, right in pairwise(node.values):
                    yield from self._between(left, right, re.compile(r"\b(and|or)\b"), swap)
            case ast.BinOp():
                yield from self._between(node.left, node.right, COUNTING, COUNTED)
            case ast.AugAssign():
                yield from self._between(node.target, node.value, COUNTING, COUNTED)
            case ast.UnaryOp(op=ast.Not()):
                yield (*self._span(node), f"({self._text(node.operand)})")
            case ast.Constant():
                if (new := _other_value(node.value)) is not None:
                    yield (*self._span(node), new)
            case ast.If() | ast.IfExp() | ast.While():
                if not isinstance(node, ast.While):
                    yield (*self._span(node.test), f"(not ({self._text(node.test)}))")
            case ast.comprehension():
                for test in node.ifs:
                    yield (*self._span(test), f"(not ({self._text(test)}))")
            case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "NewType"))):
                return  # for type checkers alone
            case ast.Return(value=ast.expr() as value) | ast.Assign(value=value) if not isinstance(value, ast.Constant):
                yield (*self._span(value), "None")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
                yield (*self._span(node), "pass")
            case ast.Break():
                yield (*self._span(node), "continue")
            case ast.Continue():
                yield (*self._span(node), "break")
            case ast.Call():
                yield from self._fewer_arguments(node)

    def _between(
        self, left: ast.expr, right: ast.expr, operator: re.Pattern[str], swaps: dict[str, str]
    ) -> Iterator[tuple[int, int, str]]:
        gap_at, gap_end = self._span(left)[1], self._span(right)[0]
        gap = self._bytes[gap_at:gap_end].decode()
        if "#" not in gap and (found := operator.search(gap)):
            start = gap_at + len(gap[: found.start()].encode())
            yield start, start + len(found[0].encode()), swaps[" ".join(found[0].split())]

    def _fewer_arguments(self, node: ast.Call) -> Iterator[tuple[int, int, str]]:
        """The call without one of its named arguments."""
        parts = sorted([*node.args, *node.keywords], key=lambda part: (part.lineno, part.col_offset))
        for number, part in enumerate(parts):
            if isinstance(part, ast.keyword) and part.arg and not self._is_left(part):
                start, end = self._span(part)
                if number + 1 < len(parts):
                    yield start, self._span(parts[number + 1])[0], ""
                elif number:
                    yield self._span(parts[number - 1])[1], end, ""
                else:
                    yield start, end, ""

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()


def _reach(node: ast.AST, place: str, function: str, around: Reach) -> Reach:
    """Where a node is reached that is in `function`, by the place of what is around it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if not function:
            return Reach(f"{place}{node.name}", node.body[0].lineno, node.end_lineno or 0)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not function:
            return Reach(assigned=name)
        case ast.stmt() | ast.ExceptHandler() if function:
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0
            return Reach(function, node.lineno, last)
        case ast.match_case() if function:
            return Reach(function, node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1))
    return around


def _unchanged(node: ast.AST) -> list[ast.AST | None]:
    """The children of a node that are left as they are."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.returns]
        case ast.arg():
            # What FastAPI and pydantic read of an annotation is behind `Annotated`; that is changed.
            return [] if _is_annotated(node.annotation) else [node.annotation]
        case ast.AnnAssign():
            return [] if _is_annotated(node.annotation) else [node.annotation]
        case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
            return [node.value]
    return []


def _is_annotated(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Annotated"


def _other_value(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int | float):
        return repr(value + 1)
    if isinstance(value, str) and not any(map(str.isspace, value)) and not COLOUR.fullmatch(value):
        return repr(f"XX{value}")
    return None
