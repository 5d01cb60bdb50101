"""Reports of jobs that have everything, and all that is shown of them, to be compared with `tests/reports/texts`.

Statistics are made up: each figure and each word is another one, so that a figure in a wrong place, or one that is left
out, changes a text. `python -m tests.reports.whole` writes the texts anew; look at the difference before you keep it.
"""

from __future__ import annotations

import io
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from rich.console import Console

from dicast.app.domain.calibration import Calibration, CalibrationMap, MadeFor
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import (
    DimensionStatistics,
    JobStatistics,
    NotCalibrated,
    PanelFront,
    RunsCompared,
    statistic_rows,
)
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.plan import Stop
from dicast.app.domain.quality_gate import Check, QualityGate, QualityVerdict
from dicast.app.domain.report import Report
from dicast.app.reports import files, quality_gate, terminal, terminal_statistics
from dicast.app.reports.folders import begin, job_folder
from dicast.app.reports.html.page import fragment, write_comparison, write_report
from tests.reports.building import NOW, error, files_in, header
from tests.reports.test_html_outcomes import DIMENSIONS, JUDGES, made, opinions, with_everything

FOLDER = Path(__file__).parent / "texts"
ROW_END, BLOCKS = "tr", {"h1", "h2", "h3", "p", "li", "summary", "caption", "div", "dt", "figcaption", "section"}


# -------------------------------------------------------------------------------------------------- made-up statistics
class Filler:
    """Fills models: numbers, words and figures follow from their place, so that a new field changes no other. Of
    `unknown` figures about one has no value."""

    def __init__(self, *, unknown: int, most: int = 2) -> None:
        self._unknown, self._most = unknown, most

    def fill(self, model: type[BaseModel], place: str = "", **given: Any) -> Any:
        values = {
            name: given[name] if name in given else self._value(name, f"{place}.{name}", field.annotation)
            for name, field in model.model_fields.items()
            if not field.exclude
        }
        return model.model_validate(values)

    def _value(self, name: str, place: str, kind: Any) -> Any:
        origin, inside, number = get_origin(kind), get_args(kind), zlib.crc32(place.encode()) % 997 + 1
        if origin in (UnionType, Union):
            return self._value(name, place, next(one for one in inside if one is not type(None)))
        if origin is Literal:
            return inside[number % len(inside)]
        if origin is list:
            return [self._value(name, f"{place}[{n}]", inside[0]) for n in range(self._most)]
        if origin is dict:
            return {f"{name} {n}": number + n for n in range(self._most)}
        if kind is Figure:
            return self._figure(number)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return self.fill(kind, place)
        return {bool: number % 2 == 0, int: number, float: number / 1000, str: f"{name} {number}"}[kind]

    def _figure(self, number: int) -> Figure:
        if self._unknown and number % self._unknown == 0:
            return Figure.unknown(f"reason {number}")
        value = number * 0.7 / 1000
        return Figure(value=value, low=value - 0.011, high=value + 0.222, items=number, method=f"method {number}")


def statistics(report: Report, *of: str, unknown: int) -> JobStatistics:
    """Statistics of some dimensions of a report, in which nothing is missing."""
    filler = Filler(unknown=unknown)
    made_up: JobStatistics = filler.fill(JobStatistics, version=1, state="computed", reason=None, rated=True)
    dimensions = []
    for dimension in (each for each in report.dimensions if each.id in of):
        scale = {"scale_min": dimension.scale_min, "scale_max": dimension.scale_max}
        one = filler.fill(DimensionStatistics, dimension.id, dimension=dimension.id, **scale)
        groups = [group.model_copy(update={"reason": None}) for group in one.groups]
        voices = [
            voice.model_copy(update={"confusion": [[9, 3, 1], [2, 8 + at, 4], [0, 1, 7]]})
            for at, voice in enumerate(one.voices)
        ]
        preferences = one.preferences.model_copy(update={"reason": None}) if dimension.id == "better" else None
        update = {"groups": groups, "voices": voices, "preferences": preferences}
        dimensions.append(one.model_copy(update=update))
    return made_up.model_copy(update={"dimensions": dimensions})


# ------------------------------------------------------------------------------------------------------------- reports
def everything(root: Path) -> tuple[Path, Report]:
    folder, report = made(root, 9)
    return folder, with_everything(report)


