"""Loads Lua scripts: one verb per file, beside its caller. `--@include path.lua` includes another file, relative to the
folder of the including one; a file that is included several times is inserted once.

A script begins with `#!lua`, and then a store with full memory rejects it before it changes anything; or with
`#!lua flags=allow-oom`, if it gives back, records or ends something: that must always work, and makes room. Needs
Redis 7 or newer.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^--@include ([a-z_./]+\.lua)\n", re.MULTILINE)


PLAIN, FREEING = "#!lua\n", "#!lua flags=allow-oom\n"


def freeing(text: str) -> str:
    """Return the same script in a form that also runs in a full store."""
    return text.replace(PLAIN, FREEING, 1)


@cache
def script_text(path: Path) -> str:
    """Return the source of a script with its includes."""
    return "".join(text for _, text in script_parts(path))


def script_parts(path: Path) -> list[tuple[Path, str]]:
    """Return the source of a script with its includes, in pieces, each with the file that it comes from."""
    visited: set[Path] = set()

    def pieces(file: Path) -> list[tuple[Path, str]]:
        visited.add(file.resolve())
        fragments = iter(_INCLUDE.split(file.read_text()))
        parts = [(file, next(fragments))]
        for name, text in zip(fragments, fragments, strict=True):
            included = file.parent / name
            if included.resolve() not in visited:
                parts += pieces(included)
            parts.append((file, text))
        return parts

    return pieces(path)
