"""The task that every peer is given, and how it tells what came of it. Standard library only: it runs in their venvs.

A peer's script is started with the options below. It says `{"ready": true}` when all that it needs is imported, works
when it reads a line, says `{"answered": N, "versions": {...}}`, and waits for the end of its input before it leaves, so
that its memory and CPU time can still be read. Whatever a library prints goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Call:
    """One chat completion, with the words that Dicast sends for one unit."""

    id: str
    text: str
    criterion: str
    body: dict[str, Any]

    @property
    def system(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        return str(self.body["messages"][1]["content"])

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["response_format"]["json_schema"]["schema"]
        return found

    @property
    def max_tokens(self) -> int:
        return int(self.body["max_completion_tokens"])


@dataclass(frozen=True)
class Task:
    """`limit` is the number of open calls that the peer is told, None its own default. `folder` outlives a kill. In a
    `batch` the calls go by the provider's batch API."""

    base_url: str
    calls: Sequence[Call]
    limit: int | None
    folder: Path
    resume: bool
    batch: bool = False

    @property
    def model(self) -> str:
        return str(self.calls[0].body["model"])


def is_score(text: str | None) -> bool:
    """Whether an answer is one that a judge may give."""
    try:
        return isinstance(json.loads(text or "")["score"], int | float)
    except (ValueError, KeyError, TypeError):
        return False


def run(prepare: Callable[[Task], Callable[[], int]], *packages: str) -> None:
    """Do the task of the command line. `prepare` builds what a program builds once; what it returns makes the calls,
    and gives the number of them that have a score in the end. `packages` are those whose versions matter."""
    parse = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parse.add_argument("--base-url", required=True, help="the provider's, with /v1")
    parse.add_argument("--calls", required=True, type=Path, help="one call a line, as lab.bench.requests writes them")
    parse.add_argument("--limit", type=int, help="calls open at once that the peer is told; none: its default")
    parse.add_argument("--folder", type=Path, default=Path(), help="where the peer may keep files")
    parse.add_argument("--resume", action="store_true", help="go on with what a killed run left in the folder")
    parse.add_argument("--batch", action="store_true", help="by the provider's batch API")
    given = parse.parse_args()
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    calls = [Call(**json.loads(line)) for line in given.calls.read_text().splitlines()]
    task = Task(given.base_url, calls, given.limit, given.folder, given.resume, given.batch)
    work = prepare(task)
    say.write(json.dumps({"ready": True}) + "\n")
    sys.stdin.readline()
    answered = work()
    say.write(json.dumps({"answered": answered, "versions": {name: version(name) for name in packages}}) + "\n")
    sys.stdin.read()
