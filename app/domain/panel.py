"""A panel: its judges, and the rules by which their opinions of one item become one score.

The rules are for one item at a time and without libraries, since workers decide by them whom to ask next. For all
items at once, `app/analysis/combining.py` has the same rules as arrays; `tests/domain/test_panel.py` holds them to each
other by random opinions. Thresholds are known here alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from math import log
from statistics import fmean, median
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dicast.app.domain.text import Id, Metadata, PoolName, Strict
from dicast.errors import DicastError, alternatives

MAX_DEPLOYMENTS = 16
MAX_PARAMS = 20
PARAMETERS = 5
"""The fields of an agent that came later and show a judge nothing: its parameters beside `temperature` and
`max_tokens`, `params` as one, and `score_from`."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ServiceTier = Literal["auto", "default", "priority", "standard_only", "on_demand", "performance"]
ScoreFrom = Literal["answer", "logprobs"]


class Deployment(Strict):
    """One place where a judge's model runs."""

    pool: PoolName = Field(default="", description="'' is the default pool")
    model: str | None = Field(default=None, description="None: the pool's default model")


class Agent(Strict):
    """One judge: a persona on a model of one pool, or of several."""

    name: Id
    persona: str = ""
    pool: PoolName = Field(default="", description="'' is the default pool")
    model: str | None = Field(default=None, description="None: the pool's default model")
    deployments: list[Deployment] = Field(
        default_factory=list,
        max_length=MAX_DEPLOYMENTS,
        description="in place of pool and model: each unit goes to the one that is best off",
    )
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int = Field(default=1024, ge=1, le=200_000)
    effort: Effort | None = Field(default=None, description="how much a model reasons; None: as its pool says")
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1001, description="replicate r is asked with seed + r")
    service_tier: ServiceTier | None = Field(default=None, description="None: as its pool says")
    params: Metadata = Field(
        default_factory=dict, max_length=MAX_PARAMS, description="further parameters of calls, as its pool allows them"
    )
    template: str | None = Field(default=None, description="how it is shown the material; None: as the job says")
    score_from: ScoreFrom = Field(
        default="answer",
        description="logprobs: its score is the mean over the scale, by the probabilities of the tokens at its place",
    )

    def parameters(self, replicate: int) -> dict[str, Any]:
        """Return what its calls for this replicate are asked with beside `temperature` and `max_tokens`."""
        if len(self.unset) == PARAMETERS:
            return {}
        seed = None if self.seed is None else self.seed + replicate
        options = {"effort": self.effort, "seed": seed, "service_tier": self.service_tier}
        return {**{name: value for name, value in options.items() if value is not None}, **self.params}

    @cached_property
    def unset(self) -> set[str]:
        """The later fields that it does not use. They stay out of digests, which thus are as before there were any."""
        parameters = {
            name for name in ("effort", "seed", "service_tier", "params") if getattr(self, name) in (None, {})
        }
        return parameters | ({"score_from"} if self.score_from == "answer" else set())

    @property
    def choices(self) -> list[Deployment]:
        """Where the agent may be called: its deployments, or its one pool and model."""
        return self.deployments or [Deployment(pool=self.pool, model=self.model)]

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        for field in ("pool", "model"):
            if self.deployments and (value := getattr(self, field)):
                raise ValueError(f"{field} must be named in deployments, or without them, got {value!r} beside them")
        return self


TRIMMED_SHARE = 0.2
NEARLY = 1e-9
"""The tolerance by which a mean may miss a threshold, and a label the most evidence, because floating-point sums are
inexact."""

Combination = Literal["mean", "median", "trimmed", "majority", "weighted", "worst", "dawid_skene", "chief"]
CHIEF_LEAST = 2
ESCALATING_LEAST = 2
SPREAD_LEAST = 2
"""The fewest answers of one judge that show their spread."""
_INCOMPATIBLE_WITH_CHIEF = {
    "question": "it is answered while judges are still being asked",
    "calibration": "its maps are of scores that rest on no other judge's",
    "probes": "a variant's chief would be told of what other judges made of it",
}
UNLIKELY = 1e-10
"""The smallest probability of an error, so that no single opinion rules a label out."""


class NotLearned(DicastError, LookupError):
    """What a panel's rule learns from the whole job has not been learned yet."""


