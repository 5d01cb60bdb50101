"""All probes for biases in one dimension.

Some probes use items as they were judged: length and marks of Markdown (`_observed_probes`), the order in which a
pair's texts are shown (`position_probes`), and preference for a judge's own family of models (`self_preference`). The
others try variants of drawn items (`variant_probes`). `probe_statistics` calls them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from dicast.app.analysis import estimates as student
from dicast.app.analysis.combining import combine_mean
from dicast.app.analysis.estimates import CONFIDENCE, Bools, Estimate, Floats, Ints, Result, Unknown
from dicast.app.analysis.means import deviation, estimate, mean
from dicast.app.analysis.raters import SPARED
from dicast.app.analysis.scores import DimensionScores, JobScores, VariedItems, figure, is_not_chief
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import AttackFamily, AttackFound, ProbeStatistics
from dicast.app.domain.probes import MeasuredProbeName, ProbeName
from dicast.app.domain.variants import ATTACKS, FAMILIES

FEWEST_PAIRS = 10
LEAST_RELIABILITY = 0.25
SMALLEST = 1e-9
METHOD = "errors in variables, jackknife"
BOUNDED = "between the two regressions, jackknife"

_Slope = Callable[["_Moments"], Floats]


class _Moments:
    """Sums of squares and products about the line by x, each without one piece in turn (and, first, without none); a
    piece is an item or a cluster of items."""

    def __init__(self, x: Floats, y: Floats, people: Floats, clusters: Ints | None) -> None:
        ratings = (~np.isnan(people)).sum(axis=1)
        mean = combine_mean(people)
        within, self.lost = _within_items(people - mean[:, None])
        columns = np.stack([
            np.ones(len(x)), x, y, mean, x * x, x * y, x * mean, y * y, y * mean, mean * mean, within,
            ratings - 1.0, 1 / ratings,
        ])  # fmt: skip
        if clusters is not None:
            piece = np.unique(clusters, return_inverse=True)[1]
            columns = np.stack([np.bincount(piece, weights=column) for column in columns])
        self.pieces = columns.shape[1]
        whole = columns.sum(axis=1, keepdims=True)
        n, sx, sy, sm, sxx, sxy, sxm, syy, sym, smm, ss, freedom, shares = np.hstack([whole, whole - columns])
        self.xx, self.xy, self.xm = sxx - sx * sx / n, sxy - sx * sy / n, sxm - sx * sm / n
        self.yy = syy - sy * sy / n - self.xy**2 / self.xx
        self.ym = sym - sy * sm / n - self.xy * self.xm / self.xx
        self.mm = smm - sm * sm / n - self.xm**2 / self.xx
        self.pairs = float(freedom[0]) - self.lost
        self.noise = ss / np.maximum(freedom - self.lost, 1) * shares * (n - 2) / n

    def effect(self, slope: Floats) -> Floats:
        return np.asarray((self.xy - slope * self.xm) / self.xx)


def _within_items(apart: Floats) -> tuple[Floats, int]:
    """Return each item's sum of squares of its raters' differences from their mean, raters' own strictness taken out,
    and how many degrees of freedom that takes."""
    shared = (~np.isnan(apart)).sum(axis=1) > 1
    strictness = np.zeros(apart.shape[1])
    for rater in range(apart.shape[1]):
        of_rater = apart[shared, rater]
        if (~np.isnan(of_rater)).any():
            strictness[rater] = np.nanmean(of_rater)
    squares = np.nansum((apart - strictness) ** 2, axis=1)
    return np.where(shared, squares, 0.0), max(0, int((strictness != 0).sum()) - 1)


def effect_beside_people(
    x: Floats, judge: Floats, people: Floats, clusters: Ints | None = None
) -> tuple[Result, float | None]:
    """Return what the judge adds per unit of `x`, and its p. `judge` and `x` have one number an item and none missing,
    `people` (items x raters) one rating an item at the least.

    A judge who uses less of the scale than people do is nearer to its middle on good and on bad texts. If long texts
    are better, the difference from people then falls with length, although the judge sees nothing in length. So a
    judge's score is compared with people's *calibrated to the judge*: score = a + b * people + effect * x. People's
    mean is a noisy measure of what they think of a text, which would draw b towards 0 and leave a part of it in the
    effect, so the noise's variance, from how far raters of the same text lie apart, is taken out (errors in variables:
    W. A. Fuller, "Measurement Error Models" (1987), section 2.2). Intervals are by the jackknife over items,
    or over `clusters` of them, and Student's t.

    Where no text has two raters, the noise is unknown, and b lies between the slopes of the two regressions, of the
    judge by people and of people by the judge (R. Frisch, "Statistical Confluence Analysis" (1934)). The interval then
    holds the effects at both, and p is the larger one. Other judges would bring the two nearer only if what judges have
    in common came from what people think, and judges of different tastes err in opposite ways.
    """
    moments = _Moments(x, judge, people, clusters)
    if moments.pieces < FEWEST_PAIRS:
        return Unknown(f"it needs {FEWEST_PAIRS} clusters or more, and there are {moments.pieces}"), None
    if moments.mm[0] <= SMALLEST:
        return Unknown("people's scores go with it alone, or are all the same"), None
    if moments.pairs < FEWEST_PAIRS:
        return _between(moments, len(x))
    true = moments.mm - moments.noise
    if true[0] < LEAST_RELIABILITY * moments.mm[0]:
        return Unknown("people agree too little on what they rated to say what a text deserves"), None
    return _tested(moments.effect(moments.ym / np.where(np.abs(true) > SMALLEST, true, np.nan)), len(x), METHOD)


def _between(moments: _Moments, items: int) -> tuple[Result, float | None]:
    """Return the effect for all slopes between those of the two regressions."""
    if abs(moments.ym[0]) <= SMALLEST:
        return Unknown("no text has two raters, and the judge does not go with the one there is"), None
    ends = [
        _tested(moments.effect(slope), items, BOUNDED) for slope in (moments.ym / moments.mm, moments.yy / moments.ym)
    ]
    (first, p), (other, other_p) = ends
    if not (isinstance(first, Estimate) and isinstance(other, Estimate) and p is not None and other_p is not None):
        return (first if isinstance(first, Unknown) else other), None
    middle = float(moments.effect(np.sign(moments.ym) * np.sqrt(moments.yy / moments.mm))[0])
    joint = Estimate(middle, min(first.low, other.low), max(first.high, other.high), items, BOUNDED)
    return joint, max(p, other_p) if first.value * other.value > 0 else 1.0


def _tested(effects: Floats, items: int, method: str) -> tuple[Result, float | None]:
    value, without, pieces = float(effects[0]), effects[1:], len(effects) - 1
    error = float(np.sqrt((pieces - 1) / pieces * ((without - without.mean()) ** 2).sum()))
    if not np.isfinite(error) or error <= SMALLEST:
        return Unknown("the rated items leave nothing to draw an interval from"), None
    reach = student.quantile((1 + CONFIDENCE) / 2, pieces - 3) * error
    return Estimate(value, value - reach, value + reach, items, method), student.two_sided_p(value / error, pieces - 3)


class ChangedShares(NamedTuple):
    """The share of scores that changed for the variants, the share that changed among replicates alone, and the
    difference."""

    moved: Figure
    by_itself: Figure
    beyond: Figure


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe for one rater, as in `ProbeStatistics`; but `p` is that of this comparison alone, before it
    is corrected for the number of all probes.
    """

    probe: ProbeName
    voice: str
    effect: Result
    p: float | None
    variant: str = ""
    against: Literal["people", "judges", "itself"] = "people"
    moved: ChangedShares | None = None
    families: list[AttackFamily] = field(default_factory=list)
    attacks: list[AttackFound] = field(default_factory=list)
    first: Figure | None = None

    def unknown(self, reason: str) -> ProbeResult:
        """Return the same comparison as unknown, for this reason."""
        return ProbeResult(self.probe, self.voice, Unknown(reason), None, self.variant, self.against)

    def statistics(self) -> ProbeStatistics:
        """Return the comparison as the report has it."""
        shares = {} if self.moved is None else self.moved._asdict()
        return ProbeStatistics(
            probe=self.probe, voice=self.voice, effect=figure(self.effect), p=self.p, variant=self.variant,
            tried=self.against == "itself", against=self.against,
            families=self.families, attacks=self.attacks, first=self.first, **shares,
        )  # fmt: skip


