"""Draws the conclusions of a job from its report: counts, whom to trust, what failed, and what to do now.

`conclude` is the one place from which every reader gets the same sentences. Which system is best is the part of
`app/domain/standings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dicast.app.domain.conclusions import (
    Advice,
    Conclusions,
    Counts,
    FailureRow,
    Health,
    JudgeRow,
    NextStep,
)
from dicast.app.domain.figure import Figure, interval_text
from dicast.app.domain.judge_statistics import PROBE_TITLES, DimensionStatistics, RaterStatistics
from dicast.app.domain.opinion import ErrorGroup, ErrorKind
from dicast.app.domain.report import Report, ReportDimension
from dicast.app.domain.standings import CLEAR, Placement, standing, title
from dicast.app.domain.text import counted, first_few, joined, percent

MOST_JUDGES = 60
MOST_FAILURES = 60
MESSAGE_CHARS = 300
NAMED = 3
TOO_MANY_FAILED = 0.5
"""Nothing is said of a judge of whose judgements a larger share failed."""
AS_GOOD_WITHIN = 0.1
"""A judge follows people as a person does if its agreement is surely no further below the lower end of a person's."""
HARDLY = 0.4
"""People who agree less than this with each other give a judge little to follow."""
SAVES = 1.05
"""Judges that make ratings more precise by a smaller factor are reported as adding nothing."""
SAMPLE = 100
PANEL = "panel"

REMEDIES: Mapping[ErrorKind, str] = {
    ErrorKind.RATE_LIMITED: "judge them again when the provider is less busy, or lower the pool's limit",
    ErrorKind.QUOTA_EXHAUSTED: "top up the account, then judge them again",
    ErrorKind.PROVIDER: "judge them again: the provider failed",
    ErrorKind.TIMEOUT: "judge them again, with a longer LLM_CALL_TIMEOUT if it lasts",
    ErrorKind.REJECTED: "mend what the provider rejects, then judge them again",
    ErrorKind.MALFORMED: "use a model that answers in the form that is asked for",
    ErrorKind.OUT_OF_TOKENS: "raise the judge's max_tokens, or lower its effort, then judge them again",
    ErrorKind.REFUSED: "leave these items to the other judges, or use a model that answers",
    ErrorKind.FILTERED: "leave these items to the other judges, or use a provider without this filter",
    ErrorKind.NOT_ASKED: "mend why the first calls failed, then judge them again",
    ErrorKind.POOL_DOWN: "judge them again when the pool answers",
    ErrorKind.CAPPED: "judge them again with a higher cap (--max-cost, --max-tokens or --max-calls)",
    ErrorKind.DEADLINE: "judge them again with a later deadline",
    ErrorKind.CANCELLED: "judge them again if they are wanted",
    ErrorKind.LOST: "judge them again: workers died over them",
    ErrorKind.OUTCOME_UNKNOWN: "judge them again if paying twice is no harm",
    ErrorKind.INTERNAL: "report this fault of Dicast, and judge them again",
}
BY_STATUS: Mapping[int, str] = {
    400: "read what the provider rejects (a content filter, or a setting), or leave these items to the other judges",
    401: "mend the pool's API key, then judge them again",
    403: "mend what the pool's API key may do, then judge them again",
    404: "mend the name of the model, then judge them again",
    413: "shorten these texts, or use a model that takes longer ones",
    422: "mend the setting that the provider rejects, then judge them again",
}
CAUSES: Mapping[ErrorKind, str] = {
    ErrorKind.RATE_LIMITED: "too many calls for the provider",
    ErrorKind.QUOTA_EXHAUSTED: "the account has no money left",
    ErrorKind.PROVIDER: "the provider failed",
    ErrorKind.TIMEOUT: "no answer in time",
    ErrorKind.REJECTED: "rejected by the provider",
    ErrorKind.MALFORMED: "the answer was no valid opinion",
    ErrorKind.OUT_OF_TOKENS: "reasoning took all of max_tokens",
    ErrorKind.REFUSED: "the model refused to answer",
    ErrorKind.FILTERED: "stopped by a content filter",
    ErrorKind.NOT_ASKED: "not asked, since the first calls all failed",
    ErrorKind.POOL_DOWN: "the pool was down for too long",
    ErrorKind.CAPPED: "the job's cap was met",
    ErrorKind.DEADLINE: "the deadline passed",
    ErrorKind.CANCELLED: "cancelled",
    ErrorKind.LOST: "workers died over it",
    ErrorKind.OUTCOME_UNKNOWN: "the call's outcome is unknown",
    ErrorKind.INTERNAL: "a fault of Dicast",
}
STATUS_CAUSES: Mapping[int, str] = {
    401: "the API key is not accepted", 403: "the API key may not do this", 404: "the model is not there",
    413: "the text is too long",
}  # fmt: skip


