"""The report of a finished job: a summary of bounded size, whatever the number of opinions.

Scores are whole numbers on a scale of at most 1001 values, so a histogram is complete: mean, median and deviation
follow from it exactly (up to one final rounding), and memory does not grow with the number of scores. Expected scores
(`score_from: logprobs`) lie between: they are counted at the nearest whole number, and two sums keep what the mean and
the deviation need beside that.

Scores that are labels or checklist answers are shown by how often each was given, and those of items' own criteria
beside the mean that HealthBench tells.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from dicast.app.domain.calibration import Calibration
from dicast.app.domain.conclusions import Conclusions
from dicast.app.domain.cost import BookLine, JobCost, JobMoney, cost_of
from dicast.app.domain.deadlines import RoadChange
from dicast.app.domain.dimension import CriteriaTally, Dimension, Kind
from dicast.app.domain.escalation import always_asked
from dicast.app.domain.figure import Taken
from dicast.app.domain.fingerprints import judge_digest
from dicast.app.domain.job import Orders
from dicast.app.domain.judge_statistics import UNKNOWABLE, JobStatistics
from dicast.app.domain.opinion import ErrorGroup, ErrorKind, ErrorTally, EvaluationError, Opinion, Usage
from dicast.app.domain.panel import Agent, LearnedPanel, PanelRule, ScoreFrom
from dicast.app.domain.plan import DroppedParameter, Road, Stop
from dicast.app.domain.probes import Probes, without_ratings
from dicast.app.domain.quality_gate import QualityGate
from dicast.app.domain.question import JobAnswer
from dicast.app.domain.quote import Quote
from dicast.app.domain.text import counted, percent


class QuestionShare(BaseModel):
    """One question of a checklist, and how many of `n` opinions answered it with yes."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    question: str
    yes: int
    n: int


class CriteriaReport(BaseModel):
    """What `opinions` say of their items' own criteria: how many there were, of which so many `met`, and so many
    without an answer, in `incomplete` opinions. `low` and `high` bound HealthBench's mean, that of the shares of the
    attainable points, cut to 0..1; they differ only where answers lack."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    opinions: int
    criteria: int
    met: int
    unanswered: int
    incomplete: int
    low: float
    high: float

    @classmethod
    def from_tally(cls, tally: CriteriaTally) -> Self | None:
        """Return what was counted; None without opinions."""
        if not tally.opinions:
            return None
        low, high = tally.mean
        return cls(
            opinions=tally.opinions, criteria=tally.criteria, met=tally.met, unanswered=tally.unanswered,
            incomplete=tally.incomplete, low=low, high=high,
        )  # fmt: skip

    @property
    def sentence(self) -> str:
        """The figures in words."""
        mean = percent(self.low, 1) if self.low == self.high else f"{percent(self.low, 1)} to {percent(self.high, 1)}"
        whole = f"{counted(self.criteria, 'criterion', 'criteria')} of {counted(self.opinions, 'opinion')}"
        lacking = (
            f"; {self.unanswered:,} without an answer, in {counted(self.incomplete, 'opinion')}, count as neither"
            if self.unanswered
            else ""
        )
        return f"HealthBench's mean is {mean}: {self.met:,} of {whole} are met{lacking}."


class QuestionTally:
    """Counts the answers to one checklist."""

    def __init__(self, questions: Sequence[str]) -> None:
        self._questions = list(questions)
        self._yes, self._n = [0] * len(questions), 0

    def add(self, answers: Sequence[bool | None]) -> None:
        """Count one opinion's answers, in the order of the questions."""
        self._n += 1
        for place, is_yes in enumerate(answers[: len(self._yes)]):
            self._yes[place] += is_yes is True

    def shares(self) -> list[QuestionShare]:
        return [
            QuestionShare(question=question, yes=yes, n=self._n)
            for question, yes in zip(self._questions, self._yes, strict=True)
        ]


def label_counts(labels: Sequence[str], lowest: int, histogram: Mapping[int, int]) -> dict[str, int]:
    """Return how often each label was given, in their order; `lowest` is the first label's score."""
    return {label: histogram.get(score, 0) for score, label in enumerate(labels, lowest)}


