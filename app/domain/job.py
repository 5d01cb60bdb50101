"""The job that a caller submits: items x agents x dimensions x replicates, validated before anything is stored.

A job is plain data. It names pools, never providers' addresses or keys, which are the operator's. Unknown keys,
duplicate ids, empty lists and over-long ids are rejected with the field and the value in the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from dicast.app.domain.calibration import Calibration
from dicast.app.domain.deadlines import Duration, FinishBy
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.figure import Taken
from dicast.app.domain.item import Item, ItemSource, JudgedKind, RatingSource
from dicast.app.domain.panel import MAJORITY, Agent, Combination, PanelRule, check_chief, check_escalation
from dicast.app.domain.plan import Road
from dicast.app.domain.price import Amount
from dicast.app.domain.probes import Probes, author_column, names, variant_probes
from dicast.app.domain.quality_gate import QualityGate
from dicast.app.domain.question import Question
from dicast.app.domain.ranking import PAIR_METADATA, Pairs, pairing_problem
from dicast.app.domain.records import Items, inline_items
from dicast.app.domain.text import (
    ABSENT,
    Accepts,
    Id,
    JobId,
    LabelText,
    Metadata,
    MetadataName,
    Strict,
)
from dicast.errors import alternatives

Orders = Literal["both", "given"]
"""The orders in which a judge is shown the two texts of a pair: both, one after the other, or only as given."""

MAX_AGENTS = 1000
MAX_DIMENSIONS = 10_000
MAX_FAIL_FAST = 1000
MAX_LABELS = 20
MAX_KEPT = 50
MAX_GROUPS = 10
MAX_LABELLED = 20
LOGPROBS_MOST = 999
"""The highest number that common tokenizers write as one token."""


class EvaluationJob(Strict):
    """A whole job as it is submitted. With `id` None the client draws an id."""

    id: JobId | None = None
    project: Id = "default"
    items: Accepts[list[Item] | ItemSource, Items]
    agents: list[Agent] = Field(min_length=1, max_length=MAX_AGENTS)
    dimensions: list[Dimension] = Field(min_length=1, max_length=MAX_DIMENSIONS)
    ratings: Accepts[RatingSource | None, RatingSource | Mapping[str, Any] | str | None] = Field(
        default=ABSENT, description="scores by people; no judge is shown them"
    )
    panel: Accepts[PanelRule | None, PanelRule | Mapping[str, Any] | Combination | None] = Field(
        default=ABSENT, description="how the judges' scores of an item become one, where a dimension does not say it"
    )
    calibration: Calibration | None = Field(
        default=None, description="maps from the judges' scores to people's, learned from an earlier job"
    )
    gate: QualityGate | None = Field(default=None, description="what the results must reach, as `dicast gate` tells")
    question: Question | None = Field(
        default=None, description="what is to be known: the job ends as soon as it is, its items in random order"
    )
    replicates: int = Field(default=1, ge=1, le=1000)
    orders: Orders | None = Field(
        default=None, description="in which orders a judge is shown the texts of a pair; None: both"
    )
    pairs: Pairs | None = Field(
        default=None, description="of items that are lists of candidates: how many pairs of each are judged, or all"
    )
    spend: Literal["at_least_once", "at_most_once"] = Field(
        default="at_least_once",
        description="at_most_once: no second call where the first may have been paid for",
    )
    strict_params: bool = Field(
        default=False, description="a parameter that a model refuses ends its units; else it is left out, and told"
    )
    batching: bool | None = Field(default=None, description="None: BATCHING_ENABLED decides")
    road: Road | None = Field(
        default=None,
        description="batch: by the providers' batch APIs, cheaper and within a day; flex: by OpenAI's slow service, "
        "cheaper; auto: by batches where these end before finish_by; None: as the pools file says",
    )
    fail_fast: int | None = Field(
        default=None,
        ge=0,
        le=MAX_FAIL_FAST,
        description="stop asking a model when its first so many calls all end in one error; None: DICAST_FAIL_FAST",
    )
    on_exhausted: Literal["fail", "wait"] = Field(
        default="fail", description="what units do when the account has no money left"
    )
    cache: Literal["off", "use", "refresh", "only"] = Field(
        default="off",
        description="whether opinions given before to the same question are used again; only: no call is made",
    )
    cache_max_age: Accepts[Duration | None, float | str | timedelta | None] = Field(
        default=ABSENT, description="the age up to which such opinions are used; None: any"
    )
    finish_by: Accepts[FinishBy | None, float | str | timedelta | datetime | None] = Field(
        default=ABSENT, description="no call after so long from the start, or after this instant"
    )
    max_cost: Accepts[Amount | None, float | str | Decimal | None] = Field(
        default=ABSENT, description="what its calls may cost at most, in the currency of its models' prices"
    )
    max_tokens: int | None = Field(default=None, ge=1, le=10**15, description="tokens that its calls may take at most")
    max_calls: int | None = Field(default=None, ge=1, le=10**12, description="calls that are made for it at most")
    unit_deadline: Accepts[Duration | None, float | str | timedelta | None] = Field(
        default=ABSENT, description="a unit ends so long after it was published; 0: never; None: DICAST_UNIT_DEADLINE"
    )
    max_pool_down: Accepts[Duration | None, float | str | timedelta | None] = Field(
        default=ABSENT, description="give a pool up that is down for so long; 0: never; None: DICAST_MAX_POOL_DOWN"
    )
    labels: dict[LabelText, LabelText] = Field(
        default_factory=dict,
        max_length=MAX_LABELS,
        description="labels that every node which calls for this job must have; its pools have to demand them",
    )
    keep: list[MetadataName] = Field(
        default_factory=list, max_length=MAX_KEPT, description="items' metadata that each opinion carries along"
    )
    groups: list[MetadataName] = Field(
        default_factory=list, max_length=MAX_GROUPS, description="items' metadata that the report groups by; it is kept"
    )
    cluster: MetadataName | None = Field(
        default=None,
        description="items' metadata that says which items belong together; intervals speak of other clusters; kept",
    )
    these: list[Taken] = Field(
        default_factory=list,
        max_length=3,
        description="what intervals take for all there is: these `items`, `raters`, `clusters`; else others like them",
    )
    probes: Probes = Field(
        default_factory=list, description="biases to look for in the judges, by name or with options"
    )
    template: str | None = Field(
        default=None, description="how the material is arranged for the judges, in Jinja2; None: as it is always"
    )
    metadata: Metadata = Field(default_factory=dict)
    item_kinds: SkipJsonSchema[list[JudgedKind]] = Field(
        default_factory=list, description="as what its items are judged; []: all as texts; set by Dicast alone"
    )
    item_images: SkipJsonSchema[Literal["none", "files", "no_files"]] = Field(
        default="none", description="whether its items have images, and files may be such; set by Dicast alone"
    )

    @model_validator(mode="before")
    @classmethod
    def _add_needed_metadata(cls, data: Any) -> Any:
        """Add the metadata that the statistics need to `keep`."""
        if not isinstance(data, dict):
            return data
        keep, groups, cluster = data.get("keep", []), data.get("groups", []), data.get("cluster")
        if not isinstance(keep, list) or not isinstance(groups, list):
            return data  # refused with the field's name
        lists = PAIR_METADATA if data.get("pairs") is not None else ()
        needed = (*lists, *groups, cluster, author_column(data.get("probes")))
        more = [name for name in needed if isinstance(name, str) and name not in keep]
        return {**data, "keep": [*keep, *dict.fromkeys(more)]} if more else data

    @model_validator(mode="before")
    @classmethod
    def _records(cls, data: Any) -> Any:
        """Accept a data frame, or any iterable of records or texts, as items."""
        if isinstance(data, dict) and "items" in data and (items := inline_items(data["items"])) is not data["items"]:
            return {**data, "items": items}
        return data

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, data: Any) -> Any:
        """Expand `items: answers.jsonl` to `items: {path: answers.jsonl}`, and `ratings` likewise; turn other mappings
        into dictionaries, which alone pydantic reads."""
        if isinstance(data, dict):
            expanded = {name: {"path": data[name]} for name in ("items", "ratings") if isinstance(data.get(name), str)}
            given = {name: data[name] for name in ("items", "ratings", "panel") if isinstance(data.get(name), Mapping)}
            data = {**data, **expanded, **{name: dict(value) for name, value in given.items()}}
        return data

    @property
    def rating_columns(self) -> set[str]:
        """Metadata of the items that holds ratings, and is never shown to a judge."""
        return self.ratings.named_columns if self.ratings is not None and self.ratings.path is None else set()

    @model_validator(mode="after")
    def _ratings_apart(self) -> Self:
        """Check that ratings are of this job's dimensions, and in no column that a judge or the results show."""
        if self.ratings is None:
            return self
        dimension_ids = [dimension.id for dimension in self.dimensions]
        for name in self.ratings.columns:
            if name not in dimension_ids:
                raise ValueError(
                    f"ratings.columns: {name!r} is no dimension of this job{alternatives(name, dimension_ids)}"
                )
        visible_columns = set(self.keep)
        if isinstance(self.items, ItemSource):
            visible_columns |= self.items.judged_columns
        for name in sorted(self.rating_columns & visible_columns):
            raise ValueError(f"ratings.columns: the column {name!r} is judged, kept or an id, and ratings stay apart")
        return self

    @cached_property
    def compares(self) -> bool:
        """Whether the items are pairs; then all dimensions ask for a preference."""
        return self.dimensions[0].scale.kind == "preference"

    @property
    def both_orders(self) -> bool:
        """Whether each pair is judged in both orders, one round each: even rounds use the given order."""
        return self.compares and self.orders != "given"

    def misfit(self, item: Item) -> str | None:
        """Return why the item cannot be judged by this job's dimensions; None if it can."""
        dimension = self.dimensions[0].id
        if variant_probes(self.probes) and item.kind != "text":
            return "is no single text, and probes change those alone"
        if self.pairs is not None:
            if item.candidates is None:
                return "is no list of candidates, of which pairs could be made (pairs)"
            return pairing_problem(item, self.pairs)
        if item.candidates is not None:
            return "is a list of candidates; say how many pairs of each are judged, pairs: all or a number"
        if self.compares and item.kind != "pair":
            return f"is no pair, and the dimension {dimension!r} asks for a preference between text_a and text_b"
        if not self.compares and item.kind == "pair":
            return f"is a pair, and the dimension {dimension!r} asks for no preference (scale: preference)"
        return self._misfit_criteria(item)

    def _misfit_criteria(self, item: Item) -> str | None:
        """Return why the item's own criteria cannot be judged by, or are wanted and lack."""
        asking = next((dimension.id for dimension in self.dimensions if dimension.scale.criteria is not None), None)
        if item.criteria is None and asking is not None:
            return f"has no criteria, and the dimension {asking!r} judges each item by its own (scale: criteria)"
        if item.criteria is not None and asking is None:
            return (
                f"has {len(item.criteria)} criteria, and no dimension judges by them: give the job one of "
                "scale: criteria, or say criteria_field: null if the file's column is something else"
            )
        return None

    def template_for(self, agent: Agent, dimension: Dimension) -> str | None:
        """Return the template that arranges the material: the dimension's, else the agent's, else the job's."""
        template = dimension.template if dimension.template is not None else agent.template
        return template if template is not None else self.template

    @property
    def templates(self) -> list[str]:
        """All templates by which judges are shown the material."""
        templates = [self.template, *(a.template for a in self.agents), *(d.template for d in self.dimensions)]
        return [template for template in templates if template is not None]

    @property
    def required_metadata(self) -> list[str]:
        """The metadata in `keep` that the items must have themselves."""
        return [name for name in self.keep if self.pairs is None or name not in PAIR_METADATA]

    @property
    def rounds(self) -> int:
        """How often each judge is called about an item in a dimension: replicates x orders."""
        return self.replicates * (2 if self.both_orders else 1)

    def is_swapped(self, round: int) -> bool | None:
        """Return whether a judge sees a pair's texts swapped in this round; None if items are no pairs."""
        return self.both_orders and round % 2 == 1 if self.compares else None

    @model_validator(mode="after")
    def _pairs_or_none(self) -> Self:
        """Check that either all dimensions ask for a preference or none does."""
        kinds = {dimension.scale.kind == "preference": dimension.id for dimension in self.dimensions}
        if len(kinds) > 1:
            raise ValueError(
                f"dimensions: {kinds[True]!r} asks for a preference between two texts and {kinds[False]!r} for a "
                "score of one, got both in one job: make two jobs of it"
            )
        if self.probes and self.compares:
            raise ValueError(f"probes: they look at single texts, and these are pairs, got {names(self.probes)[0]!r}")
        if self.pairs is not None and not self.compares:
            raise ValueError(f"pairs: they are compared by a preference (scale: preference), got {self.pairs!r}")
        if self.orders is not None and not self.compares:
            raise ValueError(f"orders: pairs alone have an order (scale: preference), got {self.orders!r}")
        return self

    def panel_of(self, dimension: Dimension) -> PanelRule:
        """Return how the judges' scores are combined in this dimension."""
        return dimension.panel or self.panel or (MAJORITY if dimension.scale.nominal else PanelRule())

    @property
    def is_capped(self) -> bool:
        """Whether the job's cost, tokens or calls have a cap, so that its items are judged in random order."""
        return self.max_cost is not None or self.max_tokens is not None or self.max_calls is not None

    @property
    def keeps_scoreboard(self) -> bool:
        """Whether scores decide which units are called next, so that the ledger keeps them on the scoreboard."""
        return self.escalates or self.question is not None

    @property
    def escalates(self) -> bool:
        """Whether later judges are called only if they are needed."""
        return any(self.panel_of(dimension).escalate is not None for dimension in self.dimensions)

    @property
    def chief(self) -> str | None:
        """The name of the judge that is called last and shown the others' opinions; None without a chief."""
        return self.panel_of(self.dimensions[0]).chief

    @property
    def panelled(self) -> bool:
        """Whether the panel's scores are wanted: the job has a panel rule or a calibration."""
        has_rule = self.panel is not None or any(dimension.panel is not None for dimension in self.dimensions)
        return has_rule or self.calibration is not None

    @property
    def question_dimension(self) -> int:
        """The index of the dimension that the question is about."""
        dimension_id = self.question.dimension if self.question is not None else None
        return [dimension.id for dimension in self.dimensions].index(dimension_id) if dimension_id is not None else 0

    @model_validator(mode="after")
    def _question_fits(self) -> Self:
        if self.question is not None:
            self.question.check({d.id: (d.scale.min, d.scale.max) for d in self.dimensions})
            dimension = self.dimensions[self.question_dimension]
            if dimension.scale.nominal:
                raise ValueError(f"question.dimension: the labels of {dimension.id!r} have no order, and so no mean")
            if self.calibration is not None:
                raise ValueError("question: the judges' own scores answer it; leave calibration out of this job")
        return self

    @model_validator(mode="after")
    def _gate_of_dimensions(self) -> Self:
        if self.gate is not None:
            nominal = [d.id for d in self.dimensions if not d.scale.ordered]
            self.gate.check_dimensions({d.id: (d.scale.min, d.scale.max) for d in self.dimensions}, nominal)
        return self

    @model_validator(mode="after")
    def _panels_of_judges(self) -> Self:
        names = {agent.name for agent in self.agents}
        for dimension in self.dimensions:
            rule = self.panel_of(dimension)
            if dimension.scale.nominal and rule.combine not in ("majority", "dawid_skene", "chief"):
                raise ValueError(
                    f"panel: {rule.combine} means nothing for the labels of {dimension.id}, which have no order: "
                    "say `panel: majority` or `panel: dawid_skene` in that dimension"
                )
            weights = rule.given_weights
            if rule.weights == "learned" and self.ratings is None:
                raise ValueError(f"panel.weights ({dimension.id}): they are learned from ratings, and the job has none")
            if rule.combine == "dawid_skene" and dimension.scale.max - dimension.scale.min >= MAX_LABELLED:
                raise ValueError(
                    f"panel.combine ({dimension.id}): dawid_skene takes scores for labels, and a scale of more than "
                    f"{MAX_LABELLED} has too many"
                )
            foreign = sorted(set(weights) - names)
            for name in [*foreign, *sorted(names - set(weights))] if weights else ():
                lacks = "has no weight, and 0 must be said"
                wrong = f"is no judge of this job{alternatives(name, sorted(names))}" if name in foreign else lacks
                raise ValueError(f"panel.weights ({dimension.id}): {name!r} {wrong}")
        return self

    @model_validator(mode="after")
    def _panels_that_decide(self) -> Self:
        for dimension in self.dimensions:
            rule, scale = self.panel_of(dimension), dimension.scale
            if rule.threshold is not None and scale.nominal:
                raise ValueError(f"panel.threshold ({dimension.id}): labels without an order reach none")
            if rule.threshold is not None and not scale.min < rule.threshold <= scale.max:
                raise ValueError(
                    f"panel.threshold ({dimension.id}): must be above {scale.min} and at most {scale.max}, "
                    f"the ends of the scale, got {rule.threshold:g}"
                )
            if self.calibration is not None and (rule.threshold is not None or rule.escalate is not None):
                raise ValueError(
                    f"panel ({dimension.id}): a calibration is of a full panel's scores; leave it out, or the panel's "
                    "threshold and escalate"
                )
            check_escalation(rule, dimension.id, len(self.agents), self.rounds)
        return self

    @model_validator(mode="after")
    def _expected_scores(self) -> Self:
        """Check that expected scores are of numbers that are tokens, and are not needed as whole numbers."""
        name = next((agent.name for agent in self.agents if agent.score_from == "logprobs"), None)
        if name is None:
            return self
        judge = f"agents: {name!r} has score_from: 'logprobs'"
        if self.question is not None:
            raise ValueError(
                f"{judge}, and a question is answered by the scores that judges write: leave one of them out"
            )
        for dimension in self.dimensions:
            scale, rule = dimension.scale, self.panel_of(dimension)
            if scale.kind != "numbers":
                raise ValueError(
                    f"{judge}, which needs scales of numbers, and {dimension.id!r} has one of {scale.kind}"
                )
            if scale.min < 0 or scale.max > LOGPROBS_MOST:
                raise ValueError(
                    f"{judge}, which needs scales from 0 up to {LOGPROBS_MOST}, whose values are single tokens, and "
                    f"{dimension.id!r} has {scale.bounds}"
                )
            whole = rule.combine == "dawid_skene" or (rule.combine == "majority" and rule.threshold is None)
            if whole or rule.escalate is not None:
                field = "panel.escalate" if rule.escalate is not None else f"panel {rule.combine}"
                raise ValueError(f"{judge}, and {field} ({dimension.id}) goes by whole scores: leave one of them out")
        return self

    @model_validator(mode="after")
    def _chief_of_judges(self) -> Self:
        rules = {dimension.id: self.panel_of(dimension) for dimension in self.dimensions}
        apart = {"question": self.question, "calibration": self.calibration, "probes": variant_probes(self.probes)}
        check_chief(rules, [agent.name for agent in self.agents], apart)
        return self

    @model_validator(mode="after")
    def _unique(self) -> Self:
        ids_by_field: dict[str, list[str]] = {
            "agents": [a.name for a in self.agents],
            "dimensions": [d.id for d in self.dimensions],
            "probes": [probe.probe for probe in self.probes],
        }
        if isinstance(self.items, list):
            if not self.items:
                raise ValueError("items: at least one is needed, got 0")
            ids_by_field["items"] = [i.id for i in self.items]
            for item in self.items:
                if item.probe is not None:
                    raise ValueError(f"items: {item.id!r} has a probe ({item.probe!r}), which Dicast alone sets")
                if item.opinions is not None:
                    raise ValueError(f"items: {item.id!r} has opinions, which Dicast alone sets, for a panel's chief")
        for field, ids in ids_by_field.items():
            previous: set[str] = set()
            for value in ids:
                if value in previous:
                    raise ValueError(f"{field}: the id {value!r} occurs twice")
                previous.add(value)
        return self
