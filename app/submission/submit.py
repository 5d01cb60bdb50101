"""Brings a caller's job into the ledger: checked as a whole, stored as a whole, or refused with a reason."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import orjson

from dicast.app import datasets
from dicast.app.domain.arrangement import ExpectedItems, arrangement_of
from dicast.app.domain.cost import budgets_of, purse_fields
from dicast.app.domain.deadlines import instant_ms
from dicast.app.domain.escalation import stages_of
from dicast.app.domain.item import Item, ItemSource, RatingCounts
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.panel import Agent, Deployment
from dicast.app.domain.plan import Lane, Road, lanes
from dicast.app.domain.price import Place, Price, cap_fields, listed_price, price_from_table
from dicast.app.domain.probes import count_variants, variant_probes
from dicast.app.domain.refusals import JobRefused, validated
from dicast.app.domain.text import counted, excerpt
from dicast.app.ledger.client import LedgerClient
from dicast.app.submission.images import ItemInspector, with_absolute_paths
from dicast.app.submission.job_file import JobFileError, check_bounds, read_document
from dicast.app.submission.libraries import Trials, calibration_warnings, with_calibration, with_rubrics
from dicast.app.tracing import HEADER, Tracer, current
from dicast.config.pools import JUDGES_OWN, PROVIDERS, RENAMED, Dialect, Pools, PoolSpec, UnknownPool
from dicast.config.settings import Settings
from dicast.errors import nearest
from dicast.workers.nodes.registry import Node


def check_probes(job: EvaluationJob, lanes: Sequence[Lane]) -> None:
    """Raise `JobRefused` for a probe that would compare a thing with itself, or that would never be reached."""
    if job.question is not None and (probes := variant_probes(job.probes)):
        raise JobRefused(
            f"probes: the variants of {probes[0].probe!r} are judged after all items, and a job with a question may "
            "end before that; use a job of its own for the probe"
        )
    for probe in variant_probes(job.probes):
        if probe.probe not in ("batching", "order"):
            continue
        if len(job.dimensions) < 2:
            raise JobRefused(f"probes: {probe.probe!r} needs two dimensions or more, got {len(job.dimensions)}")
        single = [job.agents[at].name for lane in lanes if not lane.batched for at in lane.agents]
        if single:
            raise JobRefused(
                f"probes: {probe.probe!r} needs judges that are asked for all dimensions in one call, and "
                f"{single[0]!r} is not (say `batching: true`, on pools with structured output)"
            )


def check_job(job: EvaluationJob | Mapping[str, Any]) -> EvaluationJob:
    """Return the job, validated, with an id, and with the rubrics and the calibration that a document names inserted.

    Raises `InvalidJob` (a `ValueError`), `RubricError`, `CalibrationError`, or TypeError for what is no job at all.
    """
    if isinstance(job, Mapping):
        try:
            check_bounds(job)
        except JobFileError as error:
            raise JobRefused(f"the job {error}") from None
        job = with_calibration(with_rubrics(job, Path.cwd(), read_document), Path.cwd(), read_document)
    job = validated(job)
    return job if job.id is not None else job.model_copy(update={"id": new_job_id()})


def new_job_id() -> str:
    """Return an id that sorts by time and is unique by chance (64 bits)."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that may be stored: `lanes` as it will be judged, `items` as they will be arranged, `text_bytes` and
    `ratings` as counted.

    `extra` are further fields of its record in the ledger, `warnings` what its caller should know.
    """

    job: EvaluationJob
    lanes: Sequence[Lane]
    items: int
    text_bytes: int
    extra: Mapping[str, str]
    ratings: RatingCounts | None = None
    warnings: Sequence[str] = ()
    variants: int = 0
    """The number of items that are variants for probes."""
    places: Sequence[Sequence[Place]] = ()
    """Where each agent may be called, with prices, by deployment."""

    @property
    def id(self) -> str:
        assert self.job.id is not None
        return self.job.id

    @property
    def units(self) -> int:
        return self.items * len(self.job.agents) * len(self.job.dimensions) * self.job.rounds

    @property
    def calls(self) -> int:
        """The number of calls if nothing is called twice: a batched call covers all dimensions."""
        return self._calls(self.items) + self._apart

    @property
    def probe_calls(self) -> int:
        """The number of calls that are made for probes alone."""
        return self._calls(self.variants) + self._apart

    def _calls(self, items: int) -> int:
        return sum(items * lane.units_per_item // lane.stride for lane in self.lanes)

    @property
    def _apart(self) -> int:
        """The extra calls for variants whose dimensions are judged one per call."""
        alone = count_variants([probe for probe in self.job.probes if probe.probe == "batching"], self.base_items)
        return alone * sum(
            lane.units_per_item - lane.units_per_item // lane.stride for lane in self.lanes if lane.batched
        )

    @property
    def base_items(self) -> int:
        """The number of items without their variants."""
        return self.items - self.variants


def prepare(
    job: EvaluationJob | Mapping[str, Any], *, pools: Pools, settings: Settings, image_files: bool = True
) -> Prepared:
    """Check everything about a job that can be checked without a store: its shape, its pools, every item of its file.

    Without `image_files` its items may name no files as images. Raises `InvalidJob`, `UnknownPool`, `JobRefused`,
    `ImageError` or `datasets.DatasetError`.
    """
    job = with_absolute_paths(check_job(job), Path.cwd())
    if isinstance(job.items, list):
        _check_units(job, len(job.items), settings.max_units)
    specs = [_pool_specs(agent, pools) for agent in job.agents]
    roads = [_road(job, agent, of_agent) for agent, of_agent in zip(job.agents, specs, strict=True)]
    for agent, of_agent, road in zip(job.agents, specs, roads, strict=True):
        _check_labels(agent.name, of_agent, job.labels, pools)
        _check_parameters(agent, of_agent, road)
    batching = settings.batching_enabled if job.batching is None else job.batching
    batching = batching and all(dimension.template is None for dimension in job.dimensions)
    plan = lanes(
        [tuple(spec.name for spec in of_agent) for of_agent in specs],
        len(job.dimensions),
        job.rounds,
        [batching and all(spec.structured_output for spec in of_agent) for of_agent in specs],
        stages_of(job),
        roads,
        [_answers(job, agent, of_agent) for agent, of_agent in zip(job.agents, specs, strict=True)],
    )
    check_probes(job, plan)
    extra: dict[str, str] = {}
    expected = ExpectedItems(arrangement_of(job))
    if isinstance(job.items, ItemSource):
        source = job.items.model_copy(update={"path": _absolute(job.items.path)})
        job = job.model_copy(update={"items": source})
    inspector = ItemInspector(job, files=image_files)
    trials = Trials(job)

    def count(item: Item) -> None:
        trials.add(item)
        expected.add(item)

    survey = _survey_items(job, inspector.inspecting(count), settings)
    extra |= {"fingerprint": survey.fingerprint} if survey.fingerprint else {}
    trials.finish()
    _check_units(job, expected.total, settings.max_units)
    ratings = None
    if job.ratings is not None:
        if job.ratings.path is not None:
            ratings_source = job.ratings.model_copy(update={"path": _absolute(job.ratings.path)})
            job = job.model_copy(update={"ratings": ratings_source})
        ratings, mark = datasets.survey_ratings(job, survey.item_ids)
        extra |= {"ratings_fingerprint": mark} if mark is not None else {}
    places = _places(job, specs)
    _check_budgets(job, places, pools)
    extra |= _question_fields(job, expected, plan) | _cap_fields(job, places) | purse_fields(job.project, places)
    extra["places"] = orjson.dumps([[place.as_dict() for place in of_agent] for of_agent in places]).decode()
    job = inspector.annotated(job, specs)
    warnings = calibration_warnings(job, [_models(*deployed) for deployed in zip(job.agents, specs, strict=True)])
    warnings += _left_out(survey)
    variants = expected.total - expected.base_items
    return Prepared(job, plan, expected.total, survey.text_bytes, extra, ratings, warnings, variants, places)


def _answers(job: EvaluationJob, agent: Agent, specs: Sequence[PoolSpec]) -> int:
    """Return how many replicates one call to a judge may answer: those that are asked the same, word for word."""
    asked_alike = agent.seed is None and not job.both_orders and agent.name != job.chief
    return min(spec.answers_per_call for spec in specs) if asked_alike else 1


def _left_out(survey: datasets.Survey) -> list[str]:
    """Return a warning of the rows of a file of items that hold nothing to judge."""
    count = survey.left_out
    return [f"items: {counted(count, 'row')} of the file left out, without an answer to judge"] if count else []


def _places(job: EvaluationJob, specs: Sequence[Sequence[PoolSpec]]) -> list[list[Place]]:
    """Return where each agent may be called, with prices, by deployment. Money is the account's, whatever the model."""
    return [
        [_place(agent, spec, model) for spec, model in zip(own, _models(agent, own), strict=True)]
        for agent, own in zip(job.agents, specs, strict=True)
    ]


