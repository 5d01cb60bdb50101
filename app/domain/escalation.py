"""Which judges of a panel are called: the next one only while the outcome can still change.

An outcome is settled if it is the same whatever scores the remaining judges give, and however many of them answer at
all. It is then the full panel's outcome, even if a skipped judge would have failed. Only a difference and an
uncertainty (`Escalation`) trade accuracy for calls. lab/statistics/panel_replay.py makes the same decisions for whole
arrays; this module makes them for one item at a time.

The last stage may be a chief judge, who is shown the others' opinions without their names, in an order that is drawn
anew for each item and round, so that neither a name nor a position carries weight. Their arguments are material, as the
text is: they were written by a model that may have obeyed the text it read. A chief that is shown a pair in swapped
order sees preferences in that order too, as the judges of its round did.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import hypot, inf, sqrt
from statistics import stdev
from typing import TYPE_CHECKING, Any

from dicast.app.domain import panel
from dicast.app.domain.dimension import Scale
from dicast.app.domain.item import VisibleOpinion
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import NEARLY, SPREAD_LEAST, PanelRule, commonest, unswapped_score
from dicast.app.domain.plan import Unit
from dicast.app.domain.scoreboard import Scoreboard

if TYPE_CHECKING:
    from dicast.app.domain.dimension import Scale
    from dicast.app.domain.job import EvaluationJob

FIRST = 2
"""How many judges are called before their difference counts."""
NO_ERRORS: Mapping[str, float] = {}


def is_settled(
    rule: PanelRule,
    scores_by_judge: Mapping[str, float],
    remaining: Sequence[str],
    scale: Scale,
    errors: Mapping[str, float] = NO_ERRORS,
) -> bool:
    """Whether none of the judges in `remaining` is needed, after the scores that others have given.

    An uncertainty is compared with the standard `errors` of all judges called so far, including those without a score.
    """
    if not remaining:
        return True
    if not scores_by_judge:
        return False
    if rule.escalate is not None and rule.escalate.difference is not None:
        scores = scores_by_judge.values()
        return len(scores_by_judge) >= FIRST and max(scores) - min(scores) < rule.escalate.difference
    if rule.escalate is not None and rule.escalate.uncertainty is not None:
        return _error_of_mean(rule, errors) <= rule.escalate.uncertainty + NEARLY
    if rule.combine == "majority" and rule.threshold is None:
        return _majority_is_certain(list(scores_by_judge.values()), len(remaining))
    # All other rules are monotone in each score, so what stays the same at both ends of the scale stays so between.
    ends = {
        rule.combined({**scores_by_judge, **dict.fromkeys(remaining[:answering], float(end))})
        for answering in _possible_answer_counts(rule, len(remaining))
        for end in (scale.min, scale.max)
    }
    return len(ends) == 1 and None not in ends


def standard_error(answers: Sequence[float]) -> float:
    """Return the standard error of the mean of one judge's answers to one question; infinite for fewer than two
    answers, which show no spread."""
    return stdev(answers) / sqrt(len(answers)) if len(answers) >= SPREAD_LEAST else inf


def _error_of_mean(rule: PanelRule, errors: Mapping[str, float]) -> float:
    """Return the standard error of the mean of several judges' scores, weighted if the rule has weights, from each
    judge's own."""
    weights = rule.given_weights or dict.fromkeys(errors, 1.0)
    total = sum(weights[judge] for judge in errors)
    return hypot(*(weights[judge] * error for judge, error in errors.items())) / total if total else inf


def _possible_answer_counts(rule: PanelRule, remaining: int) -> Sequence[int]:
    """Return how many of the remaining judges may answer.

    For a weighted mean with a threshold the two extremes suffice: each answer at an end of the scale moves the mean to
    that end.
    """
    return (0, remaining) if rule.combine == "weighted" else range(remaining + 1)


def _majority_is_certain(scores: Sequence[float], remaining: int) -> bool:
    """Whether the commonest score stays the only commonest one, whatever the remaining judges say."""
    counts = [count for _, count in Counter(scores).most_common(2)]
    return counts[0] > (counts[1] if len(counts) > 1 else 0) + remaining


def earliest_settlement(rule: PanelRule, judges: Sequence[str], scale: Scale) -> int:
    """Return the smallest number of judges, called in this order, after which the outcome can be settled; at
    least 1."""
    for count in range(1, len(judges)):
        for end in (scale.min, scale.max):
            scores_by_judge, errors = (dict.fromkeys(judges[:count], value) for value in (float(end), 0.0))
            if is_settled(rule, scores_by_judge, judges[count:], scale, errors):
                return count
    return len(judges)


def always_asked(rule: PanelRule, judges: Sequence[str], ends: tuple[int, int]) -> Sequence[str]:
    """Return the judges that are called about every item; `ends` are the ends of the scale."""
    return (
        judges
        if rule.escalate is None
        else judges[: earliest_settlement(rule, judges, Scale(min=ends[0], max=ends[1]))]
    )


def stages_of(job: EvaluationJob) -> list[int]:
    """Return the stage of each agent: an agent is called when all units of earlier stages have ended.

    A chief comes after all others. Otherwise all agents are in stage 0 if no dimension escalates; if one does, the
    judges without whom nothing can be settled are in stage 0, and each further judge has a stage of its own.
    """
    names = [agent.name for agent in job.agents]
    if job.chief is not None:
        return [int(name == job.chief) for name in names]
    escalating = [d for d in job.dimensions if job.panel_of(d).escalate is not None]
    if not escalating:
        return [0] * len(names)
    at_once = min(earliest_settlement(job.panel_of(d), names, d.scale) for d in escalating)
    return [max(0, number - at_once + 1) for number in range(len(names))]


