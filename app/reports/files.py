"""A job's results on disk: pages as they are gathered, then one set of files.

    <results>/<job>/parts/<incarnation>/<page>~<lane>.jsonl
                                                   one gathered page: a line of counts, its opinions, its errors
    <results>/<job>/items.jsonl                    items that came with the job
    <results>/<job>/earlier/                       what a resumed job had before, until it has ended again
    <results>/<job>/opinions.jsonl                 one `Opinion` a line
    <results>/<job>/opinions.parquet               the same in typed columns, `usage` as two of them, kept metadata
                                                   as one column each
    <results>/<job>/probes.parquet                 the opinions on variants of items, which opinions.parquet leaves
                                                   out; only if the job has probes that judge variants
    <results>/<job>/errors.jsonl                   one `EvaluationError` a line
    <results>/<job>/damaged/                       pages that could not be read when a job was given up, as they are
    <results>/<job>/report.json                    the `Report`; it exists once all the others are complete

How the folder is named, whose it is when an id is used again, and who may change its files, is described in
`folders.py`. Every file appears whole or not at all (written beside, synced, renamed). The order of opinions is that of
pages, then lanes, and within a page the one in which `write_page` got them; a lane's opinions thus stand in the lane's
order of units (item, replicate, agent, dimension), and those of different lanes are interleaved page by page.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import orjson
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from dicast.app.domain.concluding import conclude
from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.probes import variant_probes
from dicast.app.domain.report import Report, ReportBuilder, ReportHeader, ResultFiles
from dicast.app.reports.folders import folder_name, job_folder, own_folder, replacing, run_of, sync_folder, writing
from dicast.errors import DicastError
from dicast.workers.system.files import make_folder

if TYPE_CHECKING:
    from dicast.app.reports.columns import Columns

PARTS = "parts"
REPORT = "report.json"
_OPINIONS = "opinions.jsonl"
_PARQUET = "opinions.parquet"
_ERRORS = "errors.jsonl"
PROBES = "probes.parquet"
_EARLIER = "earlier"
_DAMAGED = "damaged"
_PART = re.compile(r"(\d{10,})~(.*)\.jsonl")
"""The name of a page's file. Files with other names are no pages, and are left alone."""


_UnitKey = tuple[str, str, str, int, str | None]
"""Names a unit by its judge, dimension, item, replicate and probe."""


class ResultsMismatch(DicastError, RuntimeError):
    """The pages hold another number of opinions than the job has units. Nothing was written, and no page was
    removed."""

    problem = "results-mismatch"


class DamagedPage(ResultsMismatch):
    """The file of a page does not contain what was written. The message names the file."""

    problem = "results-damaged"


class NoResults(DicastError, LookupError):
    """There is no finished job with that id in the results folder."""

    problem = "no-results"


class RunChanged(DicastError, RuntimeError):
    """The files of a job no longer belong to the run that the caller began to read or write: the job was resumed, its
    id was used again, or it was deleted."""

    problem = "run-changed"

    def __init__(self, job: str, folder: Path) -> None:
        super().__init__(
            f"job {job} was resumed, submitted again or deleted meanwhile: {folder} holds no longer what was read, so "
            "nothing was changed there; ask again when the job has ended"
        )


class ReportChanged(DicastError, RuntimeError):
    """The report of this run was changed by somebody else in the meantime, for example by adding ratings. Nothing was
    written."""

    problem = "report-changed"

    def __init__(self, job: str) -> None:
        super().__init__(f"the report of job {job} was changed meanwhile by somebody else; ask again")


