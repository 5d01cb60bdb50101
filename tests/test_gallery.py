"""The gallery's reports say what was planted."""

from __future__ import annotations

from pathlib import Path

from dicast.app.reports.files import read_report
from lab.gallery import write


def test_reports_of_each_kind_say_what_was_planted(tmp_path: Path) -> None:
    pages = list(write(tmp_path))
    assert all(page.stat().st_size > 10_000 for page in pages)
    conclusions = {page.parent.name: read_report(tmp_path, page.parent.name).conclusions for page in pages}
    best = {name: of.best[0] for name, of in conclusions.items() if of is not None}
    assert best["which-model"].startswith("new-model is best of 3 in the judges' opinion")
    assert best["topics"].startswith("In Topic, 'billing' is the commonest label in people's opinion")
    assert best["nothing-judged"].startswith("Nothing has a score")
