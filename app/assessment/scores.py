"""A job's scores as arrays, wherever they were read from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dicast.app.domain.calibrated import Fit
from dicast.app.domain.calibration import Calibration
from dicast.app.domain.probes import MeasuredProbeName
from dicast.app.domain.question import JobAnswer
from dicast.app.domain.report import ReportDimension
from dicast.app.statistics.agreement import Level
from dicast.app.statistics.arrays import Bools, Floats, Ints
from dicast.app.statistics.combining import combine_majority, combine_mean

MOST_LEVELS = 20
"""Tables with more levels say no more than correlations do, and their memory grows with the square."""


@dataclass(frozen=True, slots=True)
class People:
    """People's ratings of one dimension. `scores` (rated items x raters, NaN where missing) are those of the items
    with the indices `rated`.

    `probabilities` is the probability with which each rated item was drawn, None if unknown. `flaw` says why known
    probabilities cannot be used.
    """

    rated: Ints
    raters: tuple[str, ...]
    scores: Floats
    probabilities: Floats | None = None
    flaw: str | None = None

    def means(self, items: int) -> Floats:
        """Return people's mean for each of all items, NaN where nobody rated."""
        result = np.full(items, np.nan)
        if self.raters:
            result[self.rated] = combine_mean(self.scores)
        return result

    def among(self, chosen: Bools) -> People:
        """Return the ratings of the chosen ones of all items, with the items' indices among the chosen."""
        inside = chosen[self.rated]
        chances = None if self.probabilities is None else self.probabilities[inside]
        places = (np.cumsum(chosen) - 1)[self.rated[inside]]
        return replace(self, rated=places, scores=self.scores[inside], probabilities=chances)

    def chances(self, items: int) -> Floats | None:
        """Return the probability with which each of all items was drawn, NaN where it is unknown."""
        if self.probabilities is None:
            return None
        result = np.full(items, np.nan)
        result[self.rated] = self.probabilities
        return result


NOBODY = People(np.empty(0, dtype=np.int64), (), np.empty((0, 0)))


def nothing() -> Floats:
    """Return the scores of no variants."""
    return np.empty((0, 0, 0))


@dataclass(frozen=True, slots=True)
class DimensionScores:
    """One dimension: the judges' scores (items x judges x replicates, NaN where missing), people's ratings, and the
    judges' scores of variants (variants x judges x replicates).

    For pairs that were judged in both orders, `orders` has the scores in each order (... x replicates x 2, the given
    order first), in favour of the pair's own A, and `scores` has both combined.
    """

    spec: ReportDimension
    scores: Floats
    people: People = NOBODY
    fits: Sequence[Fit] = ()
    """How the job's calibration fits each judge and, of several, the panel; none without a calibration."""
    orders: Floats | None = None
    varied: Floats = field(default_factory=nothing)
    skipped: Sequence[int] = ()
    """How many opinions of each judge an escalating panel did not need; empty where it asked everybody."""
    audited: Bools | None = None
    """On which items an escalating panel asked everybody all the same; None where it has no audit."""

    @property
    def asked_everywhere(self) -> Bools:
        """Which judges were asked about all items. The others were asked only about items on which the judges before
        had not settled the outcome, and these are no sample of all items."""
        return np.array([count == 0 for count in self.skipped] or [True] * self.scores.shape[1])

    @property
    def of_audit(self) -> DimensionScores | None:
        """The scores on the items of the audit, without their variants, None if there is no audit. All judges were
        asked about these items, which are a random sample of all, so they are representative for all judges."""
        if self.audited is None or not self.audited.any():
            return None
        return replace(
            self, scores=self.scores[self.audited], people=self.people.among(self.audited), varied=nothing(),
            orders=None if self.orders is None else self.orders[self.audited], skipped=(), audited=None,
        )  # fmt: skip

    @property
    def judges(self) -> Floats:
        """Each judge's mean over the replicates (items x judges)."""
        items, judges, replicates = self.scores.shape
        return combine_mean(self.scores.reshape(items * judges, replicates)).reshape(items, judges)

    @property
    def answers(self) -> Floats:
        """All scores of each judge (items x judges x rounds): each order of a pair is a round of its own."""
        return self.scores if self.orders is None else self.orders.reshape(*self.orders.shape[:2], -1)

    @property
    def labels(self) -> Floats:
        """Each judge's commonest score over the replicates (items x judges), for statistics that count labels and
        take no means."""
        items, judges, replicates = self.scores.shape
        if replicates == 1:
            return self.scores[:, :, 0]
        return combine_majority(self.scores.reshape(items * judges, replicates)).reshape(items, judges)

    @property
    def bounds(self) -> tuple[float, float]:
        return float(self.spec.scale_min), float(self.spec.scale_max)

    @property
    def levels(self) -> Floats | None:
        """The values of the scale, None if there are too many for a table."""
        low, high = self.spec.scale_min, self.spec.scale_max
        few = high - low < MOST_LEVELS or self.spec.kind == "labels"
        return np.arange(low, high + 1, dtype=np.float64) if few else None

    @property
    def level(self) -> Level:
        if self.spec.nominal:
            return "nominal"
        return "ordinal" if self.levels is not None else "interval"


def settled_orders(orders: Floats) -> Floats:
    """Combine the preferences in both orders (... x 2) into one, as app/domain/preference.py does, for arrays."""
    both = np.nan_to_num(orders)
    preferred = (both != 0).sum(axis=-1)
    turned = both.prod(axis=-1) < 0
    settled = np.where(turned, 0.0, both.sum(axis=-1) / preferred.clip(1))
    return np.where(np.isnan(orders).all(axis=-1), np.nan, settled)


@dataclass(frozen=True, slots=True)
class Labels:
    """The label of each item as an index into `names`; -1 for an item without a label."""

    names: tuple[str, ...]
    codes: Ints


@dataclass(frozen=True, slots=True)
class VariedItems:
    """The variants of items that were judged for probes: what was changed (an index into `labels`) in which `item`."""

    labels: tuple[str, ...]
    label: Ints
    item: Ints

    def with_labels(self, labels: Collection[str]) -> Bools:
        """Return which variants have one of these labels."""
        return np.isin(self.label, [code for code, label in enumerate(self.labels) if label in labels])


@dataclass(frozen=True, slots=True)
class Kinship:
    """The model families of the items' authors and of the judges (None if unknown)."""

    authors: Labels
    judges: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """A job that ended before all its `items` were judged, because its question was answered."""

    job_answer: JobAnswer
    items: int


@dataclass(frozen=True, slots=True)
class JobScores:
    """All scores of a job.

    `groups` are the metadata by which items are grouped, `cluster` says which items belong together (None: each is its
    own cluster), `probes` has what each measuring probe found of each item (NaN if unknown), `variants` are the
    variants that were judged, and `kinship` has the families of models, if the job's probes need them.
    """

    items: int
    judges: tuple[str, ...]
    dimensions: tuple[DimensionScores, ...]
    groups: Mapping[str, Labels] = field(default_factory=dict)
    cluster: tuple[str, Ints] | None = None
    probes: Mapping[MeasuredProbeName, Floats] = field(default_factory=dict)
    calibration: Calibration | None = None
    sides: tuple[Labels, Labels] | None = None
    """Who is A and who is B in each pair, if the job kept it."""
    lists: Ints | None = None
    """The list of candidates that each pair belongs to, if the job kept it."""
    halves: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """The half that each item belongs to, if a panel's rule learns from halves."""
    variants: VariedItems | None = None
    kinship: Kinship | None = None
    stopped: StoppedJob | None = None
