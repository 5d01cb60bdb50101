"""Draws the items that people should rate, and writes the file that they fill in: `ratings:` reads it as it is."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import orjson

from dicast.app import datasets
from dicast.app.analysis import MISSING, NoLibraries
from dicast.app.domain.item import NOBODY_NAMED, Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.report import Report
from dicast.app.domain.text import cell
from dicast.app.reports.folders import replacing
from dicast.errors import DicastError, alternatives

if TYPE_CHECKING:
    from dicast.app.analysis.sampling import Sample

ITEMS_TOGETHER = 500
NO_VALUE = "(none)"
SHOWN = ("prompt", "reference", "text", "text_a", "text_b")


class NoSample(DicastError, ValueError):
    """The requested sample cannot be drawn or written; the message says why."""

    problem = "no-sample"


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """The number of items to draw, and the method: uniformly; from each value of the metadata `strata` its share; or
    with probabilities that grow with how much the judges of a finished job (its folder and report) `disagreed`; or by
    Neyman's allocation, from what the judges and raters of a finished job, the `pilot`, say, and from what an item
    costs (the metadata `cost`, a number above 0). The same `seed` draws the same items."""

    size: int
    strata: str | None = None
    disagreed: tuple[Path, Report] | None = None
    pilot: tuple[Path, Report] | None = None
    cost: str | None = None
    raters: Sequence[str] = ()
    seed: int = 1


def write_sample(job: EvaluationJob, options: SampleOptions, out: Path) -> int:
    """Draw the sample and write it to `out` (.csv or .jsonl), in random order; return how many items the job has.

    It takes the memory of the sample and a few numbers per item. Raises `NoSample`, `NoLibraries`, `DatasetError`,
    OSError.
    """
    try:
        import numpy as np  # noqa: PLC0415  (of the extra `scores`)

        rng = np.random.default_rng(options.seed)
        sample, items = _draw(job, options, rng)
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    names = [dimension.id for dimension in job.dimensions]
    chosen = set(sample.chosen.tolist())
    chosen_items = {at: item for at, item in enumerate(job_items(job)) if at in chosen}
    even = options.strata is None and options.disagreed is None and options.pilot is None
    rows = [
        _row(chosen_items[at], rater, names, None if even else float(sample.probabilities[at]))
        for rater in options.raters or (NOBODY_NAMED,)
        for at in rng.permutation(sample.chosen).tolist()
    ]
    _write(rows, out, names)
    return items


def _draw(job: EvaluationJob, options: SampleOptions, rng: Any) -> tuple[Sample, int]:
    import numpy as np  # noqa: PLC0415

    from dicast.app.analysis.sampling import draw_allocated, draw_sample, draw_stratified, draw_weighted  # noqa: PLC0415

    try:
        if options.pilot is not None:
            ids = [item.id for item in job_items(job)]
            costs = None
            if options.cost is not None:
                costs = np.array([_cost(item, options.cost) for item in job_items(job)])
            return draw_allocated(_errors(ids, *options.pilot), options.size, rng, costs), len(ids)
        if options.disagreed is not None:
            ids = [item.id for item in job_items(job)]
            return draw_weighted(_disagreement(ids, *options.disagreed), options.size, rng), len(ids)
        if options.strata is not None:
            strata = [_stratum(item, options.strata) for item in job_items(job)]
            if all(value == NO_VALUE for value in strata):
                names = sorted({name for item in job_items(job) for name in item.metadata})
                raise NoSample(f"no item has {options.strata!r} in its metadata{alternatives(options.strata, names)}")
            return draw_stratified(strata, options.size, rng), len(strata)
        count = sum(1 for _ in job_items(job))
        return draw_sample(count, options.size, rng), count
    except NoSample:
        raise
    except ValueError as error:
        raise NoSample(str(error)) from None


def _disagreement(ids: Sequence[str], folder: Path, report: Report) -> Any:
    """Return the spread of the judges' scores on each item, as a share of the scale; the mean of the others if it is
    unknown."""
    import numpy as np  # noqa: PLC0415

    from dicast.app.reports.scores import load_scores  # noqa: PLC0415

    if len(report.agents) < 2:
        raise NoSample(f"job {report.job_id} has one judge, so there is no disagreement between judges")
    spreads = []
    for dimension in load_scores(folder, report, by=[]).dimensions:
        judges, (low, high) = dimension.judges, dimension.bounds
        enough = (~np.isnan(judges)).sum(axis=1) >= 2
        spread = np.full(len(judges), np.nan)
        spread[enough] = np.nanstd(judges[enough], axis=1) / (high - low)
        spreads.append(spread)
    stacked = np.stack(spreads, axis=1)
    present = ~np.isnan(stacked)
    sums, counts = np.where(present, stacked, 0.0).sum(axis=1), present.sum(axis=1)
    of_item = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    values = _by_id(ids, folder, of_item)
    if np.isnan(values).all():
        raise NoSample(f"job {report.job_id} has no item of this one that two judges scored")
    return np.where(np.isnan(values), np.nanmean(values), values)


def _by_id(ids: Sequence[str], folder: Path, values: Any) -> Any:
    """Return the values of a finished job's items for the items with these ids, NaN for items that it does not have."""
    import numpy as np  # noqa: PLC0415

    from dicast.app.reports.scores import item_names  # noqa: PLC0415

    index_of = {name: at for at, name in enumerate(item_names(folder))}
    places = np.array([index_of.get(name, -1) for name in ids])
    return np.where(places >= 0, values[places], np.nan)


