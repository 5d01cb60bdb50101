"""Measures the waiting work and the workers that it is worth, from the ledger, the pools and the nodes, at each
scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dicast.app.ledger.work import LedgerWork, unended_work
from dicast.app.monitoring.snapshot import SharedState, read_shared
from dicast.workers.admission.pool_state import STALE_S, BudgetState, PoolState
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import BreakerPhase
from dicast.workers.policy.wanted import Wanted, WantedBudget, WantedRoom, wanted_workers
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys


@dataclass(frozen=True, slots=True)
class Demand:
    """The work that has not ended, the workers that it is worth, how many workers live, how many of them take each
    pool's units, and how many messages were ever set aside, by reason."""

    work: LedgerWork
    wanted_workers: Wanted
    living: int
    serving: Mapping[str, int]
    dead_letters: Mapping[str, int]


def read_scrape(store_url: str, keys: Keys, most: int, slots: int) -> tuple[SharedState, Demand]:
    """Read all that a scrape reports from the store. `most` is the bound on open calls where no running job sets one,
    `slots` the width of a worker where none lives. Raises redis errors."""
    shared = read_shared(store_url, keys)
    with connect(store_url) as client:
        work = unended_work(client, keys)
        dead = client.hgetall(keys.refused_messages)
    dead_letters = {reason: int(count) for reason, count in dead.items()}
    workers = _wanted_workers(work, shared, most, slots)
    serving = {pool: sum(_serves(node, pool) for node, _ in shared.nodes) for pool in workers.calls}
    return shared, Demand(work, workers, len(shared.nodes), serving, dead_letters)


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
