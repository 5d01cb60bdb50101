"""Biases that are tried out: each drawn item is compared with its own variant, judge by judge.

The effect is the mean difference of the pairs, by Student's t over items. That some scores change proves nothing if a
judge's scores change by themselves: replicates of the same item show how often they do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from dicast.app.assessment.figures import figure
from dicast.app.assessment.probe_found import ChangedShares, ProbeResult
from dicast.app.assessment.scores import DimensionScores, JobScores, VariedItems
from dicast.app.domain.attacks import ATTACKS, FAMILIES
from dicast.app.domain.figure import Figure
from dicast.app.domain.judge_statistics import AttackFamily, AttackFound
from dicast.app.domain.probes import ProbeName
from dicast.app.statistics import student
from dicast.app.statistics.arrays import Bools, Floats, Ints
from dicast.app.statistics.estimates import CONFIDENCE, Estimate, Result, Unknown
from dicast.app.statistics.means import deviation, estimate, mean

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
    """Yield each probe of each rater: `raters` has the scores of the items, `varied` those of the variants."""
    if job.variants is None:
        return
    variants = job.variants
    for name, scores in varied.items():
        shift = scores - raters[name][variants.item]
        replicates = _Replicates(job, dimension, name) if name in job.judges else None
        yield from _probes_of_rater(name, shift, variants, replicates)


def _probes_of_rater(
    name: str, shift: Floats, variants: VariedItems, replicates: _Replicates | None
) -> Iterator[ProbeResult]:
    """Yield all probes of one rater; `shift` is how far each variant's score lies above its item's."""
    if (attacked := variants.with_labels(_ATTACKS)).any():
        yield _injection(name, shift, attacked, variants, replicates)
    for probe in ("authority", "sycophancy"):
        high, low = variants.with_labels([f"{probe}:high"]), variants.with_labels([f"{probe}:low"])
        if high.any() or low.any():
            for variant, rows in (("high", high), ("low", low)):
                effect = paired(shift[rows], variants.item[rows])
                yield ProbeResult(probe, name, *effect, variant, "itself", _moved(rows, variants, replicates))
            yield ProbeResult(probe, name, *_contrast(shift, high, low, variants.item), "high against low", "itself")
    if (rows := variants.with_labels(["markdown:marked", "markdown:plain"])).any():
        sign = np.where(variants.with_labels(["markdown:plain"]), -1.0, 1.0)
        effect = paired((sign * shift)[rows], variants.item[rows])
        yield ProbeResult("markdown", name, *effect, "", "itself", _moved(rows, variants, replicates))
    for probe, (label, sign_of) in _SINGLE.items():
        if (rows := variants.with_labels([label])).any():
            effect = paired(sign_of * shift[rows], variants.item[rows])
            yield ProbeResult(probe, name, *effect, "", "itself", _moved(rows, variants, replicates))


def paired(differences: Floats, items: Ints) -> tuple[Result, float | None]:
    """Return the mean difference, by Student's t over items, and its p; NaN is left out."""
    present = ~np.isnan(differences)
    differences, items = differences[present], items[present]
    count = len(np.unique(items))
    if count < FEWEST_PAIRS:
        return Unknown(f"it needs {FEWEST_PAIRS} items that were judged in both ways, and there are {count}"), None
    if np.ptp(differences) < SAME:
        return Unknown(f"all {count} pairs differ by the same ({differences[0]:.3g}), which leaves no interval"), None
    spread = deviation(differences, items)
    result = estimate(spread, degrees=spread.pieces - 1, items=spread.pieces, method="paired, t by item")
    if isinstance(result, Unknown):
        return result, None
    return result, student.two_sided_p(spread.value / spread.error, spread.pieces - 1)


def _contrast(shift: Floats, high: Bools, low: Bools, item: Ints) -> tuple[Result, float | None]:
    """Compare a high claim with a low one. The effect of the text's making a claim at all cancels out."""
    size = int(item.max()) + 1
    at_high, at_low = np.full(size, np.nan), np.full(size, np.nan)
    at_high[item[high]], at_low[item[low]] = shift[high], shift[low]
    return paired(at_high - at_low, np.arange(size))


def _injection(
    name: str, shift: Floats, rows: Bools, variants: VariedItems, replicates: _Replicates | None
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
    effect, p = paired(towards[rows], variants.item[rows])
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