class Escalation(BaseModel):
    """Calls judges one after the other, in the job's order, and the next one only if it is needed.

    A judge is needed while it can change the outcome; with a `difference`, if the scores so far lie at least that far
    apart; with an `uncertainty`, unless the standard error of their mean is at most that. The last two may be wrong; on
    a share of the items, the `audit`, all judges are called anyway, which shows by how much.
    """

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True)

    difference: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="in units of the scale; not the full panel's score then"
    )
    uncertainty: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, exclude_if=lambda bound: bound is None,
        description="in units of the scale: up to this standard error of the mean so far, from each judge's own "
        "replicates, nobody else is asked; not the full panel's score then",
    )  # fmt: skip
    audit: float | None = Field(
        default=None, gt=0, lt=1, allow_inf_nan=False, exclude_if=lambda share: share is None,
        description="the share of the items on which all judges are asked, to see what asking fewer costs",
    )  # fmt: skip

    agree: float | None = Field(
        default=None, gt=0, lt=1, allow_inf_nan=False, exclude_if=lambda share: share is None,
        description="the share of the decided items on which people agree, as `dicast panel --agree` has learned it; "
        "items on which the judges stay uncertain are left to people",
    )  # fmt: skip
    confidence: float | None = Field(
        default=None, gt=0, lt=1, allow_inf_nan=False, exclude_if=lambda share: share is None,
        description="how sure that is",
    )  # fmt: skip

    @property
    def lossless(self) -> bool:
        """Whether the panel's score is always the full panel's."""
        return self.difference is None and self.uncertainty is None

    @property
    def asks_when(self) -> str:
        """When the next judge is called; completes "where the judges before ..."."""
        if self.difference is not None:
            return f"lay {self.difference:g} or more apart"
        if self.uncertainty is not None:
            return f"were uncertain (a standard error above {self.uncertainty:g}, from their own replicates)"
        return "had not settled the outcome"

    @property
    def skips_when(self) -> str:
        """When the next judge is skipped; completes "where the judges before ..."."""
        if self.difference is not None:
            return f"lay less than {self.difference:g} apart"
        if self.uncertainty is not None:
            return f"were certain (a standard error of at most {self.uncertainty:g}, from their own replicates)"
        return "had settled the outcome"

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.difference is not None and self.uncertainty is not None:
            raise ValueError(
                "one of difference and uncertainty decides who is asked, got both: "
                f"{self.difference:g} and {self.uncertainty:g}"
            )
        if (self.agree is None) != (self.confidence is None) or (self.agree is not None and self.lossless):
            raise ValueError(
                "agree and confidence belong together, and to the difference or uncertainty for which `dicast panel "
                "JOB --agree` has learned from rated items that they hold"
            )
        if self.audit is not None and self.lossless:
            raise ValueError(
                "audit belongs to a difference or an uncertainty: all other escalating panels say what the full one "
                "says"
            )
        return self