def conclude(report: Report) -> Conclusions:
    """Return the conclusions of a report."""
    counts, placement = counts_of(report), standing(report)
    failed = failure_rows(report)
    judges = judge_rows(report)
    trust = list(_trust(report, judges))
    health, badge = _health(report, counts)
    best = [report.answer.sentence(), *placement.sentences] if report.answer is not None else placement.sentences
    return Conclusions(
        subject=placement.subject,
        health=health,
        badge=badge,
        opinion=placement.opinion,
        winner=placement.winner,
        best=best,
        trust=trust,
        failures=list(_failures(report, counts, failed)),
        actions=_actions(report, placement, judges, failed, counts),
        counts=counts,
        charts=placement.charts,
        judges=judges,
        failed=failed,
    )


def counts_of(report: Report) -> Counts:
    """Return how many judgements of which kind the job has: the one definition for every place that shows them."""
    errors, books = sum(group.count for group in report.errors), report.cost.lines
    return Counts(
        planned=report.units - report.probed,
        scored=report.scored,
        failed=report.failed,
        spared=report.spared,
        missing=report.missing,
        probes=report.probed,
        probes_failed=max(0, errors - report.failed) if report.probed else 0,
        input_tokens=sum(line.input_tokens for line in books) if books else report.input_tokens,
        output_tokens=sum(line.output_tokens for line in books) if books else report.output_tokens,
    )


def _health(report: Report, counts: Counts) -> tuple[Health, str]:
    if counts.failed and not counts.scored:
        return "bad", f"{report.status}, all failed"
    if not counts.scored:
        return "bad", f"{report.status}, nothing judged"
    if counts.failed:
        return "partial", f"{report.status}, {counts.failed:,} failed"
    if report.status == "cancelled" or (counts.missing and report.answer is None):
        return "partial", f"{report.status}, {counts.missing:,} not judged"
    return "good", report.status


# What failed


def failure_rows(report: Report) -> list[FailureRow]:
    """Return what failed by judge and cause, the most first; of variants of items nothing."""
    rows = [
        failure_row(
            entry.judge, group.kind, entry.status_code, entry.count, _message(group, entry.judge, entry.status_code)
        )
        for group in report.errors
        for entry in group.judges
    ]  # fmt: skip
    if not rows:  # a report of an earlier version counts no judges
        rows = [
            failure_row("", group.kind, None, group.count, _message(group, "", None))
            for group in report.errors
            if report.failed
        ]
    return sorted(rows, key=lambda row: (-row.count, row.judge, row.kind))[:MOST_FAILURES]


def failure_row(judge: str, kind: ErrorKind, status: int | None, count: int, message: str) -> FailureRow:
    """Return so many failures of a judge with their cause and what to do about it; `message` is what was said."""
    return FailureRow(
        judge=judge, kind=kind.value, cause=_cause(kind, status), count=count, message=message,
        remedy=_remedy(kind, status),
    )  # fmt: skip


def _cause(kind: ErrorKind, status: int | None) -> str:
    status_cause = STATUS_CAUSES.get(status or 0) if kind is ErrorKind.REJECTED else None
    cause = status_cause or CAUSES[kind]
    return f"{cause}, status {status}" if status is not None else cause


def _remedy(kind: ErrorKind, status: int | None) -> str:
    return (BY_STATUS.get(status or 0) if kind is ErrorKind.REJECTED else None) or REMEDIES[kind]


def _message(group: ErrorGroup, judge: str, status: int | None) -> str:
    """Return what was said most often, for this judge and status if that is known."""
    fitting = [reason for reason in group.reasons if reason.judge == judge and reason.status_code == status]
    like = fitting or [reason for reason in group.reasons if reason.status_code == status] or group.reasons
    return like[0].message[:MESSAGE_CHARS] if like else ""