def _place(agent: Agent, spec: PoolSpec, model: str) -> Place:
    """Return a place with its price. Calls of a better service whose price nobody has told are unpriced."""
    price, tier = price_of(spec, model), _parameters(agent, spec).get("service_tier", "")
    if tier == "priority" and price is not None and price.priority is None:
        price = None
    return Place(spec.account_name, model, price, tier)


def _cap_fields(job: EvaluationJob, places: Sequence[Sequence[Place]]) -> dict[str, str]:
    """Return the fields of the job's record about its caps. Raises `JobRefused` for a cap in money where the price of a
    model is not known, or where prices are in two currencies."""
    if job.max_cost is not None:
        for place in (place for of_agent in places for place in of_agent):
            if place.price is None:
                raise JobRefused(
                    f"max_cost: nobody has told what model {place.model!r} of pool {place.pool!r} costs; say it in the "
                    "pools file (price), or install the extra `prices`"
                )
        currencies = sorted({place.price.currency for own in places for place in own if place.price is not None})
        if len(currencies) > 1:
            raise JobRefused(f"max_cost: its models have prices in {' and '.join(currencies)}; a cap is in one")
    return cap_fields(job.max_cost, job.max_tokens, job.max_calls)


def _check_budgets(job: EvaluationJob, places: Sequence[Sequence[Place]], pools: Pools) -> None:
    """Raise `JobRefused` for a budget that cannot be kept, since a model has no price, or one in another currency."""
    for place in (place for of_agent in places for place in of_agent):
        for budget in budgets_of(pools, job.project, place.pool):
            if (objection := budget.objection(place)) is not None:
                raise JobRefused(f"budget: {objection}")


