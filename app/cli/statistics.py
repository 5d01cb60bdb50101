"""`dicast report`: a finished job's report with everything that is known of its judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from dicast.app.cli.console import Refused, Terminal
from dicast.app.domain.report import Report
from dicast.app.reports.assessing import compute, keep
from dicast.app.reports.files import REPORT, NoResults, read_report
from dicast.app.reports.folders import job_folder
from dicast.config.settings import Settings, environment


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished job's folder and report."""

    folder: Path
    report: Report


def finished(job: str, results_dir: str | None = None) -> Finished:
    """The finished job of this id in the results folder, or in a folder that is named itself. Raises `Refused`."""
    try:
        if (Path(job) / REPORT).is_file():
            return Finished(Path(job), Report.model_validate_json((Path(job) / REPORT).read_bytes()))
        root = results_dir or Settings.from_env(environment()).results_dir
        return Finished(job_folder(root, job), read_report(root, job))
    except NoResults:
        raise Refused(
            f"no finished job {job!r} in {root} (DICAST_RESULTS_DIR); a folder with a {REPORT} may be named, too"
        ) from None
    except ValidationError:
        raise Refused(f"the {REPORT} of {job} is damaged") from None
    except ValueError as error:  # no id that any job can have
        raise Refused(str(error)) from None


def show_statistics(
    terminal: Terminal, job: str, by: Sequence[str], cluster: str | None, *, again: bool, json: bool
) -> None:
    """Print the report with all figures; what is not there yet is computed, and kept in the report. Raises
    `NoLibraries`, `NotKept`, `Refused`."""
    from dicast.app.reports.statistics_table import print_statistics  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.table import print_report  # noqa: PLC0415

    found = finished(job)
    report, known = found.report, found.report.statistics
    if again or by or cluster or known is None or known.state != "computed":
        statistics = compute(found.folder, report, by or None, cluster)
        try:
            report = keep(found.folder, report, statistics)
        except OSError as error:
            terminal.say(f"The report stays as it was: {error.strerror or error}", "yellow")
            report = report.model_copy(update={"statistics": statistics})
    if json:
        terminal.emit(report.model_dump_json(indent=2))
        return
    print_report(report, terminal.out)
    print_statistics(report, terminal.out, figures=True)
