"""Reads what the judges of a running job have said so far: means, or shares of comparisons won or of labels, with
intervals that may be looked at as often as one likes, failures, and cost."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import orjson
from pydantic import BaseModel, Field

from dicast.app.application import Dicast
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.concluding import MESSAGE_CHARS, failure_row
from dicast.app.domain.conclusions import Chart, ChartUnit, FailureRow, Mark
from dicast.app.domain.cost import cost_of
from dicast.app.domain.figure import Figure
from dicast.app.domain.item import ItemSource
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.plan import Unit
from dicast.app.domain.ranking import SIDE_METADATA
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.standings import MOST_CHARTS, MOST_ROWS, on_one_axis, scale_mark, share_mark, title
from dicast.app.ledger.client import JobLayout
from dicast.app.pipeline.question import can_answer


class JudgeSoFar(BaseModel):
    """What a judge of a running job has done, as far as its pages are gathered, and what its calls have cost."""

    name: str
    scored: int
    failed: int
    cost: str = Field(description="in words, with what is unknown or unpriced of it; '' before its first call")


class JobSoFar(BaseModel):
    """What the judges of a running job have said so far.

    `items` of `of` have been judged by all; `of` is null where that cannot be counted from here. The charts have the
    panel's mean of each group of items, or of all of them, in each dimension whose scores have a mean; the share of all
    items that the panel gives each label, where labels have no order; and the share of its comparisons that each
    candidate has won, where pairs are judged. `note` names what they are of. `kind` is
    `anytime` for intervals that hold however often one looks, `certain` for those that hold whatever the other items
    get, and `none` without any.
    """

    items: int
    of: int | None
    kind: Literal["anytime", "certain", "none"]
    note: str
    charts: list[Chart]
    judges: list[JudgeSoFar]
    failed: list[FailureRow]


class RunningJobs:
    """Reads what the judges of running jobs have said, each page once. Safe for use by several threads."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[tuple[str, str, int], _RunningJob] = OrderedDict()
        self._lock = threading.Lock()

    def so_far(self, dicast: Dicast, job: str) -> JobSoFar:
        """Return what is known of a job so far. Reads at most `UNITS_READ` units more than before. Raises `UnknownJob`,
        OSError."""
        layout = dicast.existing_ledger.layout(job)
        key = job, layout.incarnation, layout.resumed
        with self._lock:
            running = self._jobs.setdefault(key, _RunningJob(job, layout))
            self._jobs.move_to_end(key)
            while len(self._jobs) > JOBS_KEPT:
                self._jobs.popitem(last=False)
        with running.lock:
            return running.so_far(dicast)


UNITS_READ = 20_000
ITEMS_AHEAD = 5_000
"""How many items one lane may be read ahead of another, so that little is held in memory."""
JOBS_KEPT = 16
MOST_COUNTED = 50_000
"""The most items that are counted by group: each has to be read once."""
MOST_FAILED = 20
MOST_LABELS = 8
"""How many labels of a dimension are told of, the most frequent ones: each interval takes a second at 50,000 items."""
ALL_ITEMS = "all items"
TEXT_A = "text A"


