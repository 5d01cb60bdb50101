"""Writes the HTML report of a job, or of a comparison, whole or not at all, and never larger than `MOST_BYTES`."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dicast.app.domain.judge_statistics import RunsCompared
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.reports import formats
from dicast.app.reports.files import changing
from dicast.app.reports.folders import replacing
from dicast.app.reports.html import plots
from dicast.app.reports.html.items import ChosenItems, choose
from dicast.app.reports.html.outcomes import (
    answer_section,
    checklists,
    criteria,
    labels,
    preferences,
    skipped_section,
    trust,
)
from dicast.app.reports.html.sections import (
    choices,
    distributions,
    heat_map,
    opening,
    paragraphs,
    setup,
    spent,
    title,
    trouble,
)

NAME = "report.html"
MOST_BYTES = 5_000_000
MOST_SHIFTS = 200
MOST_DRAWN = 40
RANKS = ["first", "second", "third", "fourth", "fifth"]
HASHED = ("opinions.parquet", "errors.jsonl")


def write_report(folder: Path, report: Report, out: Path) -> Path:
    """Write the report of the job in a folder to the file `out`, and return its path. The section on items is left
    out if the job's opinions are missing. Takes about a second, and some 40 bytes of memory an opinion. Raises
    OSError."""
    return _written(_whole(folder, report), out, private=out.parent.resolve() == folder.resolve())


def write_own_page(folder: Path, report: Report) -> Path:
    """Write the report to the page beside a job's results. Raises `RunChanged` or `ReportChanged` if this is no
    longer the report there, OSError."""
    text = _whole(folder, report)
    with changing(folder, report):
        return _written(text, folder / NAME, private=True)


def _whole(folder: Path, report: Report) -> bytes:
    try:
        choice: ChosenItems | None = choose(folder, report)
    except FileNotFoundError:
        choice = None
    text = _report(folder, report, choice)
    return text if len(text) <= MOST_BYTES else _report(folder, report, None)


def write_comparison(compared: RunsCompared, first: Report, second: Report, out: Path) -> Path:
    """Write a comparison of two jobs to the file `out`, and return its path. Raises OSError."""
    return _written(_rendered("compare.html.j2", _comparison(compared, first, second)), out, private=False)


def fragment(report: Report) -> str:
    """Return the most important parts of the report for a page that exists already, such as a notebook."""
    scoped = _file("style.css").replace(":root", ".dicast-report").replace("body{", ".dicast-report{")
    sections = {"opening": opening(report), "heat": heat_map(report), "trust": trust_in_words(report)}
    return _environment().get_template("fragment.html.j2").render(**_head(report), **sections, style=scoped)


def trust_in_words(report: Report) -> dict[str, Any]:
    """Return what is known of the judges in sentences, without plots."""
    job_statistics = report.statistics
    computed = job_statistics is not None and job_statistics.state == "computed"
    dimensions = job_statistics.dimensions[:MOST_DRAWN] if job_statistics is not None and computed else []
    return {
        "computed": computed,
        "dimensions": [
            {
                "title": formats.name(statistics.dimension),
                "summary": [formats.one_line(line, 600) for line in statistics.summary],
            }
            for statistics in dimensions
        ],
    }


def _report(folder: Path, report: Report, choice: ChosenItems | None) -> bytes:
    return _rendered("report.html.j2", {
        **_head(report), "opening": opening(report), "distributions": distributions(report), "heat": heat_map(report),
        "answer": answer_section(report), "labels": labels(report), "checklists": checklists(report),
        "criteria": criteria(report), "preferences": preferences(report), "spared": skipped_section(report),
        "trust": trust(report), "items": choices(report, choice), "one_judge": len(report.agents) < 2,
        "ranks": RANKS, "errors": trouble(report),
        "cost": spent(report), "setup": setup(report), "digests": _digests(folder),
    })  # fmt: skip


def _head(report: Report) -> dict[str, Any]:
    return {
        "job": formats.one_line(report.job_id), "project": formats.name(report.project), "status": report.status,
        "started": _instant(report.started), "finished": _instant(report.finished),
    }  # fmt: skip


def _comparison(compared: RunsCompared, first: Report, second: Report) -> dict[str, Any]:
    dimensions = {d.id: d for d in first.dimensions}
    spans = {d.id: d.scale_max - d.scale_min for d in first.dimensions}
    lines = [formats.one_line(line, 600) for line in compared.summary]
    lines += [formats.one_line(compared.skipped_sentence, 600)] if compared.skipped_sentence is not None else []
    return {
        "first": {**_head(first), "heat": heat_map(first)},
        "second": {**_head(second), "heat": heat_map(second)},
        "summary": lines,
        "by": formats.name(compared.by) or "System",
        "systems": [
            (
                formats.name(shift.system) or "all items", title(dimensions[shift.dimension]),
                f"{shift.shift.items:,}" if shift.shift.is_known else formats.DASH,
                formats.figure(shift.shift if shift.shift.is_known else None), formats.chance(shift.p),
            )
            for shift in (*compared.systems, *compared.panel)[:MOST_SHIFTS]
        ],
        "forced": [formats.one_line(line) for line in compared.forced],
        "plot": _shift_plot(compared, spans, dimensions),
        "shifts": [
            (
                title(dimensions[shift.dimension]), formats.name(shift.judge), f"{shift.shift.items:,}",
                formats.figure(shift.shift), formats.chance(shift.p), f"{shift.only_first:,}", f"{shift.only_second:,}",
            )
            for shift in compared.shifts[:MOST_SHIFTS]
        ],
        "more": max(0, len(compared.shifts) - MOST_SHIFTS),
        "moved": [
            {
                "id": formats.one_line(item.item_id, 200), "judge": formats.name(item.judge),
                "dimension": title(dimensions[item.dimension]), "first": formats.number(item.first),
                "second": formats.number(item.second), "first_argument": formats.one_line(item.first_argument),
                "second_argument": formats.one_line(item.second_argument),
                "first_text": paragraphs(item.first_text), "second_text": paragraphs(item.second_text),
                "same": item.first_text == item.second_text,
            }
            for item in compared.moved[:100]
        ],
    }  # fmt: skip


def _shift_plot(compared: RunsCompared, spans: dict[str, int], dimensions: dict[str, ReportDimension]) -> str:
    whiskers: list[plots.Whisker] = []
    for shift in compared.shifts:
        span, moved = spans[shift.dimension], shift.shift
        if moved.value is not None and moved.low is not None and moved.high is not None and len(whiskers) < MOST_DRAWN:
            label = f"{title(dimensions[shift.dimension])}, {formats.name(shift.judge)}"
            whiskers.append(plots.Whisker(label, moved.value / span, moved.low / span, moved.high / span))
    caption = "How far each judge's scores moved, as a share of the scale"
    return plots.whiskers(whiskers, caption, "share of the scale", zero=0.0) if whiskers and plots.available() else ""


def _rendered(template: str, context: dict[str, Any]) -> bytes:
    style = _file("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    text = _environment().get_template(template).render(**context, style=style, style_digest=digest, version=_version())
    return text.encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dicast.app.reports.html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("dicast")
    except PackageNotFoundError:
        return "from its sources"


def _digests(folder: Path) -> list[tuple[str, str, str]]:
    digests = []
    for name in HASHED:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests.append((name, f"{(folder / name).stat().st_size:,}", digest))
    return digests


def _instant(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC" if not when.utcoffset() else when.isoformat(" ", "seconds")


def _written(text: bytes, out: Path, *, private: bool) -> Path:
    with replacing(out, private=private) as file:
        file.write(text)
    return out
