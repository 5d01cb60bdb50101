"""Prometheus metrics. Shared state is read from the store at each scrape; what one process does, it counts itself.

Every worker serves the shared metrics too, so that one that can be scraped is enough: `max by (pool)` over them.
docs/operations.md lists every metric.

The waiting work, and the number of workers that it is worth, are measured at each scrape from the ledger, the pools and
the nodes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError

from dicast.app.cluster.snapshot import SharedState, read_shared
from dicast.app.domain.cost import PurseStanding
from dicast.app.domain.price import PICO
from dicast.app.ledger.batches import BatchRecord, list_batches
from dicast.app.ledger.keys import LedgerKeys
from dicast.app.ledger.work import LedgerWork, read_purses, unended_work
from dicast.workers.admission.pool_state import STALE_S, Availability, BudgetState, PoolState
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.policy.wanted import Wanted, WantedBudget, WantedRoom, wanted_workers
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys
from dicast.workers.system.supervision import supervised_thread

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Demand:
    """The work that has not ended, the workers that it is worth, how many workers live, how many of them take each
    pool's units, how many messages were ever set aside, by reason, and the batches that are not over at `now`, which is
    Unix time in seconds."""

    work: LedgerWork
    wanted_workers: Wanted
    living: int
    serving: Mapping[str, int]
    dead_letters: Mapping[str, int]
    purses: Sequence[PurseStanding] = ()
    batches: Sequence[BatchRecord] = ()
    now: float = 0.0


def read_scrape(store_url: str, keys: Keys, most: int, slots: int) -> tuple[SharedState, Demand]:
    """Read all that a scrape reports from the store. `most` is the bound on open calls where no running job sets one,
    `slots` the width of a worker where none lives. Raises redis errors."""
    shared = read_shared(store_url, keys)
    with connect(store_url) as client:
        work = unended_work(client, keys)
        dead = client.hgetall(keys.refused_messages)
        purses, batches = read_purses(client, keys), list_batches(client, LedgerKeys(keys))
    dead_letters = {reason: int(count) for reason, count in dead.items()}
    workers = _wanted_workers(work, shared, most, slots)
    serving = {pool: sum(_serves(node, pool) for node, _ in shared.nodes) for pool in workers.calls}
    return shared, Demand(work, workers, len(shared.nodes), serving, dead_letters, purses, batches, time.time())


def scrape_of_nothing(slots: int) -> tuple[SharedState, Demand]:
    """What a scrape tells where no store has ever run."""
    shared, work = SharedState((), ()), LedgerWork(unended=0, units=0, done=0, calls=())
    return shared, Demand(work, _wanted_workers(work, shared, 0, slots), 0, {}, {})


def _serves(node: Node, pool: str) -> bool:
    """Return whether a node serves a pool. A node whose version does not report pools serves all if it judges."""
    return pool in node.pools if node.version else node.judges


def _wanted_workers(work: LedgerWork, shared: SharedState, most: int, slots: int) -> Wanted:
    widths = [status.current for node, status in shared.nodes if node.judges]
    job_limit = max((state.job_limit for state in shared.pools), default=0)
    return wanted_workers(
        work.calls, {state.pool: _room(state) for state in shared.pools}, most=job_limit or most,
        width=sum(widths) / len(widths) if widths else slots, unended_jobs=work.unended,
    )  # fmt: skip


def _room(state: PoolState) -> WantedRoom:
    """Return the room for calls in a pool. A limit that has only fallen for lack of decisions does not count."""
    undecided = state.decided_s_ago > STALE_S
    return WantedRoom(
        limit=max(state.effective_limit, state.limit) if undecided else state.effective_limit,
        open=state.open,
        broken=state.breaker != BreakerPhase.CLOSED.value,
        latency_s=state.latency_s or 0.0,
        budgets=[b for budget in state.budgets.values() if (b := _calls_of(budget, state)) is not None],
    )


def _calls_of(budget: BudgetState, state: PoolState) -> WantedBudget | None:
    """Return a budget in calls, by the average use of a call so far; None where that is not known."""
    answered_calls = state.statuses.get(200, 0)
    used = {
        BudgetUnit.REQUESTS: float(answered_calls),
        BudgetUnit.INPUT_TOKENS: float(state.input_tokens),
        BudgetUnit.OUTPUT_TOKENS: float(state.output_tokens),
        BudgetUnit.TOKENS: float(state.input_tokens + state.output_tokens),
    }[budget.unit]
    if answered_calls == 0 or used == 0:
        return None
    used_per_call = used / answered_calls
    return WantedBudget(budget.level / used_per_call, budget.refill_per_min / 60.0 / used_per_call)


def demand_metrics(demand: Demand) -> Iterator[Metric]:
    """Yield the metrics for autoscalers, dashboards and alerts."""
    work, workers = demand.work, demand.wanted_workers
    for name, help, value in (
        ("dicast_wanted_workers", "Workers that limits and waiting calls make useful", workers.workers),
        ("dicast_living_workers", "Workers whose beacon is heard", demand.living),
        ("dicast_unended_jobs", "Jobs that have not ended", work.unended),
        ("dicast_running_jobs_units", "Units of the jobs that run", work.units),
        ("dicast_running_jobs_done_units", "Those of them that have ended", work.done),
    ):
        yield GaugeMetricFamily(name, help, value)
    dead = CounterMetricFamily("dicast_dead_letters", "Messages set aside, by reason", labels=["reason"])
    for reason, count in sorted(demand.dead_letters.items()):
        dead.add_metric([reason], count)
    yield from (*pool_demand_metrics(demand, workers.by_pool), dead)


def pool_demand_metrics(demand: Demand, pools: Iterable[str]) -> Iterator[Metric]:
    """Yield the same metrics for each of these pools alone, if there is work for it."""
    workers = demand.wanted_workers
    by_pool = GaugeMetricFamily("dicast_pool_wanted_workers", "Workers that one pool alone is worth", labels=["pool"])
    waiting = GaugeMetricFamily("dicast_pool_waiting_calls", "Calls still to be made, not open", labels=["pool"])
    serving = GaugeMetricFamily("dicast_pool_nodes", "Living workers that take its units", labels=["pool"])
    for pool in sorted(set(pools) & set(workers.by_pool)):
        by_pool.add_metric([pool], workers.by_pool[pool])
        waiting.add_metric([pool], workers.waiting[pool])
        serving.add_metric([pool], demand.serving.get(pool, 0))
    yield from (by_pool, waiting, serving)


def purse_metrics(purses: Sequence[PurseStanding]) -> Iterator[Metric]:
    """Yield what pools and projects have spent. Sums of all pools and sums of all projects are the same money."""
    for kind in ("pool", "project"):
        of_kind = [purse for purse in purses if purse.kind == kind]
        labels = [kind, "currency"]
        spent = CounterMetricFamily(f"dicast_{kind}_spent", "Money that calls have cost", labels=labels)
        reserved = GaugeMetricFamily(f"dicast_{kind}_reserved", "Money reserved for open calls", labels=labels)
        unknown = GaugeMetricFamily(f"dicast_{kind}_unknown_cost", "What others may have cost", labels=labels)
        today = GaugeMetricFamily(f"dicast_{kind}_spent_today", "Of this day in UTC", labels=labels)
        month = GaugeMetricFamily(f"dicast_{kind}_spent_this_month", "Of this month in UTC", labels=labels)
        for standing in of_kind:
            names, ever = [standing.name, standing.currency], standing.purses["total"]
            spent.add_metric(names, ever.spent / PICO)
            reserved.add_metric(names, standing.reserved / PICO)
            unknown.add_metric(names, ever.unknown / PICO)
            today.add_metric(names, standing.purses["day"].spent / PICO)
            month.add_metric(names, standing.purses["month"].spent / PICO)
        yield from (spent, reserved, unknown, today, month)


def batch_metrics(batches: Sequence[BatchRecord], now: float) -> Iterator[Metric]:
    """Yield how many batches are on the way or at their providers, and what waits in them. A state is as the provider
    told last; before it was told any, it is the stage. Tokens are estimates of the input."""
    number = GaugeMetricFamily("dicast_batches", "Batches that are not over", labels=["pool", "state"])
    age = GaugeMetricFamily("dicast_batch_age_seconds", "Since the oldest was formed", labels=["pool", "state"])
    requests = GaugeMetricFamily("dicast_batch_queued_requests", "Of batches, not done", labels=["pool", "model"])
    tokens = GaugeMetricFamily("dicast_batch_queued_tokens", "Input of those requests", labels=["pool", "model"])
    formed: dict[tuple[str, str], list[float]] = {}
    queued: Counts[tuple[str, str]] = Counts()
    queued_tokens: Counts[tuple[str, str]] = Counts()
    for batch in batches:
        formed.setdefault((batch.pool, batch.state or batch.stage.value), []).append(batch.formed_at)
        waiting = max(0, batch.requests - batch.done - batch.failed)
        queued[batch.pool, batch.model] += waiting
        queued_tokens[batch.pool, batch.model] += round(batch.tokens * waiting / max(1, batch.requests))
    for labels, instants in sorted(formed.items()):
        number.add_metric(labels, len(instants))
        age.add_metric(labels, max(0.0, now - min(instants)))
    for labels in sorted(queued):
        requests.add_metric(labels, queued[labels])
        tokens.add_metric(labels, queued_tokens[labels])
    yield from (number, age, requests, tokens)


CHECK_EVERY_S = 1.0
SCORES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class SharedCollector(Collector):
    """Reads the store at each scrape. If it does not answer, the only metric is `dicast_store_up` with 0."""

    def __init__(self, read_state: Callable[[], tuple[SharedState, Demand]]) -> None:
        self._read_state = read_state

    def describe(self) -> list[Metric]:
        return []  # registering is no scrape

    def collect(self) -> Iterator[Metric]:
        try:
            shared, demand = self._read_state()
        except (RedisError, OSError) as error:
            logger.warning("no shared metrics: %s", error)
            yield GaugeMetricFamily("dicast_store_up", "Whether the store answered this scrape", 0)
            return
        yield GaugeMetricFamily("dicast_store_up", "Whether the store answered this scrape", 1)
        yield from pool_metrics(shared.pools)
        yield from node_metrics(shared.nodes)
        yield from demand_metrics(demand)
        yield from purse_metrics(demand.purses)
        yield from batch_metrics(demand.batches, demand.now)


class ProcessMetrics:
    """The metrics that this process counts. `assignments` are choices among several deployments of one judge."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._assignments = Counter(
            "dicast_assignments", "Units assigned to one of several deployments", ["pool", "model"], registry=registry
        )
        self._scores = Histogram(
            "dicast_assignment_score", "success_rate / (1 + load) of the deployment chosen", registry=registry,
            buckets=SCORES,
        )  # fmt: skip
        self._adopted = Counter(
            "dicast_adopted_answers", "Answers found on this machine's disk, by whether they counted", ["counted"],
            registry=registry,
        )  # fmt: skip

    def adopted(self, *, accepted: bool) -> None:
        self._adopted.labels(str(accepted).lower()).inc()

    def assigned(self, pool: str, model: str, score: float) -> None:
        self._assignments.labels(pool, model).inc()
        self._scores.observe(score)


