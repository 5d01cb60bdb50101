"""A finished job's files, from wherever its worker wrote them to where the person wants them, and its opinions as CSV,
JSON lines or Parquet."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal, get_args

import orjson
from pydantic import ValidationError

from dicast.app.domain.opinion import Opinion
from dicast.app.domain.report import Report, ResultFiles
from dicast.app.domain.text import cell
from dicast.app.reports.files import NoResults, check_run, read_opinions, read_report, reading, write_report_file
from dicast.app.reports.folders import job_folder, replacing, writing
from dicast.app.reports.stored_items import RATINGS, SUBMITTED
from dicast.errors import DicastError

OPTIONAL = (RATINGS, SUBMITTED, "panel.parquet", "probes.parquet", "report.html", "run.lock")
"""Files that only some jobs have, or reports of earlier versions lack."""


class ResultsAway(DicastError, LookupError):
    """The files of a finished job are not accessible from here; the message says where they are."""

    problem = "results-away"


def results_root(report: Report, results_dir: str | Path) -> Path:
    """Return the folder that contains this report's job folder: the one its writer named, or else `results_dir`.
    Raises `ResultsAway`."""
    tried = []
    for root in dict.fromkeys([Path(report.files.directory).parent, Path(results_dir).resolve()]):
        try:
            stored = read_report(root, report.job_id)
        except NoResults:
            tried.append(str(root))
        except (OSError, ValidationError) as error:
            tried.append(f"{root} ({type(error).__name__})")
        else:
            if (stored.started, stored.finished) == (report.started, report.finished):
                return root
            tried.append(f"{root} (another job's)")
    raise ResultsAway(
        f"the files of job {report.job_id} cannot be seen from here: its worker wrote them to "
        f"{report.files.directory}; looked in {', '.join(tried)}"
    )


def collect(report: Report, results_dir: str | Path, out: str | Path) -> Report:
    """Copy a job's files to `out`/<job id>, unless they are there already, and return the report that names the
    copies.

    As in the original folder, `report.json` appears only once all the other files are complete, and all files belong
    to one run. Raises `ResultsAway`, `RunChanged`, OSError.
    """
    source = job_folder(results_root(report, results_dir), report.job_id)
    report = check_run(source, report)  # with the statistics that it has by now
    target = job_folder(out, report.job_id)
    files = ResultFiles(
        directory=str(target),
        **{
            field: str(target / Path(getattr(report.files, field)).name)
            for field in ("opinions_jsonl", "opinions_parquet", "errors_jsonl", "report")
        },
    )
    panel = report.panel_parquet and str(target / Path(report.panel_parquet).name)
    report = report.model_copy(update={"files": files, "panel_parquet": panel})
    if target.exists() and target.samefile(source):
        return report
    target.mkdir(parents=True, exist_ok=True)
    names = [Path(path).name for path in (files.opinions_jsonl, files.opinions_parquet, files.errors_jsonl)]
    names += [name for name in OPTIONAL if (source / name).exists()]
    with contextlib.ExitStack() as lock:
        with contextlib.ExitStack() as copies:
            with reading(source, report):
                for name in names:
                    _copy(source / name, copies.enter_context(replacing(target / name, private=False)))
            lock.enter_context(writing(target))
            Path(files.report).unlink(missing_ok=True)
            for name in set(OPTIONAL).difference(names):
                (target / name).unlink(missing_ok=True)  # an earlier run's
        return write_report_file(target, report, private=False)


def _copy(source: Path, target: IO[bytes]) -> None:
    with source.open("rb") as original:
        shutil.copyfileobj(original, target, 1 << 20)


Format = Literal["csv", "jsonl", "parquet"]


def export(results_dir: str | Path, job_id: str, format: Format, out: str | Path) -> Path:
    """Write the opinions of a finished job to the file `out`, whole or not at all, and return its path. Opinions on
    variants of items, which were judged for probes, are left out.

    CSV is meant for spreadsheets: all cells are quoted, `cited_evidence`, `answers` and `attained` are JSON lists, a
    missing score is an empty cell, and a text that a spreadsheet would run as a formula gets a leading apostrophe. Use
    JSONL or Parquet where texts must stay exact. Raises `NoResults`, ValueError for another format, OSError.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    out, report = Path(out), read_report(results_dir, job_id)
    with replacing(out, private=False) as file:
        if format == "csv":
            _write_csv(file, read_opinions(results_dir, job_id), report.keep)
        else:
            # Only the name counts: the folder may have been copied from another machine.
            written = Path(report.files.opinions_jsonl if format == "jsonl" else report.files.opinions_parquet)
            source = job_folder(results_dir, job_id) / written.name
            with source.open("rb") as lines:
                if format == "jsonl" and report.probed:
                    file.writelines(line for line in lines if orjson.loads(line).get("probe") is None)
                else:
                    shutil.copyfileobj(lines, file, 1 << 20)
    return out


def _write_csv(file: IO[bytes], opinions: Iterable[Opinion], keep: Sequence[str]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    from dicast.app.reports.columns import COLUMNS, as_text, kept_columns  # noqa: PLC0415  (takes long to load)

    metadata_columns = dict(zip(kept_columns(keep), keep, strict=True))
    rows = csv.DictWriter(text, [*COLUMNS.names, *metadata_columns], quoting=csv.QUOTE_ALL)
    rows.writeheader()
    for opinion in opinions:
        row = {**dict(opinion), **dict(opinion.usage)}
        del row["usage"], row["metadata"]
        row |= {column: as_text(opinion.metadata.get(name)) for column, name in metadata_columns.items()}
        row["cited_evidence"] = orjson.dumps(opinion.cited_evidence).decode()
        for name in ("answers", "attained"):
            row[name] = None if row[name] is None else orjson.dumps(row[name]).decode()
        rows.writerow({k: cell(v) if isinstance(v, str) else v for k, v in row.items()})
    text.flush()
    text.detach()
