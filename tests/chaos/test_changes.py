"""Which places of a module are changed, and which are left."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.mutation.changes import changes

MODULE = '''"""A module's docstring."""
from typing import Annotated, cast

LEAST = 2


@router.get("/jobs", description="all jobs", status_code=201)
def ask(limit: Annotated[int, Query(ge=1)] = 50, name: str | None = None) -> "list[int]":
    """What is asked."""
    logger.info("asked", extra=1)
    assert limit != 7
    if not name and limit < LEAST:
        raise Wrong(f"{limit} is less than {LEAST}", kind="small")
    for number in found(limit, wait=True):
        if number in (3,):
            break
    write("some words", "state")
    return [number + 1 for number in cast("list[int]", name) if number is not None]
'''


@pytest.fixture
def found(tmp_path: Path) -> list[tuple[str, str, str]]:
    """Function, and the line before and after, of all changes."""
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    return [(change.function, *change.lines()) for change in changes(path)]


@pytest.mark.parametrize("function, after", [
    ("", "LEAST = 3"),
    ("", "@router.get('XX/jobs', description=\"all jobs\", status_code=201)"),
    ("", '@router.get("/jobs", description="all jobs", status_code=202)'),
    ("", '@router.get("/jobs", description="all jobs")'),
    ("", 'def ask(limit: Annotated[int, Query(ge=2)] = 50, name: str | None = None) -> "list[int]":'),
    ("", 'def ask(limit: Annotated[int, Query()] = 50, name: str | None = None) -> "list[int]":'),
    ("", 'def ask(limit: Annotated[int, Query(ge=1)] = 51, name: str | None = None) -> "list[int]":'),
    ("ask", "if not name or limit < LEAST:"),
    ("ask", "if not name and limit <= LEAST:"),
    ("ask", "if (name) and limit < LEAST:"),
    ("ask", "if (not (not name and limit < LEAST)):"),
    ("ask", "pass"),
    ("ask", "raise Wrong(f\"{limit} is less than {LEAST}\", kind='XXsmall')"),
    ("ask", 'raise Wrong(f"{limit} is less than {LEAST}")'),
    ("ask", "for number in found(limit, wait=False):"),
    ("ask", "for number in found(limit):"),
    ("ask", "if number not in (3,):"),
    ("ask", "if number in (4,):"),
    ("ask", "continue"),
    ("ask", "write(\"some words\", 'XXstate')"),
    ("ask", 'return [number - 1 for number in cast("list[int]", name) if number is not None]'),
    ("ask", 'return [number + 1 for number in cast("list[int]", name) if number is None]'),
    ("ask", "return None"),
])  # fmt: skip
def test_one_place_is_changed_at_a_time(found: list[tuple[str, str, str]], function: str, after: str) -> None:
    assert (function, after) in [(where, line) for where, _, line in found]


def test_what_only_people_and_type_checkers_read_is_left(found: list[tuple[str, str, str]]) -> None:
    changed = {before for _, before, _ in found}
    assert not any(before.startswith(('"""', "logger", "assert", "from")) for before in changed)
    assert not any(
        "some words" not in after and "some words" in before and after != "pass" for _, before, after in found
    )
    for kept in ("description=", '-> "list[int]"', "Annotated[int", "str | None"):
        assert all(kept in after for _, before, after in found if kept in before), kept


def test_the_rest_of_the_module_stays(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE.replace("state", "züstand 🦊"))
    for change in changes(path):
        before, after = (text.splitlines() for text in (path.read_text(), change.text().decode()))
        first = change.line - 1
        assert before[:first] == after[:first]
        assert before[-1] == after[-1] or change.line >= len(before)
