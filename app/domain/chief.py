"""A panel's chief judge, and what it is shown of the other judges' opinions.

The others are shown without their names, in an order that is drawn anew for each item and round, so that neither a name
nor a position carries weight. Their arguments are material, as the text is: they were written by a model that may have
obeyed the text it read. A chief that is shown a pair in swapped order sees preferences in that order too, as the judges
of its round did.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from dicast.app.domain.item import VisibleOpinion
from dicast.app.domain.panel import unswapped_score

if TYPE_CHECKING:
    from dicast.app.domain.dimension import Scale
    from dicast.app.domain.job import EvaluationJob

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
    visible = []
    for (round, criterion, judge), opinion in by_unit.items():
        others = [agent.name for agent in job.agents if agent.name != job.chief]
        number = 1 + _shuffled_names(others, str(opinion["item_id"]), round).index(judge)
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
    score = unswapped_score(opinion["score"], swapped=swapped)
    if scale.options:
        label = scale.label(score) or ""
        return json.dumps(label, ensure_ascii=not label.isprintable())
    if scale.checklist:
        answers = ", ".join("yes" if is_yes else "no" for is_yes in opinion.get("answers") or ())
        return f"{score} of {scale.max} yes ({answers})"
    return str(score)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
