"""`dicast report`, `compare`, `panel`, `calibrate`, `sample` and `rubrics`: what is known of a finished job's judges.

`dicast calibrate` learns maps from judges' scores to people's, and writes them to a file. `dicast sample` writes the
file in which people rate a sample of a job's items. `dicast rubrics` shows the library of rubrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import orjson
from pydantic import ValidationError
from pydantic_core import to_json
from rich.table import Table
from rich.text import Text

from dicast.app import datasets
from dicast.app.analysis import NoLibraries
from dicast.app.cli.console import Refused, Terminal
from dicast.app.domain.calibration import Calibration, Method
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.refusals import validated
from dicast.app.domain.report import Report
from dicast.app.domain.text import printable
from dicast.app.reports.files import (
    REPORT,
    NoResults,
    ReportChanged,
    RunChanged,
    check_run,
    parse_report,
    read_report,
)
from dicast.app.reports.folders import job_folder, replacing
from dicast.app.reports.statistics import StatisticsFailed, compute, evaluated, keep_evaluated, learn_panels
from dicast.app.reports.stored_items import submitted_ratings
from dicast.app.submission.job_file import load_job, load_rubric
from dicast.app.submission.libraries import LIBRARY, names, rubric_path
from dicast.app.submission.sampling import SampleOptions, write_sample
from dicast.config.settings import Settings, environment, nearest_file
from dicast.errors import Exit, alternatives

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
            return Finished(Path(job), parse_report((Path(job) / REPORT).read_bytes()))
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
    terminal: Terminal, job: str, by: Sequence[str], cluster: str | None, these: Sequence[str] = (), *,
    recompute: bool, json: bool, page: str | None = None, ratings: str | None = None, forget_ratings: bool = False,
    whole: bool = False,
) -> None:  # fmt: skip
    """Print the report's conclusions, with all figures if the `whole` is wanted, or write it to the HTML file `page`.

    What the job itself asks for and is missing is computed, and stored in the report. What `by`, `cluster` and
    `these` ask for is only shown; the job's own files stay as they are. `ratings` are added to the job's, if the
    statistics can be computed with them; `forget_ratings` removes all that were added. Without the libraries, what
    exists is shown, and a message says what is missing. Raises `NotKept`, `DatasetError`, `RunChanged`,
    `StatisticsFailed`, `Refused`.
    """
    from dicast.app.reports.terminal import print_conclusions, print_report  # noqa: PLC0415
    from dicast.app.reports.terminal_statistics import print_statistics  # noqa: PLC0415  (takes long to load)

    run = finished(job)
    if forget_ratings:
        run = _without_added(terminal, run)
    if ratings is not None:
        run = _add_ratings(terminal, run, ratings)
    statistics = run.report.statistics
    if not by and not cluster and not these and (recompute or statistics is None or statistics.state != "computed"):
        run = _compute_and_keep(terminal, run, recompute=recompute)
    report = _regrouped(terminal, run, by, cluster, these) if by or cluster or these else run.report
    if json:
        terminal.emit(report.model_dump_json(indent=2))
        return
    if page is not None:
        _write_page(terminal, run.folder, report, Path(page))
        return
    print_conclusions(report, terminal.out)
    if whole:
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


def _add_ratings(terminal: Terminal, run: Finished, ratings: str) -> Finished:
    """Add these ratings to the job's own, once its statistics have been computed with them, and return the job.
    Raises `DatasetError`, `NoLibraries`, `RunChanged`, `StatisticsFailed`, `Refused`."""
    from dicast.app.operator.rating import added_ratings  # noqa: PLC0415  (takes long to load)

    for _ in range(TRIES):
        change, count = added_ratings(run.folder, run.report, ratings)
        try:
            report = evaluated(run.folder, run.report, change)
        except (NoLibraries, StatisticsFailed) as error:
            terminal.say(f"The ratings of {ratings} are not kept: statistics cannot be computed with them.", "red")
            raise error from error.__cause__
        try:
            keep_evaluated(run.folder, run.report, report, change)
            _renew_page(run.folder, report)
        except ReportChanged:
            run = Finished(run.folder, check_run(run.folder, run.report))
        except OSError as error:
            raise Refused(f"the ratings cannot be kept in {run.folder}: {error.strerror or error}") from None
        else:
            terminal.say(f"{count:,} ratings of {ratings} are kept with the job.")
            return Finished(run.folder, report)
    raise ReportChanged(run.report.job_id)


def _without_added(terminal: Terminal, run: Finished) -> Finished:
    """Remove the ratings that were added to the job, and return it. Raises `NoAddedRatings`, `RunChanged`,
    `Refused`."""
    from dicast.app.operator.rating import forget_ratings  # noqa: PLC0415  (takes long to load)

    try:
        report, count = forget_ratings(run.folder, run.report)
        _renew_page(run.folder, report)
    except OSError as error:
        raise Refused(f"the ratings cannot be taken back in {run.folder}: {error.strerror or error}") from None
    terminal.say(f"{count:,} added ratings are taken back; those that came with the job stay.")
    return Finished(run.folder, report)


def _compute_and_keep(terminal: Terminal, run: Finished, *, recompute: bool) -> Finished:
    """Compute and store the statistics that the job asks for, as far as this machine can, and return the job.

    With `recompute`, they are computed also if somebody else has stored some in the meantime. Raises `RunChanged`,
    `StatisticsFailed`.
    """
    for _ in range(TRIES):
        try:
            report = evaluated(run.folder, run.report)
        except NoLibraries as error:
            terminal.say(str(error), "yellow")
            return run
        except StatisticsFailed as error:
            if submitted_ratings(run.folder) is None:
                raise
            hint = f"`dicast report {run.report.job_id} --forget-ratings` takes back the ratings that were added"
            raise StatisticsFailed(f"{error}; {hint}") from error.__cause__
        try:
            keep_evaluated(run.folder, run.report, report)
            _renew_page(run.folder, report)
        except ReportChanged:
            run = Finished(run.folder, check_run(run.folder, run.report))
            statistics = run.report.statistics
            if not recompute and statistics is not None and statistics.state == "computed":
                return run
        except OSError as error:
            terminal.say(f"The report stays as it was: {error.strerror or error}", "yellow")
            return Finished(run.folder, report)
        else:
            return Finished(run.folder, report)
    raise ReportChanged(run.report.job_id)


def _regrouped(
    terminal: Terminal, run: Finished, by: Sequence[str], cluster: str | None, these: Sequence[str]
) -> Report:
    """Return the report with other groups, clusters or populations, which is stored nowhere. Raises `NotKept`,
    `RunChanged`, `StatisticsFailed`."""
    try:
        requested = run.report if not these else run.report.model_copy(update={"these": list(these)})
        report = learn_panels(run.folder, requested)
        statistics = compute(run.folder, report, by or None, cluster)
    except NoLibraries as error:
        terminal.say(str(error), "yellow")
        return run.report
    return report.model_copy(update={"statistics": statistics})


def verify_files(terminal: Terminal, job: str, *, json: bool) -> Exit:
    """Print in what a finished job's files differ from its lock. Raises `NoLock`, `Refused`, OSError."""
    from dicast.app.reports.certificates import read_lock, verify_run  # noqa: PLC0415  (takes long to load)

    run = finished(job)
    differences = verify_run(run.folder, run.report)
    if json:
        lock = read_lock(run.folder)
        terminal.emit(to_json({"lock": lock, "differences": differences}, indent=2).decode())
    elif differences:
        for line in differences:
            terminal.out.print(Text(printable(line), "red"))
    else:
        terminal.out.print(f"The files of {printable(run.report.job_id)} are as they were written.", markup=False)
    return Exit.FAILED if differences else Exit.OK


