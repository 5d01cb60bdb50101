"""A finished job's files, from wherever its worker wrote them to where the person wants them."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import ValidationError

from dicast.app.domain.report import Report, ResultFiles
from dicast.app.reports.durable import replacing
from dicast.app.reports.files import NoResults, read_report
from dicast.app.reports.folders import job_folder
from dicast.app.reports.ratings import RATINGS
from dicast.errors import DicastError

OPTIONAL = (RATINGS, "panel.parquet", "probes.parquet", "report.html")
"""Files that only some jobs have."""


class ResultsAway(DicastError, LookupError):
    """The files of a finished job cannot be seen from here; the message says where they lie."""

    problem = "results-away"


def results_root(report: Report, results_dir: str | Path) -> Path:
    """The folder that holds this report's job folder, as seen from here: as its writer named it, or `results_dir`.

    Raises `ResultsAway`.
    """
    looked = []
    for root in dict.fromkeys([Path(report.files.directory).parent, Path(results_dir).resolve()]):
        try:
            found = read_report(root, report.job_id)
        except NoResults:
            looked.append(str(root))
        except (OSError, ValidationError) as error:
            looked.append(f"{root} ({type(error).__name__})")
        else:
            if (found.started, found.finished) == (report.started, report.finished):
                return root
            looked.append(f"{root} (another job's)")
    raise ResultsAway(
        f"the files of job {report.job_id} cannot be seen from here: its worker wrote them to "
        f"{report.files.directory}; looked in {', '.join(looked)}"
    )


def collect(report: Report, results_dir: str | Path, out: str | Path) -> Report:
    """Copy a job's files to `out`/<job id>, unless they lie there; the report, naming the copies.

    As in the original folder, `report.json` is there only once all the others are. Raises `ResultsAway`, OSError.
    """
    source = job_folder(results_root(report, results_dir), report.job_id)
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
    Path(files.report).unlink(missing_ok=True)
    for path in map(Path, (files.opinions_jsonl, files.opinions_parquet, files.errors_jsonl)):
        _copy(source / path.name, path)
    for name in OPTIONAL:
        if (source / name).exists():
            _copy(source / name, target / name)
    with replacing(Path(files.report), private=False) as file:
        file.write(report.model_dump_json(indent=2).encode() + b"\n")
    return report


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, replacing(target, private=False) as copy:
        shutil.copyfileobj(original, copy, 1 << 20)