def is_audited(rule: PanelRule, item_id: str) -> bool:
    """Whether all judges are called about an item, whatever the first ones say. The choice is pseudo-random, and always
    the same for an item."""
    if rule.escalate is None or rule.escalate.audit is None:
        return False
    lot = int.from_bytes(blake2b(item_id.encode(), digest_size=8, person=b"audit").digest())
    return lot < rule.escalate.audit * 2**64


def is_needed(job: EvaluationJob, stages: Sequence[int], scoreboard: Scoreboard, unit: Unit, item_id: str) -> bool:
    """Whether a unit is to be judged, now that all earlier stages have ended for its item.

    A judge's replicates count by their mean, or by the commonest of labels without an order; preferences given in both
    orders count as in the panel's score. Judges without any score are absent. For an uncertainty each round is an
    answer of its own, so a judge whose preference changes with the order is uncertain, and so is one that was called
    and has no score.
    """
    dimension, stage = job.dimensions[unit.dimension], stages[unit.agent]
    rule = job.panel_of(dimension)
    if stage == 0 or rule.escalate is None or is_audited(rule, item_id):
        return True
    scores_by_judge: dict[str, float] = {}
    errors: dict[str, float] = {}
    for number, agent in enumerate(job.agents):
        if stages[number] >= stage:
            continue
        scores = scoreboard.by_round(unit.item, number, unit.dimension)
        if not scoreboard.is_skipped(unit.item, number, unit.dimension):
            errors[agent.name] = standard_error(list(scores.values()))
        if scores:
            scores_by_judge[agent.name] = (
                float(commonest(list(scores.values())))
                if dimension.scale.nominal
                else panel.combined_score(scores, both_orders=job.both_orders)
            )
    remaining = [agent.name for number, agent in enumerate(job.agents) if stages[number] >= stage]
    return not is_settled(rule, scores_by_judge, remaining, dimension.scale, errors)


ARGUMENT_CHARS, LEAST_CHARS = 1200, 80
"""The most characters shown of each argument, and the fewest where there are many judges."""
TOGETHER_CHARS = 24_000
"""The most characters shown of all judges' arguments on one criterion of an item, as far as `LEAST_CHARS` allows."""


def visible_opinions(job: EvaluationJob, opinions: Iterable[Mapping[str, Any]]) -> list[VisibleOpinion]:
    """Return everything that a chief is shown of one item, from all other judges' opinions as JSON.

    The result is the same in whatever order opinions come, and if some come twice.
    """
    scales = {dimension.id: dimension.scale for dimension in job.dimensions}
    by_unit = {(o["replicate"], o["criterion_id"], o["judge"]): o for o in opinions}
    chars = min(ARGUMENT_CHARS, max(LEAST_CHARS, TOGETHER_CHARS // max(1, len(job.agents) - 1)))
    places = {name: at for at, name in enumerate(scales)}
    chief = job.chief
    others = [agent.name for agent in job.agents if agent.name != chief]
    numbers: dict[tuple[str, int], dict[str, int]] = {}
    visible = []
    for (round, criterion, judge), opinion in by_unit.items():
        item_round = str(opinion["item_id"]), round
        if item_round not in numbers:
            numbers[item_round] = {name: at for at, name in enumerate(_shuffled_names(others, *item_round), start=1)}
        number = numbers[item_round][judge]
        if opinion.get("score") is None:
            visible.append(VisibleOpinion(round=round, criterion=criterion, judge=number))
            continue
        score_text = _score_text(opinion, scales[criterion], swapped=job.is_swapped(round))
        argument = _cut(opinion["argument"], chars)
        visible.append(
            VisibleOpinion(round=round, criterion=criterion, judge=number, said=score_text, argument=argument)
        )
    return sorted(visible, key=lambda entry: (entry.round, places[entry.criterion], entry.judge))


def matching_opinions(
    opinions: Iterable[VisibleOpinion], round: int, criteria: Collection[str]
) -> list[VisibleOpinion]:
    """Return the opinions of this round on these criteria."""
    return [opinion for opinion in opinions if opinion.round == round and opinion.criterion in criteria]


def has_no_opinion(opinions: Iterable[VisibleOpinion], round: int, criterion: str) -> bool:
    """Whether no judge has an opinion that could be shown to a chief."""
    return not any(opinion.said is not None for opinion in matching_opinions(opinions, round, (criterion,)))


def _shuffled_names(names: Sequence[str], item_id: str, round: int) -> list[str]:
    """Return the names in an order that is as good as random, and always the same for the same item and round."""

    def lot(name: str) -> bytes:
        return blake2b(json.dumps([item_id, round, name]).encode(), digest_size=8).digest()

    return sorted(names, key=lot)


def _score_text(opinion: Mapping[str, Any], scale: Scale, *, swapped: bool | None) -> str:
    """Return the score in the words of the scale, as the judge gave it."""
    score = unswapped_score(opinion.get("answer_score", opinion["score"]), swapped=swapped)
    if scale.options:
        label = scale.label(score) or ""
        return json.dumps(label, ensure_ascii=not label.isprintable())
    if scale.checklist:
        answers = ", ".join("yes" if is_yes else "no" for is_yes in opinion.get("answers") or ())
        return f"{score} of {scale.max} yes ({answers})"
    if scale.criteria is not None:
        phrases = {True: "met", False: "not met", None: "no answer"}
        answers = ", ".join(phrases[is_met] for is_met in opinion.get("answers") or ())
        return f"{score} of {scale.max} by the statements ({answers})"
    return str(score)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