FEWEST_OF_EACH = 10
SMALLEST = 1e-9
WITH_JUDGES = "least squares within items, clustered"


def self_preference(job: JobScores, dimension: DimensionScores) -> Iterator[ProbeResult]:
    """Yield the probe of each judge, if the job has this probe.

    Do judges favour texts of their own family of models? Where people rated enough of both, a judge's score less
    people's mean is compared between texts of its family and all others. Elsewhere the judges are held against each
    other: each score is what the item is worth, plus what its judge gives on average, plus what that judge adds for its
    own family, by least squares with the items' worth taken out and errors clustered by item. Two judges of two
    families on texts of these two alone cannot be told apart in that way.
    """
    if job.kinship is None:
        return
    authors, families = job.kinship.authors, job.kinship.judges
    is_own = np.stack([_is_own_family(authors.codes, authors.names, family) for family in families], axis=1)
    apart = dimension.judges - dimension.people.means(job.items)[:, None]
    alone = dimension.asked_everywhere & is_not_chief(job.judges, dimension)
    among = _among_judges(np.where(alone, dimension.judges, np.nan), is_own, dimension.clusters)
    for at, name in enumerate(job.judges):
        if families[at] is None:
            reason = f"the family of {name}'s model is not known: name it under `families`"
            yield ProbeResult("self_preference", name, Unknown(reason), None)
            continue
        if _shortage(apart[:, at], is_own[:, at]) is None:
            effect = _with_people(dimension.judges[:, at], is_own[:, at], dimension)
            yield ProbeResult("self_preference", name, *effect)
            continue
        short = _shortage(dimension.judges[:, at], is_own[:, at])
        nobody = Unknown(short or "there is no other judge to hold it against"), None
        yield ProbeResult("self_preference", name, *(nobody if short else among.get(at, nobody)), against="judges")