class MetricsServer:
    """Serves a registry over HTTP from a supervised thread until it is stopped. If the port is taken there are no
    metrics; nothing else is affected."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self._registry, self._host, self._port = registry, host, port
        self._serving: tuple[WSGIServer, threading.Thread] | None = None
        self._stopped = threading.Event()
        self._keeper = supervised_thread("metrics", self._keep)

    def start(self) -> None:
        if self._open():
            logger.info("metrics at http://%s:%d/metrics", self._host, self._port)
            self._keeper.start()

    def _open(self) -> bool:
        try:
            self._serving = start_http_server(self._port, self._host, self._registry)
        except OSError as error:
            logger.error("metrics cannot be served at %s:%d: %s", self._host, self._port, error.strerror)
            return False
        self._serving[1].name = "metrics-server"
        return True

    def _keep(self) -> None:
        """Keep the server open until it is stopped. Raises RuntimeError if the server's own thread has ended."""
        while self._serving is None and not self._open():
            if self._stopped.wait(CHECK_EVERY_S):
                return
        assert self._serving is not None
        server, thread = self._serving
        try:
            while thread.is_alive():
                thread.join(CHECK_EVERY_S)
        finally:
            self._serving = None
            server.shutdown()  # a socket that is closed while a thread polls it keeps the port
            server.server_close()
        if not self._stopped.is_set():
            raise RuntimeError("the server of the metrics has ended")

    def stop(self) -> None:
        self._stopped.set()
        serving = self._serving
        if serving is not None:
            serving[0].shutdown()
            self._keeper.join()