def show_comparison(
    terminal: Terminal, first: str, second: str, *, most: int, force: bool, json: bool, page: str | None = None
) -> None:
    """Print how far scores moved between two finished jobs, or write it to the HTML file `page`. Raises `RunsDiffer`,
    `NoLibraries`, `Refused`."""
    from dicast.app.reports.statistics import compare_jobs  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_comparison  # noqa: PLC0415

    first_run, second_run = finished(first), finished(second)
    sides = [(run.folder, run.report) for run in (first_run, second_run)]
    compared = compare_jobs(sides[0], sides[1], most=most, force=force)
    if json:
        terminal.emit(compared.model_dump_json(indent=2))
    elif page is not None:
        from dicast.app.reports.html.page import write_comparison  # noqa: PLC0415  (takes long to load)

        written = write_comparison(compared, first_run.report, second_run.report, Path(page))
        terminal.say(f"Comparison in {written}")
    else:
        print_comparison(compared, terminal.out)


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """The search for panels: in which dimensions (empty: all), of which size, by which measure, how good they must
    be, and what each judge costs an item (empty: what its calls have cost, or one call each)."""

    dimensions: Sequence[str]
    largest: int
    measure: Literal["pearson", "spearman"]
    reach: float | None
    costs: Sequence[str]


def show_panels(terminal: Terminal, job: str, query: PanelQuery, *, plot: str | None, json: bool) -> None:
    """Print the panels that no cheaper one beats, and plot them. Raises `NoLibraries`, `NoPlot`, `Refused`, OSError."""
    from dicast.app.reports.statistics import panel_fronts  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_fronts  # noqa: PLC0415

    run = finished(job)
    dimension_ids = [dimension.id for dimension in run.report.dimensions]
    for name in query.dimensions:
        if name not in dimension_ids:
            raise Refused(f"--dimension: {name!r} is none of the job's{alternatives(name, dimension_ids)}")
    judges = [agent.name for agent in run.report.agents]
    costs, unit = _costs(judges, query.costs), "as given" if query.costs else "calls"
    if not query.costs and not run.report.cached:
        scored = {agent.agent.name: agent.n for agent in run.report.by_agent}
        costs, unit = run.report.cost.item_costs(scored, len(dimension_ids)) or (costs, unit)
    fronts = panel_fronts(
        run.folder, run.report, costs, dimensions=query.dimensions or dimension_ids, largest=query.largest,
        measure=query.measure, reach=query.reach,
    )  # fmt: skip
    if plot is not None:
        from dicast.app.reports.terminal_statistics import plot_fronts  # noqa: PLC0415

        plot_fronts(fronts, Path(plot), unit=unit)
    if json:
        terminal.emit(orjson.dumps([front.model_dump() for front in fronts], option=orjson.OPT_INDENT_2).decode())
    else:
        print_fronts(fronts, terminal.out, unit=unit)


