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
    <results>/<job>/damaged/                       pages that could not be read when a job was given up, as they are
    <results>/<job>/report.json                    the `Report`; it exists once all the others are complete

What the folder is called, whose it is when an id is used again, and who may change what lies there, is told in
folders.py. Every file appears whole or
not at all (written beside, synced, renamed). The order of opinions is that of pages, then lanes, and within a page the
one in which `write_page` got them; a lane's opinions thus stand in the lane's order of units (item, replicate, agent,
dimension), and those of different lanes are interleaved page by page.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import orjson
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from dicast.app.domain.opinion import EvaluationError, Opinion
from dicast.app.domain.probes import tried
from dicast.app.domain.report import Report, ReportBuilder, ReportHeader, ResultFiles
from dicast.app.reports.durable import replacing, sync_folder
from dicast.app.reports.folders import folder_name, job_folder, own_folder, run_of, writing
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
_DAMAGED = "damaged"
_PART = re.compile(r"(\d{10,})~(.*)\.jsonl")
"""What a page's file is called; files of other names beside them are nobody's pages, and are left alone."""


class ResultsMismatch(DicastError, RuntimeError):
    """The parts hold another number of opinions than the job has units. Nothing was written, no part was removed."""

    problem = "results-mismatch"


class DamagedPage(ResultsMismatch):
    """The file of a page does not hold what was written. The message names it."""

    problem = "results-damaged"


class NoResults(DicastError, LookupError):
    """There is no finished job of that id in the results folder."""

    problem = "no-results"


class RunChanged(DicastError, RuntimeError):
    """The files of a job are no longer those of the run that somebody began to read or to write: it was resumed, its id
    was used again, or it was deleted."""

    problem = "run-changed"

    def __init__(self, job: str, folder: Path) -> None:
        super().__init__(
            f"job {job} was resumed, submitted again or deleted meanwhile: {folder} holds no longer what was read, so "
            "nothing was changed there; ask again when the job has ended"
        )


class ReportChanged(DicastError, RuntimeError):
    """Another has changed the report of the same run meanwhile, as by adding ratings; nothing was written."""

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


def finish(
    results_dir: str | Path, job_id: str, incarnation: str, summary: ReportHeader, run: int = 0, *,
    salvage: bool = False,
) -> Report:  # fmt: skip
    """Join the parts of one incarnation into the job's files and return its report.

    May be killed at any point and called again, or be called by two processes at once: the files are the same.
    Once a report with the same start stands there, it is returned as it is. Memory stays flat. Raises
    `ResultsMismatch` when a completed job's opinions are fewer than its published units, or any job's are more than its
    units, `RunChanged` when the job has been resumed more often than `run` times, and `DamagedPage`. To `salvage` is to
    take of such a page what has a score and can be read, each unit once, and to keep its file in `damaged/`.
    """
    if summary.job_id != job_id:
        raise ValueError(f"the summary is of job {summary.job_id}, not {job_id}")
    folder = own_folder(results_dir, job_id, incarnation)
    make_folder(folder)
    parts = _parts(folder, incarnation)
    # Looked for after the listing: parts go away only once the report is there.
    report, damaged = _finished(folder, summary), list[Path]()
    if report is None:
        pages = _Pages(parts, salvage, {(a.name, d.id) for a in summary.agents for d in summary.dimensions})
        try:
            report = _join(folder, pages, summary, run)
        except (FileNotFoundError, ResultsMismatch):  # of two that finish, one has removed the parts; or a run is over
            report = _finished(folder, summary)
            if report is None:
                _check_place(folder, summary.job_id, run)
                raise
        damaged = pages.damaged
    with writing(folder):
        _check_place(folder, summary.job_id, run)
        _keep_damaged(folder, damaged)
        _clean(folder)
    return report


def unfiled_report(results_dir: str | Path, job_id: str, summary: ReportHeader) -> Report:
    """The report of a job that ends though its files cannot be written: it counts nothing, and touches no file."""
    summary = summary.model_copy(update={"rated": False, "panelled": False, "groups": []})
    return ReportBuilder(summary).build(_files_of(Path(results_dir).absolute() / folder_name(job_id)))


