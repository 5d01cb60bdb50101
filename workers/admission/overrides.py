"""An operator's overrides for a pool: configured at first, changed live, and never by the governor itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dicast.errors import DicastError, alternatives, meant
from dicast.workers.policy.adaptive_state import AdaptiveConfig
from dicast.workers.policy.classic import ClassicConfig
from dicast.workers.policy.error_budget import ErrorBudget
from dicast.workers.policy.parameters import FairMode
from dicast.workers.policy.profiles import PROFILES, EngineConfig, FixedConfig, PoolConfig
from dicast.workers.policy.rules import RulesConfig

PACING_JITTER = 0.5
_SLOTS = range(1, 1_000_001)


class OverrideError(DicastError, ValueError):
    """An override is unknown, of the wrong type or out of bounds. The message names it and its value."""

    problem = "override-refused"


@dataclass(frozen=True, slots=True)
class Overrides:
    """One pool's overrides; None means the profile's own value.

    limit      open calls to begin with (`adaptive`), or always (not `adaptive`)
    ceiling    most open calls; by default twice `limit`, and without a limit whatever the running jobs allow
    floor      least limit, also the one in force while nobody decides for long
    rpm, tpm   requests and tokens a minute that are never exceeded
    latency_target_s
               the median latency of calls below which the limit is kept (profile `default`)
    settle_s   how long after a cut nothing moves (profile `classic`)
    break_s    the breaker's first break (profiles `default` and `classic`)
    cpu_high   CPU of the nodes, percent of one core, above which the limit is halved (profile `rules`)
    cpu_by     whether that is their last `sample`, or their `load` of five minutes (profile `rules`)
    error_high, error_low
               share of failed calls above which the limit falls, and below which it may grow (profile `rules`)
    window_s   seconds of outcomes that make the error rate (profile `rules`)
    sustain_s  how long few errors must last until the limit grows (profile `rules`)
    pacing_s   time between two grants, +-50 %
    slo_target, slo_window_s, slo_burn_rate
               share of calls to be served; while errors use the rest up too fast, the limit is capped by itself
    fair       how the pool is shared between projects; `weights` of projects, absent: 1
    project_max  most open calls of a project: below 1 a share of the limit, else a number; '*' for those absent
    """

    limit: int | None = None
    adaptive: bool = True
    ceiling: int | None = None
    floor: int = 1
    rpm: int | None = None
    tpm: int | None = None
    latency_target_s: float | None = None
    settle_s: float | None = None
    break_s: float | None = None
    cpu_high: float | None = None
    cpu_by: str | None = None
    error_high: float | None = None
    error_low: float | None = None
    window_s: float | None = None
    sustain_s: float | None = None
    pacing_s: float | None = None
    slo_target: float | None = None
    slo_window_s: float = 3600.0
    slo_burn_rate: float = 14.4
    profile: str = "default"
    fair: str = FairMode.WORK_CONSERVING.value
    weights: Mapping[str, float] = field(default_factory=dict)
    project_max: Mapping[str, float] = field(default_factory=dict)

    def with_live(self, override: Mapping[str, Any]) -> Overrides:
        """Return these overrides with live ones applied over them. Raises `OverrideError`."""
        names = [f.name for f in fields(self)]
        for name, value in override.items():
            if name not in names:
                raise OverrideError(f"there is no override {name!r}{alternatives(name, names)}")
            _check(name, value)
        merged = replace(self, **override)
        if merged.limit is not None and merged.ceiling is not None and merged.limit > merged.ceiling:
            raise OverrideError(f"limit must be <= ceiling ({merged.ceiling}), got {merged.limit}")
        if override.get("latency_target_s") is not None and merged.profile != "default":
            raise OverrideError(f"latency_target_s is for profile 'default', not for {merged.profile!r}")
        if merged.settle_s is not None and merged.profile != "classic":
            raise OverrideError(f"settle_s is for profile 'classic', not for {merged.profile!r}")
        if merged.break_s is not None and merged.profile not in ("default", "classic"):
            raise OverrideError(f"profile {merged.profile!r} has no breaker, so no break_s")
        if merged.slo_target and merged.slo_burn_rate > (fastest := 1 / (1 - merged.slo_target)):
            raise OverrideError(
                f"slo_burn_rate must be <= {fastest:.4g}, the rate at which every call fails with "
                f"slo_target {merged.slo_target:g}, got {merged.slo_burn_rate:g}"
            )
        for name in _RULES_ONLY:
            if getattr(merged, name) is not None and merged.profile != "rules":
                raise OverrideError(f"{name} is for profile 'rules', not for {merged.profile!r}")
        rules = RulesConfig()
        low = rules.error_low if merged.error_low is None else merged.error_low
        high = rules.error_high if merged.error_high is None else merged.error_high
        if low >= high:
            raise OverrideError(f"error_low must be < error_high ({high:g}), got {low:g}")
        return merged

    def config(self, cap: int) -> PoolConfig:
        """Return the policy's configuration while the running jobs together may have `cap` calls open (0: none runs).

        Holds: floor <= ceiling <= cap.
        """
        desired_ceiling = self.ceiling if self.ceiling is not None else None if self.limit is None else 2 * self.limit
        bounds = [bound for bound in (desired_ceiling, cap or None) if bound is not None]
        ceiling = min(bounds, default=int(AdaptiveConfig().start))
        return PoolConfig(
            ceiling=ceiling,
            engine=self._engine(),
            limit=None if self.limit is None else min(self.limit, ceiling),
            floor=min(self.floor, ceiling),
            requests_per_min=self.rpm,
            tokens_per_min=self.tpm,
            fair=FairMode(self.fair),
            weights={project: float(weight) for project, weight in self.weights.items()},
            project_max=dict(self.project_max),
            error_budget=self._error_budget(),
        )

    def _error_budget(self) -> ErrorBudget | None:
        return ErrorBudget(self.slo_target, self.slo_window_s, self.slo_burn_rate) if self.slo_target else None

    def _engine(self) -> EngineConfig:
        engine = PROFILES[self.profile] if self.adaptive else FixedConfig()
        if isinstance(engine, AdaptiveConfig):
            engine = replace(engine, latency_target_s=self.latency_target_s)
        if isinstance(engine, ClassicConfig):
            if self.settle_s is not None:
                engine = replace(engine, settle_s=self.settle_s)
            if self.pacing_s is not None:
                engine = replace(engine, gap_s=self.pacing_s)
        if isinstance(engine, RulesConfig):
            changes = {constant: getattr(self, name) for name, constant in _RULES_ONLY.items()}
            engine = replace(engine, **{constant: value for constant, value in changes.items() if value is not None})
        if isinstance(engine, AdaptiveConfig | ClassicConfig) and self.break_s is not None:
            longest = max(engine.breaker.break_max_s, self.break_s)
            breaker = replace(engine.breaker, break_s=self.break_s, break_max_s=longest)
            engine = replace(engine, breaker=breaker)
        return engine


_RULES_ONLY = {
    "cpu_high": "cpu_high_percent", "cpu_by": "cpu_by", "error_high": "error_high", "error_low": "error_low",
    "window_s": "window_s", "sustain_s": "sustain_s",
}  # fmt: skip
"""Overrides that only the profile `rules` has, and the constants that they set."""
_WHOLE = frozenset({"limit", "ceiling", "floor", "rpm", "tpm"})
_LEAST: dict[str, float] = {**dict.fromkeys(_WHOLE, 1), "settle_s": 0, "break_s": 0.1, "cpu_high": 1, "pacing_s": 0,
                            "latency_target_s": 0.01,
                            "window_s": 1, "sustain_s": 1,
                            "error_high": 0, "error_low": 0, "slo_target": 0, "slo_window_s": 60,
                            "slo_burn_rate": 0.1}  # fmt: skip
_ALWAYS = frozenset({"floor", "slo_window_s", "slo_burn_rate"})
"""Overrides that always have a value, so that null is not valid for them."""
_MOST = {"latency_target_s": 3600, "slo_target": 0.99999, "error_high": 1, "error_low": 1}
_CHOICES = {"profile": tuple(PROFILES), "cpu_by": ("sample", "load"), "fair": tuple(mode.value for mode in FairMode)}


def _check(name: str, value: Any) -> None:
    if name == "adaptive":
        valid, requirement = isinstance(value, bool), "true or false"
    elif name in _CHOICES:
        valid = value in _CHOICES[name] or (value is None and name == "cpu_by")
        requirement = f"one of {', '.join(_CHOICES[name])}"
    elif name == "project_max":
        valid = isinstance(value, Mapping) and all(_is_number(m) and (0 < m < 1 or m in _SLOTS) for m in value.values())
        requirement = "shares below 1, or whole numbers of slots, by project"
    elif name == "weights":
        valid = isinstance(value, Mapping) and all(_is_number(w) and w > 0 for w in value.values())
        requirement = "numbers above 0 by project"
    else:
        is_number = (isinstance(value, int) and not isinstance(value, bool)) if name in _WHOLE else _is_number(value)
        most = _MOST.get(name, 1e12)
        valid = (value is None and name not in _ALWAYS) or (is_number and _LEAST[name] <= value <= most)
        requirement = f"a {'whole ' if name in _WHOLE else ''}number >= {_LEAST[name]:g}"
        requirement += f" and <= {most:g}" if name in _MOST else ""
    if not valid:
        near = meant(value, _CHOICES[name]) if name in _CHOICES else ""
        raise OverrideError(f"{name} must be {requirement}, got {value!r}{near}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