def _failures(report: Report, counts: Counts, rows: Sequence[FailureRow]) -> Iterator[str]:
    if counts.failed:
        all_failed = not counts.scored
        share = f"All {counts.failed:,}" if all_failed else f"{counts.failed:,} of {counts.made:,}"
        yield f"{share} judgements failed: {_grouped(rows, len(report.agents))}."
        yield from _at_worst(report)
    elif counts.scored:
        yield f"Nothing failed: all {counted(counts.scored, 'judgement')} have a score."
    for stop in report.stopped[:NAMED]:
        yield f"The job stopped asking: {stop.reason.rstrip('.')}."
    for change in report.went_online[:NAMED]:
        yield f"{change.reason[:1].upper()}{change.reason[1:]}."
    if report.moved_online:
        yield f"{counted(report.moved_online, 'judgement')} were taken out of a batch for this, and asked online."
    for parameter in report.dropped[:NAMED]:
        yield f"{parameter.reason.rstrip('.')}."
    for row in [row for row in report.by_agent if row.as_written][:NAMED]:
        yield f"{row.as_written_told}."
    if counts.missing and report.answer is None:
        why = f", because {report.reason}" if report.reason else ""
        yield f"{counted(counts.missing, 'judgement')} were never made{why}."
    if counts.spared:
        yield f"{counted(counts.spared, 'judgement')} were not needed: earlier judges had settled the outcome."
    if counts.probes_failed:
        yield f"Of {counts.probes:,} further judgements, made to look for biases, {counts.probes_failed:,} failed."


def _at_worst(report: Report) -> Iterator[str]:
    """Yield what the failed judgements could make of the mean, in the dimension where that is most of the scale."""
    areas = report.statistics.dimensions if report.statistics is not None else []
    of_all = {area.dimension: area.voices[-1] for area in areas if area.voices}
    bounds: list[tuple[float, str]] = []
    for row in report.by_dimension:
        scores, dimension, whole = row.scores, row.dimension, of_all.get(row.dimension.id)
        if dimension.nominal or scores.mean is None or not scores.failures or report.answer is not None:
            continue
        if whole is not None and whole.worst_case is not None and whole.mean.value is not None:
            mean, low, high = whole.mean.value, whole.worst_case.low, whole.worst_case.high
        else:
            mean, units = scores.mean, scores.n + scores.failures
            low, high = (
                (scores.n * mean + scores.failures * end) / units for end in (dimension.scale_min, dimension.scale_max)
            )
        part = (high - low) / (dimension.scale_max - dimension.scale_min)
        bounds.append((part, f"the judges' mean of {mean:.2f} in {title(dimension)} would be {low:.2f} to {high:.2f}"))
    if bounds:
        yield f"Had they been the lowest or the highest scores there are, {max(bounds)[1]}."


def _grouped(rows: Sequence[FailureRow], judges: int) -> str:
    """Say how often what went wrong, and with which judges, as `20 times the text is too long (night shift)`."""
    causes: dict[str, list[FailureRow]] = {}
    for row in rows:
        causes.setdefault(row.cause, []).append(row)
    texts = []
    for cause, entries in causes.items():
        names = list(dict.fromkeys(row.judge for row in entries if row.judge))
        whose = f" ({first_few(names, NAMED)})" if names and len(names) < judges else ""
        times = f"{sum(row.count for row in entries):,} times " if len(causes) > 1 else ""
        texts.append(f"{times}{cause}{whose}")
    return "; ".join(texts[:NAMED]) or "nobody knows why"


# Whom to trust


class _Held(NamedTuple):
    """Holds the agreement of a judge, or of the panel, and of a person with people in one dimension."""

    dimension: ReportDimension
    judge: Figure
    person: Figure