def put_back_parts(folder: Path, incarnation: str, *, waits: Callable[[], bool]) -> None:
    """What a job that ended without its files has left in parts becomes what a resumed job had before, while it `waits`
    to be started. Of a unit that is both there and in what it had before that, the newer result counts. May be killed,
    and called again. Raises FileNotFoundError where another has just done it."""
    pages = _Pages(_parts(folder, incarnation), salvage=True)
    if not pages.parts:
        return
    if not (folder / REPORT).exists():  # else they are in the files
        earlier = folder / _EARLIER
        earlier.mkdir(exist_ok=True)
        with replacing(earlier / _OPINIONS) as opinions, replacing(earlier / _ERRORS) as errors:
            seen = set()
            for page in pages:
                for _, line in page.opinions:
                    seen.add(_unit(line))
                    opinions.write(line)
                errors.writelines(line for _, line in page.errors)
            for name, out in ((_OPINIONS, opinions), (_ERRORS, errors)):
                with contextlib.suppress(FileNotFoundError), (earlier / name).open("rb") as file:
                    out.writelines(line for line in file if _unit(line) not in seen)
        for name in (_OPINIONS, _ERRORS):  # of a report that was not written to its end
            (folder / name).unlink(missing_ok=True)
        _keep_damaged(folder, pages.damaged)
    if waits():
        # At once: whoever finds some of them and not the others would take these for all.
        aside = (folder / PARTS / incarnation).rename(folder / PARTS / f"{uuid.uuid4().hex}.tmp")
        _remove(aside)


def _check_place(folder: Path, job_id: str, run: int) -> None:
    """Raises `RunChanged` where a later run of the job has begun: its parts and its report are not to be touched."""
    if run_of(folder) > run:
        raise RunChanged(job_id, folder)


@contextlib.contextmanager
def changing(folder: Path, known: Report) -> Iterator[None]:
    """Within, the files of an ended job are the caller's to change, and the report that lies there is `known`, as the
    caller has read it. Raises `RunChanged` or `ReportChanged`, OSError."""
    if not folder.is_dir():
        raise RunChanged(known.job_id, folder)
    with writing(folder):
        there = check_run(folder, known)
        if to_json(there) != to_json(known):
            raise ReportChanged(known.job_id)
        yield


@contextlib.contextmanager
def reading(folder: Path, report: Report) -> Iterator[None]:
    """What is read from a job's folder within is of the run that this is the report of, or `RunChanged` is raised, also
    in place of the error that a mixture of two runs has led to."""
    try:
        yield
    except Exception:  # whatever a file that is gone, or another run's, leads to
        check_run(folder, report)
        raise
    check_run(folder, report)


def check_run(folder: Path, report: Report) -> Report:
    """The report that lies in a job's folder, if it is of the same run. Raises `RunChanged`, OSError."""
    try:
        there = _read_report(folder)
    except ValidationError:  # no version of this program leaves half a report
        there = None
    if there is None or _run(there) != _run(report):
        raise RunChanged(report.job_id, folder)
    return there


def _run(report: Report) -> tuple[object, ...]:
    """What tells a run of a job from every other of its id."""
    return report.job_id, report.started, report.finished


def keep_report(folder: Path, known: Report, report: Report) -> Report:
    """Put a report in the place of the one that is `known`; what lies there now. Raises what `changing` does."""
    with changing(folder, known):
        write_report_file(folder, report)
    return report


def write_report_file(folder: Path, report: Report, *, private: bool = True) -> None:
    """Write the report of a folder that the caller is `changing`. Raises OSError."""
    with replacing(folder / REPORT, private=private) as out:
        out.write(to_json(report, indent=2) + b"\n")


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
        if named := _PART.fullmatch(path.name):
            lane = unquote(named[2])
            found.append(_Part(int(named[1]), len(lane), lane, path))
    return sorted(found)


class _Page(NamedTuple):
    """What stands in a page's file, with its lines."""

    opinions: list[tuple[Opinion, bytes]]
    errors: list[tuple[EvaluationError, bytes]]


@dataclass
class _Pages:
    """The pages of a job, one at a time. Going through them raises `DamagedPage`, or, to `salvage`, leaves out what
    cannot be read, what is not of the job's judges and dimensions (`voices`, where they are known), and units that were
    met before; `damaged` are the files of which anything was left out."""

    parts: list[_Part]
    salvage: bool
    voices: Collection[tuple[str, str]] | None = None
    damaged: list[Path] = field(default_factory=list)

    def __iter__(self) -> Iterator[_Page]:
        seen: set[tuple[str, str, str, int, str | None]] = set()
        for part in self.parts:
            page, trouble = _read_part(part.path)
            unknown = [o.judge for o, _ in page.opinions if not self.knows(o)]
            if unknown and not trouble:
                trouble = f"it tells of {unknown[0]!r} and others, which are not of this job"
            if trouble and not self.salvage:
                raise DamagedPage(f"{part.path} does not hold a page of the job's results: {trouble}")
            if self.salvage:
                found = page.opinions
                page = _Page([(o, line) for o, line in found if self.knows(o) and _unit(line) not in seen], page.errors)
                if trouble:  # errors stand at the end: of a unit without a score there may be none
                    page = _Page([(o, line) for o, line in page.opinions if o.score is not None], [])
                seen |= {_unit(line) for _, line in page.opinions}
                if trouble or len(page.opinions) < len(found):
                    self.damaged.append(part.path)
            yield page

    def knows(self, opinion: Opinion) -> bool:
        """Whether the job has such a judge and dimension."""
        return self.voices is None or (opinion.judge, opinion.criterion_id) in self.voices