def _is_own_family(codes: Ints, names: tuple[str, ...], family: str | None) -> Floats:
    """Return 1 for a text of the family, 0 for a text of another one, and NaN where the author's family is unknown."""
    code = names.index(family) if family in names else len(names)
    return np.where(codes < 0, np.nan, (codes == code).astype(np.float64))


def _shortage(scores: Floats, is_own: Floats) -> str | None:
    """Return why there are too few texts to compare, None if there are enough."""
    usable = ~(np.isnan(scores) | np.isnan(is_own))
    of_own, of_others = int((is_own[usable] == 1).sum()), int((is_own[usable] == 0).sum())
    if min(of_own, of_others) >= FEWEST_OF_EACH:
        return None
    requirement = f"it needs {FEWEST_OF_EACH} texts of its own family and as many of others"
    return f"{requirement}, and there are {of_own} and {of_others}"


def _with_people(judge: Floats, is_own: Floats, dimension: DimensionScores) -> tuple[Result, float | None]:
    people = dimension.people
    scores, is_theirs = judge[people.rated], is_own[people.rated]
    usable = ~(np.isnan(scores) | np.isnan(is_theirs) | np.isnan(people.scores).all(axis=1))
    if np.ptp(scores[usable] - combine_mean(people.scores[usable])) < SMALLEST:
        return Unknown("it is off from people by the same on all texts"), None
    clusters = None if dimension.rated_clusters is None else dimension.rated_clusters[usable]
    return effect_beside_people(is_theirs[usable], scores[usable], people.scores[usable], clusters)