def write_page(
    results_dir: str | Path,
    job_id: str,
    incarnation: str,
    lane: str,
    page: int,
    opinions: Iterable[Opinion],
    errors: Iterable[EvaluationError],
) -> None:
    """Write one page to disk; when this returns, the page survives a loss of power. Writing the same page again gives
    the same file.

    The opinions keep their order, which should be that of their units. Raises OSError when the disk refuses.
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


def write_kept_page(
    results_dir: str | Path, job_id: str, incarnation: str, lane: str, page: int, opinions: Iterable[Opinion],
    errors: Iterable[EvaluationError], *, run: int,
) -> None:  # fmt: skip
    """Write a page of the `run`-th run that had been kept elsewhere. Raises `RunChanged` when a later run has begun,
    whose files it must not be among; OSError."""
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    with writing(folder):
        _require_run(folder, job_id, run)
        write_page(results_dir, job_id, incarnation, lane, page, opinions, errors)


def read_page(
    results_dir: str | Path, job_id: str, incarnation: str, lane: str, page: int
) -> list[dict[str, Any]] | None:
    """Return the opinions of a page in the order in which `write_page` got them, as parsed JSON. Returns None before
    the page is written and after the job has ended. Raises OSError."""
    whole = read_whole_page(results_dir, job_id, incarnation, lane, page)
    return None if whole is None else whole[0]


def read_whole_page(
    results_dir: str | Path, job_id: str, incarnation: str, lane: str, page: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
    """Return the opinions of a page, as `read_page` does, and its errors. Raises OSError."""
    path = own_folder(results_dir, job_id, incarnation) / PARTS / incarnation / _part_name(lane, page)
    try:
        with path.open("rb") as file:
            counts = orjson.loads(file.readline())
            opinions, errors = (
                [orjson.loads(file.readline()) for _ in range(counts[n])] for n in ("opinions", "errors")
            )
            return opinions, errors
    except FileNotFoundError:
        return None


def finish(
    results_dir: str | Path, job_id: str, incarnation: str, summary: ReportHeader, run: int = 0, *,
    salvage: bool = False,
) -> Report:  # fmt: skip
    """Join the pages of one incarnation into the job's files and return its report.

    The function may be killed at any point and called again, or be called by two processes at once: the files are the
    same. If a report with the same start is there already, it is returned unchanged. Memory use does not grow with the
    number of opinions.

    With `salvage`, damaged pages are accepted: what has a score and can be read is taken from them, each unit once,
    and their files are kept in `damaged/`.

    Raises `ResultsMismatch` when a completed job has fewer opinions than published units, or any job more opinions
    than units; `RunChanged` when the job has been resumed more often than `run` times; and `DamagedPage`.
    """
    if summary.job_id != job_id:
        raise ValueError(f"the summary is of job {summary.job_id}, not {job_id}")
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    parts = _parts(folder, incarnation)
    # Read after listing the parts: they are removed only once the report is there.
    report, damaged = _finished_report(folder, summary), list[Path]()
    if report is None:
        pages = _Pages(parts, salvage, {(a.name, d.id) for a in summary.agents for d in summary.dimensions})
        try:
            report = _join(folder, pages, summary, run)
        except (FileNotFoundError, ResultsMismatch):  # another has removed the parts, or the run is over
            report = _finished_report(folder, summary)
            if report is None:
                _require_run(folder, summary.job_id, run)
                raise
        damaged = pages.damaged
    with writing(folder):
        _require_run(folder, summary.job_id, run)
        _keep_damaged(folder, damaged)
        _clean(folder)
    return report


class UnfiledReport:
    """Builds the report of a job that ends although its files cannot be written.

    It counts what the job has, wherever it lies: pages that are `add`ed, and what can be read in the job's folder. Each
    unit counts once, as where it is found first. No file is touched.
    """

    def __init__(self, results_dir: str | Path, summary: ReportHeader) -> None:
        self._results_dir, self._header = results_dir, summary
        summary = summary.model_copy(update={"rated": False, "panelled": False, "groups": []})
        self._builder = ReportBuilder(summary)
        self._expected = {(a.name, d.id) for a in summary.agents for d in summary.dimensions}
        self._counted: set[_UnitKey] = set()

    def add(self, opinions: Iterable[Opinion], errors: Iterable[EvaluationError]) -> None:
        """Add a page as `write_page` gets it."""
        self._add(map(_line, opinions), map(_line, errors))

    def add_folder(self, incarnation: str) -> bool:
        """Add what the job's folder holds: its pages, and the results of the runs before. Returns True. Raises
        OSError."""
        folder = own_folder(self._results_dir, self._header.job_id, incarnation)
        for page in _Pages(_parts(folder, incarnation), salvage=True, judge_dimensions=self._expected):
            self._add((line for _, line in page.opinions), (line for _, line in page.errors))
        for place in (folder, folder / _EARLIER):
            with (
                suppress(FileNotFoundError),
                (place / _OPINIONS).open("rb") as opinions,
                (place / _ERRORS).open("rb") as errors,
            ):
                self._add(opinions, errors)
        return True

    def _add(self, opinions: Iterable[bytes], errors: Iterable[bytes]) -> None:
        new: set[_UnitKey] = set()
        for line in opinions:
            with suppress(ValidationError):  # what cannot be read is judged again when the job is resumed
                opinion, unit = Opinion.model_validate_json(line), _unit_key(line)
                if unit not in self._counted and (opinion.judge, opinion.criterion_id) in self._expected:
                    self._builder.add_opinion(opinion)
                    self._counted.add(unit)
                    new.add(unit)
        for line in errors:
            with suppress(ValidationError):
                error = EvaluationError.model_validate_json(line)
                if _unit_key(line) in new:
                    self._builder.add_error(error)

    def build(self, counts: Mapping[str, int] | None = None) -> Report:
        """Return the report of everything that was added. Where the folder cannot be read, `counts` has the units
        that were scored, failed and spared, and the tokens that this took; of their scores nothing is known then."""
        report = self._builder.build(_files_of(Path(self._results_dir).absolute() / folder_name(self._header.job_id)))
        if counts is not None:
            ended = counts["scored"] + counts["failed"] + counts["spared"]
            report = report.model_copy(update={**counts, "probed": 0, "missing": report.units - ended})
        if report.statistics is None or report.statistics.state != "waiting":
            return concluded(report)
        left_out = report.statistics.model_copy(update={"state": "left out", "reason": "its results are in no file"})
        return concluded(report.model_copy(update={"statistics": left_out}))


def put_back_parts(folder: Path, incarnation: str, *, waits: Callable[[], bool]) -> None:
    """Turn the pages of a job that ended without its files into earlier results for a resumed job, while the job
    `waits` to be started.

    Where a unit is also among the earlier results that were there before, the newer result counts. The function may be
    killed and called again. Raises FileNotFoundError where another process has just done the same.
    """
    pages = _Pages(_parts(folder, incarnation), salvage=True)
    if not pages.parts:
        return
    if not (folder / REPORT).exists():  # else they are in the files
        earlier = folder / _EARLIER
        earlier.mkdir(exist_ok=True)
        with replacing(earlier / _OPINIONS) as opinions, replacing(earlier / _ERRORS) as errors:
            newer_units = set()
            for page in pages:
                for _, line in page.opinions:
                    newer_units.add(_unit_key(line))
                    opinions.write(line)
                errors.writelines(line for _, line in page.errors)
            for name, out in ((_OPINIONS, opinions), (_ERRORS, errors)):
                with contextlib.suppress(FileNotFoundError), (earlier / name).open("rb") as file:
                    out.writelines(line for line in file if _unit_key(line) not in newer_units)
        for name in (_OPINIONS, _ERRORS):  # of a report that was not written to its end
            (folder / name).unlink(missing_ok=True)
        _keep_damaged(folder, pages.damaged)
    if waits():
        # In one step: a process that finds only some of them would take these for all.
        aside = (folder / PARTS / incarnation).rename(folder / PARTS / f"{uuid.uuid4().hex}.tmp")
        _remove(aside)


def _require_run(folder: Path, job_id: str, run: int) -> None:
    """Raise `RunChanged` if a later run of the job has begun: its pages and its report must not be touched."""
    if run_of(folder) > run:
        raise RunChanged(job_id, folder)


@contextlib.contextmanager
def changing(folder: Path, expected: Report) -> Iterator[None]:
    """Hold the lock of an ended job's folder while its files are changed.

    Raises `RunChanged` or `ReportChanged` unless the report in the folder is `expected`, the one that the caller has
    read; OSError.
    """
    if not folder.is_dir():
        raise RunChanged(expected.job_id, folder)
    with writing(folder):
        there = check_run(folder, expected)
        if _comparable(there) != _comparable(expected):
            raise ReportChanged(expected.job_id)
        yield


@contextlib.contextmanager
def reading(folder: Path, report: Report) -> Iterator[None]:
    """Ensure that all that is read from a job's folder within the block belongs to the run of this report. Otherwise
    `RunChanged` is raised, also in place of an error that a mixture of two runs has caused."""
    try:
        yield
    except Exception:  # whatever a file that is gone, or another run's, leads to
        check_run(folder, report)
        raise
    check_run(folder, report)


def check_run(folder: Path, report: Report) -> Report:
    """Return the report in a job's folder, if it belongs to the same run. Raises `RunChanged`, OSError."""
    try:
        there = _read_report(folder)
    except ValidationError:  # no version of this program leaves half a report
        there = None
    if there is None or _run(there) != _run(report):
        raise RunChanged(report.job_id, folder)
    return there