def judge_rows(report: Report) -> list[JudgeRow]:
    """Return a row for each judge, in their order, and one for the panel if there are several."""
    statistics = report.statistics
    areas = statistics.dimensions if statistics is not None and statistics.state == "computed" else []
    dimensions = {dimension.id: dimension for dimension in report.dimensions}
    voices: dict[str, list[tuple[DimensionStatistics, RaterStatistics]]] = {}
    for area in areas:
        for voice in area.voices:
            voices.setdefault(PANEL if voice.kind == "panel" else f"judge {voice.name}", []).append((area, voice))
    rows = [
        _row(
            _empty(row.agent.name, row.failures, row.n, ", ".join(row.models) or row.agent.model or ""),
            voices.get(f"judge {row.agent.name}", []), dimensions,
        )
        for row in report.by_agent[:MOST_JUDGES]
    ]  # fmt: skip
    best = max((row.agreement.low or 0.0 for row in rows), default=0.0)
    rows = [_beside_best(row, best) for row in rows]
    if len(report.by_agent) > 1 and areas:
        panel = _empty("the panel", report.failed, report.scored, panel=True)
        rows.append(_row(panel, voices.get(PANEL, []), dimensions))
    return rows


def _row(
    empty: JudgeRow, voices: Sequence[tuple[DimensionStatistics, RaterStatistics]],
    dimensions: Mapping[str, ReportDimension],
) -> JudgeRow:  # fmt: skip
    """Return the row with what is known of a judge, or of the panel, and what to do with it."""
    agreement, person = _pooled(held_against_people(voices, dimensions))
    if not any(area.rated_items for area, _ in voices):
        agreement = person = Figure.unknown("nobody has rated these items")
    row = empty.model_copy(
        update={
            "agreement": agreement, "person": person, "bias": _bias(voices, dimensions), "noise": _noise(voices),
            "probes": _probes(PANEL if empty.kind == "panel" else empty.name, voices),
        }
    )  # fmt: skip
    advice, reason = _advice(row)
    return row.model_copy(update={"advice": advice, "reason": reason})


def _empty(name: str, failed: int, scored: int, model: str = "", *, panel: bool = False) -> JudgeRow:
    unknown = Figure.unknown("it was not computed")
    return JudgeRow(
        name=name, kind="panel" if panel else "judge", model=model, agreement=unknown, person=unknown, failed=failed,
        asked=scored + failed, advice="unknown", reason="",
    )  # fmt: skip


def held_against_people(
    voices: Sequence[tuple[DimensionStatistics, RaterStatistics]], dimensions: Mapping[str, ReportDimension]
) -> list[_Held]:
    """Return how far a judge and a person agree with people, for the dimensions in which the judge's is known."""
    comparisons = []
    for area, voice in voices:
        unrated = Figure.unknown("nobody rated")
        judge, person = voice.pearson, area.person.pearson if area.person is not None else unrated
        if not judge.is_known and voice.kappa.is_known:
            judge = voice.kappa
            person = area.person.kappa if area.person is not None else person
        if judge.is_known and area.dimension in dimensions:
            comparisons.append(_Held(dimensions[area.dimension], judge, person))
    return comparisons


def _pooled(held: Sequence[_Held]) -> tuple[Figure, Figure]:
    """Return the judge's and the person's means over the dimensions."""
    nobody = Figure.unknown("too few ratings by people to say")
    if not held:
        return nobody, nobody
    both = [entry for entry in held if entry.person.is_known]
    judges = [entry.judge for entry in both or held]
    return mean_agreement(judges), mean_agreement([entry.person for entry in both]) if both else nobody


def mean_agreement(figures: Sequence[Figure]) -> Figure:
    """Return the mean of correlations or kappas by Fisher's z. The half width of its interval is the mean of theirs,
    which is what it is if all err alike, and an upper bound otherwise."""
    middle, half = 0.0, 0.0
    for figure in figures:
        value, low, high = (math.atanh(max(-0.999, min(0.999, end or 0.0))) for end in (
            figure.value, figure.low, figure.high
        ))  # fmt: skip
        middle += value / len(figures)
        half += (high - low) / 2 / len(figures)
    items = min(figure.items for figure in figures)
    if len(figures) == 1:
        return figures[0]
    return Figure.combined(
        math.tanh(middle), "mean over dimensions by Fisher's z", low=math.tanh(middle - half),
        high=math.tanh(middle + half), items=items,
    )  # fmt: skip