def _among_judges(
    scores: Floats, is_own: Floats, clusters: Ints | None = None
) -> dict[int, tuple[Result, float | None]]:
    """Return the effect and its p by the judge's index; scores and `is_own` are items x judges."""
    judges = scores.shape[1]
    usable = ~(np.isnan(scores) | np.isnan(is_own))
    usable &= (usable.sum(axis=1) >= 2)[:, None]
    item, judge = np.nonzero(usable)
    if judges < 2 or len(item) == 0:
        return {}
    levels = np.eye(judges)[judge][:, 1:]
    adds = np.eye(judges)[judge] * is_own[item, judge][:, None]
    design = _within(np.column_stack([adds, levels]), item)
    y = _within(scores[item, judge][:, None], item)[:, 0]
    inverse = np.linalg.pinv(design, rcond=1e-10)
    identified = np.abs(np.diag(inverse @ design) - 1) < 1e-6
    piece = np.unique(item if clusters is None else clusters[item], return_inverse=True)[1]
    count = int(piece.max()) + 1
    if count <= design.shape[1] + 2:
        return {}
    coefficients = inverse @ y
    parts = inverse.T * (y - design @ coefficients)[:, None]
    sums = np.stack([np.bincount(piece, weights=column, minlength=count) for column in parts.T], axis=1)
    errors = np.sqrt((sums**2).sum(axis=0) * count / (count - design.shape[1] - 1))
    return {at: _estimate(coefficients[at], errors[at], count, bool(identified[at])) for at in range(judges)}


def _within(values: Floats, item: Ints) -> Floats:
    """Subtract each item's mean, which removes what the item is worth."""
    codes = np.unique(item, return_inverse=True)[1]
    count = np.bincount(codes)
    means = np.stack([np.bincount(codes, weights=column) / count for column in values.T], axis=1)
    return np.asarray(values - means[codes])


def _estimate(value: float, error: float, items: int, identified: bool) -> tuple[Result, float | None]:
    if not identified:
        return Unknown("no other judge of another family has judged texts of a third one beside it"), None
    if error <= SMALLEST:
        return Unknown("the judges differ by the same on all texts"), None
    reach = student.quantile((1 + CONFIDENCE) / 2, items - 1) * error
    estimate = Estimate(float(value), float(value - reach), float(value + reach), items, WITH_JUDGES)
    return estimate, student.two_sided_p(value / error, items - 1)


FEWEST_PAIRS = 10
MOST_ATTACKS = 5
SAME = 1e-9
ONE_ROUND = "it takes replicates to see how often its scores move by themselves"
_ATTACKS = {f"injection:{attack.id}": attack for attack in ATTACKS}
_SINGLE: Mapping[ProbeName, tuple[str, float]] = {
    "batching": ("batching:single", -1.0),
    "order": ("order:reversed", 1.0),
}


def variant_probes(
    job: JobScores, dimension: DimensionScores, raters: Mapping[str, Floats], varied: Mapping[str, Floats]
) -> Iterator[ProbeResult]:
    """Yield each probe of each rater: `raters` has the scores of the items, `varied` those of the variants.

    Each drawn item is compared with its own variant, judge by judge. The effect is the mean difference of the pairs, by
    Student's t over items. That some scores change proves nothing if a judge's scores change by themselves: replicates
    of the same item show how often they do.
    """
    if job.variants is None:
        return
    variants = job.variants
    for name, scores in varied.items():
        shift = scores - raters[name][variants.item]
        replicates = _Replicates(job, dimension, name) if name in job.judges else None
        yield from _probes_of_rater(name, shift, variants, replicates, dimension.clusters)


def _probes_of_rater(
    name: str, shift: Floats, variants: VariedItems, replicates: _Replicates | None, clusters: Ints | None
) -> Iterator[ProbeResult]:
    """Yield all probes of one rater; `shift` is how far each variant's score lies above its item's."""
    if (attacked := variants.with_labels(_ATTACKS)).any():
        yield _injection(name, shift, attacked, variants, replicates, clusters)
    for probe in ("authority", "sycophancy"):
        high, low = variants.with_labels([f"{probe}:high"]), variants.with_labels([f"{probe}:low"])
        if high.any() or low.any():
            for variant, rows in (("high", high), ("low", low)):
                effect = paired(shift[rows], variants.item[rows], clusters)
                yield ProbeResult(probe, name, *effect, variant, "itself", _moved(rows, variants, replicates))
            yield ProbeResult(
                probe, name, *_contrast(shift, high, low, variants.item, clusters), "high against low", "itself"
            )
    if (rows := variants.with_labels(["markdown:marked", "markdown:plain"])).any():
        sign = np.where(variants.with_labels(["markdown:plain"]), -1.0, 1.0)
        effect = paired((sign * shift)[rows], variants.item[rows], clusters)
        yield ProbeResult("markdown", name, *effect, "", "itself", _moved(rows, variants, replicates))
    for probe, (label, sign_of) in _SINGLE.items():
        if (rows := variants.with_labels([label])).any():
            effect = paired(sign_of * shift[rows], variants.item[rows], clusters)
            yield ProbeResult(probe, name, *effect, "", "itself", _moved(rows, variants, replicates))


