"""The story in the documents is true: its commands in one shell, and what it says they print."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import ROOT
from tests.test_tutorial import Shell, after


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_story_is_true_word_by_word(tmp_path: Path) -> None:
    story = (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", story, re.DOTALL | re.MULTILINE)
    program = Path(sys.executable).parent
    shell = Shell(tmp_path, {"HOME": str(tmp_path), "PATH": f"{program}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
    printed, shown = "", 0
    try:
        for kind, text in blocks:
            if kind == "sh":
                printed = shell.give(text)
            else:
                for line in text.splitlines():
                    printed = after(line, printed, same_numbers=True)
                    shown += 1
        shell.give("dicast stop")
    finally:
        shell.close()
    assert shown > 15
