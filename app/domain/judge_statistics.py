"""Judges as a report describes them: agreement, bias, people's mean, groups, and comparisons of runs and panels.

All figures are plain data, so that a report can be read where no statistics library is installed. Every statistic has
an interval, or a reason why it cannot be computed.

`statistic_rows` gives them as rows, one for each figure, for data frames.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from dicast.app.domain.figure import Figure
from dicast.app.domain.probes import ProbeName

VERSION = 1
UNKNOWABLE = (
    "how far the judges agree with people: nobody has rated any of these items, and that judges agree with each other "
    "does not make them right",
    "whether the judges are too strict or too kind: there is nothing to measure their scores by",
    "what people would have said of these items: the means above are the judges' opinion",
    "how many independent judges the panel is worth: judges that err in the same way look like judges that agree",
)
"""What cannot be known of a job without ratings by people."""


class _Plain(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class WorstCase(_Plain):
    """What a value would be if all judgements without a score (`missing` of them) had spoken against it as far as the
    scale allows, and if all had spoken for it. Nothing is assumed about why they are missing."""

    low: float
    high: float
    missing: int

    def could_end(self, figure: Figure) -> bool:
        """Return whether the interval of `figure`, moved as far as the value may move, holds 0."""
        if figure.value is None or figure.low is None or figure.high is None:
            return False
        return figure.low + self.low - figure.value <= 0 <= figure.high + self.high - figure.value


class RaterAgreement(_Plain):
    """Agreement among several raters over `items` items; `missing` is the share of empty cells."""

    raters: int
    alpha: Figure
    fleiss: Figure
    icc_single: Figure
    icc_mean: Figure
    base_rate: float | None
    items: int
    missing: float
    left_out: list[str] = Field(
        default_factory=list, description="judges that were asked about some items only, where earlier judges disagreed"
    )


class PeoplesMean(_Plain):
    """The estimated mean of people's scores over all items.

    `powered` uses the judges' scores of all items and people's of some, `people_alone` people's alone. `saved` is the
    factor by which people would have had to rate more items for an interval as narrow.

    With two raters or more, both speak of raters like these, unless the job says `these: [raters]`: then
    `of_these_raters` has the narrower interval of these alone, and `raters_apart` is the standard deviation of raters'
    strictness, in points.
    """

    powered: Figure
    people_alone: Figure
    judges_weight: float
    saved: float | None
    saved_reason: str | None = None
    of_these_raters: Figure | None = None
    raters_apart: float | None = None
    worst_case: WorstCase | None = Field(default=None, description="of `powered`, where items have no score")


EPSILONS = (0.1, 0.15, 0.2)
"""The advantages that a judge is granted for its cost in the alternative annotator test: its authors
recommend 0.1 where the people are crowd workers, 0.15 where they are skilled, and 0.2 where they are experts."""
WINNING = 0.5
"""The winning rate from which on a judge passes that test."""


class ReplacedRater(_Plain):
    """One person in the alternative annotator test: `wins` is the share of this person's items on which the judge is as
    close to the other people as this person is, or closer. `p_values` are those of "the judge is worse by epsilon", for
    each of `EPSILONS`, corrected by Benjamini and Yekutieli for all such tests of the report."""

    name: str
    items: int
    wins: Figure
    p_values: list[float]


class ReplacementTest(_Plain):
    """Whether a judge may replace one of the people: the alternative annotator test.

    `advantage` is the mean of the people's `wins`, `winning_rates` the shares of people against whom the judge is shown
    to be no worse than epsilon, for each of `EPSILONS`. `reason` says why nobody is tested.
    """

    advantage: Figure
    raters: list[ReplacedRater] = []
    winning_rates: list[float] = []
    reason: str | None = None

    @property
    def passed(self) -> float | None:
        """The smallest epsilon at which the judge passes, None if there is none."""
        for epsilon, rate in zip(EPSILONS, self.winning_rates, strict=False):
            if rate >= WINNING:
                return epsilon
        return None


class RaterStatistics(_Plain):
    """Statistics of one judge, the panel, or a person, against people.

    Correlations and differences are with the mean of the *other* people (one left out in turn), kappa and the confusion
    table with one other person, so that judges and people can be compared. `base_rate` is the share of people's
    commonest score: read kappa beside it. `confusion` counts this rater's scores (rows, from the scale's lowest)
    against people's. `mean` is that of this rater's own scores of all items, for people that of all ratings.
    `alpha_with_people` and `icc_with_people` are those of the people with this rater among them, to be read beside
    people's own. `repeats` is alpha over the replicates of one judge. `bias_p` is the p-value of the bias, corrected by
    Holm for all claims of the report.

    A judge with `spared` opinions, which an escalating panel did not need, has no figures: it was called about some
    items only, and those are no sample of all. If the panel has an audit, all figures come from its `audited` items
    alone, which are a random sample.
    """

    name: str
    kind: Literal["judge", "panel", "people"]
    mean: Figure = Figure.unknown("earlier versions did not compute it")
    pearson: Figure
    spearman: Figure
    kendall: Figure
    kappa: Figure
    base_rate: float | None
    bias: Figure
    bias_p: float | None = None
    lower_limit: Figure
    upper_limit: Figure
    confusion: list[list[int]] | None
    items: int
    missing: float
    alpha_with_people: Figure | None = None
    icc_with_people: Figure | None = None
    peoples_mean: PeoplesMean | None = None
    replaces: ReplacementTest | None = None
    same: Figure | None = Field(
        default=None, description="the share of people, or of other people, who gave the same score"
    )
    repeats: Figure | None = None
    spared: int = 0
    audited: int = 0
    worst_case: WorstCase | None = Field(default=None, description="of the `mean`, where judgements have no score")


class GroupMean(_Plain):
    """One group: the panel's mean, people's mean if they rated enough of it, the probability of each rank by the
    panel's means (the first is the highest) and by people's, and for pairs how often the panel prefers A, with ties
    counted half."""

    name: str
    items: int
    mean: Figure
    people: Figure | None = None
    ranks: list[float] | None = None
    people_ranks: list[float] | None = None
    wins: Figure | None = None
    worst_case: WorstCase | None = Field(default=None, description="of the `mean`, where judgements have no score")
    people_worst_case: WorstCase | None = Field(default=None, description="of people's, where items have no score")


class GroupDifference(_Plain):
    """The mean of `first` less that of `second`; `p` is corrected by Holm for all claims of the report. The interval is
    that of this pair alone."""

    first: str
    second: str
    difference: Figure
    p: float | None
    worst_case: WorstCase | None = Field(default=None, description="where judgements have no score")

    @property
    def hangs_on_missing(self) -> bool:
        """Whether judgements without a score could have made the difference none."""
        return self.worst_case is not None and self.worst_case.could_end(self.difference)


class AgreementInGroup(_Plain):
    """How far a rater agrees with people on the rated items of one group, and how far it is off there."""

    name: str
    voice: str
    pearson: Figure
    bias: Figure


class GroupAgreement(_Plain):
    """Whether a rater (a judge, or "panel") follows people equally well in all groups that have enough ratings.

    `pearson_p` is the p-value of equal correlations, `bias_p` that of equal biases: a rater whose bias differs favours
    some groups. Both are corrected by Holm for all claims of the report.
    """

    voice: str
    groups: list[AgreementInGroup]
    pearson_p: float | None = None
    bias_p: float | None = None


class GroupStatistics(_Plain):
    """The groups formed by the metadata `by`, by the panel's mean; `cluster` is what the intervals are clustered by.
    `reason` says why there are none.

    `differences` are the panel's own: the judges' opinion. `people_differences` are those of people's means, estimated
    from both; `people_reason` says why there are none.
    """

    by: str
    cluster: str = "item"
    means: list[GroupMean] = []
    differences: list[GroupDifference] = []
    people_differences: list[GroupDifference] = []
    agreement: list[GroupAgreement] = Field(default_factory=list, description="of each judge and the panel with people")
    reason: str | None = None
    people_reason: str | None = None


PROBE_TITLES: dict[ProbeName, str] = {
    "verbosity": "twice the length",
    "formatting": "Markdown (seen)",
    "self_preference": "its own family",
    "injection": "attacks, their way",
    "authority": "claims of experts",
    "sycophancy": "claims of the author",
    "markdown": "Markdown (tried out)",
    "batching": "one call for all",
    "order": "the reverse order",
    "position": "being shown first",
}
"""What a rater may reward, for each probe."""


class AttackFamily(_Plain):
    """The effect of one family of attacks: `shift` in points towards the score aimed for, and the share of tries that
    moved the score."""

    family: str
    tries: int
    moved: Figure
    shift: Figure


class AttackFound(_Plain):
    """One attack that moved scores: by how many points on average, towards the score aimed for.

    It was selected as one of the largest of many, so it has no interval: another sample would select others.
    """

    attack: str
    family: str
    tries: int
    shift: float


class ProbeStatistics(_Plain):
    """The result of a probe for one judge or the panel: `effect` in points of the scale, `p` corrected by Holm for all
    claims of the report.

    A probe that is `tried` compares items with their own variants (`against` "itself"), so an effect is due to what was
    changed. The others are measured on what was judged anyway, `against` people's mean or the other judges, so
    something correlated may be the cause. Positive means a higher score for

        verbosity          a text twice as long: the slope of its score less people's mean, with robust errors
        formatting         a text with marks of Markdown, in the same way
        self_preference    texts of its own family of models
        injection          the score that an attack is after
        authority, sycophancy    a claimed score: `variant` is "high", "low", or "high against low"
        markdown           the same text with marks than without
        batching           a dimension judged in one call with the others than alone
        order              the dimensions in reverse order
        position           of a pair, the text that is shown first

    `moved` is the share of variants whose score was another (of pairs, of those whose preference turned with the
    order), `by_itself` that of replicates (which changed nothing), and `beyond` the difference. `first` is how often
    the text that is shown first is preferred, ties half.
    """

    probe: ProbeName
    voice: str
    effect: Figure
    p: float | None
    variant: str = ""
    tried: bool = False
    against: Literal["people", "judges", "itself"] = "people"
    moved: Figure | None = None
    by_itself: Figure | None = None
    beyond: Figure | None = None
    first: Figure | None = None
    families: list[AttackFamily] = []
    attacks: list[AttackFound] = Field(default_factory=list, description="those that moved scores furthest")

    @property
    def title(self) -> str:
        """A few words on what the effect is of."""
        title = PROBE_TITLES[self.probe]
        return f"{title}, {self.variant}" if self.variant else title


class CalibratedRater(_Plain):
    """One judge or the panel under the job's calibration: the mean of its `raw` and of the `calibrated` scores, and by
    how much these differ from people's (`bias`).

    The interval of `calibrated` includes the error of the map itself, which was learned on `learned_on` items, if
    `map_counts`: maps of earlier versions do not tell it. `differing` is what the map was made with that the job does
    not have.
    """

    name: str
    kind: Literal["judge", "panel"]
    method: str = ""
    learned_on: int = 0
    map_counts: bool = False
    differing: list[str] = []
    raw: Figure
    calibrated: Figure
    bias: Figure


class LabelShare(_Plain):
    """How common one label is: its share of the judges' opinions (an item's judges count together), and the estimated
    share of people's labels over all items, with the judges' help (`people`) and from their ratings alone."""

    label: str
    judges: Figure
    people: Figure
    people_alone: Figure


class Contestant(_Plain):
    """One of the contestants compared in pairs: its strength after Bradley and Terry (A beats B with probability 1 / (1
    + exp(b - a)), the mean is 0), and the probability of each rank."""

    name: str
    strength: Figure
    ranks: list[float]


class WinRate(_Plain):
    """The share of comparisons that one contestant wins against all others it met, with ties counted half."""

    name: str
    pairs: int
    wins: Figure


class Meeting(_Plain):
    """The share of comparisons that `first` wins against `second`, with ties counted half."""

    first: str
    second: str
    pairs: int
    wins: Figure


class RankingAgreement(_Plain):
    """How far a rater orders the candidates of lists as people do: Kendall's tau-b, averaged over lists, and the share
    of the pairs on which people have a preference that it shares (a tie is none)."""

    name: str
    lists: int
    pairs: int
    tau: Figure
    agreeing: Figure


class PreferenceStatistics(_Plain):
    """How often the panel prefers A (`wins`, ties half), the share of ties, and how often people would prefer A.

    `rates` and `contestants` are those compared, best first, `meetings` each two of them (of 20 at most); `reason` says
    why the comparisons alone rank nobody: `contestants` are then ranked with the help of a prior, if at all. `rankings`
    are present if people rated pairs of lists.
    """

    wins: Figure
    ties: Figure
    people: Figure
    people_alone: Figure
    rates: list[WinRate] = []
    meetings: list[Meeting] = []
    contestants: list[Contestant] = []
    rankings: list[RankingAgreement] = []
    reason: str | None = None


class EscalationAudit(_Plain):
    """What an escalating panel loses by calling fewer judges under a difference or an uncertainty, from the `items`
    about which all judges were called anyway.

    `calls` is the share of the full panel's calls that it would have made there; `off` is the absolute distance of its
    score from the full panel's, and `shift` the signed one (above 0 if it is higher), in units of the scale.
    """

    items: int
    calls: Figure
    off: Figure
    shift: Figure


class SampleCheck(_Plain):
    """A test of whether the rated items are a random sample of all, by what judges say of rated and unrated items.

    `name` is what is compared: the panel's "score", its "distance" from the mean, judges' "disagreement" on an item, or
    "groups by ...". `difference` is the mean of rated items less that of unrated ones (None for groups), `p` corrected
    by Holm for all such tests of the report.
    """

    name: str
    difference: Figure | None = None
    p: float


class VarianceComponent(_Plain):
    """How much of scores' variance comes from one `source`, such as "item", "judge" or "item x judge": in points
    squared, and as a share of all."""

    source: str
    variance: Figure
    share: float


class DesignStudy(_Plain):
    """What a design is worth: so many judges or raters (`sources`) who each score an item so often (`replicates`).

    The generalizability coefficient tells how well an item's mean score tells items apart, the dependability
    coefficient how well it tells what an item is worth; 1 is without error. `error_of_mean` is the standard error of
    the mean of all items, in points, for items and judges like these.
    """

    design: str
    sources: int
    replicates: int
    items: int
    generalizability: float
    dependability: float
    error_of_mean: float


class VarianceComponents(_Plain):
    """Where the variance comes from, of the judges' scores in a dimension, of people's ratings there, or of the judges'
    scores in all dimensions, on `items` items; `designs` are what it is worth, and what more would buy."""

    of: Literal["judges", "people", "dimensions"]
    items: int = 0
    components: list[VarianceComponent] = []
    designs: list[DesignStudy] = []
    reason: str | None = None


class DimensionStatistics(_Plain):
    """All statistics of one dimension. `voices` are the judges in order, then the panel; `person` is what a person
    reaches against the other people, and `independent` how many independent judges the panel is worth."""

    dimension: str
    scale_min: int
    scale_max: int
    ratings: int
    rated_items: int
    raters: list[str]
    leader: str = Field(default="", description="the judge whose correlation with people is the highest")
    leader_p: float | None = Field(
        default=None, description="of its really being so, corrected for all claims of the report"
    )
    population: str = Field(default="", description="a sentence: which items, clusters and raters intervals speak of")
    panel: str
    voices: list[RaterStatistics]
    person: RaterStatistics | None
    judges: RaterAgreement | None
    people: RaterAgreement | None
    independent: Figure
    groups: list[GroupStatistics] = []
    probes: list[ProbeStatistics] = []
    calibrated: list[CalibratedRater] = []
    shares: list[LabelShare] = []
    preferences: PreferenceStatistics | None = None
    audit: EscalationAudit | None = None
    components: list[VarianceComponents] = Field(
        default_factory=list, description="where the variance of the judges' scores, and of people's, comes from"
    )
    sample_checks: list[SampleCheck] = Field(
        default_factory=list, description="whether the rated items are a random sample of all"
    )
    summary: list[str]


class StoppedEarly(_Plain):
    """A job that ended when its `question` was answered.

    `judged` of its `items` have an opinion, drawn at random and in random order (for a difference, as many of one group
    as of the other). `known` is the answer, in `dimension`: its interval holds however often one looked. All other
    intervals are those of a sample of fixed size.
    """

    question: str
    dimension: str
    judged: int
    items: int
    known: Figure
    summary: list[str]


class JobStatistics(_Plain):
    """The statistics of a job. `state` is "computed", or "waiting" or "left out" with the `reason`; `unknowable` is
    what cannot be known of it.

    `rated` tells whether people have rated any item, `probabilities` whether the rated items were drawn with known,
    unequal probabilities; without them they are taken for a random sample. `claims` is the number of p-values that are
    corrected together (by Holm): of biases, of differences of groups, and of probes, in all dimensions.
    """

    version: int = VERSION
    state: Literal["computed", "waiting", "left out"]
    reason: str | None = None
    rated: bool = False
    items: int = 0
    probabilities: bool = False
    claims: int = 0
    unknowable: list[str] = Field(default_factory=list)
    stopped: StoppedEarly | None = None
    dimensions: list[DimensionStatistics] = []
    components: VarianceComponents | None = Field(
        default=None, description="where the variance of the judges' scores in all dimensions comes from"
    )

    @classmethod
    def of_no_ratings(cls) -> Self:
        """Return the statistics of a job without any ratings by people."""
        return cls(state="left out", reason="people have rated none of the items", unknowable=list(UNKNOWABLE))


class JudgeShift(_Plain):
    """The shift of one judge's scores of a dimension from the first run to the second, over the items of both runs.

    `p` is corrected by Holm for all shifts. `only_first` and `only_second` count items that have a score in one run
    alone.
    """

    dimension: str
    judge: str
    shift: Figure
    p: float | None
    only_first: int
    only_second: int


class RunShift(_Plain):
    """The shift of the scores of a dimension from the first run to the second, one an item: the mean of the judges who
    scored it in both. `system` is the group of items, '' for all of them. `p` is corrected by Holm for all of these."""

    dimension: str
    system: str = ""
    shift: Figure
    p: float | None


class MovedItem(_Plain):
    """One of the items that moved most, with the judge's score and argument in each run, and the texts that were
    judged, as far as the jobs' folders hold them."""

    item_id: str
    dimension: str
    judge: str
    first: float
    second: float
    first_argument: str = ""
    second_argument: str = ""
    first_text: str = ""
    second_text: str = ""


