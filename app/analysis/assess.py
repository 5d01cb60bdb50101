"""Computes all statistics of a job.

`assess` goes through the dimensions, and corrects the p-values of all claims together (`correct_claims`). The functions
between these two serve jobs in which not every judge was asked about every item: those that ended when their question
was answered, and those of an escalating panel.

`sample_checks` tests whether the items that people rated are a random sample of all, as far as the judges' scores can
tell. Whatever is said of people's scores of all items rests on it. The judges scored rated and unrated items alike, so
what they say of the two must not differ by more than chance draws make it: the mean, how far scores lie from the mean,
and how far judges lie apart on an item (people may have picked the best, the extreme, or the disputed ones), and how
many items of each group are among them. A draw of n of N items without replacement has a mean whose variance is
S^2 / n * (1 - n / N) (W. G. Cochran, "Sampling Techniques" (1977), theorem 2.2); groups are compared by Pearson's
chi-squared test. Where items were drawn with known probabilities, or belong to clusters, Student's t of the weighted,
clustered mean takes its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from dicast.app.analysis import estimates as student
from dicast.app.analysis.agreement import inter_rater_agreement, leading_judge
from dicast.app.analysis.biases import probe_statistics
from dicast.app.analysis.combining import effective_judges
from dicast.app.analysis.components import dimension_components, judge_components, people_components
from dicast.app.analysis.estimates import CONFIDENCE, Bools, Estimate, Floats, Ints, quantile
from dicast.app.analysis.group_figures import group_statistics, label_shares, preferences
from dicast.app.analysis.groups import holm
from dicast.app.analysis.means import SMALLEST, deviation, mean
from dicast.app.analysis.powered import powered_sequence, sequence_factor
from dicast.app.analysis.raters import (
    NO_MEAN,
    NOBODY_IN_AUDIT,
    NOBODY_RATED,
    calibrated_raters,
    correct_replacements,
    partly_asked_judge,
    person,
    rater_statistics,
)
from dicast.app.analysis.sampling import (
    FEWEST_OF_PILOT,
    ExpectedErrors,
    expected_errors,
    expected_width,
    inclusion,
    width_alone,
)
from dicast.app.analysis.scores import (
    DimensionScores,
    JobScores,
    Labels,
    StoppedJob,
    among_raters,
    decided_items,
    extremes,
    figure,
    is_not_chief,
    panel_scores,
)
from dicast.app.analysis.sentences import (
    calibration_sentences,
    component_sentences,
    disagreement_sentences,
    label_sentences,
    missing_sentences,
    panel_sentences,
    population_sentence,
    preference_sentences,
    replacement_sentences,
    summary,
)
from dicast.app.domain.dimension import Scale
from dicast.app.domain.escalation import is_settled, standard_error
from dicast.app.domain.figure import Figure, figure_text
from dicast.app.domain.judge_statistics import (
    UNKNOWABLE,
    DimensionStatistics,
    EscalationAudit,
    GroupDifference,
    GroupStatistics,
    JobStatistics,
    ProbeStatistics,
    RaterAgreement,
    RaterStatistics,
    RatingPlan,
    RatingPrice,
    SampleCheck,
    StoppedEarly,
)
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.question import JobAnswer, Question
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.text import percent


def correct_claims(dimensions: Sequence[DimensionStatistics]) -> tuple[list[DimensionStatistics], int]:
    """Return the dimensions with p-values that are corrected for all claims of the report, and the number of these.

    A report is read for what stands out in it, over all judges, dimensions and groups. So the probability that it
    claims anything that is not so is bounded for the report as a whole, by Holm's step-down method (`holm`), which
    needs no independence. Claims are: that a judge or the panel scores above or below people, that two groups differ
    (by people's means, and by the panel's), that a rater follows people, or is off, unequally in groups, and what each
    probe found.

    Not in the family are tests of what the figures rest on, such as whether the rated items are a random sample, and
    the difference that ended a job, whose interval holds however often one looks.
    """
    raw = [p for dimension in dimensions for p in _p_values(dimension) if p is not None]
    corrected = iter(holm(np.array(raw)).tolist())
    return [_with_p_values(dimension, corrected) for dimension in dimensions], len(raw)


def correct_sample_checks(dimensions: Sequence[DimensionStatistics]) -> list[DimensionStatistics]:
    """Return the dimensions with the p-values of their tests of the sample, corrected for all of these."""
    corrected = iter(holm(np.array([check.p for of in dimensions for check in of.sample_checks])).tolist())

    def with_corrected(of: DimensionStatistics) -> DimensionStatistics:
        checks = [check.model_copy(update={"p": next(corrected)}) for check in of.sample_checks]
        return of.model_copy(update={"sample_checks": checks})

    return [with_corrected(of) for of in dimensions]


def _p_values(dimension: DimensionStatistics) -> Iterator[float | None]:
    yield from (rater.bias_p for rater in dimension.voices)
    for group in dimension.groups:
        yield from (pair.p for pair in (*group.people_differences, *group.differences))
        yield from (p for rater in group.agreement for p in (rater.pearson_p, rater.bias_p))
    yield from (probe.p for probe in dimension.probes)
    yield dimension.leader_p


def _with_p_values(dimension: DimensionStatistics, corrected: Iterator[float]) -> DimensionStatistics:
    """Replace each known p-value by the next of `corrected`, in the order of `_p_values`."""

    def following(p: float | None) -> float | None:
        return None if p is None else next(corrected)

    def pairs(differences: Sequence[GroupDifference]) -> list[GroupDifference]:
        return [pair.model_copy(update={"p": following(pair.p)}) for pair in differences]

    def group_with(group: GroupStatistics) -> GroupStatistics:
        people, differences = pairs(group.people_differences), pairs(group.differences)
        agreement = [
            rater.model_copy(update={"pearson_p": following(rater.pearson_p), "bias_p": following(rater.bias_p)})
            for rater in group.agreement
        ]
        return group.model_copy(
            update={"people_differences": people, "differences": differences, "agreement": agreement}
        )

    voices = [rater.model_copy(update={"bias_p": following(rater.bias_p)}) for rater in dimension.voices]
    groups = [group_with(group) for group in dimension.groups]
    probes = [probe.model_copy(update={"p": following(probe.p)}) for probe in dimension.probes]
    leader_p = following(dimension.leader_p)
    return dimension.model_copy(update={"voices": voices, "groups": groups, "probes": probes, "leader_p": leader_p})


def audited(job: JobScores, dimension: DimensionScores) -> EscalationAudit | None:
    """Return the figures of the audit, None for a panel without one. Items on which a judge has no score are left out,
    since the full panel has no score of them.

    The audit measures what it costs that an escalating panel asks fewer judges, on those items on which all judges were
    asked.
    """
    if dimension.audited is None:
        return None
    scores = dimension.judges
    whole = dimension.audited & ~np.isnan(scores).any(axis=1)
    rule, scale = dimension.spec.panel, Scale(min=dimension.spec.scale_min, max=dimension.spec.scale_max)
    calls: list[float] = []
    shift: list[float] = []
    for row, answers in zip(scores[whole].tolist(), dimension.answers[whole], strict=True):
        errors = [standard_error(rounds[~np.isnan(rounds)].tolist()) for rounds in answers]
        everybody = dict(zip(job.judges, row, strict=True))
        asked_scores = _scores_of_asked(rule, everybody, dict(zip(job.judges, errors, strict=True)), scale)
        full, escalated = rule.combined(everybody), rule.combined(asked_scores)
        assert full is not None and escalated is not None
        calls.append(len(asked_scores) / len(row))
        shift.append(escalated - full)
    apart, clusters = (
        np.array(shift, dtype=np.float64),
        None if dimension.clusters is None else dimension.clusters[whole],
    )
    return EscalationAudit(
        items=len(calls),
        calls=figure(mean(np.array(calls, dtype=np.float64), clusters=clusters, bounds=(0.0, 1.0))),
        off=figure(mean(np.abs(apart), clusters=clusters, bounds=(0.0, float(scale.max - scale.min)))),
        shift=figure(
            mean(apart, clusters=clusters, bounds=(float(scale.min - scale.max), float(scale.max - scale.min)))
        ),
    )


def _scores_of_asked(
    rule: PanelRule, scores: Mapping[str, float], errors: Mapping[str, float], scale: Scale
) -> Mapping[str, float]:
    """Return the scores of those judges whom the panel would have asked."""
    judges = list(scores)
    for count in range(1, len(judges)):
        asked_scores, asked_errors = ({name: values[name] for name in judges[:count]} for values in (scores, errors))
        if is_settled(rule, asked_scores, judges[count:], scale, asked_errors):
            return asked_scores
    return scores


def audit_sentences(audit: EscalationAudit | None) -> Iterator[str]:
    if audit is None:
        return
    if not audit.items:
        yield (
            "What asking fewer judges costs cannot be said, because no item of the audit has a score by every judge."
        )
        return
    yield (
        f"On {audit.items:,} items of the audit all judges were asked. The share of the calls that escalating would "
        f"have made there: {figure_text(audit.calls)}; how far its score lies from the full panel's: "
        f"{figure_text(audit.off)}; in "
        f"which direction: {figure_text(audit.shift)}."
    )


def _trust_sentences(dimension: DimensionScores) -> Iterator[str]:
    """Yield how many items the judges of a panel with a guarantee have decided, and how many are left to people."""
    rule = dimension.spec.panel.escalate
    is_decided = decided_items(dimension)
    if is_decided is None or rule is None or rule.agree is None or rule.confidence is None:
        return
    decided, items = int(is_decided.sum()), len(is_decided)
    yield (
        f"The judges decide {decided:,} of {items:,} items ({percent(decided / max(items, 1))}); the other "
        f"{items - decided:,} are left to people. Of items like those that the bound was learned on, people agree on "
        f"{percent(rule.agree)} of what these judges decide, with {percent(rule.confidence)} confidence."
    )


def skipped_sentences(dimension: ReportDimension, raters: Sequence[RaterStatistics], items: int) -> Iterator[str]:
    """Yield sentences on an escalating panel: which judges were not asked about all items, and what cannot be said
    because of it. There are none if every judge was asked about all items.
    """
    partial, rule = [rater for rater in raters if rater.spared], dimension.panel.escalate
    if not partial or rule is None:
        return
    who = " and ".join(rater.name for rater in partial) + (" was" if len(partial) == 1 else " were")
    opinions = sum(rater.spared for rater in partial)
    drawn = ", and on the items of the audit" if rule.audit is not None else ""
    basis = "What is told of judges rests on those who were asked everywhere"
    if audited := partial[0].audited:
        basis = (
            f"What is told of {' and '.join(rater.name for rater in partial)} rests on the {audited:,} items of the "
            "audit alone, a random sample of all items; of the other judges on all"
        )
    yield (
        f"{who} asked only where the judges before {rule.asks_when}{drawn} ({opinions:,} opinions on "
        f"{items:,} items were not needed). {basis}; the panel is held against people as it judged."
    )
    if not rule.lossless or dimension.panel.threshold is not None:
        yield "The panel's score of an item is that of the judges who were asked about it, not the full panel's."


METHOD = "confidence sequence by betting"


def stopped_early(job: JobScores) -> StoppedEarly | None:
    """Return what the report says of the job's early end, None if all of it was judged."""
    if job.stopped is None:
        return None
    job_answer = job.stopped.job_answer
    return StoppedEarly(
        question=job_answer.question,
        dimension=_question_dimension(job_answer),
        judged=job.items,
        items=job.stopped.items,
        known=_answer_figure(job_answer),
        summary=list(_words(job, job.stopped)),
    )