def _comparable(report: Report) -> bytes:
    """Return all of a report but what is drawn from it, in words that may be another version's."""
    return to_json(report.model_copy(update={"conclusions": None}))


def _run(report: Report) -> tuple[object, ...]:
    """Return what distinguishes a run from all other runs of the same id."""
    return report.job_id, report.started, report.finished


def keep_report(folder: Path, expected: Report, report: Report) -> Report:
    """Replace the report `expected`, and return the new one. Raises what `changing` does."""
    with changing(folder, expected):
        return write_report_file(folder, report)


def write_report_file(folder: Path, report: Report, *, private: bool = True) -> Report:
    """Write the report into a folder that the caller is `changing`, and return it with its conclusions. Raises
    OSError."""
    whole = concluded(report)
    with replacing(folder / REPORT, private=private) as out:
        out.write(to_json(whole, indent=2) + b"\n")
    return whole


def concluded(report: Report) -> Report:
    """Return the report with the conclusions that are drawn from what it now says."""
    return report.model_copy(update={"conclusions": conclude(report)})


def read_report(results_dir: str | Path, job_id: str) -> Report:
    """Return the report of a finished job. Raises `NoResults`."""
    report = _read_report(job_folder(results_dir, job_id))
    if report is None:
        raise NoResults(f"job {job_id} has no report in {results_dir}")
    return report


