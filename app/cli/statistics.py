"""`dicast report`, `compare` and `panel`: what is known of a finished job's judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson
from pydantic import ValidationError

from dicast.app.cli.console import Refused, Terminal
from dicast.app.domain.report import Report
from dicast.app.reports.assessing import NoLibraries, compute, keep, learn_panels
from dicast.app.reports.files import REPORT, NoResults, read_report
from dicast.app.reports.folders import job_folder
from dicast.config.settings import Settings, environment

NO_PLOTS = "matplotlib is not installed here, so the report has tables and no plots: pip install -e '.[plots]'"


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
    terminal: Terminal, job: str, by: Sequence[str], cluster: str | None, *, again: bool, json: bool,
    page: str | None = None, ratings: str | None = None,
) -> None:  # fmt: skip
    """Print the report with all figures, or write it to the HTML file `page`; what is not there yet is computed, and
    kept in the report. `ratings` are added to the job's first. Without the libraries, what there is is shown, and what
    is missing is said. Raises `NotKept`, `DatasetError`, `Refused`."""
    from dicast.app.reports.statistics_table import print_statistics  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.table import print_report  # noqa: PLC0415

    found = finished(job)
    if ratings is not None:
        found = _rated(terminal, found, ratings)
    report, known = found.report, found.report.statistics
    if again or by or cluster or known is None or known.state != "computed":
        report = _computed(terminal, found, by, cluster)
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
    """The page that lies beside the results tells what they now hold. Raises OSError."""
    from dicast.app.reports.html.page import NAME, write_report  # noqa: PLC0415  (takes long to load)

    if (folder / NAME).exists():
        write_report(folder, report, folder / NAME)


def _rated(terminal: Terminal, found: Finished, ratings: str) -> Finished:
    """The job with these ratings among its own. Raises `DatasetError`, `Refused`."""
    from dicast.app.operations.rating import add_ratings  # noqa: PLC0415  (takes long to load)

    try:
        report, count = add_ratings(found.folder, found.report, ratings)
    except OSError as error:
        raise Refused(f"the ratings cannot be kept in {found.folder}: {error.strerror or error}") from None
    terminal.say(f"{count:,} ratings of {ratings} are kept with the job.")
    return Finished(found.folder, report)


def _computed(terminal: Terminal, found: Finished, by: Sequence[str], cluster: str | None) -> Report:
    """The report with its statistics, as far as this machine can compute and keep them."""
    try:
        report = learn_panels(found.folder, found.report)
        statistics = compute(found.folder, report, by or None, cluster)
    except NoLibraries as error:
        terminal.say(str(error), "yellow")
        return found.report
    try:
        report = keep(found.folder, report, statistics)
        _renew_page(found.folder, report)
        return report
    except OSError as error:
        terminal.say(f"The report stays as it was: {error.strerror or error}", "yellow")
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
    """What panels are looked for: of which dimensions (none: all), how large, by which measure, how good, and what each
    judge costs an item (nothing named: one call each)."""

    dimensions: Sequence[str]
    largest: int
    measure: Literal["pearson", "spearman"]
    reach: float | None
    costs: Sequence[str]


def show_panels(terminal: Terminal, job: str, wishes: PanelWishes, *, plot: str | None, json: bool) -> None:
    """Print the panels that no cheaper one beats, and draw them. Raises `NoLibraries`, `NoPlot`, `Refused`, OSError."""
    from dicast.app.reports.assessing import panel_fronts  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.findings_table import print_fronts  # noqa: PLC0415

    found = finished(job)
    known = [dimension.id for dimension in found.report.dimensions]
    for name in wishes.dimensions:
        if name not in known:
            raise Refused(f"--dimension: {name!r} is none of the job's; there are {', '.join(known)}")
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
    """One a judge: all that are given, or 1 each."""
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
            raise Refused(f"--cost: {name!r} is no judge of the job; there are {', '.join(judges)}")
        if not 0 <= cost < float("inf"):
            raise Refused(f"--cost: {name} must cost a number >= 0 an item, got {text!r}")
        named[name] = cost
    missing = [name for name in judges if name not in named]
    if missing:
        raise Refused(f"--cost: what {missing[0]} costs is not given; name all judges or none")
    return [named[name] for name in judges]
