"""Lua scripts: one verb a file, beside its caller. `--@include path.lua` pastes another one in, named from its folder.

A script begins with `#!lua`, and a store whose memory is full refuses it before it changes anything; or with
`#!lua flags=allow-oom`, if it gives back, records or ends something: that must go on, and makes room. Redis 7 or newer.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_INCLUDE = re.compile(r"^--@include ([a-z_./]+\.lua)$", re.MULTILINE)


PLAIN, FREEING = "#!lua\n", "#!lua flags=allow-oom\n"


def freeing(text: str) -> str:
    """The same script, which a full store lets run."""
    return text.replace(PLAIN, FREEING, 1)


@cache
def script_text(path: Path) -> str:
    """The source of a script with its includes."""

    def included(match: re.Match[str]) -> str:
        return (path.parent / match[1]).read_text()

    return _INCLUDE.sub(included, path.read_text())