def read_opinions(results_dir: str | Path, job_id: str, *, probes: bool = False) -> Iterator[Opinion]:
    """Yield the opinions of a finished job one at a time; with `probes`, also those on variants of items. Raises
    `NoResults`."""
    read_report(results_dir, job_id)
    with (job_folder(results_dir, job_id) / _OPINIONS).open("rb") as file:
        for line in file:
            opinion = Opinion.model_validate_json(line)
            if probes or opinion.probe is None:
                yield opinion


class _Part(NamedTuple):
    """The file of a page. Parts sort by page, then by lane; shorter lane names come first, so that numbered lanes
    keep their order."""

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
    parts = []
    for path in (folder / PARTS / incarnation).glob("*.jsonl"):
        if match := _PART.fullmatch(path.name):
            lane = unquote(match[2])
            parts.append(_Part(int(match[1]), len(lane), lane, path))
    return sorted(parts)


class _Page(NamedTuple):
    """The opinions and errors in a page's file, each with its line."""

    opinions: list[tuple[Opinion, bytes]]
    errors: list[tuple[EvaluationError, bytes]]


@dataclass
class _Pages:
    """Iterates over the pages of a job. Iteration raises `DamagedPage`.

    With `salvage`, it skips instead what cannot be read, opinions of judges and dimensions that the job does not have
    (`judge_dimensions` has those it has, if known), and units that occurred before. `damaged` collects the
    files of which something was skipped.
    """

    parts: list[_Part]
    salvage: bool
    judge_dimensions: Collection[tuple[str, str]] | None = None
    damaged: list[Path] = field(default_factory=list)

    def __iter__(self) -> Iterator[_Page]:
        seen_units: set[_UnitKey] = set()
        for part in self.parts:
            page, trouble = _read_part(part.path)
            unknown = [o.judge for o, _ in page.opinions if not self.expects(o)]
            if unknown and not trouble:
                trouble = f"it tells of {unknown[0]!r} and others, which are not of this job"
            if trouble and not self.salvage:
                raise DamagedPage(f"{part.path} does not hold a page of the job's results: {trouble}")
            if self.salvage:
                all_opinions = page.opinions
                page = _Page(
                    [(o, line) for o, line in all_opinions if self.expects(o) and _unit_key(line) not in seen_units],
                    page.errors,
                )
                if trouble:  # errors come last: that of a unit without a score may be missing
                    page = _Page([(o, line) for o, line in page.opinions if o.score is not None], [])
                seen_units |= {_unit_key(line) for _, line in page.opinions}
                if trouble or len(page.opinions) < len(all_opinions):
                    self.damaged.append(part.path)
            yield page

    def expects(self, opinion: Opinion) -> bool:
        """Return whether the job has this opinion's judge and dimension."""
        return self.judge_dimensions is None or (opinion.judge, opinion.criterion_id) in self.judge_dimensions


