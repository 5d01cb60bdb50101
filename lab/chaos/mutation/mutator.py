"""mutmut's command line, less the changes of what only people read.

    python -m lab.chaos.mutation.mutator generate             # writes the changed modules, tests none
    python -m lab.chaos.mutation.mutator test tests/a,tests/b 1  # tests the mutations whose names standard input holds

A text of several words is a message, and a test that pinned its letters would state no promise. Texts of one word are
names (keys, reasons, states) and are changed. So are left `cast`, which is for the type checker, and `strict` of `zip`,
which holds unless the program is wrong elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import libcst
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation import file_mutation, mutators
from mutmut.utils.format_utils import mangled_name_from_mutant_name

STATS = Path("mutants/mutmut-stats.json")


def names_alone(node: libcst.BaseString) -> Iterable[libcst.BaseString]:
    """mutmut's changes of a text, if it is one word."""
    if not isinstance(node, libcst.SimpleString) or not any(map(str.isspace, str(node.evaluated_value).strip())):
        yield from mutators.operator_string(node)


def is_guard(node: libcst.CSTNode) -> bool:
    return isinstance(node, libcst.Arg) and node.keyword is not None and node.keyword.value == "strict"


def but_guards(node: libcst.Call) -> Iterable[libcst.Call]:
    """mutmut's changes of a call's arguments, `strict` left as it is."""
    kept = [argument for argument in node.args if is_guard(argument)]
    for changed in mutators.operator_arg_removal(node):
        if all(argument in changed.args for argument in kept):
            yield changed


class Visitor(file_mutation.MutationVisitor):
    def _skip_node_and_children(self, node: libcst.CSTNode) -> bool:
        return is_guard(node) or super()._skip_node_and_children(node)


def generate() -> None:
    """The first step of mutmut's `run`."""
    mutmut.set_mutant_under_test("mutant_generation")
    Path("mutants").mkdir(exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(1)


def test(tests: list[str], names: list[str], parallel: int) -> None:
    """mutmut's `run`, by these tests. Its statistics are dropped where they are not of these tests and this code, or
    it would forget what it found by others, and take what is new for untested."""
    config().pytest_add_cli_args_test_selection = tests
    if STATS.exists() and not _knows(json.loads(STATS.read_text()), names):
        STATS.unlink()
    mutmut._run(names, parallel)


def _knows(stats: dict[str, Any], names: list[str]) -> bool:
    """Whether these are of the same tests, and of no older code."""
    functions = set(map(mangled_name_from_mutant_name, names))
    asked = stats.get("config_fingerprint", {}).get("test_selection")
    return asked == config().config_fingerprint()["test_selection"] and functions <= set(
        stats["tests_by_mangled_function_name"]
    )


if __name__ == "__main__":
    file_mutation.NEVER_MUTATE_FUNCTION_CALLS.add("cast")  # for the type checker alone
    file_mutation.MutationVisitor = Visitor
    instead = {mutators.operator_string: names_alone, mutators.operator_arg_removal: but_guards}
    mutators.mutation_operators[:] = [(kind, instead.get(made, made)) for kind, made in mutators.mutation_operators]
    what, *wishes = sys.argv[1:]
    if what == "generate":
        generate()
    else:
        test(wishes[0].split(","), sys.stdin.read().split(), int(wishes[1]))