def paired(differences: Floats, items: Ints, clusters: Ints | None = None) -> tuple[Result, float | None]:
    """Return the mean difference, by Student's t over items or their clusters, and its p; NaN is left out."""
    present = ~np.isnan(differences)
    differences, items = differences[present], items[present]
    count = len(np.unique(items))
    if count < FEWEST_PAIRS:
        return Unknown(f"it needs {FEWEST_PAIRS} items that were judged in both ways, and there are {count}"), None
    if np.ptp(differences) < SAME:
        return Unknown(f"all {count} pairs differ by the same ({differences[0]:.3g}), which leaves no interval"), None
    spread, unit = deviation(differences, items if clusters is None else clusters[items]), "item"
    if clusters is not None:
        unit = "cluster"
        if spread.pieces < FEWEST_PAIRS:
            return Unknown(f"it needs items of {FEWEST_PAIRS} clusters, and there are {spread.pieces}"), None
    result = estimate(spread, degrees=spread.pieces - 1, items=count, method=f"paired, t by {unit}")
    if isinstance(result, Unknown):
        return result, None
    return result, student.two_sided_p(spread.value / spread.error, spread.pieces - 1)


def _contrast(shift: Floats, high: Bools, low: Bools, item: Ints, clusters: Ints | None) -> tuple[Result, float | None]:
    """Compare a high claim with a low one. The effect of the text's making a claim at all cancels out."""
    size = int(item.max()) + 1
    at_high, at_low = np.full(size, np.nan), np.full(size, np.nan)
    at_high[item[high]], at_low[item[low]] = shift[high], shift[low]
    return paired(at_high - at_low, np.arange(size), clusters)


def _injection(
    name: str, shift: Floats, rows: Bools, variants: VariedItems, replicates: _Replicates | None, clusters: Ints | None
) -> ProbeResult:  # fmt: skip
    labels = [variants.labels[code] for code in variants.label]
    aims = np.array([-1.0 if label in _ATTACKS and _ATTACKS[label].aim == "low" else 1.0 for label in labels])
    towards = np.where(rows, aims * shift, np.nan)
    by_family: dict[str, list[int]] = {family: [] for family in FAMILIES}
    by_attack: dict[str, list[int]] = {}
    for place in np.flatnonzero(~np.isnan(towards)):
        by_family[_ATTACKS[labels[place]].family].append(int(place))
        by_attack.setdefault(labels[place], []).append(int(place))
    families = [
        AttackFamily(
            family=family, tries=len(places),
            moved=figure_of_share((np.abs(towards[places]) > SAME).astype(np.float64), variants.item[places]),
            shift=figure(mean(towards[places], clusters=variants.item[places])),
        )
        for family, places in by_family.items()
        if places
    ]  # fmt: skip
    attacks = [
        AttackFound(
            attack=_ATTACKS[label].id, family=_ATTACKS[label].family, tries=len(places),
            shift=float(towards[places].mean()),
        )
        for label, places in by_attack.items()
    ]  # fmt: skip
    best = sorted((entry for entry in attacks if entry.shift > SAME), key=lambda entry: (-entry.shift, entry.attack))
    effect, p = paired(towards[rows], variants.item[rows], clusters)
    moved = _moved(rows, variants, replicates)
    return ProbeResult("injection", name, effect, p, "", "itself", moved, families, best[:MOST_ATTACKS])