def _bias(
    voices: Sequence[tuple[DimensionStatistics, RaterStatistics]], dimensions: Mapping[str, ReportDimension]
) -> str:
    """Say how strict or kind a judge is in the dimension where that is clearest, and in how many more it is clear."""
    tested = [(area, voice) for area, voice in voices if voice.bias.is_known and voice.bias_p is not None]
    if not tested:
        return ""
    clear = [(area, voice) for area, voice in tested if (voice.bias_p or 0.0) < CLEAR]
    if not clear:
        return "as people"
    signs = {(voice.bias.value or 0.0) > 0 for _, voice in clear}
    area, voice = max(clear, key=lambda pair: abs(pair[1].bias.value or 0.0) / (pair[0].scale_max - pair[0].scale_min))
    value, low, high = voice.bias.value or 0.0, voice.bias.low or 0.0, voice.bias.high or 0.0
    ends = (low, high) if value > 0 else (-high, -low)
    word = "kind" if value > 0 else "strict"
    where = f" in {title(dimensions[area.dimension])}" if len(voices) > 1 and area.dimension in dimensions else ""
    more = len(clear) - 1
    also = f", and in {more} more" if more and len(signs) == 1 else ", and the reverse elsewhere" if more else ""
    return f"{word} by {abs(value):.2f} ({ends[0]:.2f} to {ends[1]:.2f}){where}{also}"


def _noise(voices: Sequence[tuple[DimensionStatistics, RaterStatistics]]) -> Figure | None:
    """Return how far a judge agrees with itself over replicates, in the dimension where it does so least."""
    repeats = [voice.repeats for _, voice in voices if voice.repeats is not None and voice.repeats.is_known]
    return min(repeats, key=lambda figure: figure.value or 0.0) if repeats else None


def _probes(name: str, voices: Sequence[tuple[DimensionStatistics, RaterStatistics]]) -> list[str]:
    """Return what clearly moves a judge although it should not, once for each kind of probe, where it is strongest."""
    strongest: dict[str, tuple[float, str]] = {}
    for area, _ in voices:
        for probe in area.probes:
            value = probe.effect.value
            if probe.voice != name or probe.p is None or probe.p >= CLEAR or value is None:
                continue
            text = f"{PROBE_TITLES[probe.probe]}: {interval_text(probe.effect, signed=True)} points"
            if probe.probe not in strongest or abs(value) > strongest[probe.probe][0]:
                strongest[probe.probe] = abs(value), text
    return [text for _, text in strongest.values()]


def _advice(row: JudgeRow) -> tuple[Advice, str]:
    """Return what to do with a judge by itself, and why."""
    if row.asked and row.failed / row.asked > TOO_MANY_FAILED:
        return "unknown", f"{percent(row.failed / row.asked)} of its judgements failed"
    low, high = row.agreement.low, row.agreement.high
    if row.agreement.value is None or low is None or high is None:
        return "unknown", row.agreement.reason or "too few ratings by people to say"
    person = row.person
    if person.low is not None and high < person.low:
        return "drop", f"follows people clearly less than a person does ({_beside(row)})"
    if low <= 0:
        return "drop", f"is not seen to follow people at all (agreement {ends_text(row.agreement)})"
    if row.bias and row.bias != "as people":
        return (
            "calibrate",
            f"follows people, but its scores are too {'low' if row.bias.startswith('strict') else 'high'}",
        )
    if person.value is not None and person.low is not None:
        if row.agreement.value < person.low:
            return "unknown", f"may follow people less than a person does ({_beside(row)}); more ratings would tell"
        if low < person.low - AS_GOOD_WITHIN:
            return "use", f"seems to follow people as a person does, by few ratings ({_beside(row)})"
        return "use", f"follows people as a person does ({_beside(row)})"
    return "use", f"follows people (agreement {ends_text(row.agreement)})"


def _beside(row: JudgeRow) -> str:
    return f"agreement {ends_text(row.agreement)}; a person's {ends_text(row.person)}"


def ends_text(figure: Figure) -> str:
    """Format a known figure for use within parentheses, as `0.62, 0.50 to 0.72`."""
    return f"{figure.value:.2f}, {figure.low:.2f} to {figure.high:.2f}"