class PanelRule(BaseModel):
    """How the judges' scores are combined.

    `weights` are those of "weighted", by judge, or learned from ratings. With a `threshold` the panel's score is 1 if
    it is reached and 0 if not: by the combined score or, with "majority", by more than half of the judges.
    """

    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, strict=True)

    combine: Combination = "mean"
    weights: dict[str, float] | Literal["learned"] = Field(
        default_factory=dict, description="judge -> weight, 0 or more; learned: from ratings by people"
    )
    threshold: float | None = Field(default=None, allow_inf_nan=False, description="the panel passes from here on")
    escalate: Escalation | None = Field(default=None, description="ask the next judge only if it is needed")
    chief: str | None = Field(
        default=None,
        exclude_if=lambda name: name is None,
        description="the judge that is shown the others' opinions, and whose score is the panel's",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        """Expand `panel: median` to `panel: {combine: median}`, and `panel: {chief: ada}` to the rule "chief"."""
        if isinstance(data, dict) and isinstance(data.get("escalate"), bool):
            data = {**data, "escalate": {} if data["escalate"] else None}
        if isinstance(data, dict) and data.get("chief") is not None and "combine" not in data:
            return {**data, "combine": "chief"}
        return {"combine": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_escalate(self) -> Self:
        """Check that judges can be skipped by this rule. Every judge moves a mean, so a mean needs a difference, an
        uncertainty or a threshold."""
        learns = self.weights == "learned" or self.combine == "dawid_skene"
        if learns and (self.threshold is not None or self.escalate is not None):
            raise ValueError("threshold and escalate belong to rules that learn nothing from the whole job")
        if self.escalate is None:
            return self
        moved = self.combine in {"mean", "trimmed", "weighted"} and self.threshold is None
        if self.escalate.lossless and moved:
            raise ValueError(
                f"escalate: every judge moves a panel's {self.combine}; name a threshold, or a difference of the first "
                "judges from which on the next is asked, such as escalate: {difference: 1}, or an uncertainty of theirs"
            )
        if not self.escalate.lossless and (self.combine in {"majority", "worst"} or self.threshold is not None):
            chosen = "difference" if self.escalate.difference is not None else "uncertainty"
            raise ValueError(f"escalate.{chosen} belongs to a mean or median without a threshold")
        return self

    @model_validator(mode="after")
    def _one_chief(self) -> Self:
        if (self.combine == "chief") != (self.chief is not None):
            raise ValueError(f"chief belongs to combine: chief, which needs one, got {self.combine} and {self.chief!r}")
        if self.chief is not None and self.escalate is not None:
            raise ValueError("escalate: a chief is shown what all judges say, so all are asked; leave one of them out")
        return self

    @model_validator(mode="after")
    def _weights_where_they_count(self) -> Self:
        if (self.combine == "weighted") != bool(self.weights):
            raise ValueError("weights belong to combine: weighted, which needs them")
        if isinstance(self.weights, str):
            return self
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise ValueError(f"weights: {name!r} must be a finite number >= 0, got {weight}")
        if self.weights and not any(self.weights.values()):
            raise ValueError("weights: one at least must be above 0")
        return self

    @property
    def learns(self) -> bool:
        """Whether the rule needs all opinions of the job to combine those of one item."""
        return self.weights == "learned" or self.combine == "dawid_skene"

    @property
    def given_weights(self) -> dict[str, float]:
        """The weights by judge; {} if they are learned."""
        return {} if isinstance(self.weights, str) else self.weights

    def combined(self, scores: Mapping[str, float]) -> float | None:
        """Combine the judges' scores of an item into one.

        Returns None without any score (weighted: without any that has a weight; chief: without the chief's). For a rule
        that learns, see `LearnedPanel`; here it raises `NotLearned`.
        """
        if not scores:
            return None
        if self.learns:
            raise NotLearned(f"what {self.combine} learns from the whole job is not there yet")
        if self.combine == "majority" and self.threshold is not None:
            return float(fmean(map(self._passes, scores.values())) > 0.5)
        if self.chief is not None:
            score = scores.get(self.chief)
        else:
            weights = self.given_weights
            score = _weighted(scores, weights) if self.combine == "weighted" else _by_name(self.combine, scores)
        return score if score is None or self.threshold is None else float(self._passes(score))

    def _passes(self, score: float) -> bool:
        return self.threshold is not None and score >= self.threshold - NEARLY


def check_escalation(rule: PanelRule, dimension: str, judges: int, rounds: int) -> None:
    """Raise ValueError if this many judges and rounds leave nothing to decide."""
    if rule.escalate is None:
        return
    if judges < ESCALATING_LEAST:
        raise ValueError(f"panel.escalate ({dimension}): at least {ESCALATING_LEAST} judges are needed, got {judges}")
    if rule.escalate.uncertainty is not None and rounds < SPREAD_LEAST:
        raise ValueError(
            f"panel.escalate.uncertainty ({dimension}): it is taken from how far a judge's own answers to one question "
            f"lie apart, so replicates must be at least {SPREAD_LEAST}, got {rounds}"
        )


def check_chief(rules: Mapping[str, PanelRule], judges: Sequence[str], other_fields: Mapping[str, object]) -> None:
    """Raise ValueError if a job's rules, by dimension, name a chief that cannot be one; `other_fields` are the fields
    that exclude a chief."""
    first, chief = next((dimension, rule.chief) for dimension, rule in rules.items())
    for dimension, rule in rules.items():
        if rule.chief != chief:
            raise ValueError(
                f"panel.chief ({dimension}): one judge is the chief in all dimensions of a job, or none is, got "
                f"{rule.chief!r} here and {chief!r} in {first}"
            )
    if chief is None:
        return
    if chief not in judges:
        raise ValueError(f"panel.chief: {chief!r} is no judge of this job{alternatives(chief, judges)}")
    if len(judges) < CHIEF_LEAST:
        raise ValueError(f"panel.chief: at least {CHIEF_LEAST} judges are needed, {chief!r} and another, got 1")
    for field, why in _INCOMPATIBLE_WITH_CHIEF.items():
        if other_fields[field]:
            raise ValueError(f"{field}: cannot be together with a panel's chief ({chief!r}): {why}")


class LearnedPanel(BaseModel):
    """What a panel's rule has learned from the whole job, from `items` items.

    For weights: `weights` are learned from all rated items, and `halves` from each half of them. An item of one half
    (`half_of`) is combined by the weights of the other half, so that no rating influences how well it is predicted. For
    Dawid-Skene: `prior` is how common each label is, and `errors`, by judge, is how often it says b if a is true (rows
    a). `reason` says why the weights are equal.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    items: int
    weights: dict[str, float] = {}
    halves: list[dict[str, float]] = []
    prior: list[float] = []
    errors: dict[str, list[list[float]]] = {}
    reason: str | None = None

    def combined(self, item_id: str, scores: Mapping[str, float], lowest: int, *, rated: bool) -> float | None:
        """Combine the judges' scores of an item into one; `lowest` is the scale's lowest score."""
        if not scores:
            return None
        if self.prior:
            return lowest + self._likeliest({judge: round(score) - lowest for judge, score in scores.items()})
        return _weighted(scores, self.halves[1 - half_of(item_id)] if rated and self.halves else self.weights)

    def _likeliest(self, labels: Mapping[str, int]) -> int:
        """Return the label with the most evidence; of several with equally much, the lowest."""

        def evidence(label: int) -> float:
            log_likelihood = sum(
                log(max(self.errors[judge][label][observed], UNLIKELY)) for judge, observed in labels.items()
            )
            return log(max(self.prior[label], UNLIKELY)) + log_likelihood

        by_label = [evidence(label) for label in range(len(self.prior))]
        return next(label for label, weight in enumerate(by_label) if weight >= max(by_label) - NEARLY)


def half_of(item_id: str) -> int:
    """Return which of two halves an item belongs to, 0 or 1: pseudo-random, and always the same."""
    return blake2b(item_id.encode(), digest_size=1).digest()[0] & 1


def _weighted(scores: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    total = sum(weights[judge] for judge in scores)
    return sum(weights[judge] * score for judge, score in scores.items()) / total if total else None


def _by_name(combine: str, scores: Mapping[str, float]) -> float:
    return _COMBINED[combine](sorted(scores.values()))


def _trimmed(scores: list[float]) -> float:
    """Return the mean without the lowest and the highest fifth, at least one each if there are three or more."""
    cut = max(int(len(scores) * TRIMMED_SHARE), 1) if len(scores) > 2 else 0
    return fmean(scores[cut : len(scores) - cut])


def commonest(scores: Sequence[float]) -> float:
    """Return the commonest score; of several equally common ones the middle one, the lower of two in the middle."""
    counts = Counter(scores)
    most = max(counts.values())
    tied = sorted(score for score, count in counts.items() if count == most)
    return tied[(len(tied) - 1) // 2]


_COMBINED: Mapping[str, Callable[[list[float]], float]] = {
    "mean": fmean, "median": median, "trimmed": _trimmed, "majority": commonest, "worst": min
}  # fmt: skip
MAJORITY = PanelRule(combine="majority")
"""The rule for scores without a meaningful mean."""


def unswapped_score(score: int, *, swapped: bool | None) -> int:
    """Return a judge's preference in terms of the pair's own A and B.

    A preference is above 0 for A, below 0 for B, and 0 for a tie. A judge that is shown the texts swapped calls the
    text that it read first A. What is stored always refers to the pair's own A and B.
    """
    return -score if swapped else score


def combined_score(scores: Mapping[int, float], *, both_orders: bool) -> float:
    """Return one judge's score of an item from its scores by round, of which there must be at least one.

    With `both_orders`, each even round and the odd one after it are the same question in both orders. If the preferred
    text changes with the order, the order decided and not the texts: that is a tie. A tie in one order leaves the
    other's preference, as does an order without a score; otherwise it is the mean of both. Several replicates are
    averaged.
    """
    if not both_orders:
        return fmean(scores.values())
    means = []
    for replicate in sorted({round // 2 for round in scores}):
        pair = (scores.get(round, 0) for round in (2 * replicate, 2 * replicate + 1))
        preferred = [score for score in pair if score]
        turned = len(preferred) == 2 and preferred[0] * preferred[1] < 0
        means.append(fmean(preferred) if preferred and not turned else 0.0)
    return fmean(means)
