"""The house's rules hold: no cycles, layers, names, docstrings, reasons; and what measures them sees a breach."""

from __future__ import annotations

import ast

from lab.figures import Source, broad, documented, main, repeated_classes


def source(path: str, text: str) -> Source:
    return Source(path, text.splitlines(), ast.parse(text))


def test_every_rule_holds(capsys):
    assert main() == 0, capsys.readouterr().out


def test_a_breach_is_seen():
    one, two = source("a.py", "class Unit: ...\nclass _Own: ..."), source("b.py", "class Unit: ...\nclass _Own: ...")
    assert repeated_classes([one, two]) == {"Unit": ["a.py", "b.py"]}
    assert documented([source("a.py", "def f():\n    'told'\ndef g(): ...\ndef _h(): ...")]) == {True: 1, False: 1}
    caught = "try:\n    f()\nexcept Exception:{}\n    g()\n"
    assert broad([source("a.py", caught.format(""))]) == ["a.py:3"]
    assert broad([source("a.py", caught.format("  # whatever it is"))]) == []
