"""The HTML report: complete in itself, bounded, and safe whatever texts a job holds."""

from __future__ import annotations

import errno
import html
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dicast.app.cli.console import Terminal
from dicast.app.cli.statistics import show_comparison, show_statistics
from dicast.app.domain.report import Report, ReportAgent, ReportDimension
from dicast.app.reports import files, folders
from dicast.app.reports.files import REPORT
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.html import beside, page, plots
from dicast.app.reports.html.items import choose
from dicast.app.reports.html.page import fragment, write_comparison, write_report
from dicast.app.reports.statistics import compare_jobs, compute, keep
from tests.reports.building import NOW, error, header, opinion
from tests.reports.test_assessing import finished

HOSTILE = (
    "<script>alert(1)</script>\u202egnp\x00\x1b[2J\u200b{{7*7}}\ud800 \"'><img src=x onerror=alert(1)> \U0001f600 م "
)
NAME = HOSTILE.replace("\ud800", "")  # files refuse half a pair outside of opinions
WITHOUT_END = {"meta", "br", "img"}


class Structure(HTMLParser):
    """What a page is made of; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in WITHOUT_END:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in WITHOUT_END:
            assert self._open.pop() == tag


def safe(text: str) -> Structure:
    """Nothing of the page runs, or fetches anything; every table has heads, every picture a title."""
    found = Structure(text)
    for tag, attributes in found.tags:
        assert tag not in {"script", "iframe", "object", "embed", "link", "img", "base", "form"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in {"src", "style"}, (tag, name)
            assert not name.endswith("href") or (value or "").startswith("#"), value
    tags = [tag for tag, _ in found.tags]
    assert tags.count("table") == tags.count("caption") == tags.count("thead")
    assert all("scope" in attributes for tag, attributes in found.tags if tag == "th")
    assert tags.count("svg") == sum(attributes.get("role") == "img" for _, attributes in found.tags)
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids are unique"
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u200b]", text)
    assert "@import" not in text and "url(" not in text.replace("url(#", "")
    return found


def computed(root: Path, **changes: Any) -> tuple[Path, Report]:
    folder, report = finished(root, **changes)
    return folder, keep(folder, report, compute(folder, report))


def test_a_report_tells_all_that_is_known(tmp_path: Path) -> None:
    folder, report = computed(tmp_path)
    text = write_report(folder, report, tmp_path / "report.html").read_text(encoding="utf-8")
    found = safe(text)
    for told in (
        "2 judges, 1 dimension, 80 of 80 judgements", "These raters rated every judged item",
        "in people&#39;s opinion",
        "correlation with people",
        "Items with the lowest scores", "because of", "m (40)", "Means by system", "points above people",
    ):  # fmt: skip
        assert told in text, told
    assert sum(tag == "svg" for tag, _ in found.tags) == 9, (
        "systems, three rows of judges, and below scores, agreement, calibration, bias, groups"
    )
    lowest = choose(folder, report).worst[0]
    assert lowest.item_id in text and len(lowest.opinions) == 2
    policy = next(
        attributes["content"] for tag, attributes in found.tags if tag == "meta" and "http-equiv" in attributes
    )
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A job whose every text is hostile, and long."""
    root = tmp_path_factory.mktemp("hostile")
    begin(root, "job-1", NOW)
    judges = [f"{HOSTILE[:150]}{n}".replace("\x00", "").replace("\x1b", "") for n in range(3)]
    judges = ["".join(c for c in name if c.isprintable()).strip() for name in judges]
    names = [f"d{n}" for n in range(4)]
    long = HOSTILE * 10_000
    opinions = [
        opinion(
            n, judge, (n + 3 * at) % 10 + 1, item_id=f"<b>{n}</b>" + "y" * 150, criterion_id=name,
            argument=long if (n, name, at) == (0, "d0", 0) else HOSTILE * 50,
            cited_evidence=[HOSTILE * 50] * 5, model=f"{NAME}{at}",
        )
        for n in range(40) for name in names for at, judge in enumerate(judges)
    ]  # fmt: skip
    errors = [error(0, judges[0], criterion_id="d0", message=f"{n}{NAME * 20}") for n in range(30)]
    files.write_page(root, "job-1", NOW, "0", 0, opinions, errors)
    given = {
        "agents": [ReportAgent(name=name, model=NAME, pool=NAME) for name in judges],
        "dimensions": [
            ReportDimension(id=name, name=NAME * 9, scale_min=1, scale_max=10, version="</style><script>")
            for name in names
        ],
        "project": NAME,
    }
    return job_folder(root, "job-1"), files.finish(root, "job-1", NOW, header(len(opinions), **given))


def test_no_text_gets_out_of_its_place(tmp_path: Path, hostile: tuple[Path, Report]) -> None:
    folder, report = hostile
    text = write_report(folder, report, tmp_path / "report.html").read_text(encoding="utf-8")
    safe(text)
    assert len(text.encode()) < 2_000_000
    assert "<script>alert(1)</script>" in html.unescape(text) and "{{7*7}}" in text, "shown, and nothing but shown"
    Structure(fragment(report))
    assert "<script" not in fragment(report)


