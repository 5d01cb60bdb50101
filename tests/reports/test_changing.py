"""Who changes a job's files: nobody who looks, nobody who comes late, and no ratings that cannot be computed with."""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dicast.app.cli import statistics
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.quality_gate import QualityGateOptions, decide_job
from dicast.app.cli.statistics import PanelQuery, show_comparison, show_panels, show_statistics
from dicast.app.domain.item import Rating
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.operator.rating import NoAddedRatings
from dicast.app.reports import files, folders
from dicast.app.reports.collecting import collect
from dicast.app.reports.files import ReportChanged, RunChanged, read_report
from dicast.app.reports.finishing import keep_computed
from dicast.app.reports.folders import begin, job_folder, mark_run, run_of, writing
from dicast.app.reports.html.page import write_own_page, write_report
from dicast.app.reports.statistics import StatisticsFailed, evaluated, keep
from dicast.app.reports.stored_items import read_ratings, set_aside
from dicast.errors import Exit
from tests.command import Dicast
from tests.reports.building import NOW, header, opinion
from tests.reports.test_assessing import ITEMS, finished

LATER = "0a1b2c3e"
TINY = 1e-308


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """What lies there, and since when."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != folders.LOCK
    }


def show(folder: Path, *by: str, again: bool = False, **more: Any) -> None:
    more = {"json": False, **more}
    show_statistics(Terminal(), str(folder), by, None, recompute=again, **more)


def judged_again(root: Path, folder: Path, score: int = 9, run: int = 1) -> Report:
    """The job is resumed, and ends once more."""
    set_aside(root, "job-1", NOW, waits=lambda: True, run=run)
    opinions = [
        opinion(n, judge, score, metadata={"system": "a"}) for n in range(ITEMS) for judge in ("strict", "kind")
    ]
    files.write_page(root, "job-1", NOW, "0", 10 * run, opinions, [])
    started = datetime(2025, 1, 1 + run, tzinfo=UTC)
    told = header(2 * ITEMS, started=started, finished=started + timedelta(minutes=1), keep=["system"], rated=True)
    return files.finish(root, "job-1", NOW, told, run)


def rated(tmp_path: Path, probability: float | None, name: str = "people.jsonl") -> str:
    rows = [
        {"item_id": f"item-{n}", "dimension": "clear", "rater": "eve", "score": 1 + n % 9}
        | ({} if probability is None else {"probability": probability if n % 2 else 1.0})
        for n in range(20)
    ]
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# ------------------------------------------------------------------------------------------------------------ who looks
def test_who_looks_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, report = finished(tmp_path)
    report = keep_computed(folder, report)
    write_own_page(folder, report)
    before, out = contents(folder), tmp_path / "out"
    out.mkdir()
    gate = QualityGateOptions({"min_agreement": 0.1}, ("clear=2",), str(out / "g.xml"), True, str(out / "g.csv"), True)
    looks: dict[str, Callable[[], object]] = {
        "report": lambda: show(folder),
        "report --json": lambda: show(folder, json=True),
        "report --by": lambda: show(folder, "doc"),
        "report --by --again": lambda: show(folder, "doc", again=True),
        "report --cluster": lambda: show_statistics(Terminal(), str(folder), [], "doc", recompute=False, json=False),
        "report -o": lambda: show(folder, page=str(out / "report.html")),
        "report --by -o": lambda: show(folder, "doc", page=str(out / "by.html")),
        "compare": lambda: show_comparison(Terminal(), str(folder), str(folder), most=3, force=False, json=False),
        "panel": lambda: show_panels(
            Terminal(), str(folder), PanelQuery((), 2, "pearson", 0.1, ()), plot=str(out / "p.svg"), json=False
        ),
        "gate": lambda: decide_job(Terminal(), str(folder), gate, json=False),
        "run --out": lambda: collect(report, tmp_path, out),
    }
    for name, look in looks.items():
        look()
        assert contents(folder) == before, name
    assert "Means by doc" in (out / "by.html").read_text() and "Means by doc" not in (out / "report.html").read_text()
    assert '"by":"system"' in (folder / "report.json").read_text().replace(" ", ""), "the job's own groups stay"


def test_a_view_of_a_job_whose_own_statistics_are_not_there_yet_leaves_them_so(tmp_path: Path) -> None:
    folder, _ = finished(tmp_path)
    before = contents(folder)
    show(folder, "doc", json=True)
    assert contents(folder) == before
    show(folder, json=True)
    kept = read_report(tmp_path, "job-1").statistics
    assert kept is not None and [of.by for of in kept.dimensions[0].groups] == ["system"]


def test_commands_on_jobs_that_only_files_know_change_nothing(tmp_path: Path, at_once: Dicast) -> None:
    folder, report = finished(tmp_path / "results", panelled=True)
    keep_computed(folder, report)
    before = contents(folder)
    for arguments in (
        ("jobs", "show", "job-1"), ("jobs", "show", "job-1", "--json"), ("report", "job-1", "--by", "doc"),
        ("jobs", "export", "job-1", "--format", "csv", "--to", str(tmp_path / "o.csv")),
        ("jobs", "export", "job-1", "--format", "csv", "--panel", "--to", str(tmp_path / "p.csv")),
        ("calibrate", "job-1", "-o", str(tmp_path / "c.json")),
    ):  # fmt: skip
        said = at_once(*arguments)
        assert said.returncode == (Exit.REFUSED if "calibrate" in arguments else Exit.OK), said.stderr
        assert contents(folder) == before, arguments


# ------------------------------------------------------------------------------------------------------- who comes late
@pytest.mark.parametrize("ratings", [False, True])
def test_a_report_that_is_computed_while_the_job_is_judged_again_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratings: bool
) -> None:
    """35 scored in report.json, 40 in ledger and opinions, was what was there."""
    folder, report = finished(tmp_path)
    later: list[Report] = []

    def slowly(*given: Any) -> Report:
        found = evaluated(*given)
        later.append(judged_again(tmp_path, folder))
        return found

    monkeypatch.setattr(statistics, "evaluated", slowly)
    path = rated(tmp_path, None) if ratings else None
    with pytest.raises(RunChanged, match="was resumed, submitted again or deleted meanwhile"):
        show(folder, ratings=path)
    assert read_report(tmp_path, "job-1") == later[0] != report
    assert "eve" not in {rating.rater for rating in read_ratings(folder)}


def test_a_report_whose_files_make_room_meanwhile_says_so(tmp_path: Path) -> None:
    """A raw FileNotFoundError was what was said."""
    folder, report = finished(tmp_path)
    set_aside(tmp_path, "job-1", NOW, waits=lambda: True)
    for late in (
        lambda: evaluated(folder, report), lambda: keep(folder, report, report.statistics),
        lambda: write_own_page(folder, report), lambda: keep_computed(folder, report),
    ):  # fmt: skip
        with pytest.raises(RunChanged):
            late()
    assert not (folder / "report.json").exists() and not (folder / "report.html").exists()


def test_nothing_of_a_report_goes_into_the_folder_of_a_later_job_of_its_id(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    begin(tmp_path, "job-1", LATER)
    before = contents(folder)
    with pytest.raises(RunChanged):
        keep(folder, report, report.statistics)
    assert contents(folder) == before


def test_who_ends_a_run_late_leaves_the_later_runs_parts_alone(tmp_path: Path) -> None:
    """A worker that was frozen while it ended the first run wakes while the second is judged."""
    folder, report = finished(tmp_path)
    set_aside(tmp_path, "job-1", NOW, waits=lambda: True, run=1)
    files.write_page(tmp_path, "job-1", NOW, "0", 10, [opinion(0)], [])
    before = contents(folder)
    with pytest.raises(RunChanged):
        files.finish(tmp_path, "job-1", NOW, header(2 * ITEMS, keep=["system", "doc"]), 0)
    assert contents(folder) == before
    set_aside(tmp_path, "job-1", NOW, waits=lambda: True, run=1)  # a copy of the message that started it
    assert contents(folder) == before
    assert run_of(folder) == 1 and report.scored == 2 * ITEMS


@pytest.mark.parametrize(
    "other",
    [{"replicate": 1}, {"probe": "verbosity"}, {"judge": "kind"}, {"item_id": "item-7"}, {"criterion_id": "fair"}],
)
def test_of_a_cancelled_run_every_unit_that_it_did_not_reach_stays_as_it_was(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Units that differ in one thing alone, whichever it is, are different units."""
    begin(tmp_path, "job-1", NOW)
    dimensions = [ReportDimension(id=name, scale_min=1, scale_max=10) for name in ("clear", "fair")]
    told = {"dimensions": dimensions}
    first, second = opinion(0, score=3), opinion(0, score=4).model_copy(update=other)
    files.write_page(tmp_path, "job-1", NOW, "0", 0, [first, second], [])
    files.finish(tmp_path, "job-1", NOW, header(2, **told))
    set_aside(tmp_path, "job-1", NOW, waits=lambda: True)
    files.write_page(tmp_path, "job-1", NOW, "0", 1, [first.model_copy(update={"score": 9})], [])
    later = datetime(2025, 1, 2, tzinfo=UTC)
    files.finish(tmp_path, "job-1", NOW, header(2, started=later, status="cancelled", **told), 1)
    assert [o.score for o in files.read_opinions(tmp_path, "job-1", probes=True)] == [9, 4]