def with_sequence(
    job: JobScores, dimension: DimensionScores, raters: Sequence[RaterStatistics]
) -> list[RaterStatistics]:
    """Return the raters; if the question was about the mean of this dimension, the panel's mean is replaced by the
    question's answer.

    What such a job judged is a random sample whose size depended on its scores. The means of the sample are unbiased
    for all items. But an interval for a sample of fixed size is not quite valid for a sample that ended because of what
    it said. For what was asked, the question's own interval is reported, which is valid however often one looks.
    """
    adjusted = list(raters)
    question = _question_of(job, dimension)
    if question is not None and (question.mean_at_least is not None or question.width is not None):
        assert job.stopped is not None
        adjusted[-1] = adjusted[-1].model_copy(update={"mean": _answer_figure(job.stopped.job_answer)})
    return adjusted


def with_difference(job: JobScores, dimension: DimensionScores, groups: GroupStatistics) -> GroupStatistics:
    """Return the groups; if the question was about the difference of two of them, that difference is replaced by the
    question's answer."""
    question = _question_of(job, dimension)
    if question is None or question.difference is None or question.difference.by != groups.by:
        return groups
    assert job.stopped is not None
    figure, (first, second) = _answer_figure(job.stopped.job_answer), question.difference.of
    differences = []
    for difference in groups.differences:
        if (difference.first, difference.second) == (first, second):
            differences.append(GroupDifference(first=first, second=second, difference=figure, p=None))
        elif (difference.first, difference.second) == (second, first):
            differences.append(GroupDifference(first=second, second=first, difference=_negated(figure), p=None))
        else:
            differences.append(difference)
    return groups.model_copy(update={"differences": differences})


