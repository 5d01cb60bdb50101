"""What a simulated provider does: one frozen value, from code, from the command line or from `POST /control`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from random import Random
from typing import Any, NamedTuple

from dicast.app.providers.simulated.budgets import parse_budgets
from dicast.app.providers.simulated.told import DIALECTS

# How an answer can be spoilt. The first group breaks the HTTP answer, the second the judge's words in it.
BODY_FAULTS = ("drip", "cut", "hang", "huge", "bomb", "html", "invalid_json")
ANSWER_FAULTS = (
    "out_of_range", "wrong_type", "missing", "duplicate", "unknown", "wrong_nonce", "chatter", "null", "swapped",
)  # fmt: skip
FAULTS = BODY_FAULTS + ANSWER_FAULTS


class ConfigError(ValueError):
    """An option of the simulated provider is unknown, of the wrong type or out of bounds."""


class Step(NamedTuple):
    """A change that takes effect by itself: after `answers` good answers, or `seconds` after the start."""

    answers: int | None
    seconds: float | None
    changes: Mapping[str, Any]


def _option(default: Any, help: str, *, minimum: float = 0, maximum: float = math.inf) -> Any:
    return field(default=default, metadata={"help": help, "minimum": minimum, "maximum": maximum})


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One model's limits and manners. Times are seconds, shares run from 0 to 1, None means no limit."""

    latency: float = _option(0.0, "mean time to answer, s")
    sigma: float = _option(0.0, "spread of the time to answer: shape of a lognormal; 0 is exact", maximum=5)
    refusal_latency: float = _option(0.0, "time to refuse, s")
    cap: int | None = _option(None, "most calls served at once; 429 above")
    rpm: int | None = _option(None, "requests a minute", minimum=1)
    tpm: int | None = _option(None, "tokens a minute (for Anthropic: of input)", minimum=1)
    output_tpm: int | None = _option(None, "output tokens a minute, charged by use (Anthropic only)", minimum=1)
    quantum: float = _option(0.0, "also enforce rpm and tpm in windows of this many s; 0: no", maximum=60)
    burst: float = _option(60.0, "depth of the rpm and tpm buckets, in seconds of refill", minimum=0.1, maximum=3600)
    ramp: float = _option(0.0, "accept in 10 s at most this x those accepted in the 10 s before, + 15; 0: no")
    noise_429: float = _option(0.0, "share of 429s that have nothing to do with load", maximum=1)
    fail_5xx: float = _option(0.0, "share of calls that end in 500, 502, 503 or 504", maximum=1)
    overload_529: float = _option(0.0, "share of 529s", maximum=1)
    budgets: str | None = _option(None, "budgets besides: window:4800/60+bucket:100000/60:tokens:shown (budgets.py)")
    told: str | None = _option(None, "tell of those budgets in this dialect (told.py), instead of the API's own")
    headers: bool = _option(True, "send the provider's rate-limit headers where rpm or tpm is set")
    retry_after: bool = _option(True, "send retry-after with 429s")
    retry_after_value: str | None = _option(None, "send this as retry-after, whatever it means")
    exhausted: bool = _option(False, "refuse everything: the account has no money left")
    answer_chars: int = _option(160, "length of an argument", maximum=100_000)
    drip_interval: float = _option(0.05, "a dripping body sends one byte each so many s", minimum=0.001)
    huge_bytes: int = _option(100_000_000, "unpacked size of 'huge' and 'bomb' bodies", minimum=1)
    faults: Mapping[str, float] = field(default_factory=dict)

    def draw_latency_s(self, random: Random) -> float:
        """Time to serve one call: exact, or lognormal with `latency` as its arithmetic mean."""
        if not self.latency or not self.sigma:
            return self.latency
        return random.lognormvariate(math.log(self.latency) - self.sigma**2 / 2, self.sigma)

    def changed(self, changes: Mapping[str, Any]) -> Behaviour:
        """A copy with some options replaced; raises `ConfigError`."""
        known = {spec.name: spec for spec in fields(self)}
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
                raise ConfigError(f"unknown option {name!r}; did you mean {near[0]!r}?")
        changed = replace(self, **{name: _checked(known[name], value) for name, value in changes.items()})
        if changed.budgets is not None:
            _budgets_checked(changed.budgets)
        if changed.told is not None and changed.told not in DIALECTS:
            raise ConfigError(f"told must be one of {', '.join(DIALECTS)}, got {changed.told!r}")
        return changed


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """A whole simulated provider: its behaviour, that of single models, and changes to come."""

    behaviour: Behaviour = Behaviour()
    models: Mapping[str, Behaviour] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    seed: int = 1
    api_key: str | None = None
    log_file: str | None = None
    log_size: int = 100_000