def _beside_best(row: JudgeRow, best: float) -> JudgeRow:
    """Advise against a judge that follows people clearly less than the best one does."""
    high = row.agreement.high
    if row.advice == "drop" or high is None or high >= best:
        return row
    reason = f"follows people clearly less than the best judge does (agreement {ends_text(row.agreement)})"
    return row.model_copy(update={"advice": "drop", "reason": reason})


def _trust(report: Report, judges: Sequence[JudgeRow]) -> Iterator[str]:
    statistics = report.statistics
    if not report.scored:
        yield "No judge can be assessed without a score."
        return
    if statistics is None or not statistics.rated:
        yield "Nobody has rated any of these items, so it is not known whether the judges are right."
        yield from _among_judges(report)
        return
    if statistics.state != "computed":
        yield f"How far the judges can be trusted is not known, because {statistics.reason or 'it was not computed'}."
        return
    dimensions = {dimension.id: dimension for dimension in report.dimensions}
    voices = [(area, area.voices[-1]) for area in statistics.dimensions if area.voices]
    yield from _whole_panel(report, held_against_people(voices, dimensions), len(voices))
    if unlike := [title(dimensions[area.dimension]) for area in statistics.dimensions if _is_unlike(area)]:
        yield (
            f"The rated items are no random sample of all ({joined(unlike[:NAMED])}): what is said of people holds for "
            "items like the rated ones alone."
        )
    dropped = [row for row in judges if row.kind == "judge" and row.advice == "drop"]
    for row in dropped[:NAMED]:
        yield f"Do not rely on {row.name}: it {row.reason}."
    moved = [row for row in judges if row.kind == "judge" and row.probes]
    for row in moved[:NAMED]:
        yield f"{row.name} is moved by what should not count ({'; '.join(row.probes[:2])})."
    yield from _precision(voices)


def _among_judges(report: Report) -> Iterator[str]:
    """Yield how far the judges differ among each other, which is all that is known without people."""
    apart = [
        row.mean_difference / (1 if row.dimension.nominal else row.dimension.scale_max - row.dimension.scale_min)
        for row in report.by_dimension
        if row.mean_difference is not None and row.dimension.kind != "preference"
    ]
    if apart:
        mean = percent(sum(apart) / len(apart))
        yield (
            f"Two judges of the same text differ by {mean} of the scale on average; agreement would not make them "
            "right."
        )


def _whole_panel(report: Report, held: Sequence[_Held], dimensions: int) -> Iterator[str]:
    """Yield how closely the panel, or the only judge, follows people beside a person: one sentence a finding."""
    who = "The panel" if len(report.agents) > 1 else report.agents[0].name
    if not held:
        yield f"How far {who[0].lower() + who[1:]} follows people cannot be said: they have not rated enough."
        return
    groups: dict[str, list[_Held]] = {}
    for entry in held:
        groups.setdefault(_relation(entry), []).append(entry)
    phrases = {
        "more": "follows people more closely than a person does",
        "as": "follows people about as closely as a person does",
        "less": "follows people less closely than a person does",
        "alone": "follows people",
        "not": "is not seen to follow people",
    }
    for n, relation in enumerate(sorted(groups, key=lambda relation: -len(groups[relation]))):
        entries = groups[relation]
        agreement, person = _pooled(entries)
        texts = f"agreement {ends_text(agreement)}"
        texts += f"; a person's {ends_text(person)}" if person.is_known else "; a person's is not known"
        yield f"{who if n == 0 else 'It'} {phrases[relation]}{_where(entries, dimensions)} ({texts})."
    if weak := [entry for entry in held if entry.person.value is not None and entry.person.value < HARDLY]:
        names = [f"{title(entry.dimension)} (agreement {ends_text(entry.person)})" for entry in weak]
        yield f"People hardly agree with each other in {first_few(names, NAMED)}."


def _where(entries: Sequence[_Held], dimensions: int) -> str:
    if dimensions == 1:
        return ""
    if len(entries) == dimensions:
        return f" in {'both' if dimensions == 2 else f'all {dimensions}'} dimensions"
    return f" in {first_few([title(entry.dimension) for entry in entries], NAMED)}"


