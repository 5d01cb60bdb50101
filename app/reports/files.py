"""A job's results on disk: pages as they are gathered, then one set of files.

    <results>/<job>/parts/<incarnation>/<page>~<lane>.jsonl
                                                   one gathered page: a line of counts, its opinions, its errors
    <results>/<job>/items.jsonl                    items that came with the job
    <results>/<job>/earlier/                       what a resumed job had before, until it has ended again
    <results>/<job>/opinions.jsonl                 one `Opinion` a line
    <results>/<job>/opinions.parquet               the same in typed columns, `usage` as two of them, kept metadata
                                                   as one column each
    <results>/<job>/probes.parquet                 of these the opinions on variants of items, which stand not in the
                                                   file of all the others; only of jobs whose probes try them out
    <results>/<job>/errors.jsonl                   one `EvaluationError` a line
    <results>/<job>/report.json                    the `Report`; it exists once all the others are complete

What the folder is called, and whose it is when an id is used again, is told in folders.py. Every file appears whole or
not at all (written beside, synced, renamed). The order of opinions is that of pages, then lanes, and within a page the
one in which `write_page` got them; a lane's opinions thus stand in the lane's order of units (item, replicate, agent,
dimension), and those of different lanes are interleaved page by page.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import orjson
from pydantic_core import PydanticSerializationError, to_json

from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.probes import tried
from dicast.app.domain.report import Report, ReportBuilder, ReportHeader, ResultFiles
from dicast.app.reports.durable import replacing, sync_folder
from dicast.app.reports.folders import job_folder, own_folder
from dicast.errors import DicastError
from dicast.workers.system.private_files import make_folder

if TYPE_CHECKING:
    from dicast.app.reports.columns import Columns

PARTS = "parts"
REPORT = "report.json"
_OPINIONS = "opinions.jsonl"
_PARQUET = "opinions.parquet"
_ERRORS = "errors.jsonl"
PROBES = "probes.parquet"
_EARLIER = "earlier"


class ResultsMismatch(DicastError, RuntimeError):
    """The parts hold another number of opinions than the job has units. Nothing was written, no part was removed."""

    problem = "results-mismatch"


class NoResults(DicastError, LookupError):
    """There is no finished job of that id in the results folder."""

    problem = "no-results"


def write_page(
    results_dir: str | Path,
    job_id: str,
    incarnation: str,
    lane: str,
    page: int,
    opinions: Iterable[Opinion],
    errors: Iterable[EvaluationError],
) -> None:
    """Put one page on disk; when this returns it survives a loss of power. The same page again is the same file.

    Give the opinions in the order of their units: it is kept. Raises OSError when the disk refuses.
    """
    opinion_lines = [_line(o) for o in opinions]
    error_lines = [_line(e) for e in errors]
    counts = orjson.dumps({"opinions": len(opinion_lines), "errors": len(error_lines)})
    parts = own_folder(results_dir, job_id, incarnation) / PARTS / incarnation
    name = _part_name(lane, page)
    if not parts.is_dir():
        make_folder(parts)
        for folder in list(parts.parents)[:3]:
            sync_folder(folder)
    with replacing(parts / name) as file:
        file.writelines([counts, b"\n", *opinion_lines, *error_lines])


def read_page(
    results_dir: str | Path, job_id: str, incarnation: str, lane: str, page: int
) -> list[dict[str, Any]] | None:
    """The opinions of a page as `write_page` got them, in the form of their JSON; None before it was written, and after
    the job's end. Raises OSError."""
    path = own_folder(results_dir, job_id, incarnation) / PARTS / incarnation / _part_name(lane, page)
    try:
        with path.open("rb") as file:
            counts = orjson.loads(file.readline())
            return [orjson.loads(file.readline()) for _ in range(counts["opinions"])]
    except FileNotFoundError:
        return None


def finish(results_dir: str | Path, job_id: str, incarnation: str, summary: ReportHeader) -> Report:
    """Join the parts of one incarnation into the job's files and return its report.

    May be killed at any point and called again, or be called by two processes at once: the files are the same.
    Once a report with the same start stands there, it is returned as it is. Memory stays flat. Raises
    `ResultsMismatch` when a completed job's opinions are fewer than its published units, or any job's are more than its
    units.
    """
    if summary.job_id != job_id:
        raise ValueError(f"the summary is of job {summary.job_id}, not {job_id}")
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    parts = _parts(folder, incarnation)
    # Looked for after the listing: parts go away only once the report is there.
    report = _finished(folder, summary)
    if report is None:
        try:
            report = _join(folder, parts, summary)
        except FileNotFoundError:
            report = _finished(folder, summary)
            if report is None:
                raise
    _clean(folder)
    return report


def read_report(results_dir: str | Path, job_id: str) -> Report:
    """The report of a finished job; raises `NoResults`."""
    report = _read_report(job_folder(results_dir, job_id))
    if report is None:
        raise NoResults(f"job {job_id} has no report in {results_dir}")
    return report


def read_opinions(results_dir: str | Path, job_id: str, *, probes: bool = False) -> Iterator[Opinion]:
    """The opinions of a finished job, one at a time; with `probes` those on variants of items, too. Raises
    `NoResults`."""
    read_report(results_dir, job_id)
    with (job_folder(results_dir, job_id) / _OPINIONS).open("rb") as file:
        for line in file:
            opinion = Opinion.model_validate_json(line)
            if probes or opinion.probe is None:
                yield opinion


class _Part(NamedTuple):
    """Sorts by page, then by lane: shorter names first, so that lanes that are numbers keep their order."""

    page: int
    lane_length: int
    lane: str
    path: Path