def parse_changes(text: str) -> dict[str, Any]:
    """`cap=10,rpm=60`, or `10` alone for the cap; raises `ConfigError`."""
    pairs = [part.split("=", 1) if "=" in part else ["cap", part] for part in text.split(",")]
    changes = {name: parse_value(name, value) for name, value in pairs}
    Behaviour().changed(changes)
    return changes


def parse_fault(text: str) -> tuple[str, float]:
    """`cut=0.1`, or `cut` alone for always; raises `ConfigError`."""
    name, _, share = text.partition("=")
    try:
        faults = {name: float(share or 1)}
    except ValueError:
        raise ConfigError(f"a fault looks like cut=0.1, got {text!r}") from None
    Behaviour().changed({"faults": faults})
    return name, faults[name]


def parse_step(text: str) -> Step:
    """`300:10` = cap 10 after 300 answers; `30s:cap=10,rpm=60` = both after 30 seconds; raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s?):(.+)", text, re.ASCII)
    if not match or (not match[2] and "." in match[1]):
        raise ConfigError(f"a step looks like 300:10, 30s:10 or 300:cap=10,rpm=60, got {text!r}")
    changes = parse_changes(match[3])
    return Step(None, float(match[1]), changes) if match[2] else Step(int(match[1]), None, changes)


def parse_value(name: str, text: str) -> Any:
    """An option's value from the command line; raises `ConfigError`. 'none' lifts a limit."""
    kinds = {spec.name: str(spec.type) for spec in fields(Behaviour)}
    kind = kinds.get(name)
    try:
        if kind is not None and "None" in kind and text == "none":
            return None
        if kind in ("int", "int | None"):
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "bool":
            return {"true": True, "false": False}[text]
    except (ValueError, KeyError):
        raise ConfigError(f"{name} cannot be {text!r}") from None
    return text


def _checked(spec: Field[Any], value: Any) -> Any:
    kind = str(spec.type)
    if value is None and "None" in kind:
        return None
    if kind == "bool":
        valid = isinstance(value, bool)
    elif kind.startswith("str"):
        valid = isinstance(value, str)
    elif kind.startswith("Mapping"):
        valid = _is_faults(value)
    else:
        valid = isinstance(value, int if kind.startswith("int") else int | float) and not isinstance(value, bool)
        valid = valid and spec.metadata["minimum"] <= value <= spec.metadata["maximum"]
    if not valid:
        raise ConfigError(f"{spec.name} must be {_wanted(spec)}, got {value!r}")
    return float(value) if kind == "float" else value


def _budgets_checked(text: str) -> None:
    try:
        parse_budgets(text)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _is_faults(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        name in FAULTS and isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share <= 1
        for name, share in value.items()
    )


def _wanted(spec: Field[Any]) -> str:
    kind = str(spec.type)
    if kind.startswith("Mapping"):
        return f"a table of shares from 0 to 1 under {', '.join(FAULTS)}"
    if kind == "bool":
        return "true or false"
    if kind.startswith("str"):
        return "a text"
    number = "a whole number" if kind.startswith("int") else "a number"
    return f"{number} from {spec.metadata['minimum']} to {spec.metadata['maximum']}"


def options() -> list[tuple[str, str, Any, str]]:
    """(name, kind, default, help) of each option that the command line offers."""
    return [
        (spec.name, str(spec.type), spec.default, spec.metadata["help"])
        for spec in fields(Behaviour)
        if spec.name != "faults"
    ]
