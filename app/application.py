"""The application: Celery with the parts that Dicast's tasks need, and the settings they are made of.

Settings are read once, when this module is imported, so that a wrong one stops the process before anything listens
or runs. The store is connected to, or the embedded one started, when it is first needed. What only workers need is
imported by them, so that a program which submits jobs starts soon.
"""
# ruff: noqa: PLC0415  (see above)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery
from click import Option
from kombu import Exchange, Queue

from dicast import config
from dicast.app import logs
from dicast.app.access.secret import TokenSecret
from dicast.app.domain.intervals import Intervals
from dicast.app.domain.job import EvaluationJob
from dicast.app.ledger.client import LedgerClient
from dicast.app.pipeline.calling_options import check
from dicast.app.pipeline.messages import BEAT_QUEUE, CONTROL_QUEUE, EVALUATE, GOVERNOR, HOUSEKEEPING
from dicast.app.submission.submit import Prepared, prepared, submit
from dicast.config.pools import Pools
from dicast.config.settings import DEFAULTS, Settings, environment
from dicast.errors import DicastError
from dicast.workers.admission.overrides import Overrides
from dicast.workers.admission.request import QUEUE_PREFIX, Admitted
from dicast.workers.admission.suspension import Suspension
from dicast.workers.broker.names import Names
from dicast.workers.broker.profiles import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    MAX_CONNECTIONS,
    Broker,
    result_backend,
)
from dicast.workers.nodes.reaper import own_unacked
from dicast.workers.nodes.registry import Node, NodeIntervals, Registry
from dicast.workers.runtime.loop_bridge import loop_resource
from dicast.workers.runtime.steady_schedule import every
from dicast.workers.store.connection import StoreClient, connect, connect_async
from dicast.workers.store.embedded import ensure_running
from dicast.workers.store.epoch import Epoch
from dicast.workers.store.keys import Keys

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from dicast.app.access.audit import Audit
    from dicast.app.access.membership import Membership
    from dicast.app.access.rights import StoreBroker
    from dicast.app.access.store_users import StoreUsers
    from dicast.app.access.tokens import Tokens
    from dicast.app.cluster.cluster import Cluster
    from dicast.app.joining import Member
    from dicast.app.monitoring.metrics import MetricsServer, ProcessMetrics
    from dicast.workers.admission.concurrency import NodeWidth
    from dicast.workers.admission.gate import GateConfig
    from dicast.workers.admission.governor import Governor

LABEL_OPTION = Option(
    ["--label"], multiple=True, metavar="K=V", help="A label of this worker, such as region=eu; may be repeated."
)
BEAT_EVERY_S = 1.0
HOUSEKEEPING_WORTH_S = 10 * BEAT_EVERY_S
"""After so long another tick has come, and `BEAT_MESSAGES_MAX` is more than come in that time. To a worker whose clock
is further ahead of the beat's, its ticks are over when they come: the workers then keep house themselves."""
BEAT_MESSAGES_MAX = 100
CLIENTS = "-"
"""Stands for whoever is no node, where the broker wants a name of what it hands out."""
NOWHERE = "redis://a-worker-joins-first.invalid/0"
"""Stands for the store until a worker has joined over HTTP: its options are read before it has a name to join with."""
CALL_GRACE_S = 10.0
"""How much longer a lease lives than the call it is for."""


class NotJoined(DicastError):
    """Something needs the store, and only a worker joins over HTTP."""

    def __init__(self) -> None:
        super().__init__(
            "DICAST_SERVER_URL and DICAST_NODE_TOKEN let a worker join, and none has joined from here with this "
            "DICAST_STATE_DIR; set REDIS_URL to reach the store without one"
        )