class RunsCompared(_Plain):
    """Two runs over the same items, paired by item, dimension and judge.

    `forced` names what differs between them, and `spared` the judges whom an escalating panel skipped for some items in
    one of the runs: their shifts cover only the items that both runs called them about, which are no sample of all
    items.
    """

    first: str
    second: str
    summary: list[str] = Field(default_factory=list, description="what moved, the most important first")
    by: str = Field(default="", description="the metadata that tells systems apart; '' where the runs name none")
    panel: list[RunShift] = []
    systems: list[RunShift] = []
    shifts: list[JudgeShift]
    moved: list[MovedItem]
    forced: list[str] = []
    spared: list[str] = []

    @property
    def skipped_sentence(self) -> str | None:
        """A sentence on the judges in `spared`, or None if there is none."""
        if not self.spared:
            return None
        return (
            "Not asked about all items, because earlier judges had settled the outcome: "
            f"{', '.join(self.spared)}. Their shifts cover only the items that both runs asked them about, which are "
            "no sample of all items."
        )


class PanelOption(_Plain):
    """A panel on the Pareto front: no cheaper one agrees as much. `agreement` is measured on items that had no part in
    choosing it, `apparent` on those that had."""

    judges: list[str]
    combination: str
    cost: float
    agreement: Figure
    apparent: float