def show_trusted_panels(
    terminal: Terminal, job: str, dimensions: Sequence[str], agree: float, confidence: float, within: float, *,
    json: bool,
) -> None:  # fmt: skip
    """Print up to which uncertainty the job's judges may decide. Raises `NoLibraries`, `Refused`, OSError."""
    from dicast.app.reports.statistics import trusted_panels  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_trusted_panels  # noqa: PLC0415

    run = finished(job)
    dimension_ids = [dimension.id for dimension in run.report.dimensions]
    for name in dimensions:
        if name not in dimension_ids:
            raise Refused(f"--dimension: {name!r} is none of the job's{alternatives(name, dimension_ids)}")
    chosen = dimensions or dimension_ids
    panels = trusted_panels(run.folder, run.report, chosen, agree=agree, confidence=confidence, within=within)
    if json:
        terminal.emit(to_json(panels, indent=2).decode())
    else:
        print_trusted_panels(panels, terminal.out)


def _costs(judges: list[str], entries: Sequence[str]) -> list[float]:
    """Return the cost of each judge: as given for all of them, or 1 each."""
    if not entries:
        return [1.0] * len(judges)
    by_judge: dict[str, float] = {}
    for pair in entries:
        name, _, text = pair.rpartition("=")
        try:
            cost = float(text)
        except ValueError:
            cost = -1.0
        if name not in judges:
            raise Refused(f"--cost: {name!r} is no judge of the job{alternatives(name, judges)}")
        if not 0 <= cost < float("inf"):
            raise Refused(f"--cost: {name} must cost a number >= 0 an item, got {text!r}")
        by_judge[name] = cost
    missing = [name for name in judges if name not in by_judge]
    if missing:
        raise Refused(f"--cost: what {missing[0]} costs is not given; name all judges or none")
    return [by_judge[name] for name in judges]


