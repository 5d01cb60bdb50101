"""Named profiles, and an operator's overrides for one pool.

`default` finds the capacity by itself; `classic` and `rules` are the published controllers with their constants;
`fixed` keeps the limit where it is, for replays and benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dicast.workers.policy.adaptive_state import AdaptiveConfig
from dicast.workers.policy.classic import ClassicConfig
from dicast.workers.policy.error_budget import ErrorBudget
from dicast.workers.policy.parameters import FairMode
from dicast.workers.policy.rules import RulesConfig


@dataclass(frozen=True, slots=True)
class FixedConfig:
    """Keeps the limit: it never moves by itself."""


EngineConfig = AdaptiveConfig | ClassicConfig | RulesConfig | FixedConfig

PROFILES: dict[str, EngineConfig] = {
    "default": AdaptiveConfig(),
    "classic": ClassicConfig(),
    "rules": RulesConfig(),
    "fixed": FixedConfig(),
}
CLASSIC_START = 8


class UnknownProfile(ValueError):
    """No profile has this name."""


def profile(name: str, **changes: Any) -> EngineConfig:
    """Return a profile's constants, with `changes` applied. Raises `UnknownProfile`, or TypeError for unknown
    constants."""
    try:
        constants = PROFILES[name]
    except KeyError:
        raise UnknownProfile(f"profile must be one of {', '.join(PROFILES)}, got {name!r}") from None
    return replace(constants, **changes)


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The configuration of one pool's policy; only an operator changes it.

    `limit` is the first limit (None: the profile's), `ceiling` the most and `floor` the least that it may become.
    Budgets are per minute; None if they are unknown, and to be learned. An `error_budget` caps the limit by itself.
    If the governor is silent for `stale_after_s`, the limit falls to `stale_limit`.
    """

    ceiling: int
    engine: EngineConfig = field(default_factory=AdaptiveConfig)
    limit: int | None = None
    floor: int = 1
    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    fair: FairMode = FairMode.WORK_CONSERVING
    weights: dict[str, float] = field(default_factory=dict)
    project_max: dict[str, float] = field(default_factory=dict)
    error_budget: ErrorBudget | None = None
    stale_after_s: float = 60.0
    stale_limit: int | None = None
    probe_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("ceiling", "floor", "limit", "stale_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if self.floor > self.ceiling:
            raise ValueError(f"floor must be <= ceiling ({self.ceiling}), got {self.floor}")
        for name in ("requests_per_min", "tokens_per_min"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if self.error_budget is not None and not 0 < self.error_budget.target < 1:
            raise ValueError(f"the target of an error budget must be > 0 and < 1, got {self.error_budget.target}")
        for project, weight in self.weights.items():
            if not 0 < weight < float("inf"):
                raise ValueError(f"weight of {project!r} must be > 0, got {weight}")

    @property
    def first_limit(self) -> int:
        start = self.limit
        if start is None:
            if isinstance(self.engine, AdaptiveConfig):
                engine = self.engine
                part = min(engine.start_most, engine.start_part * self.ceiling)
                start = int(max(engine.start, part, engine.start_part_large * self.ceiling))
            else:
                start = CLASSIC_START if isinstance(self.engine, ClassicConfig) else self.ceiling
        return max(self.floor, min(self.ceiling, start))
