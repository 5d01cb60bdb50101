"""Finds out why a job stands still, and what its judges have said so far; checks the nodes, the beat's ticks, and what
waits in the queues.

Watchers of a job, `jobs show` and the doctor ask here.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import orjson
from kombu.exceptions import OperationalError
from pydantic import BaseModel, Field

from dicast.app.application import Dicast
from dicast.app.cluster.snapshot import SharedState, read_shared
from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.concluding import MESSAGE_CHARS, failure_row
from dicast.app.domain.conclusions import Chart, FailureRow
from dicast.app.domain.cost import cost_of
from dicast.app.domain.figure import Figure
from dicast.app.domain.item import ItemSource
from dicast.app.domain.opinion import ErrorKind
from dicast.app.domain.panel import PanelRule
from dicast.app.domain.plan import Unit
from dicast.app.domain.report import ReportDimension
from dicast.app.domain.standings import MOST_CHARTS, MOST_ROWS, on_one_axis, scale_mark, title
from dicast.app.ledger.client import JobLayout, JobStatus
from dicast.app.ledger.records import JobState
from dicast.app.operator.store_checks import Finding, Severity
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE
from dicast.app.pipeline.question import can_answer
from dicast.workers.admission.leases import OpenLease
from dicast.workers.admission.pool_state import PoolState, kept_words, span
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.nodes.registry import Orders
from dicast.workers.policy.parameters import BreakerPhase

NO_WORKER = Finding(
    Severity.WARNING, "worker", "none is alive: jobs wait", "celery -A dicast worker, or dicast run --local"
)


def workers(dicast: Dicast) -> Iterator[Finding]:
    alive = dicast.registry.alive()
    heard_ids = {node.id for node in alive}
    orders = Orders(dicast.store, dicast.keys).all()
    for node, _ in dicast.registry.registered():
        is_heard = node.id in heard_ids
        facts = f"{node.name} (pid {node.pid} on {node.host})"
        if is_heard and node.stuck:
            yield Finding(Severity.ERROR, "worker", f"{facts} takes no work: {node.stuck}", "restart it")
        elif is_heard and not node.judges:
            yield Finding(
                Severity.WARNING, "worker", f"{facts} judges nothing: it reads no pool's queue",
                "start it without -Q or -X, or: celery -A dicast control add_consumer provider.<pool>",
            )  # fmt: skip
        elif is_heard and (order := orders.get(node.id)):
            yield Finding(
                Severity.INFO, "worker", f"{facts} takes no units: {order.kind} by {order.by}",
                f"dicast cluster uncordon {node.id}",
            )  # fmt: skip
        elif is_heard:
            lacks = f"; no key for {', '.join(node.missing_keys)}" if node.missing_keys else ""
            yield Finding(Severity.OK, "worker", f"{facts}: {node.slots} slots, limit {node.limit}{lacks}")
        else:
            yield Finding(Severity.WARNING, "worker", f"{facts} is silent; others take its work over")
    if not alive:
        yield NO_WORKER
        return
    limits = {node.limit for node in alive}
    if len(limits) > 1:
        yield Finding(
            Severity.WARNING, "limit", f"workers disagree ({', '.join(map(str, sorted(limits)))}); the smallest binds",
            "give all the same MAX_CONCURRENT_LLM_CALLS and restart them",
        )  # fmt: skip
    elif limits != {dicast.settings.max_concurrent_llm_calls}:
        yield Finding(
            Severity.INFO, "limit",
            f"{limits.pop()} for the workers, {dicast.settings.max_concurrent_llm_calls} here; theirs binds",
        )  # fmt: skip
    names = [node.name for node in alive]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding(
            Severity.WARNING, "worker", f"{names.count(name)} are called {name}", "start each with its own -n"
        )
    leader = dicast.store.get(dicast.keys.beat)
    if leader:
        yield Finding(Severity.OK, "beat", f"ticks, last at {leader.partition('|')[0].partition(' ')[0]}")
    else:
        yield Finding(
            Severity.WARNING, "beat", "no tick for some seconds: lost work is not found",
            "celery -A dicast beat; or see the workers' logs, one of which should take its place",
        )  # fmt: skip


def unserved(dicast: Dicast) -> Iterator[Finding]:
    """Yield pools whose units no living worker takes: a warning if units wait, or if the pools file demands labels."""
    status = dicast.cluster.status()
    for pool, why in dicast.cluster.unsatisfied(status.nodes).items():
        serious = pool in status.waiting or dicast.pools.pools[pool].labels
        yield Finding(
            Severity.WARNING if serious else Severity.INFO, f"pool {pool}", why,
            "start a worker with its key and its labels; dicast cluster nodes shows what each has",
        )  # fmt: skip


def bounds(dicast: Dicast) -> Iterator[Finding]:
    """Yield pools whose own limits are cut by the limit over all calls."""
    most = min([node.limit for node in dicast.living_nodes()] or [dicast.settings.max_concurrent_llm_calls])
    for spec in dicast.pools.pools.values():
        cut = spec.cut_to(most)
        if cut is not None:
            yield Finding(
                Severity.WARNING, f"pool {spec.name}", cut,
                "raise MAX_CONCURRENT_LLM_CALLS for all workers (above "
                f"{dicast.settings.max_concurrent_llm_calls_range}, DICAST_MAX_CONCURRENT_LLM_CALLS_RANGE first)",
            )  # fmt: skip


def queues(dicast: Dicast) -> Iterator[Finding]:
    names = [CONTROL_QUEUE, BEAT_QUEUE, *(QUEUE_PREFIX + pool for pool in dicast.pools.pools)]
    try:
        queue_lengths = {name: depth(dicast, name) for name in names}
    except (OperationalError, OSError) as error:
        yield Finding(Severity.ERROR, "queues", f"the broker does not answer: {error}", "is it the store's own URL?")
        return
    waiting = ", ".join(f"{name} {depth:,}" for name, depth in queue_lengths.items() if depth)
    yield Finding(Severity.INFO if waiting else Severity.OK, "queues", waiting or "no message waits")


def depth(dicast: Dicast, name: str) -> int:
    """Count the messages that no worker has taken; a queue that is not declared yet is empty."""
    with dicast.connection_for_read() as connection:
        channel = connection.default_channel
        try:
            return int(dicast.amqp.queues[name](channel).queue_declare(passive=True).message_count)
        except connection.channel_errors:
            return 0


def reason(dicast: Dicast, status: JobStatus, shared: SharedState | None = None) -> str | None:
    """Return what a job waits for, or None if that is not known. `shared` saves reading the state again. Blocks, so it
    is not for an event loop.

    Checked in this order: the reason that a worker has recorded (a full disk, a file that is gone), no worker, no
    worker with the pool's key or the labels that it demands, a pool that is down (also while a call probes it), leases
    of cut calls that take all slots, messages that nobody takes. Raises redis errors.
    """
    if status.state.ended:
        return None
    if status.waits_for is not None:
        return status.waits_for
    if not dicast.registry.alive():
        return "no worker is alive; start one: celery -A dicast worker"
    if status.state in (JobState.SUBMITTED, JobState.FINISHING):
        return _untaken(_messages(dicast, [CONTROL_QUEUE]))
    if status.state is not JobState.RUNNING:
        return None
    names = dicast.ledger.pools(status.id)
    # Counted once: with two counts, a page that is published in between would be explained wrongly.
    waiting = _messages(dicast, [QUEUE_PREFIX + name for name in names])
    unsatisfied = dicast.cluster.unsatisfied()
    waiting_pools = [name for name in names if isinstance(waiting, dict) and QUEUE_PREFIX + name in waiting]
    if untaken := [why for name in waiting_pools if (why := unsatisfied.get(name)) is not None]:
        return "; ".join(untaken)
    shared = shared or read_shared(dicast.store_url, dicast.keys)
    states = {state.pool: state for state in shared.pools}
    troubled = [state for name in names if (state := states.get(name)) is not None]
    open_calls = dicast.ledger.open_calls()
    calls = open_calls.get(f"j:{status.id}", 0)
    down = [text for state in troubled if (text := _down(state)) is not None and (state.down or not calls)]
    if down:
        return "; ".join(down)
    if (taken_slots := _slots_taken(status, calls, open_calls.get("all", 0), troubled, shared)) is not None:
        return taken_slots
    return None if calls else _untaken(waiting)


def _slots_taken(
    status: JobStatus, calls: int, calls_of_all: int, pools: Sequence[PoolState], shared: SharedState
) -> str | None:
    """Say whether a job stands still because the slots of its pools, its own limit or that of all jobs are taken by
    calls that nobody waits for any more; None while it has a call whose end somebody waits for."""
    living_ids = {node.id for node, _ in shared.nodes}
    lost_leases = [lease for lease in shared.leases if lease.cut or lease.node not in living_ids]
    job_leases = [lease for lease in lost_leases if lease.job == status.id]
    if calls > len(job_leases):
        return None
    if full := [f"pool {state.pool}: {taken}" for state in pools if (taken := state.kept) is not None]:
        return "; ".join(full)
    if job_leases and status.limit is not None and len(job_leases) >= status.limit:
        return f"of the {status.limit:,} calls that the job may have open {_words(job_leases)}"
    most = max((state.job_limit for state in shared.pools), default=0)
    if lost_leases and calls_of_all >= most > 0:
        return f"of the {most:,} calls that may be open in all pools {_words(lost_leases)}"
    return None


def _words(leases: Sequence[OpenLease]) -> str:
    cut, silent = ([lease.left_s for lease in leases if lease.cut is is_cut] for is_cut in (True, False))
    return kept_words(len(cut), max(cut, default=0.0), len(silent), max(silent, default=0.0))


def _down(state: PoolState) -> str | None:
    if state.down is not None:
        rest = f"; its circuit breaker is open for {span(state.breaker_for_s)} more" if state.breaker_for_s else ""
        return f"pool {state.pool} has been {state.down}{rest}"
    if state.breaker == BreakerPhase.CLOSED.value:
        return None
    failures = ", ".join(f"{code or 'no answer'}: {n:,}" for code, n in state.statuses.items() if code != 200)
    until = f"for {span(state.breaker_for_s)} more" if state.breaker_for_s else "until one call has tried it"
    return f"pool {state.pool} is down, its circuit breaker is open {until}" + (f" ({failures})" if failures else "")


def _messages(dicast: Dicast, queues: list[str]) -> dict[str, int] | str:
    """Count the messages in each of these queues that holds any; or return why that is not possible."""
    try:
        return {queue: count for queue in queues if (count := depth(dicast, queue))}
    except (OperationalError, OSError) as error:
        return f"the broker does not answer: {error}"


def _untaken(waiting: dict[str, int] | str) -> str | None:
    if isinstance(waiting, str):
        return waiting
    if not waiting:
        return None
    names = ", ".join(f"{queue} ({count:,})" for queue, count in waiting.items())
    return f"messages wait in {names} and nobody takes them: does a worker serve that queue (celery worker -Q)?"


# ------------------------------------------------------------------ what its judges have said so far
class JudgeSoFar(BaseModel):
    """What a judge of a running job has done, as far as its pages are gathered, and what its calls have cost."""

    name: str
    scored: int
    failed: int
    cost: str = Field(description="in words, with what is unknown or unpriced of it; '' before its first call")


class JobSoFar(BaseModel):
    """What the judges of a running job have said so far.

    `items` of `of` have been judged by all; `of` is null where that cannot be counted from here. The charts have the
    panel's mean of each group of items, or of all of them, in each dimension whose scores have a mean. `note` names
    what the means and intervals are of. `kind` is `anytime` for intervals that hold however often one looks, `certain`
    for those that hold whatever the other items get, and `none` without any.
    """

    items: int
    of: int | None
    kind: Literal["anytime", "certain", "none"]
    note: str
    charts: list[Chart]
    judges: list[JudgeSoFar]
    failed: list[FailureRow]


class RunningJobs:
    """Reads what the judges of running jobs have said, each page once. Safe for use by several threads."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[tuple[str, str, int], _RunningJob] = OrderedDict()
        self._lock = threading.Lock()

    def so_far(self, dicast: Dicast, job: str) -> JobSoFar:
        """Return what is known of a job so far. Reads at most `UNITS_READ` units more than before. Raises `UnknownJob`,
        OSError."""
        layout = dicast.existing_ledger.layout(job)
        key = job, layout.incarnation, layout.resumed
        with self._lock:
            running = self._jobs.setdefault(key, _RunningJob(job, layout))
            self._jobs.move_to_end(key)
            while len(self._jobs) > JOBS_KEPT:
                self._jobs.popitem(last=False)
        with running.lock:
            return running.so_far(dicast)