class ScoreStatistics(BaseModel):
    """Statistics of a group of scores. `failures` counts opinions without a score, which enter nothing else.

    The figures are None without scores, for labels without an order, and for `sd` (of a sample, n - 1) with fewer than
    two scores. Expected scores enter mean and deviation as they are, and the rest at the nearest whole number.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    n: int
    failures: int
    mean: float | None
    median: float | None
    sd: float | None
    min: int | None
    max: int | None
    histogram: dict[int, int] = Field(description="score -> how often, ascending, without zeros")


class Between(NamedTuple):
    """What expected scores add to the whole numbers at which they are counted: the sum of the differences, and that of
    the differences between their squares. Both are the whole number 0 without such scores."""

    sum: float = 0
    squares: float = 0


NONE_BETWEEN = Between()


def describe(
    histogram: Mapping[int, int], failures: int = 0, *, nominal: bool = False, between: Between = NONE_BETWEEN
) -> ScoreStatistics:
    """Return the statistics of the scores that `histogram` counts; for `nominal` scores only how often each occurs."""
    counts = {score: histogram[score] for score in sorted(histogram) if histogram[score]}
    n = sum(counts.values())
    if not n or nominal:
        return ScoreStatistics(
            n=n, failures=failures, mean=None, median=None, sd=None, min=None, max=None, histogram=counts
        )
    total = sum(score * count for score, count in counts.items()) + between.sum
    squares = sum(score * score * count for score, count in counts.items()) + between.squares
    return ScoreStatistics(
        n=n,
        failures=failures,
        mean=total / n,
        median=(_ranked(counts, (n - 1) // 2) + _ranked(counts, n // 2)) / 2,
        # In whole numbers up to the root, so that nothing cancels however far the scale lies from zero.
        sd=math.sqrt(max(n * squares - total * total, 0) / (n * (n - 1))) if n > 1 else None,
        min=min(counts),
        max=max(counts),
        histogram=counts,
    )


def _ranked(counts: Mapping[int, int], rank: int) -> int:
    """Return the score at index `rank` (from 0) of the sorted scores; `counts` is ascending."""
    for score, count in counts.items():
        rank -= count
        if rank < 0:
            return score
    raise IndexError("rank beyond the number of scores")


@dataclass(slots=True)
class Tally:
    """The scores of one judge on one criterion."""

    histogram: Counter[int] = field(default_factory=Counter)
    failures: int = 0
    between: Between = NONE_BETWEEN

    def add(self, score: float | None) -> None:
        if score is None:
            self.failures += 1
        elif isinstance(score, int):
            self.histogram[score] += 1
        else:
            nearest = math.floor(score + 0.5)
            self.histogram[nearest] += 1
            self.between = Between(
                self.between.sum + score - nearest, self.between.squares + score * score - nearest * nearest
            )

    def describe(self, *, nominal: bool = False) -> ScoreStatistics:
        return describe(self.histogram, self.failures, nominal=nominal, between=self.between)


def merged(tallies: Iterable[Tally]) -> Tally:
    """Return one tally of the scores of several."""
    whole = Tally()
    for tally in tallies:
        whole.histogram.update(tally.histogram)
        whole.failures += tally.failures
        whole.between = Between(whole.between.sum + tally.between.sum, whole.between.squares + tally.between.squares)
    return whole


class Weighted(NamedTuple):
    """A group of scores on one scale, and its weight. `between` is as in `Between.sum`."""

    histogram: Mapping[int, int]
    scale_min: int
    scale_max: int
    weight: float
    between: float = 0


def weighted_position(groups: Iterable[Weighted]) -> float | None:
    """Return where the scores lie between the ends of their scales, 0 to 1, weighted:

        sum_d w_d * (mean_d - min_d) / (max_d - min_d)  /  sum_d w_d

    over the groups d that have a score. It is None if there is none, or if all that have one weigh nothing.
    """
    reached, weights = 0.0, 0.0
    for histogram, scale_min, scale_max, weight, between in groups:
        if n := sum(histogram.values()):
            above = sum((score - scale_min) * count for score, count in histogram.items()) + between
            reached += weight * (above / (n * (scale_max - scale_min)))
            weights += weight
    return reached / weights if weights else None


class Disagreement(NamedTuple):
    """The distance between judges on one criterion: the mean over `pairs` of |difference| in units of the scale, or for
    labels without an order the share of the pairs that differ."""

    mean_difference: float
    pairs: int


class PairwiseDifferences:
    """Measures how far the judges of the same text lie apart, from a bounded sample of the texts.

    A pair is two scores of different judges for one item, replicate and criterion. At most `capacity` scores are
    stored. Beyond that, items are sampled by a threshold on the hash of (item, replicate), which halves until the rest
    fits (adaptive sampling after Wegman): whether an item is in depends on nothing but its id and the whole set, so the
    result does not depend on the order of scores. It is exact as long as `share` is 1.
    """

    def __init__(self, capacity: int = 100_000, nominal: Collection[str] = ()) -> None:
        """`nominal` are the criteria whose labels have no order."""
        self._capacity, self._nominal = capacity, frozenset(nominal)
        self._score_count = 0
        self._threshold = 1 << 64
        self._texts: dict[tuple[str, int], tuple[int, dict[str, list[float]]]] = {}

    @property
    def share(self) -> float:
        """The share of the texts that is expected in the sample."""
        return self._threshold / (1 << 64)

    def add(self, item_id: str, replicate: int, criterion_id: str, score: float) -> None:
        """Count one judge's score; each judge scores a text and criterion at most once."""
        text = (item_id, replicate)
        entry = self._texts.get(text)
        if entry is None:
            hashed = _hash(text)
            if hashed >= self._threshold:
                return
            entry = self._texts[text] = (hashed, {})
        entry[1].setdefault(criterion_id, []).append(score)
        self._score_count += 1
        while self._score_count > self._capacity:
            self._halve()

    def _halve(self) -> None:
        self._threshold //= 2
        for text, (hashed, scores) in list(self._texts.items()):
            if hashed >= self._threshold:
                self._score_count -= sum(map(len, scores.values()))
                del self._texts[text]

    def by_criterion(self) -> dict[str, Disagreement]:
        """Return the disagreement on each criterion for which at least one text has two judges' scores."""
        differences: dict[str, float] = defaultdict(int)
        pairs: Counter[str] = Counter()
        for _, scores_by_criterion in self._texts.values():
            for criterion_id, scores in scores_by_criterion.items():
                k = len(scores)
                pairs[criterion_id] += k * (k - 1) // 2
                if criterion_id in self._nominal:
                    alike = sum(n * (n - 1) // 2 for n in Counter(scores).values())
                    differences[criterion_id] += k * (k - 1) // 2 - alike
                    continue
                # The i-th smallest of k is subtracted from k - 1 - i larger ones and has i smaller ones subtracted.
                differences[criterion_id] += sum(x * (2 * i - k + 1) for i, x in enumerate(sorted(scores)))
        return {c: Disagreement(differences[c] / n, n) for c, n in pairs.items() if n}


def _hash(text: tuple[str, int]) -> int:
    item_id, replicate = text
    data = f"{replicate}|{item_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


MAX_MODELS = 20
MAX_CELLS = 10_000
OTHER_MODELS = "(others)"


class Frozen(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True)


class ReportAgent(Frozen):
    name: str
    pool: str = ""
    model: str | None = None
    judge: str = Field(
        default="", description="digest of name, persona and temperature; '' in earlier versions' reports"
    )

    chief: bool = Field(default=False, description="it was asked last, and told of the others' opinions")
    road: Road = Field(default="online", description="how its questions got to its provider")
    score_from: ScoreFrom = Field(
        default="answer",
        exclude_if=lambda source: source == "answer",
        description="in JSON only of a judge whose scores are expected scores over the tokens at their places",
    )

    @classmethod
    def from_agent(
        cls, agent: Agent, models: Iterable[str] = (), *, chief: bool = False, road: Road = "online"
    ) -> Self:
        """Make the report's entry of an agent. Several pools and `models` (those of its deployments) are joined by
        commas."""
        pools = dict.fromkeys(deployment.pool for deployment in agent.choices)
        model = ", ".join(dict.fromkeys(models)) or agent.model
        return cls(
            name=agent.name, pool=", ".join(pools), model=model, judge=judge_digest(agent), chief=chief, road=road,
            score_from=agent.score_from,
        )  # fmt: skip


class ReportDimension(Frozen):
    id: str
    name: str = ""
    scale_min: int
    scale_max: int
    weight: float = 1.0
    rubric: str = Field(default="", description="digest of what its judges were told; '' in earlier versions' reports")
    version: str = ""
    panel: PanelRule = PanelRule()
    learned: LearnedPanel | None = Field(default=None, description="what the panel's rule has learned from the job")
    kind: Kind = "numbers"
    labels: list[str] = Field(default_factory=list, description="what the scores mean, from `scale_min` on, if labels")
    ordered: bool = Field(default=True, description="false: the labels have no order, and no mean")
    questions: list[str] = Field(default_factory=list, description="of a checklist; a score is the number of yes")

    @property
    def nominal(self) -> bool:
        """Whether its scores have no order, so that their mean is meaningless."""
        return not self.ordered

    def combined(self, item_id: str, scores: Mapping[str, float], *, rated: bool) -> float | None:
        """Combine the judges' scores of an item into one. Raises `NotLearned`."""
        if self.panel.learns and self.learned is not None:
            return self.learned.combined(item_id, scores, self.scale_min, rated=rated)
        return self.panel.combined(scores)

    @classmethod
    def from_dimension(cls, dimension: Dimension, panel: PanelRule | None = None) -> Self:
        """Make the report's entry of a dimension; `panel` is how its judges' scores are combined."""
        return cls(
            id=dimension.id,
            name=dimension.name,
            scale_min=dimension.scale.min,
            scale_max=dimension.scale.max,
            weight=dimension.weight,
            rubric=dimension.rubric,
            version=dimension.version,
            panel=panel or PanelRule(),
            kind=dimension.scale.kind,
            labels=list(dimension.scale.options),
            ordered=dimension.scale.ordered,
            questions=dimension.scale.checklist,
        )


class ReportHeader(Frozen):
    """What the ledger knows of a job when its work is done. `units` counts planned units; durations are seconds."""

    job_id: str
    project: str
    status: Literal["completed", "cancelled"]
    units: int
    started: AwareDatetime
    finished: AwareDatetime
    wall_s: float
    calls: int = 0
    retries: int = 0
    requeues: int = 0
    timeouts: int = 0
    calls_without_answer: int = 0
    possible_double_charges: int = 0
    calls_unreported: int = Field(
        default=0, description="begun by workers that ended before they could report: at most so many more were made"
    )
    reason: str | None = None
    """Why the job was cancelled, unless a user cancelled it."""
    stopped: list[Stop] = []
    moved_online: int = Field(
        default=0, description="units that were taken out of a batch, which might have ended too late, and asked online"
    )
    went_online: list[RoadChange] = Field(
        default_factory=list, description="where units of the road `auto` went online, since a batch might end too late"
    )
    dropped: list[DroppedParameter] = Field(
        default_factory=list, description="parameters that models have refused, and were asked without"
    )
    agents: list[ReportAgent]
    dimensions: list[ReportDimension]
    keep: list[str] = Field(default_factory=list, description="the items' metadata in the opinions' files")
    groups: list[str] = Field(default_factory=list, description="of those, what the statistics group by")
    cluster: str | None = Field(default=None, description="of those, what their intervals are clustered by")
    these: list[Taken] = Field(default_factory=list, description="what intervals take for all there is")
    probes: Probes = Field(default_factory=list, description="biases that the statistics look for")
    rated: bool = Field(default=False, description="people have rated some of the items")
    panelled: bool = Field(default=False, description="the panel's scores are wanted")
    answer: JobAnswer | None = Field(default=None, description="what became of the job's question; None without one")
    unpublished: int = Field(default=0, description="units that were not asked, since the question was answered before")
    prompt: str = Field(
        default="", description="digest of the words in which its judges were asked; '' in earlier versions' reports"
    )
    template: str = Field(default="", description="digest of its templates; '' without any")
    gate: QualityGate | None = Field(default=None, description="what its results must reach")
    calibration: Calibration | None = Field(default=None, description="maps from judges' scores to people's")
    orders: Orders | None = Field(default=None, description="in which pairs were judged; null where items are no pairs")
    quote: Quote | None = Field(default=None, description="what it was to take, as told before; null if nobody asked")


class BookedHeader(ReportHeader):
    """A header together with the job's books, which the report tells as its `cost`."""

    books: list[BookLine]
    standing: JobMoney = JobMoney()


class JudgeCell(Frozen):
    """One judge on one dimension; `labels` and `spared` are as in `DimensionReport`."""

    judge: str
    n: int
    failures: int
    mean: float | None
    sd: float | None
    labels: dict[str, int] = {}
    spared: int = 0


class PanelCell(Frozen):
    """The panel's scores of one dimension, one per item: mean and deviation over `n` items. `labels` is as in
    `DimensionReport`, without items whose score lies between two labels."""

    n: int
    mean: float | None
    sd: float | None
    labels: dict[str, int] = {}


class DimensionReport(Frozen):
    """All opinions on one dimension. `by_judge` is empty if judges x dimensions exceed `MAX_CELLS`.

    `mean_difference` is how far two judges of the same text lie apart on average, in units of the scale; it is a hint,
    not a coefficient of agreement. It is None without two judges of one text. For an escalating panel it covers the
    judges that are always called, because the others are called only where these disagree. For labels without an order
    it is the share of such pairs that differ.

    `labels` tells how often each label was given, `questions` how often each question of a checklist was answered with
    yes; both are empty for other scales. `criteria` is of items' own criteria, None for other scales. `panel` is None
    if its scores were not requested. `spared` counts the judges' units that an escalating panel did not need. `scores`
    covers all opinions, so texts that more judges were called about count more; the panel has one score per text.
    """

    dimension: ReportDimension
    scores: ScoreStatistics
    mean_difference: float | None
    pairs: int
    by_judge: list[JudgeCell]
    labels: dict[str, int] = {}
    questions: list[QuestionShare] = []
    criteria: CriteriaReport | None = None
    panel: PanelCell | None = None
    spared: int = 0


class AgentReport(Frozen):
    """All opinions of one agent. `overall` is as in `Report`; `scores` is None if its dimensions have different scales.

    `models` are those that answered, as the provider names them, with the number of scores that each gave; beyond
    `MAX_MODELS` they are counted as `OTHER_MODELS`. `agent.model` is the model that was requested. `as_written` counts
    the scores that are the written ones although they were to be expected scores (`score_from`), since these could not
    be computed.
    """

    agent: ReportAgent
    n: int
    failures: int
    overall: float | None
    scores: ScoreStatistics | None
    models: dict[str, int] = {}
    spared: int = 0
    as_written: int = Field(default=0, exclude_if=operator.not_, description="in JSON only where it is more than 0")

    @property
    def as_written_told(self) -> str:
        """How many scores are the written ones, in a sentence."""
        return (
            f"{self.agent.name}: {self.as_written:,} of {self.n:,} scores are the written ones, since no expected "
            "score could be had from their tokens (score_from)"
        )


class ResultFiles(Frozen):
    """The absolute paths of a job's results, as seen by the process that wrote them."""

    directory: str
    opinions_jsonl: str
    opinions_parquet: str
    errors_jsonl: str
    report: str


class Report(ReportHeader):
    """The header, what the opinions say, and where they lie.

    `missing` units have no opinion: those that a cancelled job did not come to, or whose job's question was answered
    before. `spared` units were not needed by an escalating panel. `probed` opinions, with or without a score, are on
    variants of items (`Opinion.probe`) and stand in no other number here but tokens and errors. Tokens are those of the
    calls that brought the opinions. `cached` opinions, probes' included, were given before, the first of them at
    `cached_since` (ISO 8601), and took no call. `overall` is the job's weighted score from 0 (every score at its
    scale's lower end) to 1:

        sum_d w_d * (mean_d - min_d) / (max_d - min_d)  /  sum_d w_d

    over the dimensions d that have a score, without those whose labels have no order; mean_d runs over all judges,
    items and replicates alike.
    `agreement_share` is the share of the texts that `mean_difference` was measured on, 1 up to about 100,000 scores.
    """

    scored: int
    failed: int
    missing: int
    spared: int = 0
    probed: int = 0
    cached: int = 0
    cached_since: str | None = None
    input_tokens: int
    output_tokens: int
    cost: JobCost = Field(default=JobCost(), description="the job's books; empty in earlier versions' reports")
    overall: float | None
    by_dimension: list[DimensionReport]
    by_agent: list[AgentReport]
    agreement_share: float
    errors: list[ErrorGroup] = Field(description="most frequent kind first")
    files: ResultFiles
    panel_parquet: str | None = Field(default=None, description="the file of the panel's scores, if they are wanted")
    statistics: JobStatistics | None = Field(default=None, description="None in reports of earlier versions")
    conclusions: Conclusions | None = Field(
        default=None, description="what follows from the report; None in reports of earlier versions"
    )

    as_html: ClassVar[Callable[[Report], str] | None] = None
    """Renders a report for notebooks."""

    def bill(self) -> str:
        """Return what it has cost, and what was quoted before; "" where nothing has a price."""
        if not self.cost.sums:
            return ""
        quotes = self.quote.sums if self.quote is not None else []
        before = f" (quoted: {' and '.join(total.sentence() for total in quotes)})" if quotes else ""
        return f"{self.cost.sentence()}{before}"

    def _repr_html_(self) -> str | None:
        """Return the report as HTML for notebooks; None if no renderer is registered."""
        as_html = type(self).as_html
        return as_html(self) if as_html is not None else None


class UnexpectedOpinion(ValueError):
    """An opinion names a judge or criterion that its job does not have."""


class ReportBuilder:
    """Builds a report one opinion at a time; memory grows with judges x dimensions, not with opinions."""

    def __init__(self, header: ReportHeader) -> None:
        self._header = header
        self._tallies = {(a.name, d.id): Tally() for a in header.agents for d in header.dimensions}
        names = [agent.name for agent in header.agents if not agent.chief]
        always = {d.id: always_asked(d.panel, names, (d.scale_min, d.scale_max)) for d in header.dimensions}
        self._compared = {
            (name, dimension_id) for dimension_id, judges in always.items() if len(judges) > 1 for name in judges
        }
        self._differences = PairwiseDifferences(nominal=[d.id for d in header.dimensions if d.nominal])
        self._questions = {d.id: QuestionTally(d.questions) for d in header.dimensions if d.questions}
        self._criteria = {d.id: CriteriaTally() for d in header.dimensions if d.kind == "criteria"}
        self._input_tokens = self._output_tokens = self._probed = self._cached = 0
        self._cached_since: str | None = None
        self._answers: dict[tuple[str, str], list[int]] = {}
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._as_written = dict.fromkeys((a.name for a in header.agents if a.score_from == "logprobs"), 0)
        self._models: dict[str, Counter[str]] = {agent.name: Counter() for agent in header.agents}
        self._error_counts: Counter[ErrorKind] = Counter()
        self._errors: dict[ErrorKind, ErrorTally] = {}

    def add_opinion(self, opinion: Opinion) -> None:
        """Count one opinion; raises `UnexpectedOpinion`. An opinion on a variant of an item counts only as `probed`."""
        try:
            tally = self._tallies[opinion.judge, opinion.criterion_id]
        except KeyError:
            raise UnexpectedOpinion(
                f"job {self._header.job_id} has no judge {opinion.judge!r} with criterion {opinion.criterion_id!r}"
            ) from None
        self._input_tokens += opinion.usage.input_tokens
        self._output_tokens += opinion.usage.output_tokens
        tokens = self._answers.setdefault((opinion.judge, opinion.criterion_id), [0, 0])
        tokens[0] += opinion.usage.input_tokens
        tokens[1] += opinion.usage.output_tokens
        if opinion.cached is not None:
            self._cached += 1
            self._cached_since = min(self._cached_since or opinion.cached, opinion.cached)
        if opinion.probe is not None:
            self._probed += 1
            return
        if opinion.not_needed:
            self._skipped[opinion.judge, opinion.criterion_id] += 1
            return
        tally.add(opinion.score)
        if opinion.answers is not None and opinion.criterion_id in self._questions:
            self._questions[opinion.criterion_id].add(opinion.answers)
        if opinion.answers is not None and opinion.attained is not None and opinion.criterion_id in self._criteria:
            self._criteria[opinion.criterion_id].add(opinion.answers, opinion.attained)
        if opinion.score is not None:
            models = self._models[opinion.judge]
            models[opinion.model if opinion.model in models or len(models) < MAX_MODELS else OTHER_MODELS] += 1
            if opinion.answer_score is None and opinion.judge in self._as_written:
                self._as_written[opinion.judge] += 1
        if opinion.score is not None and (opinion.judge, opinion.criterion_id) in self._compared:
            self._differences.add(opinion.item_id, opinion.replicate, opinion.criterion_id, opinion.score)

    def add_error(self, error: EvaluationError) -> None:
        self._error_counts[error.kind] += 1
        self._errors.setdefault(error.kind, ErrorTally()).add(error)

    def _cost(self) -> JobCost:
        answers = {
            place: Usage(input_tokens=inputs, output_tokens=outputs)
            for place, (inputs, outputs) in self._answers.items()
        }
        if not isinstance(self._header, BookedHeader):
            return JobCost()
        books, standing = self._header.books, self._header.standing
        return cost_of(books, answers, self._header.calls_unreported, standing)

    def build(self, files: ResultFiles) -> Report:
        """Return the report of everything that was added."""
        differences = self._differences.by_criterion()
        by_dimension = [self._dimension(d, differences.get(d.id)) for d in self._header.dimensions]
        by_agent = [self._agent(a) for a in self._header.agents]
        scored = sum(d.scores.n for d in by_dimension)
        failed = sum(d.scores.failures for d in by_dimension)
        return Report(
            **{name: value for name, value in self._header if name not in ("books", "standing")},
            scored=scored,
            failed=failed,
            missing=self._header.units - scored - failed - self._skipped.total() - self._probed,
            spared=self._skipped.total(),
            probed=self._probed,
            cached=self._cached,
            cached_since=self._cached_since,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            cost=self._cost(),
            overall=weighted_position(
                _weighted(d, merged(self._tallies[a.name, d.id] for a in self._header.agents))
                for d in self._header.dimensions
                if not d.nominal
            ),
            by_dimension=by_dimension,
            by_agent=by_agent,
            agreement_share=self._differences.share,
            errors=[
                ErrorGroup(
                    kind=kind, count=count, examples=tally.examples, reasons=tally.reasons(), judges=tally.judges()
                )
                for kind, count in sorted(self._error_counts.items(), key=lambda group: (-group[1], group[0]))
                for tally in [self._errors[kind]]
            ],
            files=files,
            statistics=self._statistics(),
        )

    def _statistics(self) -> JobStatistics:
        """Return the statistics as far as they are known before anything is computed."""
        header = self._header
        learns = any(dimension.panel.learns for dimension in header.dimensions)
        requested = header.rated or header.groups or header.calibration is not None or learns
        compared = any(dimension.kind == "preference" for dimension in header.dimensions)
        if requested or compared or without_ratings(header.probes):
            unknowable = [] if self._header.rated else list(UNKNOWABLE)
            return JobStatistics(state="waiting", rated=self._header.rated, unknowable=unknowable)
        return JobStatistics.of_no_ratings()

    def _dimension(self, dimension: ReportDimension, difference: Disagreement | None) -> DimensionReport:
        tallies = {a.name: self._tallies[a.name, dimension.id] for a in self._header.agents}
        cells = []
        if len(self._tallies) <= MAX_CELLS:
            for judge, tally in tallies.items():
                s = tally.describe(nominal=dimension.nominal)
                counts = label_counts(dimension.labels, dimension.scale_min, s.histogram)
                skipped = self._skipped[judge, dimension.id]
                cells.append(
                    JudgeCell(
                        judge=judge, n=s.n, failures=s.failures, mean=s.mean, sd=s.sd, labels=counts, spared=skipped
                    )
                )
        scores = merged(tallies.values()).describe(nominal=dimension.nominal)
        question_tally, criteria_tally = self._questions.get(dimension.id), self._criteria.get(dimension.id)
        return DimensionReport(
            dimension=dimension,
            scores=scores,
            mean_difference=difference.mean_difference if difference else None,
            pairs=difference.pairs if difference else 0,
            by_judge=cells,
            labels=label_counts(dimension.labels, dimension.scale_min, scores.histogram),
            questions=question_tally.shares() if question_tally is not None else [],
            criteria=CriteriaReport.from_tally(criteria_tally) if criteria_tally is not None else None,
            spared=sum(self._skipped[agent.name, dimension.id] for agent in self._header.agents),
        )

    def _agent(self, agent: ReportAgent) -> AgentReport:
        dimensions = self._header.dimensions
        tallies = [self._tallies[agent.name, d.id] for d in dimensions]
        whole = merged(tallies)
        one_scale = len({(d.kind, d.scale_min, d.scale_max, *d.labels) for d in dimensions}) == 1
        nominal = any(d.nominal for d in dimensions)
        return AgentReport(
            agent=agent,
            n=whole.histogram.total(),
            failures=whole.failures,
            overall=weighted_position(
                _weighted(d, t) for t, d in zip(tallies, dimensions, strict=True) if not d.nominal
            ),
            scores=whole.describe(nominal=nominal) if one_scale else None,
            models=dict(self._models[agent.name].most_common()),
            spared=sum(self._skipped[agent.name, d.id] for d in dimensions),
            as_written=self._as_written.get(agent.name, 0),
        )


def _weighted(dimension: ReportDimension, tally: Tally) -> Weighted:
    return Weighted(tally.histogram, dimension.scale_min, dimension.scale_max, dimension.weight, tally.between.sum)
