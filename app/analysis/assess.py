"""Computes all statistics of a job.

`assess` goes through the dimensions. The functions before it serve jobs in which not every judge was asked about every
item: those that ended when their question was answered, and those of an escalating panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dicast.app.analysis.agreement import inter_rater_agreement
from dicast.app.analysis.biases import probe_statistics
from dicast.app.analysis.claims import correct_claims, correct_sample_checks
from dicast.app.analysis.combining import effective_judges
from dicast.app.analysis.contestants import label_shares, preferences
from dicast.app.analysis.estimates import Estimate, Floats
from dicast.app.analysis.group_figures import group_statistics
from dicast.app.analysis.means import mean
from dicast.app.analysis.raters import (
    NO_MEAN,
    NOBODY_IN_AUDIT,
    NOBODY_RATED,
    calibrated_raters,
    partly_asked_judge,
    person,
    rater_statistics,
)
from dicast.app.analysis.representative import sample_checks
from dicast.app.analysis.scores import (
    DimensionScores,
    JobScores,
    StoppedJob,
    among_raters,
    figure,
    is_not_chief,
    panel_scores,
)
from dicast.app.analysis.sentences import (
    calibration_sentences,
    label_sentences,
    panel_sentences,
    preference_sentences,
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
    StoppedEarly,
)
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.question import JobAnswer, Question
from dicast.app.domain.report import ReportDimension


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
    apart = np.array(shift, dtype=np.float64)
    return EscalationAudit(
        items=len(calls),
        calls=figure(mean(np.array(calls, dtype=np.float64), bounds=(0.0, 1.0))),
        off=figure(mean(np.abs(apart), bounds=(0.0, float(scale.max - scale.min)))),
        shift=figure(mean(apart)),
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
    dimensions = correct_sample_checks(dimensions)
    return JobStatistics(
        state="computed",
        rated=rated,
        items=job.items,
        probabilities=any(dimension.people.probabilities is not None for dimension in job.dimensions),
        unknowable=[] if rated else list(UNKNOWABLE),
        stopped=stopped_early(job),
        claims=claims,
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
    raters = with_sequence(job, dimension, raters)
    ceiling = person(dimension, rng)
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
        panel=dimension.spec.panel.combine,
        voices=raters,
        person=ceiling,
        judges=_among_judges(job, dimension, rng),
        people=_among(people.scores, dimension, rng) if people.raters else None,
        independent=independent,
        groups=groups,
        probes=probes,
        calibrated=calibrated,
        shares=shares,
        preferences=chosen,
        audit=audited(job, dimension),
        sample_checks=sample_checks(job, dimension, panel),
        summary=[],
    )


def _with_summary(job: JobScores, dimension: DimensionScores, statistics: DimensionStatistics) -> DimensionStatistics:
    """Return the statistics with their sentences, which need corrected p-values."""
    sentences = summary(
        statistics.voices, statistics.person, statistics.independent, statistics.groups, statistics.probes,
        statistics.sample_checks, known_probabilities=dimension.people.probabilities is not None,
    )  # fmt: skip
    sentences += [
        *label_sentences(statistics.shares),
        *preference_sentences(statistics.preferences),
        *panel_sentences(dimension.spec),
        *skipped_sentences(dimension.spec, statistics.voices, job.items),
        *audit_sentences(statistics.audit),
        *calibration_sentences(statistics.calibrated),
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
    return figure(effective_judges(alone, whole.people.scores, rng))


def _among_judges(job: JobScores, dimension: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    """Measure the agreement among the judges who were asked about all items: the others were asked where the first
    ones disagree.

    If only one judge was asked about all items, the items of the audit are used, with all judges. A chief knows what
    the others say, so its agreement with them says nothing, and it is left out.
    """
    left_out = [name for name, everywhere in zip(job.judges, dimension.asked_everywhere, strict=True) if not everywhere]
    scores = dimension.scores[:, dimension.asked_everywhere & is_not_chief(job.judges, dimension), 0]
    if not left_out or scores.shape[1] > 1:
        agreement = _among(scores, dimension, rng)
        return agreement if agreement is None else agreement.model_copy(update={"left_out": left_out})
    if dimension.of_audit is not None:
        return _among_judges(job, dimension.of_audit, rng)
    unknown = Figure.unknown(SOME_JUDGES)
    return RaterAgreement(
        raters=1, alpha=unknown, fleiss=unknown, icc_single=unknown, icc_mean=unknown, base_rate=None, items=0,
        missing=0.0, left_out=left_out,
    )  # fmt: skip


def _among(scores: Floats, dimension: DimensionScores, rng: np.random.Generator) -> RaterAgreement | None:
    raters = scores.shape[1]
    if raters < 2:
        return None
    return among_raters(inter_rater_agreement(scores, dimension.level, dimension.levels, rng), raters, dimension)
