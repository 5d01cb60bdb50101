"""What must hold of a job that is more than all of its units judged once: an escalating panel, one with a chief, a
question, probes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dicast.app.domain.escalation import is_settled, standard_error
from dicast.app.domain.job import EvaluationJob
from lab.chaos.own_answers import answer


def outcomes(job: Mapping[str, Any], report: Mapping[str, Any], opinions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every unit has an opinion, but for those that a job with an answer has not published."""
    units = len(job["items"]) * len(job["agents"]) * len(job["dimensions"]) * job.get("replicates", 1)
    own = sum(opinion.get("probe") is None for opinion in opinions)
    unpublished = report["unpublished"]
    found = []
    if own != units - unpublished:
        found.append(f"one outcome: {own} opinions for {units} units, {unpublished} of them not published")
    if len(opinions) != report["units"] - unpublished:
        found.append(f"one outcome: {len(opinions)} opinions, the report tells of {report['units']} units")
    if len(opinions) != own and not job.get("probes"):
        found.append(f"one outcome: {len(opinions) - own} opinions of variants that nobody asked for")
    if unpublished and (not job.get("question") or report["answer"] is None):
        found.append(f"one answer: {unpublished} units are not published, and nothing was answered")
    if job.get("question") and report["answer"] is None:
        found.append("one answer: the job ended without one")
    return found


def fewest_batches(opinions: Sequence[Mapping[str, Any]]) -> int:
    """How many calls a job with batches needs: one that is needed in a single dimension is a whole call."""
    return len({
        (o["item_id"], o["judge"], o["replicate"], o.get("probe"))
        for o in opinions if not o.get("not_needed")
    })  # fmt: skip


def chief_of(job: Mapping[str, Any]) -> str | None:
    """Whose answers rest on those of the others."""
    chief: str | None = (job.get("panel") or {}).get("chief")
    return chief


def verdicts(job: Mapping[str, Any], opinions: Sequence[Mapping[str, Any]]) -> list[str]:
    """An escalating panel says of each item what all of its judges would have said or, by a difference or an
    uncertainty, has asked nobody too few; as far as all who were asked answered."""
    if chief_of(job) is not None:
        return [
            f"panel: {o['judge']} told {o.get('dissent')!r} of {o['item_id']} for a dissent"
            for o in opinions
            if (o.get("dissent") is not None) != (o["judge"] == chief_of(job) and o["score"] is not None)
        ]
    if not job.get("panel"):
        return [f"panel: {o['judge']} was left out" for o in opinions if o.get("not_needed")]
    spec = EvaluationJob.model_validate(job)
    assert isinstance(spec.items, list)
    items, agents = {item.id: item for item in spec.items}, {agent.name: agent for agent in spec.agents}
    dimensions = {dimension.id: dimension for dimension in spec.dimensions}
    given: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    short, failed = set(), set()
    for opinion in opinions:
        place = opinion["item_id"], opinion["criterion_id"]
        if opinion.get("not_needed"):
            short.add(place)
        elif opinion["score"] is None:
            failed.add(place)
        elif place[0] in items:
            given[place][opinion["judge"]].append(opinion["score"])
    found = []
    for item, criterion in short - failed:
        dimension, answers = dimensions[criterion], given[item, criterion]
        rule, scores = spec.panel_of(dimension), {name: fmean(own) for name, own in answers.items()}
        if rule.escalate is not None and not rule.escalate.lossless:
            left = [name for name in agents if name not in answers]
            errors = {name: standard_error(own) for name, own in answers.items()}
            if not is_settled(rule, scores, left, dimension.scale, errors):
                found.append(f"panel: {item}, {criterion}: {left} were not asked, and {dict(answers)} settle nothing")
            continue
        full = {name: float(answer(agent, dimension, items[item])[0]) for name, agent in agents.items()}
        if rule.combined(scores) != rule.combined(full):
            found.append(f"panel: {item}, {criterion}: {scores} says another than {full}")
    return found
