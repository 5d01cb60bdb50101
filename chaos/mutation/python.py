"""Mutations of the Python code, made and run by mutmut, whose settings are in pyproject.toml."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from chaos.mutation.accepted import Change

ROOT = Path(__file__).parents[2]
MUTANTS = ROOT / "mutants"
SURVIVED, UNTESTED = 0, 33
"""mutmut's exit codes of mutations that no test notices: all passed, or none runs the changed lines."""


def run(names: Sequence[str], parallel: int) -> None:
    """Have mutmut test all mutations whose names match; what it has tested already, and what has not changed since, is
    not tested again."""
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(parallel), *names]
    subprocess.run(command, cwd=ROOT, check=False, env={**os.environ, "PYTHONUNBUFFERED": "1"})


def results(names: Sequence[str] = ()) -> Iterator[tuple[str, Path, bool]]:
    """Every tested mutation: its name, its file, whether a test noticed it."""
    for meta in sorted(MUTANTS.rglob("*.py.meta")):
        path = meta.relative_to(MUTANTS).with_suffix("")
        for name, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            if code is not None and (not names or any(Path(name).match(wish) for wish in names)):
                yield name, path, code not in (SURVIVED, UNTESTED)


def sample(names: Sequence[str], size: int, seed: int) -> list[str]:
    """Some of the known mutations, drawn at random."""
    known = [name for name, _, _ in results(names)]
    return random.Random(seed).sample(known, min(size, len(known)))


def change(name: str, path: Path) -> Change:
    """What a mutation did."""
    os.chdir(ROOT)
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # its settings are read when it is imported

    return Change.of_diff(str(path), get_diff_for_mutant(name, path=path))