def _errors(ids: Sequence[str], folder: Path, report: Report) -> Any:
    """Return how far people are expected to lie from what the judges predict, over all dimensions that have a mean, in
    units of the dimension's average; the average for items that the pilot does not have."""
    import numpy as np  # noqa: PLC0415

    from dicast.app.analysis.assess import pilot_errors  # noqa: PLC0415
    from dicast.app.analysis.scores import with_learned_panels  # noqa: PLC0415
    from dicast.app.reports.scores import load_scores  # noqa: PLC0415

    job = with_learned_panels(load_scores(folder, report, by=[]))
    squares = [pilot_errors(job, dimension).each ** 2 for dimension in job.dimensions if not dimension.spec.nominal]
    if not squares:
        raise NoSample("labels without an order have no mean, so there is nothing to allocate ratings by")
    values = _by_id(ids, folder, np.sqrt(np.mean([each / each.mean() for each in squares], axis=0)))
    if np.isnan(values).all():
        raise NoSample(f"job {report.job_id} has no item of this one")
    return np.where(np.isnan(values), np.nanmean(values), values)


def _cost(item: Item, name: str) -> float:
    value = item.metadata.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise NoSample(f"item {item.id!r} has no number above 0 as its {name!r}, which --cost names")
    return float(value)


def _stratum(item: Item, name: str) -> str:
    value = item.metadata.get(name)
    if value is None:
        return NO_VALUE
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def job_items(job: EvaluationJob) -> Iterator[Item]:
    """Yield all items of a job, from its file or as it brings them."""
    if not isinstance(job.items, ItemSource):
        yield from job.items
        return
    cursor: dict[str, int] | None = None
    while True:
        page, cursor = datasets.read_page(job.items, cursor, ITEMS_TOGETHER)
        yield from page
        if cursor is None:
            return


def _row(item: Item, rater: str, dimensions: Sequence[str], probability: float | None) -> dict[str, Any]:
    judged = {"text_a": item.text_a, "text_b": item.text_b} if item.kind == "pair" else {"text": _rating_text(item)}
    texts = {"prompt": item.prompt, "reference": item.reference, **judged}
    drawn = {} if probability is None else {"probability": probability}
    return {"item_id": item.id, "rater": rater, **drawn, **dict.fromkeys(dimensions), **texts}


def _rating_text(item: Item) -> str:
    """Return what people are shown to rate: the text, the conversation turn by turn, or the candidates by their ids,
    which an order names."""
    turns = [f"[{turn.role}] {turn.content or turn.calls}" for turn in item.messages or ()]
    candidates = [f"[{candidate.id}] {candidate.text}" for candidate in item.candidates or ()]
    return item.text or "\n\n".join(turns or candidates)


def _write(rows: Sequence[Mapping[str, Any]], out: Path, dimensions: Sequence[str]) -> None:
    taken = {"item_id", "rater", "probability", "dimension", *SHOWN} & set(dimensions)
    if taken:
        raise NoSample(f"a dimension is called {min(taken)!r}, as a column of this file: rename it")
    if out.exists():
        raise NoSample(f"{out} is there already, and may hold ratings: name another file")
    if out.suffix.lower() not in (".csv", ".jsonl"):
        raise NoSample(f"{out}: the file's name must end in .csv or .jsonl")
    whole = out.suffix.lower() == ".jsonl"
    risky = next((row["item_id"] for row in rows if cell(row["item_id"]) != row["item_id"]), None)
    if risky is not None and not whole:
        raise NoSample(f"a spreadsheet would run the id {risky!r} as a formula: write a .jsonl file")
    with replacing(out, private=False) as file:
        if whole:
            file.writelines(orjson.dumps(row) + b"\n" for row in rows)
        else:
            _write_csv(file, rows)


def _write_csv(file: IO[bytes], rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    for row in rows:
        writer.writerow({k: cell(v) if isinstance(v, str) else ("" if v is None else v) for k, v in row.items()})
    text.flush()
    text.detach()
