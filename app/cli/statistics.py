"""`dicast report`, `compare` and `panel` show what is known of a finished job's judges."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import ValidationError

from dicast.app.cli.console import Refused, Terminal
from dicast.app.domain.report import Report
from dicast.app.reports.assessing import (
    NoLibraries,
    StatisticsFailed,
    compute,
    evaluated,
    keep_evaluated,
    learn_panels,
)
from dicast.app.reports.files import REPORT, NoResults, ReportChanged, RunChanged, check_run, read_report
from dicast.app.reports.folders import job_folder
from dicast.app.reports.ratings import submitted_ratings
from dicast.config.nearest import nearest_file
from dicast.config.settings import Settings, environment
from dicast.errors import alternatives

TRIES = 3
"""How often the computation is tried while somebody else changes the report."""
NO_PLOTS = "matplotlib is not installed here, so the report has tables and no plots: pip install -e '.[plots]'"


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished job's folder and report."""

    folder: Path
    report: Report


def finished(job: str, results_dir: str | None = None) -> Finished:
    """Load the finished job with this id from the results folder, or from a folder that is named itself. Raises
    `Refused`."""
    try:
        if (Path(job) / REPORT).is_file():
            return Finished(Path(job), Report.model_validate_json((Path(job) / REPORT).read_bytes()))
        root = results_dir or Settings.from_env(environment()).results_dir
        return Finished(job_folder(root, job), read_report(root, job))
    except NoResults:
        near = nearest_file(Path(root) / job)
        raise Refused(
            f"no finished job {job!r} in {root} (DICAST_RESULTS_DIR); a folder with a {REPORT} may be named, too"
            + (f"; did you mean {near}?" if near else "")
        ) from None
    except ValidationError:
        raise Refused(f"the {REPORT} of {job} is damaged") from None
    except ValueError as error:  # no id that any job can have
        raise Refused(str(error)) from None


def show_statistics(
    terminal: Terminal, job: str, by: Sequence[str], cluster: str | None, *, again: bool, json: bool,
    page: str | None = None, ratings: str | None = None, forget_ratings: bool = False,
) -> None:  # fmt: skip
    """Print the report with all figures, or write it to the HTML file `page`.

    What the job itself asks for and is missing is computed, and stored in the report. What `by` and `cluster` ask for
    is only shown; the job's own files stay as they are. `ratings` are added to the job's, if the statistics can be
    computed with them; `forget_ratings` removes all that were added. Without the libraries, what exists is shown, and
    a message says what is missing. Raises `NotKept`, `DatasetError`, `RunChanged`, `StatisticsFailed`, `Refused`.
    """
    from dicast.app.reports.statistics_table import print_statistics  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.table import print_report  # noqa: PLC0415

    found = finished(job)
    if forget_ratings:
        found = _without_added(terminal, found)
    if ratings is not None:
        found = _rated(terminal, found, ratings)
    known = found.report.statistics
    if not by and not cluster and (again or known is None or known.state != "computed"):
        found = _computed(terminal, found, again=again)
    report = _seen(terminal, found, by, cluster) if by or cluster else found.report
    if json:
        terminal.emit(report.model_dump_json(indent=2))
        return
    if page is not None:
        _write_page(terminal, found.folder, report, Path(page))
        return
    print_report(report, terminal.out)
    print_statistics(report, terminal.out, figures=True)


def _write_page(terminal: Terminal, folder: Path, report: Report, page: Path) -> None:
    from dicast.app.reports.html import plots  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.html.page import write_report  # noqa: PLC0415

    if not plots.available():
        terminal.say(NO_PLOTS, "yellow")
    terminal.say(f"Report in {write_report(folder, report, page)}")


def _renew_page(folder: Path, report: Report) -> None:
    """Rewrite the page beside the results, if there is one, so that it shows what they now contain. Raises OSError."""
    from dicast.app.reports.html.page import NAME, write_own_page  # noqa: PLC0415  (takes long to load)

    if (folder / NAME).exists():
        with contextlib.suppress(RunChanged, ReportChanged):  # whoever changed it also rewrites the page
            write_own_page(folder, report)


def _rated(terminal: Terminal, found: Finished, ratings: str) -> Finished:
    """Add these ratings to the job's own, once its statistics have been computed with them, and return the job.
    Raises `DatasetError`, `NoLibraries`, `RunChanged`, `StatisticsFailed`, `Refused`."""
    from dicast.app.operations.rating import added_ratings  # noqa: PLC0415  (takes long to load)

    for _ in range(TRIES):
        change, count = added_ratings(found.folder, found.report, ratings)
        try:
            report = evaluated(found.folder, found.report, change)
        except (NoLibraries, StatisticsFailed) as error:
            terminal.say(f"The ratings of {ratings} are not kept: statistics cannot be computed with them.", "red")
            raise error from error.__cause__
        try:
            keep_evaluated(found.folder, found.report, report, change)
            _renew_page(found.folder, report)
        except ReportChanged:
            found = Finished(found.folder, check_run(found.folder, found.report))
        except OSError as error:
            raise Refused(f"the ratings cannot be kept in {found.folder}: {error.strerror or error}") from None
        else:
            terminal.say(f"{count:,} ratings of {ratings} are kept with the job.")
            return Finished(found.folder, report)
    raise ReportChanged(found.report.job_id)


