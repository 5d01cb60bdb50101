"""The application: Celery with the parts that Dicast's tasks need, and the settings they are made of.

Settings are read once, when this module is imported, so that a wrong one stops the process before anything listens
or runs. The store is connected to, or the embedded one started, when it is first needed. What only workers need is
imported by them, so that a program which submits jobs starts soon.
"""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from celery import Celery
from click import Option

from dicast import config
from dicast.app import logs
from dicast.app.access.keys import SecretMissing, TokenSecret
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import Intervals
from dicast.app.ledger.client import LedgerClient
from dicast.app.pipeline.calling_options import check
from dicast.app.pipeline.celery_settings import celery_settings, transport_options_for
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE, EVALUATE
from dicast.app.submission.submit import (
    Prepared,
    check_libraries,
    field_needing_libraries,
    prepare,
    submit,
    traced_submission,
)
from dicast.app.tracing import Tracer, tracer
from dicast.config.pools import Pools
from dicast.config.settings import DEFAULTS, Settings, environment
from dicast.workers.admission.concurrency import Suspension
from dicast.workers.admission.overrides import Overrides
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.broker.profiles import Broker, Names, result_backend
from dicast.workers.nodes.registry import Node, NodeIntervals, Registry
from dicast.workers.runtime.loop_bridge import loop_resource
from dicast.workers.store.connection import EmptyStore, StoreClient, connect, connect_async
from dicast.workers.store.embedded import ensure_running, has_data
from dicast.workers.store.keys import Keys
from dicast.workers.store.scripts import Epoch

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from dicast.app.access.audit import Audit
    from dicast.app.access.membership import Membership
    from dicast.app.access.store_users import StoreBroker, StoreUsers
    from dicast.app.access.tokens import Tokens
    from dicast.app.cluster.cluster import Cluster
    from dicast.app.cluster.joining import Member
    from dicast.app.cluster.metrics import Demand, MetricsServer, ProcessMetrics
    from dicast.app.cluster.snapshot import SharedState
    from dicast.workers.admission.concurrency import NodeWidth
    from dicast.workers.admission.gate_host import GateConfig
    from dicast.workers.admission.governor import Governor

LABEL_OPTION = Option(["--label"], multiple=True, metavar="K=V", help="A label, such as region=eu; may be repeated.")
CLIENTS = "-"
"""The holder of messages that are handed out to a process that is no node."""
NOWHERE = "redis://a-worker-joins-first.invalid/0"
"""The address of the store until a worker has joined over HTTP: its options are read before it can join."""
logger = logging.getLogger(__name__)

_LOADING = threading.RLock()
"""Held while Celery's settings are loaded."""
CALL_GRACE_S = 10.0
"""How much longer than its call a lease lives."""