class PanelFront(_Plain):
    """The cheapest panel that is good enough in one dimension.

    `person` is what a person reaches; `enough` is the cheapest panel that reaches the agreement asked for. `reason`
    says why there is none, or no front. For an escalating panel only the `audited` items count, about which all judges
    were called.
    """

    dimension: str
    measure: Literal["pearson", "spearman"]
    items: int
    panels: int
    front: list[PanelOption]
    person: Figure
    enough: PanelOption | None = None
    reason: str | None = None
    audited: int = 0
    tried: list[tuple[float, float]] = Field(
        default_factory=list, exclude=True, description="cost and apparent agreement of all panels, for pictures"
    )


class RatingPrice(_Plain):
    """How wide the 95 % interval of people's mean is expected to be with so many ratings: from these `alone`, and with
    the judges' help where items are drawn evenly or by Neyman's allocation."""

    ratings: int
    alone: float
    even: float
    neyman: float


class RatingPlan(_Plain):
    """What ratings would buy in a dimension. `pilot` is the number of rated items that it comes from (0: the judges'
    spread alone). `now` is people's mean after the `rated` items so far, with an interval that holds however often one
    looks; `enough` is how many ratings a `width` is expected to take then (None: more than there are items)."""

    dimension: str
    pilot: int = 0
    prices: list[RatingPrice] = []
    rated: int = 0
    now: Figure | None = None
    width: float | None = None
    enough: int | None = None
    reason: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the ratings so far are enough for the width."""
        now = self.now
        if now is None or now.low is None or now.high is None or self.width is None:
            return False
        return now.high - now.low <= self.width


class TrustedPanel(_Plain):
    """How a panel escalates so that, with this `confidence`, people's mean is `within` so many points of its score on a
    share of `agree` of the items that it decides.

    The next judge is asked above the `bound`, and what stays above it is left to people. On the rated items it
    `decided` so many, on `agreeing` of them people agreed; `coverage` is the share of all items that it decides.
    `reason` says why there is no such bound.
    """

    dimension: str
    agree: float
    confidence: float
    within: float
    by: Literal["difference", "uncertainty"] = "difference"
    bound: float | None = None
    decided: int = 0
    agreeing: int = 0
    coverage: float = 0.0
    reason: str | None = None


class NotCalibrated(_Plain):
    """The reason why there is no map from a judge's scores in a dimension to people's."""

    judge: str
    dimension: str
    reason: str


class StatisticRow(NamedTuple):
    """One figure.

    `part` is where it stands in a dimension's statistics (`voices`, `person`, `judges`, `people`, `groups.means`, ...;
    '' for its own figures), `name` is whose it is (a judge, a group, `a - b` for a difference), `statistic` is what it
    is. Unknown figures have a `reason` and neither value nor interval; `p` is corrected for all that were compared.
    """

    dimension: str
    part: str
    name: str
    statistic: str
    value: float | None
    low: float | None
    high: float | None
    confidence: float
    items: int
    method: str
    reason: str | None
    p: float | None


def statistic_rows(statistics: JobStatistics) -> Iterator[StatisticRow]:
    """Yield all figures in the order of the report; the answer of a question that ended the job comes first."""
    stopped = statistics.stopped
    if stopped is not None:
        yield _row(stopped.dimension, (("stopped", "known"), "", None, stopped.known))
    for dimension in statistics.dimensions:
        for entry in _figures(dimension, (), "", None):
            yield _row(dimension.dimension, entry)
    if statistics.components is not None:
        for entry in _figures(statistics.components, ("components",), "", None):
            yield _row("", entry)


_FigureEntry = tuple[tuple[str, ...], str, float | None, Figure]


def _row(dimension: str, entry: _FigureEntry) -> StatisticRow:
    path, name, p, figure = entry
    return StatisticRow(
        dimension, ".".join(path[:-1]), name, path[-1], figure.value, figure.low, figure.high, figure.confidence,
        figure.items, figure.method, figure.reason, p,
    )  # fmt: skip


def _figures(model: BaseModel, path: tuple[str, ...], name: str, p: float | None) -> Iterator[_FigureEntry]:
    name, p = _name(model) or name, getattr(model, "p", p)
    for field, value in model:
        for element in value if isinstance(value, list) else [value]:
            if isinstance(element, Figure):
                yield (*path, field), name, p, element
            elif isinstance(element, BaseModel):
                yield from _figures(element, (*path, field), name, p)


def _name(model: BaseModel) -> str:
    texts = {field: value for field, value in model if isinstance(value, str)}
    if {"first", "second"} <= texts.keys():
        return f"{texts['first']} - {texts['second']}"
    parts = [texts[field] for field in ("by", "probe", "name", "voice", "label", "source") if texts.get(field)]
    return ": ".join(parts)
