"""Suggests the name of a setting or file that was probably meant by an unknown one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from dicast.errors import nearest

FILES_LOOKED_AT = 1000


def slip(name: str, choices: Iterable[str], *, most: int) -> str | None:
    """Return the known name that differs from `name` by letter case or by at most `most` letters, or None. It is far
    stricter than `nearest`, for names that may belong to another program."""
    for choice in choices:
        if abs(len(choice) - len(name)) <= most:
            changes = difflib.SequenceMatcher(None, name.upper(), choice.upper(), autojunk=False).get_opcodes()
            edits = sum(max(to_a - a, to_b - b) for kind, a, to_a, b, to_b in changes if kind != "equal")
            if name != choice and edits <= most:
                return choice
    return None


def nearest_file(path: Path) -> str | None:
    """Return the most similar name of a file in the same folder; None if there is none, or no such folder."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, FILES_LOOKED_AT)]
    except (OSError, ValueError):
        return None
    return nearest(path.name, names)