def _relation(entry: _Held) -> str:
    low, high = entry.judge.low or 0.0, entry.judge.high or 0.0
    if low <= 0:
        return "not"
    if entry.person.low is None or entry.person.high is None:
        return "alone"
    return "more" if low > entry.person.high else "less" if high < entry.person.low else "as"


def _is_unlike(area: DimensionStatistics) -> bool:
    """Return whether the rated items are clearly no random sample of all."""
    return any(check.p < CLEAR for check in area.sample_checks)


def _precision(voices: Sequence[tuple[DimensionStatistics, RaterStatistics]]) -> Iterator[str]:
    """Yield what the judges' help makes of people's ratings."""
    saved = [
        (area.rated_items, voice.peoples_mean.saved)
        for area, voice in voices
        if voice.peoples_mean is not None and voice.peoples_mean.saved is not None
    ]
    if not saved:
        return
    rated = max(items for items, _ in saved)
    low, high = (round(rated * times) for times in (min(t for _, t in saved), max(t for _, t in saved)))
    if high < SAVES * rated:
        yield "The judges add nothing to what people's ratings tell."
        return
    many = f"{high:,}" if high - low < SAVES * rated - rated else f"{max(rated, low):,} to {high:,}"
    yield f"With the judges' help, {rated:,} rated items tell as much as {many} would without it."


# What to do now


def _actions(
    report: Report, placement: Placement, judges: Sequence[JudgeRow], failed: Sequence[FailureRow], counts: Counts
) -> list[NextStep]:
    steps = list(_mending(report, failed, counts))
    alone = [row for row in judges if row.kind == "judge"]
    dropped = [row.name for row in alone if row.advice == "drop" and row.agreement.is_known]
    if dropped and len(dropped) == len(alone):
        steps.append(NextStep(
            kind="drop", judges=dropped, text="Use other models or other instructions: no judge can be relied on."
        ))  # fmt: skip
    elif dropped:
        steps.append(NextStep(kind="drop", judges=dropped, text=f"Drop or replace {joined(dropped)}."))
    if biased := [row.name for row in alone if row.advice == "calibrate"]:
        steps.append(NextStep(
            kind="calibrate", judges=biased, text=f"Calibrate {joined(biased)} with people's ratings, if that helps.",
            command=f"dicast calibrate {report.job_id} -o calibration.json",
        ))  # fmt: skip
    if counts.scored and (report.statistics is None or not report.statistics.rated):
        steps.append(NextStep(
            kind="rate", text=f"Have people rate about {SAMPLE} of the items, to know whether the judges are right.",
            command=f"dicast sample JOB.yaml -n {SAMPLE} --to ratings.csv",
        ))  # fmt: skip
    if placement.undecided is not None:
        steps.append(NextStep(kind="judge_more", text=placement.undecided))
    if placement.subject in ("scores", "labels"):
        steps.append(NextStep(
            kind="group", text="To compare systems, list the metadata that names them under groups in the job."
        ))  # fmt: skip
    if placement.subject == "pairs" and placement.charts and not placement.charts[0].by:
        steps.append(NextStep(
            kind="name", text="To learn which system is better, keep the metadata system_a and system_b of each pair."
        ))  # fmt: skip
    return steps or [NextStep(kind="none", text="Nothing needs to be done.")]


def _mending(report: Report, rows: Sequence[FailureRow], counts: Counts) -> Iterator[NextStep]:
    """Yield what to do about what failed, a step for each remedy, and how to have it judged again."""
    by_remedy: dict[str, list[FailureRow]] = {}
    for row in rows if counts.failed else ():
        by_remedy.setdefault(row.remedy, []).append(row)
    resume = f"dicast jobs resume {report.job_id}"
    for remedy, entries in list(by_remedy.items())[:NAMED]:
        names = list(dict.fromkeys(row.judge for row in entries if row.judge))
        whose = f" of {first_few(names, NAMED)}" if names else ""
        count = counted(sum(row.count for row in entries), "judgement")
        yield NextStep(
            kind="mend", judges=names, text=f"{count}{whose} failed: {remedy}.",
            command=resume if "judge them again" in remedy else "",
        )  # fmt: skip
    if counts.missing and report.answer is None and not counts.failed:
        missing = counted(counts.missing, "judgement")
        yield NextStep(kind="judge_again", text=f"Have the {missing} made that are missing.", command=resume)
