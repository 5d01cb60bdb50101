"""Makes the quote of a job: counts what will be asked, finds who has told of tokens, and makes a pilot.

A **pilot** is a job of its own: of the fewest items whose digests come first, which is a random sample that a larger
pilot holds as well, with the same judges, rubrics and orders, once each. It keeps its opinions (`cache: use`), so that
the job, if it says `cache: use` itself, takes them as its results and does not pay for them again. Its id follows from
what is asked, so that a quote finds the pilots that were made before.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from pydantic import ValidationError
from redis.exceptions import RedisError

from dicast.app import datasets
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.dimension import Criterion, Dimension
from dicast.app.domain.fingerprints import digest, prompt_digest
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.panel import Agent
from dicast.app.domain.plan import Lane, Road
from dicast.app.domain.price import Place
from dicast.app.domain.prompt import batch_max_tokens, batch_prompt, single_prompt
from dicast.app.domain.question import PAGE
from dicast.app.domain.quote import (
    CONFIDENCE,
    Cell,
    CellName,
    PoolLoad,
    Quote,
    QuotedTime,
    Sample,
    TakenTokens,
    expected_calls,
    lines_of,
    sums_of,
    time_of,
    tokens_of,
    with_cap,
    with_range,
    without_hits,
)
from dicast.app.domain.report import Report, ReportAgent
from dicast.app.domain.variants import SINGLE
from dicast.app.ledger.records import JobRecord
from dicast.app.operator.pools import read_state
from dicast.app.pipeline.kept_opinions import KeptOpinions
from dicast.app.pipeline.pools import ServedPools
from dicast.app.reports.files import REPORT, NoResults, read_opinions, read_report
from dicast.app.reports.opinion_cache import CacheError, OpinionCache
from dicast.app.submission.submit import Prepared
from dicast.errors import DicastError

if TYPE_CHECKING:
    from dicast.app.application import Dicast
    from dicast.workers.admission.pool_state import PoolState

ITEMS_TOGETHER = 500
MOST_CELLS = 10_000
MOST_LOOKED_UP = 1_000_000
"""The most units that are looked up in the cache for a quote."""
QUOTED_UNITS = 100_000
"""The most units of a job that is quoted although nobody has asked for it."""
REPORTS_READ, OPINIONS_READ = 50, 3000
PILOT_CALLS = 30
_NONCE = "0" * 15 + "1"


class NoQuote(DicastError, ValueError):
    """A quote or a pilot cannot be made; the message says why."""

    problem = "job-refused"


# ---------------------------------------------------------------------- what will be asked
@dataclass(slots=True)
class _Counts:
    """What is asked about the items as they are ("") or as variants for a probe."""

    items: int = 0
    bytes: int = 0
    singles: int = 0
    """Of the items, those whose dimensions are asked about one by one."""


@dataclass(slots=True)
class _Hits:
    """The units of a cell of which the cache has an opinion, and the calls and bytes that they save."""

    units: int = 0
    calls: float = 0.0
    bytes: float = 0.0


USUAL_CRITERIA = 10
"""How many criteria of its own an item is taken to have: HealthBench's have 9.7 on average. Their texts are counted."""


class RequestSizes:
    """Knows the bytes of a job's requests: those of the item, and those around it."""

    def __init__(self, ready: Prepared) -> None:
        self._job = ready.job
        self._around: dict[tuple[int, int | None], int] = {}

    def around(self, agent: int, dimension: int | None) -> int:
        """Return the bytes of a request without its item's; for `dimension` None that about all dimensions."""
        key = agent, dimension
        if key not in self._around:
            self._around[key] = _bytes_around(
                self._job.agents[agent],
                self._job.dimensions if dimension is None else [self._job.dimensions[dimension]],
                batch=dimension is None,
            )
        return self._around[key]

    def of_unit(self, agent: int, dimension: int, text_bytes: int, *, batched: bool) -> float:
        """Return a unit's share of the bytes of its request."""
        if batched:
            return (self.around(agent, None) + text_bytes) / len(self._job.dimensions)
        return self.around(agent, dimension) + text_bytes