def test_however_much_there_is_a_report_stays_below_its_bound(
    tmp_path: Path, hostile: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = hostile
    whole = write_report(folder, report, tmp_path / "whole.html").stat().st_size
    monkeypatch.setattr(page, "MOST_BYTES", whole - 1)
    small = write_report(folder, report, tmp_path / "small.html").read_text(encoding="utf-8")
    assert len(small) < whole // 2 and "items are left out" in small
    many = report.model_copy(update={
        "by_agent": report.by_agent * 400, "by_dimension": report.by_dimension * 250,
        "dimensions": report.dimensions * 250, "errors": report.errors * 13,
    })  # fmt: skip
    monkeypatch.undo()
    large = write_report(tmp_path, many, tmp_path / "large.html")
    assert large.stat().st_size < page.MOST_BYTES
    assert "and 960 more dimensions and 1,140 more judges" in large.read_text(encoding="utf-8")


def test_without_its_libraries_a_report_has_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, report = computed(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.available()
    text = write_report(folder, report, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<figure" not in text and "Against people" in text, "the charts it begins with need no library"
    safe(text)


@pytest.mark.parametrize("change", [{"scored": 0}, {"statistics": None}, {"status": "cancelled", "reason": "no money"}])
def test_odd_jobs_have_reports_too(tmp_path: Path, change: dict[str, Any]) -> None:
    begin(tmp_path, "job-1", NOW)
    files.write_page(tmp_path, "job-1", NOW, "0", 0, [opinion(0, score=None), opinion(1, score=None)], [error(0)])
    report = files.finish(tmp_path, "job-1", NOW, header(2)).model_copy(update=change)
    text = write_report(job_folder(tmp_path, "job-1"), report, tmp_path / "out.html").read_text(encoding="utf-8")
    safe(text)
    assert "No item has a score" in text and "the provider failed, status 503" in text
    elsewhere = write_report(tmp_path, report, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "The opinions cannot be read here" in elsewhere


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, report = finished(tmp_path, [])
    (folder / "report.html").write_text("before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_report(folder, report, folder / "report.html")
    assert caught.value.filename == str(folder / "report.html")
    assert (folder / "report.html").read_text() == "before" and not list(folder.glob("*.tmp"))


# ---------------------------------------------------------------------- beside the results
def test_it_is_written_beside_the_results_by_a_process_of_its_own(tmp_path: Path) -> None:
    folder, _ = finished(tmp_path, [])
    writer = beside.HtmlWriter(tmp_path / "state")
    writer.write(folder)
    writer._waiting.put(folder)
    for _ in range(600):
        if (folder / "report.html").exists():
            break
        beside.threading.Event().wait(0.05)
    safe((folder / "report.html").read_text(encoding="utf-8"))
    assert list((tmp_path / "state" / "matplotlib").glob("fontlist*")), "the next one need not look for fonts again"


def test_what_cannot_be_written_is_told_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = finished(tmp_path, [])
    monkeypatch.setattr(beside.os, "nice", lambda _: None)
    monkeypatch.setattr(beside.signal, "alarm", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["beside", str(folder)])
    assert beside.main() == 0
    (folder / REPORT).unlink()
    assert beside.main() == 1 and "FileNotFoundError" in capsys.readouterr().err
    monkeypatch.setattr(page, "write_report", lambda *_: (folder / "report.html").touch())
    (folder / REPORT).write_text("{")
    assert beside.main() == 1 and "ValidationError" in capsys.readouterr().err

    def failing(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "Traceback\nOSError: full\n")

    monkeypatch.setattr(beside.subprocess, "run", failing)
    assert beside.in_own_process(folder, tmp_path) == "OSError: full"


def test_more_than_can_wait_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = beside.HtmlWriter(tmp_path)
    writer._thread = beside.threading.current_thread()  # nobody takes anything out
    for _ in range(beside.MOST_WAITING + 1):
        writer.write(tmp_path)
    assert "1000 others wait" in caplog.text


# ---------------------------------------------------------------------- the commands
def test_the_commands_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = finished(tmp_path)
    (folder / "report.html").write_text("old")
    show_statistics(Terminal(), str(folder), (), None, recompute=False, json=False, page=str(tmp_path / "r.html"))
    assert "Report in" in capsys.readouterr().err
    for path in (tmp_path / "r.html", folder / "report.html"):
        assert "Squares: a person" in path.read_text(encoding="utf-8"), "what lies beside the results is renewed"
    shutil.copytree(folder, tmp_path / "other")
    show_comparison(
        Terminal(), str(folder), str(tmp_path / "other"), most=3, force=False, json=False, page=str(tmp_path / "c.html")
    )
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    safe(text)
    assert "None of the 2 systems changed beyond chance." in text and "No item moved" in text


def test_a_comparison_tells_what_moved(tmp_path: Path, hostile: tuple[Path, Report]) -> None:
    _, report = hostile
    compared = compare_jobs(hostile, hostile, most=3)
    shift = compared.shifts[0]
    told = shift.model_copy(update={
        "p": 0.0001, "shift": shift.shift.model_copy(update={"value": -1.0, "low": -1.5, "high": -0.5, "reason": None}),
    })  # fmt: skip
    items = [
        {"item_id": HOSTILE, "dimension": "d0", "judge": HOSTILE, "first": 1, "second": 9, "first_argument": HOSTILE}
    ]
    compared = type(compared).model_validate({**compared.model_dump(), "shifts": [told], "moved": items})
    text = write_comparison(compared, report, report, tmp_path / "c.html").read_text(encoding="utf-8")
    safe(text)
    assert "beyond chance" in text and "How far each judge" in text and "&lt; 0.001" in text and "<svg" in text
