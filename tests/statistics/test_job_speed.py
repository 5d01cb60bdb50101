"""The job that is measured is one that the commands take."""

from __future__ import annotations

from pathlib import Path

from dicast.app.reports.statistics import compute
from lab.statistics.job import make


def test_a_made_job_has_statistics(tmp_path: Path) -> None:
    folder, report = make(tmp_path, 60, 1, 30, 1)
    found = compute(folder, report)
    (of,) = found.dimensions
    assert (report.scored, of.rated_items, of.raters) == (180, 30, ["ada", "ben", "cleo"])
    assert of.voices[0].bias.is_known and of.groups[0].reason is None