def _read_part(path: Path) -> tuple[_Page, str]:
    """Return as much of a page's file as can be read, and what is wrong with the file ('' if nothing is). Raises
    OSError."""
    page = _Page([], [])
    with path.open("rb") as file:
        try:
            counts = orjson.loads(file.readline())
            for _ in range(counts["opinions"]):
                line = _whole_line(file)
                page.opinions.append((Opinion.model_validate_json(line), line))
            for _ in range(counts["errors"]):
                line = _whole_line(file)
                page.errors.append((EvaluationError.model_validate_json(line), line))
        except (ValueError, TypeError, KeyError) as error:  # no JSON, or another kind of it
            return page, str(error).partition("\n")[0]
    return page, ""


def _whole_line(file: IO[bytes]) -> bytes:
    line = file.readline()
    if not line.endswith(b"\n"):
        raise ValueError("it ends too early")
    return line


def _line(record: Opinion | EvaluationError) -> bytes:
    # Without warnings: records from the ledger may have been constructed without validation.
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


def _files_of(folder: Path) -> ResultFiles:
    return ResultFiles(
        directory=str(folder),
        opinions_jsonl=str(folder / _OPINIONS),
        opinions_parquet=str(folder / _PARQUET),
        errors_jsonl=str(folder / _ERRORS),
        report=str(folder / REPORT),
    )


def _join(folder: Path, pages: _Pages, summary: ReportHeader, run: int) -> Report:
    """Write the files of a run from its pages in one step. Nothing is written once a later run has begun."""
    from dicast.app.reports.columns import Columns  # noqa: PLC0415  takes long to load

    builder = ReportBuilder(summary)
    with contextlib.ExitStack() as lock:
        with contextlib.ExitStack() as written:
            names = [_OPINIONS, _ERRORS, _PARQUET, *([PROBES] if variant_probes(summary.probes) else [])]
            opinions, errors, *tables = outs = [written.enter_context(replacing(folder / name)) for name in names]
            with contextlib.ExitStack() as closed:
                expected = any(agent.score_from == "logprobs" for agent in summary.agents)
                columns = _ColumnWriters(
                    *(closed.enter_context(Columns(table, summary.keep, expected=expected)) for table in tables)
                )
                for page in pages:
                    _add_page(page, builder, opinions, errors, columns)
                if (summary.status == "cancelled" or summary.unpublished) and (folder / _EARLIER).is_dir():
                    _add_earlier(folder, pages, builder, opinions, errors, columns)
                report = builder.build(_files_of(folder))
                if report.missing < 0 or (report.missing > summary.unpublished and summary.status == "completed"):
                    raise ResultsMismatch(
                        f"job {summary.job_id}: {summary.units} units, but {summary.units - report.missing} opinions "
                        f"in {len(pages.parts)} parts"
                    )
            for out in outs:  # before the lock is taken, which must not be held for that long
                out.flush()
                os.fsync(out.fileno())
            lock.enter_context(writing(folder))
            _require_run(folder, summary.job_id, run)
        return write_report_file(folder, report)


def _add_page(
    page: _Page, builder: ReportBuilder, opinions: IO[bytes], errors: IO[bytes], columns: _ColumnWriters
) -> None:  # fmt: skip
    for opinion, line in page.opinions:
        builder.add_opinion(opinion)
        opinions.write(line)
        columns.add(opinion, line)
    for error, line in page.errors:
        builder.add_error(error)
        errors.write(line)


@dataclass(frozen=True, slots=True)
class _ColumnWriters:
    """Writes opinions on items and opinions on variants to separate tables, so that nobody counts the latter by
    mistake."""

    of_items: Columns
    of_variants: Columns | None = None

    def add(self, opinion: Opinion, line: bytes) -> None:
        if opinion.probe is None:
            self.of_items.add(line)
        elif self.of_variants is not None:
            self.of_variants.add(line)