def _without_added(terminal: Terminal, found: Finished) -> Finished:
    """Remove the ratings that were added to the job, and return it. Raises `NoAddedRatings`, `RunChanged`,
    `Refused`."""
    from dicast.app.operations.rating import forget_ratings  # noqa: PLC0415  (takes long to load)

    try:
        report, count = forget_ratings(found.folder, found.report)
        _renew_page(found.folder, report)
    except OSError as error:
        raise Refused(f"the ratings cannot be taken back in {found.folder}: {error.strerror or error}") from None
    terminal.say(f"{count:,} added ratings are taken back; those that came with the job stay.")
    return Finished(found.folder, report)


def _computed(terminal: Terminal, found: Finished, *, again: bool) -> Finished:
    """Compute and store the statistics that the job asks for, as far as this machine can, and return the job.

    With `again`, they are computed also if somebody else has stored some in the meantime. Raises `RunChanged`,
    `StatisticsFailed`.
    """
    for _ in range(TRIES):
        try:
            report = evaluated(found.folder, found.report)
        except NoLibraries as error:
            terminal.say(str(error), "yellow")
            return found
        except StatisticsFailed as error:
            if submitted_ratings(found.folder) is None:
                raise
            told = f"`dicast report {found.report.job_id} --forget-ratings` takes back the ratings that were added"
            raise StatisticsFailed(f"{error}; {told}") from error.__cause__
        try:
            keep_evaluated(found.folder, found.report, report)
            _renew_page(found.folder, report)
        except ReportChanged:
            found = Finished(found.folder, check_run(found.folder, found.report))
            known = found.report.statistics
            if not again and known is not None and known.state == "computed":
                return found
        except OSError as error:
            terminal.say(f"The report stays as it was: {error.strerror or error}", "yellow")
            return Finished(found.folder, report)
        else:
            return Finished(found.folder, report)
    raise ReportChanged(found.report.job_id)


def _seen(terminal: Terminal, found: Finished, by: Sequence[str], cluster: str | None) -> Report:
    """Return the report with other groups or clusters, which is stored nowhere. Raises `NotKept`, `RunChanged`,
    `StatisticsFailed`."""
    try:
        report = learn_panels(found.folder, found.report)
        statistics = compute(found.folder, report, by or None, cluster)
    except NoLibraries as error:
        terminal.say(str(error), "yellow")
        return found.report
    return report.model_copy(update={"statistics": statistics})


def show_comparison(
    terminal: Terminal, first: str, second: str, *, most: int, force: bool, json: bool, page: str | None = None
) -> None:
    """Print how far scores moved between two finished jobs, or write it to the HTML file `page`. Raises `RunsDiffer`,
    `NoLibraries`, `Refused`."""
    from dicast.app.reports.comparing import compare_jobs  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.findings_table import print_comparison  # noqa: PLC0415

    found_first, found_second = finished(first), finished(second)
    sides = [(found.folder, found.report) for found in (found_first, found_second)]
    compared = compare_jobs(sides[0], sides[1], most=most, force=force)
    if json:
        terminal.emit(compared.model_dump_json(indent=2))
    elif page is not None:
        from dicast.app.reports.html.page import write_comparison  # noqa: PLC0415  (takes long to load)

        written = write_comparison(compared, found_first.report, found_second.report, Path(page))
        terminal.say(f"Comparison in {written}")
    else:
        print_comparison(compared, terminal.out)


@dataclass(frozen=True, slots=True)
class PanelWishes:
    """The search for panels: in which dimensions (empty: all), of which size, by which measure, how good they must
    be, and what each judge costs an item (empty: one call each)."""

    dimensions: Sequence[str]
    largest: int
    measure: Literal["pearson", "spearman"]
    reach: float | None
    costs: Sequence[str]


def show_panels(terminal: Terminal, job: str, wishes: PanelWishes, *, plot: str | None, json: bool) -> None:
    """Print the panels that no cheaper one beats, and plot them. Raises `NoLibraries`, `NoPlot`, `Refused`, OSError."""
    from dicast.app.reports.assessing import panel_fronts  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.findings_table import print_fronts  # noqa: PLC0415

    found = finished(job)
    known = [dimension.id for dimension in found.report.dimensions]
    for name in wishes.dimensions:
        if name not in known:
            raise Refused(f"--dimension: {name!r} is none of the job's{alternatives(name, known)}")
    costs = _costs([agent.name for agent in found.report.agents], wishes.costs)
    fronts = panel_fronts(
        found.folder, found.report, costs, dimensions=wishes.dimensions or known, largest=wishes.largest,
        measure=wishes.measure, reach=wishes.reach,
    )  # fmt: skip
    unit = "as given" if wishes.costs else "calls"
    if plot is not None:
        from dicast.app.reports.front_plot import plot_fronts  # noqa: PLC0415

        plot_fronts(fronts, Path(plot), unit=unit)
    if json:
        terminal.emit(orjson.dumps([front.model_dump() for front in fronts], option=orjson.OPT_INDENT_2).decode())
    else:
        print_fronts(fronts, terminal.out, unit=unit)


def _costs(judges: list[str], given: Sequence[str]) -> list[float]:
    """Return the cost of each judge: as given for all of them, or 1 each."""
    if not given:
        return [1.0] * len(judges)
    named: dict[str, float] = {}
    for pair in given:
        name, _, text = pair.rpartition("=")
        try:
            cost = float(text)
        except ValueError:
            cost = -1.0
        if name not in judges:
            raise Refused(f"--cost: {name!r} is no judge of the job{alternatives(name, judges)}")
        if not 0 <= cost < float("inf"):
            raise Refused(f"--cost: {name} must cost a number >= 0 an item, got {text!r}")
        named[name] = cost
    missing = [name for name in judges if name not in named]
    if missing:
        raise Refused(f"--cost: what {missing[0]} costs is not given; name all judges or none")
    return [named[name] for name in judges]
