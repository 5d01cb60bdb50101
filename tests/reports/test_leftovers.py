"""What is left behind, and what is counted: folders that could not be made, bars of a histogram."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dicast.app.domain.report import ReportDimension
from dicast.app.reports import folders
from dicast.app.reports.files import UnfiledReport
from dicast.app.reports.html.sections import MOST_BARS, _histogram
from dicast.app.reports.stored_items import kept_image
from tests.reports.building import header, opinion


def test_a_folder_that_cannot_be_made_leaves_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folders, "_mark", full)
        with pytest.raises(OSError, match="No space left"):
            folders._make(tmp_path / "job", "abc")
    assert list(tmp_path.iterdir()) == []
    folders._make(tmp_path / "job", "abc")
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    assert folders._incarnation_of(tmp_path / "job") == "abc"


def bars(low: int, high: int, histogram: dict[int, int]) -> tuple[list[int], list[str]]:
    dimension = ReportDimension(id="d", scale_min=low, scale_max=high)
    of = SimpleNamespace(dimension=dimension, scores=SimpleNamespace(histogram=histogram))
    found = _histogram(of)  # type: ignore[arg-type]
    return list(found.counts), list(found.labels)


def test_a_histogram_counts_every_score_in_the_bar_that_names_it() -> None:
    assert bars(1, 5, {1: 4, 3: 2, 5: 1}) == ([4, 0, 2, 0, 1], ["1", "2", "3", "4", "5"])
    for low, high in ((0, 100), (1, 3 * MOST_BARS), (-7, 2 * MOST_BARS)):
        counts, labels = bars(low, high, dict.fromkeys(range(low, high + 1), 1))
        assert len(counts) == len(labels) == MOST_BARS
        assert sum(counts) == high - low + 1
        for score in (low, low + 1, (low + high) // 2, high):
            (at,) = [n for n, count in enumerate(bars(low, high, {score: 9})[0]) if count == 9]
            first, _, last = labels[at].partition("–")
            assert int(first) <= score <= int(last or first)


@pytest.mark.parametrize("reference", ["", "sha256:", "sha256:../../report.json", "sha256:" + "g" * 64, "0" * 63])
def test_an_image_is_known_by_its_digest_alone(tmp_path: Path, reference: str) -> None:
    with pytest.raises(ValueError, match="no digest"):
        kept_image(tmp_path, reference)


@pytest.mark.parametrize("kind, reason", [("preference", "its results are in no file"), ("numbers", None)])
def test_a_report_without_files_waits_for_no_statistics(tmp_path: Path, kind: str, reason: str | None) -> None:
    labels = {"kind": kind, "labels": ["B", "tie", "A"]} if kind == "preference" else {}
    dimension = ReportDimension(id="clear", scale_min=-1, scale_max=1, **labels)
    unfiled = UnfiledReport(tmp_path, header(1, dimensions=[dimension]))
    unfiled.add([opinion(0, score=1)], [])
    found = unfiled.build().statistics
    assert found is not None and found.state == "left out"
    assert (found.reason == "its results are in no file") == (reason is not None)
