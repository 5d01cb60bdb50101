"""Reads a finished job's scores and people's ratings into arrays for the statistics; needs the extra `scores`.

Only codes and scores of the opinions are read, so a million of them take some ten bytes each, besides the items' ids.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dicast.app.analysis.estimates import Bools, Floats, Ints
from dicast.app.analysis.scores import (
    DimensionScores,
    JobScores,
    Kinship,
    Labels,
    People,
    StoppedJob,
    VariedItems,
    decided_items,
    nothing,
    settled_orders,
)
from dicast.app.domain.calibrated import fits_of
from dicast.app.domain.escalation import is_audited
from dicast.app.domain.item import Rating
from dicast.app.domain.panel import half_of
from dicast.app.domain.probes import MEASURES, SelfPreference, family_of, measures, names, self_preference_probe
from dicast.app.domain.ranking import SIDE_METADATA
from dicast.app.domain.report import Report, ReportDimension, ReportHeader
from dicast.app.reports.columns import kept_columns
from dicast.app.reports.files import PROBES
from dicast.app.reports.stored_items import read_ratings
from dicast.errors import DicastError, meant

PARQUET = "opinions.parquet"
PROBE = "probe"
SOME_PROBABILITIES = "some of the rated items have a known probability of being rated, and others have none"
TWO_PROBABILITIES = "an item has two probabilities of being rated"


class NotKept(DicastError, LookupError):
    """A job's opinions do not carry the requested metadata."""

    def __init__(self, name: str, available: Sequence[str]) -> None:
        names = ", ".join(available) or "none"
        advice = meant(name, available) or f": say `groups: [{name}]` or `keep: [{name}]` in it"
        super().__init__(f"the job kept no metadata {name!r} ({names}){advice}")


def load_scores(
    folder: Path, report: Report, by: Sequence[str] | None = None, cluster: str | None = None,
    ratings: Iterable[Rating] | None = None,
) -> JobScores:  # fmt: skip
    """Read the scores in a job's folder, grouped `by` these metadata (None: as the job says), with `ratings` by
    people (None: those in the folder). Raises `NotKept`, OSError."""
    by = report.groups if by is None else by
    cluster = cluster or report.cluster
    metadata_names = [*by, *([cluster] if cluster else [])]
    for name in metadata_names:
        if name not in report.keep:
            raise NotKept(name, report.keep)
    family, probe_names = self_preference_probe(report.probes), names(report.probes)
    metadata_names += [*measures(report.probes), *([family.author] if family is not None else [])]
    sides = next((pair for pair in SIDE_METADATA if set(pair) <= set(report.keep)), None)
    metadata_names += [*(sides or ()), *(["list"] if "list" in report.keep else [])]
    columns = [
        "judge",
        "criterion_id",
        "item_id",
        "replicate",
        "score",
        *kept_columns(list(dict.fromkeys(metadata_names))),
    ]
    table = _read(folder / PARQUET, columns)
    item, ids = _encoded(table["item_id"])
    judges = tuple(agent.name for agent in report.agents)
    scores = _score_array(table, item, len(ids), report, judges)
    people = _people(read_ratings(folder) if ratings is None else ratings, report, ids)
    clusters = _labels(table, cluster, item, len(ids)).codes if cluster else None
    variants, varied = _variants(folder, ids, report, judges)
    skipped = _skipped_counts(folder, report, judges)
    return JobScores(
        items=len(ids),
        judges=judges,
        dimensions=tuple(
            replace(
                _of_judges(report, dimension, scores[at], people[at], varied[at]),
                skipped=skipped.get(dimension.id, ()),
                audited=_audited(dimension, ids),
            )
            for at, dimension in enumerate(report.dimensions)
        ),
        groups={name: _labels(table, name, item, len(ids)) for name in by},
        cluster=None if clusters is None or cluster is None else (cluster, _singleton_clusters(clusters)),
        calibration=report.calibration,
        these=report.these,
        sides=None if sides is None else _both_sides(table, sides, item, len(ids)),
        lists=_singleton_clusters(_labels(table, "list", item, len(ids)).codes)
        if sides and "list" in report.keep
        else None,
        halves=_halves(report, ids),
        probes={
            probe: _numbers(table, column, item, len(ids)) for probe, column in MEASURES.items() if probe in probe_names
        },
        variants=variants,
        stopped=_stopped(report, scores.shape),
        kinship=_kinship(_labels(table, family.author, item, len(ids)), family, report) if family is not None else None,
    )


def _both_sides(table: Any, sides: tuple[str, str], item: Ints, items: int) -> tuple[Labels, Labels]:
    return _labels(table, sides[0], item, items), _labels(table, sides[1], item, items)


