"""The file that was probably meant, where there is none of a given name."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from dicast.errors import nearest

FILES_LOOKED_AT = 1000


def nearest_file(path: Path) -> str | None:
    """The name of a file in the same folder that is near; None where there is none, or no such folder."""
    try:
        with os.scandir(path.parent) as entries:
            names = [entry.name for entry in islice(entries, FILES_LOOKED_AT)]
    except (OSError, ValueError):
        return None
    return nearest(path.name, names)
