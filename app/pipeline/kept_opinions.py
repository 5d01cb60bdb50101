"""Opinions that were given before to the same question, and are used again in place of a call.

The key of an opinion is a digest of all that its request was made of: the project, the pool's address and the model
(a place), Dicast's own wording, the judge, its template, the criteria of the call, the item's texts and images, the
round, and the probe. What does not reach a judge (the job's id, the items' ids and metadata unless a template shows
them) does not count, and neither does the code that ties an answer to its call (app/domain/material.py). Rounds differ,
so that replicates stay independent of each other.

They are looked up when a page is planned, so that a unit that has one costs no message, claim, lease or call, and are
kept when a page is gathered.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from dicast.app.domain.dimension import Scale, attained
from dicast.app.domain.fingerprints import wording_digest
from dicast.app.domain.item import Item
from dicast.app.domain.material import question_digest
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.panel import Deployment
from dicast.app.domain.plan import Lane
from dicast.app.domain.variants import SINGLE
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline.call_facts import AskedPlaces, dimensions_in_order, kept_metadata, payload, shown_item
from dicast.app.reports.opinion_cache import CacheError, Entry, KeptOpinion, OpinionCache

logger = logging.getLogger(__name__)


def question_key(job: JobRecord, lane: Lane, position: int, item: Item, place: str) -> bytes:
    """Return the key of a unit's question at a place (see `AskedPlaces`). `item` is the page's: a chief's carries the
    others' opinions. Units of a batched lane are keyed by the whole batch, even if some are asked again one by one."""
    spec, unit = job.spec, lane.unit(position)
    numbers = range(lane.dimensions) if lane.batched and item.probe != SINGLE else [unit.dimension]
    batch = [spec.dimensions[number].asked_about(item.criteria) for number in numbers]
    dimensions = dimensions_in_order(item, batch)
    agent = spec.agents[unit.agent]
    judged_item = shown_item(item, dimensions, unit.replicate, swapped=bool(spec.is_swapped(unit.replicate)))
    template = spec.template_for(agent, dimensions[0])
    asks = question_digest(agent, dimensions, judged_item, unit.replicate, template)
    wording = wording_digest(item.judged_as, has_images=bool(item.all_images), has_opinions=item.opinions is not None)
    dimension_id = spec.dimensions[unit.dimension].id
    parts = (b"1", spec.project, place, wording, item.probe or "", str(lane.batched), dimension_id, asks)
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.digest()


def _entry_of(result: Mapping[str, Any], kept_ms: int) -> Entry | None:
    """Return the entry for a unit's result as the ledger stores it; None if it is not to be kept."""
    key, opinion = result.get("question"), result["opinion"]
    if key is None or opinion.get("score") is None:
        return None
    if None in (opinion.get("answers") or ()):  # it is worth another call
        return None
    fields = {name: opinion[name] for name in KeptOpinion.model_fields if name in opinion}
    return Entry(key=key, kept_ms=kept_ms, opinion=KeptOpinion(**fields))


class KeptOpinions:
    """Looks opinions up in the cache, and adds to it, for jobs that ask for it. `pools` name the places where judges
    may be asked. Its methods block."""

    def __init__(self, cache: OpinionCache, pools: AskedPlaces) -> None:
        self._cache, self._pools = cache, pools

    def question(self, job: JobRecord, lane: Lane, position: int, item: Item, deployment: Deployment) -> str | None:
        """Return the key of a unit's question, in hexadecimal digits; None for a pool that is not known here."""
        place = self._pools.asked_at(deployment)
        return question_key(job, lane, position, item, place).hex() if place else None

    def results(
        self, job: JobRecord, lane: Lane, items: Mapping[int, Item], positions: Iterable[int], now_ms: int
    ) -> dict[int, bytes]:
        """Return the results of those units at `positions` whose opinions are kept, in the ledger's form.

        An opinion from any place where the judge may be asked counts, if it is not older than the job allows and fits
        the dimension's scale. Without a usable cache there are none, and the judges are asked; a job that asks nobody
        (`only`) raises `CacheError` then.
        """
        if job.spec.cache not in ("use", "only"):
            return {}
        places = {agent: self._places(job, agent) for agent in lane.agents}
        keys = {
            position: [question_key(job, lane, position, items[unit.item], place) for place in places[unit.agent]]
            for position in positions
            for unit in [lane.unit(position)]
        }
        age_s = job.spec.cache_max_age
        since_ms = 0 if age_s is None else now_ms - round(1000 * age_s)
        try:
            entries = self._cache.find((key for choices in keys.values() for key in choices), since_ms=since_ms)
        except CacheError as error:
            if job.spec.cache == "only":
                raise
            logger.warning("%s; the judges are asked", error, extra={"event": "cache_error", "job": job.id})
            return {}
        results = {}
        for position, choices in keys.items():
            entry = next((entries[key] for key in choices if key in entries), None)
            if entry is not None and (opinion := _opinion_of_unit(job, lane, position, items, entry)) is not None:
                results[position] = payload(opinion, None)
        return results

    def _places(self, job: JobRecord, agent: int) -> Sequence[str]:
        places = map(self._pools.asked_at, job.spec.agents[agent].choices)
        return list(dict.fromkeys(place for place in places if place))

    def keep(self, page: Mapping[int, str], now_ms: int, *, replace: bool) -> None:
        """Keep the opinions of a page that carry the key of their question. What prevents it is logged, for no result
        depends on it."""
        try:
            entries = (_entry_of(orjson.loads(text), now_ms) for text in page.values() if '"question":' in text)
            self._cache.add([entry for entry in entries if entry is not None], replace=replace)
        except (CacheError, ValueError, KeyError) as error:
            logger.warning("opinions are not kept: %s", error, extra={"event": "cache_error"})


def _opinion_of_unit(
    job: JobRecord, lane: Lane, position: int, items: Mapping[int, Item], entry: Entry
) -> Opinion | None:
    """Return a kept opinion as one of this job, or None if it does not fit the dimension's scale."""
    unit, judgement = lane.unit(position), entry.opinion
    item = items[unit.item]
    dimension = job.spec.dimensions[unit.dimension].asked_about(item.criteria)
    if not _fits(judgement, dimension.scale):
        return None
    scale = dimension.scale
    return Opinion(
        **judgement.model_dump(exclude={"judge"}),
        judge=job.spec.agents[unit.agent].name,
        criterion_id=dimension.id,
        item_id=item.id,
        replicate=unit.replicate,
        swapped=job.spec.is_swapped(unit.replicate),
        label=scale.label(int(judgement.score)),
        attempts=0,
        metadata=kept_metadata(job, item),
        probe=item.probe,
        cached=datetime.fromtimestamp(entry.kept_ms / 1000, UTC).isoformat(timespec="seconds"),
    )


def _fits(judgement: KeptOpinion, scale: Scale) -> bool:
    """Whether a kept opinion is one that a judge could have given on the scale."""
    answers, reached = judgement.answers, judgement.attained
    if not scale.min <= judgement.score <= scale.max or (answers is not None) != bool(scale.questions):
        return False
    if answers is None:
        return reached is None
    if None in answers or len(answers) != len(scale.questions):
        return False
    if not scale.item_criteria:
        return reached is None and sum(map(bool, answers)) == judgement.score
    shares = attained([criterion.points for criterion in scale.item_criteria], answers)
    return reached == shares and judgement.score == shares.score
