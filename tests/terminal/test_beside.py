"""The HTML report beside the results: waited for while a worker writes it, and told of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dicast.app.cli.console import Terminal
from dicast.app.cli.run import PAGE, print_page_path, wait_for_page
from dicast.app.reports.files import REPORT


def test_it_is_waited_for_but_not_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 4 and not (tmp_path / PAGE).exists():
            (tmp_path / PAGE).write_text("an earlier run's")
            os.utime(tmp_path / PAGE, (1, 1))
        if now > 7:
            os.utime(tmp_path / PAGE, (9, 9))

    (tmp_path / REPORT).write_text("{}")
    os.utime(tmp_path / REPORT, (5, 5))
    print_page_path(Terminal(), tmp_path, "j")
    assert not wait_for_page(tmp_path, 5, clock=lambda: now, pause=pause) and 5 <= now < 5.2
    assert wait_for_page(tmp_path, 5, clock=lambda: now, pause=pause) and 7 < now < 7.2
    print_page_path(Terminal(), tmp_path, "j")
    said = capsys.readouterr().err
    assert "`dicast report j -o FILE` makes it" in said and f"Report in {tmp_path / PAGE}" in said.replace("\n", "")