def _skipped_counts(folder: Path, report: Report, judges: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return how many opinions of each judge an escalating panel did not need, by dimension; variants of items count,
    too."""
    if not report.spared:
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    for path in (folder / PARQUET, folder / PROBES):
        if path.exists():
            table = pq.read_table(path, columns=["judge", "criterion_id"], filters=[("not_needed", "=", True)])
            counts.update(zip(table["criterion_id"].to_pylist(), table["judge"].to_pylist(), strict=True))
    return {d.id: tuple(counts[d.id, judge] for judge in judges) for d in report.dimensions}


def _audited(dimension: ReportDimension, ids: Any) -> Bools | None:
    rule = dimension.panel
    if rule.escalate is None or rule.escalate.audit is None:
        return None
    return np.array([is_audited(rule, item) for item in ids.to_pylist()], dtype=np.bool_)


def _stopped(report: Report, shape: tuple[int, ...]) -> StoppedJob | None:
    """Return what is known of a job that a question ended early. The units it did not reach are those of whole
    items."""
    if report.answer is None or not report.unpublished:
        return None
    dimensions, _, judges, rounds = shape
    return StoppedJob(report.answer, report.units // (dimensions * judges * rounds))


def _halves(report: ReportHeader, names: Any) -> Ints:
    learning = any(dimension.panel.weights == "learned" for dimension in report.dimensions)
    return np.array([half_of(name) for name in names.to_pylist()] if learning else [], dtype=np.int64)


def _of_judges(
    report: Report, dimension: ReportDimension, scores: Floats, people: People, varied: Floats
) -> DimensionScores:
    fits = fits_of(report, dimension)
    if report.orders != "both":
        return DimensionScores(dimension, scores, people, fits, varied=varied)
    items, judges, rounds = scores.shape
    whole = np.concatenate([scores, np.full((items, judges, rounds % 2), np.nan)], axis=2)  # a job may be cancelled
    orders = whole.reshape(items, judges, -1, 2)
    return DimensionScores(dimension, settled_orders(orders), people, fits, orders, varied)


def item_names(folder: Path) -> list[str]:
    """Return the items' ids, in the order of the arrays' rows."""
    item_ids: list[str] = _encoded(_read(folder / PARQUET, ["item_id"])["item_id"])[1].to_pylist()
    return item_ids


def undecided_items(folder: Path, report: Report) -> set[str]:
    """Return the ids of the items that a panel with a guarantee (`agree`) has left to people, in any dimension. Raises
    OSError."""
    loaded = load_scores(folder, report, by=[])
    undecided = np.zeros(loaded.items, dtype=bool)
    for dimension in loaded.dimensions:
        is_decided = decided_items(dimension)
        if is_decided is not None:
            undecided |= ~is_decided
    return {name for name, is_left in zip(item_names(folder), undecided.tolist(), strict=True) if is_left}


def _variants(
    folder: Path, ids: Any, report: ReportHeader, judges: tuple[str, ...]
) -> tuple[VariedItems | None, Sequence[Floats]]:  # fmt: skip
    """Read what was changed in which item, and the scores: dimensions x variants x judges x replicates."""
    none = None, [nothing()] * len(report.dimensions)
    if not (folder / PROBES).exists():
        return none
    columns = ["judge", "criterion_id", "item_id", "replicate", "score", PROBE]
    table = _read(folder / PROBES, columns)
    table = table.filter(pc.is_in(table["item_id"], value_set=ids))
    if table.num_rows == 0:
        return none
    code, labels = _encoded(table[PROBE])
    item = _indices(table["item_id"], ids.to_pylist())
    pairs, row = np.unique(code * len(ids) + item, return_inverse=True)
    variants = VariedItems(tuple(labels.to_pylist()), pairs // len(ids), pairs % len(ids))
    return variants, list(_score_array(table, row, len(pairs), report, judges))


def _kinship(authors: Labels, probe: SelfPreference, report: ReportHeader) -> Kinship:
    """Return the families of the items' authors and of the judges, as named by the job or else derived from their
    names."""
    of_author = [family_of(name, probe.families) for name in authors.names]
    families = tuple(dict.fromkeys(family for family in of_author if family is not None))
    code = np.array([-1 if family is None else families.index(family) for family in of_author] + [-1], dtype=np.int64)
    judges = [
        probe.families.get(agent.name) or family_of(agent.model or "", probe.families) for agent in report.agents
    ]  # fmt: skip
    return Kinship(Labels(families, code[authors.codes]), tuple(judges))


def _read(path: Path, columns: list[str]) -> Any:
    with pq.ParquetFile(path) as file:
        return file.read(columns)


def _numpy(values: Any, null: float) -> Any:
    """Convert an Arrow array to a read-only NumPy array. Arrow's own conversion loads pandas, and so does filling
    nulls in it."""
    return np.from_dlpack(pc.fill_null(values, null) if values.null_count else values)


def _encoded(column: Any) -> tuple[Ints, Any]:
    """Return each value's index among the distinct values, in the order in which they first occur (-1 for null), and
    the distinct values."""
    whole = column.combine_chunks().dictionary_encode()
    return _numpy(whole.indices, -1).astype(np.int64), whole.dictionary


def _score_array(table: Any, item: Ints, items: int, report: ReportHeader, judges: tuple[str, ...]) -> Floats:
    """Return the scores as an array: dimensions x items x judges x replicates."""
    judge = _indices(table["judge"], judges)
    dimension = _indices(table["criterion_id"], [d.id for d in report.dimensions])
    replicate = _numpy(table["replicate"].combine_chunks(), 0).astype(np.int64)
    score = _numpy(pc.cast(table["score"].combine_chunks(), pa.float64()), float("nan"))
    replicates = int(replicate.max()) + 1 if len(replicate) else 1
    result = np.full((len(report.dimensions), items, len(judges), replicates), np.nan)
    result[dimension, item, judge, replicate] = score
    return result


def _indices(column: Any, ordering: Sequence[str]) -> Ints:
    """Return each value's index among the values of `ordering`."""
    codes, names = _encoded(column)
    place = {name: at for at, name in enumerate(ordering)}
    return np.array([place[name] for name in names.to_pylist()], dtype=np.int64)[codes]


def _labels(table: Any, name: str, item: Ints, items: int) -> Labels:
    codes, names = _encoded(table[kept_columns([name])[0]])
    of_item = np.full(items, -1, dtype=np.int64)
    of_item[item] = codes
    return Labels(tuple(map(str, names.to_pylist())), of_item)


def _numbers(table: Any, name: str, item: Ints, items: int) -> Floats:
    column = pc.cast(table[kept_columns([name])[0]].combine_chunks(), pa.float64())
    of_item = np.full(items, np.nan)
    of_item[item] = _numpy(column, float("nan"))
    return of_item


def _singleton_clusters(clusters: Ints) -> Ints:
    """Make each item without a cluster a cluster of its own."""
    singletons = clusters.max(initial=-1) + 1 + np.arange(len(clusters))
    return np.where(clusters < 0, singletons, clusters)


def _people(ratings: Iterable[Rating], report: Report, names: Any) -> list[People]:
    """Return the ratings by dimension. Ratings of items without any opinion, as in a cancelled job, are left out."""
    dimensions = {d.id: at for at, d in enumerate(report.dimensions)}
    raters: dict[str, int] = {}
    stored: list[Rating] = []
    items: list[str] = []
    for rating in ratings:
        raters.setdefault(rating.rater, len(raters))
        stored.append(rating)
        items.append(rating.item_id)
    places = {name: at for at, name in enumerate(names.to_pylist())} if items else {}
    place = np.array([places.get(item, -1) for item in items], dtype=np.int64)
    dimension_codes = np.array([dimensions[r.dimension] for r in stored], dtype=np.int64)
    rater_codes = np.array([raters[r.rater] for r in stored], dtype=np.int64)
    score = np.array(array("d", [r.score for r in stored]))
    chance = np.array(array("d", [float("nan") if r.probability is None else r.probability for r in stored]))
    order = sorted(raters)
    rank = np.array([order.index(name) for name in raters], dtype=np.int64)
    inside = place >= 0
    by_dimension = []
    for at in range(len(report.dimensions)):
        selected = inside & (dimension_codes == at)
        columns = rank[rater_codes[selected]] if selected.any() else np.empty(0, dtype=np.int64)
        by_dimension.append(
            _people_of_dimension(place[selected].astype(np.int64), columns, score[selected], chance[selected], order)
        )
    return by_dimension


def _people_of_dimension(place: Ints, rater_codes: Ints, score: Floats, chance: Floats, raters: list[str]) -> People:
    rated, row = np.unique(place, return_inverse=True)
    present, column = np.unique(rater_codes, return_inverse=True)
    scores = np.full((len(rated), len(present)), np.nan)
    scores[row, column] = score
    lowest, highest = np.full(len(rated), np.inf), np.full(len(rated), -np.inf)
    has_probability = ~np.isnan(chance)
    np.minimum.at(lowest, row[has_probability], chance[has_probability])
    np.maximum.at(highest, row[has_probability], chance[has_probability])
    is_known = np.isfinite(lowest)
    flaw = None
    if is_known.any() and not is_known.all():
        flaw = SOME_PROBABILITIES
    elif (lowest[is_known] != highest[is_known]).any():
        flaw = TWO_PROBABILITIES
    probabilities = lowest if is_known.any() and flaw is None else None
    return People(rated, tuple(raters[at] for at in present), scores, probabilities, flaw)