# ------------------------------------------------------------------ from the store
def pool_metrics(states: Sequence[PoolState]) -> Iterator[Metric]:
    """Yield the metrics of each pool with live state."""
    for name, help, value in _GAUGES:
        gauge = GaugeMetricFamily(f"dicast_pool_{name}", help, labels=["pool"])
        for state in states:
            gauge.add_metric([state.pool], value(state))
        yield gauge
    for name, help, value in _COUNTERS:
        counter = CounterMetricFamily(f"dicast_pool_{name}", help, labels=["pool"])
        for state in states:
            counter.add_metric([state.pool], value(state))
        yield counter
    denials = CounterMetricFamily("dicast_pool_refused", "Leases refused, by reason", labels=["pool", "reason"])
    answers = CounterMetricFamily("dicast_pool_answers", "Calls ended, by HTTP status", labels=["pool", "status"])
    tokens = CounterMetricFamily("dicast_pool_tokens", "Tokens used, as reported", labels=["pool", "direction"])
    breaker = GaugeMetricFamily("dicast_pool_breaker", "1 for the breaker's state", labels=["pool", "state"])
    success = GaugeMetricFamily("dicast_pool_success_rate", "Of a model's calls, lately", labels=["pool", "model"])
    latency = GaugeMetricFamily(
        "dicast_pool_latency_seconds", "Of a model's good calls, lately", labels=["pool", "model"]
    )
    available = GaugeMetricFamily("dicast_pool_availability", "1 for what a unit would meet", labels=["pool", "state"])
    burnt = GaugeMetricFamily(
        "dicast_pool_error_budget_cap", "The limit's cap while errors are too many", labels=["pool"]
    )
    level = GaugeMetricFamily("dicast_budget_level", "What is left of a budget", labels=["pool", "budget"])
    capacity = GaugeMetricFamily("dicast_budget_capacity", "Most of it that can be left", labels=["pool", "budget"])
    refill = GaugeMetricFamily("dicast_budget_refill_per_minute", "What comes back", labels=["pool", "budget"])
    slo = GaugeMetricFamily("dicast_slo_limit", "The operator's cap on every pool's limit")
    for state in states:
        for reason, count in state.refused.items():
            denials.add_metric([state.pool, reason], count)
        for status, count in state.statuses.items():
            answers.add_metric([state.pool, str(status)], count)
        for direction, count in (("input", state.input_tokens), ("output", state.output_tokens)):
            tokens.add_metric([state.pool, direction], count)
        for phase in BreakerPhase:
            breaker.add_metric([state.pool, phase.value], float(state.breaker == phase.value))
        for model, health in state.health.items():
            success.add_metric([state.pool, model], health.success_rate)
            if health.latency_s is not None:
                latency.add_metric([state.pool, model], health.latency_s)
        for availability in Availability:
            available.add_metric([state.pool, availability.value], float(state.availability is availability))
        if state.budget_cap is not None:
            burnt.add_metric([state.pool], state.budget_cap)
        for name, budget in state.budgets.items():
            level.add_metric([state.pool, name], budget.level)
            capacity.add_metric([state.pool, name], budget.capacity)
            refill.add_metric([state.pool, name], budget.refill_per_min)
    if states and states[0].slo is not None:
        slo.add_metric([], states[0].slo)
    yield from (denials, answers, tokens, breaker, available, success, latency, burnt, level, capacity, refill, slo)


