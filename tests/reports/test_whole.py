"""All that is shown of jobs that have everything, word by word (`python -m tests.reports.whole` writes it anew)."""

from __future__ import annotations

from dicast.app.domain.judge_statistics import DimensionStatistics
from dicast.app.reports.html import plots
from tests.reports.whole import FOLDER, Filler, texts


def test_all_that_is_shown_is_what_was_looked_at() -> None:
    assert plots.available()
    made = dict(texts())
    assert sorted(made) == sorted(path.name for path in FOLDER.iterdir())
    for name, text in made.items():
        assert text == (FOLDER / name).read_text(encoding="utf-8"), f"{name}: see CONTRIBUTING.md, Style"


def test_nothing_that_is_made_up_is_there_twice() -> None:
    made = Filler(unknown=0).fill(DimensionStatistics)
    values = [figure.value for figure in made.voices for figure in (made.voices[0].bias, made.voices[1].bias)]
    assert len(set(values)) == 2