def _bytes_around(agent: Agent, dimensions: Sequence[Dimension], *, batch: bool) -> int:
    item = Item(id="-", text="-", criteria=[Criterion(text="-", points=1)] * USUAL_CRITERIA)
    dimensions = [dimension.asked_about(item.criteria) for dimension in dimensions]
    if batch:
        prompt = batch_prompt(agent, dimensions, item, _NONCE)
    else:
        prompt = single_prompt(agent, dimensions[0], item, _NONCE, structured=True)
    return len(prompt.system.encode()) + len(prompt.user.encode()) + len(orjson.dumps(prompt.schema))


def job_items(job: EvaluationJob) -> Iterator[Item]:
    """Yield a job's items in the form in which they are judged, and in their own order, without variants."""
    return arrangement_of(job).expanded(item.without(job.rating_columns) for item in _source_items(job))


def _source_items(job: EvaluationJob) -> Iterator[Item]:
    if not isinstance(job.items, ItemSource):
        yield from job.items
        return
    cursor: Any = None
    while True:
        page, cursor = datasets.read_page(job.items, cursor, ITEMS_TOGETHER)
        yield from page
        if cursor is None:
            return


def _asked_items(ready: Prepared) -> Iterator[Item]:
    """Yield all items that are judged, each variant behind the item that it is of."""
    vary = arrangement_of(ready.job).vary
    chosen = frozenset(vary.chosen(ready.base_items)) if vary is not None else frozenset()
    for place, item in enumerate(job_items(ready.job)):
        yield item
        if vary is not None and place in chosen:
            yield from vary.variants(item, place, ready.base_items)


def _probe_of(item: Item) -> str:
    return "" if item.probe is None else item.probe.partition(":")[0]


class _Kept:
    """Counts the units of which the cache has opinions, per cell."""

    def __init__(self, ready: Prepared, kept: KeptOpinions, requests: RequestSizes) -> None:
        self.hits: dict[tuple[str, str, str], _Hits] = defaultdict(_Hits)
        self._ready, self._kept, self._requests = ready, kept, requests
        self._record = JobRecord(ready.id, ready.job, ready.lanes, ready.units, 1, None, "quote")
        self._now_ms = round(1000 * time.time())

    def add(self, items: Sequence[Item]) -> None:
        """Look the units of some items up. A chief is shown what others say of the item, so nothing is kept of it
        before they did. Raises `CacheError`."""
        job = self._ready.job
        numbered = dict(enumerate(items))
        for lane in self._ready.lanes:
            if job.chief is not None and lane.stage:
                continue
            positions = range(len(items) * lane.units_per_item)
            results = self._kept.results(self._record, lane, numbered, positions, self._now_ms)
            for first in range(0, len(positions) if results else 0, lane.stride):
                self._count(lane, items, [p for p in range(first, first + lane.stride) if p in results])

    def _count(self, lane: Lane, items: Sequence[Item], results: Sequence[int]) -> None:
        job = self._ready.job
        for position in results:
            unit = lane.unit(position)
            item = items[unit.item]
            batched = lane.batched and item.probe != SINGLE
            grouped = batched or (lane.together > 1 and not lane.batched)
            hits = self.hits[job.agents[unit.agent].name, job.dimensions[unit.dimension].id, _probe_of(item)]
            hits.units += 1
            if not grouped:
                hits.calls += 1.0
            elif len(results) == lane.stride:  # else the call is made for the others
                hits.calls += 1 / lane.stride
            size = self._requests.of_unit(unit.agent, unit.dimension, item.text_bytes, batched=batched)
            hits.bytes += size / (lane.together if grouped else 1)


