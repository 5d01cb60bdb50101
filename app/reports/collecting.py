"""A finished job's files, from wherever its worker wrote them to where the person wants them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from dicast.app.domain.report import Report, ResultFiles
from dicast.app.reports.files import NoResults, check_run, read_report, reading, write_report_file
from dicast.app.reports.folders import job_folder, replacing, writing
from dicast.app.reports.stored_items import RATINGS, SUBMITTED
from dicast.errors import DicastError

OPTIONAL = (RATINGS, SUBMITTED, "panel.parquet", "probes.parquet", "report.html")
"""Files that only some jobs have."""


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
        write_report_file(target, report, private=False)
    return report


def _copy(source: Path, target: IO[bytes]) -> None:
    with source.open("rb") as original:
        shutil.copyfileobj(original, target, 1 << 20)