def price_of(spec: PoolSpec, model: str) -> Price | None:
    """Return what a pool's model costs: as the pools file says, or else the extra `prices`; None if neither does."""
    if (table := spec.price_table(model)) is not None:
        return price_from_table(table, "pools file")
    return listed_price(model, spec.provider, spec.base_url) if spec.provider in get_args(Dialect) else None


def _survey_items(job: EvaluationJob, visit: Callable[[Item], None], settings: Settings) -> datasets.Survey:
    """Visit every item; return what is known of them. The fingerprint is '' of items that are in no file.

    Raises `JobRefused` or `datasets.DatasetError` for items that cannot be judged.
    """
    required = _required_fields(job)
    if isinstance(job.items, ItemSource):
        most = max(1, settings.max_units // (len(job.agents) * len(job.dimensions) * job.rounds) + 1)
        survey = datasets.survey(
            job.items,
            most=most,
            max_text_bytes=settings.max_text_bytes,
            keep=required,
            misfit=job.misfit,
            visit=visit,
        )
        if survey.items == 0:
            raise datasets.DatasetError(job.items.path, "holds no items")
        return survey
    for item in job.items:
        visit(item)
    for name, field in required.items():
        if not any(name in item.metadata for item in job.items):
            near = nearest(name, {key for item in job.items for key in item.metadata})
            hint = f"; did you mean {excerpt(repr(near), 80)}?" if near is not None else ""
            raise JobRefused(f"{field}: no item has {excerpt(repr(name), 80)} in its metadata{hint}")
    text_bytes = sum(_checked_size(job, item, settings.max_text_bytes) for item in job.items)
    return datasets.Survey(len(job.items), text_bytes, "", datasets.KnownItems(item.id for item in job.items))


def _required_fields(job: EvaluationJob) -> dict[str, str]:
    """Return the metadata that items must have, each with the field of the job that needs it."""
    required_by = dict.fromkeys(job.groups, "groups") | ({job.cluster: "cluster"} if job.cluster is not None else {})
    return {name: required_by.get(name, "keep") for name in job.required_metadata}


def _check_units(job: EvaluationJob, items: int, most: int) -> None:
    """Raise `JobRefused` for a job whose plan alone would fill the store."""
    units = items * len(job.agents) * len(job.dimensions) * job.rounds
    if units > most:
        raise JobRefused(
            f"items: {items:,} x {len(job.agents):,} agents x {len(job.dimensions):,} dimensions x {job.rounds:,} "
            f"replicates and orders is more than {most:,} units (DICAST_MAX_UNITS), got {units:,}"
        )


def _question_fields(job: EvaluationJob, expected: ExpectedItems, plan: Sequence[Lane]) -> dict[str, str]:
    """Return the fields of the job's record about its question: that there is one, and how many pairs of items it
    compares.

    Raises `JobRefused` if its groups differ in size, or if its calls do not suffice for one item.
    """
    if job.question is None:
        return {}
    most, calls = job.question.most_calls, sum(lane.units_per_item // lane.stride for lane in plan)
    if most is not None and most < calls:
        raise JobRefused(f"question.most_calls: an item takes {calls} calls, got {most}")
    if job.question.difference is None:
        return {"asks": "1"}
    (first, second), counts = map(repr, job.question.difference.of), expected.groups
    if not counts[0] or counts[0] != counts[1]:
        raise JobRefused(
            f"question.difference: as many items of one as of the other are needed, got {counts[0]} of "
            f"{excerpt(first, 80)} and {counts[1]} of {excerpt(second, 80)}"
        )
    return {"asks": "1", "pairs": str(counts[0])}


def _absolute(path: str) -> str:
    """Return the absolute path, because workers read the file too, from wherever they run."""
    return str(Path(datasets.located(path, Path.cwd())).resolve())


def field_needing_libraries(job: EvaluationJob) -> str:
    """Return the first field of a job that needs the libraries of the extra `scores` in its workers, '' if none
    does."""
    fields = {"question": job.question, "ratings": job.ratings, "groups": job.groups, "calibration": job.calibration}
    return next((name for name, value in fields.items() if value), "")


def check_libraries(job: EvaluationJob, living: Sequence[Node]) -> str | None:
    """Return a warning if no living worker has the libraries that a job needs, as far as they report: its report comes
    without statistics.

    Raises `JobRefused` for a question, which nobody could answer.
    """
    field = field_needing_libraries(job)
    if not field or not living:
        return None
    from dicast.app.analysis import INSTALL, SCORES  # noqa: PLC0415  takes long to load

    if not all(SCORES in node.missing_extras for node in living):
        return None
    if field == "question":
        raise JobRefused(f"question: no living worker has the libraries that answer it; install them there: {INSTALL}")
    return (
        f"{field}: no living worker has the libraries for statistics ({INSTALL}), so the report comes without them; "
        "`dicast report` computes them where they are installed"
    )


def submit(job: Prepared, *, ledger: LedgerClient, start_in_s: float = 0.0, expires_in_s: float | None = None) -> str:
    """Store a job in the ledger; return its id. Nothing is sent yet. Raises `JobConflict`, or `JobRefused` if its
    `finish_by` has passed.

    With `start_in_s` the housekeeping starts it then. A job that is not started within `expires_in_s` never is.
    """
    extra, end = dict(job.extra), job.job.finish_by
    if isinstance(end, str) and ledger.is_free(job.id) and instant_ms(end) <= ledger.wall_ms():
        raise JobRefused(f"finish_by: {end} has passed")
    if expires_in_s is not None:
        extra["expires_ms"] = str(ledger.wall_ms() + round(1000 * expires_in_s))
    ledger.submit(job.job, job.lanes, job.units, extra, math.ceil(1000 * start_in_s))
    return job.id


@contextlib.contextmanager
def traced_submission(tracer: Tracer | None, job: Prepared) -> Iterator[Prepared]:
    """Yield the job as it is to be submitted: where traces are on, within a span whose context the job stores."""
    if tracer is None:
        yield job
        return
    with tracer.span("submit", job=job.id, units=job.units):
        yield replace(job, extra={**job.extra, HEADER: current()})


def _pool_specs(agent: Agent, pools: Pools) -> list[PoolSpec]:
    """Return the pools of an agent's deployments, by whose limits their calls go.

    Raises `UnknownPool`, or `JobRefused` if two deployments are the same, or a pool does not serve the model.
    """
    specs = [_pool(pools, deployment, f"agents: {agent.name!r}") for deployment in agent.choices]
    places: set[tuple[str, str]] = set()
    for spec, deployment in zip(specs, agent.choices, strict=True):
        _check_model(agent.name, deployment, spec, pools)
        place = spec.name, deployment.model or spec.model
        if place in places:
            raise JobRefused(f"agents: {agent.name!r} names model {place[1]!r} of pool {place[0]!r} twice")
        places.add(place)
    return specs


def _pool(pools: Pools, deployment: Deployment, field: str) -> PoolSpec:
    """Return a deployment's pool. Raises `UnknownPool` with the job's field that names it."""
    try:
        return pools.limiting(deployment.pool, deployment.model)
    except UnknownPool as error:
        raise UnknownPool(f"{field}: {error}") from None


def _road(job: EvaluationJob, agent: Agent, specs: Sequence[PoolSpec]) -> Road:
    """Return how an agent's requests get to their provider: as the job says, or else the agent's pool. `auto` is
    `online` where there are no batches to choose. Raises `JobRefused` where there is no such road."""
    road = job.road if job.road is not None else specs[0].road
    if road == "online":
        return road
    if road == "flex":
        for spec in specs:
            if not spec.has_flex:
                raise JobRefused(
                    f"road: 'flex' is a service of OpenAI's, and pool {spec.name!r} of agent {agent.name!r} has none; "
                    "say `online`"
                )
        return road
    if road == "auto":
        return road if len(specs) == 1 and specs[0].has_batches else "online"
    for spec in specs:
        if not spec.has_batches:
            raise JobRefused(
                f"road: 'batch' goes by a provider's batch API, and pool {spec.name!r} of agent {agent.name!r} has "
                f"none (provider {spec.provider!r}{', at a base_url' if spec.base_url else ''}); say `online`"
            )
    if len(specs) > 1:
        raise JobRefused(
            f"road: a batch goes to one pool, and agent {agent.name!r} has {len(specs)} deployments; name one, or say "
            "`online`"
        )
    return road


def _check_parameters(agent: Agent, specs: Sequence[PoolSpec], road: Road) -> None:
    """Raise `JobRefused` for a parameter that a pool of the agent does not allow or does not have, or whose place in
    calls another one takes, so that it would be lost without a word."""
    _check_logprobs(agent, specs)
    judge = f"agents: {agent.name!r}:"
    for name, value in agent.params.items():
        if name in JUDGES_OWN:
            raise JobRefused(
                f"{judge} params.{name}: belongs beside params, as the judge's {name}, got {_shown(value)}"
            )
    if agent.service_tier is not None and road == "flex":
        raise JobRefused(
            f"{judge} service_tier: must be left out where the road is flex, which is one, got {agent.service_tier!r}"
        )
    for spec in specs:
        taken: dict[str, str] = {}
        for name, value in _parameters(agent, spec).items():
            where, field = f"{judge} {'params.' if name in agent.params else ''}{name}", spec.field_of(name)
            if name in agent.params and name not in spec.params:
                why = f"pool {spec.name!r} allows {', '.join(spec.params) or 'none'} (`params` in the pools file)"
                raise JobRefused(f"{where}: {why}, got {_shown(value)}")
            if not field:
                why = f"pool {spec.name!r} has no such parameter (`param_names` in the pools file)"
                raise JobRefused(f"{where}: {why}, got {_shown(value)}")
            for other, place in taken.items():
                if f"{field}.".startswith(f"{place}.") or place.startswith(f"{field}."):
                    why = f"pool {spec.name!r} sends it as {field}, and {other} as {place}: one must be left out"
                    raise JobRefused(f"{where}: {why}, got {_shown(value)}")
            taken[name] = field


def _parameters(agent: Agent, spec: PoolSpec) -> dict[str, Any]:
    """Return what an agent's calls of a pool are asked with: the pool's own parameters, the agent's and its `params`,
    without the place that a later one takes of an earlier one of the same name."""
    of_pool = {name: getattr(spec, name) for name in ("effort", "service_tier")}
    of_agent = {name: value for name in RENAMED if (value := getattr(agent, name)) is not None}
    return {name: value for name, value in of_pool.items() if value is not None} | of_agent | agent.params


def _shown(value: Any) -> str:
    return excerpt(repr(value), 80)


def _models(agent: Agent, specs: Sequence[PoolSpec]) -> list[str]:
    return [place.model or spec.model for place, spec in zip(agent.choices, specs, strict=True)]


def _check_model(agent: str, deployment: Deployment, spec: PoolSpec, pools: Pools) -> None:
    """Raise `JobRefused` if another model would answer than the one that is named."""
    model = deployment.model
    if model is None:
        return
    provider, slash, _ = model.partition("/")
    of_file = [s for s in pools.pools.values() if not s.account] if slash else []
    meant = [s.name for s in of_file if provider in (s.name, s.provider)]
    # A server of one's own may be a gateway, to which such a name tells where to go.
    is_foreign = (meant or provider in PROVIDERS) and provider != spec.account_name
    if not deployment.pool and spec.base_url is None and is_foreign:
        hint = f"; name its pool: {', '.join(meant)}" if meant else ""
        raise JobRefused(
            f"agents: {agent!r} names model {model!r} and no pool, and the default pool {spec.account_name!r} does not "
            f"serve {provider}'s models{hint}"
        )
    if spec.one_model and model != spec.model:
        raise JobRefused(
            f"agents: {agent!r} names model {model!r}, and pool {spec.name!r} serves {spec.model!r} alone"
            + (f"; did you mean pool {' or '.join(map(repr, meant))}?" if meant else "")
        )


def _check_logprobs(agent: Agent, specs: Sequence[PoolSpec]) -> None:
    """Raise `JobRefused` for a judge whose scores come from log probabilities at a pool that tells none."""
    for spec in specs if agent.score_from == "logprobs" else ():
        if not spec.logprobs:
            of_dialect = spec.dialect == "anthropic"
            why = (
                "Anthropic's API has none" if of_dialect else "its `logprobs` are false in the pools file, or not said"
            )
            raise JobRefused(
                f"agents: {agent.name!r} has score_from: 'logprobs', and pool {spec.name!r} tells no log probabilities "
                f"of tokens ({why}); say `score_from: answer`, or name another pool"
            )


def _check_labels(agent: str, specs: Sequence[PoolSpec], labels: Mapping[str, str], pools: Pools) -> None:
    """Raise `JobRefused` if nodes without the job's labels might make its calls."""
    for spec in specs:
        if missing := {name: value for name, value in labels.items() if spec.labels.get(name) != value}:
            demanded = ", ".join(f"{name}={value}" for name, value in sorted(missing.items()))
            fitting = [s.name for s in pools.pools.values() if labels.items() <= s.labels.items()]
            hint = f"these do: {', '.join(fitting)}" if fitting else "no pool does; give one labels in the pools file"
            raise JobRefused(
                f"labels: the job demands {demanded}, and pool {spec.name!r} of agent {agent!r} does not; {hint}"
            )


def _checked_size(job: EvaluationJob, item: Item, most: int) -> int:
    if (why := job.misfit(item)) is not None:
        raise JobRefused(f"items: {excerpt(repr(item.id), 80)} {why}")
    size = item.text_bytes
    if size > most:
        raise JobRefused(f"items: {item.id!r} holds {size} bytes of text, at most {most} (DICAST_MAX_TEXT_BYTES)")
    return size
