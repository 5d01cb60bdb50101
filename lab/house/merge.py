"""Merges modules by the plan in `plan.json`: new modules, each with those that become its parts, and folders that move.

    python -m lab.house.merge --check     # names what stands in the way: names that two parts use for different things
    python -m lab.house.merge             # rewrites the tree; then ruff check --fix, ruff format, mypy, lint-imports

The parts of a module follow each other in the order of their imports, its docstring is theirs in the order of the plan,
and imports, dotted names and paths in code, strings, comments and documents follow. What depends on the import of a
heavy library, on the layers in `pyproject.toml`, and the tables of docs/architecture.md are left to a person.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parents[2]
PRODUCT = ("app", "workers", "config")
OTHERS = ("tests", "lab", "examples", "dicast")
KEPT = ("CHANGELOG.md", "docs/benchmarks", "lab/house/")
"""What is history, or speaks of the old names on purpose."""
TEXTS = {".md", ".toml", ".lua", ".yml", ".yaml", ".txt", ".js", ".html", ".j2", ".service", ".sh", ""}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Import(NamedTuple):
    """One name that a module imports at its top."""

    module: str
    """Empty where a module itself is imported."""
    name: str
    bound: str | None
    comment: str

    def __str__(self) -> str:
        source = f"from {self.module} import {self.name}" if self.module else f"import {self.name}"
        bound = f" as {self.bound}" if self.bound else ""
        return f"{source}{bound}{f'  {self.comment}' if self.comment else ''}"


class ModuleSource:
    """A file's text and tree, and where a node stands in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def position(self, line: int, offset: int) -> int:
        """Return the index of an offset in bytes of a line, which counts from 1."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:offset].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends."""
        begins = self.position(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return begins, self.position(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def rows(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node's first line begins, decorators included, and where its last one ends."""
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])  # type: ignore[attr-defined]
        return self.starts[first - 1], self.starts[node.end_lineno]  # type: ignore[attr-defined]

    def names(self) -> dict[str, ast.stmt]:
        """Return what the module defines at its top."""
        defined: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            if isinstance(node, Definition):
                defined.setdefault(node.name, node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
                defined |= {name: node for name in names if name not in defined}
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For) and not type_checking(node):
                for each in ast.walk(node):
                    if isinstance(each, Definition):
                        defined.setdefault(each.name, node)
                    elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                        defined.setdefault(each.id, node)
        return defined


def type_checking(node: ast.AST) -> bool:
    """Return whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


class Edit(NamedTuple):
    """A stretch of a text, and what takes its place."""

    begins: int
    ends: int
    text: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits; of overlapping ones the outer, earlier one counts."""
    parts, at = [], 0
    for edit in sorted(edits, key=lambda each: (each.begins, -each.ends)):
        if edit.begins >= at:
            parts += [text[at : edit.begins], edit.text]
            at = edit.ends
    return "".join([*parts, text[at:]])


class Plan:
    """What becomes of each module."""

    def __init__(self) -> None:
        plan = json.loads((HOME / "lab" / "house" / "plan.json").read_text())
        self.folders = {f"dicast.{old}": f"dicast.{new}" for old, new in plan["folders"].items()}
        self.files = {name: path for top in PRODUCT for name, path in _modules(top)}
        self.parts = {f"dicast.{new}": [f"dicast.{old}" for old in olds] for new, olds in plan["modules"].items()}
        unknown = [old for olds in self.parts.values() for old in olds if old not in self.files]
        if unknown:
            raise SystemExit(f"the plan names modules that are not there: {', '.join(unknown)}")
        self.new = {old: new for new, olds in self.parts.items() for old in olds}
        self.emptied = [name for name in self.files if name in self.folders and name not in self.new]
        for name in self.files.keys() - self.new.keys() - set(self.emptied):
            folder, leaf = name.rsplit(".", 1)
            self.new[name] = f"{self.folders[folder]}.{leaf}" if folder in self.folders else name
            self.parts[self.new[name]] = [name]
        self.packages = {new for new in self.parts if any(other.startswith(f"{new}.") for other in self.parts)}

    def target(self, module: str | None, name: str) -> tuple[str, bool] | None:
        """Return the new module of `from module import name`, and whether the name is that module itself."""
        if f"{module}.{name}" in self.new:
            return self.new[f"{module}.{name}"], True
        return (self.new[module], False) if module in self.new else None

    def file(self, new: str) -> Path:
        """Return where a new module lies."""
        return HOME / (
            new.removeprefix("dicast.").replace(".", "/") + ("/__init__.py" if new in self.packages else ".py")
        )

    def text(self, text: str) -> str:
        """Return a text with all dotted names and paths of modules as they will be."""

        def dotted(name: str) -> str:
            parts = name.split(".")
            for count in range(len(parts), 2, -1):
                if (module := ".".join(parts[:count])) in self.new:
                    return ".".join([self.new[module], *parts[count:]])
            return name

        def path(match: re.Match[str]) -> str:
            module = f"dicast.{match[1].removesuffix('/__init__').replace('/', '.')}"
            return str(self.file(self.new[module]).relative_to(HOME)) if module in self.new else match[0] or ""

        tops = "|".join(PRODUCT)
        short = rf"(?<=[\"'])(?:{tops})(?:\.\w+)+(?=[\"'])"
        text = re.sub(short, lambda match: dotted(f"dicast.{match[0]}").removeprefix("dicast."), text)
        text = re.sub(rf"\bdicast\.(?:{tops})(?:\.\w+)+", lambda match: dotted(match[0]), text)
        return re.sub(rf"\b((?:{tops})/[\w/]+)\.py\b", path, text)


def _modules(top: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((HOME / top).rglob("*.py")):
        name = ".".join(("dicast", *path.relative_to(HOME).with_suffix("").parts))
        yield name.removesuffix(".__init__"), path


class Rewriting:
    """One file's imports, names and strings, as they will be. `new` is the module that the file becomes a part of, and
    whose imports are collected; None leaves imports in their places."""

    def __init__(self, plan: Plan, source: ModuleSource, new: str | None, where: str) -> None:
        self.plan, self.source, self.new, self.where = plan, source, new, where
        self.edits: list[Edit] = []
        self.imports: list[Import] = []
        self.type_imports: list[Import] = []
        self.problems: list[str] = []
        self._own_modules: set[str] = set()
        self._own_names: dict[str, str] = {}
        nodes = list(ast.walk(source.tree))
        stored = (each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        self._locals = Counter([*stored, *(each.arg for each in nodes if isinstance(each, ast.arg))])
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                self._from(node)
            elif isinstance(node, ast.Import):
                self._import(node)
        for node in source.tree.body if new else ():
            if type_checking(node):
                self.edits.append(Edit(*source.rows(node), ""))
        for node in nodes:
            self._name(node)
        self._strings()

    def _place(self, node: ast.AST) -> str:
        parent = self.source.parents[node]
        if parent is self.source.tree:
            return "top"
        return "types" if type_checking(parent) and self.source.parents.get(parent) is self.source.tree else "inner"

    def _collect(self, node: ast.stmt, place: str, names: Iterable[tuple[str, str, str | None]]) -> None:
        comment = re.search(r"#\s*noqa.*", self.source.lines[(node.end_lineno or 1) - 1])
        into = self.imports if place == "top" else self.type_imports
        into += [Import(*each, comment[0] if comment else "") for each in names]
        self.edits.append(Edit(*self.source.rows(node), ""))

    def _from(self, node: ast.ImportFrom) -> None:
        place = self._place(node)
        if node.module == "__future__":
            if self.new:
                self.edits.append(Edit(*self.source.rows(node), ""))
            return
        names: list[tuple[str, str, str | None]] = []
        for alias in node.names:
            target, bound = self.plan.target(node.module, alias.name), alias.asname or alias.name
            if target is None:
                names.append((node.module or "", alias.name, alias.asname))
            elif target == (self.new, True):
                self._own_modules.add(bound)
            elif target == (self.new, False):
                self._own_names |= {bound: alias.name} if bound != alias.name else {}
            elif target[1]:
                folder, leaf = target[0].rsplit(".", 1)
                names.append((folder, leaf, None if leaf == bound else bound))
            else:
                names.append((target[0], alias.name, alias.asname))
        if self.new and place != "inner":
            self._collect(node, place, names)
            return
        by_module: defaultdict[str, list[str]] = defaultdict(list)
        for module, name, bound_as in names:
            by_module[module].append(f"{name} as {bound_as}" if bound_as else name)
        alone = len(getattr(self.source.parents[node], "body", ())) == 1
        lines = [f"from {module} import ({', '.join(each)})" for module, each in by_module.items()]
        indent = "\n" + " " * node.col_offset
        self.edits.append(Edit(*self.source.span(node), indent.join(lines or ["pass"] * alone)))

    def _import(self, node: ast.Import) -> None:
        place = self._place(node)
        if self.new and place != "inner":
            self._collect(node, place, [("", self.plan.text(alias.name), alias.asname) for alias in node.names])
        elif any(alias.name.startswith("dicast.") for alias in node.names):
            begins, ends = self.source.span(node)
            self.edits.append(Edit(begins, ends, self.plan.text(self.source.text[begins:ends])))

    def _name(self, node: ast.AST) -> None:
        span = self.source.span
        if isinstance(node, ast.Name) and node.id in self._own_names:
            if self._locals[node.id]:
                self.problems.append(f"{self.where}: a local {node.id} hides an import of the same name")
            self.edits.append(Edit(*span(node), self._own_names[node.id]))
        elif isinstance(node, ast.Attribute):
            begins, ends = span(node)
            if isinstance(node.value, ast.Name) and node.value.id in self._own_modules:
                if self._locals[node.value.id] or (self._locals[node.attr] and node.attr not in self.source.names()):
                    self.problems.append(f"{self.where}: a local name hides {node.value.id}.{node.attr}")
                self.edits.append(Edit(begins, ends, node.attr))
            elif not isinstance(self.source.parents[node], ast.Attribute):
                text = self.source.text[begins:ends]
                if text.startswith("dicast.") and (other := self.plan.text(text)) != text:
                    self.edits.append(Edit(begins, ends, other))

    def _strings(self) -> None:
        covered = list(self.edits)
        for token in tokenize.generate_tokens(io.StringIO(self.source.text).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            begins = self.source.starts[token.start[0] - 1] + token.start[1]
            ends = self.source.starts[token.end[0] - 1] + token.end[1]
            text = self.source.text[begins:ends]
            if (other := self.plan.text(text)) != text and not any(e.begins <= begins < e.ends for e in covered):
                self.edits.append(Edit(begins, ends, other))


def ordered(parts: list[str], sources: dict[str, ModuleSource]) -> list[str]:
    """Return the parts of a module, each behind those that it imports at its top."""
    needs: dict[str, list[str]] = {}
    for part in parts:
        imports = [node for node in sources[part].tree.body if isinstance(node, ast.ImportFrom)]
        modules = (f"{node.module}.{alias.name}" for node in imports for alias in node.names)
        needs[part] = [
            each for name in modules for each in (name, name.rsplit(".", 1)[0]) if each in parts and each != part
        ]
    order: list[str] = []

    def visit(part: str) -> None:
        if part not in order:
            for other in needs[part]:
                visit(other)
            order.append(part)

    for part in parts:
        visit(part)
    return order


def merged(plan: Plan, new: str, sources: dict[str, ModuleSource]) -> tuple[str, list[str]]:
    """Return the text of a module that is made of several, and what stands in its way."""
    parts = plan.parts[new]
    problems: list[str] = []
    exported: set[str] = set()
    texts, imports, type_imports = [], set(), set()
    seen: dict[str, str] = {}
    meanings: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for part in ordered(parts, sources):
        source = sources[part]
        work = Rewriting(plan, source, new, part)
        problems += work.problems
        imports |= set(work.imports)
        type_imports |= set(work.type_imports)
        for each in (*work.imports, *work.type_imports):
            meanings[each.bound or each.name].add((each.module, each.name))
        if ast.get_docstring(source.tree) is not None:
            work.edits.append(Edit(*source.rows(source.tree.body[0]), ""))
        for name, node in source.names().items():
            text = ast.get_source_segment(source.text, node) or ""
            if name == "__all__" and isinstance(node, ast.Assign):
                exported |= set(ast.literal_eval(node.value))
                work.edits.append(Edit(*source.rows(node), ""))
            elif seen.get(name) == text:
                work.edits.append(Edit(*source.rows(node), ""))
            elif name in seen:
                problems.append(f"{new}: {name} is defined by {part} and by another part")
            seen.setdefault(name, text)
        texts.append(edited(source.text, work.edits).strip("\n"))
    problems += [f"{new}: {name} means {sorted(those)}" for name, those in meanings.items() if len(those) > 1]
    problems += [f"{new}: {name} is imported, and defined by a part" for name in meanings.keys() & seen.keys()]
    docstring = "\n\n".join(filter(None, (ast.get_docstring(sources[part].tree) for part in parts)))
    raw, end = "r" if "\\" in docstring else "", "\n" if "\n" in docstring else ""
    type_imports -= imports
    head = [f'{raw}"""{docstring}{end}"""', "", "from __future__ import annotations", "", *sorted(map(str, imports))]
    if type_imports:
        head += ["", "if TYPE_CHECKING:", *(f"    {each}" for each in sorted(map(str, type_imports)))]
    if exported:
        head += ["", f"__all__ = {sorted(exported)!r}"]
    return "\n".join([*head, "", "\n\n\n".join(filter(None, texts)), ""]), problems


def main() -> int:
    """Merge; return 1 and change nothing if something stands in the way."""
    plan = Plan()
    sources = {name: ModuleSource(path.read_text()) for name, path in plan.files.items()}
    built, problems = {}, []
    for new, parts in plan.parts.items():
        if len(parts) > 1:
            built[new], found = merged(plan, new, sources)
            problems += found
        else:
            work = Rewriting(plan, sources[parts[0]], None, parts[0])
            built[new] = edited(sources[parts[0]].text, work.edits)
    print(*problems, sep="\n")
    if problems or "--check" in sys.argv:
        return bool(problems)
    for top in OTHERS:
        for path in sorted((HOME / top).rglob("*.py")):
            if not any(each.is_symlink() for each in (path, *path.parents)) and not str(
                path.relative_to(HOME)
            ).startswith(KEPT):
                source = ModuleSource(path.read_text())
                path.write_text(edited(source.text, Rewriting(plan, source, None, str(path)).edits))
    for path in plan.files.values():
        path.unlink()
    for new, text in built.items():
        plan.file(new).parent.mkdir(parents=True, exist_ok=True)
        plan.file(new).write_text(text)
    for new in built:
        for folder in plan.file(new).parents:
            if folder.is_relative_to(HOME / "app") or folder.is_relative_to(HOME / "workers"):
                (folder / "__init__.py").touch()
    known = subprocess.run(["git", "ls-files"], cwd=HOME, capture_output=True, text=True, check=True)
    for name in known.stdout.split():
        path = HOME / name
        if path.suffix in TEXTS and path.is_file() and not path.is_symlink() and not name.startswith(KEPT):
            path.write_text(plan.text(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