def _read_part(path: Path) -> tuple[_Page, str]:
    """A page's file, as far as it can be read, and what is wrong with it, '' if nothing is. Raises OSError."""
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


def _files_of(folder: Path) -> ResultFiles:
    return ResultFiles(
        directory=str(folder),
        opinions_jsonl=str(folder / _OPINIONS),
        opinions_parquet=str(folder / _PARQUET),
        errors_jsonl=str(folder / _ERRORS),
        report=str(folder / REPORT),
    )


def _join(folder: Path, pages: _Pages, summary: ReportHeader, run: int) -> Report:
    """Write the files of a run from its pages, all in one step; nothing, once a later run has begun."""
    from dicast.app.reports.columns import Columns  # noqa: PLC0415  takes long to load

    builder = ReportBuilder(summary)
    with contextlib.ExitStack() as lock:
        with contextlib.ExitStack() as written:
            names = [_OPINIONS, _ERRORS, _PARQUET, *([PROBES] if tried(summary.probes) else [])]
            opinions, errors, *tables = outs = [written.enter_context(replacing(folder / name)) for name in names]
            with contextlib.ExitStack() as closed:
                columns = _Sorted(*(closed.enter_context(Columns(table, summary.keep)) for table in tables))
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
            for out in outs:  # here, so that the lock is not held for as long as that takes
                out.flush()
                os.fsync(out.fileno())
            lock.enter_context(writing(folder))
            _check_place(folder, summary.job_id, run)
        write_report_file(folder, report)
    return report


def _add_page(
    page: _Page, builder: ReportBuilder, opinions: IO[bytes], errors: IO[bytes], columns: _Sorted
) -> None:  # fmt: skip
    for opinion, line in page.opinions:
        builder.add_opinion(opinion)
        opinions.write(line)
        columns.add(opinion, line)
    for error, line in page.errors:
        builder.add_error(error)
        errors.write(line)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Opinions on items, and those on variants of them, which stand apart so that nobody counts them by mistake."""

    of_items: Columns
    of_variants: Columns | None = None

    def add(self, opinion: Opinion, line: bytes) -> None:
        if opinion.probe is None:
            self.of_items.add(line)
        elif self.of_variants is not None:
            self.of_variants.add(line)


def _add_earlier(
    folder: Path, pages: _Pages, builder: ReportBuilder, opinions: IO[bytes], errors: IO[bytes], columns: _Sorted
) -> None:
    """A resumed job was cancelled before all its units came round again: what is not in its parts stays as it was."""
    again = _Pages(pages.parts, pages.salvage, pages.voices)
    seen = {_unit(line) for page in again for _, line in page.opinions}
    for name, out in ((_OPINIONS, opinions), (_ERRORS, errors)):
        with (folder / _EARLIER / name).open("rb") as file:
            for line in file:
                if _unit(line) in seen:
                    continue
                if name == _OPINIONS:
                    opinion = Opinion.model_validate_json(line)
                    if not pages.knows(opinion):
                        continue
                    builder.add_opinion(opinion)
                    columns.add(opinion, line)
                else:
                    builder.add_error(EvaluationError.model_validate_json(line))
                out.write(line)


def _unit(line: bytes) -> tuple[str, str, str, int, str | None]:
    fields = orjson.loads(line)
    return fields["judge"], fields["criterion_id"], fields["item_id"], fields["replicate"], fields.get("probe")


def _read_report(folder: Path) -> Report | None:
    try:
        return Report.model_validate_json((folder / REPORT).read_bytes())
    except FileNotFoundError:
        return None


def _finished(folder: Path, summary: ReportHeader) -> Report | None:
    """The report of this very run; one of an earlier job with the same id has another start and is replaced. Of a run
    that was given up when its files were whole, the report says so from now on."""
    report = _read_report(folder)
    if report is None or report.started != summary.started:
        return None
    if report.status != summary.status:
        report = report.model_copy(update={"status": summary.status, "reason": summary.reason})
        _write_report(folder, report)
    return report


def _write_report(folder: Path, report: Report) -> None:
    with replacing(folder / REPORT) as out:
        out.write(to_json(report, indent=2) + b"\n")


def _keep_damaged(folder: Path, paths: Iterable[Path]) -> None:
    """Where people find what could not be read."""
    for path in paths:
        (folder / _DAMAGED).mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another was quicker
            path.replace(folder / _DAMAGED / path.name)


def _clean(folder: Path) -> None:
    """Remove the parts, and what killed writers left."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)
    for name in (PARTS, _EARLIER):
        _remove(folder / name)


def _remove(folder: Path) -> None:
    """What this program has put there; other files stay, and the folder with them."""
    for path in folder.glob("*"):
        if path.is_dir():
            _remove(path)
        elif _PART.fullmatch(path.name) or path.suffix == ".tmp" or path.name in (_OPINIONS, _ERRORS):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another has removed it, or a file of somebody else's is in it
        folder.rmdir()
