"""The rules of the code's structure hold, and each of them sees a breach that is planted."""

from __future__ import annotations

import ast

import pytest

from lab import figures
from lab.figures import Source


def source(text: str, path: str = "a.py") -> Source:
    return Source(path, text.splitlines(), ast.parse(text))


def lines(count: int, path: str = "a.py") -> Source:
    return source("x = 1\n" * count, path)


def broken(rules: list[figures.Gauge]) -> list[str]:
    return [rule.name for rule in rules if not rule.holds]


def test_every_rule_holds(capsys: pytest.CaptureFixture[str]) -> None:
    status = figures.main()
    assert status == 0, capsys.readouterr().out


def test_names_docstrings_and_reasons_are_measured() -> None:
    one, two = (source("class Unit: ...\nclass _Own: ...", path) for path in ("a.py", "b.py"))
    assert figures.repeated_classes([one, two]) == {"Unit": ["a.py", "b.py"]}
    assert figures.documented([source("def f():\n    'text'\ndef g(): ...\ndef _h(): ...")]) == {True: 1, False: 1}
    handler = "try:\n    f()\nexcept Exception:{}\n    g()\n"
    assert figures.broad_handlers([source(handler.format(""))]) == ["a.py:3"]
    assert figures.broad_handlers([source(handler.format("  # whatever it is"))]) == []


def test_a_long_file_and_a_long_function_are_seen() -> None:
    assert figures.long_files([lines(800)]) == []
    assert figures.long_files([lines(801)]) == ["a.py 801"]
    function = "def f():\n" + "    x = 1\n" * 59
    assert figures.long_functions([source(function)]) == []
    assert figures.long_functions([source(function + "    x = 1\n")]) == ["a.py:1 f"]


def test_too_many_files_and_too_many_short_ones_are_seen() -> None:
    assert broken(figures.size_rules([lines(150)] * figures.FILES_AT_MOST)) == []
    assert broken(figures.size_rules([lines(150)] * (figures.FILES_AT_MOST + 1))) == ["files (at most 290)"]
    assert broken(figures.size_rules([lines(150)] * 17 + [lines(59)] * 3)) == []
    assert broken(figures.size_rules([lines(150)] * 16 + [lines(59)] * 3)) == ["files below 60 lines (at most 15%)"]
    assert broken(figures.size_rules([lines(149)])) == ["median length of a file (at least 150 lines)"]
    assert broken(figures.size_rules([lines(149), lines(0), lines(151), lines(5)])) == []


def test_a_cycle_of_imports_is_seen() -> None:
    assert figures.cycles({"a": ["b"], "b": ["c"], "c": []}) == []
    assert [set(group) for group in figures.cycles({"a": ["b"], "b": ["c"], "c": ["b"]})] == [{"b", "c"}]


def test_a_module_that_only_one_sibling_imports_is_seen() -> None:
    imports = {"p.a": ["p.b", "p.c", "q.d"], "p.c": ["p.e"], "p.f": ["p.e"], "p.b": [], "q.d": [], "p.e": []}
    assert figures.only_children(imports) == ["p.b <- p.a", "p.c <- p.a"]


def test_too_many_of_them_break_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "layers_broken", lambda: "")
    star = {"p.hub": [f"p.m{i}" for i in range(figures.ONLY_CHILDREN_AT_MOST)]}
    star |= {module: [] for module in star["p.hub"]}
    assert broken(figures.import_rules(star)) == []
    star["p.hub"].append("p.more")
    star["p.more"] = []
    assert broken(figures.import_rules(star)) == ["modules that only one sibling imports (at most 15)"]
    monkeypatch.setattr(figures, "layers_broken", lambda: "app.domain imports app.cli")
    assert "layers" in broken(figures.import_rules({}))


def test_vague_names_are_counted() -> None:
    clear = "def count_units():\n    units = 1\n"
    assert figures.vague_names([source(clear * 999 + "def _told():\n    found = 1\n")]) == (1.0, 1.0)
    assert broken(figures.wording_rules([source(clear * 199 + "def told():\n    x = 1\n")], [])) == [
        "public functions and classes with a docstring",
    ]
    assert "vague names of 1,000 functions (at most 5)" in broken(
        figures.wording_rules([source(clear * 198 + "def told():\n    x = 1\n")], [])
    )
    assert "vague names of 1,000 assignments (at most 5)" in broken(
        figures.wording_rules([source(clear + "_words = 1\n")], [])
    )


def test_docstrings_that_begin_as_a_fragment_are_seen() -> None:
    begun = '"""{}"""\n'
    assert figures.fragments([source(begun.format("Where messages wait: in the store."))]) == [
        "a.py:1 Where messages wait:",
    ]
    assert figures.fragments([source(begun.format("What follows is a list."))]) == []
    assert figures.fragments([source(begun.format("Places where messages wait."))]) == []
    many = [source(begun.format("Of all."))] * (figures.FRAGMENTS_AT_MOST + 1)
    assert "docstrings that begin as a fragment (at most 30)" in broken(figures.wording_rules(many, []))


def test_a_module_that_only_marks_a_package_is_no_only_child() -> None:
    imports = {"dicast.app.page": [], "dicast.app.cli": [], "dicast.app.web": ["dicast.app.page", "dicast.app.cli"]}
    files = [lines(3, "app/page/__init__.py"), lines(9, "app/cli/__init__.py"), lines(9, "app/web.py")]
    assert figures.without_markers(imports, files) == {"dicast.app.cli": [], "dicast.app.web": ["dicast.app.cli"]}