def _question_of(job: JobScores, dimension: DimensionScores) -> Question | None:
    """Return the question, if it was about this dimension's scores as the statistics use them."""
    if job.stopped is None or dimension.spec.panel.threshold is not None:  # then the question is about verdicts
        return None
    question = job.stopped.job_answer.asked
    return question if question is not None and question.dimension == dimension.spec.id else None


def _question_dimension(answer: JobAnswer) -> str:
    return (answer.asked.dimension or "") if answer.asked is not None else ""


def _answer_figure(answer: JobAnswer) -> Figure:
    if answer.value is None or answer.low is None or answer.high is None:
        return Figure.unknown("nothing that the question is about has a score")
    return figure(Estimate(answer.value, answer.low, answer.high, answer.items, METHOD, answer.confidence))


def _negated(figure: Figure) -> Figure:
    if figure.value is None or figure.low is None or figure.high is None:
        return figure
    return figure.model_copy(update={"value": -figure.value, "low": -figure.high, "high": -figure.low})


def _words(job: JobScores, stopped: StoppedJob) -> Iterator[str]:
    question = stopped.job_answer.asked
    judged = f"The job ended when its question was answered: {job.items:,} of {stopped.items:,} items are judged"
    if question is not None and question.difference is not None:
        first, second = question.difference.of
        yield (
            f"{judged}, as many of {first} as of {second}, drawn at random and in random order. They stand for those "
            "two groups, and for all items only where these are the two halves of them."
        )
    else:
        yield f"{judged}, drawn at random and in random order: their means are estimates of those of all items."
    yield (
        "When to stop was decided by the scores. The interval of what was asked holds however often one looks "
        f"({100 * stopped.job_answer.confidence:g} %); the other intervals are those of samples whose size is fixed "
        "beforehand, and where they go with what was asked they hold somewhat less often than they say."
    )