def test_who_joined_the_parts_of_an_earlier_run_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, "job-1", NOW)
    files.write_page(tmp_path, "job-1", NOW, "0", 0, [opinion(0, score=1)], [])
    folder, add, later = job_folder(tmp_path, "job-1"), files._add_page, list[Any]()

    def slowly(*given: Any) -> None:
        add(*given)
        if not later:
            later.append(None)
            mark_run(folder, 1)
            (folder / "report.json").write_text("the later run's")
            later.append(contents(folder))

    monkeypatch.setattr(files, "_add_page", slowly)
    with pytest.raises(RunChanged):
        files.finish(tmp_path, "job-1", NOW, header(1))
    now, then = (
        {n: c for n, c in files_.items() if not n.endswith((".tmp", ".lock"))}
        for files_ in (contents(folder), later[1])
    )
    assert now == then
    assert (folder / "report.json").read_text() == "the later run's"
    assert not (folder / "opinions.jsonl").exists()


def test_a_change_of_the_same_run_is_not_overwritten_but_computed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people add their ratings at once: both are kept, and the statistics are of both."""
    folder, _ = finished(tmp_path)
    with monkeypatch.context() as patch:
        once = [rated(tmp_path, None, "other.jsonl").replace("eve", "eve")]
        Path(once[0]).write_text(Path(once[0]).read_text().replace("eve", "zoe"))

        def slowly(*given: Any) -> Report:
            found = evaluated(*given)
            if once:
                other = once.pop()
                show(folder, ratings=other)
            return found

        patch.setattr(statistics, "evaluated", slowly)
        show(folder, ratings=rated(tmp_path, None))
    kept = read_report(tmp_path, "job-1").statistics
    assert kept is not None and kept.dimensions[0].raters == ["ada", "ben", "eve", "zoe"]
    assert {rating.rater for rating in read_ratings(folder)} == {"ada", "ben", "eve", "zoe"}


def test_a_page_of_an_older_report_takes_no_newer_ones_place(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    newer = keep_computed(folder, report)
    write_own_page(folder, newer)
    page = (folder / "report.html").read_bytes()
    with pytest.raises(ReportChanged):
        write_own_page(folder, report)
    assert (folder / "report.html").read_bytes() == page
    write_report(folder, report, tmp_path / "asked.html")


def test_copies_are_of_one_run_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dicast.app.reports import collecting

    folder, report = finished(tmp_path / "results")
    collect(report, tmp_path / "results", tmp_path / "out")
    (tmp_path / "out" / "job-1" / "panel.parquet").write_text("an earlier run's")
    copy, copied = collecting._copy, list[str]()

    def slowly(source: Path, target: Any) -> None:
        copy(source, target)
        copied.append(source.name)
        if len(copied) == 1:
            judged_again(tmp_path / "results", folder)

    monkeypatch.setattr(collecting, "_copy", slowly)
    before = contents(tmp_path / "out" / "job-1")
    with pytest.raises(RunChanged):
        collect(report, tmp_path / "results", tmp_path / "out")
    assert contents(tmp_path / "out" / "job-1") == before
    collect(read_report(tmp_path / "results", "job-1"), tmp_path / "results", tmp_path / "out")
    assert not (tmp_path / "out" / "job-1" / "panel.parquet").exists(), "this run has none"


def _hold(folder: Path, held: Any) -> None:
    with writing(folder):
        held.set()
        signal.pause()


def test_a_folder_is_one_writers_at_a_time_and_a_dead_ones_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = finished(tmp_path)
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=_hold, args=(folder, held))
    holder.start()
    try:
        assert held.wait(30)
        monkeypatch.setattr(folders, "LOCK_WAIT_S", 0.1)
        before = contents(folder)
        with pytest.raises(OSError, match="another process has been writing here for 0 s"):
            keep(folder, report, report.statistics)
        with pytest.raises(OSError, match="another process"):
            begin(tmp_path, "job-1", LATER)
        assert contents(folder) == before
        holder.kill()
        holder.join(30)
        keep(folder, report, report.statistics)
    finally:
        holder.kill()
        holder.join(30)


def test_a_folder_is_waited_for_while_another_writes(tmp_path: Path) -> None:
    folder, report = finished(tmp_path)
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=_hold, args=(folder, held))
    holder.start()
    try:
        assert held.wait(30)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(keep, folder, report, report.statistics)
            with pytest.raises(TimeoutError):
                writing.result(0.3)
            holder.kill()
            assert writing.result(30).job_id == report.job_id
    finally:
        holder.kill()
        holder.join(30)


def test_a_lock_that_was_moved_away_while_one_waited_for_it_counts_for_nothing(tmp_path: Path) -> None:
    """The folder was set aside by whoever held it; what lies at its place now has a lock of its own."""
    folder, _ = finished(tmp_path)
    opened = (folder / folders.LOCK).open("ab")
    with opened:
        begin(tmp_path, "job-1", LATER)
        with writing(folder):
            pass
        assert not folders._is_at(opened, folder / folders.LOCK)


# -------------------------------------------------------------------------------------------------------------- ratings
def test_ratings_that_statistics_cannot_be_computed_with_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were, and no report of the job could be made any more."""
    folder, _ = finished(tmp_path, ratings=[])
    show(folder)
    before = contents(folder)
    with pytest.raises(StatisticsFailed, match="the statistics cannot be computed: "):
        show(folder, ratings=rated(tmp_path, TINY))
    assert "are not kept" in capsys.readouterr().err
    assert contents(folder) == before
    show(folder, again=True)


