"""A panel's chief judge: what it is shown of the other judges' opinions.

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

from dicast.app.domain.preference import own_score
from dicast.app.domain.told_opinion import ToldOpinion

if TYPE_CHECKING:
    from dicast.app.domain.job import EvaluationJob
    from dicast.app.domain.scale import Scale

ARGUMENT_CHARS, LEAST_CHARS = 1200, 80
"""The most characters shown of each argument, and the fewest where there are many judges."""
TOGETHER_CHARS = 24_000
"""The most characters shown of all judges' arguments on one criterion of an item, as far as `LEAST_CHARS` allows."""


def told_opinions(job: EvaluationJob, given: Iterable[Mapping[str, Any]]) -> list[ToldOpinion]:
    """Return everything that a chief is shown of one item, from all other judges' opinions as JSON.

    The result is the same in whatever order opinions come, and if some come twice.
    """
    scales = {dimension.id: dimension.scale for dimension in job.dimensions}
    by_unit = {(o["replicate"], o["criterion_id"], o["judge"]): o for o in given}
    chars = min(ARGUMENT_CHARS, max(LEAST_CHARS, TOGETHER_CHARS // max(1, len(job.agents) - 1)))
    places = {name: at for at, name in enumerate(scales)}
    told = []
    for (round, criterion, judge), opinion in by_unit.items():
        others = [agent.name for agent in job.agents if agent.name != job.chief]
        number = 1 + _drawn(others, str(opinion["item_id"]), round).index(judge)
        if opinion.get("score") is None:
            told.append(ToldOpinion(round=round, criterion=criterion, judge=number))
            continue
        said = _said(opinion, scales[criterion], swapped=job.turned(round))
        argument = _cut(opinion["argument"], chars)
        told.append(ToldOpinion(round=round, criterion=criterion, judge=number, said=said, argument=argument))
    return sorted(told, key=lambda one: (one.round, places[one.criterion], one.judge))


def heard(opinions: Iterable[ToldOpinion], round: int, criteria: Collection[str]) -> list[ToldOpinion]:
    """Return the opinions of this round on these criteria."""
    return [one for one in opinions if one.round == round and one.criterion in criteria]


def unheard(opinions: Iterable[ToldOpinion], round: int, criterion: str) -> bool:
    """Whether no judge has an opinion that could be shown to a chief."""
    return not any(one.said is not None for one in heard(opinions, round, (criterion,)))


def _drawn(names: Sequence[str], item_id: str, round: int) -> list[str]:
    """Return the names in an order that is as good as random, and always the same for the same item and round."""

    def lot(name: str) -> bytes:
        return blake2b(json.dumps([item_id, round, name]).encode(), digest_size=8).digest()

    return sorted(names, key=lot)


def _said(opinion: Mapping[str, Any], scale: Scale, *, swapped: bool | None) -> str:
    """Return the score in the words of the scale, as the judge gave it."""
    score = own_score(opinion["score"], swapped=swapped)
    if scale.options:
        label = scale.label(score) or ""
        return json.dumps(label, ensure_ascii=not label.isprintable())
    if scale.checklist:
        answers = ", ".join("yes" if answer else "no" for answer in opinion.get("answers") or ())
        return f"{score} of {scale.max} yes ({answers})"
    return str(score)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