SOME_JUDGES = "the later judges were asked only where those before had not settled the outcome"
SEED = 1
"""The seed of all random numbers, so that the same scores give the same figures."""


def assess(job: JobScores) -> JobStatistics:
    """Compute the statistics of all dimensions. The same scores give the same figures."""
    rng = np.random.default_rng(SEED)
    rated = any(dimension.people.raters for dimension in job.dimensions)
    dimensions, claims = correct_claims([_dimension_statistics(job, dimension, rng) for dimension in job.dimensions])
    dimensions = correct_replacements(correct_sample_checks(dimensions))
    return JobStatistics(
        state="computed",
        rated=rated,
        items=job.items,
        probabilities=any(dimension.people.probabilities is not None for dimension in job.dimensions),
        unknowable=[] if rated else list(UNKNOWABLE),
        stopped=stopped_early(job),
        claims=claims,
        components=dimension_components(job),
        dimensions=[
            _with_summary(job, dimension, statistics)
            for dimension, statistics in zip(job.dimensions, dimensions, strict=True)
        ],
    )


def _dimension_statistics(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> DimensionStatistics:
    panel, people, nominal = panel_scores(job, dimension), dimension.people, dimension.spec.nominal
    raters = [_judge(name, at, dimension, rng) for at, name in enumerate(job.judges)]
    if len(job.judges) > 1:
        raters.append(rater_statistics("panel", "panel", panel[:, None], dimension, rng))
    raters = [_at_worst(job, dimension, rater) for rater in with_sequence(job, dimension, raters)]
    ceiling, leader = person(dimension, rng), _leader(job, dimension)
    independent = _independent(job, dimension, rng)
    groups = [
        GroupStatistics(by=by, reason=NO_MEAN)
        if nominal
        else with_difference(job, dimension, group_statistics(job, dimension, panel, by, rng))
        for by in job.groups
    ]
    calibrated = (
        calibrated_raters(job, dimension, panel, job.calibration) if job.calibration is not None and not nominal else []
    )
    shares, chosen = label_shares(dimension), preferences(job, dimension, panel, _always_asked(job, dimension), rng)
    probes = [] if nominal else _probes(job, dimension)
    return DimensionStatistics(
        dimension=dimension.spec.id,
        scale_min=dimension.spec.scale_min,
        scale_max=dimension.spec.scale_max,
        ratings=int((~np.isnan(people.scores)).sum()),
        rated_items=len(people.rated),
        raters=list(people.raters),
        leader=leader[0],
        leader_p=leader[1],
        population=population_sentence(dimension, job.cluster),
        panel=dimension.spec.panel.combine,
        voices=raters,
        person=ceiling,
        judges=_among_judges(job, dimension, rng),
        people=_among(people.scores, dimension, rng, dimension.rated_clusters) if people.raters else None,
        independent=independent,
        groups=groups,
        probes=probes,
        calibrated=calibrated,
        shares=shares,
        preferences=chosen,
        audit=audited(job, dimension),
        components=[one for one in (judge_components(job, dimension), people_components(dimension)) if one is not None],
        sample_checks=sample_checks(job, dimension, panel),
        summary=[],
    )


def _at_worst(job: JobScores, dimension: DimensionScores, rater: RaterStatistics) -> RaterStatistics:
    """Return the rater with the bounds of its means, if judgements have no score."""
    extreme = extremes(job, dimension, None if rater.kind == "panel" else job.judges.index(rater.name))
    if extreme is None or not rater.mean.is_known:
        return rater
    people = rater.peoples_mean
    if people is not None:
        people = people.model_copy(update={"worst_case": extreme.peoples_worst_case(people.powered)})
    return rater.model_copy(update={"worst_case": extreme.worst_case(), "peoples_mean": people})


def _with_summary(job: JobScores, dimension: DimensionScores, statistics: DimensionStatistics) -> DimensionStatistics:
    """Return the statistics with their sentences, which need corrected p-values."""
    sentences = summary(
        statistics.voices, statistics.person, statistics.independent, statistics.groups, statistics.probes,
        statistics.sample_checks, leader=(statistics.leader, statistics.leader_p),
        preferences=statistics.preferences is not None,
        known_probabilities=dimension.people.probabilities is not None,
    )  # fmt: skip
    sentences += [
        *missing_sentences(statistics.voices[-1], statistics.groups),
        *replacement_sentences(statistics.voices),
        *disagreement_sentences(statistics.people),
        *component_sentences(statistics.components),
        *label_sentences(statistics.shares),
        *preference_sentences(statistics.preferences),
        *panel_sentences(dimension.spec),
        *skipped_sentences(dimension.spec, statistics.voices, job.items),
        *audit_sentences(statistics.audit),
        *_trust_sentences(dimension),
        *calibration_sentences(statistics.calibrated),
        *([statistics.population] if statistics.raters or job.cluster is not None else []),
    ]
    return statistics.model_copy(update={"summary": sentences})


def _probes(job: JobScores, dimension: DimensionScores) -> list[ProbeStatistics]:
    varied = {} if job.variants is None else _all_raters(job, replace(dimension, scores=dimension.varied), learns=False)
    orders = (
        []
        if dimension.orders is None
        else [_in_order(job, dimension, dimension.orders[..., which]) for which in (0, 1)]
    )
    return probe_statistics(job, dimension, _all_raters(job, dimension), varied, orders)


def _always_asked(job: JobScores, dimension: DimensionScores) -> dict[str, Floats]:
    """Return the scores of those raters that have scores of all items."""
    seldom = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    return {name: scores for name, scores in _all_raters(job, dimension).items() if name not in seldom}


def _in_order(job: JobScores, dimension: DimensionScores, scores: Floats) -> dict[str, Floats]:
    """Return the raters' scores from the rounds in one of the orders."""
    return _all_raters(job, replace(dimension, scores=scores, orders=None), learns=False)


def _all_raters(job: JobScores, dimension: DimensionScores, *, learns: bool = True) -> dict[str, Floats]:
    """Return one score an item from each judge, and from the panel if there are several. A panel whose rule learns
    from all items is included only with `learns`."""
    judged = {name: dimension.judges[:, at] for at, name in enumerate(job.judges)}
    alone = len(job.judges) == 1 or (dimension.spec.panel.learns and not learns)
    return judged if alone else judged | {"panel": panel_scores(job, dimension)}


def _leader(job: JobScores, dimension: DimensionScores) -> tuple[str, float | None]:
    """Return the judge who correlates highest with people, and the p-value of its being so; "" for a single judge, and
    where some were not asked about all items."""
    comparable = len(job.judges) > 1 and dimension.asked_everywhere.all() and not dimension.spec.nominal
    if not comparable or not dimension.people.raters:
        return "", None
    scores = dimension.judges[dimension.people.rated]
    best, p = leading_judge(scores, dimension.people.scores, dimension.rated_clusters)
    return job.judges[best], p


def _judge(name: str, at: int, dimension: DimensionScores, rng: np.random.Generator) -> RaterStatistics:
    if dimension.asked_everywhere[at]:
        return rater_statistics(name, "judge", dimension.scores[:, at, :], dimension, rng)
    return partly_asked_judge(name, at, dimension, rng)


def _independent(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> Figure:
    """Estimate how many independent judges the panel is worth, on items that all judges were asked about."""
    if dimension.spec.nominal or not dimension.people.raters:
        return Figure.unknown(NO_MEAN if dimension.spec.nominal else NOBODY_RATED)
    whole = dimension if dimension.asked_everywhere.all() else dimension.of_audit
    if whole is None:
        return Figure.unknown(SOME_JUDGES)
    if not len(whole.people.rated):
        return Figure.unknown(NOBODY_IN_AUDIT)
    alone = whole.judges[whole.people.rated][:, is_not_chief(job.judges, whole)]
    return figure(effective_judges(alone, whole.people.scores, rng, clusters=whole.rated_clusters))


def _among_judges(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    """Measure the agreement among the judges who were asked about all items: the others were asked where the first
    ones disagree.

    If only one judge was asked about all items, the items of the audit are used, with all judges. A chief knows what
    the others say, so its agreement with them says nothing, and it is left out.
    """
    left_out = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    scores = dimension.scores[:, dimension.asked_everywhere & is_not_chief(job.judges, dimension), 0]
    if not left_out or scores.shape[1] > 1:
        agreement = _among(scores, dimension, rng, dimension.clusters)
        return agreement if agreement is None else agreement.model_copy(update={"left_out": left_out})
    if dimension.of_audit is not None:
        return _among_judges(job, dimension.of_audit, rng)
    unknown = Figure.unknown(SOME_JUDGES)
    return RaterAgreement(
        raters=1, alpha=unknown, fleiss=unknown, icc_single=unknown, icc_mean=unknown, base_rate=None, items=0,
        missing=0.0, left_out=left_out,
    )  # fmt: skip


def _among(
    scores: Floats, dimension: DimensionScores, rng: np.random.Generator, clusters: Ints | None
) -> RaterAgreement | None:
    raters = scores.shape[1]
    if raters < 2:
        return None
    agreement = inter_rater_agreement(scores, dimension.level, dimension.levels, rng, clusters)
    return among_raters(agreement, raters, dimension)


PLANNED = (25, 50, 100, 200, 400, 800, 1600)


def pilot_errors(job: JobScores, dimension: DimensionScores) -> ExpectedErrors:
    """Return the expected errors in a dimension of a finished job, from its judges and its ratings, if any."""
    panel, people = panel_scores(job, dimension), dimension.people.means(job.items)
    return expected_errors(dimension.judges, panel, people, dimension.bounds)


def rating_plan(job: JobScores, dimension: DimensionScores, width: float | None) -> RatingPlan:
    """Return what ratings of a dimension would buy, and, for a `width` that is wanted, whether it is reached."""
    if dimension.spec.nominal:
        return RatingPlan(dimension=dimension.spec.id, reason="labels without an order have no mean")
    errors, panel = pilot_errors(job, dimension), panel_scores(job, dimension)
    people, chances = dimension.people.means(job.items), dimension.people.chances(job.items)
    sizes = [size for size in PLANNED if size < job.items]
    planned = None if width is None else _enough(errors, job.items, width)
    now = None
    if dimension.people.raters:
        now = figure(powered_sequence(panel, people, planned=planned or len(people), probabilities=chances))
    return RatingPlan(
        dimension=dimension.spec.id,
        pilot=errors.learned_from,
        prices=[
            RatingPrice(
                ratings=size,
                alone=width_alone(errors, size),
                even=expected_width(errors, np.full(job.items, size / job.items)),
                neyman=expected_width(errors, inclusion(errors.each, size)),
            )
            for size in sizes
        ],
        rated=len(dimension.people.rated),
        now=now,
        width=width,
        enough=planned,
    )


def _enough(errors: ExpectedErrors, items: int, width: float) -> int | None:
    """Return the smallest number of ratings, drawn by Neyman's allocation, whose interval is expected to be no wider
    however often one looks; None if all items are too few."""
    low, high = FEWEST_OF_PILOT - 1, items
    while high - low > 1:
        middle = (low + high) // 2
        plain = expected_width(errors, inclusion(errors.each, middle))
        reach = plain * sequence_factor(middle, middle) / quantile((1 + CONFIDENCE) / 2, max(middle - 1, 1))
        low, high = (low, middle) if reach <= width else (middle, high)
    return high if high < items else None


FEWEST_TO_TEST = 10
"""Fewer rated, or unrated, items are not tested."""
LEAST_EXPECTED = 1.0
MOST_GROUPS = 20


def sample_checks(job: JobScores, dimension: DimensionScores, panel: Floats) -> list[SampleCheck]:
    """Return the tests of one dimension, with p-values that are not corrected for their number; none where people
    rated too few items, or nearly all. `panel` has one score an item."""
    people = dimension.people
    judged = ~np.isnan(panel)
    rated = ~np.isnan(people.means(job.items)) & judged
    if not people.raters or people.flaw is not None or min(rated.sum(), (judged & ~rated).sum()) < FEWEST_TO_TEST:
        return []
    chances, clusters = people.chances(job.items), None if job.cluster is None else job.cluster[1]
    checks: list[SampleCheck] = []
    if not dimension.spec.nominal:
        for name, values in _of_items(dimension, panel):
            checks += _difference(name, values, rated, chances, clusters)
    if chances is None and clusters is None:
        for by, labels in job.groups.items():
            checks += _spread_over_groups(by, labels, rated, judged)
    return checks


def _of_items(dimension: DimensionScores, panel: Floats) -> Iterator[tuple[str, Floats]]:
    yield "score", panel
    yield "distance", np.abs(panel - np.nanmean(panel))
    judges = dimension.judges[:, dimension.asked_everywhere]
    if judges.shape[1] > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # items without any score
            yield "disagreement", np.nanstd(judges, axis=1)


def _difference(
    name: str, values: Floats, rated: Bools, chances: Floats | None, clusters: Ints | None
) -> Iterator[SampleCheck]:
    """Yield the test of the mean of rated against that of unrated items; nothing where all values are alike."""
    present = ~np.isnan(values)
    inside = rated & present
    all_items, n = int(present.sum()), int(inside.sum())
    if min(n, all_items - n) < FEWEST_TO_TEST or np.ptp(values[present]) < SMALLEST:
        return
    of_all = float(values[present].mean())
    simple = float(values[present].std(ddof=1)) * np.sqrt((1 - n / all_items) / n)
    weights = None if chances is None else 1 / chances[inside]
    found = deviation(values[inside], None if clusters is None else clusters[inside], weights)
    plain = chances is None and clusters is None
    error = simple if plain else max(simple, found.error)
    degrees = np.inf if plain else max(found.pieces - 1, 1)
    # From rated against all to rated against unrated items.
    stretch = all_items / (all_items - n)
    value, error = stretch * (found.value - of_all), stretch * error
    reach = student.quantile((1 + CONFIDENCE) / 2, degrees) * error
    estimate = Estimate(value, value - reach, value + reach, n, "rated less unrated items")
    yield SampleCheck(name=name, difference=figure(estimate), p=student.two_sided_p(value / error, degrees))


def _spread_over_groups(by: str, labels: Labels, rated: Bools, judged: Bools) -> Iterator[SampleCheck]:
    inside = judged & (labels.codes >= 0)
    codes = np.unique(labels.codes[inside], return_inverse=True)[1]
    counts, of_rated = np.bincount(codes), np.bincount(codes, weights=rated[inside].astype(np.float64))
    total, n = float(counts.sum()), float(of_rated.sum())
    if not 2 <= len(counts) <= MOST_GROUPS or not FEWEST_TO_TEST <= n <= total - FEWEST_TO_TEST:
        return
    expected = counts * n / total
    if min(expected.min(), (counts - expected).min()) < LEAST_EXPECTED:
        return
    squares = float(((of_rated - expected) ** 2 / (expected * (1 - n / total))).sum())
    yield SampleCheck(name=f"groups by {by}", p=float(special.chdtrc(len(counts) - 1, squares)))