@pytest.mark.parametrize("own", [True, False])
def test_added_ratings_can_be_taken_back(tmp_path: Path, own: bool, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = finished(tmp_path, *([] if own else [[]]))
    show(folder)
    before = contents(folder)
    first = [(r.item_id, r.rater, r.score) for r in read_ratings(folder)]
    for name in ("one.jsonl", "two.jsonl"):
        path = Path(rated(tmp_path, None, name))
        path.write_text(path.read_text().replace("eve", name[:3]))
        show(folder, ratings=str(path))
    assert {r.rater for r in read_ratings(folder)} == {"one", "two"} | ({"ada", "ben"} if own else set())
    assert read_report(tmp_path, "job-1").rated
    show(folder, forget_ratings=True)
    assert "40 added ratings are taken back" in capsys.readouterr().err
    assert [(r.item_id, r.rater, r.score) for r in read_ratings(folder)] == first
    after = read_report(tmp_path, "job-1")
    assert after.rated is own and after.statistics is not None
    assert after.statistics.dimensions[0].raters == (["ada", "ben"] if own else [])
    assert contents(folder).keys() == before.keys()
    with pytest.raises(NoAddedRatings, match="no ratings have been added to job job-1"):
        show(folder, forget_ratings=True)


def test_ratings_that_an_earlier_version_kept_and_cannot_be_computed_with_are_said_to_be_the_cause(
    tmp_path: Path,
) -> None:
    folder, _ = finished(tmp_path, ratings=[])
    show(folder, ratings=rated(tmp_path, None))
    lines = (folder / "ratings.jsonl").read_text().replace('"probability":null', f'"probability":{TINY}', 10)
    (folder / "ratings.jsonl").write_text(lines.replace('"probability":null', '"probability":1.0'))
    with pytest.raises(StatisticsFailed, match="--forget-ratings"):
        show(folder, again=True)
    show(folder, forget_ratings=True)
    show(folder, again=True)


def test_of_two_ratings_by_one_person_that_of_the_file_counts(tmp_path: Path) -> None:
    own = [Rating(f"item-{n}", "clear", who, 2.0) for n in range(ITEMS) for who in ("eve", "ada")]
    folder, _ = finished(tmp_path, own)
    path = Path(rated(tmp_path, None))
    show(folder, ratings=str(path))
    kept = {(r.item_id, r.rater): r.score for r in read_ratings(folder)}
    given = {row["item_id"]: row["score"] for row in map(json.loads, path.read_text().splitlines())}
    assert {item: kept[item, "eve"] for item in given} == given, "those of the file"
    assert kept["item-30", "eve"] == kept["item-0", "ada"] == 2.0 and len(kept) == len(own), "the others stay"


def test_ratings_that_were_added_are_in_the_report_of_a_resumed_job_too(tmp_path: Path) -> None:
    folder, _ = finished(tmp_path, ratings=[])
    show(folder, ratings=rated(tmp_path, None))
    judged_again(tmp_path, folder)
    show(folder)
    kept = read_report(tmp_path, "job-1").statistics
    assert kept is not None and kept.dimensions[0].raters == ["eve"]


def test_where_ratings_cannot_be_written_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = finished(tmp_path)
    show(folder)
    before = contents(folder)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dicast.app.reports.stored_items._write", full)
    with pytest.raises(Refused, match=r"cannot be kept in .*No space left"):
        show(folder, ratings=rated(tmp_path, None))
    assert contents(folder) == before
