"""The mutation tool's own parts; what it finds is shown by running it."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from lab.chaos.mutants import COPIED, FAST_TESTS, MUTANTS
from lab.chaos.mutation import python, rooms, scripts
from lab.chaos.mutation.accepted import AcceptedChange, accepted
from lab.chaos.mutation.lua import mutations

SCRIPT = """#!lua flags=allow-oom
-- a comment with 1 and == stays
local x = tonumber(ARGV[1]) + 1
if x <= 5 and redis.call('EXISTS', 'a == 1') == 1 then
  redis.call('DEL', KEYS[1])
end
return {1, true}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "verb.lua"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_changed_one_place_at_a_time(script):
    found = [(m.number, m.after.strip()) for m in mutations(script)]
    assert found == [
        (2, "local x = tonumber(ARGV[1]) - 1"),
        (2, "local x = tonumber(ARGV[1]) + 2"),
        (3, "if x <= 5 and redis.call('EXISTS', 'a == 1') ~= 1 then"),
        (3, "if x < 5 and redis.call('EXISTS', 'a == 1') == 1 then"),
        (3, "if x <= 5 or redis.call('EXISTS', 'a == 1') == 1 then"),
        (3, "if x <= 6 and redis.call('EXISTS', 'a == 1') == 1 then"),
        (3, "if x <= 5 and redis.call('EXISTS', 'a == 1') == 2 then"),
        (4, "do end"),
        (6, "return {1, false}"),
        (6, "return {2, true}"),
    ]


def test_the_rest_of_the_script_stays(script):
    dropped = next(m for m in mutations(script) if m.after.strip() == "do end")
    assert dropped.text() == SCRIPT.replace("redis.call('DEL', KEYS[1])", "do end")


def test_a_change_is_known_by_its_lines_and_not_by_their_numbers():
    diff = "--- f\n+++ f\n@@ -1,3 +1,3 @@\n def f():\n-    return 1\n+    return 2\n"
    assert AcceptedChange.of_diff("f.py", diff) == AcceptedChange("f.py", "return 1", "return 2")


def test_nothing_is_accepted_without_a_reason(tmp_path):
    listed = tmp_path / "accepted.toml"
    listed.write_text('[[change]]\nfile = "f.py"\nbefore = "a"\nafter = "b"\nreason = "the same"\n')
    assert accepted(listed) == {AcceptedChange("f.py", "a", "b"): "the same"}
    listed.write_text('[[change]]\nfile = "f.py"\nbefore = "a"\nafter = "b"\nreason = ""\n')
    with pytest.raises(ValueError, match="no reason"):
        accepted(listed)


def test_every_accepted_change_is_one_of_a_file_that_exists():
    root = Path(__file__).parents[2]
    for change in accepted():
        text = (root / change.file).read_text()
        assert all(line.strip() in text for line in change.before.splitlines()), f"no longer there: {change}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_every_planted_bug_has_its_place(mutant):
    text = (python.ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    assert text.replace(mutant.old, mutant.new) != text


@pytest.mark.parametrize("path", [*COPIED, *FAST_TESTS])
def test_planted_bugs_meet_tests_that_exist(path):
    assert (python.ROOT / path).exists()


def test_rooms_and_scripts_that_are_mutated_exist_as_do_their_tests():
    own = {f"app/{room}" for room in rooms.ROOMS}
    assert [room for room in own if not list((python.ROOT / room).glob("*.py"))] == []
    assert [test for test in rooms.TESTS if not (python.ROOT / test).exists()] == []
    listed = {test for tests in (*scripts.TESTS.values(), *scripts.OWN.values()) for test in tests}
    assert [test for test in sorted(listed) if not (python.ROOT / test).exists()] == []
    stems = {path.stem for folder in scripts.TESTS for path in folder.rglob("*.lua")}
    assert set(scripts.OWN) <= stems


def test_every_module_that_is_mutated_has_tests_that_are_to_notice():
    wished = tomllib.loads((python.ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]["only_mutate"]
    found = [path for room in ("app", "workers") for path in (python.ROOT / room).rglob("*.py")]
    files = [str(path.relative_to(python.ROOT)) for path in found]
    mutated = {file for file in files if any(fnmatch(f"dicast/{file}", wish) for wish in wished)}
    assert mutated == {module for modules in python.TESTS.values() for module in modules} | {"app/ledger/__init__.py"}
    for tests in python.TESTS:
        assert all((python.ROOT / path).exists() for path in tests.split(","))