@dataclass(slots=True)
class _JudgedItem:
    group: str | None
    sides: tuple[str, str] | None
    """Who is compared with whom, of a pair that names them."""
    is_variant: bool
    scores: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By dimension and agent, one for each replicate that has one."""


@dataclass(slots=True)
class _Sizes:
    """How many items each group has, and in how many pairs each candidate is; empty if that is not known."""

    groups: Counter[str] = field(default_factory=Counter)
    sides: Counter[str] = field(default_factory=Counter)


class _RunningJob:
    """What has been read of one run of a job."""

    def __init__(self, job: str, layout: JobLayout) -> None:
        self.job, self.layout, self.lock = job, layout, threading.Lock()
        spec = layout.spec
        self._by = spec.groups[0] if spec.groups else ""
        self._side_keys = next((keys for keys in SIDE_METADATA if set(keys) <= set(spec.keep)), ())
        self._dimensions = [
            (at, ReportDimension.from_dimension(dimension), _interim_rule(spec.panel_of(dimension)))
            for at, dimension in enumerate(spec.dimensions)
        ]
        self._places = [(0, 0) for _ in layout.lanes]
        """Of each lane, the next page and the position of its first unit."""
        self._open: dict[int, _JudgedItem] = {}
        self._next_item = self._items = self._counted_at = 0
        self._scores: dict[tuple[int, str], list[float]] = {}
        self._unscored: Counter[tuple[int, str]] = Counter()
        self._scored: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._causes: Counter[tuple[str, str, int | None]] = Counter()
        self._messages: dict[tuple[str, str, int | None], str] = {}
        self._sizes: _Sizes | None = None
        self._charts: list[Chart] = []

    def so_far(self, dicast: Dicast) -> JobSoFar:
        self._read(dicast)
        if self._sizes is None and self._items:  # before that, its items may not lie where they are counted
            self._sizes = self._count_items(dicast)
        sizes = self._sizes or _Sizes()
        if self._items - self._counted_at > self._counted_at // 20:  # each time, all scores are gone through
            self._charts, self._counted_at = self._draw(sizes), self._items
        books = dicast.existing_ledger.job_books(self.job)
        lines = books.books if books is not None else ()
        kind = self._kind if self._charts and sizes.groups else "none"
        return JobSoFar(
            items=self._items,
            of=sizes.groups.total() or None,
            kind=kind,
            note=self._note(kind) if self._charts else "",
            charts=self._charts,
            judges=[
                JudgeSoFar(
                    name=agent.name, scored=self._scored[agent.name], failed=self._failed[agent.name],
                    cost=cost_of(line for line in lines if line.judge == agent.name).sentence(),
                )
                for agent in self.layout.spec.agents
            ],
            failed=[
                failure_row(judge, ErrorKind(kind), status, count, self._messages[judge, kind, status])
                for (judge, kind, status), count in self._causes.most_common(MOST_FAILED)
            ],
        )  # fmt: skip

    # -------------------------------------------------------------- reading
    def _read(self, dicast: Dicast) -> None:
        from dicast.app.reports.files import read_whole_page  # noqa: PLC0415  (takes long to load)

        units, root = 0, dicast.settings.results_dir
        for number, lane in enumerate(self.layout.lanes):
            page, first = self._places[number]
            while units < UNITS_READ and first // lane.units_per_item < self._next_item + ITEMS_AHEAD:
                whole_page = read_whole_page(root, self.job, self.layout.incarnation, str(number), page)
                if whole_page is None:
                    break
                opinions, errors = whole_page
                for position, opinion in enumerate(opinions, first):
                    self._add(lane.unit(position), opinion)
                for error in errors:
                    self._add_error(error)
                page, first, units = page + 1, first + len(opinions), units + len(opinions)
                self._places[number] = page, first
        lanes = zip(self.layout.lanes, self._places, strict=True)
        ended = min((first // lane.units_per_item for lane, (_, first) in lanes), default=0)
        while self._next_item < ended:
            self._close(self._open.pop(self._next_item))
            self._next_item += 1

    def _add(self, unit: Unit, opinion: Mapping[str, Any]) -> None:
        item = self._open.get(unit.item)
        if item is None:
            group = _text(opinion["metadata"].get(self._by)) if self._by else ALL_ITEMS
            is_variant = opinion.get("probe") is not None
            item = self._open[unit.item] = _JudgedItem(group, self._sides(opinion["metadata"]), is_variant)
        if item.is_variant:
            return
        if opinion["score"] is not None:
            self._scored[opinion["judge"]] += 1
            item.scores.setdefault((unit.dimension, unit.agent), []).append(opinion["score"])
        elif not opinion.get("not_needed"):
            self._failed[opinion["judge"]] += 1

    def _sides(self, metadata: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the names of the two that a pair compares, if the job keeps them."""
        first, second = [_text(metadata.get(key)) for key in self._side_keys] or [None, None]
        return (first, second) if first and second else None

    def _add_error(self, error: Mapping[str, Any]) -> None:
        if error.get("probe") is None:
            cause = error["judge"], error["kind"], error.get("status_code")
            self._causes[cause] += 1
            self._messages.setdefault(cause, error["message"][:MESSAGE_CHARS])

    def _close(self, item: _JudgedItem) -> None:
        """Count an item of which all units have ended."""
        if item.is_variant:
            return
        self._items += 1
        agents = self.layout.spec.agents
        for at, dimension, rule in self._dimensions:
            by_judge = {agents[agent].name: fmean(scores) for (d, agent), scores in item.scores.items() if d == at}
            score = rule.combined(by_judge)
            for name, value in _values(dimension, item, score):
                if name is not None and value is None:
                    self._unscored[at, name] += 1
                elif name is not None and value is not None:
                    self._scores.setdefault((at, name), []).append(value)

    # -------------------------------------------------------------- means
    @property
    def _kind(self) -> Literal["anytime", "certain"]:
        """Tell which intervals the order of the items allows for."""
        shuffle = arrangement_of(self.layout.spec).shuffle
        if shuffle is None or self.layout.spec.pairs is not None or not can_answer():  # pairs of a list come together
            return "certain"
        difference = self.layout.spec.question.difference if self.layout.spec.question is not None else None
        if difference is None:
            return "anytime"
        # It takes items of its two groups in turn, so only the order within these is random; labels are of all items.
        of_groups = difference.by == self._by and not any(dimension.nominal for _, dimension, _ in self._dimensions)
        return "anytime" if of_groups else "certain"

    def _count_items(self, dicast: Dicast) -> _Sizes:
        """Return how many items there are, without variants; nothing that cannot be counted from here."""
        from dicast.app.operator.rating import NoTexts, items_of  # noqa: PLC0415  (takes long to load)
        from dicast.app.reports.folders import job_folder  # noqa: PLC0415

        layout = self.layout
        of_unit = len(layout.spec.agents) * len(layout.spec.dimensions) * layout.spec.rounds
        arrangement, count = arrangement_of(layout.spec), layout.units // of_unit
        has_pairs = any(dimension.kind == "preference" for _, dimension, _ in self._dimensions)
        known = _Sizes() if self._by or arrangement.vary is not None else _Sizes(Counter({ALL_ITEMS: count}))
        if (known.groups and not has_pairs) or count > MOST_COUNTED:
            return known

        def metadata() -> Iterator[Mapping[str, Any]]:
            if arrangement.needed or isinstance(layout.spec.items, ItemSource):
                items = items_of(dicast, self.job, job_folder(dicast.settings.results_dir, self.job))
                yield from (item.metadata for item in items if item.probe is None)
            else:
                yield from dicast.existing_ledger.item_metadata(self.job)

        sizes = _Sizes()
        try:
            for each in metadata():
                sizes.groups[(_text(each.get(self._by)) or "") if self._by else ALL_ITEMS] += 1
                sizes.sides.update(set(self._sides(each) or (TEXT_A,)))
        except NoTexts:
            return known
        return sizes

    def _draw(self, sizes: _Sizes) -> list[Chart]:
        """Return the charts of the means and shares so far."""
        scored, shares, dimensions = [], [], []
        for at, dimension, _ in self._dimensions[:MOST_CHARTS]:
            names = sorted((name for d, name in self._scores if d == at), key=lambda g: -len(self._scores[at, g]))
            if not names:
                continue
            if dimension.kind == "preference":
                rows = [
                    self._share(name, self._scores[at, name], sizes.sides[name] - self._unscored[at, name])
                    for name in names[:MOST_ROWS]
                ]
                by = "" if names == [TEXT_A] else "candidate"
                shares.append(self._chart(dimension, by, "percent of comparisons won", rows))
            elif dimension.nominal:
                rows = self._label_shares(at, dimension, sizes.groups.total())
                shares.append(self._chart(dimension, "", "percent of labels", rows))
            else:
                rows = [self._mean(at, name, dimension, sizes.groups[name]) for name in names[:MOST_ROWS]]
                scored.append(self._chart(dimension, self._by, "percent of the scale", rows))
                dimensions.append(dimension)
        return [*on_one_axis(scored, dimensions), *shares]

    def _mean(self, at: int, group: str, dimension: ReportDimension, items: int) -> Mark:
        scores, population = self._scores[at, group], items - self._unscored[at, group]
        figure = self._figure(scores, (dimension.scale_min, dimension.scale_max), population)
        return scale_mark(group, len(scores), figure, dimension)

    def _label_shares(self, at: int, dimension: ReportDimension, items: int) -> list[Mark]:
        """Return the share of all items that the panel gives each label, the most frequent ones."""
        scores, population = self._scores[at, ALL_ITEMS], items - self._unscored[at, ALL_ITEMS]
        counts = Counter(scores)
        places = sorted(range(len(dimension.labels)), key=lambda place: -counts[dimension.scale_min + place])
        return [
            self._share(
                dimension.labels[place], [float(score == dimension.scale_min + place) for score in scores], population
            )
            for place in places[:MOST_LABELS]
        ]

    @staticmethod
    def _chart(dimension: ReportDimension, by: str, unit: ChartUnit, rows: list[Mark]) -> Chart:
        return Chart(
            title=title(dimension), dimension=dimension.id, by=by, opinion="judges", unit=unit,
            rows=sorted(rows, key=lambda mark: -(mark.place or 0.0)),
        )  # fmt: skip

    def _share(self, name: str, shares: list[float], population: int) -> Mark:
        return share_mark(name, len(shares), self._figure(shares, (0, 1), population))

    def _figure(self, scores: list[float], bounds: tuple[int, int], population: int) -> Figure:
        """Return the mean of the scores so far, with the interval of the mean of all that the population will have."""
        low, high = bounds
        value, count = fmean(scores), len(scores)
        if population < count:
            return Figure.combined(value, "mean", items=count)
        if self._kind == "anytime":
            import numpy as np  # noqa: PLC0415  (takes long to load, and is an extra)

            from dicast.app.analysis.estimates import Estimate  # noqa: PLC0415
            from dicast.app.analysis.sequences import interim_mean  # noqa: PLC0415

            estimate = interim_mean(np.asarray(scores, float), (low, high), population)
            ends = (estimate.low, estimate.high) if isinstance(estimate, Estimate) else (None, None)
            return Figure.combined(value, "betting", low=ends[0], high=ends[1], items=count)
        rest, whole = population - count, sum(scores)
        least, most = ((whole + rest * end) / population for end in (low, high))
        return Figure.combined(value, "bounds", low=least, high=most, items=count)

    def _note(self, kind: Literal["anytime", "certain", "none"]) -> str:
        whole = f" of {self._sizes.groups.total():,}" if self._sizes and self._sizes.groups else ""
        count = f"{self._counted_at:,}{whole}"
        units = {chart.unit for chart in self._charts}
        if units == {"percent of comparisons won"}:
            plural, name = "pairs", "the share of all pairs" + (" of a candidate" if self._side_keys else "")
            sentence = f"So far, in the judges' opinion: shares won of the {count} pairs that all have judged"
        else:
            figures = []
            if "percent of the scale" in units:
                figures.append(("means", f"the mean of all items of {f'its {self._by}' if self._by else 'the job'}"))
            if "percent of labels" in units:
                figures.append(("labels", "the share of a label among all items"))
            plural, name = "items", " or ".join(name for _, name in figures)
            kinds = " and ".join(kind for kind, _ in figures)
            sentence = f"So far, in the judges' opinion: {kinds} of the {count} items that all have judged"
        if kind == "anytime":
            return (
                f"{sentence}, in random order. An interval is of {name} that get a score, and holds with 95 %, however "
                "often one looks."
            )
        if kind == "certain":
            return (
                f"{sentence}, which are not taken for a random sample of all. An interval is where {name} that "
                "get a score will lie, whatever the others get."
            )
        return f"{sentence}; how far they may be from those of all {plural} cannot be told from here."


def _values(
    dimension: ReportDimension, item: _JudgedItem, score: float | None
) -> Iterator[tuple[str | None, float | None]]:
    """Yield what counts for each group or candidate; a label without an order counts among all items."""
    if dimension.kind == "preference":
        yield from _shares(item, score)
    else:
        yield (ALL_ITEMS if dimension.nominal else item.group), score


def _shares(item: _JudgedItem, score: float | None) -> Iterator[tuple[str, float | None]]:
    """Yield what each side of a pair has won: 1, 0, or a half of a tie."""
    won = None if score is None else (1.0 if score > 0 else 0.0 if score < 0 else 0.5)
    if item.sides is None:
        yield TEXT_A, won
    elif item.sides[0] != item.sides[1]:
        yield item.sides[0], won
        yield item.sides[1], None if won is None else 1 - won


def _interim_rule(rule: PanelRule) -> PanelRule:
    """Return the rule by which a panel's scores can be combined before the job has ended: the mean, where the rule
    learns from the whole job, or says only whether an item passes."""
    return PanelRule() if rule.learns or rule.threshold is not None else rule


def _text(value: object) -> str | None:
    """Return the value of a metadata as results have it."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