def in_trouble(root: Path) -> tuple[Path, Report]:
    """A cancelled job with errors of many kinds, places that were not asked any more, and a gap in its statistics."""
    begin(root, "job-1", NOW)
    given = opinions(4)
    kinds = list(ErrorKind)
    errors = [
        error(100 + n, JUDGES[n % 3], criterion_id="topic", kind=kinds[n % len(kinds)], message=f"message {n % 13}",
              status_code=500 + n % 5 if n % 2 else None)
        for n in range(50)
    ]  # fmt: skip
    files.write_page(root, "job-1", NOW, "0", 0, given, errors)
    counted = {
        "retries": 11, "requeues": 12, "timeouts": 13, "calls_without_answer": 14, "possible_double_charges": 15,
        "calls_unreported": 16, "reason": "no money is left", "status": "cancelled", "keep": ["system_a", "system_b"],
        "stopped": [
            Stop(pool="sim", model="m", kind=ErrorKind.REJECTED, after=3, status_code=401, message="no such key"),
            Stop(pool="other", model="", kind=ErrorKind.POOL_DOWN, after=0, status_code=None, message="it is down"),
        ],
    }  # fmt: skip
    head = header(len(given) + 70, **{
        "agents": [{"name": name, "pool": f"p{name}", "model": f"m{name}"} for name in JUDGES],
        "dimensions": list(DIMENSIONS), **counted,
    })  # fmt: skip
    report = files.finish(root, "job-1", NOW, head)
    return job_folder(root, "job-1"), report.model_copy(update={"statistics": statistics(report, "topic", unknown=3)})


def rated(root: Path) -> tuple[Path, Report]:
    folder, report = made(root, 3)
    return folder, report.model_copy(update={"statistics": statistics(report, "better", unknown=0)})


def plain(root: Path) -> tuple[Path, Report]:
    """Two judges, one dimension, nothing else."""
    from tests.reports.test_assessing import finished

    return finished(root, [])


REPORTS: dict[str, Callable[[Path], tuple[Path, Report]]] = {
    "everything": everything, "in_trouble": in_trouble, "rated": rated, "plain": plain,
}  # fmt: skip


# -------------------------------------------------------------------------------------------------------- what is shown
def console(width: int = 110, **options: Any) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None, legacy_windows=False,
                   **options)  # fmt: skip


def printed(show: Callable[[Console], None], width: int = 110) -> str:
    out = console(width)
    show(out)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


