"""mutmut's command line, less the changes of what only people read.

    python -m chaos.mutation.mutator generate             # writes the changed modules, tests none
    python -m chaos.mutation.mutator test tests/a,tests/b 1  # tests the mutations whose names standard input holds

A text of several words is a message, and a test that pinned its letters would state no promise. Texts of one word are
names (keys, reasons, states) and are changed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import libcst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators

STATS = Path("mutants/mutmut-stats.json")


def names_alone(node: libcst.BaseString) -> Iterable[libcst.BaseString]:
    """mutmut's changes of a text, if it is one word."""
    if not isinstance(node, libcst.SimpleString) or not any(map(str.isspace, str(node.evaluated_value).strip())):
        yield from mutators.operator_string(node)


def generate() -> None:
    """The first step of mutmut's `run`."""
    mutmut.set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(1)


def test(tests: list[str], names: list[str], parallel: int) -> None:
    """mutmut's `run`, by these tests. It forgets what it found by others, unless it forgets that it used others."""
    config().pytest_add_cli_args_test_selection = tests
    if STATS.exists():
        known = json.loads(STATS.read_text()).get("config_fingerprint", {})
        if known.get("test_selection") != config().config_fingerprint()["test_selection"]:
            STATS.unlink()
    mutmut._run(names, parallel)


if __name__ == "__main__":
    file_mutation.NEVER_MUTATE_FUNCTION_CALLS.add("cast")  # for the type checker alone
    mutators.mutation_operators[:] = [
        (kind, names_alone if change is mutators.operator_string else change)
        for kind, change in mutators.mutation_operators
    ]
    what, *wishes = sys.argv[1:]
    if what == "generate":
        generate()
    else:
        test(wishes[0].split(","), sys.stdin.read().split(), int(wishes[1]))
