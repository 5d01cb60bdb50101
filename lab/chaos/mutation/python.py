"""Mutations of the Python code, made and run by mutmut, whose settings are in pyproject.toml."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lab.chaos.mutation.accepted import AcceptedChange

ROOT = Path(__file__).parents[3]
MUTANTS = ROOT / "mutants"
LEDGER = (
    "callers", "claims", "exactly", "forgetful_store", "incarnations", "ledger", "looks", "notes", "repeats", "work",
)  # fmt: skip
"""Not its long histories, nor each verb twice."""
ENFORCER = ("parameters",)
"""What the store's scripts are told, and their model in the laboratory, which they are compared with."""
POLICY = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "workers/policy").rglob("*.py"))]
SIMULATED = ("adaptive", "budget", "noise", "rate")
"""How well these do together is seen in virtual time alone."""


def _is_of(names: Sequence[str], path: str) -> bool:
    return path.removeprefix("workers/policy/").startswith(tuple(names))


JUDGING = ("judge", "call", "call_facts", "outcomes")
TESTS = {
    "tests/domain/test_retry.py": ["app/domain/retry.py"],
    "tests/domain/test_verdict.py": ["app/domain/verdict.py"],
    "tests/judge": [f"app/pipeline/{name}.py" for name in JUDGING],
    ",".join(f"tests/ledger/test_{name}.py" for name in LEDGER): [
        f"app/ledger/{name}.py" for name in ("batches", "client", "keys", "ledger", "records", "troubles", "work")
    ],
    "tests/workers/test_gate.py,tests/workers/test_gate_asking.py": ["workers/admission/gate.py"],
    "tests/workers/policy,tests/workers/test_admission_conformance.py": [p for p in POLICY if _is_of(ENFORCER, p)],
    "tests/workers/policy,tests/workers/simulation": [p for p in POLICY if _is_of(SIMULATED, p)],
    "tests/workers/policy": [p for p in POLICY if not _is_of((*ENFORCER, *SIMULATED), p)],
}
"""Which tests are to notice the mutations of which files: those beside them, so that a run ends within hours."""
UNNOTICED = (None, 0, 2, 5, 33)
"""mutmut's exit codes of mutations that no test has noticed: not tested, all passed, interrupted, no test runs them."""


def run(names: Sequence[str], parallel: int, size: int = 0, seed: int = 0) -> list[str]:
    """Have mutmut test the mutations whose names match, or so many of them, drawn at random, and return their names.
    What a test has noticed before is not tested again, unless its function has changed since."""
    _mutmut("generate")
    known = {name: (path, code) for path, found in _files() for name, code in found.items() if _matches(name, names)}
    chosen = random.Random(seed).sample(sorted(known), size) if 0 < size < len(known) else sorted(known)
    for tests, modules in TESTS.items():
        unseen = [name for name in chosen if known[name][1] in UNNOTICED and str(known[name][0]) in modules]
        if unseen:
            _mutmut("test", tests, str(parallel), names=unseen)
    return chosen


def _mutmut(*arguments: str, names: Sequence[str] = ()) -> None:
    command = [sys.executable, "-m", "lab.chaos.mutation.mutator", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, text=True, input="\n".join(names))


def results(names: Sequence[str] = ()) -> Iterator[tuple[str, Path, bool]]:
    """Every tested mutation: its name, its file, whether a test noticed it."""
    for path, found in _files():
        for name, code in found.items():
            if code is not None and _matches(name, names):
                yield name, path, code not in UNNOTICED


def _files() -> Iterator[tuple[Path, dict[str, int | None]]]:
    for meta in sorted((MUTANTS / "dicast").rglob("*.py.meta")):
        yield meta.relative_to(MUTANTS / "dicast").with_suffix(""), json.loads(meta.read_text())["exit_code_by_key"]


def _matches(name: str, wishes: Sequence[str]) -> bool:
    return not wishes or any(fnmatchcase(name, wish) for wish in wishes)


def change(name: str, path: Path) -> AcceptedChange:
    """What a mutation did."""
    os.chdir(ROOT)
    from mutmut.mutation.diff_apply import get_diff_for_mutant  # its settings are read when it is imported

    return AcceptedChange.of_diff(str(path), get_diff_for_mutant(name, path=Path("dicast") / path))