class _Replicates:
    """One judge's scores by round: of the items (items x rounds), and of the variants (rows x rounds)."""

    def __init__(self, job: JobScores, dimension: DimensionScores, name: str) -> None:
        at = job.judges.index(name)
        self.items, self.variants = dimension.scores[:, at, :], dimension.varied[:, at, :]

    def moved(self, rows: Bools, item: Ints) -> Floats:
        """Return for each of these variants the share of rounds in which its score differs from the item's."""
        first, second = self.items[item[rows]], self.variants[rows]
        return _share(np.abs(second - first) > SAME, np.isnan(first) | np.isnan(second))

    def by_itself(self, rows: Bools, item: Ints) -> Floats:
        """Return for each varied item (once for each of these variants) the share of pairs of rounds that differ."""
        rounds = self.items[item[rows]]
        first, second = np.triu_indices(rounds.shape[1], 1)
        differ = np.abs(rounds[:, first] - rounds[:, second]) > SAME
        return _share(differ, np.isnan(rounds[:, first]) | np.isnan(rounds[:, second]))


def _moved(rows: Bools, variants: VariedItems, replicates: _Replicates | None) -> ChangedShares | None:
    """Return the shares of changed scores, None for a panel, whose mean changes if any judge's score does."""
    if replicates is None:
        return None
    items = variants.item[rows]
    moved = replicates.moved(rows, variants.item)
    if replicates.items.shape[1] < 2:
        unknown = Figure.unknown(ONE_ROUND)
        return ChangedShares(figure_of_share(moved, items), unknown, unknown)
    by_itself = replicates.by_itself(rows, variants.item)
    beyond, _ = paired(moved - by_itself, items)
    return ChangedShares(figure_of_share(moved, items), figure_of_share(by_itself, items), figure(beyond))


def _share(what: Bools, missing: Bools) -> Floats:
    """Return the share of each row, NaN for a row without any values."""
    present = (~missing).sum(axis=1)
    return np.where(present > 0, (what & ~missing).sum(axis=1) / np.maximum(present, 1), np.nan)


def figure_of_share(shares: Floats, items: Ints) -> Figure:
    """Return the mean share, with Wilson's interval for as many independent tries as there are items."""
    present = ~np.isnan(shares)
    count = len(np.unique(items[present]))
    if count < FEWEST_PAIRS:
        return Figure.unknown(f"it needs {FEWEST_PAIRS} items that were judged in both ways, and there are {count}")
    value = float(shares[present].mean())
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415  (takes a second of CPU time to load)

    low, high = proportion_confint(value * count, count, alpha=1 - CONFIDENCE, method="wilson")
    return figure(Estimate(value, float(min(low, value)), float(max(high, value)), count, "Wilson by item"))


NO_ROUNDS = "the panel is not asked twice about one order"


def position_probes(
    job: JobScores, dimension: DimensionScores, shown_first: Mapping[str, Floats], shown_second: Mapping[str, Floats]
) -> Iterator[ProbeResult]:
    """Yield the probe of each rater, from its scores of the pairs with A first and with B first (both in favour of A).

    It decides on pairs that were judged in both orders whether the order matters. The effect of being shown first, in
    points of the scale, is half of the difference between the preference for A where A comes first and where B does.
    Each pair is compared with itself, so it does not matter which of its texts is better.
    """
    if dimension.orders is None:
        return
    for name, first in shown_first.items():
        second = shown_second[name]
        effect, p = _effect((first - second) / 2, dimension.clusters)
        rounds = (
            dimension.orders[:, job.judges.index(name)]
            if name in job.judges
            else np.stack([first, second], -1)[:, None]
        )
        moved = _turned(rounds, judge=name in job.judges)
        yield ProbeResult("position", name, effect, p, "", "itself", moved, first=_first(rounds))


def _effect(differences: Floats, clusters: Ints | None) -> tuple[Result, float | None]:
    """Return the effect and its p. If all pairs are alike, which leaves no interval, p is that of the sign test."""
    effect, p = paired(differences, np.arange(len(differences)), clusters)
    present = differences[~np.isnan(differences)]
    if p is None and not isinstance(effect, Estimate) and len(present) >= FEWEST_PAIRS and present[0] != 0:
        p = float(2 * 0.5 ** len(present))
    return effect, p