def _add_earlier(
    folder: Path, pages: _Pages, builder: ReportBuilder, opinions: IO[bytes], errors: IO[bytes], columns: _ColumnWriters
) -> None:
    """Add the earlier results of a resumed job for the units that were not judged again before the job was
    cancelled."""
    second_pass = _Pages(pages.parts, pages.salvage, pages.judge_dimensions)
    rejudged = {_unit_key(line) for page in second_pass for _, line in page.opinions}
    for name, out in ((_OPINIONS, opinions), (_ERRORS, errors)):
        with (folder / _EARLIER / name).open("rb") as file:
            for line in file:
                if _unit_key(line) in rejudged:
                    continue
                if name == _OPINIONS:
                    opinion = Opinion.model_validate_json(line)
                    if not pages.expects(opinion):
                        continue
                    builder.add_opinion(opinion)
                    columns.add(opinion, line)
                else:
                    builder.add_error(EvaluationError.model_validate_json(line))
                out.write(line)


def _unit_key(line: bytes) -> _UnitKey:
    fields = orjson.loads(line)
    return fields["judge"], fields["criterion_id"], fields["item_id"], fields["replicate"], fields.get("probe")


def _read_report(folder: Path) -> Report | None:
    try:
        return parse_report((folder / REPORT).read_bytes())
    except FileNotFoundError:
        return None


def parse_report(text: bytes) -> Report:
    """Return the report that is written there; conclusions are drawn from one of an earlier version. Raises
    ValidationError."""
    report = Report.model_validate_json(text)
    return report if report.conclusions is not None else concluded(report)


def _finished_report(folder: Path, summary: ReportHeader) -> Report | None:
    """Return the report of this very run, None if there is none. A report with another start belongs to an earlier
    job with the same id, and is going to be replaced. If the run was given up when its files were complete, its report
    is updated to say so."""
    report = _read_report(folder)
    if report is None or report.started != summary.started:
        return None
    if report.status != summary.status:
        report = report.model_copy(update={"status": summary.status, "reason": summary.reason})
        return write_report_file(folder, report)
    return report


def _keep_damaged(folder: Path, paths: Iterable[Path]) -> None:
    """Move files that could not be read to where people find them."""
    for path in paths:
        (folder / _DAMAGED).mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another was quicker
            path.replace(folder / _DAMAGED / path.name)


def _clean(folder: Path) -> None:
    """Remove the pages and the temporary files of killed writers."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)
    for name in (PARTS, _EARLIER):
        _remove(folder / name)


def _remove(folder: Path) -> None:
    """Remove the files that this program has put into a folder, and the folder, unless other files remain in it."""
    for path in folder.glob("*"):
        if path.is_dir():
            _remove(path)
        elif _PART.fullmatch(path.name) or path.suffix == ".tmp" or path.name in (_OPINIONS, _ERRORS):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another has removed it, or a file of somebody else's is in it
        folder.rmdir()


MOST_PAGES = 50
"""The most pages that are read, newest first."""
MOST_BYTES = 32 * 2**20
"""The most bytes that are read in all."""


def newest_errors(folder: Path, most: int) -> list[EvaluationError]:
    """Return at most `most` errors of the job in a folder, from its newest pages, the last error of the newest page
    first.

    Errors of a page become visible once it is gathered. Pages that disappear in the meantime, as they do when the job
    ends, are skipped.
    """
    errors: list[EvaluationError] = []
    bytes_left = MOST_BYTES
    for path, size in _newest(folder / PARTS)[:MOST_PAGES]:
        bytes_left -= size
        if bytes_left < 0 or len(errors) >= most:
            break
        with suppress(OSError, ValueError, LookupError):
            errors += _errors(path, most - len(errors))
    return errors


def _newest(parts: Path) -> list[tuple[Path, int]]:
    pages: list[tuple[int, str, int]] = []
    for run in _entries(parts):
        for entry in _entries(Path(run.path)) if run.is_dir(follow_symlinks=False) else ():
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".jsonl"):
                    pages.append((stat.st_mtime_ns, entry.path, stat.st_size))
    return [(Path(path), size) for _, path, size in sorted(pages, reverse=True)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _errors(path: Path, most: int) -> list[EvaluationError]:
    """Return the last errors of a page, last first. The page's first line says how many errors it has."""
    with path.open("rb") as file:
        count = min(most, int(orjson.loads(file.readline())["errors"]))
        if count <= 0:
            return []
        lines = file.readlines()
    return [EvaluationError.model_validate_json(line) for line in reversed(lines[-count:])]
