"""Mutations of the store's scripts: one operator, number, field or statement at a time.

A script is mutated as text: comments, headers and strings are left alone. What does not compile counts as caught.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SWAPS = (
    (r"(?<![<>=~])==(?!=)", "~="),
    (r"~=", "=="),
    (r"<=", "<"),
    (r">=", ">"),
    (r"(?<![<>=~-])<(?![=>])", "<="),
    (r"(?<![<>=~-])>(?!=)", ">="),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
    (r"(?<= )\*(?= )", "/"),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot ", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bmath\.max\b", "math.min"),
    (r"\bmath\.min\b", "math.max"),
)
NUMBER = re.compile(r"(?<![\w.\]\[])(\d+)(?![\w.\]])")
STATEMENT = re.compile(r"^(\s*)(redis\.call\(.*\)|[\w.]+(?:, [\w.]+)* = .*[^,{(])$")
STRING = re.compile(r"'[^']*'")


class Mutation(NamedTuple):
    """One changed line of a script; `number` counts lines from 0."""

    script: Path
    number: int
    before: str
    after: str

    def text(self) -> str:
        """The whole script with the change."""
        lines = self.script.read_text().splitlines(keepends=True)
        lines[self.number] = lines[self.number].replace(self.before, self.after, 1)
        return "".join(lines)


def mutations(script: Path) -> Iterator[Mutation]:
    """All of a script's mutations, from top to bottom."""
    for number, line in enumerate(script.read_text().splitlines()):
        code = line.split("--", 1)[0].rstrip()
        if not code.strip() or line.startswith("#!"):
            continue
        seen = {code}
        for after in _changes(code):
            if after not in seen:
                seen.add(after)
                yield Mutation(script, number, code, after)


def _changes(code: str) -> Iterator[str]:
    strings = [match.span() for match in STRING.finditer(code)]

    def outside(match: re.Match[str]) -> bool:
        return not any(start < match.start() < end for start, end in strings)

    for pattern, replacement in SWAPS:
        for match in filter(outside, re.finditer(pattern, code)):
            yield code[: match.start()] + replacement + code[match.end() :]
    for match in filter(outside, NUMBER.finditer(code)):
        yield code[: match.start()] + str(int(match[1]) + 1) + code[match.end() :]
    if statement := STATEMENT.match(code):
        yield statement[1] + "do end"