UNITS_READ = 20_000
ITEMS_AHEAD = 5_000
"""How many items one lane may be read ahead of another, so that little is held in memory."""
JOBS_KEPT = 16
MOST_COUNTED = 50_000
"""The most items that are counted by group: each has to be read once."""
MOST_FAILED = 20
ALL_ITEMS = "all items"


@dataclass(slots=True)
class _JudgedItem:
    group: str | None
    is_variant: bool
    scores: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By dimension and agent, one for each replicate that has one."""


class _RunningJob:
    """What has been read of one run of a job."""

    def __init__(self, job: str, layout: JobLayout) -> None:
        self.job, self.layout, self.lock = job, layout, threading.Lock()
        spec = layout.spec
        self._by = spec.groups[0] if spec.groups else ""
        self._dimensions = [
            (at, ReportDimension.from_dimension(dimension), _interim_rule(spec.panel_of(dimension)))
            for at, dimension in enumerate(spec.dimensions)
            if not dimension.scale.nominal and dimension.scale.kind != "preference"
        ]
        self._places = [(0, 0) for _ in layout.lanes]
        """Of each lane, the next page and the position of its first unit."""
        self._open: dict[int, _JudgedItem] = {}
        self._next_item = self._items = self._counted_at = 0
        self._scores: dict[tuple[int, str], list[float]] = {}
        self._unscored: Counter[tuple[int, str]] = Counter()
        self._scored: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._causes: Counter[tuple[str, str, int | None]] = Counter()
        self._messages: dict[tuple[str, str, int | None], str] = {}
        self._sizes: Mapping[str, int] | None = None
        self._charts: list[Chart] = []

    def so_far(self, dicast: Dicast) -> JobSoFar:
        self._read(dicast)
        if self._sizes is None and self._items:  # before that, its items may not lie where they are counted
            self._sizes = self._count_items(dicast)
        sizes = self._sizes or {}
        if self._items - self._counted_at > self._counted_at // 20:  # each time, all scores are gone through
            self._charts, self._counted_at = self._draw(sizes), self._items
        books = dicast.existing_ledger.job_books(self.job)
        lines = books.books if books is not None else ()
        kind = self._kind if self._charts and sizes else "none"
        return JobSoFar(
            items=self._items,
            of=sum(sizes.values()) or None,
            kind=kind,
            note=self._note(kind) if self._charts else "",
            charts=self._charts,
            judges=[
                JudgeSoFar(
                    name=agent.name, scored=self._scored[agent.name], failed=self._failed[agent.name],
                    cost=cost_of(line for line in lines if line.judge == agent.name).sentence(),
                )
                for agent in self.layout.spec.agents
            ],
            failed=[
                failure_row(judge, ErrorKind(kind), status, count, self._messages[judge, kind, status])
                for (judge, kind, status), count in self._causes.most_common(MOST_FAILED)
            ],
        )  # fmt: skip

    # -------------------------------------------------------------- reading
    def _read(self, dicast: Dicast) -> None:
        from dicast.app.reports.files import read_whole_page  # noqa: PLC0415  (takes long to load)

        units, root = 0, dicast.settings.results_dir
        for number, lane in enumerate(self.layout.lanes):
            page, first = self._places[number]
            while units < UNITS_READ and first // lane.units_per_item < self._next_item + ITEMS_AHEAD:
                whole_page = read_whole_page(root, self.job, self.layout.incarnation, str(number), page)
                if whole_page is None:
                    break
                opinions, errors = whole_page
                for position, opinion in enumerate(opinions, first):
                    self._add(lane.unit(position), opinion)
                for error in errors:
                    self._add_error(error)
                page, first, units = page + 1, first + len(opinions), units + len(opinions)
                self._places[number] = page, first
        lanes = zip(self.layout.lanes, self._places, strict=True)
        ended = min((first // lane.units_per_item for lane, (_, first) in lanes), default=0)
        while self._next_item < ended:
            self._close(self._open.pop(self._next_item))
            self._next_item += 1

    def _add(self, unit: Unit, opinion: Mapping[str, Any]) -> None:
        item = self._open.get(unit.item)
        if item is None:
            group = _text(opinion["metadata"].get(self._by)) if self._by else ALL_ITEMS
            item = self._open[unit.item] = _JudgedItem(group, opinion.get("probe") is not None)
        if item.is_variant:
            return
        if opinion["score"] is not None:
            self._scored[opinion["judge"]] += 1
            item.scores.setdefault((unit.dimension, unit.agent), []).append(opinion["score"])
        elif not opinion.get("not_needed"):
            self._failed[opinion["judge"]] += 1

    def _add_error(self, error: Mapping[str, Any]) -> None:
        if error.get("probe") is None:
            cause = error["judge"], error["kind"], error.get("status_code")
            self._causes[cause] += 1
            self._messages.setdefault(cause, error["message"][:MESSAGE_CHARS])

    def _close(self, item: _JudgedItem) -> None:
        """Count an item of which all units have ended."""
        if item.is_variant:
            return
        self._items += 1
        agents = self.layout.spec.agents
        for at, _, rule in self._dimensions if item.group is not None else ():
            by_judge = {agents[agent].name: fmean(scores) for (d, agent), scores in item.scores.items() if d == at}
            score = rule.combined(by_judge)
            if score is None:
                self._unscored[at, item.group or ""] += 1
            else:
                self._scores.setdefault((at, item.group or ""), []).append(score)

    # -------------------------------------------------------------- means
    @property
    def _kind(self) -> Literal["anytime", "certain"]:
        """Tell which intervals the order of the items allows for."""
        shuffle = arrangement_of(self.layout.spec).shuffle
        if shuffle is None or not can_answer():
            return "certain"
        # Where a question takes items of its two groups in turn, only the order within these is random.
        difference = self.layout.spec.question.difference if self.layout.spec.question is not None else None
        return "anytime" if difference is None or difference.by == self._by else "certain"

    def _count_items(self, dicast: Dicast) -> Mapping[str, int]:
        """Return how many items each group has, without variants; {} if they cannot be counted from here."""
        from dicast.app.operator.rating import NoTexts, items_of  # noqa: PLC0415  (takes long to load)
        from dicast.app.reports.folders import job_folder  # noqa: PLC0415

        layout, sizes = self.layout, Counter[str]()
        of_unit = len(layout.spec.agents) * len(layout.spec.dimensions) * layout.spec.rounds
        arrangement = arrangement_of(layout.spec)
        if not self._by and arrangement.vary is None:
            return {ALL_ITEMS: layout.units // of_unit}
        if layout.units // of_unit > MOST_COUNTED:
            return {}

        def metadata() -> Iterator[Mapping[str, Any]]:
            if arrangement.needed or isinstance(layout.spec.items, ItemSource):
                items = items_of(dicast, self.job, job_folder(dicast.settings.results_dir, self.job))
                yield from (item.metadata for item in items if item.probe is None)
            else:
                yield from dicast.existing_ledger.item_metadata(self.job)

        try:
            for each in metadata():
                sizes[(_text(each.get(self._by)) or "") if self._by else ALL_ITEMS] += 1
        except NoTexts:
            return {}
        return sizes

    def _draw(self, sizes: Mapping[str, int]) -> list[Chart]:
        """Return the charts of the means so far."""
        charts, shown = [], [dimension for _, dimension, _ in self._dimensions[:MOST_CHARTS]]
        for at, dimension, _ in self._dimensions[:MOST_CHARTS]:
            by_size = sorted((group for d, group in self._scores if d == at), key=lambda g: -len(self._scores[at, g]))
            rows = [
                scale_mark(group, len(self._scores[at, group]), self._figure(at, dimension, group, sizes), dimension)
                for group in by_size[:MOST_ROWS]
            ]
            if rows:
                charts.append(
                    Chart(
                        title=title(dimension), dimension=dimension.id, by=self._by, opinion="judges",
                        unit="percent of the scale", rows=sorted(rows, key=lambda mark: -(mark.place or 0.0)),
                    )
                )  # fmt: skip
        return on_one_axis(charts, shown)

    def _figure(self, at: int, dimension: ReportDimension, group: str, sizes: Mapping[str, int]) -> Figure:
        """Return the mean of a group's scores so far, with the interval of the mean of all its items."""
        scores, low, high = self._scores[at, group], dimension.scale_min, dimension.scale_max
        value, count = fmean(scores), len(scores)
        population = sizes.get(group, 0) - self._unscored[at, group]
        if population < count:
            return Figure.combined(value, "mean", items=count)
        if self._kind == "anytime":
            import numpy as np  # noqa: PLC0415  (takes long to load, and is an extra)

            from dicast.app.analysis.estimates import Estimate  # noqa: PLC0415
            from dicast.app.analysis.sequences import interim_mean  # noqa: PLC0415

            estimate = interim_mean(np.asarray(scores, float), (low, high), population)
            bounds = (estimate.low, estimate.high) if isinstance(estimate, Estimate) else (None, None)
            return Figure.combined(value, "betting", low=bounds[0], high=bounds[1], items=count)
        rest, whole = population - count, sum(scores)
        least, most = ((whole + rest * end) / population for end in (low, high))
        return Figure.combined(value, "bounds", low=least, high=most, items=count)

    def _note(self, kind: Literal["anytime", "certain", "none"]) -> str:
        of_what = f"items of its {self._by}" if self._by else "items of the job"
        whole = f" of {sum(self._sizes.values()):,}" if self._sizes else ""
        means = f"So far, in the judges' opinion: means of the {self._counted_at:,}{whole} items that all have judged"
        if kind == "anytime":
            return (
                f"{means}, in random order. An interval is of the mean of all {of_what} that get a score, and holds "
                "with 95 %, however often one looks."
            )
        if kind == "certain":
            return (
                f"{means}, in the order of their file, which is no random sample. An interval is where the mean of all "
                f"{of_what} that get a score will lie, whatever the others get."
            )
        return f"{means}; how far they may be from the means of all items cannot be told from here."


def _interim_rule(rule: PanelRule) -> PanelRule:
    """Return the rule by which a panel's scores can be combined before the job has ended: the mean, where the rule
    learns from the whole job, or says only whether an item passes."""
    return PanelRule() if rule.learns or rule.threshold is not None else rule


def _text(value: object) -> str | None:
    """Return the value of a metadata as results have it."""
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