def node_metrics(nodes: Sequence[tuple[Node, RulesStatus]]) -> Iterator[Metric]:
    """Yield the metrics of each living node."""
    labels = ["node", "host"]
    level = GaugeMetricFamily(
        "dicast_parallelism_level", "Calls that a node may have open, and why", labels=[*labels, "reason"]
    )
    configured = GaugeMetricFamily("dicast_parallelism_configured", "The same, if nothing narrows it", labels=labels)
    cpu = GaugeMetricFamily("dicast_node_cpu_percent", "CPU of its machine, percent of one core", labels=labels)
    load = GaugeMetricFamily("dicast_node_load_percent", "Load of 5 min there, percent of one core", labels=labels)
    errors = GaugeMetricFamily(
        "dicast_node_error_rate", "Share of its calls that failed, of ten minutes", labels=labels
    )
    stuck = GaugeMetricFamily("dicast_node_stuck", "1 if it takes no work although some waits", labels=labels)
    for node, status in nodes:
        stuck.add_metric([node.name, node.host], float(bool(node.stuck)))
        level.add_metric([node.name, node.host, status.cause], status.current)
        configured.add_metric([node.name, node.host], status.configured)
        cpu.add_metric([node.name, node.host], status.cpu_percent)
        load.add_metric([node.name, node.host], status.load_percent)
        errors.add_metric([node.name, node.host], status.error_rate)
    yield from (level, configured, cpu, load, errors, stuck)


_Value = Callable[[PoolState], float]
_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("limit", "Most open calls, as decided", lambda s: s.limit),
    ("effective_limit", "Most open calls, in force now", lambda s: s.effective_limit),
    ("ceiling", "Most that the limit may become", lambda s: s.ceiling),
    ("floor", "Least that the limit may become", lambda s: s.floor),
    ("open", "Open calls", lambda s: s.open),
    ("load", "Open calls and assigned units over the limit, 1 at most", lambda s: s.load),
    ("waiting_projects", "Projects that were refused a lease and still want one", lambda s: len(s.waiting)),
    ("error_rate", "Share of the calls that failed, lately", lambda s: s.error_rate),
    ("decision_age_seconds", "Since the last decision", lambda s: s.decided_s_ago),
    ("cut_calls", "Open calls that were cut, and that the provider may still work on", lambda s: s.cut),
    ("zombie_leases", "Leases of nodes that cannot be heard", lambda s: s.zombies),
)
_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    ("granted", "Leases granted: requests spent", lambda s: s.granted),
    ("rate_limited", "Calls that the provider refused with 429", lambda s: s.rate_limited),
    ("breaks", "Times that the circuit breaker opened", lambda s: s.breaks),
)