def calibrate_job(
    terminal: Terminal, job: str, out: str, *, method: Method, dimensions: Sequence[str], json: bool
) -> None:
    """Write the maps, and show how much each improves scores. Raises `NoLibraries`, `NoFingerprints`, `Refused`,
    OSError."""
    from dicast.app.reports.statistics import calibrate  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_calibration  # noqa: PLC0415

    run = finished(job)
    dimension_ids = [dimension.id for dimension in run.report.dimensions]
    for name in dimensions:
        if name not in dimension_ids:
            raise Refused(f"--dimension: {name!r} is none of the job's{alternatives(name, dimension_ids)}")
    maps, missing = calibrate(run.folder, run.report, method, dimensions or dimension_ids)
    if not maps:
        raise Refused(f"no judge can be calibrated, because {missing[0].reason}")
    calibration = Calibration(job=run.report.job_id, maps=maps)
    with replacing(Path(out), private=False) as file:
        file.write(to_json(calibration.model_dump(exclude={"on_mismatch"}), indent=2) + b"\n")
    if json:
        terminal.emit(calibration.model_dump_json(indent=2))
        return
    print_calibration(calibration, missing, terminal.out)
    terminal.say(f"Written to {out}: a job with `calibration: {out}` uses it.", "dim")


def show_rating_plan(terminal: Terminal, pilot: str, width: float | None, *, json: bool) -> None:
    """Print what ratings of a finished job's items would buy, and whether those there are suffice. Raises
    `NoLibraries`, `Refused`."""
    from dicast.app.reports.statistics import rating_plans  # noqa: PLC0415  (takes long to load)
    from dicast.app.reports.terminal_statistics import print_rating_plans  # noqa: PLC0415

    run = finished(pilot)
    plans = rating_plans(run.folder, run.report, width)
    if json:
        terminal.emit(to_json(plans, indent=2).decode())
    else:
        print_rating_plans(plans, terminal.out)


def sample_job(
    terminal: Terminal, path: str, to: str, wishes: SampleOptions, disagreement_of: str | None, pilot: str | None
) -> None:
    """Draw the sample, write the file, and say how to fill it in. Raises `NoSample` and what refuses a job."""
    document = load_job(path)
    document.pop("ratings", None)  # often the very file that this makes
    job = validated(document)
    if disagreement_of is not None:
        run = finished(disagreement_of)
        wishes = replace(wishes, disagreed=(run.folder, run.report))
    if pilot is not None:
        run = finished(pilot)
        wishes = replace(wishes, pilot=(run.folder, run.report))
    items = write_sample(_located(job), wishes, Path(to))
    terminal.say(f"{wishes.size:,} of {items:,} items in {to}, in random order. Fill in one value a cell:")
    for dimension in job.dimensions:
        terminal.say(printable(f"  {dimension.id}  {_describe_scale(dimension)}", 500))
    terminal.say(f"Leave a cell empty where you cannot tell. Then, in the job:\n  ratings: {to}")


def _describe_scale(dimension: Dimension) -> str:
    """Describe what a person may fill in, and what it means."""
    scale = dimension.scale
    levels = "; ".join(
        f"{scale.label(score) or score}: {meaning}" for score, meaning in sorted(dimension.levels.items())
    )
    questions = " ".join(f"({number}) {question}" for number, question in enumerate(scale.checklist, 1))
    more = levels or questions
    return f"{scale.allowed_values}  {dimension.name or dimension.id}{f' ({more})' if more else ''}"


def _located(job: EvaluationJob) -> EvaluationJob:
    if not isinstance(job.items, ItemSource):
        return job
    path = datasets.located(job.items.path, Path.cwd())
    return job.model_copy(update={"items": job.items.model_copy(update={"path": path})})


def show_rubrics(terminal: Terminal, name: str | None) -> None:
    """List all rubrics, or print the file of one. Raises `RubricError`."""
    if name is not None:
        terminal.emit(rubric_path(name, LIBRARY).read_text(encoding="utf-8").rstrip("\n"))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for rubric in names():
        dimension = load_rubric(rubric)
        scale = dimension.scale
        values = scale.allowed_values if scale.options or scale.checklist else scale.bounds
        table.add_row(
            Text(rubric), Text(dimension.name, style="dim"), Text(values), Text(f"version {dimension.version}")
        )
    terminal.out.print(table)
