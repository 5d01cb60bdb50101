"""Lua scripts: one verb a file, beside its caller. `--@include path.lua` pastes another one in, named from the folder
of the file that asks for it; a file that several ask for is pasted in once.

A script begins with `#!lua`, and a store whose memory is full refuses it before it changes anything; or with
`#!lua flags=allow-oom`, if it gives back, records or ends something: that must go on, and makes room. Redis 7 or newer.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^--@include ([a-z_./]+\.lua)\n", re.MULTILINE)


PLAIN, FREEING = "#!lua\n", "#!lua flags=allow-oom\n"


def freeing(text: str) -> str:
    """The same script, which a full store lets run."""
    return text.replace(PLAIN, FREEING, 1)


@cache
def script_text(path: Path) -> str:
    """The source of a script with its includes."""
    return "".join(text for _, text in script_parts(path))


def script_parts(path: Path) -> list[tuple[Path, str]]:
    """The source of a script with its includes, in pieces: each with the file that it is of."""
    seen: set[Path] = set()

    def pieces(file: Path) -> list[tuple[Path, str]]:
        seen.add(file.resolve())
        own = iter(_INCLUDE.split(file.read_text()))
        found = [(file, next(own))]
        for name, text in zip(own, own, strict=True):
            included = file.parent / name
            if included.resolve() not in seen:
                found += pieces(included)
            found.append((file, text))
        return found

    return pieces(path)
