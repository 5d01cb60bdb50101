"""Names in a Lua script: which are read and nowhere defined, and which are defined and never read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from luaparser import ast, astnodes

GIVEN = {
    "KEYS", "ARGV", "redis", "cjson", "cmsgpack", "ipairs", "math", "next", "pairs", "pcall", "string", "table",
    "tonumber", "type", "unpack",
}  # fmt: skip
"""What the store gives to a script, as far as ours need it."""


@cache
def parsed(text: str) -> astnodes.Chunk:
    """Raises if the text is no Lua. A script's first line is not Lua, for the store reads it itself."""
    return ast.parse("--" + text if text.startswith("#!") else text)


def statements(text: str) -> list[astnodes.Statement]:
    """Those of the script itself, in their order."""
    return list(parsed(text).body.body)


class Names:
    """`undefined` are names without a definition before, `unused` local ones that nothing reads, but those of the
    script's own level, which are in `unused_on_top`. A name that begins with '_' need not be read."""

    def __init__(self, *pieces: str) -> None:
        """Of a script in one piece or, as it is put together of files, in several: each is parsed once for all that
        include it."""
        self.undefined: set[str] = set()
        self.unused: set[str] = set()
        self._scopes: list[dict[str, bool]] = [{}]
        for statement in (each for piece in pieces for each in statements(piece)):
            self._visit(statement)
        self.on_top = set(self._scopes[0])
        self.unused_on_top = {name for name, is_read in self._scopes[0].items() if not is_read and name[0] != "_"}

    def _define(self, names: Iterable[Any]) -> None:
        for name in names:
            if isinstance(name, astnodes.Name):
                self._scopes[-1].setdefault(name.id, False)

    def _scope_of(self, name: str) -> dict[str, bool] | None:
        return next((scope for scope in reversed(self._scopes) if name in scope), None)

    def _inside(self, names: Iterable[Any], *parts: Any) -> None:
        """Visit parts in a scope of their own."""
        self._scopes.append({})
        self._define(names)
        for part in parts:
            self._visit(part)
        left = self._scopes.pop()
        self.unused |= {name for name, is_read in left.items() if not is_read and name[0] != "_"}

    def _visit(self, node: Any) -> None:
        match node:
            case list():
                for each in node:
                    self._visit(each)
            case astnodes.Name(id=name):
                scope = self._scope_of(name)
                if scope is not None:
                    scope[name] = True
                elif name not in GIVEN:
                    self.undefined.add(name)
            case astnodes.LocalAssign():
                self._visit(node.values)
                self._define(node.targets)
            case astnodes.Assign():
                self._visit(node.values)
                for target in node.targets:
                    if not isinstance(target, astnodes.Name):
                        self._visit(target)
                    elif self._scope_of(target.id) is None:
                        self.undefined.add(target.id)
            case astnodes.LocalFunction():
                self._define([node.name])
                self._inside(node.args, node.body.body)
            case astnodes.AnonymousFunction():
                self._inside(node.args, node.body.body)
            case astnodes.Function() | astnodes.Method():
                self.undefined.add(ast.to_lua_source(node.name))
            case astnodes.Fornum():
                self._visit([node.start, node.stop, node.step])
                self._inside([node.target], node.body.body)
            case astnodes.Forin():
                self._visit(node.iter)
                self._inside(node.targets, node.body.body)
            case astnodes.Repeat():
                self._inside([], node.body.body, node.test)
            case astnodes.Block():
                self._inside([], node.body)
            case astnodes.Index():
                self._visit(node.value)
                if node.notation is astnodes.IndexNotation.SQUARE:
                    self._visit(node.idx)
            case astnodes.Invoke():
                self._visit([node.source, node.args])
            case astnodes.Field():
                self._visit([node.key, node.value] if node.between_brackets else node.value)
            case astnodes.Node():
                parts = [value for name, value in vars(node).items() if name[0] != "_" and name != "comments"]
                self._visit([part for part in parts if isinstance(part, astnodes.Node | list)])