def cells_of(ready: Prepared, requests: RequestSizes, kept: _Kept | None = None) -> list[Cell]:
    """Return what a job asks, by judge, dimension and probe, without what the cache has. Reads all items. Raises
    `CacheError`."""
    counts: dict[str, _Counts] = defaultdict(_Counts)
    items = _asked_items(ready)
    while page := list(islice(items, ITEMS_TOGETHER)):
        for item in page:
            count = counts[_probe_of(item)]
            count.items += 1
            count.bytes += item.text_bytes
            count.singles += item.probe == SINGLE
        if kept is not None:
            kept.add(page)
    cells = []
    for lane in ready.lanes:
        for agent in lane.agents:
            for dimension in range(len(ready.job.dimensions)):
                for probe, count in counts.items():
                    cell = _cell(ready, requests, lane, agent, dimension, probe, count)
                    hits = kept.hits.get((cell.judge, cell.dimension, probe)) if kept is not None else None
                    cells.append(without_hits(cell, hits.units, hits.calls, hits.bytes) if hits else cell)
    return cells


def _cell(
    ready: Prepared, requests: RequestSizes, lane: Lane, agent: int, dimension: int, probe: str, count: _Counts
) -> Cell:  # fmt: skip
    job, judge = ready.job, ready.job.agents[agent]
    alone = count.singles if lane.batched else 0
    together = count.items - alone
    size = sum(
        items * requests.of_unit(agent, dimension, 0, batched=batched) / answers
        for items, batched, answers in ((together, lane.batched, lane.together), (alone, False, 1)) if items
    ) + (count.bytes / lane.stride if together else count.bytes)  # fmt: skip
    is_batched = lane.batched and together > 0
    most = batch_max_tokens(judge, len(job.dimensions)) / len(job.dimensions) if is_batched else judge.max_tokens
    rounds = lane.replicates
    return Cell(
        judge.name, job.dimensions[dimension].id, dearest(ready.places[agent]), rounds * count.items,
        rounds * (together / lane.stride + alone), rounds * size, most, probe,
        always=job.chief is not None or lane.stage == 0, road=_quoted_road(lane.road, job.finish_by is not None),
    )  # fmt: skip


def _quoted_road(road: Road, is_bound: bool) -> Road:
    """Return the road by which a job is quoted: of `auto`, batches where it has no `finish_by`, else the dearer one."""
    if road != "auto":
        return road
    return "online" if is_bound else "batch"


def dearest(places: Sequence[Place]) -> Place:
    """Return the dearest of the places where a judge may be asked; one without a price is the dearest of all."""
    unpriced = next((place for place in places if place.price is None), None)
    return unpriced or max(places, key=lambda place: place.price.highest if place.price is not None else (0, 0))


# ---------------------------------------------------------------------- who has told of tokens
class Told(NamedTuple):
    """What earlier calls have told: of which job, which items took what, and the seconds of a call."""

    source: str
    job: str
    sample: Sample
    latency_s: Mapping[str, float]


NOTHING_TOLD = Told("texts", "", [], {})


def pilot_prefix(ready: Prepared) -> str:
    """Return what the ids of all pilots for these judges, rubrics and items begin with."""
    job = ready.job
    names = {"agents", "dimensions", "template", "orders", "panel", "pairs", "project", "calibration"}
    question_parts = job.model_dump(mode="json", include=names)
    batched = [lane.batched for lane in ready.lanes]
    return f"pilot-{digest([question_parts, batched, ready.base_items, ready.text_bytes])}-"


def drawn_items(ready: Prepared, count: int) -> list[Item]:
    """Return so many items, at random: those whose ids have the smallest digests."""

    def place(item: Item) -> bytes:
        return blake2b(item.id.encode("utf-8", "surrogatepass"), digest_size=8, person=b"pilot").digest()

    return heapq.nsmallest(count, job_items(ready.job), key=place)