class Dicast(Celery):  # type: ignore[misc]
    """Celery with what Dicast's tasks need; every part is made once, when it is first asked for."""

    environ: Mapping[str, str]
    settings: Settings
    node: Node | None = None
    member: Member | None = None
    """This worker's membership, where it has joined over HTTP."""

    @property
    def conf(self) -> Any:
        """Celery's settings. A thread that asks while another one loads them waits: it would see them without what
        Dicast sets, and the process would keep a result backend that stores nothing."""
        with _LOADING:
            return super().conf

    @conf.setter
    def conf(self, settings: Any) -> None:
        Celery.conf.fset(self, settings)

    def _load_config(self) -> Any:
        with _LOADING:
            return super()._load_config()

    @cached_property
    def Beat(self) -> Any:  # noqa: N802 - Celery's name
        return self.subclass_with_self("dicast.workers.runtime.beat_program:BeatProgram")

    @property
    def message_key(self) -> str | None:
        """Signs task messages (workers/broker/dead_letters.py)."""
        return self.settings.message_key

    @cached_property
    def pools(self) -> Pools:
        path = Path(self.settings.pools_file)
        if not path.exists() and self.settings.pools_file == DEFAULTS.pools_file:
            path = Path(config.__file__).parent / "pools.toml"
        return Pools.load(path)

    @cached_property
    def keys(self) -> Keys:
        return Keys(self.settings.namespace)

    @cached_property
    def names(self) -> Names:
        """Makes names at the broker; with the default namespace they are the plain ones of the documentation."""
        return Names(self.settings.broker_namespace)

    @cached_property
    def store_url(self) -> str:
        """The operator's store, or the one that a worker of this machine was given when it joined; else the embedded
        one, started now unless it runs. Raises `NotJoined`."""
        if self.settings.joins:
            from dicast.app.cluster.joining import NotJoined, remembered

            if (url := remembered(self.settings.state_dir)) is None:
                raise NotJoined
            return url
        settings = self.settings
        return settings.redis_url or ensure_running(settings.state_dir, idle_s=settings.store_idle).url

    @property
    def nothing_stored(self) -> bool:
        """Whether the store is the embedded one, and has never run here: there is nothing to be asked of it, and no
        worker lives. Commands that only look do not start it then."""
        settings = self.settings
        return not settings.redis_url and not settings.joins and not has_data(settings.state_dir)

    @cached_property
    def store(self) -> StoreClient:
        """A client for synchronous callers."""
        return connect(self.store_url)

    @cached_property
    def broker(self) -> Broker:
        """The broker, which is RabbitMQ if the operator names one, else the store."""
        return Broker.for_urls(self.store_url, self.settings.broker_url)

    @cached_property
    def node_intervals(self) -> NodeIntervals:
        """The intervals of nodes. Tests set others before the parts are made."""
        settings = self.settings
        return NodeIntervals(beacon_s=settings.heartbeat_timeout, beacon_every_s=settings.heartbeat_interval)

    @cached_property
    def intervals(self) -> Intervals:
        """The intervals of the pipeline. A silent node's claims may be taken over when it counts as silent."""
        silent_ms = round(1000 * (self.settings.heartbeat_timeout + 1))
        listed_ms = round(1000 * self.settings.batch_listed)
        return Intervals(
            owner_silent_ms=max(Intervals().owner_silent_ms, silent_ms), batch_listed_ms=listed_ms,
            batch_turnaround_s=self.settings.batch_turnaround, batch_cancelling_s=self.settings.batch_cancelling,
        )  # fmt: skip

    @cached_property
    def registry(self) -> Registry:
        return Registry(self.store, self.keys, intervals=self.node_intervals)

    def registry_maker(self) -> Callable[[], Registry]:
        """Return a function that makes a registry with its own client, for the thread that renews this process's
        beacon."""
        url, keys, epoch, intervals = self.store_url, self.keys, self.epoch, self.node_intervals
        return lambda: Registry(connect(url), keys, epoch, intervals)

    def become(self, name: str, *, slots: int, labels: Mapping[str, str] | None = None) -> Node:
        """Make this process a node, before it connects; `labels` are added to the settings'."""
        from dicast.app.cluster.view import node_here

        self.node = node_here(name, slots, self, {**self.settings.labels, **(labels or {})})
        return self.node

    @cached_property
    def unserved(self) -> Mapping[str, str]:
        """Pools whose units this worker does not take, each with the reason: it lacks their key, or a label."""
        from dicast.app.cluster.view import unserved

        assert self.node is not None, "only workers serve pools"
        return unserved(self, self.node.labels)

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes, as operators see and steer them."""
        from dicast.app.cluster.cluster import Cluster

        return Cluster(self, self.record)

    @cached_property
    def epoch(self) -> Epoch:
        return Epoch(grace_ms=round(1000 * max(map(self.lease_s, self.pools.pools))))

    @cached_property
    def token_secrets(self) -> tuple[TokenSecret, ...]:
        """The secret that signs, and the one before it."""
        settings = self.settings
        return TokenSecret.all_of([settings.token_secret, settings.token_secret_old], settings.namespace)

    @cached_property
    def tokens(self) -> Tokens:
        """Access tokens. Raises `SecretMissing` if no secret is set."""
        from dicast.app.access.tokens import Tokens

        if not self.token_secrets:
            raise SecretMissing  # before a store is started for it
        return Tokens(self.store, self.settings.namespace, self.token_secrets)

    @cached_property
    def audit(self) -> Audit:
        from dicast.app.access.audit import Audit

        return Audit(self.store, self.settings.namespace, self.token_secrets)

    def record(
        self, actor: str, action: str, object: str, outcome: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """Record an operation in the audit log or, on a node that joined over HTTP and may not write there, in the
        process's own log."""
        from dicast.app.access.audit import log_only

        (log_only if self.settings.joins else self.audit.record)(actor, action, object, outcome, details)

    @cached_property
    def store_users(self) -> StoreUsers:
        """Users of the store for nodes that join over HTTP."""
        from dicast.app.access.store_users import StoreUsers

        url, namespace = self.settings.server_store_url or self.store_url, self.settings.namespace
        return StoreUsers(self.store, namespace, url, self.token_secrets, self._names_in_the_store())

    @cached_property
    def membership(self) -> Membership:
        """Nodes that join over HTTP. Raises `SecretMissing`."""
        from dicast.app.access.membership import Membership

        return Membership(self.tokens, self.store_users)

    def _names_in_the_store(self) -> StoreBroker | None:
        """Return what nodes may access besides the installation's own keys; None where the broker is not the store."""
        from dicast.app.access.store_users import StoreBroker

        qualify = self.names.qualify
        queues = [*(QUEUE_PREFIX + name for name in self.pools.pools), CONTROL_QUEUE, BEAT_QUEUE]
        return StoreBroker(
            queues=tuple(map(qualify, queues)), exchange=qualify("dicast"), control=qualify("celery"),
            events=qualify("celeryev"), db=self.store.get_connection_kwargs().get("db") or 0,
            plain_results=not self.names.namespace,
        ) if self.broker.is_store else None  # fmt: skip

    @cached_property
    def ledger(self) -> LedgerClient:
        return LedgerClient(self.store, self.keys, self.intervals)

    @property
    def existing_ledger(self) -> LedgerClient:
        """The ledger, for whoever asks about jobs that were submitted before; starts no store that has never run."""
        return LedgerClient(EmptyStore(), self.keys, self.intervals) if self.nothing_stored else self.ledger

    def living_nodes(self) -> list[Node]:
        """Return the nodes that are heard, for people; starts no store that has never run."""
        return [] if self.nothing_stored else self.registry.alive()

    def secrets(self) -> list[str]:
        """Return values that no output may show: secrets of the settings and the membership, and the keys of pools."""
        keys = [self.environ.get(spec.api_key_env or "", "") for spec in self.pools.pools.values()]
        member_secrets = self.member.registration.secrets() if self.member is not None else []
        return [*self.settings.secrets(), *filter(None, keys), *member_secrets]

    def join(self, member: Member) -> None:
        """Use the store that this member was given from now on. No part may have been made with another store yet."""
        self.member = member
        self.__dict__["store_url"] = member.registration.store_url
        self.conf.update(self._addresses(self.broker))

    def bugreport(self) -> str:
        """Return Celery's report, as `celery report` and workers show it, with all secrets masked: Celery knows only
        some."""
        return str(logs.JsonFormatter(self.secrets()).masked(super().bugreport()))

    def send_task(self, name: str, *args: Any, **options: Any) -> Any:
        """Send a task as Celery does. Raises TypeError for an option that a job cannot honour, also if it is sent by
        name."""
        if name == EVALUATE:
            check(options, {CONTROL_QUEUE, self.names.qualify(CONTROL_QUEUE)})
        return super().send_task(name, *args, **options)

    def prepared(self, job: EvaluationJob | Mapping[str, Any], *, image_files: bool = True) -> Prepared:
        """Make all checks of a job that need no store; see `dicast.app.submission.submit.prepare`."""
        return prepare(job, pools=self.pools, settings=self.settings, image_files=image_files)

    def submit(
        self, job: Prepared | EvaluationJob | Mapping[str, Any], *, start_in_s: float = 0.0,
        expires_in_s: float | None = None,
    ) -> str:  # fmt: skip
        """Store a job in the ledger and return its id; see `dicast.app.submission.submit.submit`. Also raises
        `JobRefused` if no living worker has the libraries that the job's question needs, and logs a warning if they
        are missing for the job's statistics."""
        ready = job if isinstance(job, Prepared) else self.prepared(job)
        if field_needing_libraries(ready.job) and (missing := check_libraries(ready.job, self.registry.alive())):
            logger.warning("job %s: %s", ready.id, missing, extra={"event": "no_libraries", "job": ready.id})
        if self.ledger.is_free(ready.id):
            self.backend.forget(ready.id)  # or callers would get the result of an earlier job with this id
        with traced_submission(self.tracer, ready) as traced:
            return submit(traced, ledger=self.ledger, start_in_s=start_in_s, expires_in_s=expires_in_s)

    @cached_property
    def tracer(self) -> Tracer | None:
        """Makes the spans of this process; None while traces are off."""
        return tracer(self.environ)

    def call_timeout_s(self, pool: str) -> float:
        """Return how long a call of this pool may take in total, s."""
        return self.pools.get(pool).timeout_s or self.settings.llm_call_timeout

    def lease_s(self, pool: str) -> float:
        return self.call_timeout_s(pool) + CALL_GRACE_S

    @cached_property
    def admission_gate(self) -> GateConfig:
        from dicast.workers.admission.gate_host import GateConfig
        from dicast.workers.admission.governor import Governor

        if self.node is None:  # a worker that is made and never started, as for `celery graph`
            self.node = Node.for_this_process(
                "nobody", limit=self.settings.max_concurrent_llm_calls, slots=self.settings.slots
            )
        return GateConfig(
            store_url=self.store_url,
            keys=self.keys,
            node=self.node.id,
            lease_s=self.lease_s,
            cut_frees=lambda pool: self.pools.get(pool).cut_frees,
            observer=logs.GateLog(),
            governor=loop_resource(self._governor, Governor.close),
            width=self.width,
            epoch=self.epoch,
            suspension=self.suspension,
            broker_is_store=self.broker.is_store,
            hand_on=self.cluster.hand_on if self.settings.steal else None,
        )

    @cached_property
    def metrics(self) -> CollectorRegistry:
        """The metrics that a scrape of this process returns."""
        from prometheus_client import CollectorRegistry

        from dicast.app.cluster.metrics import SharedCollector

        registry = CollectorRegistry()
        registry.register(SharedCollector(self.scrape))
        return registry

    def scrape(self) -> tuple[SharedState, Demand]:
        """Read the shared state of the installation from the store now. Raises redis errors."""
        from dicast.app.cluster.metrics import read_scrape, scrape_of_nothing

        settings = self.settings
        if self.nothing_stored:
            return scrape_of_nothing(settings.slots)
        return read_scrape(self.store_url, self.keys, settings.max_concurrent_llm_calls, settings.slots)

    @cached_property
    def process_metrics(self) -> ProcessMetrics:
        from dicast.app.cluster.metrics import ProcessMetrics

        return ProcessMetrics(self.metrics)

    @cached_property
    def metrics_server(self) -> MetricsServer:
        from dicast.app.cluster.metrics import MetricsServer

        return MetricsServer(self.metrics, self.settings.metrics_host, self.settings.metrics_port)

    @cached_property
    def width(self) -> NodeWidth:
        """How many calls this worker may have open, within the pools' limits."""
        from dicast.workers.admission.concurrency import NodeWidth, of_one_core
        from dicast.workers.policy.rules import RulesConfig

        settings = self.settings
        rules = RulesConfig(
            cpu_high_percent=of_one_core(settings.node_cpu_high),
            error_high=settings.node_errors_high,
            error_low=settings.node_errors_low,
            cpu_by="load" if settings.node_cpu_by == "load" else "sample",
            window_s=settings.node_window,
            sustain_s=settings.node_sustain,
        )
        assert self.node is not None, "only workers have a width"
        return NodeWidth(self.node.slots, rules if settings.node_width == "rules" else None)

    @cached_property
    def suspension(self) -> Suspension:
        """Suspends this worker when it cannot report results."""
        return Suspension()

    def _governor(self) -> Governor:
        from dicast.workers.admission.governor import Governor

        return Governor(connect_async(self.store_url), self.keys, self.configured_overrides)

    def configured_overrides(self, pool: str) -> Overrides:
        """Return a pool's overrides from the pools file; an unknown pool is bounded by the jobs alone."""
        spec, settings = self.pools.pools.get(pool), self.settings
        slo = Overrides(
            slo_target=settings.slo_target or None, slo_window_s=settings.slo_window,
            slo_burn_rate=settings.slo_burn_rate,
        )  # fmt: skip
        if spec is None:
            return slo
        pool_options = {
            name: getattr(spec, name)
            for name in ("limit", "ceiling", "adaptive", "rpm", "tpm", "latency_target_s", "project_max")
        }
        return replace(slo, **pool_options)

    def configuration(self) -> dict[str, Any]:
        """Return Celery's settings."""
        joining = self.settings.joins and self.member is None
        broker = Broker.for_urls(NOWHERE, self.settings.broker_url) if joining else self.broker
        return celery_settings(self.settings, self.pools, self.names, self.keys, broker) | self._addresses(broker)

    def _addresses(self, broker: Broker) -> dict[str, Any]:
        """Return Celery's settings with the addresses of the broker and the store."""
        store_url = NOWHERE if self.settings.joins and self.member is None else self.store_url
        return {
            **broker.settings,
            "broker_transport_options": transport_options_for(CLIENTS, broker, self.keys),
            "result_backend": result_backend(store_url),
        }

    def transport_options(self, holder: str) -> dict[str, Any]:
        """Return the broker's transport options. Where the store is the broker, unacknowledged messages belong to
        `holder`."""
        return transport_options_for(holder, self.broker, self.keys)


def create_app(environ: Mapping[str, str]) -> Dicast:
    """Create the application for this environment. Nothing is started or connected to yet. Raises `SettingsError`."""
    dicast = Dicast(
        "dicast", include=["dicast.app.tasks", "dicast.app.bootstrap"],
        amqp="dicast.workers.runtime.publishing:AMQP",
        control="dicast.app.operator.remote_control:Control", events="dicast.workers.runtime.publishing:Events",
        set_as_current=True,
    )  # fmt: skip
    dicast.environ = environ
    dicast.settings = Settings.from_env(environ)
    dicast.add_defaults(dicast.configuration)
    dicast.steps["worker"].add("dicast.workers.nodes.beacon:NodeStep")
    dicast.user_options["worker"].add(LABEL_OPTION)
    return dicast


if TYPE_CHECKING:
    app: Dicast
    """The application of this process's environment, made when it is first asked for."""
_MAKING = threading.Lock()


def __getattr__(name: str) -> Dicast:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _MAKING:
        if "app" not in globals():
            globals()["app"] = create_app(environment())
        return cast(Dicast, globals()["app"])