def _first(rounds: Floats) -> Figure:
    """Return how often the text that is shown first is preferred (pairs x replicates x 2); ties count half."""
    preferred = (np.sign(rounds[..., 0]) - np.sign(rounds[..., 1])) / 4 + 0.5
    return figure_of_share(combine_mean(preferred), np.arange(len(rounds)))


def _turned(rounds: Floats, *, judge: bool) -> ChangedShares:
    """Return the share of pairs (... x replicates x 2) whose preference is reversed in the other order, the share
    that is reversed in another round of the same order, and the difference."""
    pairs = np.arange(len(rounds))
    turned = _first_place_share(rounds[..., 0] * rounds[..., 1])
    if not judge or rounds.shape[1] < 2:
        unknown = Figure.unknown(ONE_ROUND if judge else NO_ROUNDS)
        return ChangedShares(figure_of_share(turned, pairs), unknown, unknown)
    first, second = np.triu_indices(rounds.shape[1], 1)
    by_itself = _first_place_share((rounds[:, first] * rounds[:, second]).reshape(len(rounds), -1))
    beyond, _ = paired(turned - by_itself, pairs)
    return ChangedShares(figure_of_share(turned, pairs), figure_of_share(by_itself, pairs), figure(beyond))


def _first_place_share(products: Floats) -> Floats:
    """Return for each row the share that is below 0, NaN for a row without any values."""
    present = (~np.isnan(products)).sum(axis=1)
    return np.where(present > 0, (products < 0).sum(axis=1) / np.maximum(present, 1), np.nan)


FEWEST = 20
FEWEST_OF_A_KIND = 5


def probe_statistics(
    job: JobScores,
    dimension: DimensionScores,
    raters: Mapping[str, Floats],
    varied: Mapping[str, Floats],
    orders: Sequence[Mapping[str, Floats]],
) -> list[ProbeStatistics]:
    """Return all probes of all raters, with p-values that are not corrected yet.

    `raters` have one score an item, `varied` one a variant, and `orders` the scores of pairs in each of two orders.
    """
    results = [
        *_observed_probes(job, dimension, raters),
        *self_preference(job, dimension),
        *variant_probes(job, dimension, raters, varied),
    ]
    if orders:
        results += position_probes(job, dimension, *orders)
    names = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    results = [result.unknown(SPARED) if result.voice in names else result for result in results]
    return [result.statistics() for result in results]


def _observed_probes(job: JobScores, dimension: DimensionScores, raters: Mapping[str, Floats]) -> Iterator[ProbeResult]:
    """Yield what each rater adds for what the probes measured, beside people's score of the same rated items."""
    people = dimension.people
    for probe, measured in job.probes.items():
        x = (np.log2(measured.clip(1)) if probe == "verbosity" else measured)[people.rated]
        for name, scores in raters.items():
            effect = _added(probe, x, scores[people.rated], people.scores, dimension.rated_clusters)
            yield ProbeResult(probe, name, *effect)


def _added(
    probe: MeasuredProbeName, x: Floats, judge: Floats, people: Floats, clusters: Ints | None
) -> tuple[Result, float | None]:
    """Return what the judge adds per unit of `x`, with its interval and p, or why that cannot be said."""
    usable = ~(np.isnan(x) | np.isnan(judge) | np.isnan(people).all(axis=1))
    x, judge, people = x[usable], judge[usable], people[usable]
    if len(x) < FEWEST:
        return Unknown(f"it needs {FEWEST} items that people rated or more, and there are {len(x)}"), None
    if probe == "formatting" and min((x == 0).sum(), (x == 1).sum()) < FEWEST_OF_A_KIND:
        return Unknown(f"fewer than {FEWEST_OF_A_KIND} of the rated items are marked up, or are not"), None
    if np.ptp(x) < SMALLEST:
        return Unknown("all rated items are equally long"), None
    if np.ptp(judge - combine_mean(people)) < SMALLEST:
        return Unknown("it is off by the same on all rated items"), None
    return effect_beside_people(x, judge, people, None if clusters is None else clusters[usable])
