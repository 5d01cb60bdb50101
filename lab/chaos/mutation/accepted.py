"""The changes that no test has to notice, and why.

`accepted.toml` holds a table for each: the file, the line before and after, and the reason. Line numbers and the
mutation tool's own names are not used, for they move.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).parent / "accepted.toml"


class AcceptedChange(NamedTuple):
    """What a mutation did to one file: the lines that went and the lines that came, without their indentation."""

    file: str
    before: str
    after: str

    @classmethod
    def of_diff(cls, file: str, diff: str) -> AcceptedChange:
        """From a unified diff of one function."""
        lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@"))]

        def those(sign: str) -> str:
            return "\n".join(line[1:].strip() for line in lines if line.startswith(sign))

        return cls(file, those("-"), those("+"))

    def __str__(self) -> str:
        return f"{self.file}\n    - {self.before}\n    + {self.after}"


def accepted(path: Path = LIST) -> dict[AcceptedChange, str]:
    """Every accepted change with its reason. Raises `ValueError` for one without."""
    found = {}
    for entry in tomllib.loads(path.read_text()).get("change", []):
        change = AcceptedChange(entry["file"], entry["before"], entry["after"])
        if not entry.get("reason"):
            raise ValueError(f"{path}: no reason is given for\n{change}")
        found[change] = entry["reason"]
    return found
