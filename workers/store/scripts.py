"""Lua scripts: one verb a file, beside its caller. `--@include name.lua` pastes a file of this folder."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_INCLUDE = re.compile(r"^--@include ([a-z_]+\.lua)$", re.MULTILINE)


@cache
def script_text(path: Path) -> str:
    """The source of a script with its includes."""
    return _INCLUDE.sub(lambda match: (_HERE / match[1]).read_text(), path.read_text())
