"""Measures the code by rules of its structure, and fails where one is broken.

python -m lab.figures          a table; exit status 1 if a rule is broken

The rules cover the product (`PRODUCT`); where it says so, `lab/` as well. Each function below measures one thing and
names what breaks the rule, so that the table can list it.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
PRODUCT = ("app", "workers", "config", "dicast")
FILES_AT_MOST = 290
LONG_FILE = 800
SHORT_FILE = 60
SHORT_FILES_AT_MOST = 0.15
MEDIAN_FILE_AT_LEAST = 150
# A file of so few lines only marks a package, and counts neither as short nor for the median.
EMPTY_FILE = 5
LONG_FUNCTION = 60
DOCSTRINGS_AT_LEAST = 0.9
FRAGMENTS_AT_MOST = 30
ONLY_CHILDREN_AT_MOST = 15
VAGUE_PER_1000_AT_MOST = 5.0

# Participles and pronouns that leave out which noun they stand for. `told` may be an opinion, a limit or a status: the
# noun is the better name. A few are fine where the noun is in the same line; hence a share and no ban.
VAGUE = frozenset(
    re.findall(
        r"\w+",
        "again answer answered asked because counted each found gave given gone got had heard held here it kept known "
        "left listed look looked made named of one own refused said saw seen shown spared stuff tell tells that thing "
        "things told wanted what wished words",
    )
)

# A docstring that begins with one of these words, and has no verb up to its first full stop, is a fragment.
OPENINGS = re.compile(
    r"(After|Also|As|At|Before|Behind|Beside|By|For|From|How|In|It|None|Not|Of|On|So|They|To|What|When|Where|Whether|"
    r"Which|Who|Whose|Why|With|Without)\b"
)
VERBS = re.compile(
    r"\b(is|are|was|were|be|has|have|had|do|does|can|may|must|will|would|comes?|counts?|ends?|gives?|goes|holds?|keeps?|"
    r"makes?|needs?|raises?|reads?|returns?|says?|sends?|shows?|takes?|tells?|writes?)\b"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """One Python file and its tree."""

    path: str
    lines: list[str]
    tree: ast.Module


class Gauge(NamedTuple):
    """One figure, whether it is as it must be, and what breaks the rule or comes near it."""

    name: str
    figure: str
    holds: bool
    details: Sequence[str] = ()


def sources(*parts: str) -> Iterator[Source]:
    """Yield all Python files below these folders that git knows, but for the peers' own scripts."""
    listing = subprocess.run(["git", "ls-files", *parts], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listing.stdout.split():
        path = ROOT / name
        if name.endswith(".py") and not path.is_symlink() and path.exists() and "/peers/" not in name:
            text = path.read_text()
            yield Source(name, text.splitlines(), ast.parse(text))


def count_lines(part: str) -> tuple[int, int]:
    """Return the lines of Python and of Lua below a folder."""
    scripts = (ROOT / part).rglob("*.lua")
    return sum(len(s.lines) for s in sources(part)), sum(len(p.read_text().splitlines()) for p in scripts)


def imports_of_product() -> dict[str, list[str]]:
    """Return the modules that each module imports, inside functions and for types alone included."""
    graph = grimp.build_graph("dicast", cache_dir=None)
    return {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def without_markers(imports: Mapping[str, Iterable[str]], files: Iterable[Source]) -> dict[str, list[str]]:
    """Leave out the modules that only mark a package."""
    markers = {
        ".".join(("dicast", *Path(source.path).parent.parts))
        for source in files
        if Path(source.path).name == "__init__.py" and len(source.lines) <= EMPTY_FILE
    }
    modules = imports.keys() - markers
    return {module: [other for other in imports[module] if other in modules] for module in imports if module in modules}


def cycles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    return [group for group in _components(imports) if len(group) > 1]


def _components(edges: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components, by Tarjan's algorithm (1972)."""
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


def only_children(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules that only one other module imports, one of the same package: they may belong into it."""
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module, imported in imports.items():
        for other in imported:
            importers[other].add(module)
    return sorted(
        f"{module} <- {importer}"
        for module, (importer, *others) in importers.items()
        if not others and importer.rpartition(".")[0] == module.rpartition(".")[0]
    )


def repeated_classes(files: Iterable[Source]) -> dict[str, list[str]]:
    """Return the public class names that more than one file defines, with these files."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for source in files:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(source.path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def documented(files: Iterable[Source]) -> Counter[bool]:
    """Return how many public functions and classes of modules have a docstring, and how many have none."""
    return Counter(
        ast.get_docstring(node) is not None
        for source in files
        for node in source.tree.body
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
    )


def fragments(files: Iterable[Source]) -> list[str]:
    """Return where a docstring begins like a clause and has no verb in its first sentence."""
    places = []
    for source in files:
        for node in ast.walk(source.tree):
            if not isinstance(node, Function | ast.ClassDef | ast.Module):
                continue
            sentence = re.split(r"(?<=[.:;])\s", ast.get_docstring(node) or "", maxsplit=1)[0]
            if OPENINGS.match(sentence) and not VERBS.search(sentence):
                places.append(f"{source.path}:{getattr(node, 'lineno', 1)} {sentence[:80]}")
    return places


def vague_names(files: Sequence[Source]) -> tuple[float, float]:
    """Return how many of 1,000 functions, and of 1,000 assignments, bear one of the names in `VAGUE`."""
    functions: Counter[bool] = Counter()
    assignments: Counter[bool] = Counter()
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, Function):
                functions[node.name.lstrip("_") in VAGUE] += 1
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                assignments[node.id.lstrip("_") in VAGUE] += 1
    return _per_1000(functions), _per_1000(assignments)


def _per_1000(counts: Counter[bool]) -> float:
    return 1000 * counts[True] / max(1, counts.total())


def broad_handlers(files: Iterable[Source]) -> list[str]:
    """Return where `except Exception` has no comment, on its line or beside its first statement, with the reason."""
    bare = []
    for source in files:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ExceptHandler) or not isinstance(node.type, ast.Name):
                continue
            if node.type.id not in ("Exception", "BaseException"):
                continue
            end = node.body[0].end_lineno or node.lineno
            if "#" not in "".join(source.lines[node.lineno - 1 : end]):
                bare.append(f"{source.path}:{node.lineno}")
    return bare


def long_files(files: Iterable[Source]) -> list[str]:
    """Return the files of more than `LONG_FILE` lines."""
    return [f"{source.path} {len(source.lines)}" for source in files if len(source.lines) > LONG_FILE]


def long_functions(files: Iterable[Source]) -> list[str]:
    """Return the functions of more than `LONG_FUNCTION` lines."""
    return [
        f"{source.path}:{node.lineno} {node.name}"
        for source in files
        for node in ast.walk(source.tree)
        if isinstance(node, Function) and (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION
    ]


def size_rules(files: Sequence[Source]) -> list[Gauge]:
    """Return the rules on how many files and functions there are, and how long they may be."""
    sizes = [len(source.lines) for source in files if len(source.lines) > EMPTY_FILE]
    short = sum(size < SHORT_FILE for size in sizes) / len(sizes)
    median = statistics.median(sizes)
    files_over, functions_over = long_files(files), long_functions(files)
    return [
        Gauge(f"files (at most {FILES_AT_MOST})", f"{len(files)}", len(files) <= FILES_AT_MOST),
        Gauge(
            f"median length of a file (at least {MEDIAN_FILE_AT_LEAST} lines)",
            f"{median:g}",
            median >= MEDIAN_FILE_AT_LEAST,
        ),
        Gauge(
            f"files below {SHORT_FILE} lines (at most {SHORT_FILES_AT_MOST:.0%})",
            f"{short:.0%}",
            short <= SHORT_FILES_AT_MOST,
        ),
        Gauge(f"files over {LONG_FILE} lines", f"{len(files_over)}", not files_over, files_over),
        Gauge(f"functions over {LONG_FUNCTION} lines", f"{len(functions_over)}", not functions_over, functions_over),
    ]


def layers_broken() -> str:
    """Return what import-linter says about broken layers, and nothing if all are kept."""
    linter = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    return (checked.stdout or "lint-imports failed") if checked.returncode else ""


def import_rules(imports: Mapping[str, Iterable[str]]) -> list[Gauge]:
    """Return the rules on what imports what; the layers are checked by import-linter."""
    groups = [", ".join(group) for group in cycles(imports)]
    alone = only_children(imports)
    breach = layers_broken()
    return [
        Gauge("cycles of imports, those in functions included", f"{len(groups)}", not groups, groups),
        Gauge("layers", "broken" if breach else "kept", not breach, [breach] if breach else ()),
        Gauge(
            f"modules that only one sibling imports (at most {ONLY_CHILDREN_AT_MOST})",
            f"{len(alone)}",
            len(alone) <= ONLY_CHILDREN_AT_MOST,
            alone,
        ),
    ]


def wording_rules(files: Sequence[Source], with_lab: Sequence[Source]) -> list[Gauge]:
    """Return the rules on names, docstrings and reasons."""
    repeated = [f"{name}: {', '.join(paths)}" for name, paths in repeated_classes(with_lab).items()]
    counts = documented(files)
    share = counts[True] / max(1, counts.total())
    clauses, bare = fragments(files), broad_handlers(files)
    of_functions, of_assignments = vague_names(files)
    return [
        Gauge("public class names that exist twice", f"{len(repeated)}", not repeated, repeated),
        Gauge("public functions and classes with a docstring", f"{share:.1%}", share >= DOCSTRINGS_AT_LEAST),
        Gauge(
            f"docstrings that begin as a fragment (at most {FRAGMENTS_AT_MOST})",
            f"{len(clauses)}",
            len(clauses) <= FRAGMENTS_AT_MOST,
            clauses,
        ),
        *(
            Gauge(
                f"vague names of 1,000 {kind} (at most {VAGUE_PER_1000_AT_MOST:g})",
                f"{rate:.1f}",
                rate <= VAGUE_PER_1000_AT_MOST,
            )
            for kind, rate in (("functions", of_functions), ("assignments", of_assignments))
        ),
        Gauge("`except Exception` without its reason", f"{len(bare)}", not bare, bare),
    ]


def main() -> int:
    """Print all figures, and what breaks a rule; return 1 if a rule is broken."""
    product = list(sources(*PRODUCT))
    for part in (*PRODUCT, "lab", "tests"):
        python, lua = count_lines(part)
        print(f"{f'lines in {part}/':58} {python:>7,} Python" + (f", {lua:,} Lua" if lua else ""))
    rules = [
        *size_rules(product),
        *import_rules(without_markers(imports_of_product(), product)),
        *wording_rules(product, [*product, *sources("lab")]),
    ]
    for rule in rules:
        print(f"{rule.name:58} {rule.figure:>7}" + ("" if rule.holds else "  BROKEN"))
    for rule in rules:
        if rule.details:
            print(f"\n{rule.name}:", *(f"  {detail}" for detail in rule.details), sep="\n")
    return 0 if all(rule.holds for rule in rules) else 1


if __name__ == "__main__":
    sys.exit(main())
