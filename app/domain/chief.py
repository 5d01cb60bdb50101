"""A panel's chief judge: what it is shown of the others' opinions.

The others are told without their names, in an order of their own for each item and round, so that neither a name nor a
place speaks for anybody. Their arguments are material, as the text is: written by a model that may have obeyed the text
it read. A chief that is shown a pair in the other order is told preferences in that order: its round's judges were too.
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
"""So many characters of each argument are shown, and no fewer where there are many judges."""
TOGETHER_CHARS = 24_000
"""And so many of all judges' arguments on one criterion of an item together, as far as the least allows."""


def told_opinions(job: EvaluationJob, given: Iterable[Mapping[str, Any]]) -> list[ToldOpinion]:
    """All that a chief is told of one item, from the opinions of all other judges in the form of their JSON. The same
    opinions in any order, or twice, give the same."""
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
    """Of these the ones that belong to a question in this round on these criteria."""
    return [one for one in opinions if one.round == round and one.criterion in criteria]


def unheard(opinions: Iterable[ToldOpinion], round: int, criterion: str) -> bool:
    """Whether no judge has an opinion of which a chief could be told."""
    return not any(one.said is not None for one in heard(opinions, round, (criterion,)))


def _drawn(names: Sequence[str], item_id: str, round: int) -> list[str]:
    """In an order that is as good as chance, and the same each time."""

    def lot(name: str) -> bytes:
        return blake2b(json.dumps([item_id, round, name]).encode(), digest_size=8).digest()

    return sorted(names, key=lot)


def _said(opinion: Mapping[str, Any], scale: Scale, *, swapped: bool | None) -> str:
    """The score in the words of the scale, as the judge gave it."""
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