class GateLog:
    """Writes the gate's events into the log, under the names that a unit's message carries."""

    def queueing(self, unit: Admitted, pool: str, depth: int, reason: str, wait_s: float | None) -> None:
        wait: dict[str, Any] = {} if wait_s is None else {"wait_s": round(wait_s, 3)}
        logs.queueing(queue_depth=depth, pool=pool, reason=reason, **wait, **_named(unit))

    def acquired(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None:
        logs.acquired(active_slots=open_calls, pool=pool, lease=lease, **_named(unit))

    def released(self, unit: Admitted, pool: str, lease: str, open_calls: int) -> None:
        logs.released(active_slots=open_calls, pool=pool, lease=lease, **_named(unit))

    def over_share(self, unit: Admitted, pool: str, limit: int, projects: int, *, width: int, share: int) -> None:
        logs.over_share(project=unit.project, pool=pool, limit=limit, projects=projects, width=width, share=share)


def _named(unit: Admitted) -> dict[str, Any]:
    labels = {name: str(unit.labels.get(name, "")) for name in ("agent", "dimension", "unit")}
    return {**labels, "job": unit.job}


class Dicast(Celery):  # type: ignore[misc]
    """Celery with what Dicast's tasks need; every part is made once, when it is first asked for."""

    environ: Mapping[str, str]
    settings: Settings
    node: Node | None = None
    member: Member | None = None
    """This worker's membership, where it has joined over HTTP."""

    @property
    def message_key(self) -> str | None:
        """Signs task messages (workers/broker/signing.py)."""
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
        """What is at the broker; of an installation with the default namespace as plain as the documentation has it."""
        namespace = self.settings.namespace
        return Names("" if namespace == DEFAULTS.namespace else namespace)

    @cached_property
    def store_url(self) -> str:
        """The operator's store, or the one that a worker of this machine was given when it joined; else the embedded
        one, started now unless it runs. Raises `NotJoined`."""
        if self.settings.joins:
            from dicast.app.joining import remembered

            if (url := remembered(self.settings.state_dir)) is None:
                raise NotJoined
            return url
        return self.settings.redis_url or ensure_running(Path(self.settings.state_dir)).url

    @cached_property
    def store(self) -> StoreClient:
        """A client for synchronous callers."""
        return connect(self.store_url)

    @cached_property
    def broker(self) -> Broker:
        """Where messages wait: RabbitMQ if the operator names one, else the store."""
        return Broker.of(self.store_url, self.settings.broker_url)

    @cached_property
    def node_intervals(self) -> NodeIntervals:
        """Whoever wants others sets them before the parts are made, as tests do."""
        settings = self.settings
        return NodeIntervals(beacon_s=settings.heartbeat_timeout, beacon_every_s=settings.heartbeat_interval)

    @cached_property
    def intervals(self) -> Intervals:
        """The same; a silent node's claims may be taken when it is known to be silent."""
        silent_ms = round(1000 * (self.settings.heartbeat_timeout + 1))
        return Intervals(owner_silent_ms=max(Intervals().owner_silent_ms, silent_ms))

    @cached_property
    def registry(self) -> Registry:
        return Registry(self.store, self.keys, intervals=self.node_intervals)

    def registry_maker(self) -> Callable[[], Registry]:
        """Makes the thread that renews this process's beacon, and compares epochs, a registry of its own."""
        url, keys, epoch, intervals = self.store_url, self.keys, self.epoch, self.node_intervals
        return lambda: Registry(connect(url), keys, epoch, intervals)

    def become(self, name: str, *, slots: int, labels: Mapping[str, str] | None = None) -> Node:
        """Make this process a node, before it connects; `labels` are added to the settings'."""
        from dicast.app.cluster.facts import node_here

        self.node = node_here(name, slots, self, {**self.settings.labels, **(labels or {})})
        return self.node

    @cached_property
    def unserved(self) -> Mapping[str, str]:
        """Pools whose units this worker does not take, each with the reason: it lacks their key, or a label."""
        from dicast.app.cluster.facts import unserved

        assert self.node is not None, "only workers serve pools"
        return unserved(self, self.node.labels)

    @cached_property
    def cluster(self) -> Cluster:
        """The nodes, as operators see and steer them."""
        from dicast.app.cluster.cluster import Cluster

        return Cluster(self, self.audit.record)

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
        """Raises `SecretMissing` where none is set."""
        from dicast.app.access.tokens import Tokens

        return Tokens(self.store, self.settings.namespace, self.token_secrets)

    @cached_property
    def audit(self) -> Audit:
        from dicast.app.access.audit import Audit

        return Audit(self.store, self.settings.namespace, self.token_secrets)

    @cached_property
    def store_users(self) -> StoreUsers:
        """Users of the store for nodes that join over HTTP."""
        from dicast.app.access.store_users import StoreUsers

        return StoreUsers(
            self.store,
            self.settings.namespace,
            self.settings.server_store_url or self.store_url,
            self.token_secrets,
            self._names_in_the_store(),
        )

    @cached_property
    def membership(self) -> Membership:
        """Nodes that join over HTTP. Raises `SecretMissing`."""
        from dicast.app.access.membership import Membership

        return Membership(self.tokens, self.store_users)

    def _names_in_the_store(self) -> StoreBroker | None:
        """What nodes may touch besides the installation's own keys; None where the broker is not the store."""
        from dicast.app.access.rights import StoreBroker

        named = self.names.of
        queues = [*(QUEUE_PREFIX + name for name in self.pools.pools), CONTROL_QUEUE, BEAT_QUEUE]
        return StoreBroker(
            queues=tuple(map(named, queues)), exchange=named("dicast"), control=named("celery"),
            events=named("celeryev"), db=self.store.get_connection_kwargs().get("db") or 0,
            plain_results=not self.names.namespace,
        ) if self.broker.is_store else None  # fmt: skip

    @cached_property
    def ledger(self) -> LedgerClient:
        return LedgerClient(self.store, self.keys, self.intervals)

    def secrets(self) -> list[str]:
        """Values that no output may show: the settings' own, and the keys that pools name."""
        keys = [self.environ.get(spec.api_key_env or "", "") for spec in self.pools.pools.values()]
        given = self.member.given.secrets() if self.member is not None else []
        return [*self.settings.secrets(), *filter(None, keys), *given]

    def join(self, member: Member) -> None:
        """From now on the store is the one that this member was given. Nothing may have been made with another yet."""
        self.member = member
        self.__dict__["store_url"] = member.given.store_url
        self.conf.update(self._addresses(self.broker))

    def bugreport(self) -> str:
        """Celery's, as `celery report` and workers tell it; of passwords it masks only those that it knows of."""
        return str(logs.JsonFormatter(self.secrets()).masked(super().bugreport()))

    def send_task(self, name: str, *args: Any, **options: Any) -> Any:
        """Celery's; raises TypeError for an option that a job cannot keep, also where it is sent by its task's name."""
        if name == EVALUATE:
            check(options, {CONTROL_QUEUE, self.names.of(CONTROL_QUEUE)})
        return super().send_task(name, *args, **options)

    def prepared(self, job: EvaluationJob | Mapping[str, Any]) -> Prepared:
        """All checks of a job that need no store; see `dicast.app.submission.submit.prepared`."""
        return prepared(job, pools=self.pools, settings=self.settings)

    def submit(
        self, job: Prepared | EvaluationJob | Mapping[str, Any], *, start_in_s: float = 0.0,
        expires_in_s: float | None = None,
    ) -> str:  # fmt: skip
        """Store a job in the ledger and return its id; see `dicast.app.submission.submit.submit`."""
        ready = job if isinstance(job, Prepared) else self.prepared(job)
        if self.ledger.is_free(ready.id):
            self.backend.forget(ready.id)  # or who waits for it is told how an earlier job of this id has ended
        return submit(ready, ledger=self.ledger, start_in_s=start_in_s, expires_in_s=expires_in_s)

    def call_timeout_s(self, pool: str) -> float:
        """How long a call of this pool may take in total."""
        return self.pools.get(pool).timeout_s or self.settings.llm_call_timeout

    def lease_s(self, pool: str) -> float:
        return self.call_timeout_s(pool) + CALL_GRACE_S

    @cached_property
    def gate(self) -> GateConfig:
        from dicast.workers.admission.gate import GateConfig
        from dicast.workers.admission.governor import Governor

        if self.node is None:  # a worker that is made and never started, as for `celery graph`
            self.node = Node.here("nobody", limit=self.settings.max_concurrent_llm_calls, slots=self.settings.slots)
        return GateConfig(
            store_url=self.store_url,
            keys=self.keys,
            node=self.node.id,
            lease_s=self.lease_s,
            observer=GateLog(),
            governor=loop_resource(self._governor, Governor.close),
            width=self.width,
            epoch=self.epoch,
            suspension=self.suspension,
            broker_is_store=self.broker.is_store,
        )

    @cached_property
    def metrics(self) -> CollectorRegistry:
        """What a scrape of this process tells."""
        from prometheus_client import CollectorRegistry

        from dicast.app.monitoring.metrics import SharedCollector
        from dicast.app.monitoring.snapshot import read_shared

        registry = CollectorRegistry()
        registry.register(SharedCollector(lambda: read_shared(self.store_url, self.keys)))
        return registry

    @cached_property
    def process_metrics(self) -> ProcessMetrics:
        from dicast.app.monitoring.metrics import ProcessMetrics

        return ProcessMetrics(self.metrics)

    @cached_property
    def metrics_server(self) -> MetricsServer:
        from dicast.app.monitoring.metrics import MetricsServer

        return MetricsServer(self.metrics, self.settings.metrics_host, self.settings.metrics_port)

    @cached_property
    def width(self) -> NodeWidth:
        """How many calls this worker may have open; the pools' limits bind besides."""
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
        """Takes no more work for this worker when it cannot report."""
        return Suspension()

    def _governor(self) -> Governor:
        from dicast.workers.admission.governor import Governor

        return Governor(connect_async(self.store_url), self.keys, self.configured_overrides)

    def configured_overrides(self, pool: str) -> Overrides:
        """A pool's overrides as the pools file has them; a pool that it does not know is bounded by the jobs alone."""
        spec, settings = self.pools.pools.get(pool), self.settings
        slo = Overrides(
            slo_target=settings.slo_target or None, slo_window_s=settings.slo_window,
            slo_burn_rate=settings.slo_burn_rate,
        )  # fmt: skip
        if spec is None:
            return slo
        own = {name: getattr(spec, name) for name in ("limit", "ceiling", "adaptive", "rpm", "tpm", "project_max")}
        return replace(slo, **own)

    def configuration(self) -> dict[str, Any]:
        """Celery's settings; flags like `-c`, `-n` and `-Q` still mean what Celery says."""
        named = self.names.of
        joining = self.settings.joins and self.member is None
        broker = Broker.of(NOWHERE, self.settings.broker_url) if joining else self.broker
        exchange = Exchange(named("dicast"), type="direct")
        names = [*(QUEUE_PREFIX + name for name in self.pools.pools), CONTROL_QUEUE]
        arguments = dict.fromkeys(names, broker.queue_arguments)
        arguments[BEAT_QUEUE] = broker.short_lived(HOUSEKEEPING_WORTH_S, BEAT_MESSAGES_MAX)
        return {
            **self._addresses(broker),
            "result_backend_transport_options": self._result_keys(),
            "control_exchange": named("celery"),
            "event_exchange": named("celeryev"),
            "event_queue_prefix": named("celeryev"),
            "broker_connection_retry_on_startup": True,
            "broker_connection_max_retries": None,
            "redis_max_connections": MAX_CONNECTIONS,
            "redis_socket_timeout": ANSWER_TIMEOUT_S,
            "redis_socket_connect_timeout": CONNECT_TIMEOUT_S,
            "result_backend_always_retry": True,
            "result_expires": 7 * 86_400,
            "worker_pool": "dicast.workers.runtime.pool:TaskPool",
            "worker_consumer": "dicast.workers.runtime.consumer:AdmissionConsumer",
            "worker_concurrency": self.settings.slots,
            "worker_prefetch_multiplier": 1,
            "worker_cancel_long_running_tasks_on_connection_loss": False,
            "worker_enable_prefetch_count_reduction": False,
            "worker_redirect_stdouts": False,
            # Flower asks for them while it watches, as `celery control enable_events` does; nobody else pays for them.
            "worker_send_task_events": False,
            "task_send_sent_event": False,
            "task_acks_late": True,
            "task_reject_on_worker_lost": True,
            "task_serializer": "json",
            "result_serializer": "json",
            "accept_content": ["json"],
            "task_queues": [
                # By its plain name it is known here, and as `-Q`, in every namespace.
                Queue(named(name), exchange, routing_key=named(name), queue_arguments=dict(given), alias=name)
                for name, given in arguments.items()
            ],
            "task_default_queue": named(CONTROL_QUEUE),
            "task_default_exchange": exchange.name,
            "task_default_routing_key": named(CONTROL_QUEUE),
            "task_create_missing_queues": False,
            "beat_schedule": {
                "housekeeping": {
                    "task": HOUSEKEEPING,
                    "schedule": every(BEAT_EVERY_S),
                    "options": {"queue": BEAT_QUEUE, "expires": HOUSEKEEPING_WORTH_S},
                },
                "governor": {
                    "task": GOVERNOR,
                    "schedule": every(BEAT_EVERY_S),
                    "options": {"queue": BEAT_QUEUE, "expires": HOUSEKEEPING_WORTH_S},
                },
            },
            "beat_scheduler": "celery.beat:Scheduler",
            "beat_max_loop_interval": BEAT_EVERY_S,
        }

    def _addresses(self, broker: Broker) -> dict[str, Any]:
        """Settings of Celery's that name the broker and the store."""
        store_url = NOWHERE if self.settings.joins and self.member is None else self.store_url
        return {
            **broker.settings,
            "broker_transport_options": self._held_by(CLIENTS, broker),
            "result_backend": result_backend(store_url),
        }

    def transport_options(self, holder: str) -> dict[str, Any]:
        """The broker's; where that is the store, messages that are not acknowledged are `holder`'s."""
        return self._held_by(holder, self.broker)

    def _held_by(self, holder: str, broker: Broker) -> dict[str, Any]:
        own = own_unacked(self.keys, holder) if broker.is_store else {}
        return {**broker.settings["broker_transport_options"], **own}

    def _result_keys(self) -> dict[str, Any]:
        """Options that have Celery keep results and chords' counts under this installation's keys."""
        return {"global_keyprefix": self.keys.at("results") + ":"} if self.names.namespace else {}


def create_app(environ: Mapping[str, str]) -> Dicast:
    """The application for this environment; raises `SettingsError`. Nothing is started or connected to yet."""
    dicast = Dicast(
        "dicast", include=["dicast.app.tasks", "dicast.app.bootstrap"],
        amqp="dicast.workers.runtime.publishing:AMQP",
        control="dicast.app.commands.remote_control:Control", events="dicast.workers.runtime.task_events:Events",
        set_as_current=True,
    )  # fmt: skip
    dicast.environ = environ
    dicast.settings = Settings.from_env(environ)
    dicast.add_defaults(dicast.configuration)
    dicast.steps["worker"].add("dicast.workers.runtime.bootsteps:NodeStep")
    dicast.user_options["worker"].add(LABEL_OPTION)
    return dicast


app = create_app(environment())