def pilot_job(ready: Prepared, calls: int = PILOT_CALLS) -> EvaluationJob:
    """Return the pilot of a job: as many items as so many calls suffice for. Raises `NoQuote` if that is none."""
    job = ready.job
    rounds = 1 if not job.escalates else job.replicates
    if rounds == job.replicates:
        an_item = sum(lane.units_per_item // lane.stride for lane in ready.lanes)
    else:
        an_item = sum(lane.units_per_item // (lane.stride // lane.together) for lane in ready.lanes) // job.replicates
    count = min(calls // an_item, ready.base_items)
    if count < 1:
        raise NoQuote(
            f"a pilot asks all judges about each of its items, which takes {an_item} calls: --pilot {an_item}"
        )
    document = job.model_dump(exclude_unset=True)
    fields = {
        "project", "agents", "dimensions", "panel", "orders", "spend", "template", "labels", "fail_fast", "batching",
        "item_images", "item_kinds",
    }  # fmt: skip
    spec = {name: value for name, value in document.items() if name in fields}
    for panelled in (spec, *spec["dimensions"]):  # what is learned from ratings needs them, and asks nobody
        if not job.escalates and job.chief is None:
            panelled.pop("panel", None)
    spec.pop("item_images", None)
    return EvaluationJob.model_validate({
        **spec, "id": f"{pilot_prefix(ready)}{count}", "items": [as_given(item) for item in drawn_items(ready, count)],
        "replicates": rounds, "cache": "refresh" if job.cache == "refresh" else "use",
        "road": "online", "metadata": {"pilot_of": str(job.id)},
    })  # fmt: skip


def as_given(item: Item) -> dict[str, Any]:
    """Return an item as a job brings it."""
    return item.model_dump(exclude_defaults=True)


def _pilots(dicast: Dicast, ready: Prepared) -> list[str]:
    """Return the ids of the pilots that were made, the largest first."""
    prefix = pilot_prefix(ready)
    names = [path.name for path in Path(dicast.settings.results_dir).glob(f"{prefix}*") if path.is_dir()]
    ids = [name for name in names if name.removeprefix(prefix).isdecimal()]
    return sorted(ids, key=lambda name: -int(name.removeprefix(prefix)))


def told_by_pilots(dicast: Dicast, ready: Prepared, requests: RequestSizes) -> Told:
    """Return what the pilots of a job have told; nothing if there was none, or none has answers."""
    opinions: dict[tuple[str, int, str, str], Opinion] = {}
    pilots = _pilots(dicast, ready)
    for pilot in pilots:
        with contextlib.suppress(NoResults, ValidationError, OSError):
            for opinion in read_opinions(dicast.settings.results_dir, pilot):
                if opinion.not_needed or (opinion.score is not None and opinion.cached is None):
                    key = opinion.item_id, opinion.replicate, opinion.judge, opinion.criterion_id
                    opinions.setdefault(key, opinion)
    if not opinions:
        return NOTHING_TOLD
    most = max(int(pilot.rpartition("-")[2]) for pilot in pilots)
    sizes = {item.id: item.text_bytes for item in drawn_items(ready, most)}
    lanes = {agent: lane for lane in ready.lanes for agent in lane.agents}
    agents = {agent.name: at for at, agent in enumerate(ready.job.agents)}
    dimensions = {dimension.id: at for at, dimension in enumerate(ready.job.dimensions)}

    def size(opinion: Opinion) -> float:
        agent = agents[opinion.judge]
        at, text_bytes = dimensions[opinion.criterion_id], sizes.get(opinion.item_id, 0)
        answers = lanes[agent].together if ready.job.escalates else 1  # the others' pilots ask for one replicate
        return requests.of_unit(agent, at, text_bytes, batched=lanes[agent].batched) / answers

    group = [opinion for opinion in opinions.values() if opinion.item_id in sizes]
    complete = len(agents) * len(dimensions)
    by_item = taken_by_item(((opinion, size(opinion)) for opinion in group), complete)
    return Told("pilot", pilots[0], by_item, _latencies(group)) if by_item else NOTHING_TOLD


def taken_by_item(opinions: Iterable[tuple[Opinion, float]], complete: int) -> list[Mapping[CellName, TakenTokens]]:
    """Return what each item took, from opinions with the bytes of their requests. An item of which fewer cells are
    known than `complete` is left out."""
    by_item: dict[str, dict[CellName, TakenTokens]] = defaultdict(dict)
    for opinion, size in opinions:
        before = by_item[opinion.item_id].get((opinion.judge, opinion.criterion_id), TakenTokens(0, 0.0, 0.0, 0.0))
        usage = opinion.usage
        by_item[opinion.item_id][opinion.judge, opinion.criterion_id] = TakenTokens(
            before.units + 1, before.bytes + size, before.input_tokens + usage.input_tokens,
            before.output_tokens + usage.output_tokens,
        )  # fmt: skip
    return [
        cells for cells in by_item.values()
        if len(cells) == complete and any(entry.input_tokens for entry in cells.values())
    ]  # fmt: skip


def _latencies(opinions: Iterable[Opinion]) -> dict[str, float]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for opinion in opinions:
        if opinion.latency_s:
            seconds[opinion.pool].append(opinion.latency_s)
    return {pool: fmean(entry) for pool, entry in seconds.items()}


def told_by_earlier(dicast: Dicast, ready: Prepared) -> Told:
    """Return what the newest job of the same judges and rubrics has told, of those whose results are here. The input
    follows from this job's texts, with as many bytes a token as that job's quote and its answers had."""
    root = Path(dicast.settings.results_dir)
    try:
        paths = heapq.nlargest(REPORTS_READ, root.glob(f"*/{REPORT}"), key=lambda path: path.stat().st_mtime_ns)
    except OSError:
        return NOTHING_TOLD
    for path in paths:
        with contextlib.suppress(NoResults, ValidationError, ValueError, OSError):
            raw = orjson.loads(path.read_bytes())
            if not _is_alike(raw, ready, dicast.pools.default):
                continue
            report = read_report(root, raw["job_id"])
            opinions = [
                opinion
                for opinion in islice(read_opinions(root, report.job_id), OPINIONS_READ)
                if opinion.not_needed or (opinion.score is not None and opinion.cached is None)
            ]
            per_token = _bytes_per_token(report)
            sample = taken_by_item(
                ((entry, entry.usage.input_tokens * per_token) for entry in opinions),
                len(ready.job.agents) * len(ready.job.dimensions),
            )
            if len(sample) > 1:
                return Told("earlier", report.job_id, sample, _latencies(opinions))
    return NOTHING_TOLD


def _is_alike(report: Mapping[str, Any], ready: Prepared, default: str) -> bool:
    """Return whether the report is of the same judges, in the same pools and on the same models, and of the same
    rubrics; `default` is the default pool."""
    job = ready.job
    agents = [
        ReportAgent.from_agent(agent, [place.model for place in places])
        for agent, places in zip(job.agents, ready.places, strict=True)
    ]
    judges = {(agent.judge, agent.model, agent.pool or default) for agent in agents}
    rubrics = {(dimension.id, dimension.rubric) for dimension in job.dimensions}
    return (
        report["prompt"] == prompt_digest(job)
        and judges == {(agent["judge"], agent["model"], agent["pool"] or default) for agent in report["agents"]}
        and rubrics == {(dimension["id"], dimension["rubric"]) for dimension in report["dimensions"]}
    )


def _bytes_per_token(report: Report) -> float:
    """Return the bytes of a token of input in a job that was quoted, and judged to its end; as is usual otherwise."""
    quote, usual = report.quote, 4.0
    whole = quote is not None and not (report.missing or report.failed or report.cached or report.spared)
    return quote.bytes / report.input_tokens if quote is not None and whole and report.input_tokens else usual


# ---------------------------------------------------------------------- the quote
def quote_of(
    dicast: Dicast, ready: Prepared, *, most_looked_up: int = MOST_LOOKED_UP, pools: bool = True
) -> Quote:  # fmt: skip
    """Return the quote of a job. No call is made for it; all items are read. Without `pools` the store is not asked how
    fast they are. Raises `NoQuote` for a job of too many judges and dimensions."""
    job, notes = ready.job, list[str]()
    if len(job.agents) * len(job.dimensions) > MOST_CELLS:
        raise NoQuote(f"a job of more than {MOST_CELLS:,} judges x dimensions is not quoted")
    requests = RequestSizes(ready)
    with contextlib.ExitStack() as stack:
        cells = _cells_without_kept(dicast, ready, requests, most_looked_up, notes, stack)
    evidence = told_by_pilots(dicast, ready, requests)
    if not evidence.sample:
        evidence = told_by_earlier(dicast, ready)
    if job.cache == "only":
        cells = [replace(cell, units=0, calls=0.0, bytes=0.0) for cell in cells]
    if evidence.source == "pilot" and job.cache != "use":
        notes.append("the pilot's opinions count as this job's only with `cache: use`; it will ask again")
    if job.chief is not None and not evidence.sample:
        notes.append("a chief reads the others' opinions, too, of which the texts tell nothing")
    if job.item_images != "none":
        notes.append("images count for tokens as far as a pilot's did")
    if job.finish_by is not None and any(lane.road == "auto" for lane in ready.lanes):
        notes.append("road: auto is quoted as if all calls were online; what goes by batches costs less")
    units = sum(cell.units for cell in cells)
    tokens = [tokens_of(cell, evidence.sample) for cell in cells]
    least = sum(cell.calls for cell in cells if cell.always)
    most = sum(cell.calls for cell in cells)
    chance = random.Random(f"quote of {units}")  # noqa: S311  resamples, guards nothing
    quote = Quote(
        units=units, from_cache=ready.units - units if job.cache == "use" else 0, calls_least=round(least),
        calls=round(expected_calls(cells, evidence.sample)), calls_most=round(most),
        ranges=["later judges are asked only where the first leave it open"] if round(least) < round(most) else [],
        bytes=round(sum(cell.bytes for cell in cells)), input_tokens=round(sum(entry.input for entry in tokens)),
        output_tokens=round(sum(entry.output for entry in tokens)),
        source="cache" if not units else evidence.source,  # type: ignore[arg-type]
        job=evidence.job, sampled=len(evidence.sample), confidence=CONFIDENCE if evidence.sample else None,
        sums=sums_of(cells, evidence.sample, chance), lines=lines_of(cells, evidence.sample, chance),
        unpriced=list(dict.fromkeys(
            f"{cell.place.pool}/{cell.place.model}" for cell in cells if cell.place.price is None and cell.units
        )),
        time=_time(dicast, cells, evidence, notes) if pools else None, notes=notes,
    )  # fmt: skip
    return _bounded(ready, quote)


def _bounded(ready: Prepared, quote: Quote) -> Quote:
    """Return the quote with what a question or caps may spare."""
    job = ready.job
    if job.question is not None and quote.calls_most:
        an_item = sum(lane.units_per_item // lane.stride for lane in ready.lanes)
        most = job.question.most_calls or quote.calls_most
        why = "the question ends it when it is answered"
        quote = with_range(quote, min(PAGE, ready.base_items) * an_item, most, why)
    repeated = _share_of_repeated(ready) if job.cache == "use" and quote.calls_most else 0.0
    if repeated:
        why = "a question that comes twice is paid for once, if the first answer is kept in time"
        quote = with_range(quote, round(quote.calls_least * (1 - repeated)), quote.calls_most, why)
    max_cost = Decimal(job.max_cost) if job.max_cost is not None else None
    return with_cap(quote, max_cost, job.max_tokens, job.max_calls)


def _share_of_repeated(ready: Prepared) -> float:
    """Return the share of the items whose texts another one before has, too."""
    digests, count = set[bytes](), 0
    for item in _asked_items(ready):
        count += 1
        texts = "\0".join([item.probe or "", *item.texts]).encode("utf-8", "surrogatepass")
        digests.add(blake2b(texts, digest_size=12).digest())
    return 1 - len(digests) / max(1, count)


def _cells_without_kept(
    dicast: Dicast, ready: Prepared, requests: RequestSizes, most: int, notes: list[str], stack: contextlib.ExitStack
) -> list[Cell]:  # fmt: skip
    """Return the job's cells, without what this machine's cache has if the job uses it."""
    if ready.job.cache != "use":
        return cells_of(ready, requests)
    settings = dicast.settings
    cache = stack.enter_context(OpinionCache(settings.state_dir, most_bytes=settings.cache_bytes))
    if not cache.path.exists():
        return cells_of(ready, requests)
    if ready.units > most or ready.job.item_images != "none":
        why = f"of more than {most:,} units" if ready.units > most else "with images"
        notes.append(f"the cache may have opinions, which are not looked up for a quote of a job {why}")
        return cells_of(ready, requests)
    try:
        return cells_of(ready, requests, _Kept(ready, KeptOpinions(cache, ServedPools(dicast)), requests))
    except CacheError as error:
        notes.append(f"{error}; no opinion is counted as kept")
        return cells_of(ready, requests)


def _time(dicast: Dicast, cells: Sequence[Cell], evidence: Told, notes: list[str]) -> QuotedTime | None:
    """Return how long a job takes, by what its pools give now."""
    states: Mapping[str, PoolState] = {}
    try:
        states = {state.pool: state for state in read_state(dicast).pools}
    except (RedisError, OSError) as error:
        notes.append(f"the store does not tell how fast the pools are: {error}")
    by_pool: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.road != "batch":
            by_pool[dicast.pools.limiting(cell.place.pool, cell.place.model).name].append(cell)
    if any(cell.road == "batch" for cell in cells):
        notes.append("batches are answered within a day, mostly within an hour; no minutes are told of them")
    loads = [_load(dicast, pool, group, evidence, states.get(pool)) for pool, group in by_pool.items()]
    return time_of(loads, dicast.settings.max_concurrent_llm_calls)


def _load(dicast: Dicast, pool: str, cells: Sequence[Cell], evidence: Told, state: PoolState | None) -> PoolLoad:
    calls = expected_calls(cells, evidence.sample)
    tokens = [tokens_of(cell, evidence.sample) for cell in cells]
    set_limits = dicast.configured_overrides(pool)
    most = dicast.settings.max_concurrent_llm_calls
    limit = state.effective_limit if state is not None else set_limits.limit or most
    latency_s = state.latency_s if state is not None else None
    per_min: dict[str, float] = {}
    for budget in state.budgets.values() if state is not None else ():
        unit = "calls" if budget.unit.value == "requests" else "tokens"
        if budget.refill_per_min > 0:
            per_min[unit] = min(per_min.get(unit, budget.refill_per_min), budget.refill_per_min)
    return PoolLoad(
        pool, calls, sum(entry.input + entry.output for entry in tokens), min(limit, most),
        latency_s if latency_s is not None else evidence.latency_s.get(pool),
        set_limits.rpm or per_min.get("calls"), set_limits.tpm or per_min.get("tokens"),
    )  # fmt: skip


def with_quote(dicast: Dicast, ready: Prepared, quote: Quote | None = None) -> Prepared:
    """Return a job together with its quote, without lines, which its report will tell. A job of too many units is left
    as it is, and so is one that cannot be quoted, or that is stored already."""
    if quote is None and ready.units <= QUOTED_UNITS and dicast.ledger.is_free(ready.id):
        with contextlib.suppress(NoQuote):
            quote = quote_of(dicast, ready)
    if quote is None:
        return ready
    return replace(ready, extra={**ready.extra, "quote": quote.model_copy(update={"lines": []}).model_dump_json()})
