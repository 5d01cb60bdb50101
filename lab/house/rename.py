"""Renames names in the whole tree by a language server, from a file that says which.

    pip install basedpyright
    python -m lab.house.rename lab/house/renames/domain.json

Each entry of the file is `{"file", "scope", "old", "new"}`: the name `old` as it is bound inside that scope (dotted
names of classes and functions; empty for the module), with all its references in product, tests, laboratory and
examples; or `{"file", "find", "replace"}`: plain text, done last. The tree must have no changes that are not committed.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[2]
LINKED = ("app", "workers", "config")
OTHERS = ("tests", "lab", "examples")
KNOWN_WITHIN_S = 120
"""How long the server may take to read the tree."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class LanguageServer:
    """A language server on a copy of the tree in which `dicast/app` and its kin are folders and not links: the server
    follows no links when it looks for files."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="rename-"))
        ignore = shutil.ignore_patterns("__pycache__", "*.svg", "*.json")
        for top in OTHERS:
            shutil.copytree(HOME / top, self.root / top, ignore=ignore)
        (self.root / "dicast").mkdir()
        for path in (HOME / "dicast").glob("*.py"):
            shutil.copy(path, self.root / "dicast")
        for top in LINKED:
            shutil.copytree(HOME / top, self.root / "dicast" / top, ignore=ignore)
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        options = {"include": ["dicast", *OTHERS], "typeCheckingMode": "off", "extraPaths": [str(self.root), packages]}
        (self.root / "pyrightconfig.json").write_text(json.dumps(options))
        program = Path(sys.executable).with_name("basedpyright-langserver")
        self._process = subprocess.Popen(
            [program, "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.root,
        )
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._versions: dict[str, int] = {}
        threading.Thread(target=self._read, daemon=True).start()
        folder = {"uri": self.root.as_uri(), "name": "tree"}
        edits = {"workspace": {"workspaceEdit": {"documentChanges": True}, "configuration": True}}
        start = {
            "processId": os.getpid(),
            "rootUri": folder["uri"],
            "workspaceFolders": [folder],
            "capabilities": edits,
        }
        self.ask("initialize", start)
        self.tell("initialized", {})
        self._await_tree()

    def _await_tree(self) -> None:
        """Wait until the server has read all files: what it does not know yet it would not rename."""
        for _ in range(KNOWN_WITHIN_S):
            if self.ask("workspace/symbol", {"query": "test_every_rule_holds"}).get("result"):
                return
            time.sleep(1)
        raise SystemExit("the language server does not come up")

    def end(self) -> None:
        """End the server and remove its copy."""
        self._process.kill()
        shutil.rmtree(self.root)

    def _read(self) -> None:
        assert self._process.stdout is not None
        while header := self._process.stdout.readline():
            length = 0
            while header.strip():
                if header.lower().startswith(b"content-length"):
                    length = int(header.split(b":")[1])
                header = self._process.stdout.readline()
            message = json.loads(self._process.stdout.read(length))
            if "id" in message and "method" in message:
                items = message.get("params", {}).get("items", ())
                result = [{} for _ in items] if message["method"] == "workspace/configuration" else None
                self._send({"id": message["id"], "result": result})
            elif "id" in message:
                self._answers.put(message)

    def _send(self, message: Mapping[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            self._process.stdin.flush()

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": params})
        while (answer := self._answers.get(timeout=600))["id"] != number:
            pass
        return answer

    def path(self, name: str) -> Path:
        """Return the copy of a file of the tree."""
        return self.root / ("dicast" if name.startswith(tuple(f"{top}/" for top in LINKED)) else "") / name

    def uri(self, path: Path) -> str:
        """Return a file's address, as the server writes it."""
        return "file://" + urllib.parse.quote(str(path))

    def rename(self, name: str, line: int, column: int, new: str) -> int:
        """Rename what stands there, in copy and tree; return the number of edits, which is 0 if the server refuses."""
        path = self.path(name)
        uri = self.uri(path)
        if uri not in self._versions:
            self._versions[uri] = 1
            document = {"uri": uri, "languageId": "python", "version": 1, "text": path.read_text()}
            self.tell("textDocument/didOpen", {"textDocument": document})
        where = {"textDocument": {"uri": uri}, "position": {"line": line - 1, "character": column}, "newName": new}
        result = self.ask("textDocument/rename", where).get("result") or {}
        spots: defaultdict[Path, set[tuple[int, int, int]]] = defaultdict(set)
        for change in result.get("documentChanges", ()):
            changed = Path(urllib.parse.unquote(change["textDocument"]["uri"].removeprefix("file://")))
            for edit in change["edits"]:
                start, end = edit["range"]["start"], edit["range"]["end"]
                spots[changed].add((start["line"], start["character"], end["character"]))
        for changed, edits in spots.items():
            self._apply(changed, edits, new)
        return sum(map(len, spots.values()))

    def _apply(self, path: Path, edits: set[tuple[int, int, int]], new: str) -> None:
        lines = path.read_text().split("\n")
        for line, start, end in sorted(edits, reverse=True):
            lines[line] = lines[line][:start] + new + lines[line][end:]
        text = "\n".join(lines)
        path.write_text(text)
        name = str(path.relative_to(self.root))
        (HOME / re.sub(rf"^dicast/({'|'.join(LINKED)})/", r"\1/", name)).write_text(text)
        uri = self.uri(path)
        if uri in self._versions:
            self._versions[uri] += 1
            document = {"uri": uri, "version": self._versions[uri]}
            self.tell("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        else:
            self.tell("workspace/didChangeWatchedFiles", {"changes": [{"uri": uri, "type": 2}]})


def locate(text: str, scope: str, name: str) -> tuple[int, int]:
    """Return line (from 1) and column where a name is first bound inside a scope. Raises LookupError."""
    node: ast.AST = ast.parse(text)
    for part in filter(None, scope.split(".")):
        node = next((each for each in _definitions(node) if each.name == part), None) or _missing(scope)
    lines = text.split("\n")
    spots = sorted(_bindings(node, name, lines)) or sorted(
        spot for inner in _definitions(node) for spot in _bindings(inner, name, lines)
    )
    return spots[0] if spots else _missing(f"{scope}.{name}")


def _missing(what: str) -> Any:
    raise LookupError(what)


def _definitions(node: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        else:
            yield from _definitions(child)


def _bindings(scope: ast.AST, name: str, lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield where a scope binds a name, those of inner scopes left out."""

    def column(line: int, offset: int) -> int:
        return len(lines[line - 1].encode()[:offset].decode())

    def after(line: int, start: int) -> Iterator[tuple[int, int]]:
        match = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").search(lines[line - 1], start)
        if match:
            yield line, match.start()

    def walk(node: ast.AST) -> Iterator[tuple[int, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition):
                if child.name == name:
                    yield from after(child.lineno, child.col_offset)
                continue
            if (isinstance(child, ast.arg) and child.arg == name) or (
                isinstance(child, ast.Name) and child.id == name and not isinstance(child.ctx, ast.Load)
            ):
                yield child.lineno, column(child.lineno, child.col_offset)
            elif isinstance(child, ast.Attribute) and child.attr == name and not isinstance(child.ctx, ast.Load):
                if isinstance(child.value, ast.Name) and child.value.id in ("self", "cls"):
                    yield child.end_lineno or 0, column(child.end_lineno or 0, child.end_col_offset or 0) - len(name)
            elif (isinstance(child, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and child.name == name) or (
                isinstance(child, ast.alias) and child.asname == name
            ):
                yield from after(child.lineno, child.col_offset)
            yield from walk(child)

    return walk(scope)


def main() -> int:
    """Apply a file of renames; return 1 if any could not be done."""
    entries = json.loads(Path(sys.argv[1]).read_text())
    server = LanguageServer()
    undone = 0
    try:
        for entry in (each for each in entries if "find" not in each):
            name, scope, old, new = (entry[key] for key in ("file", "scope", "old", "new"))
            try:
                spot = locate(server.path(name).read_text(), scope, old)
                count = server.rename(name, *spot, new)
            except (LookupError, OSError):
                count = 0
            undone += not count
            print(f"{name} {scope}.{old} -> {new}: {f'{count} edits' if count else 'NOT DONE'}", flush=True)
    finally:
        server.end()
    for entry in (each for each in entries if "find" in each):
        path = HOME / entry["file"]
        text = path.read_text() if path.exists() else ""
        undone += entry["find"] not in text
        if entry["find"] in text:
            path.write_text(text.replace(entry["find"], entry["replace"]))
        else:
            print(f"{entry['file']}: no text {entry['find'][:60]!r}: NOT DONE")
    print(f"{len(entries) - undone} of {len(entries)} done; now ruff check --fix, ruff format, mypy")
    return 1 if undone else 0


if __name__ == "__main__":
    sys.exit(main())