def _part_name(lane: str, page: int) -> str:
    name = f"{page:010d}~{quote(lane, safe='')}.jsonl"
    if page < 0 or len(name) > 200:
        raise ValueError(f"no page can be named by lane {lane[:100]!r} and number {page}")
    return name


def _parts(folder: Path, incarnation: str) -> list[_Part]:
    found = []
    for path in (folder / PARTS / incarnation).glob("*.jsonl"):
        page, _, lane = path.stem.partition("~")
        lane = unquote(lane)
        found.append(_Part(int(page), len(lane), lane, path))
    return sorted(found)


def _line(record: Opinion | EvaluationError) -> bytes:
    # Without warnings: what comes from the ledger may have been constructed without validation.
    try:
        return record.model_dump_json(warnings=False).encode() + b"\n"
    except PydanticSerializationError:
        # Half a surrogate pair, which a model can write as \ud800, has no UTF-8.
        return orjson.dumps(_encodable(record.model_dump(warnings=False))) + b"\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {k: _encodable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_encodable(v) for v in value]
    return value


def _join(folder: Path, parts: list[_Part], summary: ReportHeader) -> Report:
    from dicast.app.reports.columns import Columns  # noqa: PLC0415  takes long to load

    builder = ReportBuilder(summary)
    files = ResultFiles(
        directory=str(folder),
        opinions_jsonl=str(folder / _OPINIONS),
        opinions_parquet=str(folder / _PARQUET),
        errors_jsonl=str(folder / _ERRORS),
        report=str(folder / REPORT),
    )
    with (
        replacing(folder / _OPINIONS) as opinions,
        replacing(folder / _ERRORS) as errors,
        replacing(folder / _PARQUET) as parquet,
        Columns(parquet, summary.keep) as of_items,
        _columns_of_variants(folder, summary) as of_variants,
    ):
        columns = _Sorted(of_items, of_variants)
        for part in parts:
            with part.path.open("rb") as file:
                counts = orjson.loads(file.readline())
                for _ in range(counts["opinions"]):
                    line = file.readline()
                    opinion = Opinion.model_validate_json(line)
                    builder.add_opinion(opinion)
                    opinions.write(line)
                    columns.add(opinion, line)
                for _ in range(counts["errors"]):
                    line = file.readline()
                    builder.add_error(EvaluationError.model_validate_json(line))
                    errors.write(line)
        if (summary.status == "cancelled" or summary.unpublished) and (folder / _EARLIER).is_dir():
            _add_earlier(folder, parts, builder, opinions, errors, columns)
        report = builder.build(files)
        if report.missing < 0 or (report.missing > summary.unpublished and summary.status == "completed"):
            raise ResultsMismatch(
                f"job {summary.job_id}: {summary.units} units, but {summary.units - report.missing} opinions "
                f"in {len(parts)} parts"
            )
    with replacing(folder / REPORT) as out:
        out.write(to_json(report, indent=2) + b"\n")
    return report


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Opinions on items, and those on variants of them, which stand apart so that nobody counts them by mistake."""

    of_items: Columns
    of_variants: Columns | None

    def add(self, opinion: Opinion, line: bytes) -> None:
        if opinion.probe is None:
            self.of_items.add(line)
        elif self.of_variants is not None:
            self.of_variants.add(line)


@contextlib.contextmanager
def _columns_of_variants(folder: Path, summary: ReportHeader) -> Iterator[Columns | None]:
    """Where they go, if the job's probes try anything out."""
    from dicast.app.reports.columns import Columns  # noqa: PLC0415  takes long to load

    if not tried(summary.probes):
        yield None
        return
    with replacing(folder / PROBES) as parquet, Columns(parquet, summary.keep) as columns:
        yield columns


def _add_earlier(
    folder: Path, parts: list[_Part], builder: ReportBuilder, opinions: IO[bytes], errors: IO[bytes], columns: _Sorted
) -> None:
    """A resumed job was cancelled before all its units came round again: what is not in its parts stays as it was."""
    seen = set()
    for part in parts:
        with part.path.open("rb") as file:
            seen |= {_unit(file.readline()) for _ in range(orjson.loads(file.readline())["opinions"])}
    for name, out in ((_OPINIONS, opinions), (_ERRORS, errors)):
        with (folder / _EARLIER / name).open("rb") as file:
            for line in file:
                if _unit(line) in seen:
                    continue
                out.write(line)
                if name == _OPINIONS:
                    opinion = Opinion.model_validate_json(line)
                    builder.add_opinion(opinion)
                    columns.add(opinion, line)
                else:
                    builder.add_error(EvaluationError.model_validate_json(line))


def _unit(line: bytes) -> tuple[str, str, str, int, str | None]:
    fields = orjson.loads(line)
    return fields["judge"], fields["criterion_id"], fields["item_id"], fields["replicate"], fields.get("probe")


def _read_report(folder: Path) -> Report | None:
    try:
        return Report.model_validate_json((folder / REPORT).read_bytes())
    except FileNotFoundError:
        return None


def _finished(folder: Path, summary: ReportHeader) -> Report | None:
    """The report of this very run; one of an earlier job with the same id has another start and is replaced."""
    report = _read_report(folder)
    return report if report is not None and report.started == summary.started else None


def _clean(folder: Path) -> None:
    """Remove the parts, and what killed writers left."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)
    for name in (PARTS, _EARLIER):
        _remove(folder / name)


def _remove(folder: Path) -> None:
    for path in folder.glob("*"):
        if path.is_dir():
            _remove(path)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
