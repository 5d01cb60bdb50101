"""Figures of the house: lines, cycles, layers, names, docstrings, private parts, broad handlers.

python -m lab.figures          a table; exit status 1 if a rule is broken
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
PRODUCT = ("app", "workers", "config", "dicast")
LONG_FILE = 800
LONG_FUNCTION = 60
DOCSTRINGS_AT_LEAST = 0.9


class Source(NamedTuple):
    """One Python file and its tree."""

    path: str
    lines: list[str]
    tree: ast.Module


def sources(*parts: str) -> Iterator[Source]:
    """All Python files that git knows of below these folders, but for the peers' own scripts."""
    listed = subprocess.run(["git", "ls-files", *parts], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if name.endswith(".py") and not path.is_symlink() and path.exists() and "/peers/" not in name:
            text = path.read_text()
            yield Source(name, text.splitlines(), ast.parse(text))


def lines(part: str) -> tuple[int, int]:
    """Lines of Python and of Lua below a folder."""
    scripts = (ROOT / part).rglob("*.lua")
    return sum(len(s.lines) for s in sources(part)), sum(len(p.read_text().splitlines()) for p in scripts)


def cycles() -> list[list[str]]:
    """Groups of modules that import each other, imports inside functions and for types alone included."""
    graph = grimp.build_graph("dicast", cache_dir=None)
    imports = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    return [group for group in _components(imports) if len(group) > 1]


def _components(edges: dict[str, list[str]]) -> Iterator[list[str]]:
    """Strongly connected components, by Tarjan's algorithm (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            yield stack[at:]
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            yield from visit(node)


def repeated_classes(found: Iterable[Source]) -> dict[str, list[str]]:
    """Public class names that more than one file defines."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for source in found:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(source.path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def documented(found: Iterable[Source]) -> Counter[bool]:
    """How many public functions and classes of modules have a docstring, and how many have none."""
    counted: Counter[bool] = Counter()
    for source in found:
        for node in _public(source.tree.body):
            counted[ast.get_docstring(node) is not None] += 1
    return counted


Described = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public(body: list[ast.stmt]) -> Iterator[Described]:
    for node in body:
        if isinstance(node, Described) and not node.name.startswith("_"):
            yield node


def broad(found: Iterable[Source]) -> list[str]:
    """Where `except Exception` has no comment, on its line or beside its first statement, that gives the reason."""
    bare = []
    for source in found:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ExceptHandler) or not isinstance(node.type, ast.Name):
                continue
            if node.type.id not in ("Exception", "BaseException"):
                continue
            end = node.body[0].end_lineno or node.lineno
            if "#" not in "".join(source.lines[node.lineno - 1 : end]):
                bare.append(f"{source.path}:{node.lineno}")
    return bare


def long_functions(found: Iterable[Source]) -> list[str]:
    """Those of more than `LONG_FUNCTION` lines."""
    return [
        f"{source.path}:{node.lineno} {node.name}"
        for source in found
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION
    ]


def main() -> int:
    """Print all figures; 1 if a rule is broken."""
    product = list(sources(*PRODUCT))
    everything = [*product, *sources("lab")]
    rules: list[tuple[str, int | str, bool]] = []
    for part in (*PRODUCT, "lab", "tests"):
        python, lua = lines(part)
        print(f"{f'lines in {part}/':52} {python:>7,} Python" + (f", {lua:,} Lua" if lua else ""))
    found = cycles()
    rules.append(("cycles of imports, those in functions included", len(found), not found))
    linter = Path(sys.executable).with_name("lint-imports")
    broken = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, check=False).returncode != 0
    rules.append(("layers", "broken" if broken else "kept", not broken))
    repeated = repeated_classes(everything)
    rules.append(("public class names that exist twice", len(repeated), not repeated))
    counted = documented(product)
    share = counted[True] / counted.total()
    rules.append(("public functions and classes with a docstring", f"{share:.1%}", share >= DOCSTRINGS_AT_LEAST))
    bare = broad(product)
    rules.append(("`except Exception` without its reason", len(bare), not bare))
    for what, figure, _ in rules:
        print(f"{what:52} {figure:>7}")
    longest = [f"{s.path} {len(s.lines)}" for s in product if len(s.lines) > LONG_FILE]
    print(f"{f'files over {LONG_FILE} lines':52} {len(longest):>7}  {', '.join(longest)}")
    print(f"{f'functions over {LONG_FUNCTION} lines':52} {len(long_functions(product)):>7}")
    for detail in (*map(str, found), *(f"{name}: {', '.join(paths)}" for name, paths in repeated.items()), *bare):
        print(f"  {detail}")
    return 0 if all(kept for _, _, kept in rules) else 1


if __name__ == "__main__":
    sys.exit(main())