class PageText(HTMLParser):
    """The text of a page: a line for each paragraph, heading and row of a table, and the words in its drawings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._lines, self._hidden = [""], 0
        self.feed(page)
        self.close()

    def text(self) -> str:
        lines = (" ".join(line.split()).removesuffix(" |") for line in self._lines)
        return "\n".join(line for line in lines if line) + "\n"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag == "style"
        if tag == ROW_END or tag in BLOCKS or tag == "svg":
            self._lines.append({"h1": "# ", "h2": "## ", "h3": "### ", "li": "- ", "svg": "drawn:"}.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag == "style"
        if tag in ("td", "th"):
            self._lines[-1] += " | "
        elif tag in BLOCKS or tag == "svg":
            self._lines.append("")
        elif tag in ("text", "title"):
            self._lines[-1] += "; "

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._lines[-1] += data


def page_text(path: Path) -> str:
    text = PageText(path.read_text(encoding="utf-8")).text()
    return re.sub(r"(?<=parquet \| )[0-9,]+|[0-9a-f]{64}|(?<=Dicast )[0-9]\S+", "…", text)


def shown(folder: Path, report: Report) -> Iterator[tuple[str, str]]:
    """All that is shown of one report, with a title for each."""
    yield "terminal", printed(lambda out: terminal.print_report(report, out))
    yield "narrow terminal", printed(lambda out: terminal.print_report(report, out), 60)
    yield "heat map", printed(lambda out: terminal.print_heat_map(report, out))
    for figures in (False, True):
        yield (
            f"statistics, figures: {figures}",
            printed(lambda out, figures=figures: terminal_statistics.print_statistics(report, out, figures=figures)),
        )
    yield "page", page_text(write_report(folder, report, folder / "shown.html"))
    yield "fragment", PageText(fragment(report)).text()
    if report.statistics is not None and report.statistics.rated:
        rows = statistic_rows(report.statistics)
        lines = (" | ".join("" if value is None else str(value) for value in row) for row in rows)
        yield "rows", "\n".join(lines) + "\n"


def comparisons(folder: Path, report: Report) -> Iterator[tuple[str, str]]:
    """What is shown of comparisons, panels, calibrations and gates."""
    filler = Filler(unknown=4, most=3)
    compared: RunsCompared = filler.fill(RunsCompared)
    dimension = report.dimensions[0].id
    compared = compared.model_copy(update={
        "shifts": [shift.model_copy(update={"dimension": dimension, "p": shift.p / 10}) for shift in compared.shifts],
        "moved": [item.model_copy(update={"dimension": dimension}) for item in compared.moved],
        "panel": [shift.model_copy(update={"dimension": dimension}) for shift in compared.panel],
        "systems": [shift.model_copy(update={"dimension": dimension}) for shift in compared.systems],
    })  # fmt: skip
    still = compared.model_copy(update={"moved": [], "spared": [], "forced": []})
    for name, one in (("comparison", compared), ("nothing moved", still)):
        yield name, printed(lambda out, one=one: terminal_statistics.print_comparison(one, out))
    yield "comparison's page", page_text(write_comparison(compared, report, report, folder / "compared.html"))
    front: PanelFront = filler.fill(PanelFront)
    fronts = [
        front, front.model_copy(update={"enough": None, "audited": 0}),
        front.model_copy(update={"front": [], "items": 0, "person": Figure.unknown("nobody"), "enough": None}),
    ]  # fmt: skip
    yield "panels", printed(lambda out: terminal_statistics.print_fronts(fronts, out, unit="calls"))
    maps = [
        CalibrationMap(judge=f"judge{n}", dimension=dimension, method="linear", made_for=filler.fill(MadeFor), x=[1, 2],
                       y=[1, 3], items=40 + n, error=0.5 + n, calibrated_error=None if n else 0.25, gain=gain)
        for n, gain in enumerate([Figure(value=0.3, low=0.1, high=0.5), Figure(value=0.3, low=-0.1, high=0.5),
                                  Figure.unknown("too few")])
    ]  # fmt: skip
    missing = [filler.fill(NotCalibrated)]
    yield (
        "calibration",
        printed(lambda out: terminal_statistics.print_calibration(Calibration(maps=maps), missing, out)),
    )
    checks = [
        Check(name=f"name {n}", kind=kind, passed=passed, told=f"text {n} <&>", **more)
        for n, (kind, passed, more) in enumerate([
            ("max_errors", True, {}), ("fail_under", False, {"value": 0.25, "bound": 0.5}), ("complete", None, {}),
            ("min_agreement", True, {"value": 0.75, "low": 0.6, "high": 0.9, "bound": 0.5}),
        ])
    ]  # fmt: skip
    verdict = QualityVerdict(job_id=report.job_id, checks=checks)
    yield "gate", quality_gate.markdown(verdict, report)
    with tempfile.TemporaryDirectory() as at:
        quality_gate.write_csv(verdict, Path(at, "gate.csv"))
        yield "gate's table", Path(at, "gate.csv").read_text()
        gate = QualityGate(fail_under={"passes": 0.7, "complete": 1.5})
        items = list(quality_gate.items_below(gate, folder, report))
        quality_gate.write_junit(verdict, report, Path(at, "gate.xml"), items)
        yield "gate's XML", Path(at, "gate.xml").read_text().replace("><", ">\n<")


def texts() -> Iterator[tuple[str, str]]:
    """The name of each file, and what is to stand in it."""
    for name, make in REPORTS.items():
        with tempfile.TemporaryDirectory() as at:
            folder, report = make(Path(at))
            report = report.model_copy(update={"files": files_in("/results/job-1")})
            parts = list(shown(folder, report))
            if name == "everything":
                parts += comparisons(folder, report)
        yield f"{name}.txt", "\n".join(f"==== {title}\n{text}" for title, text in parts)


if __name__ == "__main__":
    for name, text in texts():
        (FOLDER / name).write_text(text, encoding="utf-8")
